"""Rows in the exact shape of a table: its columns in its order, in its types, with field ids for Parquet.

Only lossless steps: reordering, NULL for what is missing, widening. Whether a table should change to take new
columns or types is the business of `schema_evolution.py`.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import SchemaConflictError
from scan_core.schema import ListType, MapType, NestedField, PrimitiveType, Schema, StructType, Type, arrow_type


def parquet_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema with which Parquet files of a table are written: field ids at every depth."""
    return pa.schema([_parquet_field(f) for f in schema.fields])


def conform(rows: pa.Table, schema: Schema) -> pa.Table:
    """`rows` with the columns of `schema`, found by name, and nothing else.

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
            chunks = [_shaped(chunk, f.type, f.name) for chunk in rows.column(f.name).chunks]
            arrays.append(pa.chunked_array([_relabelled(c, target.type) for c in chunks], target.type))
        if f.required and arrays[-1].null_count:
            raise SchemaConflictError(f"column {f.name!r} is required, yet a row has NULL in it")
    return pa.table(arrays, schema=wanted)


def member(structs: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """A member of structs by its name, whatever that is: Arrow takes one that begins with a point for a path."""
    return pc.struct_field(structs, [structs.type.get_field_index(name)])


def distinct_rows(rows: pa.Table) -> pa.Table:
    """Each row once. Columns are found by place: Arrow takes a name that begins with a point for a path."""
    labels = [f"c{i}" for i in range(rows.num_columns)]
    return rows.rename_columns(labels).group_by(labels).aggregate([]).rename_columns(rows.column_names)


def without_extensions(rows: pa.Table) -> pa.Table:
    """`rows` with uuid as 16 bytes, at every depth: how values are held between reading and writing."""
    wanted = pa.schema([f.with_type(_storage_type(f.type)) for f in rows.schema])
    if wanted.equals(rows.schema):
        return rows
    columns = [
        pa.chunked_array([_relabelled(chunk, f.type) for chunk in column.chunks], f.type)
        for column, f in zip(rows.columns, wanted, strict=True)
    ]
    return pa.table(columns, schema=wanted)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_storage_type(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_storage_type(kind.value_type)))
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_storage_type(kind.item_type))
        return pa.map_(kind.key_field.with_type(_storage_type(kind.key_type)), item)
    return kind


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


def _shaped(array: pa.Array, kind: Type, path: str) -> pa.Array:
    """`array` in the engine's Arrow type of `kind`, struct members matched by name."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    wanted = arrow_type(kind)
    if array.type.equals(wanted):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    match kind:
        case StructType(members) if pa.types.is_struct(array.type):
            return _shaped_struct(array, members, path)
        case ListType(element) if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            values = _shaped(array.flatten(), element.type, f"{path}.element")
            return pa.ListArray.from_arrays(_dense_offsets(array), values, type=wanted, mask=array.is_null())
        case MapType(key, value) if pa.types.is_map(array.type):
            dense = pc.fill_null(array, []) if array.null_count else array
            keys = _shaped(dense.keys, key.type, f"{path}.key")
            items = _shaped(dense.items, value.type, f"{path}.value")
            return pa.MapArray.from_arrays(dense.offsets, keys, items, type=wanted, mask=array.is_null())
        case PrimitiveType():
            try:
                return array.cast(wanted)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaConflictError(f"column {path!r}: a {array.type} does not fit {kind}: {error}") from error
        case _:
            raise SchemaConflictError(f"column {path!r}: {array.type} is no {kind}")


def _shaped_struct(array: pa.StructArray, members: tuple[NestedField, ...], path: str) -> pa.StructArray:
    given: Mapping[str, int] = {array.type.field(i).name: i for i in range(array.type.num_fields)}
    children = [
        _shaped(array.field(given[m.name]), m.type, f"{path}.{m.name}")
        if m.name in given
        else pa.nulls(len(array), arrow_type(m.type))
        for m in members
    ]
    fields = [pa.field(m.name, arrow_type(m.type), nullable=not m.required) for m in members]
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


def _dense_offsets(array: pa.Array) -> pa.Array:
    """Offsets into `array.flatten()`, which leaves out what lies under NULL lists."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    return pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())


def _relabelled(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The same buffers under a type that differs only in field names, metadata and the uuid extension."""
    if array.type.equals(target, check_metadata=True):
        return array
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, array)
    if isinstance(array, pa.ExtensionArray):
        return array.storage
    if pa.types.is_struct(target):
        children = [_relabelled(array.field(i), target.field(i).type) for i in range(target.num_fields)]
        fields = [target.field(i) for i in range(target.num_fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_map(target):
        keys, items = _relabelled(array.keys, target.key_type), _relabelled(array.items, target.item_type)
        offsets = _zero_based(array.offsets)
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=array.is_null())
    if pa.types.is_list(target):
        values = _relabelled(array.flatten(), target.value_type)
        return pa.ListArray.from_arrays(_dense_offsets(array), values, type=target, mask=array.is_null())
    return array


def _zero_based(offsets: pa.Array) -> pa.Array:
    return pc.subtract(offsets, offsets[0]) if len(offsets) and offsets[0].as_py() else offsets
