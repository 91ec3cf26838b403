"""Avro schemas and messages of feeds.

Contains the value types of Avro fields and decoding of many messages in one call: a kernel finds where the values of all
messages are, and these become columns. fastavro validates the schemas.
Avro container files are read in `sources/file_reader.py`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastavro import parse_schema
from numpy.typing import NDArray

from nevermore.pipelines.decode import avro_kernels as kernels
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.feed_schemas import decimal_type, logical_type
from nevermore.pipelines.decode.schema_registry import RegisteredSchema, SchemaKind
from nevermore.pipelines.decode.value_types import Encoding, ValueType
from nevermore.pipelines.errors import SourceError, WideBatchError
from nevermore.pipelines.jsonscan.members import MIN_CELLS
from nevermore.pipelines.jsonscan.spans import from_binary
from nevermore.pipelines.jsonscan.text_kernels import gather_text
from nevermore.pipelines.jsonscan.value_kernels import STRING
from nevermore.scan_core import Mask
from nevermore.scan_core.files import AvroField, parse_record, union_members

_PHYSICAL: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "null": pa.null(),
}
_UNITS: Mapping[str, Encoding] = {"millis": Encoding.MILLIS, "micros": Encoding.MICROS, "nanos": Encoding.NANOS}
_MAX_DEPTH = 64

AVRO_SCHEMA = b"avro.schema"
"""Metadata key of tables that were read from Avro: the writer's schema, whose names tell what columns mean."""


def load_schema(document: str) -> Any:
    """Parse a schema from JSON text.

    Raises:
        SourceError: it nests too deeply.
        ValueError: not JSON.
    """
    try:
        return json.loads(document)
    except RecursionError as error:
        raise SourceError(f"an Avro schema that is nested too deeply: more than {_MAX_DEPTH} levels") from error


def physical(schema: Any) -> Any:
    """The schema without logical types: how the bytes are stored, not what they mean."""
    if isinstance(schema, list):
        return [physical(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType" or value == "map"}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = physical(kept[name])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [physical(field) for field in kept["fields"]]
    return kept


def field_types(schema: Mapping[str, Any]) -> dict[str, ValueType]:
    """Value types by field of a record schema.

    Raises:
        ValueError: the schema is recursive, or not a valid Avro schema.
    """
    named: dict[str, Any] = {}
    _collect(schema, named, 0)
    try:
        return {field["name"]: _value_type(field["type"], named, 0) for field in schema.get("fields", [])}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an Avro schema: {error}") from error


def types_of_file(rows: pa.Table) -> dict[str, ValueType]:
    """Value types by column from the schema of an Avro file; empty for other files.

    Raises:
        SourceError: the schema is malformed.
    """
    document = (rows.schema.metadata or {}).get(AVRO_SCHEMA)
    if document is None:
        return {}
    try:
        return field_types(json.loads(document))
    except ValueError as error:
        raise SourceError(f"the schema of the Avro file cannot be used: {error}") from error


def _collect(schema: Any, named: dict[str, Any], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the schema nests deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named, depth + 1)
    elif isinstance(schema, Mapping):
        if "name" in schema and schema.get("type") in ("record", "enum", "fixed"):
            name = str(schema["name"])
            for known in (name, name.rpartition(".")[2], f"{schema.get('namespace')}.{name}"):
                named.setdefault(known, schema)
        for part in (schema.get("type"), schema.get("items"), schema.get("values"), *(schema.get("fields") or ())):
            _collect(part, named, depth + 1)


def _value_type(schema: Any, named: Mapping[str, Any], depth: int) -> ValueType:  # noqa: C901 - one branch per kind of type
    if depth > _MAX_DEPTH:
        raise ValueError(f"the schema nests deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        found = [(name, _value_type(branch, named, depth + 1)) for name, branch in union_members(schema)]
        if len(found) < 2:
            return found[0][1] if found else ValueType(pa.null())
        return ValueType(pa.struct([pa.field(name, value.arrow) for name, value in found]), members=tuple(found))
    if isinstance(schema, str):
        return ValueType(_PHYSICAL[schema]) if schema in _PHYSICAL else _value_type(named[schema], named, depth + 1)
    meant = logical_type(schema.get("connect.name"), schema.get("connect.parameters") or schema)
    meant = meant or _avro_logical(schema)
    if meant is not None:
        return meant
    kind = schema["type"]
    if not isinstance(kind, str) or (kind not in _PHYSICAL and kind not in {"record", "array", "map", "fixed"}):
        return _value_type(kind, named, depth + 1)
    match kind:
        case "record":
            members = tuple((f["name"], _value_type(f["type"], named, depth + 1)) for f in schema["fields"])
            return ValueType(pa.struct([pa.field(n, m.arrow) for n, m in members]), members=members)
        case "array":
            element = _value_type(schema["items"], named, depth + 1)
            return ValueType(pa.list_(pa.field("element", element.arrow)), members=(("element", element),))
        case "map":
            key, value = ValueType(pa.string()), _value_type(schema["values"], named, depth + 1)
            arrow = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value.arrow))
            return ValueType(arrow, members=(("key", key), ("value", value)))
        case "fixed":
            return ValueType(pa.binary(int(schema["size"])))
        case _:
            return ValueType(_PHYSICAL[kind])


def _avro_logical(schema: Mapping[str, Any]) -> ValueType | None:
    """The value type of an Avro logical type: timestamps are instants unless they say that they are local."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return None
    kind, _, unit = logical.rpartition("-")
    if logical == "decimal":
        return decimal_type(int(schema.get("scale", 0)), int(schema.get("precision", 38)))
    if logical == "date":
        return ValueType(pa.date32(), Encoding.DAYS)
    if logical == "uuid":
        return ValueType(pa.binary(16), Encoding.HEX)
    if kind == "time":
        return ValueType(pa.time64("us"), _UNITS[unit])
    if kind in {"timestamp", "local-timestamp"}:
        local = kind != "timestamp" or str(schema.get("adjust-to-utc", True)).lower() == "false"
        return ValueType(pa.timestamp("us", None if local else "UTC"), _UNITS[unit])
    return None


class AvroMessages:
    """How messages in Avro are framed: the value follows the id of its schema."""

    kind = SchemaKind.AVRO

    @staticmethod
    def prefix_lengths(messages: pa.BinaryArray, header: int) -> NDArray[np.int64]:
        """Bytes in front of each value; 0 where they are broken."""
        sizes = pc.fill_null(pc.binary_length(messages), 0).to_numpy()
        return np.where(sizes >= header, header, 0).astype(np.int64)

    @staticmethod
    def reader(schema: RegisteredSchema, _: bytes, *, is_key: bool) -> "AvroReader | None":
        """The reader of a schema; None for keys that are a plain value, which name no column.

        Raises:
            SourceError: not the schema of a record, or one that cannot be read.
        """
        document = complete_document(schema)
        return None if is_key and not is_record(document) else reader_of(document)


@lru_cache(maxsize=1024)
def reader_of(document: str) -> "AvroReader":
    """Create the reader of an Avro schema in JSON.

    Raises:
        SourceError: not the schema of a record, or one that cannot be read.
    """
    try:
        schema = load_schema(document)
        fields, plain, _ = parse_record(physical(schema), unions_as_structs=True)
        types = field_types(schema)
        parse_schema(plain)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SourceError(f"an Avro schema that cannot be read: {error}; it begins {document[:120]!r}") from error
    return AvroReader(fields, types, _Compiler().program(plain, pa.struct([f.arrow() for f in fields])))


Words = NDArray[np.int64]
Present = Mask | None
"""Where there is a value; None for everywhere."""


@dataclass(frozen=True)
class _Found:
    """What a kernel has found of values of one type.

    Attributes:
        data: bytes of all values.
        words: numbers by slot and value; see `avro_kernels.read_messages`.
        stops: ends of bytes and arrays by slot and value.
        bad: receives which values are invalid.
    """

    data: NDArray[np.uint8]
    words: Words
    stops: NDArray[np.int32]
    bad: Mask

    def __len__(self) -> int:
        return len(self.bad)


Make = Callable[[_Found, Present], pa.Array]
"""Makes the column of a type, with NULL where there is no value."""

_FOUND_BYTES = 2 * 1024**2
"""Of the results of a kernel: what stays in the caches is read again faster."""
_MIN_FOUND, _MAX_FOUND = 64, 65_536
"""Values in a call of a kernel."""
_CELLS_PER_BYTE = 4
"""A column that may be NULL has two slots, and takes a byte; the image that an event does not have takes one in all."""


@dataclass(frozen=True)
class _Program:
    """How to read values of one type: the steps of the kernel, and what makes the column of its results.

    Attributes:
        steps: see `avro_kernels`.
        targets: steps of the branches of unions.
        slots: number of results for each value.
        depth: how many arrays are within each other.
        make: makes the column.
    """

    steps: NDArray[np.int32]
    targets: NDArray[np.int32]
    slots: int
    depth: int
    make: Make

    @property
    def room(self) -> int:
        """How many values to read in one call."""
        return min(max(_FOUND_BYTES // (12 * self.slots + 1), _MIN_FOUND), _MAX_FOUND)

    def require_room(self, count: int, data: NDArray[np.uint8]) -> None:
        """Refuse to read that many values of data.

        Raises:
            WideBatchError: they take far more memory as columns than as bytes, as most of their parts are not there.
        """
        if self.slots * count > max(MIN_CELLS, _CELLS_PER_BYTE * len(data)):
            raise WideBatchError(
                f"{count:,} Avro values with {self.slots:,} parts, which take far more memory as columns than their bytes"
            )

    def found(self, data: NDArray[np.uint8], count: int) -> tuple[_Found, tuple[NDArray[Any], ...]]:
        """Room for the results of that many values, and the last arguments of the kernels."""
        words, stops = np.zeros((self.slots, count), np.int64), np.zeros((self.slots, count), np.int32)
        stack = np.zeros((self.depth, kernels.TOTAL + 1), np.int64)
        return _Found(data, words, stops, np.zeros(count, np.bool_)), (self.steps, self.targets, words, stops, stack)


@dataclass(frozen=True)
class AvroReader:
    """Reads the values of one record schema.

    Attributes:
        fields: of the record, with their physical Arrow types.
        types: the value type of each field.
        program: how to read a value.
    """

    fields: tuple[AvroField, ...]
    types: Mapping[str, ValueType]
    program: _Program

    def read(self, values: pa.BinaryArray) -> tuple[pa.Table, Mask]:
        """Read values as rows of physical columns, and the mask of invalid ones, whose columns mean nothing.

        Raises:
            WideBatchError: the columns would take far more memory than the values.
        """
        documents = from_binary(values)
        nothing = documents.start < 0
        start, end = (np.where(nothing, np.int32(0), places) for places in (documents.start, documents.end))
        bad = nothing.copy()
        self.program.require_room(len(values), documents.data)
        parts = []
        for first in range(0, len(values), self.program.room):
            rows = slice(first, first + self.program.room)
            found, room = self.program.found(documents.data, len(start[rows]))
            kernels.read_messages(documents.data, start[rows], end[rows], *room, found.bad)
            found.bad[nothing[rows]] = True
            if found.bad.any():
                found.words[:, found.bad] = found.stops[:, found.bad] = 0
                parts.append(self._rows(found, ~found.bad))
            else:
                parts.append(self._rows(found, None))
            bad[rows] = found.bad
        return pa.Table.from_batches(parts, self._schema), bad

    def read_blocks(self, blocks: Sequence[tuple[bytes, int]]) -> pa.Table | None:
        """Read blocks with their number of values, which follow each other; None if any does not hold exactly these."""
        if any(count > len(data) for data, count in blocks):
            return None  # records without bytes carry no information, and nothing limits their number
        content = np.frombuffer(b"".join(data for data, _ in blocks), np.uint8)
        end = np.cumsum([len(data) for data, _ in blocks], dtype=np.int32)
        counts, place = np.array([count for _, count in blocks], np.int32), np.zeros(3, np.int64)
        left, parts = int(counts.sum(dtype=np.int64)), []
        self.program.require_room(left, content)
        while place[0] < len(blocks):
            found, room = self.program.found(content, min(self.program.room, left))
            if not kernels.read_blocks(content, end, counts, place, *room):
                return None
            parts.append(self._rows(found, None))
            left -= len(found)
            if found.bad.any():
                return None
        return pa.Table.from_batches(parts, self._schema)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([pa.field(f.name, f.type.meant) for f in self.fields])

    def _rows(self, found: _Found, present: Present) -> pa.RecordBatch:
        columns = self.program.make(found, present)
        arrays = [columns.field(at) for at in range(len(self.fields))]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Compiler:
    """Makes a program of a type. Mutable: collects its steps."""

    def __init__(self) -> None:
        self._steps: list[list[int]] = []
        self._targets: list[int] = []
        self._slots = 0
        self._open = 0
        self._depth = 0

    def program(self, plain: Any, arrow: pa.DataType) -> _Program:
        """The program of a type, as `AvroType` has it: rewritten schema and Arrow type."""
        make = self._value(plain, arrow)
        steps = np.array(self._steps, np.int32).reshape(-1, kernels.FIRST + 1)
        return _Program(steps, np.array(self._targets, np.int32), self._slots, self._depth, make)

    def _step(self, kind: int, size: int = 0, slots: int = 1) -> int:
        """Add a step and return its slot. The items of an array have none: these are read later, by their own program."""
        slot = 0 if self._open else self._slots
        self._slots += 0 if self._open else slots
        self._steps.append([kind, slot, size, 0])
        return slot

    def _value(self, plain: Any, arrow: pa.DataType) -> Make:
        if isinstance(plain, list):
            return self._union(plain, arrow)
        kind = plain if isinstance(plain, str) else plain["type"]
        match kind:
            case "null":
                return lambda found, _: pa.nulls(len(found))
            case "record":
                return self._record(plain, arrow)
            case "array":
                return self._array(plain["items"], arrow)
            case "bytes":
                slot = self._step(kernels.SIZED)
                is_text = pa.types.is_string(arrow)
                return lambda found, present: (_text if is_text else _bytes)(found, slot, present)
            case "fixed":
                slot = self._step(kernels.FIXED, plain["size"])
                return lambda found, present: _fixed(found, slot, present, arrow)
            case "enum":
                slot = self._step(kernels.ENUM, len(plain["symbols"]))
                names = pa.array(plain["symbols"], pa.string())
                return lambda found, present: names.take(_integers(found.words[slot], np.int32, present))
            case "boolean":
                slot = self._step(kernels.BOOLEAN)
                return lambda found, present: _booleans(found.words[slot] != 0, present)
        step, dtype = _NUMBERS[kind]
        slot = self._step(step)
        if step in {kernels.FIXED32, kernels.FIXED64}:
            low = np.uint32 if step == kernels.FIXED32 else np.uint64
            return lambda found, present: _numbers(found.words[slot].astype(low).view(dtype), present)
        return lambda found, present: _integers(found.words[slot], dtype, present)

    def _record(self, plain: Mapping[str, Any], arrow: pa.StructType) -> Make:
        makes = [self._value(f["type"], arrow.field(at).type) for at, f in enumerate(plain["fields"])]

        def make(found: _Found, present: Present) -> pa.Array:
            return _struct([member(found, present) for member in makes], arrow, len(found), present)

        return make

    def _union(self, branches: Sequence[Any], arrow: pa.DataType) -> Make:
        slot, here, first = self._step(kernels.UNION, len(branches)), len(self._steps) - 1, len(self._targets)
        self._steps[here][kernels.FIRST] = first
        self._targets += [0] * len(branches)
        is_several = len(branches) - branches.count("null") > 1
        makes: dict[int, Make] = {}
        kinds: dict[int, pa.DataType] = {}
        jumps = []
        for number, branch in enumerate(branches):
            self._targets[first + number] = len(self._steps)
            if branch != "null":
                kinds[number] = arrow.field(len(makes)).type if is_several else arrow
                makes[number] = self._value(branch, kinds[number])
            jumps.append(len(self._steps))
            self._step(kernels.JUMP, slots=0)
        for jump in jumps:
            self._steps[jump][kernels.SIZE] = len(self._steps)

        def make(found: _Found, present: Present) -> pa.Array:
            branch = found.words[slot]

            def where(chosen: Mask) -> Mask:
                return chosen if present is None else chosen & present

            chosen = {number: where(branch == number) for number in makes}
            members = [
                of_branch(found, chosen[number]) if chosen[number].any() else pa.nulls(len(found), kinds[number])
                for number, of_branch in makes.items()
            ]
            if not is_several:
                return members[0] if members else pa.nulls(len(found))
            return _struct(members, arrow, len(found), where(np.isin(branch, [*makes])))

        return make

    def _array(self, items: Any, arrow: pa.DataType) -> Make:
        """An array, or a map, which has pairs as items."""
        slot, here = self._step(kernels.ARRAY, slots=2), len(self._steps) - 1
        is_map = pa.types.is_map(arrow)
        kind = pa.struct([arrow.key_field, arrow.item_field]) if is_map else arrow.value_type
        self._open += 1
        self._depth = max(self._depth, self._open)
        self._value(items, kind)
        self._step(kernels.NEXT)
        self._open -= 1
        self._steps[here][kernels.SIZE] = len(self._steps)
        if self._open:
            return _unread
        program = _Compiler().program(items, kind)

        def make(found: _Found, present: Present) -> pa.Array:
            counts = found.words[slot + 1]
            rows, places = np.flatnonzero(counts), np.r_[0, np.cumsum(counts)]
            program.require_room(int(places[-1]), found.data)
            inner, room = program.found(found.data, int(places[-1]))
            start, end = found.words[slot][rows].astype(np.int32), found.stops[slot][rows]
            if kernels.read_items(found.data, start, end, *room) != len(inner):
                raise AssertionError(f"not the {len(inner)} items that arrays have been found to have")
            values, offsets = program.make(inner, None), pa.array(places, pa.int32())
            if inner.bad.any():
                found.bad[np.repeat(np.arange(len(found)), counts)[inner.bad]] = True
            nothing = None if present is None else pa.array(~present)
            if not is_map:
                return pa.ListArray.from_arrays(offsets, values, type=arrow, mask=nothing)
            # A key that is no text makes its message invalid.
            keys = values.field(0).fill_null("") if values.field(0).null_count else values.field(0)
            return pa.MapArray.from_arrays(offsets, keys, values.field(1), type=arrow, mask=nothing)

        return make


_NUMBERS: Mapping[str, tuple[int, Any]] = {
    "int": (kernels.INT, np.int32),
    "long": (kernels.LONG, np.int64),
    "float": (kernels.FIXED32, np.float32),
    "double": (kernels.FIXED64, np.float64),
}
"""By type: the step that reads it, and the type of its column."""


def _unread(_: _Found, __: Present) -> pa.Array:
    raise AssertionError("the items of an array are read by their own program")


def _validity(present: Present) -> pa.Buffer | None:
    return None if present is None or present.all() else pa.array(present).buffers()[1]


def _numbers(values: NDArray[Any], present: Present) -> pa.Array:
    """An array over the memory of `values`."""
    arrow = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(arrow, len(values), [_validity(present), pa.py_buffer(values)])


def _integers(words: Words, dtype: Any, present: Present) -> pa.Array:
    return _numbers(words.astype(dtype), present)  # a copy, as the words of all slots are freed at once


def _booleans(values: Mask, present: Present) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [_validity(present), pa.array(values).buffers()[1]])


def _struct(members: Sequence[pa.Array], arrow: pa.StructType, count: int, present: Present) -> pa.Array:
    return pa.Array.from_buffers(arrow, count, [_validity(present)], children=list(members))


def _gathered(found: _Found, slot: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """(offsets of the bytes of each value, these): there are none where there is no value."""
    start, end = found.words[slot].astype(np.int32), found.stops[slot]
    count = len(start)
    offsets, out = np.zeros(count + 1, np.int32), np.empty(int((end - start).sum(dtype=np.int64)), np.uint8)
    kinds, wanted = np.full(count, STRING, np.int8), np.ones(count, np.bool_)
    gather_text(found.data, start, end, kinds, wanted, offsets, out, np.zeros(count, np.bool_))
    return offsets, out


def _bytes(found: _Found, slot: int, present: Present) -> pa.BinaryArray:
    offsets, out = _gathered(found, slot)
    buffers = [_validity(present), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(found), buffers)


def _text(found: _Found, slot: int, present: Present) -> pa.StringArray:
    texts, bad = cast_each(_bytes(found, slot, present), pa.string())
    found.bad[bad] = True
    return texts


def _fixed(found: _Found, slot: int, present: Present, arrow: pa.FixedSizeBinaryType) -> pa.Array:
    rows = np.arange(len(found)) if present is None else np.flatnonzero(present)
    out = np.zeros((len(found), arrow.byte_width), np.uint8)
    out[rows] = _gathered(found, slot)[1].reshape(len(rows), arrow.byte_width)
    return pa.Array.from_buffers(arrow, len(found), [_validity(present), pa.py_buffer(out)])


@lru_cache(maxsize=1024)
def complete_document(schema: RegisteredSchema) -> str:
    """The text of a schema with each type that it references in place of the first mention of its name.

    Raises:
        SourceError: one of the schemas nests too deeply, or is not JSON.
    """
    if not schema.references:
        return schema.text
    try:
        referenced = {name: load_schema(text) for name, text in schema.references}
        return json.dumps(_completed(load_schema(schema.text), referenced))
    except ValueError as error:
        raise SourceError(f"an Avro schema that cannot be read: {error}; it begins {schema.text[:120]!r}") from error


def _completed(schema: Any, referenced: dict[str, Any]) -> Any:
    if isinstance(schema, str):
        own = referenced.pop(schema, None)
        return schema if own is None else _completed(own, referenced)
    if isinstance(schema, list):
        return [_completed(branch, referenced) for branch in schema]
    if isinstance(schema, dict):
        parts = {n: _completed(schema[n], referenced) for n in ("type", "items", "values") if n in schema}
        if "fields" in schema:
            parts["fields"] = [_completed(field, referenced) for field in schema["fields"]]
        return {**schema, **parts}
    return schema


def is_record(document: str) -> bool:
    """Whether a schema is of a record, or is broken so that reading it says why; keys may be of a plain type."""
    try:
        schema = load_schema(document)
    except ValueError:
        return True
    kind = schema.get("type") if isinstance(schema, Mapping) else schema
    return isinstance(schema, Mapping) and (kind == "record" or kind not in {*_PHYSICAL, "fixed", "array", "map"})
