"""Decoders of Avro values and whole records, composed once per schema from closures: the plain way to decode a manifest."""

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scan_core.metadata.avro_container import (
    INTEGER_TYPES,
    MAX_SCHEMA_DEPTH,
    AvroError,
    NamedTypes,
    non_null,
    part,
    read_long,
    read_slice,
    record_fields,
    resolve,
    type_name,
)

Decoder = Callable[[bytes, int], tuple[Any, int]]
Skipper = Callable[[bytes, int], int]
_MOST_ITEMS = 1 << 20
"""Of an array that is decoded: row groups of a file, key columns, partition fields of a manifest."""


def any_decoder(schema: Any, named: NamedTypes, depth: int) -> Decoder:
    """A decoder of values of this type; records become tuples."""
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
        return union_decoder([any_decoder(s, named, depth + 1) for s in schema])
    kind = type_name(schema)
    if kind in _PRIMITIVE_DECODERS:
        return _PRIMITIVE_DECODERS[kind]
    match kind:
        case "enum":
            return read_long
        case "fixed":
            return _fixed_decoder(_fixed_size(schema))
        case "array":
            return array_decoder(any_decoder(part(schema, "items"), named, depth + 1))
        case "map":
            return array_decoder(pair_decoder(any_decoder(part(schema, "values"), named, depth + 1), read_slice))
        case "record":
            return _tuple_decoder([any_decoder(f["type"], named, depth + 1) for f in record_fields(schema)])
        case _:
            raise AvroError(f"its schema has the unknown type {kind!r:.60}")


def nullable_long(null_branch: int, value_branch: int) -> Decoder:
    """A decoder of a union of null and an integer, whose branches are these bytes."""

    def read(buffer: bytes, position: int) -> tuple[int | None, int]:
        branch = buffer[position]
        if branch == null_branch:
            return None, position + 1
        if branch != value_branch:
            raise AvroError(f"union branch {branch} of 2")
        byte = buffer[position + 1]
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), position + 2
        return read_long(buffer, position + 1)

    return read


def skip_long(buffer: bytes, position: int) -> int:
    """The position after a varint."""
    while buffer[position] > 127:
        position += 1
    return position + 1


def skip_slice(buffer: bytes, position: int) -> int:
    """The position after length-prefixed bytes."""
    length, position = read_long(buffer, position)
    if not 0 <= length <= len(buffer) - position:
        raise AvroError(f"a value of {length} bytes where {len(buffer) - position} are left")
    return position + length


def union_skipper(branches: list[Skipper]) -> Skipper:
    """A skipper of a union of two types."""

    def skip(buffer: bytes, position: int) -> int:
        branch = buffer[position]
        if branch == 0:
            return branches[0](buffer, position + 1)
        if branch == 2:
            return branches[1](buffer, position + 1)
        raise AvroError(f"union branch {branch >> 1} of 2")

    return skip


def array_skipper(skip_item: Skipper) -> Skipper:
    """A skipper of arrays; blocks that state their size are jumped over."""

    def skip(buffer: bytes, position: int) -> int:
        while True:
            count, position = read_long(buffer, position)
            if count == 0:
                return position
            if count < 0:
                position = skip_slice(buffer, position)
                continue
            _check_count(buffer, position, count)
            for _ in range(count):
                position = skip_item(buffer, position)

    return skip


def array_decoder(item: Decoder) -> Decoder:
    """A decoder of arrays to lists."""

    def read(buffer: bytes, position: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, position = read_long(buffer, position)
            if count == 0:
                return values, position
            if count < 0:
                count = -count
                _, position = read_long(buffer, position)
            _check_count(buffer, position, count)
            if len(values) + count > _MOST_ITEMS:
                raise AvroError(f"an array of {len(values) + count} items, and at most {_MOST_ITEMS} are read")
            for _ in range(count):
                value, position = item(buffer, position)
                values.append(value)

    return read


def _check_count(buffer: bytes, position: int, count: int) -> None:
    if count > len(buffer) - position:
        raise AvroError(f"an array of {count} items where {len(buffer) - position} bytes are left")


def pair_decoder(value: Decoder, key: Decoder = read_long) -> Decoder:
    """A decoder of a key followed by a value."""

    def read(buffer: bytes, position: int) -> tuple[tuple[Any, Any], int]:
        left, position = key(buffer, position)
        right, position = value(buffer, position)
        return (left, right), position

    return read


def _tuple_decoder(items: list[Decoder]) -> Decoder:
    def read(buffer: bytes, position: int) -> tuple[tuple[Any, ...], int]:
        values = []
        for item in items:
            value, position = item(buffer, position)
            values.append(value)
        return tuple(values), position

    return read


def union_decoder(branches: list[Decoder]) -> Decoder:
    """A decoder of a union."""

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        branch, position = read_long(buffer, position)
        if not 0 <= branch < len(branches):
            raise AvroError(f"union branch {branch} of {len(branches)}")
        return branches[branch](buffer, position)

    return read


def _fixed_decoder(size: int) -> Decoder:
    def read(buffer: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        if end > len(buffer):
            raise AvroError(f"a value of {size} bytes where {len(buffer) - position} are left")
        return buffer[position:end], end

    return read


def _fixed_size(schema: Mapping[str, Any]) -> int:
    size = schema.get("size")
    if not isinstance(size, int) or not 0 <= size < 1 << 31:
        raise AvroError(f"its schema has a fixed type of size {size!r:.60}")
    return size


def _read_null(buffer: bytes, position: int) -> tuple[None, int]:  # noqa: ARG001 - one signature for all types
    return None, position


def read_boolean(buffer: bytes, position: int) -> tuple[bool, int]:
    """A boolean and the position after it."""
    return buffer[position] != 0, position + 1


def read_text(buffer: bytes, position: int) -> tuple[str, int]:
    """A string and the position after it."""
    length, position = read_long(buffer, position)
    end = position + length
    if length < 0 or end > len(buffer):
        raise AvroError(f"a value of {length} bytes where {len(buffer) - position} are left")
    return buffer[position:end].decode(), end


def _read_packed(layout: str) -> Decoder:
    unpack = struct.Struct(layout).unpack_from
    size = struct.calcsize(layout)
    return lambda buffer, position: (unpack(buffer, position)[0], position + size)


_PRIMITIVE_DECODERS: dict[str, Decoder] = {
    "null": _read_null,
    "boolean": read_boolean,
    "int": read_long,
    "long": read_long,
    "float": _read_packed("<f"),
    "double": _read_packed("<d"),
    "bytes": read_slice,
    "string": read_text,
}


_COMMON_LENGTHS = (8, 4, 16, 1, 0, *(n for n in range(64) if n not in {8, 4, 16, 1, 0}))
_VARINT = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_MOST_PAIRS = 4096
"""More are decoded at once: no real table has so many columns, and patterns are kept."""
_EMPTY: Mapping[int, Any] = {}


class LazyPairs(Mapping[int, Any]):
    """A map of a manifest entry, decoded whenever it is used; pickles as a plain dict."""

    __slots__ = ("_buffer", "_count", "_of_bytes", "_start")

    def __init__(self, buffer: bytes, start: int, count: int, of_bytes: bool) -> None:  # noqa: FBT001 - hot, private
        self._buffer, self._start, self._count, self._of_bytes = buffer, start, count, of_bytes

    def __getitem__(self, key: int) -> Any:
        for found, value in self._pairs():
            if found == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[int]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def get(self, key: int, default: Any = None) -> Any:
        """The value of `key`, or the default."""
        for found, value in self._pairs():
            if found == key:
                return value
        return default

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._content(),)

    def __repr__(self) -> str:
        return repr(self._content())

    def _content(self) -> dict[int, Any]:
        content: dict[int, Any] = {}
        for key, value in self._pairs():
            content.setdefault(key, value)
        return content

    def _pairs(self) -> Iterator[tuple[int, Any]]:
        buffer, position, of_bytes = self._buffer, self._start, self._of_bytes
        for _ in range(self._count):
            byte = buffer[position]
            if byte < 128:
                key = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                key, position = read_long(buffer, position)
            byte = buffer[position]
            if byte < 128:
                number = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                number, position = read_long(buffer, position)
            if of_bytes:
                yield key, buffer[position : position + number]
                position += number
            else:
                yield key, number


def pairs_decoder(items: Any, named: Mapping[str, Any]) -> tuple[Decoder, Skipper]:
    """A decoder of key-value arrays into mappings, and a skipper of them.

    Raises:
        AvroError: the items are no pairs of an integer and an integer or bytes.
    """
    fields = record_fields(resolve(items, named))
    kinds = [type_name(resolve(f["type"], named)) for f in fields]
    names = [f.get("name") for f in fields]
    if names != ["key", "value"] or kinds[0] not in INTEGER_TYPES:
        raise AvroError(f"a map has entries {names} of {kinds}; expected key and value")
    if kinds[1] in INTEGER_TYPES:
        return _pairs_decoder(_integer_pairs, array_decoder(pair_decoder(read_long)), of_bytes=False)
    if kinds[1] == "bytes":
        return _pairs_decoder(_bytes_pairs, array_decoder(pair_decoder(read_slice)), of_bytes=True)
    raise AvroError(f"a map has values of type {kinds[1]}")


def is_pair(items: Any, named: Mapping[str, Any]) -> bool:
    """True if `items` describes a key and a value that `pairs_decoder` takes."""
    try:
        pairs_decoder(items, named)
    except AvroError:
        return False
    return True


def _pairs_decoder(
    pattern_of: Callable[[int], re.Pattern[bytes]], eager: Decoder, *, of_bytes: bool
) -> tuple[Decoder, Skipper]:
    patterns: dict[int, Callable[[bytes, int], re.Match[bytes] | None]] = {}

    def skip(buffer: bytes, position: int) -> tuple[int, int, int]:
        """Count, start and end of well-formed pairs in one block; count -1 for anything else."""
        count, start = read_long(buffer, position)
        if not 0 < count <= _MOST_PAIRS:
            return -1, start, start
        match = patterns.get(count)
        if match is None:
            match = patterns[count] = pattern_of(count).match
        found = match(buffer, start)
        return (-1, start, start) if found is None else (count, start, found.end())

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        if buffer[position] == 0:
            return _EMPTY, position + 1
        count, start, end = skip(buffer, position)
        if count > 0:
            return LazyPairs(buffer, start, count, of_bytes), end
        pairs, end = eager(buffer, position)
        return dict(reversed(pairs)), end

    def skip_all(buffer: bytes, position: int) -> int:
        if buffer[position] == 0:
            return position + 1
        count, _, end = skip(buffer, position)
        return end if count > 0 else eager(buffer, position)[1]

    return read, skip_all


def _integer_pairs(count: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?:%b){%d}+\x00" % (_VARINT, 2 * count))


def _bytes_pairs(count: int) -> re.Pattern[bytes]:
    values = b"|".join(re.escape(bytes([2 * n])) + b"." * n for n in _COMMON_LENGTHS)
    return re.compile(rb"(?>%b(?:%b)){%d}+\x00" % (_VARINT, values, count), re.DOTALL)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A field to decode into `slot` of the result.

    Attributes:
        field_id: its Iceberg id.
        names: what it is called where a schema has no ids; the first is for messages.
        kind: integer, text, bytes, boolean, integers (array), pairs (int to integer or bytes), record (see `fields`)
            or any (whatever the schema says, through `any_decoder`).
        slot: index in the result.
        required: malformed if the schema lacks it.
    """

    field_id: int
    names: tuple[str, ...]
    kind: str
    slot: int
    required: bool = False
    fields: tuple["Wanted", ...] = ()


def compile_record(schema: Any, wanted: Sequence[Wanted], slots: int, custom: Mapping[int, Decoder]) -> Decoder:
    """A decoder of records of this schema into a list of `slots` values; None where a field is absent.

    Args:
        schema: the writer's schema as parsed JSON.
        wanted: fields to decode, at any depth, each into a slot of one flat list.
        slots: length of the list.
        custom: decoders of fields of kind `custom`, by slot.

    Raises:
        AvroError: no record, a required field is absent, or a field has an unexpected type.
    """
    steps = _steps(schema, wanted, NamedTypes(schema), custom)

    def decode(buffer: bytes, position: int) -> tuple[list[Any], int]:
        values: list[Any] = [None] * slots
        for slot, step in steps:
            if slot < 0:
                position = step(buffer, position)
            else:
                values[slot], position = step(buffer, position)
        return values, position

    return decode


def _steps(
    schema: Any, wanted: Sequence[Wanted], named: NamedTypes, custom: Mapping[int, Decoder]
) -> list[tuple[int, Any]]:
    schema = resolve(schema, named)
    steps: list[tuple[int, Any]] = []
    found: set[int] = set()
    for field in record_fields(schema):
        want = wanted_for(field, wanted)
        if want is None:
            steps.append((-1, _skipper(field["type"], named, 0)))
            continue
        found.add(want.field_id)
        if want.slot in custom:
            steps.append((want.slot, _nullable(field["type"], custom[want.slot], named)))
        elif want.kind == "record":
            steps.extend(_steps(field["type"], want.fields, named, custom))
        else:
            steps.append((want.slot, _typed_decoder(field["type"], want, named)))
    for want in wanted:
        if want.required and want.field_id not in found:
            raise AvroError(f"its schema lacks the field {want.names[0]} ({want.field_id})")
    return steps


def wanted_for(field: Mapping[str, Any], wanted: Sequence[Wanted]) -> Wanted | None:
    """The wanted field that a field of a schema is, by id, or by name where it has none."""
    field_id = field.get("field-id")
    if field_id is not None:
        return next((w for w in wanted if w.field_id == field_id), None)
    return next((w for w in wanted if field.get("name") in w.names), None)


def _typed_decoder(schema: Any, want: Wanted, named: NamedTypes) -> Decoder:
    inner = non_null(resolve(schema, named), named)
    kind = type_name(inner)
    decode: Decoder | None = None
    match want.kind:
        case "integer" if kind in INTEGER_TYPES:
            decode = read_long
        case "text" if kind == "string":
            decode = read_text
        case "bytes" if kind == "bytes":
            decode = read_slice
        case "boolean" if kind == "boolean":
            decode = read_boolean
        case "integers" if kind == "array" and type_name(resolve(part(inner, "items"), named)) in INTEGER_TYPES:
            decode = array_decoder(read_long)
        case "records" if kind == "array":
            row = compile_record(part(inner, "items"), want.fields, len(want.fields), {})
            decode = array_decoder(row)
        case "pairs" if kind == "array":
            decode = pairs_decoder(part(inner, "items"), named)[0]
        case _:
            decode = None
    if decode is None:
        raise AvroError(f"field {want.names[0]} ({want.field_id}): expected {want.kind}, its schema says {kind}")
    return _nullable(schema, decode, named)


def _nullable(schema: Any, decode: Decoder, named: NamedTypes) -> Decoder:
    schema = resolve(schema, named)
    if not isinstance(schema, list):
        return decode
    if len(schema) == 1:
        return union_decoder([decode])
    null_first = type_name(resolve(schema[0], named)) == "null"
    null_branch, value_branch = (0, 2) if null_first else (2, 0)  # zig-zag of the branch numbers 0 and 1
    if decode is read_long:
        return nullable_long(null_branch, value_branch)

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        branch = buffer[position]
        if branch == null_branch:
            return None, position + 1
        if branch != value_branch:
            raise AvroError(f"union branch {branch} of 2")
        return decode(buffer, position + 1)

    return read


def _skipper(schema: Any, named: NamedTypes, depth: int) -> Skipper:
    if depth > MAX_SCHEMA_DEPTH:
        raise AvroError(f"its schema nests deeper than {MAX_SCHEMA_DEPTH} levels")
    schema = resolve(schema, named)
    kind = "" if isinstance(schema, list) else type_name(schema)
    if kind in INTEGER_TYPES or kind == "enum":
        return skip_long
    if kind in {"bytes", "string"}:
        return skip_slice
    if kind == "array":
        if is_pair(part(schema, "items"), named):
            return pairs_decoder(part(schema, "items"), named)[1]
        return array_skipper(
            _skipper(part(schema, "items"), named, depth + 1) if depth < MAX_SCHEMA_DEPTH else skip_long
        )
    if isinstance(schema, list) and len(schema) == 2 and "null" in schema:
        return union_skipper([_skipper(s, named, depth + 1) for s in schema])
    decode = any_decoder(schema, named, depth)
    return lambda buffer, position: decode(buffer, position)[1]
