"""Scans in Spark: DataFrames, a data source, SQL, and the reports of tasks."""

from typing import TYPE_CHECKING

from nevermore.scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from nevermore.scan_core.spark.frames import choice_of as choice_of
    from nevermore.scan_core.spark.frames import compares_case as compares_case
    from nevermore.scan_core.spark.frames import dataframe as dataframe
    from nevermore.scan_core.spark.frames import expected_choice as expected_choice
    from nevermore.scan_core.spark.frames import means_what_scans_mean as means_what_scans_mean
    from nevermore.scan_core.spark.frames import parallelism_of as parallelism_of
    from nevermore.scan_core.spark.frames import push_filters as push_filters
    from nevermore.scan_core.spark.frames import register as register
    from nevermore.scan_core.spark.frames import reports_of as reports_of
    from nevermore.scan_core.spark.frames import why_not_native as why_not_native
    from nevermore.scan_core.spark.native import NativeLimits as NativeLimits
    from nevermore.scan_core.spark.package import build_package as build_package
    from nevermore.scan_core.spark.package import check_package as check_package
    from nevermore.scan_core.spark.package import equip as equip
    from nevermore.scan_core.spark.package import is_local as is_local
    from nevermore.scan_core.spark.package import pack_dependencies as pack_dependencies
    from nevermore.scan_core.spark.pushdown import Pushed as Pushed
    from nevermore.scan_core.spark.pushdown import PushedScans as PushedScans
    from nevermore.scan_core.spark.pushdown import TableRead as TableRead
    from nevermore.scan_core.spark.pushdown import explain_sql as explain_sql
    from nevermore.scan_core.spark.pushdown import most_read as most_read
    from nevermore.scan_core.spark.pushdown import push_down as push_down
    from nevermore.scan_core.spark.pushdown import reads_of_sql as reads_of_sql
    from nevermore.scan_core.spark.pushdown import sql as sql
    from nevermore.scan_core.spark.reader_choice import Reader as Reader
    from nevermore.scan_core.spark.reader_choice import ReaderChoice as ReaderChoice
    from nevermore.scan_core.spark.reader_choice import require_session as require_session
    from nevermore.scan_core.spark.reports import TaskReports as TaskReports
    from nevermore.scan_core.spark.session import planning as planning
    from nevermore.scan_core.spark.session import spark_session as spark_session
    from nevermore.scan_core.spark.source import SPLITS_PER_CORE as SPLITS_PER_CORE
    from nevermore.scan_core.spark.source import fair_split_bytes as fair_split_bytes
    from nevermore.scan_core.spark.source import prepare_worker as prepare_worker
    from nevermore.scan_core.spark.types import arrow_schema_of as arrow_schema_of
    from nevermore.scan_core.spark.types import conform as conform
    from nevermore.scan_core.spark.types import quoted_name as quoted_name
    from nevermore.scan_core.spark.types import spark_schema as spark_schema
    from nevermore.scan_core.sql.query import DIALECT as DIALECT
    from nevermore.scan_core.sql.query import SqlQuery as SqlQuery
    from nevermore.scan_core.sql.query import find_name as find_name
    from nevermore.scan_core.sql.query import parse_sql as parse_sql
    from nevermore.scan_core.sql.query import require_names_apart as require_names_apart
    from nevermore.scan_core.sql.query import takes_all_columns as takes_all_columns
    from nevermore.scan_core.sql.query_shape import PARTITION as PARTITION
    from nevermore.scan_core.sql.query_shape import PARTITION_END as PARTITION_END
    from nevermore.scan_core.sql.query_shape import PARTITION_START as PARTITION_START
    from nevermore.scan_core.sql.query_shape import Path as Path
    from nevermore.scan_core.sql.query_shape import SelectShape as SelectShape
    from nevermore.scan_core.sql.query_shape import bound_by_parameters as bound_by_parameters
    from nevermore.scan_core.sql.query_shape import correlations as correlations
    from nevermore.scan_core.sql.query_shape import full_join_keys as full_join_keys
    from nevermore.scan_core.sql.query_shape import have_one_type as have_one_type
    from nevermore.scan_core.sql.query_shape import is_plain as is_plain
    from nevermore.scan_core.sql.query_shape import owner as owner
    from nevermore.scan_core.sql.query_shape import path_between as path_between
    from nevermore.scan_core.sql.query_shape import substituted as substituted
    from nevermore.scan_core.sql.query_shape import why_not_sliced as why_not_sliced
    from nevermore.scan_core.sql.sql_functions import is_row_wise as is_row_wise
    from nevermore.scan_core.sql.sql_functions import unrepeatable as unrepeatable
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "nevermore.scan_core.spark.frames": "choice_of compares_case dataframe expected_choice means_what_scans_mean parallelism_of push_filters register reports_of why_not_native",
            "nevermore.scan_core.spark.native": "NativeLimits",
            "nevermore.scan_core.spark.package": "build_package check_package equip is_local pack_dependencies",
            "nevermore.scan_core.spark.reader_choice": "Reader ReaderChoice require_session",
            "nevermore.scan_core.spark.reports": "TaskReports",
            "nevermore.scan_core.spark.session": "planning spark_session",
            "nevermore.scan_core.spark.source": "SPLITS_PER_CORE fair_split_bytes prepare_worker",
            "nevermore.scan_core.spark.types": "arrow_schema_of conform quoted_name spark_schema",
            "nevermore.scan_core.spark.pushdown": "Pushed PushedScans TableRead explain_sql most_read push_down reads_of_sql sql",
            "nevermore.scan_core.sql.query": "DIALECT SqlQuery find_name parse_sql require_names_apart takes_all_columns",
            "nevermore.scan_core.sql.query_shape": "PARTITION PARTITION_END PARTITION_START Path SelectShape bound_by_parameters correlations full_join_keys have_one_type is_plain owner path_between substituted why_not_sliced",
            "nevermore.scan_core.sql.sql_functions": "is_row_wise unrepeatable",
        },
    )
