"""Decoders for the records of an Avro block, compiled once per schema: wanted fields only, the rest is skipped.

Fields are found by Iceberg field id, or by name where a schema has no ids. Statistics (arrays of key and value) are
skipped with one regular expression and decoded when somebody asks: most are never looked at.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scan_core.avro_container import AvroError, read_long, read_slice

Decoder = Callable[[bytes, int], tuple[Any, int]]
Skipper = Callable[[bytes, int], int]

MAX_SCHEMA_DEPTH = 32
"""Manifests nest five deep; hostile schemas must not exhaust the stack."""
_COMMON_LENGTHS = (8, 4, 16, 1, 0, *(n for n in range(64) if n not in {8, 4, 16, 1, 0}))
_VARINT = rb"[\x80-\xff]*[\x00-\x7f]"
_INTEGER_TYPES = frozenset({"int", "long"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """A field to decode into `slot` of the result.

    Attributes:
        field_id: its Iceberg id.
        names: what it is called where a schema has no ids; the first is for messages.
        kind: integer, text, bytes, boolean, integers (array), pairs (int to integer or bytes), record (see `fields`)
            or any (whatever the schema says, through `compile_any`).
        slot: index in the result.
        required: malformed if the schema lacks it.
    """

    field_id: int
    names: tuple[str, ...]
    kind: str
    slot: int
    required: bool = False
    fields: tuple["Wanted", ...] = ()


class LazyPairs(Mapping[int, Any]):
    """A map of a manifest entry, decoded at first use; pickles as a plain dict."""

    __slots__ = ("_buffer", "_content", "_decode", "_start")

    def __init__(self, buffer: bytes, start: int, decode: Decoder) -> None:
        self._buffer, self._start, self._decode = buffer, start, decode
        self._content: dict[int, Any] | None = None

    def __getitem__(self, key: int) -> Any:
        return self._pairs()[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._pairs())

    def __len__(self) -> int:
        return len(self._pairs())

    def get(self, key: int, default: Any = None) -> Any:
        """The value of `key`, or the default."""
        return self._pairs().get(key, default)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._pairs(),)

    def __repr__(self) -> str:
        return repr(self._pairs())

    def _pairs(self) -> dict[int, Any]:
        if self._content is None:
            self._content = self._decode(self._buffer, self._start)[0]
        return self._content


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
    names: dict[str, Any] = {}
    _collect_names(schema, names, 0)
    steps = _steps(schema, wanted, names, custom)

    def decode(buffer: bytes, position: int) -> tuple[list[Any], int]:
        values: list[Any] = [None] * slots
        for slot, step in steps:
            if slot < 0:
                position = step(buffer, position)
            else:
                values[slot], position = step(buffer, position)
        return values, position

    return decode


def field_schema(schema: Any, field_ids: Sequence[int], names: Sequence[str]) -> Any:
    """The schema of a field of a record, found by the ids and names given from the outside in; None if absent."""
    named: dict[str, Any] = {}
    _collect_names(schema, named, 0)
    for field_id, name in zip(field_ids, names, strict=True):
        schema = _non_null(_resolve(schema, named), named)
        found = [f for f in _record_fields(schema) if f.get("field-id", field_id) == field_id]
        exact = [f for f in found if "field-id" in f] or [f for f in found if f.get("name") == name]
        if not exact:
            return None
        schema = exact[0]["type"]
    return _non_null(_resolve(schema, named), named)


def compile_any(schema: Any, named: Mapping[str, Any] | None = None) -> Decoder:
    """A decoder of any Avro type to plain Python values; records to tuples."""
    if named is None:
        collected: dict[str, Any] = {}
        _collect_names(schema, collected, 0)
        named = collected
    return _decoder(schema, named, 0)


def _steps(
    schema: Any, wanted: Sequence[Wanted], named: Mapping[str, Any], custom: Mapping[int, Decoder]
) -> list[tuple[int, Any]]:
    schema = _resolve(schema, named)
    steps: list[tuple[int, Any]] = []
    found: set[int] = set()
    for field in _record_fields(schema):
        want = _wanted_for(field, wanted)
        if want is None:
            steps.append((-1, _skipper(field["type"], named, 0)))
            continue
        found.add(want.field_id)
        if want.slot in custom:
            steps.append((want.slot, custom[want.slot]))
        elif want.kind == "record":
            steps.extend(_steps(field["type"], want.fields, named, custom))
        else:
            steps.append((want.slot, _typed_decoder(field["type"], want, named)))
    for want in wanted:
        if want.required and want.field_id not in found:
            raise AvroError(f"its schema lacks the field {want.names[0]} ({want.field_id})")
    return steps


def _wanted_for(field: Mapping[str, Any], wanted: Sequence[Wanted]) -> Wanted | None:
    field_id = field.get("field-id")
    if field_id is not None:
        return next((w for w in wanted if w.field_id == field_id), None)
    return next((w for w in wanted if field.get("name") in w.names), None)


def _typed_decoder(schema: Any, want: Wanted, named: Mapping[str, Any]) -> Decoder:
    inner = _non_null(_resolve(schema, named), named)
    kind = _type_name(inner)
    decode: Decoder | None = None
    match want.kind:
        case "integer" if kind in _INTEGER_TYPES:
            decode = read_long
        case "text" if kind == "string":
            decode = _read_text
        case "bytes" if kind == "bytes":
            decode = read_slice
        case "boolean" if kind == "boolean":
            decode = _read_boolean
        case "integers" if kind == "array" and _type_name(_resolve(inner["items"], named)) in _INTEGER_TYPES:
            decode = _array_decoder(read_long)
        case "records" if kind == "array":
            row = compile_record(inner["items"], want.fields, len(want.fields), {})
            decode = _array_decoder(row)
        case "pairs" if kind == "array":
            decode = _pairs_decoder(inner["items"], named)
        case _:
            decode = None
    if decode is None:
        raise AvroError(f"field {want.names[0]} ({want.field_id}): expected {want.kind}, its schema says {kind}")
    return _nullable(schema, decode, named)


def _nullable(schema: Any, decode: Decoder, named: Mapping[str, Any]) -> Decoder:
    schema = _resolve(schema, named)
    if not isinstance(schema, list):
        return decode
    if len(schema) == 1:
        return _union_decoder([decode])
    null_first = _type_name(_resolve(schema[0], named)) == "null"
    null_branch, value_branch = (0, 2) if null_first else (2, 0)  # zig-zag of the branch numbers 0 and 1

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        branch = buffer[position]
        if branch == null_branch:
            return None, position + 1
        if branch != value_branch:
            raise AvroError(f"union branch {branch} of 2")
        return decode(buffer, position + 1)

    return read


def _pairs_decoder(items: Any, named: Mapping[str, Any]) -> Decoder:
    fields = _record_fields(_resolve(items, named))
    kinds = [_type_name(_resolve(f["type"], named)) for f in fields]
    names = [f.get("name") for f in fields]
    if names != ["key", "value"] or kinds[0] not in _INTEGER_TYPES:
        raise AvroError(f"a map has entries {names} of {kinds}; expected key and value")
    if kinds[1] in _INTEGER_TYPES:
        pair = _pair_decoder(read_long)
        return _lazy_decoder(_integer_pairs, _array_skipper(_skip_pair(_skip_long)), _array_decoder(pair))
    if kinds[1] == "bytes":
        pair = _pair_decoder(read_slice)
        return _lazy_decoder(_bytes_pairs, _array_skipper(_skip_pair(_skip_slice)), _array_decoder(pair))
    raise AvroError(f"a map has values of type {kinds[1]}")


def _lazy_decoder(pattern_of: Callable[[int], re.Pattern[bytes]], skip: Skipper, pairs: Decoder) -> Decoder:
    def decode_pairs(buffer: bytes, position: int) -> tuple[dict[int, Any], int]:
        entries, position = pairs(buffer, position)
        return dict(entries), position

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        if buffer[position] == 0:
            return _EMPTY, position + 1
        count, after = read_long(buffer, position)
        if 0 < count <= len(buffer) - after:
            match = pattern_of(count).match(buffer, after)
            if match is not None and buffer[match.end()] == 0:
                return LazyPairs(buffer, position, decode_pairs), match.end() + 1
        return LazyPairs(buffer, position, decode_pairs), skip(buffer, position)

    return read


_EMPTY: Mapping[int, Any] = {}


@lru_cache(maxsize=512)
def _integer_pairs(count: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?:%b){%d}+" % (_VARINT, 2 * count))


@lru_cache(maxsize=512)
def _bytes_pairs(count: int) -> re.Pattern[bytes]:
    values = b"|".join(re.escape(bytes([2 * n])) + b".{%d}" % n for n in _COMMON_LENGTHS)
    return re.compile(rb"(?>%b(?:%b)){%d}+" % (_VARINT, values, count), re.DOTALL)


def _decoder(schema: Any, named: Mapping[str, Any], depth: int) -> Decoder:
    if depth > MAX_SCHEMA_DEPTH:
        raise AvroError(f"its schema nests deeper than {MAX_SCHEMA_DEPTH} levels")
    schema = _resolve(schema, named)
    if isinstance(schema, list):
        return _union_decoder([_decoder(s, named, depth + 1) for s in schema])
    kind = _type_name(schema)
    if kind in _PRIMITIVE_DECODERS:
        return _PRIMITIVE_DECODERS[kind]
    match kind:
        case "enum":
            return read_long
        case "fixed":
            return _fixed_decoder(_fixed_size(schema))
        case "array":
            return _array_decoder(_decoder(schema["items"], named, depth + 1))
        case "map":
            return _array_decoder(_pair_decoder(_decoder(schema["values"], named, depth + 1), read_slice))
        case "record":
            return _tuple_decoder([_decoder(f["type"], named, depth + 1) for f in _record_fields(schema)])
        case _:
            raise AvroError(f"its schema has the unknown type {kind!r:.60}")


def _skipper(schema: Any, named: Mapping[str, Any], depth: int) -> Skipper:
    schema = _resolve(schema, named)
    kind = "" if isinstance(schema, list) else _type_name(schema)
    if kind in _INTEGER_TYPES or kind == "enum":
        return _skip_long
    if kind in {"bytes", "string"}:
        return _skip_slice
    if kind == "array":
        return _array_skipper(_skipper(schema["items"], named, depth + 1) if depth < MAX_SCHEMA_DEPTH else _skip_long)
    if isinstance(schema, list) and len(schema) == 2 and "null" in schema:
        return _union_skipper([_skipper(s, named, depth + 1) for s in schema])
    decode = _decoder(schema, named, depth)
    return lambda buffer, position: decode(buffer, position)[1]


def _skip_long(buffer: bytes, position: int) -> int:
    while buffer[position] > 127:
        position += 1
    return position + 1


def _skip_slice(buffer: bytes, position: int) -> int:
    length, position = read_long(buffer, position)
    if not 0 <= length <= len(buffer) - position:
        raise AvroError(f"a value of {length} bytes where {len(buffer) - position} are left")
    return position + length


def _skip_pair(skip_value: Skipper) -> Skipper:
    return lambda buffer, position: skip_value(buffer, _skip_long(buffer, position))


def _union_skipper(branches: list[Skipper]) -> Skipper:
    def skip(buffer: bytes, position: int) -> int:
        branch = buffer[position]
        if branch == 0:
            return branches[0](buffer, position + 1)
        if branch == 2:
            return branches[1](buffer, position + 1)
        raise AvroError(f"union branch {branch >> 1} of 2")

    return skip


def _array_skipper(skip_item: Skipper) -> Skipper:
    def skip(buffer: bytes, position: int) -> int:
        while True:
            count, position = read_long(buffer, position)
            if count == 0:
                return position
            if count < 0:
                position = _skip_slice(buffer, position)
                continue
            _check_count(buffer, position, count)
            for _ in range(count):
                position = skip_item(buffer, position)

    return skip


def _array_decoder(item: Decoder) -> Decoder:
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
            for _ in range(count):
                value, position = item(buffer, position)
                values.append(value)

    return read


def _check_count(buffer: bytes, position: int, count: int) -> None:
    if count > len(buffer) - position:
        raise AvroError(f"an array of {count} items where {len(buffer) - position} bytes are left")


def _pair_decoder(value: Decoder, key: Decoder = read_long) -> Decoder:
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


def _union_decoder(branches: list[Decoder]) -> Decoder:
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


def _read_boolean(buffer: bytes, position: int) -> tuple[bool, int]:
    return buffer[position] != 0, position + 1


def _read_text(buffer: bytes, position: int) -> tuple[str, int]:
    data, position = read_slice(buffer, position)
    return data.decode(), position


def _read_packed(layout: str) -> Decoder:
    unpack = struct.Struct(layout).unpack_from
    size = struct.calcsize(layout)
    return lambda buffer, position: (unpack(buffer, position)[0], position + size)


_PRIMITIVE_DECODERS: dict[str, Decoder] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": read_long,
    "long": read_long,
    "float": _read_packed("<f"),
    "double": _read_packed("<d"),
    "bytes": read_slice,
    "string": _read_text,
}


def _type_name(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, Mapping):
        kind = schema.get("type")
        return kind if isinstance(kind, str) else _type_name(kind)
    return repr(schema)


def _non_null(schema: Any, named: Mapping[str, Any]) -> Any:
    """The value branch of a union with null; anything else as it is."""
    if not isinstance(schema, list):
        return schema
    branches = [s for s in (_resolve(b, named) for b in schema) if _type_name(s) != "null"]
    return branches[0] if len(branches) == 1 and len(schema) <= 2 else schema


def _resolve(schema: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(schema, str) and schema not in _PRIMITIVE_DECODERS:
        return named.get(schema, schema)
    if isinstance(schema, Mapping) and isinstance(schema.get("type"), Mapping | list):
        return _resolve(schema["type"], named)
    return schema


def _record_fields(schema: Any) -> list[Mapping[str, Any]]:
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise AvroError(f"its schema has {_type_name(schema)!r:.60} where a record belongs")
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(f, Mapping) and "type" in f for f in fields):
        raise AvroError("its schema has a record without fields")
    return fields


def _collect_names(schema: Any, named: dict[str, Any], depth: int) -> None:
    if depth > MAX_SCHEMA_DEPTH:
        raise AvroError(f"its schema nests deeper than {MAX_SCHEMA_DEPTH} levels")
    if isinstance(schema, list):
        parts: list[Any] = schema
    elif isinstance(schema, Mapping):
        if schema.get("type") in ("record", "fixed", "enum"):
            named[str(schema.get("name"))] = schema
            named[f"{schema.get('namespace')}.{schema.get('name')}"] = schema
        fields = schema.get("fields")
        inner = [f.get("type") for f in fields if isinstance(f, Mapping)] if isinstance(fields, list) else []
        parts = [schema.get("type"), schema.get("items"), schema.get("values"), *inner]
    else:
        return
    for part in parts:
        _collect_names(part, named, depth + 1)
