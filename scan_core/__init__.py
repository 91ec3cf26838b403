"""A columnar scan engine for Apache Iceberg tables with deletes.

Names load on first use: a worker that only unpickles a split loads no planner, no SQL parser and no catalog client.
"""

from typing import TYPE_CHECKING

from scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from scan_core.columns.conversion import descended as descended
    from scan_core.columns.conversion import public_batch as public_batch
    from scan_core.deletes.positions import FILE_PATH_ID as FILE_PATH_ID
    from scan_core.deletes.positions import POSITION_ID as POSITION_ID
    from scan_core.deletes.positions import read_deletion_vector as read_deletion_vector
    from scan_core.deletes.positions import read_position_deletes as read_position_deletes
    from scan_core.diff import Changes as Changes
    from scan_core.diff import ChangeSplit as ChangeSplit
    from scan_core.diff import ChangeType as ChangeType
    from scan_core.diff import FileChanges as FileChanges
    from scan_core.diff import file_changes as file_changes
    from scan_core.diff import read_changes as read_changes
    from scan_core.expr.nodes import Constantish as Constantish
    from scan_core.expr.nodes import Expr as Expr
    from scan_core.expr.nodes import col as col
    from scan_core.expr.parse import inside as inside
    from scan_core.expr.parse import null_is_unknown as null_is_unknown
    from scan_core.expr.parse import require_bounded as require_bounded
    from scan_core.expr.parse import texts_in as texts_in
    from scan_core.joins.late_keys import LateKeys as LateKeys
    from scan_core.keys.columns import key_column as key_column
    from scan_core.keys.hash import hash_rows as hash_rows
    from scan_core.keys.hash import hash_seed as hash_seed
    from scan_core.model.errors import ColumnNotFoundError as ColumnNotFoundError
    from scan_core.model.errors import EvaluationError as EvaluationError
    from scan_core.model.errors import HidingStream as HidingStream
    from scan_core.model.errors import MalformedTableError as MalformedTableError
    from scan_core.model.errors import MemoryLimitError as MemoryLimitError
    from scan_core.model.errors import MissingFileError as MissingFileError
    from scan_core.model.errors import MissingPackageError as MissingPackageError
    from scan_core.model.errors import OptionError as OptionError
    from scan_core.model.errors import PredicateError as PredicateError
    from scan_core.model.errors import ScanCancelledError as ScanCancelledError
    from scan_core.model.errors import ScanError as ScanError
    from scan_core.model.errors import SnapshotNotFoundError as SnapshotNotFoundError
    from scan_core.model.errors import TableNotFoundError as TableNotFoundError
    from scan_core.model.errors import UnsupportedError as UnsupportedError
    from scan_core.model.errors import hide_in_error as hide_in_error
    from scan_core.model.errors import hide_secrets as hide_secrets
    from scan_core.model.errors import remember_passwords as remember_passwords
    from scan_core.model.errors import remember_secret as remember_secret
    from scan_core.model.errors import require_package as require_package
    from scan_core.model.html import Bar as Bar
    from scan_core.model.html import Html as Html
    from scan_core.model.html import bars as bars
    from scan_core.model.html import chain as chain
    from scan_core.model.html import details as details
    from scan_core.model.html import escaped as escaped
    from scan_core.model.html import facts as facts
    from scan_core.model.html import fragment as fragment
    from scan_core.model.html import grid as grid
    from scan_core.model.html import line_chart as line_chart
    from scan_core.model.html import page as page
    from scan_core.model.html import section as section
    from scan_core.model.html import size_text as size_text
    from scan_core.model.metrics import ScanMetrics as ScanMetrics
    from scan_core.model.options import ScanOptions as ScanOptions
    from scan_core.model.options import Switches as Switches
    from scan_core.model.schema import UNSUPPORTED_TYPES as UNSUPPORTED_TYPES
    from scan_core.model.schema import ListType as ListType
    from scan_core.model.schema import MapType as MapType
    from scan_core.model.schema import NestedField as NestedField
    from scan_core.model.schema import PrimitiveType as PrimitiveType
    from scan_core.model.schema import Schema as Schema
    from scan_core.model.schema import StructType as StructType
    from scan_core.model.schema import Type as Type
    from scan_core.model.schema import arrow_type as arrow_type
    from scan_core.model.schema import parse_schema as parse_schema
    from scan_core.model.schema import parse_type as parse_type
    from scan_core.model.snapshot import ContentFile as ContentFile
    from scan_core.model.snapshot import DataFile as DataFile
    from scan_core.model.snapshot import DeleteContent as DeleteContent
    from scan_core.model.snapshot import DeleteFile as DeleteFile
    from scan_core.model.snapshot import FileFormat as FileFormat
    from scan_core.model.snapshot import PartitionField as PartitionField
    from scan_core.model.snapshot import PartitionSpec as PartitionSpec
    from scan_core.model.snapshot import Snapshot as Snapshot
    from scan_core.model.statistics import ColumnStatistics as ColumnStatistics
    from scan_core.model.statistics import decode_bound as decode_bound
    from scan_core.model.table_metadata import TableMetadata as TableMetadata
    from scan_core.model.transforms import Transform as Transform
    from scan_core.model.transforms import normalise_value as normalise_value
    from scan_core.model.transforms import parse_transform as parse_transform
    from scan_core.model.transforms import partition_value as partition_value
    from scan_core.plan.explain import partition_text as partition_text
    from scan_core.plan.planner import ScanPlan as ScanPlan
    from scan_core.read.file_statistics import FileStatistics as FileStatistics
    from scan_core.read.late_filters import late_filters as late_filters
    from scan_core.read.projection import ROW_LINEAGE as ROW_LINEAGE
    from scan_core.read.projection import FileProjection as FileProjection
    from scan_core.read.projection import partition_scalar as partition_scalar
    from scan_core.read.read_ahead import FilesAhead as FilesAhead
    from scan_core.read.split_reader import column_batches as column_batches
    from scan_core.read.split_reader import count_split as count_split
    from scan_core.read.split_reader import read_split as read_split
    from scan_core.read.split_reader import resolve_deletes as resolve_deletes
    from scan_core.rows.buffers import Mask as Mask
    from scan_core.rows.buffers import Rows as Rows
    from scan_core.rows.roaring import position_count as position_count
    from scan_core.run import run_splits as run_splits
    from scan_core.scan import Scan as Scan
    from scan_core.scan import Table as Table
    from scan_core.scan import open_table as open_table
    from scan_core.scan import places_of as places_of
    from scan_core.semi_join import induced_ranges as induced_ranges
    from scan_core.split.tasks import FileScanTask as FileScanTask
    from scan_core.split.tasks import ScanContext as ScanContext
    from scan_core.split.tasks import Split as Split
    from scan_core.split.tasks import pack_splits as pack_splits
    from scan_core.split.tasks import unpack_split as unpack_split
    from scan_core.verification import Damage as Damage
    from scan_core.verification import VerifiedBytes as VerifiedBytes
    from scan_core.verification import verify_bytes as verify_bytes
    from scan_core.why import KeyReport as KeyReport
    from scan_core.why import RowFate as RowFate
    from scan_core.why import key_report as key_report
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "scan_core.columns.conversion": "descended public_batch",
            "scan_core.deletes.positions": "FILE_PATH_ID POSITION_ID read_deletion_vector read_position_deletes",
            "scan_core.diff": "ChangeSplit ChangeType Changes FileChanges file_changes read_changes",
            "scan_core.expr.nodes": "Constantish Expr col",
            "scan_core.expr.parse": "inside null_is_unknown require_bounded texts_in",
            "scan_core.joins.late_keys": "LateKeys",
            "scan_core.keys.columns": "key_column",
            "scan_core.keys.hash": "hash_rows hash_seed",
            "scan_core.rows.buffers": "Mask Rows",
            "scan_core.model.errors": (
                "ColumnNotFoundError EvaluationError HidingStream MalformedTableError MemoryLimitError "
                "MissingFileError MissingPackageError OptionError PredicateError ScanCancelledError ScanError "
                "SnapshotNotFoundError "
                "TableNotFoundError UnsupportedError hide_in_error hide_secrets remember_passwords "
                "remember_secret require_package"
            ),
            "scan_core.model.html": (
                "Bar Html bars chain details escaped facts fragment grid line_chart page section size_text"
            ),
            "scan_core.model.metrics": "ScanMetrics",
            "scan_core.model.options": "ScanOptions Switches",
            "scan_core.model.schema": (
                "ListType MapType NestedField PrimitiveType Schema StructType Type UNSUPPORTED_TYPES "
                "arrow_type parse_schema parse_type"
            ),
            "scan_core.model.snapshot": (
                "ContentFile DataFile DeleteContent DeleteFile FileFormat PartitionField PartitionSpec Snapshot"
            ),
            "scan_core.model.statistics": "ColumnStatistics decode_bound",
            "scan_core.model.table_metadata": "TableMetadata",
            "scan_core.model.transforms": "Transform normalise_value parse_transform partition_value",
            "scan_core.plan.explain": "partition_text",
            "scan_core.plan.planner": "ScanPlan",
            "scan_core.read.file_statistics": "FileStatistics",
            "scan_core.read.late_filters": "late_filters",
            "scan_core.read.projection": "FileProjection ROW_LINEAGE partition_scalar",
            "scan_core.read.read_ahead": "FilesAhead",
            "scan_core.read.split_reader": "column_batches count_split read_split resolve_deletes",
            "scan_core.rows.roaring": "position_count",
            "scan_core.run": "run_splits",
            "scan_core.scan": "Scan Table open_table places_of",
            "scan_core.semi_join": "induced_ranges",
            "scan_core.split.tasks": "FileScanTask ScanContext Split pack_splits unpack_split",
            "scan_core.verification": "Damage VerifiedBytes verify_bytes",
            "scan_core.why": "KeyReport RowFate key_report",
        },
    )
