"""Arrays of a file converted to arrays of the table; struct members as columns of their own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import LeafNeeds, field_id_of
from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.schema import (
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    Schema,
    StructType,
    Type,
    arrow_type,
)
from nevermore.scan_core.rows.buffers import validity, validity_bitmap

Convert = Callable[[pa.Array], pa.Array]
"""Values of a file's field -> values of the table's, of the same length."""
Missing = Callable[[NestedField], pa.Scalar]
"""Gives the value of a member that the file lacks."""


@dataclass(frozen=True, slots=True)
class ConversionContext:
    """The context of a conversion: the file, for messages, and its rule for missing members."""

    path: str
    missing: Missing

    def fail(self, field: NestedField, reason: str) -> MalformedTableError:
        """An error that names the file and the column."""
        return MalformedTableError(f"{self.path}: column {field.name!r} (id {field.field_id}): {reason}")


def compile_conversion(file_field: pa.Field, field: NestedField, context: ConversionContext) -> Convert:
    """The conversion of values of `file_field` to those of the table's `field`, which has the same id.

    Raises:
        MalformedTableError: types between which the specification knows no promotion; a required member is missing.
        UnsupportedError: a type that is not supported.
    """
    file_type = file_field.type
    if isinstance(file_type, pa.BaseExtensionType):
        inner = compile_conversion(file_field.with_type(file_type.storage_type), field, context)
        return lambda array: inner(array.storage if isinstance(array, pa.ExtensionArray) else array)
    if pt.is_null(file_type):
        target = arrow_type(field.type)
        return lambda array: pa.nulls(len(array), target)
    match field.type:
        case StructType(()):
            return presence  # of values of any type: see `expr/bound.py`
        case StructType(members):
            return _struct(file_type, field, members, context)
        case ListType(element):
            return _list(file_type, field, element, context)
        case MapType(key, value):
            return _map(file_type, field, key, value, context)
        case PrimitiveType():
            return _primitive(file_type, field, field.type, context)


def is_identity(convert: Convert) -> bool:
    """True if values pass unchanged, so that no array need be touched."""
    return convert is _unchanged


def _unchanged(array: pa.Array) -> pa.Array:
    return array


def presence(array: pa.Array) -> pa.Array:
    """Structs without members that are NULL where the values are."""
    return pa.Array.from_buffers(pa.struct([]), len(array), [validity_bitmap(validity(array))], children=[])


def _struct(
    file_type: pa.DataType, field: NestedField, members: Sequence[NestedField], context: ConversionContext
) -> Convert:
    if not pt.is_struct(file_type):
        raise context.fail(field, f"the file has {file_type}, the table {field.type}")
    by_id = {field_id_of(child): i for i, child in enumerate(file_type)}
    sources: list[tuple[int, Convert] | pa.Scalar] = []
    for member in members:
        index = by_id.get(member.field_id)
        if index is None:
            sources.append(context.missing(member))
        else:
            sources.append((index, compile_conversion(file_type.field(index), member, context)))
    target = arrow_type(field.type)
    indices = [source[0] for source in sources if isinstance(source, tuple)]
    if (
        target == file_type
        and indices == list(range(file_type.num_fields))
        and all(is_identity(source[1]) for source in sources if isinstance(source, tuple))
    ):
        return _unchanged
    fields = list(target)

    def convert(array: pa.StructArray) -> pa.Array:
        children = [
            source[1](array.field(source[0])) if isinstance(source, tuple) else repeat(source, len(array))
            for source in sources
        ]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null() if array.null_count else None)

    return convert


def _list(file_type: pa.DataType, field: NestedField, element: NestedField, context: ConversionContext) -> Convert:
    if pt.is_large_list(file_type) or pt.is_fixed_size_list(file_type):
        plain = pa.list_(file_type.value_field)
        inner = _list(plain, field, element, context)
        return lambda array: inner(array.cast(plain))
    counts_only = element.type == StructType(())
    if not (pt.is_list(file_type) or (counts_only and pt.is_map(file_type))):
        raise context.fail(field, f"the file has {file_type}, the table {field.type}")
    if not counts_only:
        _check_id(file_type.value_field, element, context)
    convert_element = presence if counts_only else compile_conversion(file_type.value_field, element, context)
    target = arrow_type(field.type)
    if target == file_type and is_identity(convert_element):
        return _unchanged

    def convert(array: pa.ListArray) -> pa.Array:
        return pa.Array.from_buffers(
            target,
            len(array),
            array.buffers()[:2],
            array.null_count,
            array.offset,
            [convert_element(array.values)],
        )

    return convert


def _map(
    file_type: pa.DataType, field: NestedField, key: NestedField, value: NestedField, context: ConversionContext
) -> Convert:
    if pt.is_list(file_type) and value.type == StructType(()):
        return _map_of_keys(file_type.value_type.field(0), field, key, context)
    if not pt.is_map(file_type):
        raise context.fail(field, f"the file has {file_type}, the table {field.type}")
    _check_id(file_type.key_field, key, context)
    _check_id(file_type.item_field, value, context)
    convert_key = compile_conversion(file_type.key_field, key, context)
    convert_value = compile_conversion(file_type.item_field, value, context)
    target = arrow_type(field.type)
    if target == file_type and is_identity(convert_key) and is_identity(convert_value):
        return _unchanged
    fields = [target.key_field, target.item_field]

    def convert(array: pa.MapArray) -> pa.Array:
        entries = pa.StructArray.from_arrays([convert_key(array.keys), convert_value(array.items)], fields=fields)
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], array.null_count, array.offset, [entries])

    return convert


def _map_of_keys(file_field: pa.Field, field: NestedField, key: NestedField, context: ConversionContext) -> Convert:
    """A map of which only the keys were read: Arrow has them as a list of structs of one member."""
    _check_id(file_field, key, context)
    convert_key = compile_conversion(file_field, key, context)
    target = arrow_type(field.type)

    def convert(array: pa.ListArray) -> pa.Array:
        keys = convert_key(array.values.field(0))
        entries = pa.StructArray.from_arrays([keys, presence(keys)], fields=[target.key_field, target.item_field])
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], array.null_count, array.offset, [entries])

    return convert


def _check_id(file_field: pa.Field, field: NestedField, context: ConversionContext) -> None:
    if (file_id := field_id_of(file_field)) not in {None, field.field_id}:
        raise context.fail(field, f"the file's {file_field.name} has id {file_id}")


def _primitive(
    file_type: pa.DataType, field: NestedField, table_type: PrimitiveType, context: ConversionContext
) -> Convert:
    target = arrow_type(table_type)
    if file_type == target:
        return _unchanged
    if pt.is_dictionary(file_type):
        inner = _primitive(file_type.value_type, field, table_type, context)
        return lambda array: inner(array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array)
    kernel = _promotion(file_type, target)
    if kernel is None:
        raise context.fail(field, f"the file has {file_type}, the table {table_type}, and neither becomes the other")

    def convert(array: pa.Array) -> pa.Array:
        try:
            return kernel(array)
        except ValueError as error:
            raise context.fail(
                field, f"a value of type {file_type!s:.80} does not fit {table_type}: {error}"
            ) from error

    return convert


def _promotion(source: pa.DataType, target: pa.DataType) -> Convert | None:
    """The kernel that converts `source` to `target` exactly; None if there is none."""
    if pt.is_timestamp(target):
        if pt.is_timestamp(source):
            return lambda array: _to_timestamp(array, target)
        return (lambda array: _to_timestamp(array.cast(pa.timestamp("us")), target)) if pt.is_date(source) else None
    if pt.is_string(target) and pt.is_struct(source) and source.get_field_index("metadata") >= 0:
        from nevermore.scan_core.expr.variant import variant_text  # loaded on demand: few tables have them

        return variant_text
    is_text = pt.is_large_string(source) or _is_bytes(source)
    if pt.is_floating(target):
        fits = pt.is_floating(source) and source.bit_width <= target.bit_width
    elif pt.is_decimal(target):
        fits = pt.is_decimal(source) and source.scale == target.scale
    elif pt.is_string(target):
        fits = is_text or pt.is_string_view(source)
    elif pt.is_fixed_size_binary(target):
        fits = source == target or _is_bytes(source)
    elif pt.is_binary(target):
        fits = is_text or pt.is_string(source) or pt.is_fixed_size_binary(source)
    else:
        fits = any(is_of(source) and is_of(target) for is_of in (pt.is_integer, pt.is_time, pt.is_date))
    return (lambda array: array.cast(target)) if fits else None


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pt.is_binary(data_type) or pt.is_large_binary(data_type) or pt.is_binary_view(data_type))


def _to_timestamp(array: pa.Array, target: pa.TimestampType) -> pa.Array:
    """To the table's unit and zone. A zone names how an instant is shown, so it changes no value.

    Nanoseconds that a microsecond column cannot hold are cut towards the past, as the reference implementation does.
    """
    plain = pa.timestamp(array.type.unit)
    array = array.cast(plain) if array.type.tz is None else array.cast(pa.int64()).cast(plain)
    if array.type.unit == "ns" and target.unit == "us":
        import pyarrow.compute as pc

        array = pc.floor_temporal(array, 1, "microsecond")
    array = array.cast(pa.timestamp(target.unit))
    return array if target.tz is None else array.cast(pa.int64()).cast(target)


def repeat(value: pa.Scalar, length: int) -> pa.Array:
    """An array with the same value `length` times."""
    return pa.repeat(value, length) if value.is_valid else pa.nulls(length, value.type)


def public_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of rows of `schema` as callers see them."""
    return pa.schema([pa.field(f.name, public_type(f.type), nullable=not f.required) for f in schema.fields])


def public_type(iceberg_type: Type) -> pa.DataType:
    """The Arrow type of values as callers see them.

    Raises:
        UnsupportedError: geometry, geography.
    """
    match iceberg_type:
        case PrimitiveType("uuid"):
            return pa.uuid()
        case StructType(fields):
            return pa.struct([pa.field(f.name, public_type(f.type), nullable=not f.required) for f in fields])
        case ListType(element):
            return pa.list_(pa.field("element", public_type(element.type), nullable=not element.required))
        case MapType(key, value):
            return pa.map_(
                pa.field("key", public_type(key.type), nullable=False),
                pa.field("value", public_type(value.type), nullable=not value.required),
            )
        case _:
            return arrow_type(iceberg_type)


def public_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the public schema, its buffers shared; nested columns that begin within theirs are copied, as DuckDB refuses them."""
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(batch.columns, schema, strict=True)
    ]
    if not arrays:  # a batch that is made of no columns has no rows
        return batch
    whole = [pa.concat_arrays([a, a.slice(0, 0)]) if a.offset and pt.is_nested(a.type) else a for a in arrays]
    return pa.RecordBatch.from_arrays(whole, schema=schema)


Way = tuple[int, ...]


def leaf_needs(file_type: pa.DataType, kind: Type) -> LeafNeeds:
    """The leaf columns of a file's column that are needed for values of the table's type `kind`."""
    found = list(_leaf_needs(file_type, kind, 0))
    return LeafNeeds(
        frozenset(i for is_all, leaves in found if is_all for i in leaves),
        tuple(leaves for is_all, leaves in found if not is_all),
    )


def _leaf_needs(file_type: pa.DataType, kind: Type, start: int) -> Iterator[tuple[bool, range]]:
    """Ranges of leaf columns: whether all are needed, or any one of them."""
    whole = range(start, start + _leaf_count(file_type))
    match kind:
        case StructType(members) if pt.is_struct(file_type):
            by_id: dict[int | None, Type] = {f.field_id: f.type for f in members}
            found = False
            for child in file_type:
                if (child_kind := by_id.get(field_id_of(child))) is not None:
                    found = True
                    yield from _leaf_needs(child.type, child_kind, start)
                start += _leaf_count(child.type)
            if not found:
                yield False, whole
        case StructType(()):
            yield False, whole
        case ListType(element) if pt.is_list(file_type):
            yield from _leaf_needs(file_type.value_type, element.type, start)
        case ListType(element) if pt.is_map(file_type) and element.type == StructType(()):
            yield False, whole
        case MapType(_, value) if pt.is_map(file_type):
            keys = _leaf_count(file_type.key_type)
            yield True, range(start, start + keys)
            if value.type != StructType(()) or pt.is_nested(file_type.item_type):
                yield from _leaf_needs(file_type.item_type, value.type, start + keys)
        case _:
            yield True, whole


def type_of_leaves(file_type: pa.DataType, leaves: AbstractSet[int], start: int = 0) -> pa.DataType | None:
    """The type that Arrow gives a column, of which `start` is the first leaf column, if only `leaves` are read.

    None where it is not certain.
    """
    stop = start + _leaf_count(file_type)
    if leaves >= set(range(start, stop)):
        return file_type
    if not (pt.is_struct(file_type) or pt.is_list(file_type) or pt.is_map(file_type)):
        return None
    children = [file_type.field(i) for i in range(file_type.num_fields)]
    if pt.is_map(file_type):
        children = [file_type.key_field, file_type.item_field]
    kept = []
    for child in children:
        count = _leaf_count(child.type)
        if any(start <= leaf < start + count for leaf in leaves):
            if (kind := type_of_leaves(child.type, leaves, start)) is None:
                return None
            kept.append(child.with_type(kind))
        start += count
    if pt.is_struct(file_type):
        return pa.struct(kept)
    if pt.is_list(file_type):
        return pa.list_(kept[0])
    if len(kept) == 2:
        return pa.map_(*kept)
    return pa.list_(pa.field("entries", pa.struct(kept), nullable=False))


def leaf_ranges(schema: pa.Schema) -> tuple[range, ...]:
    """For each top-level column the indices of its leaf columns."""
    ranges: list[range] = []
    start = 0
    for field in schema:
        stop = start + _leaf_count(field.type)
        ranges.append(range(start, stop))
        start = stop
    return tuple(ranges)


def members_of(schema: pa.Schema, leaves: Sequence[range]) -> list[tuple[Way, pa.Field, range]]:
    """Every member at any depth of structs alone: the way to it, its field, its leaf columns."""
    return [found for i, field in enumerate(schema) for found in _members((i,), field.type, leaves[i].start)]


def read_members(
    arrays: Mapping[int, pa.Array], ways: Sequence[Way], ranges: Mapping[Way, range], leaves: Sequence[int]
) -> list[pa.Array]:
    """The columns at the end of these ways.

    Args:
        arrays: top-level columns as decoded from `leaves` alone: structs have only the children of which some leaf was
            read.
        ways: to the columns and members wanted.
        ranges: the leaf columns of every member.
        leaves: that were read.
    """
    read = set(leaves)
    found = []
    for way in ways:
        steps = []
        for depth in range(1, len(way)):
            before = (ranges[*way[:depth], k] for k in range(way[depth]))
            steps.append(sum(not read.isdisjoint(leaf_columns) for leaf_columns in before))
        found.append(descended(arrays[way[0]], steps))
    return found


def descended(array: pa.Array, steps: Sequence[int]) -> pa.Array:
    """The member of a struct that these steps lead to; NULL where a struct on the way is."""
    for step in steps:
        array = array.flatten()[step]
    return array


def _members(way: Way, data_type: pa.DataType, start: int) -> Iterator[tuple[Way, pa.Field, range]]:
    if not pt.is_struct(data_type):
        return
    for index, field in enumerate(data_type):
        stop = start + _leaf_count(field.type)
        yield (*way, index), field, range(start, stop)
        yield from _members((*way, index), field.type, start)
        start = stop


def _leaf_count(data_type: pa.DataType) -> int:
    if isinstance(data_type, pa.BaseExtensionType):
        return _leaf_count(data_type.storage_type)
    if pt.is_nested(data_type):
        return sum(_leaf_count(data_type.field(i).type) for i in range(data_type.num_fields))
    return 1
