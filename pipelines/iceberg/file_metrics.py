"""The metrics that a manifest records about a written file: path, partition, counts and column bounds."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nevermore.scan_core import ListType, MapType, NestedField, PrimitiveType, Schema, StructType, Type

BOUND_LENGTH = 16
"""Length of a bound in characters or bytes: Iceberg's `truncate(16)`."""
KEY_BOUND_LENGTH = 64
"""Bounds of key columns are longer: they prune deletes, and keys often share a long prefix."""

_PACKED: Mapping[str, str] = {
    "boolean": "<?",
    "int": "<i",
    "date": "<i",
    "float": "<f",
    "double": "<d",
}


def single_value(value: Any, kind: Type) -> bytes:
    """Iceberg's single-value bytes of a physical value: integers for temporal types and unscaled decimals."""
    if not isinstance(kind, PrimitiveType):
        raise TypeError(f"{kind} has no single value")
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if kind.name == "decimal":
        return int(value).to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)
    return struct.pack(_PACKED.get(kind.name, "<q"), value)


def lower_bound(value: Any, kind: PrimitiveType, length: int) -> bytes:
    """The lower bound, truncated to `length` characters or bytes."""
    if kind.name == "string":
        return bytes(value.decode(errors="ignore")[:length].encode())
    if kind.name == "binary":
        return bytes(value[:length])
    return single_value(value, kind)


def upper_bound(value: Any, kind: PrimitiveType, length: int) -> bytes | None:
    """The bound, rounded up if it is truncated; None if no value of that length is above all values."""
    if kind.name == "string":
        text = value.decode(errors="ignore")
        if len(text) <= length:
            return bytes(value)
        for end in range(length, 0, -1):
            if (following := _next_character(text[end - 1])) is not None:
                return bytes((text[: end - 1] + following).encode())
        return None
    if kind.name == "binary":
        if len(value) <= length:
            return bytes(value)
        kept = value[:length].rstrip(b"\xff")
        return bytes(kept[:-1]) + bytes([kept[-1] + 1]) if kept else None
    return single_value(value, kind)


def _next_character(character: str) -> str | None:
    """The next code point that UTF-8 can encode."""
    code = ord(character) + 1
    if 0xD800 <= code <= 0xDFFF:
        code = 0xE000
    return chr(code) if code <= 0x10FFFF else None


_FIELD_ID = b"PARQUET:field_id"


@dataclass(slots=True)
class _Column:
    """The statistics of one leaf, accumulated over row groups."""

    type: PrimitiveType
    lower: Any = None
    upper: Any = None
    nulls: int = 0
    values: int = 0
    size: int = 0
    counts_known: bool = True
    bounds_known: bool = True


def parquet_metrics(
    footer: pq.FileMetaData,
    schema: Schema,
    *,
    nan_counts: Mapping[int, int] | None = None,
    key_ids: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """Metrics of a Parquet file whose columns carry field ids, by their names in `ContentFile`.

    Args:
        footer: the file's footer.
        schema: the table schema; leaves are matched by field id, others are ignored.
        nan_counts: NaN values by field id, which Parquet footers do not have.
        key_ids: columns whose bounds are not truncated.
    """
    columns: dict[int, _Column] = {}
    leaves = list(_leaves(footer.schema.to_arrow_schema(), schema))
    for group_index in range(footer.num_row_groups):
        group = footer.row_group(group_index)
        for position, leaf in enumerate(leaves):
            if leaf is not None:
                column = columns.setdefault(leaf.field_id, _Column(leaf.type))  # type: ignore[arg-type] # leaves only
                _add_chunk(column, group.column(position))
    lower, upper = {}, {}
    for field_id, column in columns.items():
        if column.bounds_known and column.lower is not None:
            length = KEY_BOUND_LENGTH if field_id in key_ids else BOUND_LENGTH
            lower[field_id] = lower_bound(column.lower, column.type, length)
            if (bound := upper_bound(column.upper, column.type, length)) is not None:
                upper[field_id] = bound
    return {
        "column_sizes": {i: c.size for i, c in columns.items()},
        "value_counts": {i: c.values for i, c in columns.items()},
        "null_value_counts": {i: c.nulls for i, c in columns.items() if c.counts_known},
        "nan_value_counts": dict(nan_counts or {}),
        "lower_bounds": lower,
        "upper_bounds": upper,
        "split_offsets": _split_offsets(footer),
    }


def _leaves(arrow_schema: pa.Schema, schema: Schema) -> Iterator[NestedField | None]:
    """The table's field of each Parquet leaf, in file order; None if it is unknown or inside a list or map."""
    for column in arrow_schema:
        yield from _leaves_of(column, schema, repeated=False)


def _leaves_of(column: pa.Field, schema: Schema, *, repeated: bool) -> Iterator[NestedField | None]:
    kind = column.type
    if pa.types.is_struct(kind):
        for member in kind:
            yield from _leaves_of(member, schema, repeated=repeated)
    elif pa.types.is_map(kind):
        yield from _leaves_of(kind.key_field, schema, repeated=True)
        yield from _leaves_of(kind.item_field, schema, repeated=True)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves_of(kind.value_field, schema, repeated=True)
    else:
        text = (column.metadata or {}).get(_FIELD_ID)
        field_id = int(text) if text is not None else None
        known = not repeated and field_id is not None and field_id in schema
        yield schema.field(field_id) if known and field_id is not None else None


def _add_chunk(column: _Column, chunk: pq.ColumnChunkMetaData) -> None:
    column.size += chunk.total_compressed_size
    column.values += chunk.num_values
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        column.counts_known = column.bounds_known = False
        return
    column.nulls += statistics.null_count
    if statistics.null_count == chunk.num_values:
        return
    if not statistics.has_min_max:
        column.bounds_known = False
        return
    low, high = (_comparable(v, column.type) for v in (statistics.min_raw, statistics.max_raw))
    if low is None or high is None:
        column.bounds_known = False
        return
    column.lower = low if column.lower is None else min(column.lower, low)
    column.upper = high if column.upper is None else max(column.upper, high)


def _comparable(raw: Any, kind: PrimitiveType) -> Any:
    """A statistic's physical value in a form whose Python order is the type's order; None if it has none."""
    match kind.name:
        case "decimal":
            return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
        case "string" | "binary" | "fixed" | "uuid":
            return raw if isinstance(raw, bytes) else None
        case "float" | "double":
            return raw if raw == raw else None  # noqa: PLR0124 - NaN is no bound
        case _:
            return raw


def _split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    """Where row groups start: the first page of their first column."""
    offsets = []
    for index in range(footer.num_row_groups):
        first = footer.row_group(index).column(0)
        start = first.data_page_offset
        if first.has_dictionary_page and first.dictionary_page_offset:
            start = min(start, first.dictionary_page_offset)
        offsets.append(start)
    return tuple(offsets)


def nan_counts(table: pa.Table, schema: Schema) -> dict[int, int]:
    """NaN values by field id of the float columns of `table`, whose columns are those of `schema` by name."""
    import pyarrow.compute as pc

    columns = dict(zip(table.column_names, table.columns, strict=True))
    return {i: pc.sum(pc.is_nan(array)).as_py() or 0 for i, array in _float_leaves(schema.fields, columns)}


def _float_leaves(fields: tuple[NestedField, ...], columns: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    for leaf in fields:
        array = columns.get(leaf.name)
        match leaf.type:
            case _ if array is None:
                continue
            case PrimitiveType("float" | "double"):
                yield leaf.field_id, array
            case StructType(members):
                # all members at once: to take one out of many is linear in their number
                flat = zip((f.name for f in array.type), array.flatten(), strict=True)
                yield from _float_leaves(members, dict(flat))
            case ListType() | MapType() | PrimitiveType():
                continue
