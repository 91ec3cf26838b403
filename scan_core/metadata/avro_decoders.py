"""The plain decoder of manifests and manifest lists: closures over bytes, composed once per schema.

fastavro would be shorter, but importing it takes 70 ms of CPU, a quarter of a whole `scan --count`, and it bounds neither
the items of an array nor the depth of a schema. Many entries are decoded in `bulk_manifests.py`.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nevermore.scan_core.metadata.avro_container import (
    INTEGER_TYPES,
    MAX_SCHEMA_DEPTH,
    AvroError,
    NamedTypes,
    non_null,
    part,
    read_fixed,
    read_long,
    read_slice,
    record_fields,
    resolve,
    type_name,
)

Decoder = Callable[[bytes, int], tuple[Any, int]]
DAMAGE = (AvroError, IndexError, RecursionError, UnicodeDecodeError)
"""What decoders raise on bytes that do not fit their schema, and compiling them on schemas that are malformed."""
_MAX_ITEMS = 1 << 20
"""Of an array that is decoded: row groups of a file, key columns, partition fields of a manifest."""


def decode_records(blocks: Iterable[tuple[int, bytes]], decode: Decoder) -> Iterator[Any]:
    """The records of blocks, given with their number of records.

    Raises:
        AvroError: a block has more bytes than its records. Any other of `DAMAGE`: it is damaged otherwise.
    """
    for count, block in blocks:
        position = 0
        for _ in range(count):
            record, position = decode(block, position)
            yield record
        if position != len(block):
            raise AvroError(f"a block has {len(block) - position} bytes more than its records")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A field to decode into `slot` of the result.

    Attributes:
        field_id: its Iceberg id.
        names: what it is called where a schema has no ids; the first is for messages.
        kind: integer, text, bytes, boolean, integers (array), pairs (int to integer or bytes), record or records (array;
            see `fields`), or custom (see `compile_record`).
        slot: index in the result.
        required: malformed if the schema lacks it.
    """

    field_id: int
    names: tuple[str, ...]
    kind: str
    slot: int
    required: bool = False
    fields: tuple["Wanted", ...] = ()


_KINDS = {
    "integer": INTEGER_TYPES,
    "text": frozenset({"string"}),
    "bytes": frozenset({"bytes"}),
    "boolean": frozenset({"boolean"}),
}
"""Types that a field of each kind may have."""


def compile_record(
    schema: Any, wanted: Sequence[Wanted], slots: int, custom: Mapping[int, Decoder] | None = None
) -> Decoder:
    """A decoder of records of this schema into a list of `slots` values; None where a field is absent.

    Args:
        schema: the writer's schema as parsed JSON.
        wanted: fields to decode, at any depth, each into a slot of one flat list.
        slots: length of the list.
        custom: decoders to use instead for fields that are not null, by slot.

    Raises:
        AvroError: no record, a required field is absent, or a field has an unexpected type.
    """
    steps = list(_steps(schema, wanted, NamedTypes(schema), custom or {}))

    def decode(buffer: bytes, position: int) -> tuple[list[Any], int]:
        values: list[Any] = [None] * (slots + 1)  # the last slot takes what nobody wants
        for slot, step in steps:
            values[slot], position = step(buffer, position)
        values.pop()
        return values, position

    return decode


def _steps(
    schema: Any, wanted: Sequence[Wanted], named: NamedTypes, custom: Mapping[int, Decoder]
) -> Iterator[tuple[int, Decoder]]:
    found: set[int] = set()
    for field in record_fields(resolve(schema, named)):
        want = wanted_for(field, wanted)
        if want is None:
            yield -1, value_decoder(field["type"], named)
            continue
        found.add(want.field_id)
        if want.slot in custom:
            yield want.slot, _nullable(field["type"], custom[want.slot], named)
        elif want.kind == "record":
            yield from _steps(field["type"], want.fields, named, custom)
        else:
            yield want.slot, _wanted_decoder(field["type"], want, named)
    for want in wanted:
        if want.required and want.field_id not in found:
            raise AvroError(f"its schema lacks the field {want.names[0]} ({want.field_id})")


def wanted_for(field: Mapping[str, Any], wanted: Sequence[Wanted]) -> Wanted | None:
    """The wanted field that a field of a schema is, by id, or by name where it has none."""
    field_id = field.get("field-id")
    if field_id is not None:
        return next((w for w in wanted if w.field_id == field_id), None)
    return next((w for w in wanted if field.get("name") in w.names), None)


def _wanted_decoder(schema: Any, want: Wanted, named: NamedTypes) -> Decoder:
    inner = non_null(resolve(schema, named), named)
    kind = type_name(inner)
    items = resolve(part(inner, "items"), named) if kind == "array" else None
    if want.kind == "records" and items is not None:
        return _nullable(schema, _array_decoder(compile_record(items, want.fields, len(want.fields))), named)
    fits = kind in _KINDS.get(want.kind, ())
    fits |= want.kind == "integers" and type_name(items) in INTEGER_TYPES
    fits |= want.kind == "pairs" and pair_value_type(items, named) is not None
    if not fits:
        raise AvroError(f"field {want.names[0]} ({want.field_id}): expected {want.kind}, its schema says {kind}")
    return value_decoder(schema, named)


def _nullable(schema: Any, decode: Decoder, named: NamedTypes) -> Decoder:
    """A decoder of a type that is null in some records, given that of the others."""
    schema = resolve(schema, named)
    if not isinstance(schema, list):
        return decode
    is_null = [type_name(resolve(branch, named)) == "null" for branch in schema]
    return _union_decoder([_read_null if null else decode for null in is_null])


def value_decoder(schema: Any, named: NamedTypes, depth: int = 0) -> Decoder:
    """A decoder of any type: records become tuples, arrays and maps lists, arrays of integer keys with values mappings.

    Raises:
        AvroError: a type that is unknown, incomplete, contains itself or nests too deeply.
    """
    if depth > MAX_SCHEMA_DEPTH:
        raise AvroError(f"its schema nests deeper than {MAX_SCHEMA_DEPTH} levels")
    schema = resolve(schema, named)
    if isinstance(schema, str):
        return _compile(schema, named, depth)
    key = id(schema)
    if key in named.open:
        raise AvroError("its schema has a type that contains itself")
    if key not in named.compiled:
        named.open.add(key)
        named.compiled[key] = _compile(schema, named, depth)
        named.open.discard(key)
    found: Decoder = named.compiled[key]
    return found


def _compile(schema: Any, named: NamedTypes, depth: int) -> Decoder:
    if isinstance(schema, list):
        return _union_decoder([value_decoder(branch, named, depth + 1) for branch in schema])
    kind = type_name(schema)
    if kind in _PRIMITIVE_DECODERS:
        return _PRIMITIVE_DECODERS[kind]
    match kind:
        case "enum":
            return read_long
        case "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or not 0 <= size < 1 << 31:
                raise AvroError(f"its schema has a fixed type of size {size!r:.60}")
            return lambda buffer, position: read_fixed(buffer, position, size)
        case "array":
            value_type = pair_value_type(part(schema, "items"), named)
            if value_type is not None:
                return _pairs_decoder(of_bytes=value_type == "bytes")
            return _array_decoder(value_decoder(part(schema, "items"), named, depth + 1))
        case "map":
            value = value_decoder(part(schema, "values"), named, depth + 1)
            return _array_decoder(_tuple_decoder([read_slice, value]))
        case "record":
            return _tuple_decoder([value_decoder(f["type"], named, depth + 1) for f in record_fields(schema)])
        case _:
            raise AvroError(f"its schema has the unknown type {kind!r:.60}")


def _union_decoder(branches: list[Decoder]) -> Decoder:
    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        branch, position = read_long(buffer, position)
        if not 0 <= branch < len(branches):
            raise AvroError(f"union branch {branch} of {len(branches)}")
        return branches[branch](buffer, position)

    return read


def _array_decoder(item: Decoder) -> Decoder:
    def read(buffer: bytes, position: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, position = read_long(buffer, position)
            if count == 0:
                return values, position
            if count < 0:  # such a block states its size, for readers that skip it
                count = -count
                _, position = read_long(buffer, position)
            if count > len(buffer) - position:
                raise AvroError(f"an array of {count} items where {len(buffer) - position} bytes are left")
            if len(values) + count > _MAX_ITEMS:
                raise AvroError(f"an array of {len(values) + count} items, and at most {_MAX_ITEMS} are read")
            for _ in range(count):
                value, position = item(buffer, position)
                values.append(value)

    return read


def _tuple_decoder(items: list[Decoder]) -> Decoder:
    def read(buffer: bytes, position: int) -> tuple[tuple[Any, ...], int]:
        values = []
        for item in items:
            value, position = item(buffer, position)
            values.append(value)
        return tuple(values), position

    return read


def _packed_decoder(layout: str) -> Decoder:
    unpack, size = struct.Struct(layout).unpack, struct.calcsize(layout)

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        data, position = read_fixed(buffer, position, size)
        return unpack(data)[0], position

    return read


def _read_null(buffer: bytes, position: int) -> tuple[None, int]:  # noqa: ARG001 - one signature for all types
    return None, position


def _read_boolean(buffer: bytes, position: int) -> tuple[bool, int]:
    return buffer[position] != 0, position + 1


def _read_text(buffer: bytes, position: int) -> tuple[str, int]:
    data, position = read_slice(buffer, position)
    return data.decode(), position


_PRIMITIVE_DECODERS: dict[str, Decoder] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": read_long,
    "long": read_long,
    "float": _packed_decoder("<f"),
    "double": _packed_decoder("<d"),
    "bytes": read_slice,
    "string": _read_text,
}


_COMMON_LENGTHS = (8, 4, 16, 1, 0, *(n for n in range(64) if n not in {8, 4, 16, 1, 0}))
_VARINT = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_MAX_PATTERN_PAIRS = 4096
"""Larger maps are decoded at once: patterns are cached by size, and no real table has so many columns."""
_EMPTY: Mapping[int, Any] = {}
_NOWHERE = object()


class LazyPairs(Mapping[int, Any]):
    """A map of a manifest entry, decoded whenever it is used; pickles as a plain dict."""

    __slots__ = ("_buffer", "_count", "_of_bytes", "_start")

    def __init__(self, buffer: bytes, start: int, count: int, of_bytes: bool) -> None:  # noqa: FBT001 - hot, private
        self._buffer, self._start, self._count, self._of_bytes = buffer, start, count, of_bytes

    def __getitem__(self, key: int) -> Any:
        if (found := self.get(key, _NOWHERE)) is _NOWHERE:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def get(self, key: int, default: Any = None) -> Any:
        """The value of `key`, or the default."""
        buffer, position, of_bytes = self._buffer, self._start, self._of_bytes
        for _ in range(self._count):  # as `_pairs`, which as a generator takes twice the time: plans ask for each file
            byte = buffer[position]
            found, position = ((byte >> 1) ^ -(byte & 1), position + 1) if byte < 128 else read_long(buffer, position)
            byte = buffer[position]
            value, position = ((byte >> 1) ^ -(byte & 1), position + 1) if byte < 128 else read_long(buffer, position)
            if found == key:
                return buffer[position : position + value] if of_bytes else value
            if of_bytes:
                position += value
        return default

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._content(),)

    def __repr__(self) -> str:
        return repr(self._content())

    def _content(self) -> dict[int, Any]:
        return dict(reversed(list(self._pairs())))  # the first pair of a key counts

    def _pairs(self) -> Iterator[tuple[int, Any]]:
        buffer, position, of_bytes = self._buffer, self._start, self._of_bytes
        for _ in range(self._count):
            byte = buffer[position]  # most numbers take one byte: half the time of calling `read_long`
            key, position = ((byte >> 1) ^ -(byte & 1), position + 1) if byte < 128 else read_long(buffer, position)
            byte = buffer[position]
            value, position = ((byte >> 1) ^ -(byte & 1), position + 1) if byte < 128 else read_long(buffer, position)
            if of_bytes:
                yield key, buffer[position : position + value]
                position += value
            else:
                yield key, value


def pair_value_type(items: Any, named: Mapping[str, Any]) -> str | None:
    """The type of the values, if arrays of these items are maps with integer keys and values that are integers or bytes."""
    items = resolve(items, named)
    if type_name(items) != "record":
        return None
    fields = record_fields(items)
    types = [type_name(resolve(f["type"], named)) for f in fields]
    is_map = [f.get("name") for f in fields] == ["key", "value"] and types[0] in INTEGER_TYPES
    return types[1] if is_map and types[1] in INTEGER_TYPES | {"bytes"} else None


def _pairs_decoder(*, of_bytes: bool) -> Decoder:
    """A decoder of maps that are arrays of pairs.

    A regular expression finds their end ten times as fast as decoding them, which most queries need for few columns; what
    it does not match (several blocks, long values, damage) is decoded at once.
    """
    patterns: dict[int, Callable[[bytes, int], re.Match[bytes] | None]] = {}
    decode = _array_decoder(_tuple_decoder([read_long, read_slice if of_bytes else read_long]))

    def read(buffer: bytes, position: int) -> tuple[Mapping[int, Any], int]:
        count, start = read_long(buffer, position)
        if count == 0:
            return _EMPTY, start
        if 0 < count <= _MAX_PATTERN_PAIRS:
            match = patterns.get(count)
            if match is None:
                match = patterns[count] = _pairs_pattern(count, of_bytes=of_bytes).match
            if (found := match(buffer, start)) is not None:
                return LazyPairs(buffer, start, count, of_bytes), found.end()
        pairs, end = decode(buffer, position)
        return dict(reversed(pairs)), end

    return read


def _pairs_pattern(count: int, *, of_bytes: bool) -> re.Pattern[bytes]:
    if not of_bytes:
        return re.compile(rb"(?:%b){%d}+\x00" % (_VARINT, 2 * count))
    values = b"|".join(re.escape(bytes([2 * n])) + b"." * n for n in _COMMON_LENGTHS)
    return re.compile(rb"(?>%b(?:%b)){%d}+\x00" % (_VARINT, values, count), re.DOTALL)
