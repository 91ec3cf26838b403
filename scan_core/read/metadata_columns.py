"""Columns that data files do not have to store: `_file`, `_pos`, `_partition`, `_spec_id`, row lineage and `_deleted`.

Their ids are those that the specification reserves. `_deleted` asks the scan to keep dead rows and flag them;
`_delete_file` names the delete file that removed each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from scan_core.columns.conversion import repeat
from scan_core.model.errors import UnsupportedError
from scan_core.model.schema import NestedField, PrimitiveType, StructType, Type, arrow_type
from scan_core.model.snapshot import DataFile, PartitionSpec
from scan_core.model.transforms import partition_types
from scan_core.read.lazy import LazyColumns
from scan_core.read.projection import FileProjection, FromFile, partition_scalar
from scan_core.rows.selection import RowSelection, selected_count, to_indices, to_mask
from scan_core.split.tasks import ScanContext

_LONG, _STRING = PrimitiveType("long"), PrimitiveType("string")

FILE = NestedField(2147483646, "_file", _STRING, required=True)
POS = NestedField(2147483645, "_pos", _LONG, required=True)
DELETED = NestedField(2147483644, "_deleted", PrimitiveType("boolean"), required=True)
SPEC_ID = NestedField(2147483643, "_spec_id", PrimitiveType("int"), required=True)
PARTITION_ID = 2147483642
ROW_ID = NestedField(2147483540, "_row_id", _LONG)
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", _LONG)
ROW_LINEAGE = (ROW_ID, LAST_UPDATED)
"""What identifies a row in format version 3; writers that move rows to other files store it there."""
DELETE_FILE = NestedField(2147483447, "_delete_file", _STRING)
"""Not part of the specification: the highest id below those it reserves."""

DEAD_ROW_IDS = frozenset({DELETED.field_id, DELETE_FILE.field_id})
"""Columns that are only meaningful if deleted rows are kept."""
METADATA_IDS = DEAD_ROW_IDS | {
    FILE.field_id,
    POS.field_id,
    SPEC_ID.field_id,
    PARTITION_ID,
    ROW_ID.field_id,
    LAST_UPDATED.field_id,
}
_PARTITION_MEMBER_IDS = 2_000_000_000
"""Offset added to partition field ids, which would collide with column ids in tables with 1,000 columns or more."""


def keeps_dead_rows(context: ScanContext) -> bool:
    """True if the result flags deleted rows instead of dropping them."""
    return not DEAD_ROW_IDS.isdisjoint(_wanted_ids(context))


def names_delete_files(context: ScanContext) -> bool:
    """True if the result or the predicate asks which delete file removed a row."""
    return DELETE_FILE.field_id in _wanted_ids(context)


def _wanted_ids(context: ScanContext) -> set[int]:
    ids = {f.field_id for f in context.projection.fields}
    return ids if context.predicate is None else ids.union(context.predicate.column_ids)


def metadata_fields(
    specs: Mapping[int, PartitionSpec], field_paths: Mapping[int, tuple[NestedField, ...]]
) -> Mapping[str, NestedField]:
    """All metadata columns of a table by name, `_partition` being the union of the fields of all its specs."""
    members: dict[int, NestedField] = {}
    for _, spec in sorted(specs.items(), reverse=True):
        for field, result in zip(spec.fields, partition_types(spec, field_paths), strict=True):
            member_id = _PARTITION_MEMBER_IDS + field.field_id
            if member_id not in members or members[member_id].type == PrimitiveType("unknown"):
                members[member_id] = NestedField(member_id, field.name, result)
    partition = NestedField(PARTITION_ID, "_partition", StructType(tuple(members.values())), required=True)
    return {f.name: f for f in (FILE, POS, partition, SPEC_ID, ROW_ID, LAST_UPDATED, DELETED, DELETE_FILE)}


def partition_member(field_id: int, data_file: DataFile, spec: PartitionSpec, member_type: Type) -> pa.Scalar | None:
    """The value of a member of `_partition` in one data file; None if no member has this id."""
    if field_id < _PARTITION_MEMBER_IDS or not isinstance(member_type, PrimitiveType):
        return None
    for field, value in zip(spec.fields, data_file.partition, strict=True):
        if _PARTITION_MEMBER_IDS + field.field_id == field_id:
            return partition_scalar(value, member_type, data_file.path)
    return pa.scalar(None, type=arrow_type(member_type))


@dataclass(frozen=True, slots=True)
class MetadataSource:
    """The source of the values of one metadata column in one data file."""

    field: NestedField
    data_file: DataFile
    projection: FileProjection
    specs: Mapping[int, PartitionSpec]

    @property
    def file_columns(self) -> frozenset[int]:
        """Columns of the file that it reads: row lineage may be stored."""
        index = self.projection.index_of(self.field.field_id)
        return frozenset() if index is None else frozenset({index})

    def values(self, columns: LazyColumns, selection: RowSelection) -> pa.Array:
        """One value per selected row."""
        num_rows = selected_count(selection)
        match self.field.field_id:
            case FILE.field_id:
                return repeat(pa.scalar(self.data_file.path), num_rows)
            case POS.field_id:
                return pa.array(_positions(columns, selection))
            case SPEC_ID.field_id:
                return repeat(pa.scalar(self.data_file.spec_id, pa.int32()), num_rows)
            case ROW_ID.field_id:
                return self._row_ids(columns, selection)
            case LAST_UPDATED.field_id:
                return self._last_updated(columns, selection)
            case DELETED.field_id:
                flags = np.zeros(num_rows, np.bool_) if columns.dead is None else columns.dead.flags[to_mask(selection)]
                return pa.array(flags)
            case DELETE_FILE.field_id:
                if columns.dead is None or columns.dead.delete_files is None:
                    return pa.nulls(num_rows, pa.string())
                return columns.dead.delete_files.take(pa.array(to_indices(selection)))
            case _ if self.field.field_id == PARTITION_ID:
                return self._partition(num_rows)
            case _:
                raise UnsupportedError(f"{self.field.name} is no metadata column")

    def _row_ids(self, columns: LazyColumns, selection: RowSelection) -> pa.Array:
        """Rule 21: the stored id wins where it is not NULL, else the file's first id plus the physical position."""
        if self.data_file.first_row_id is None:
            return pa.nulls(selected_count(selection), pa.int64())
        return self._stored_or(
            pa.array(_positions(columns, selection) + self.data_file.first_row_id), columns, selection
        )

    def _last_updated(self, columns: LazyColumns, selection: RowSelection) -> pa.Array:
        if self.data_file.first_row_id is None:
            return pa.nulls(selected_count(selection), pa.int64())
        inherited = repeat(pa.scalar(self.data_file.data_sequence_number, pa.int64()), selected_count(selection))
        return self._stored_or(inherited, columns, selection)

    def _stored_or(self, inherited: pa.Array, columns: LazyColumns, selection: RowSelection) -> pa.Array:
        """The values that the file stores, inherited ones where it stores NULL or lacks the column."""
        if self.projection.index_of(self.field.field_id) is None:
            return inherited
        source = self.projection.column(self.field)
        if not isinstance(source, FromFile):
            return inherited
        import pyarrow.compute as pc

        return pc.coalesce(source.convert(columns.load([source.index], selection)[0]), inherited)

    def _partition(self, num_rows: int) -> pa.Array:
        target = arrow_type(self.field.type)
        spec = self.specs[self.data_file.spec_id]
        members = self.field.type.fields if isinstance(self.field.type, StructType) else ()
        found = [partition_member(m.field_id, self.data_file, spec, m.type) for m in members]
        children = [repeat(value, num_rows) for value in found if value is not None]
        if not children:
            return pa.Array.from_buffers(target, num_rows, [None], children=[])
        return pa.StructArray.from_arrays(children, fields=list(target))


def _positions(columns: LazyColumns, selection: RowSelection) -> np.ndarray:
    return columns.row_group.first_row_position + to_indices(selection)
