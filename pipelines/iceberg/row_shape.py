"""Converts rows to the columns, types and field ids of a table, sorts them and splits them by partition."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.errors import SchemaConflictError
from nevermore.scan_core import (
    ListType,
    MapType,
    NestedField,
    PartitionField,
    PartitionSpec,
    PrimitiveType,
    Schema,
    StructType,
    Type,
    arrow_type,
)
from nevermore.scan_core.metadata import normalise_value, parse_transform


def parquet_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema with which Parquet files of a table are written: field ids at every depth."""
    return pa.schema([_parquet_field(f) for f in schema.fields])


def conform(rows: pa.Table, schema: Schema) -> pa.Table:
    """Reduce `rows` to the columns of `schema`, found by name and cast to its types.

    Raises:
        SchemaConflictError: a value that does not fit the column's type, or NULL in a required column.
    """
    wanted = parquet_schema(schema)
    given = set(rows.column_names)
    arrays = []
    for f, target in zip(schema.fields, wanted, strict=True):
        if f.name not in given:
            arrays.append(pa.chunked_array([pa.nulls(rows.num_rows, target.type)]))
        else:
            try:
                arrays.append(rows.column(f.name).cast(target.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                given_type = rows.schema.field(f.name).type
                raise SchemaConflictError(f"column {f.name!r}: {given_type} does not fit {f.type}: {error}") from error
        if f.required and arrays[-1].null_count:
            raise SchemaConflictError(f"column {f.name!r} is required, but a row has NULL in it")
    return pa.table(arrays, schema=wanted)


def member(structs: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """A member of structs by name. It is found by index, as Arrow takes a name that begins with a dot for a path."""
    return pc.struct_field(structs, [structs.type.get_field_index(name)])


def distinct_rows(rows: pa.Table) -> pa.Table:
    """Remove duplicate rows. Columns are renamed meanwhile, as Arrow treats a name that begins with a dot as a path."""
    labels = [f"c{i}" for i in range(rows.num_columns)]
    return rows.rename_columns(labels).group_by(labels).aggregate([]).rename_columns(rows.column_names)


def single_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array, without a copy if it is one already; `combine_chunks` returns a chunked one for some structs."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def members_of(structs: pa.Array | pa.ChunkedArray) -> dict[str, Any]:
    """The members of structs by name; NULL where a struct is."""
    return dict(zip([f.name for f in structs.type], structs.flatten(), strict=True))


def with_columns(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Rows with other values in some of their columns, which may have other types."""
    for name, column in columns.items():
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(index).with_type(column.type), column)
    return rows


def without_extensions(rows: pa.Table) -> pa.Table:
    """Store uuids as 16 bytes at every depth: the form of values between reading and writing."""
    wanted = pa.schema([f.with_type(with_leaves(f.type, storage_of)) for f in rows.schema])
    if wanted.equals(rows.schema):
        return rows
    return rows.cast(wanted)


def times_as_text(rows: pa.Table) -> pa.Table:
    """Rows with every date and time as text, at every depth: Python's own have only the years 1 to 9999."""

    def spelled(leaf: pa.DataType) -> pa.DataType:
        return pa.string() if pa.types.is_temporal(leaf) else leaf

    return rows.cast(pa.schema([f.with_type(with_leaves(f.type, spelled)) for f in rows.schema]))


def python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as dictionaries, for people and documents; dates and times are text if one is outside Python's years 1 to 9999."""
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
    except OverflowError:
        found = times_as_text(rows).to_pylist()
    return found


def with_leaves(kind: pa.DataType, changed: Callable[[pa.DataType], pa.DataType] = lambda leaf: leaf) -> pa.DataType:
    """The type with other leaves, and with optional members, as changes have: writing checks those that the table requires."""
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, with_leaves(f.type, changed)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(with_leaves(kind.value_type, changed))
    if pa.types.is_map(kind):
        return pa.map_(with_leaves(kind.key_type, changed), with_leaves(kind.item_type, changed))
    return changed(kind)


def _parquet_field(f: NestedField) -> pa.Field:
    metadata = {"PARQUET:field_id": str(f.field_id)}
    return pa.field(f.name, _parquet_type(f.type), nullable=not f.required, metadata=metadata)


def _parquet_type(kind: Type) -> pa.DataType:
    match kind:
        case StructType(members):
            return pa.struct([_parquet_field(m) for m in members])
        case ListType(element):
            return pa.list_(_parquet_field(element))
        case MapType(key, value):
            return pa.map_(_parquet_field(key), _parquet_field(value))
        case PrimitiveType("uuid"):
            return pa.uuid()  # Parquet's logical type, which Java expects
        case PrimitiveType():
            return arrow_type(kind)


def check_order(rows: pa.Table, names: Sequence[str], schema: Schema) -> None:
    """Refuse columns that do not exist or cannot be sorted by.

    Raises:
        SchemaConflictError: there is such a column; names the possible ones.
    """
    for name in names:
        if name not in rows.column_names or not isinstance(schema.find(name).type, PrimitiveType):
            raise SchemaConflictError(
                f"rows cannot be sorted by {name!r}: choose from the plain columns {', '.join(rows.column_names)}"
            )


def in_order(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Sort the rows by these columns."""
    keys = without_extensions(rows.select(list(names)))
    # Renamed, as Arrow treats a name that begins with a dot as a path.
    plain = keys.cast(pa.schema([pa.field(f.name, storage_of(f.type)) for f in keys.schema]))
    labels = [f"c{i}" for i in range(keys.num_columns)]
    return rows.take(pc.sort_indices(plain.rename_columns(labels), [(label, "ascending") for label in labels]))


def storage_of(kind: pa.DataType) -> pa.DataType:
    """The type that holds the values of a type, without what an extension adds to it."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


_MAX_FOLDER_NAME = 80
"""Maximum characters of a partition value in a folder; longer ones are cut, as folders have no meaning in Iceberg."""


@dataclass(frozen=True, slots=True)
class PartitionedRows:
    """Rows of one partition. `values` are those of `ContentFile.partition`; `folder` is only for people."""

    values: tuple[Any, ...]
    folder: str
    rows: pa.Table


def split_by_partition(rows: pa.Table, schema: Schema, spec: PartitionSpec) -> Iterator[PartitionedRows]:
    """Split rows by partition of `spec`, in the order of first occurrence; the order of rows is kept."""
    if not spec.fields:
        yield PartitionedRows((), "", rows)
        return
    columns = [_partition_column(rows, schema, f) for f in spec.fields]
    codes, _ = encode_rows([_hashable(column) for column in columns])
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(codes[order]) != 0])
    ends = np.r_[starts[1:], len(order)]
    one_group = len(starts) == 1
    for start, end in zip(starts, ends, strict=True):
        row = int(order[start])
        values = tuple(_canonical(c[row], c.type) for c in columns)
        part = rows if one_group else rows.take(pa.array(order[start:end]))
        names = (
            f"{quote_plus(f.name)[:_MAX_FOLDER_NAME]}={_folder_name(c[row])}"
            for f, c in zip(spec.fields, columns, strict=True)
        )
        yield PartitionedRows(values, "/".join(names), part)


def _partition_column(rows: pa.Table, schema: Schema, field: PartitionField) -> pa.Array:
    kind = parse_transform(field.transform)
    if kind.kind == "void":  # its column may have been dropped
        return pa.nulls(rows.num_rows)
    column, source_type = _source(rows, schema, field)
    array = single_array(column)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return kind.apply(array, source_type)


def _source(rows: pa.Table, schema: Schema, field: PartitionField) -> tuple[pa.ChunkedArray, Type]:
    """The values that a partition field is made of, which may be members of structs, and their type."""
    if field.source_id not in schema.field_ids:
        raise SchemaConflictError(
            f"rows cannot be partitioned by {field.name!r}, as its column was dropped; remove this field from the "
            "table's partition spec with another engine"
        )
    top, *members = schema.path(field.source_id)
    column = rows.column(top.name)
    for inner in members:
        column = member(column, inner.name)
    return column, (members or [top])[-1].type


def encode_rows(columns: Sequence[pa.ChunkedArray | pa.Array]) -> tuple[npt.NDArray[np.int64], int]:
    """Encode rows as integers, equal for equal rows, also with NULL: (code per row, upper limit of the codes)."""
    codes, limit = _encode(columns[0])
    for column in columns[1:]:
        own, own_limit = _encode(column)
        if limit * own_limit >= 2**62:  # the product must fit into 64 bits
            codes, limit = _encode(pa.array(codes))
        codes, limit = codes * own_limit + own, limit * own_limit
        if limit > max(4 * len(codes), 1_000_000):  # callers allocate arrays of this size
            codes, limit = _encode(pa.array(codes))
    return codes, limit


def _encode(column: pa.ChunkedArray | pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    encoded = single_array(column.dictionary_encode(null_encoding="encode"))
    return np.asarray(encoded.indices).astype(np.int64), max(len(encoded.dictionary), 1)


def _hashable(column: pa.Array) -> pa.Array:
    """A column whose values are equal where partitions are: floats by their bits, with one NaN."""
    if pa.types.is_floating(column.type):
        nan = pa.scalar(float("nan"), column.type)
        one_nan = pc.if_else(pc.is_nan(column), nan, column)
        return one_nan.view(pa.int64() if column.type == pa.float64() else pa.int32())
    return column


def _canonical(value: pa.Scalar, kind: pa.DataType) -> Any:
    if not value.is_valid:
        return None
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return value.value
    return normalise_value(value.as_py(), PrimitiveType("unknown"))


def _folder_name(value: pa.Scalar) -> str:
    if not value.is_valid:
        return "null"
    try:
        plain = value.as_py()
    except OverflowError:  # a date or time beyond Python's years
        plain = value.cast(pa.string()).as_py()
    text = plain.hex() if isinstance(plain, bytes) else str(plain)
    return quote_plus(text)[:_MAX_FOLDER_NAME]
