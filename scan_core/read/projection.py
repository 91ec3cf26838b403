"""The source of each column in one data file: the file, a partition value, a default, or what is known of the file itself.

Metadata columns need not be stored: `_file`, `_pos`, `_partition`, `_spec_id`, row lineage and `_deleted`. Their ids are those that
the specification reserves. `_deleted` asks the scan to keep dead rows and flag them; `_delete_file` names the delete file that
removed each.
"""

import os
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.conversion import (
    ConversionContext,
    Convert,
    Way,
    compile_conversion,
    descended,
    is_identity,
    leaf_needs,
    repeat,
    type_of_leaves,
)
from nevermore.scan_core.columns.file_reader import FileReader, RowGroup, apply_name_mapping, field_id_of
from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.model.running import check_running
from nevermore.scan_core.model.schema import ListType, MapType, NestedField, PrimitiveType, StructType, Type, arrow_type
from nevermore.scan_core.model.snapshot import ContentFile, DataFile, PartitionSpec
from nevermore.scan_core.model.transforms import partition_types, partition_value
from nevermore.scan_core.rows.selection import (
    All,
    RowSelection,
    relative,
    select_rows,
    selected_count,
    to_indices,
    to_mask,
)
from nevermore.scan_core.split.tasks import ScanContext

if TYPE_CHECKING:
    from nevermore.scan_core.expr.bound import BoundExpr


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A decoded array with the rows of `selection`."""

    array: pa.Array
    selection: RowSelection


@dataclass(frozen=True, slots=True, eq=False)
class DeadRows:
    """Rows of a row group that a delete removes: one flag per row and, if asked for, the path of its delete file."""

    flags: npt.NDArray[np.bool_]
    delete_files: pa.Array | None


class LazyColumns:
    """Top-level columns of one row group by their index in the file. Selections may only narrow over time.

    `reads` counts how often each column was read, views included; `window` holds all rows that may be asked for, None if that
    is any row of the row group.
    """

    def __init__(self, reader: FileReader, row_group: RowGroup, window: range | None = None) -> None:
        self._reader = reader
        self.row_group = row_group
        self.window = window
        self.dead: DeadRows | None = None
        self.reads: Counter[int] = Counter()
        self._decoded: dict[int, _Decoded] = {}

    def copy(self) -> "LazyColumns":
        """A view for requests of other rows: it uses data decoded here, but its own decoded data is not kept."""
        other = LazyColumns(self._reader, self.row_group, self.window)
        other._decoded = self._decoded.copy()
        other.reads, other.dead = self.reads, self.dead
        return other

    def undecoded(self, window: range | None = None) -> "LazyColumns":
        """A view without decoded data, for requests of rows in `window` only."""
        other = LazyColumns(self._reader, self.row_group, window)
        other.reads, other.dead = self.reads, self.dead
        return other

    @property
    def num_bytes(self) -> int:
        """Bytes held by decoded columns."""
        return sum(decoded.array.nbytes for decoded in self._decoded.values())

    def is_untouched(self, indices: Sequence[int]) -> bool:
        """True if each of these columns can still be loaded for all rows without reading it twice."""
        return all(isinstance(self._decoded[i].selection, All) for i in indices if i in self._decoded)

    def load(self, indices: Sequence[int], selection: RowSelection) -> list[pa.Array]:
        """The rows of `selection`, which must lie within every earlier one, in the file's types.

        Low-cardinality strings may come dictionary-encoded.
        """
        absent = [i for i in dict.fromkeys(indices) if i not in self._decoded]
        if absent:
            check_running()
            arrays = self._reader.read(self.row_group, absent, selection, self.window)
            self.reads.update(absent)
            self._decoded.update(
                {i: _Decoded(array, selection) for i, array in zip(absent, arrays, strict=True)},
            )
        self._narrow([i for i in dict.fromkeys(indices) if self._decoded[i].selection is not selection], selection)
        return [self._decoded[i].array for i in indices]

    def _narrow(self, indices: Sequence[int], selection: RowSelection) -> None:
        """Narrow decoded columns to `selection`, with one mask for those that were decoded together."""
        by_selection: dict[int, list[int]] = {}
        for index in indices:
            by_selection.setdefault(id(self._decoded[index].selection), []).append(index)
        for together in by_selection.values():
            within = self._decoded[together[0]].selection
            arrays = select_rows([self._decoded[i].array for i in together], relative(selection, within))
            for index, array in zip(together, arrays, strict=True):
                self._decoded[index] = _Decoded(array, selection)


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


def partition_scalar(value: Any, value_type: PrimitiveType, path: str) -> pa.Scalar:
    """A partition value of the data file at `path` (floats as canonical bits) as a value of the table.

    A value of a type that is not known, being that of an unknown transform, reads as NULL.

    Raises:
        MalformedTableError: not a value of the type.
    """
    target = arrow_type(value_type)
    if value is None or pt.is_null(target):
        return pa.scalar(None, type=target)
    try:
        return _partition_scalar(partition_value(value, value_type), value_type, target)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError, struct.error) as error:
        raise MalformedTableError(f"{path}: partition (102): {value!r:.80} is no {value_type}: {error}") from error


def _partition_scalar(value: Any, value_type: PrimitiveType, target: pa.DataType) -> pa.Scalar:
    match value_type.name:
        case "date" if isinstance(value, int):
            return pa.scalar(value, pa.int32()).cast(target)
        case "time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns" if isinstance(value, int):
            return pa.scalar(value, pa.int64()).cast(target)
        case _:
            return pa.scalar(value, type=target)


def default_scalar(value: Any, field: NestedField, missing: Callable[[NestedField], pa.Scalar]) -> pa.Scalar:
    """An `initial-default`, in the JSON form of single values, as a value of the table.

    Raises:
        MalformedTableError: not a value of the field's type.
    """
    try:
        return pa.scalar(_json_value(value, field.type, missing), type=arrow_type(field.type))
    except (pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise MalformedTableError(
            f"column {field.name!r}: initial-default {value!r:.80} is no {field.type}: {error}"
        ) from error


def _json_value(  # noqa: C901  one case per type
    value: Any, value_type: Type, missing: Callable[[NestedField], pa.Scalar]
) -> Any:
    if value is None:
        return None
    match value_type:
        case StructType(fields):
            return {
                f.name: _json_value(value[str(f.field_id)], f.type, missing) if str(f.field_id) in value else missing(f)
                for f in fields
            }
        case ListType(element):
            return [_json_value(v, element.type, missing) for v in value]
        case MapType(key, mapped):
            keys = [_json_value(k, key.type, missing) for k in value["keys"]]
            return list(zip(keys, [_json_value(v, mapped.type, missing) for v in value["values"]], strict=True))
        case PrimitiveType("decimal"):
            return Decimal(str(value))
        case PrimitiveType("date"):
            return date.fromisoformat(value)
        case PrimitiveType("time"):
            return time.fromisoformat(value)
        case PrimitiveType("timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns"):
            return pa.scalar(value).cast(arrow_type(value_type))
        case PrimitiveType("uuid"):
            return UUID(value).bytes
        case PrimitiveType("binary" | "fixed"):
            return bytes.fromhex(value)
        case PrimitiveType("float" | "double"):
            return float(value)
        case PrimitiveType():
            return value


@dataclass(frozen=True, slots=True)
class FromFile:
    """Read from the file's column or struct member `index`; `convert` gives the values of the table."""

    index: int
    convert: Convert

    @property
    def is_identity(self) -> bool:
        """Whether the file's values need no conversion."""
        return is_identity(self.convert)


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value in every row of the file."""

    value: pa.Scalar


ColumnSource = FromFile | Constant


_REMEMBERED_SCHEMAS = 64
_BY_ID: BoundedCache[int, tuple[pa.Schema, Mapping[int, int]]] = BoundedCache()
"""By `id()` of the schema, which stays unique because the cache keeps the schema alive; files of one schema share it."""
os.register_at_fork(after_in_child=_BY_ID.forget_threads)


def _columns_by_id(schema: pa.Schema, path: str) -> Mapping[int, int]:
    """The top-level columns of a file by their field ids.

    Raises:
        MalformedTableError: two columns have one id.
    """
    if (known := _BY_ID.find(id(schema))) is not None:
        return known[1]
    found: dict[int, int] = {}
    for index, field in enumerate(schema):
        if (field_id := field_id_of(field)) is None:
            continue
        if field_id in found:
            raise MalformedTableError(f"{path}: field id {field_id} is used by two columns")
        found[field_id] = index
    return _BY_ID.put(id(schema), (schema, found), _REMEMBERED_SCHEMAS)[1]


class FileProjection:
    """Maps columns of the table to one data or delete file.

    Args:
        schema: the file's schema, with field ids as metadata.
        has_field_ids: False if the file knows none, so that the table's name mapping applies.
        context: facts of the scan.
        file: the manifest entry, for its path and partition values.
        reader: of the file, which may read struct members and parts of nested columns alone.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        has_field_ids: bool,
        context: ScanContext,
        file: ContentFile,
        reader: FileReader | None = None,
    ) -> None:
        self._path = file.path
        self._reader = reader
        self._file = file
        self._specs = context.specs
        self._is_anonymous = not has_field_ids and not context.name_mapping
        if not has_field_ids and context.name_mapping:
            schema = apply_name_mapping(schema, context.name_mapping)
        self.schema = schema
        self._paths = context.field_paths
        self._by_id = _columns_by_id(schema, self._path)
        self._context = ConversionContext(self._path, self.missing)

    def index_of(self, field_id: int) -> int | None:
        """Index of the file's column, or of a struct member that can be read alone, with this id; None if there is none."""
        index = self._by_id.get(field_id)
        path = self._paths.get(field_id, ())
        if index is not None or len(path) < 2 or (top := self._by_id.get(path[0].field_id)) is None:
            return index
        steps = self._steps(top, path)
        return self._member((top, *steps)) if len(steps) == len(path) - 1 else None

    def _member(self, way: Way) -> int | None:
        """The number under which the file's reader gives a struct member alone, None if it cannot."""
        return None if self._reader is None else self._reader.member(way)

    def column(self, field: NestedField) -> ColumnSource:
        """The source of a top-level column of the table.

        Raises:
            MalformedTableError: required, and neither the file nor the table has a value; or no promotion exists.
            UnsupportedError: geometry, geography; names the column.
        """
        index = self._by_id.get(field.field_id)
        if index is None:
            return Constant(self.missing(field))
        return self._from_file(index, self.schema.field(index), field)

    def _from_file(self, index: int, file_field: pa.Field, field: NestedField) -> FromFile:
        """The file's column or member `index`, of which only those leaf columns are read that the table's type has."""
        if self._reader is not None and pt.is_nested(file_field.type):
            found = self._reader.part(index, leaf_needs(file_field.type, field.type))
            if found is not None and (kind := type_of_leaves(file_field.type, found[1])) is not None:
                index, file_field = found[0], file_field.with_type(kind)
        return FromFile(index, compile_conversion(file_field, field, self._context))

    def is_absent(self, field_id: int) -> bool:
        """Whether a constant replaces a field that the file does not have."""
        return isinstance(self.leaf(field_id), Constant)

    def leaf(self, field_id: int, value_type: Type | None = None) -> ColumnSource:
        """The source of the values of a field, also inside structs; a NULL parent makes the leaf NULL.

        Args:
            field_id: of a column or struct member of any schema of the table.
            value_type: of the values; None for that of the newest schema.

        Raises:
            MalformedTableError: the table never had this field, or it lies inside a list or map.
        """
        path = self._paths.get(field_id)
        if path is None:
            raise MalformedTableError(f"{self._path}: no schema of the table has the field {field_id}")
        if any(not isinstance(f.type, StructType) for f in path[:-1]):
            raise MalformedTableError(f"{self._path}: field {field_id} lies inside a list or map")
        if value_type is not None:
            path = (*path[:-1], replace(path[-1], type=value_type))
        if len(path) == 1:
            return self.column(path[0])
        index = self._by_id.get(path[0].field_id)
        if index is None:
            return Constant(self._absent_leaf(path))
        steps = self._steps(index, path)
        if len(steps) < len(path) - 1:
            return FromFile(index, _masked(steps, self._absent_leaf(path[len(steps) + 1 :])))
        file_field = self.schema.field(index)
        for step in steps:
            file_field = file_field.type.field(step)
        if (alone := self._member((index, *steps))) is not None:
            return self._from_file(alone, file_field, path[-1])
        convert = compile_conversion(file_field, path[-1], self._context)
        return FromFile(index, lambda array: convert(descended(array, steps)))

    def part(self, access: "BoundExpr") -> ColumnSource:
        """The source of a part of a list or map; it fails as evaluation does."""
        from nevermore.scan_core.expr.bound import Column, Member, is_leaf, narrowed, walk
        from nevermore.scan_core.expr.kernels import values_at

        access = narrowed(access)
        column = next(n for n in walk(access) if isinstance(n, Column | Member) and is_leaf(n))
        source = self.leaf(column.field_id, column.type)
        if isinstance(source, Constant):
            return Constant(values_at(access, {column.field_id: repeat(source.value, 1)}, 1)[0])
        convert = source.convert
        return FromFile(source.index, lambda a: values_at(access, {column.field_id: convert(a)}, len(a)))

    def _steps(self, index: int, path: Sequence[NestedField]) -> list[int]:
        """The steps from a top-level column down to the last field of the path that the file has, through structs alone."""
        steps: list[int] = []
        file_type = self.schema.field(index).type
        for field in path[1:]:
            children = file_type if pt.is_struct(file_type) else ()
            found = [i for i, child in enumerate(children) if field_id_of(child) == field.field_id]
            if not found:
                break
            steps.append(found[0])
            file_type = file_type.field(found[0]).type
        return steps

    def missing(self, field: NestedField) -> pa.Scalar:
        """The value of a field that the file lacks, in the table's type."""
        for position, partition_field in enumerate(self._partition_fields()):
            if partition_field.source_id == field.field_id and partition_field.transform == "identity":
                if not isinstance(field.type, PrimitiveType):
                    raise MalformedTableError(f"{self._path}: partition by the {field.type} column {field.name!r}")
                return partition_scalar(self._file.partition[position], field.type, self._path)
        if self._is_anonymous:
            raise MalformedTableError(
                f"{self._path}: column {field.name!r} cannot be found, for the file has no field ids and the table no "
                "name mapping; set schema.name-mapping.default"
            )
        if field.initial_default is not None:
            try:
                return default_scalar(field.initial_default, field, self.missing)
            except MalformedTableError as error:
                raise MalformedTableError(f"{self._path}: {error}") from error
        if field.required:
            raise MalformedTableError(
                f"{self._path}: lacks the required column {field.name!r} (id {field.field_id}), which has no default"
            )
        return pa.scalar(None, type=arrow_type(field.type))

    def _partition_fields(self) -> tuple[Any, ...]:
        spec = self._specs.get(self._file.spec_id)
        return spec.fields if spec is not None and len(spec.fields) == len(self._file.partition) else ()

    def _absent_leaf(self, path: tuple[NestedField, ...]) -> pa.Scalar:
        """A leaf whose ancestor is missing: NULL unless every struct on the way has a default that is a struct."""
        if all(f.initial_default is not None for f in path[:-1]):
            return self.missing(path[-1])
        return pa.scalar(None, type=arrow_type(path[-1].type))


def _masked(steps: Sequence[int], value: pa.Scalar) -> Convert:
    """`value` where the struct that the steps lead to is not NULL."""
    import pyarrow.compute as pc

    def convert(array: pa.Array) -> pa.Array:
        present = descended(array, steps).is_valid()
        return pc.if_else(present, value, pa.scalar(None, type=value.type))

    return convert


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
