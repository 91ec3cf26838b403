"""A columnar scan engine for Apache Iceberg tables with deletes.

Names load on first use: a worker that only unpickles a split loads no planner, no SQL parser and no catalog client.
"""

from typing import TYPE_CHECKING

from nevermore.scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from nevermore.scan_core.columns.conversion import descended as descended
    from nevermore.scan_core.columns.conversion import public_batch as public_batch
    from nevermore.scan_core.deletes.positions import FILE_PATH_ID as FILE_PATH_ID
    from nevermore.scan_core.deletes.positions import POSITION_ID as POSITION_ID
    from nevermore.scan_core.deletes.positions import read_deletion_vector as read_deletion_vector
    from nevermore.scan_core.deletes.positions import read_position_deletes as read_position_deletes
    from nevermore.scan_core.diff import Changes as Changes
    from nevermore.scan_core.diff import ChangeSplit as ChangeSplit
    from nevermore.scan_core.diff import ChangeType as ChangeType
    from nevermore.scan_core.diff import file_changes as file_changes
    from nevermore.scan_core.diff import read_changes as read_changes
    from nevermore.scan_core.expr.nodes import Constantish as Constantish
    from nevermore.scan_core.expr.nodes import Expr as Expr
    from nevermore.scan_core.expr.nodes import col as col
    from nevermore.scan_core.expr.parse import inside as inside
    from nevermore.scan_core.expr.parse import null_is_unknown as null_is_unknown
    from nevermore.scan_core.expr.parse import texts_in as texts_in
    from nevermore.scan_core.joins.late_keys import LateKeys as LateKeys
    from nevermore.scan_core.keys.columns import key_column as key_column
    from nevermore.scan_core.keys.hash import hash_rows as hash_rows
    from nevermore.scan_core.keys.hash import hash_seed as hash_seed
    from nevermore.scan_core.model.errors import ColumnNotFoundError as ColumnNotFoundError
    from nevermore.scan_core.model.errors import EvaluationError as EvaluationError
    from nevermore.scan_core.model.errors import HidingStream as HidingStream
    from nevermore.scan_core.model.errors import MalformedTableError as MalformedTableError
    from nevermore.scan_core.model.errors import MemoryLimitError as MemoryLimitError
    from nevermore.scan_core.model.errors import MissingFileError as MissingFileError
    from nevermore.scan_core.model.errors import MissingPackageError as MissingPackageError
    from nevermore.scan_core.model.errors import OptionError as OptionError
    from nevermore.scan_core.model.errors import PredicateError as PredicateError
    from nevermore.scan_core.model.errors import ScanCancelledError as ScanCancelledError
    from nevermore.scan_core.model.errors import ScanError as ScanError
    from nevermore.scan_core.model.errors import SnapshotNotFoundError as SnapshotNotFoundError
    from nevermore.scan_core.model.errors import TableNotFoundError as TableNotFoundError
    from nevermore.scan_core.model.errors import UnsupportedError as UnsupportedError
    from nevermore.scan_core.model.errors import hide_in_error as hide_in_error
    from nevermore.scan_core.model.errors import hide_secrets as hide_secrets
    from nevermore.scan_core.model.errors import remember_passwords as remember_passwords
    from nevermore.scan_core.model.errors import remember_secret as remember_secret
    from nevermore.scan_core.model.errors import require_package as require_package
    from nevermore.scan_core.model.html import Bar as Bar
    from nevermore.scan_core.model.html import Html as Html
    from nevermore.scan_core.model.html import bars as bars
    from nevermore.scan_core.model.html import chain as chain
    from nevermore.scan_core.model.html import details as details
    from nevermore.scan_core.model.html import escaped as escaped
    from nevermore.scan_core.model.html import facts as facts
    from nevermore.scan_core.model.html import grid as grid
    from nevermore.scan_core.model.html import line_chart as line_chart
    from nevermore.scan_core.model.html import page as page
    from nevermore.scan_core.model.html import section as section
    from nevermore.scan_core.model.html import size_text as size_text
    from nevermore.scan_core.model.metrics import ScanMetrics as ScanMetrics
    from nevermore.scan_core.model.options import ScanOptions as ScanOptions
    from nevermore.scan_core.model.options import Switches as Switches
    from nevermore.scan_core.model.schema import UNSUPPORTED_TYPES as UNSUPPORTED_TYPES
    from nevermore.scan_core.model.schema import ListType as ListType
    from nevermore.scan_core.model.schema import MapType as MapType
    from nevermore.scan_core.model.schema import NestedField as NestedField
    from nevermore.scan_core.model.schema import PrimitiveType as PrimitiveType
    from nevermore.scan_core.model.schema import Schema as Schema
    from nevermore.scan_core.model.schema import StructType as StructType
    from nevermore.scan_core.model.schema import Type as Type
    from nevermore.scan_core.model.schema import arrow_type as arrow_type
    from nevermore.scan_core.model.schema import parse_schema as parse_schema
    from nevermore.scan_core.model.schema import parse_type as parse_type
    from nevermore.scan_core.model.snapshot import ContentFile as ContentFile
    from nevermore.scan_core.model.snapshot import DataFile as DataFile
    from nevermore.scan_core.model.snapshot import DeleteContent as DeleteContent
    from nevermore.scan_core.model.snapshot import DeleteFile as DeleteFile
    from nevermore.scan_core.model.snapshot import FileFormat as FileFormat
    from nevermore.scan_core.model.snapshot import PartitionField as PartitionField
    from nevermore.scan_core.model.snapshot import PartitionSpec as PartitionSpec
    from nevermore.scan_core.model.snapshot import Snapshot as Snapshot
    from nevermore.scan_core.model.statistics import ColumnStatistics as ColumnStatistics
    from nevermore.scan_core.model.statistics import decode_bound as decode_bound
    from nevermore.scan_core.model.table_metadata import TableMetadata as TableMetadata
    from nevermore.scan_core.model.transforms import Transform as Transform
    from nevermore.scan_core.model.transforms import normalise_value as normalise_value
    from nevermore.scan_core.model.transforms import parse_transform as parse_transform
    from nevermore.scan_core.model.transforms import partition_value as partition_value
    from nevermore.scan_core.plan.explain import partition_text as partition_text
    from nevermore.scan_core.plan.planner import ScanPlan as ScanPlan
    from nevermore.scan_core.read.file_statistics import FileStatistics as FileStatistics
    from nevermore.scan_core.read.late_filters import late_filters as late_filters
    from nevermore.scan_core.read.projection import ROW_LINEAGE as ROW_LINEAGE
    from nevermore.scan_core.read.projection import FileProjection as FileProjection
    from nevermore.scan_core.read.projection import partition_scalar as partition_scalar
    from nevermore.scan_core.read.read_ahead import FilesAhead as FilesAhead
    from nevermore.scan_core.read.split_reader import column_batches as column_batches
    from nevermore.scan_core.read.split_reader import count_split as count_split
    from nevermore.scan_core.read.split_reader import read_split as read_split
    from nevermore.scan_core.read.split_reader import resolve_deletes as resolve_deletes
    from nevermore.scan_core.rows.buffers import Mask as Mask
    from nevermore.scan_core.rows.buffers import Rows as Rows
    from nevermore.scan_core.rows.roaring import position_count as position_count
    from nevermore.scan_core.run import run_splits as run_splits
    from nevermore.scan_core.scan import Scan as Scan
    from nevermore.scan_core.scan import Table as Table
    from nevermore.scan_core.scan import open_table as open_table
    from nevermore.scan_core.scan import places_of as places_of
    from nevermore.scan_core.semi_join import induced_ranges as induced_ranges
    from nevermore.scan_core.split.tasks import FileScanTask as FileScanTask
    from nevermore.scan_core.split.tasks import ScanContext as ScanContext
    from nevermore.scan_core.split.tasks import Split as Split
    from nevermore.scan_core.split.tasks import pack_splits as pack_splits
    from nevermore.scan_core.split.tasks import unpack_split as unpack_split
    from nevermore.scan_core.verification import Damage as Damage
    from nevermore.scan_core.verification import verify_bytes as verify_bytes
    from nevermore.scan_core.why import KeyReport as KeyReport
    from nevermore.scan_core.why import RowFate as RowFate
    from nevermore.scan_core.why import key_report as key_report
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "nevermore.scan_core.columns.conversion": "descended public_batch",
            "nevermore.scan_core.deletes.positions": "FILE_PATH_ID POSITION_ID read_deletion_vector read_position_deletes",
            "nevermore.scan_core.diff": "ChangeSplit ChangeType Changes file_changes read_changes",
            "nevermore.scan_core.expr.nodes": "Constantish Expr col",
            "nevermore.scan_core.expr.parse": "inside null_is_unknown texts_in",
            "nevermore.scan_core.joins.late_keys": "LateKeys",
            "nevermore.scan_core.keys.columns": "key_column",
            "nevermore.scan_core.keys.hash": "hash_rows hash_seed",
            "nevermore.scan_core.rows.buffers": "Mask Rows",
            "nevermore.scan_core.model.errors": (
                "ColumnNotFoundError EvaluationError HidingStream MalformedTableError MemoryLimitError "
                "MissingFileError MissingPackageError OptionError PredicateError ScanCancelledError ScanError "
                "SnapshotNotFoundError "
                "TableNotFoundError UnsupportedError hide_in_error hide_secrets remember_passwords "
                "remember_secret require_package"
            ),
            "nevermore.scan_core.model.html": (
                "Bar Html bars chain details escaped facts grid line_chart page section size_text"
            ),
            "nevermore.scan_core.model.metrics": "ScanMetrics",
            "nevermore.scan_core.model.options": "ScanOptions Switches",
            "nevermore.scan_core.model.schema": (
                "ListType MapType NestedField PrimitiveType Schema StructType Type UNSUPPORTED_TYPES "
                "arrow_type parse_schema parse_type"
            ),
            "nevermore.scan_core.model.snapshot": (
                "ContentFile DataFile DeleteContent DeleteFile FileFormat PartitionField PartitionSpec Snapshot"
            ),
            "nevermore.scan_core.model.statistics": "ColumnStatistics decode_bound",
            "nevermore.scan_core.model.table_metadata": "TableMetadata",
            "nevermore.scan_core.model.transforms": "Transform normalise_value parse_transform partition_value",
            "nevermore.scan_core.plan.explain": "partition_text",
            "nevermore.scan_core.plan.planner": "ScanPlan",
            "nevermore.scan_core.read.file_statistics": "FileStatistics",
            "nevermore.scan_core.read.late_filters": "late_filters",
            "nevermore.scan_core.read.projection": "FileProjection ROW_LINEAGE partition_scalar",
            "nevermore.scan_core.read.read_ahead": "FilesAhead",
            "nevermore.scan_core.read.split_reader": "column_batches count_split read_split resolve_deletes",
            "nevermore.scan_core.rows.roaring": "position_count",
            "nevermore.scan_core.run": "run_splits",
            "nevermore.scan_core.scan": "Scan Table open_table places_of",
            "nevermore.scan_core.semi_join": "induced_ranges",
            "nevermore.scan_core.split.tasks": "FileScanTask ScanContext Split pack_splits unpack_split",
            "nevermore.scan_core.verification": "Damage verify_bytes",
            "nevermore.scan_core.why": "KeyReport RowFate key_report",
        },
    )
