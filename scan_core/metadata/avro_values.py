"""The one reader of values in Avro: manifests, manifest lists, data files, event files and messages.

A schema becomes a program, which a kernel runs over many values at once: it finds where their parts are (`native/avro_kernels.py`),
and these become Arrow columns. Containers are read in `avro_container.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.scan_core.metadata.avro_container import AvroError, parse_avro_schema, read_blocks, read_header
from nevermore.scan_core.model.schema import FIELD_ID_KEY, MAX_TYPE_DEPTH
from nevermore.scan_core.native import avro_kernels as steps
from nevermore.scan_core.native.compiled import kernel_or_plain
from nevermore.scan_core.rows.buffers import (
    Mask,
    boolean_array,
    byte_slices,
    byte_spans,
    index_array,
    true_flags,
    validity,
    validity_bitmap,
)

MAX_SCHEMA_NODES = 100_000
"""Named types may refer to each other: a small text must not expand without end."""
MIN_CELLS = 2**22
"""So many results may be read of any bytes."""
_CELLS_PER_BYTE = 4
"""A column that may be NULL has two slots, and takes a byte; the image that an event does not have takes one in all."""
_FOUND_BYTES = 2 * 1024**2
"""Of the results of a kernel: what stays in the caches is read again faster."""
_MIN_FOUND, _MAX_FOUND = 64, 65_536
"""Values in a call of a kernel."""


class WideValuesError(AvroError):
    """Values that take far more memory as columns than as bytes, as most of their parts are not there."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type of a schema.

    Attributes:
        kind: its name in Avro, `map` also for one stored as an array of pairs, `union`, or `raw` for values that stay bytes.
        meant: the Arrow type of its column.
        min_bytes: the fewest bytes a value can take.
        nullable: whether it is null or a union with null.
        parts: fields of a record, branches of a union, key and value of a map, element of an array, or what raw bytes hold.
        schema: the definition of a type that is not a mere name, with what the definitions around it add.
        finish: from the column of the type as stored to that of the type meant; None if they are the same.
    """

    kind: str
    meant: pa.DataType
    min_bytes: int
    nullable: bool = False
    parts: tuple["AvroField", ...] = ()
    schema: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[pa.Array], pa.Array] | None = None


@dataclass(frozen=True, slots=True)
class AvroField:
    """A part of a type under its name in the file."""

    name: str
    field_id: int | None
    type: AvroType

    def arrow(self) -> pa.Field:
        """The field of a column, with its id as metadata."""
        metadata = None if self.field_id is None else {FIELD_ID_KEY: str(self.field_id)}
        return pa.field(self.name, self.type.meant, self.type.nullable, metadata)


def value_type(kind: AvroType) -> AvroType:
    """The value branch of a union with null; any other type as it is."""
    values = [part.type for part in kind.parts if part.type.kind != "null"]
    return values[0] if kind.kind == "union" and len(values) == 1 else kind


class Wanted(NamedTuple):
    """A field of a record to be found by its id, or by one of its names where the schema has no ids."""

    field_id: int
    names: tuple[str, ...]
    type: pa.DataType | None = None
    required: bool = False

    def find(self, fields: Sequence[AvroField]) -> int | None:
        """Its place among the fields; None if it is not there.

        Raises:
            AvroError: it is required and is not there.
        """
        for place, part in enumerate(fields):
            if part.field_id == self.field_id or (part.field_id is None and part.name in self.names):
                return place
        if self.required:
            raise AvroError(f"its schema lacks the field {self.names[0]} ({self.field_id})")
        return None

    def of(self, fields: Sequence[AvroField], columns: Sequence[pa.Array], count: int) -> pa.Array:
        """Its column, of NULLs if it is not there; integers of any width are as wide as wanted.

        Raises:
            AvroError: its type is another, or it is required and is not there.
        """
        place = self.find(fields)
        if place is None:
            return pa.nulls(count, self.type)
        found = columns[place]
        if self.type is None or found.type == self.type:
            return found
        if _widened(found.type) == self.type:
            return found.cast(self.type)
        raise AvroError(f"field {self.names[0]} ({self.field_id}): expected {self.type}, its schema says {found.type}")


def _widened(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_widened(kind.value_type))
    return pa.int64() if pa.types.is_integer(kind) else kind


_PLAIN: Mapping[str, tuple[pa.DataType, int]] = {
    "null": (pa.null(), 0),
    "boolean": (pa.bool_(), 1),
    "int": (pa.int32(), 1),
    "long": (pa.int64(), 1),
    "float": (pa.float32(), 4),
    "double": (pa.float64(), 8),
    "bytes": (pa.binary(), 1),
    "string": (pa.string(), 1),
}
_TIMES: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "time-nanos"): pa.time64("ns"),
}
"""By type as stored and logical type."""
_TIMESTAMP_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_UNREADABLE = pa.dense_union([pa.field("value", pa.null())])
"""The type of what has no column type; it converts to nothing, so that only its own column is refused."""


def _timestamp_type(logical: str, schema: Mapping[str, Any]) -> pa.DataType:
    """The Arrow type of a logical type; int64 for an unknown unit."""
    unit = _TIMESTAMP_UNITS.get(logical.rpartition("-")[2])
    if unit is None:
        return pa.int64()
    adjusted = schema.get("adjust-to-utc") in {True, "true"} and not logical.startswith("local-")
    return pa.timestamp(unit, "UTC" if adjusted else None)


def _uuid_from_text(array: pa.Array) -> pa.Array:
    """The 16 bytes of UUIDs written as text."""
    digits = pc.replace_substring(array, "-", "")
    if not pc.all(pc.equal(pc.binary_length(digits), 32), min_count=0).as_py():
        raise AvroError("a UUID that has not 32 hexadecimal digits")
    raw = bytes.fromhex("".join(digits.fill_null("0" * 32).to_pylist()))
    return pa.Array.from_buffers(pa.binary(16), len(array), [validity_bitmap(validity(array)), pa.py_buffer(raw)])


def _decimal_from_bytes(array: pa.Array, meant: pa.DataType) -> pa.Array:
    """Big-endian two's complement of any length, sign-extended to the 16 bytes of Arrow."""
    offsets, data = byte_spans(array.cast(pa.binary()))
    starts, lengths, present = offsets[:-1], np.diff(offsets), validity(array)
    if present is not None:
        lengths = lengths * present
    longest = int(lengths.max(initial=0))
    if longest > 16:
        raise AvroError(f"a decimal of {longest} bytes")
    result = np.zeros((len(array), 16), np.uint8)
    filled = np.flatnonzero(lengths)
    result[filled[data[starts[filled]] >= 0x80]] = 0xFF
    for place in range(longest):
        rows = np.flatnonzero(lengths > place)
        result[rows, place] = data[starts[rows] + lengths[rows] - 1 - place]
    decimals = pa.Array.from_buffers(meant, len(array), [validity_bitmap(present), pa.py_buffer(result)])
    decimals.validate(full=True)
    return decimals


def parse_record(document: Any, *, physical: bool = False, raw: Iterable[int | str] = ()) -> tuple[AvroField, ...]:
    """The fields of a schema of a record.

    A union of several types has no column type, or is a struct of `union_members` in `physical` columns.

    Args:
        document: the schema as parsed JSON.
        physical: whether columns hold what is stored, not what logical types make of it.
        raw: ids of fields whose values stay bytes; of fields without ids, their names.

    Raises:
        AvroError: no record, a type that does not exist, recursion, or a schema that expands too far.
    """
    if not isinstance(document, Mapping) or document.get("type") != "record":
        raise AvroError(f"its schema must be a record, not {document!r:.80}")
    return _Parser(physical=physical, raw=frozenset(raw)).fields(document, 0)


def union_members(branches: Sequence[Any]) -> list[tuple[str, Any]]:
    """The types of a union other than null, under their names as Kafka Connect gives them: that of the type alone.

    Where two have the same name, they have their full names.
    """
    values = [branch for branch in branches if branch != "null"]
    names = [_branch_name(branch) for branch in values]
    short = [name.rpartition(".")[2] for name in names]
    return list(zip(short if len(set(short)) == len(short) else names, values, strict=True))


def _branch_name(branch: Any) -> str:
    while isinstance(branch, Mapping):
        if branch.get("type") in {"record", "enum", "fixed"}:
            name, namespace = str(branch.get("name")), branch.get("namespace")
            return f"{namespace}.{name}" if namespace and "." not in name else name
        branch = branch.get("type")
    return str(branch)


class _Parser:
    def __init__(self, *, physical: bool, raw: frozenset[int | str]) -> None:
        self._physical = physical
        self._raw = raw
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()
        self._nodes = 0

    def fields(self, record: Mapping[str, Any], depth: int) -> tuple[AvroField, ...]:
        members = record.get("fields")
        if not isinstance(members, list) or not all(isinstance(m, Mapping) and "type" in m for m in members):
            raise AvroError(f"its schema has a record without fields: {record!r:.80}")
        return tuple(self._field(str(m.get("name")), m, "field-id", m["type"], depth) for m in members)

    def _field(self, name: str, schema: Mapping[str, Any], id_name: str, kind: Any, depth: int) -> AvroField:
        field_id = schema.get(id_name)
        if field_id is not None and (not isinstance(field_id, int) or isinstance(field_id, bool)):
            raise AvroError(f"its schema has a {id_name} {field_id!r:.40}")
        parsed = self.type(kind, depth + 1)
        is_raw = (name if field_id is None else field_id) in self._raw
        return AvroField(name, field_id, _as_raw(parsed) if is_raw else parsed)

    def type(self, schema: Any, depth: int) -> AvroType:
        self._nodes += 1
        if depth > MAX_TYPE_DEPTH or self._nodes > MAX_SCHEMA_NODES:
            raise AvroError(f"its schema nests deeper than {MAX_TYPE_DEPTH} levels or grows without end")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            return self._reference(schema, depth) if schema in self._named else self._primitive(schema, {})
        if not isinstance(schema, Mapping):
            raise AvroError(f"{schema!r:.80} is not an Avro schema")
        kind = schema.get("type")
        if kind in ("record", "enum", "fixed"):
            return self._definition(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "map":
            return self._map(
                self._field("key", schema, "key-id", "string", depth),
                self._field("value", schema, "value-id", schema.get("values"), depth),
            )
        if str(kind) in _PLAIN:
            return self._primitive(kind, schema)
        return replace(found := self.type(kind, depth + 1), schema={**schema, **found.schema})

    def _reference(self, name: str, depth: int) -> AvroType:
        if name in self._open:
            raise AvroError(f"its schema has the type {name!r}, which contains itself")
        return self._definition(self._named[name], depth)

    def _definition(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        name = str(schema.get("name"))
        names = {name, name.rpartition(".")[2], f"{schema.get('namespace')}.{name}"}
        for known in names:
            self._named[known] = schema
        self._open |= names
        try:
            match schema["type"]:
                case "record":
                    fields = self.fields(schema, depth)
                    least = sum(f.type.min_bytes for f in fields)
                    return AvroType(
                        "record", pa.struct([f.arrow() for f in fields]), least, parts=fields, schema=schema
                    )
                case "enum":
                    symbols = schema.get("symbols")
                    if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
                        raise AvroError(f"its schema has an enum of {symbols!r:.80}")
                    return AvroType("enum", pa.string(), 1, schema=schema)
                case _:
                    return self._fixed(schema)
        finally:
            self._open -= names

    def _union(self, branches: list[Any], depth: int) -> AvroType:
        members = iter(union_members(branches))
        named = [("null", "null") if branch == "null" else next(members) for branch in branches]
        parts = tuple(AvroField(name, None, self.type(branch, depth + 1)) for name, branch in named)
        values = [part for part in parts if part.type.kind != "null"]
        nullable = len(values) < len(parts)
        if len(values) == 1 and len(parts) <= 2:
            return AvroType("union", values[0].type.meant, 1, nullable or values[0].type.nullable, parts)
        if not values and parts:
            return AvroType("union", pa.null(), 1, nullable, parts)
        meant = pa.struct([part.arrow() for part in values]) if self._physical and values else _UNREADABLE
        return AvroType("union", meant, 1, nullable, parts)

    def _array(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        items = schema.get("items")
        if schema.get("logicalType") == "map":  # with keys other than strings: an array of records of key and value
            fields = self.fields(items, depth + 1) if isinstance(items, Mapping) else ()
            if len(fields) != 2:
                raise AvroError(f"its schema has a map stored as array without key and value: {schema!r:.80}")
            return self._map(*fields)
        element = self._field("element", schema, "element-id", items, depth)
        return _several("array", pa.list_(element.arrow()), (element,))

    def _map(self, key: AvroField, value: AvroField) -> AvroType:
        key, value = replace(key, name="key"), replace(value, name="value")
        meant = pa.map_(key.arrow().with_nullable(False), value.arrow())
        return _several("map", meant, (key, value))

    def _primitive(self, kind: Any, schema: Mapping[str, Any]) -> AvroType:
        if kind not in _PLAIN:
            raise AvroError(f"its schema has the unknown type {kind!r:.60}")
        stored, least = _PLAIN[kind]
        plain = AvroType(kind, stored, least, nullable=kind == "null", schema=schema)
        logical = schema.get("logicalType")
        if self._physical or not isinstance(logical, str):
            return plain
        if kind == "string" and logical == "uuid":
            return replace(plain, meant=pa.binary(16), finish=_uuid_from_text)
        if kind == "bytes" and logical == "decimal":
            return _decimal(plain, schema)
        meant = _TIMES.get((kind, logical), stored)
        if kind == "long" and "timestamp-" in logical:
            meant = _timestamp_type(logical, schema)
        return replace(plain, meant=meant, finish=None if meant == stored else lambda array: array.view(meant))

    def _fixed(self, schema: Mapping[str, Any]) -> AvroType:
        size = schema.get("size")
        if not isinstance(size, int) or not 0 <= size < 2**31:
            raise AvroError(f"its schema has a fixed type of size {size!r:.40}")
        plain = AvroType("fixed", pa.binary(size), size, schema=schema)
        return _decimal(plain, schema) if schema.get("logicalType") == "decimal" and not self._physical else plain


def _several(kind: str, meant: pa.DataType, parts: tuple[AvroField, ...]) -> AvroType:
    if not sum(part.type.min_bytes for part in parts):
        raise AvroError(f"its schema has {kind}s whose elements take no bytes: their length cannot be trusted")
    return AvroType(kind, meant, 1, parts=parts)


def _decimal(plain: AvroType, schema: Mapping[str, Any]) -> AvroType:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 < precision <= 38 or scale < 0:
        raise AvroError(f"its schema has a decimal of precision {precision!r:.20} and scale {scale!r:.20}")
    meant = pa.decimal128(precision, scale)
    return replace(plain, meant=meant, finish=partial(_decimal_from_bytes, meant=meant))


def _as_raw(kind: AvroType) -> AvroType:
    if kind.kind == "null":
        return kind
    if value_type(kind) is not kind:
        return replace(kind, meant=pa.binary(), parts=tuple(replace(p, type=_as_raw(p.type)) for p in kind.parts))
    return AvroType("raw", pa.binary(), kind.min_bytes, parts=(AvroField("value", None, kind),))


Words = NDArray[np.int64]
Present = Mask | None
"""Where there is a value; None for everywhere."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a kernel has found of values of one type.

    Attributes:
        data: bytes of all values.
        words: numbers by slot and value; see `avro_kernels.read_values`.
        stops: ends of bytes and arrays by slot and value.
        bad: receives which values are invalid.
    """

    data: NDArray[np.uint8]
    words: Words
    stops: NDArray[np.int32]
    bad: Mask

    def __len__(self) -> int:
        return len(self.bad)


Make = Callable[[Found, Present], pa.Array]
"""Makes the column of a type, with NULL where there is no value."""


@dataclass(frozen=True, slots=True)
class Program:
    """How to read values of one type: the steps of the kernel, and what makes the columns of its results.

    Attributes:
        steps: see `avro_kernels`.
        targets: steps of the branches of unions.
        slots: number of results for each value.
        depth: how many arrays and raw values are within each other.
        columns: makes the column of each part.
    """

    steps: Words
    targets: Words
    slots: int
    depth: int
    columns: tuple[Make, ...]

    def read(
        self,
        data: NDArray[np.uint8],
        starts: Any,
        ends: Any,
        counts: Any,
        *,
        of_arrays: bool = False,
        at_once: bool = False,
    ) -> Iterator[Found]:
        """Read the values in spans of bytes, some at a time or `at_once`, as those in arrays.

        Raises:
            AvroError: a span of several values is broken.
            WideValuesError: they take far more memory as columns than as bytes.
        """
        starts, ends, counts = (np.ascontiguousarray(part, np.int64) for part in (starts, ends, counts))
        left = int(counts.sum())
        if self.slots * left > max(MIN_CELLS, _CELLS_PER_BYTE * len(data)):
            raise WideValuesError(
                f"{left:,} Avro values with {self.slots:,} parts, which take far more memory as columns than their bytes"
            )
        room = min(max(_FOUND_BYTES // (12 * self.slots + 1), _MIN_FOUND), _MAX_FOUND)
        kernel, place, stack = (
            kernel_or_plain("read_values", int((ends - starts).sum())),
            np.zeros(3, np.int64),
            np.zeros(5 * self.depth, np.int64),
        )
        while place[0] < len(starts):
            size = left if of_arrays or at_once else min(room, left)
            words, stops = np.zeros((self.slots, size), np.int64), np.zeros((self.slots, size), np.int32)
            found = Found(data, words, stops, np.zeros(size, np.bool_))
            program = self.steps, len(self.steps) // steps.STEP, self.targets, len(self.targets)
            results = (
                words.reshape(-1),
                stops.reshape(-1),
                size,
                self.slots,
                found.bad.view(np.uint8),
                stack,
                self.depth,
            )
            if not kernel(data, len(data), starts, ends, counts, len(starts), of_arrays, place, *program, *results):
                raise AvroError("a block does not hold the values that it states, and nothing else")
            words[:, found.bad] = stops[:, found.bad] = 0
            left -= size
            yield found


@dataclass(frozen=True, slots=True)
class AvroReader:
    """Reads values of a record, or of another type as the single field of one.

    Attributes:
        fields: of the record.
        program: how to read a value.
    """

    fields: tuple[AvroField, ...]
    program: Program

    @classmethod
    def of(cls, fields: tuple[AvroField, ...]) -> "AvroReader":
        """The reader of the fields of a record."""
        return cls(fields, _Compiler().program(fields))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return pa.schema([f.arrow() for f in self.fields])

    @property
    def min_bytes(self) -> int:
        """The fewest bytes of a row."""
        return sum(f.type.min_bytes for f in self.fields)

    def messages(self, values: pa.BinaryArray) -> tuple[pa.Table, Mask]:
        """Read one row of each value, and the mask of invalid ones, whose columns mean nothing.

        Raises:
            WideValuesError: the columns would take far more memory than the values.
        """
        offsets, data = byte_spans(values)
        found = list(self.program.read(data, offsets[:-1], offsets[1:], np.ones(len(values))))
        table = self._table(found)
        return table, np.concatenate([np.zeros(0, np.bool_), *(part.bad for part in found)]) | true_flags(
            values.is_null()
        )

    def blocks(self, blocks: Sequence[tuple[int, bytes]], *, at_once: bool = False) -> list[Found]:
        """Find the rows of blocks with their number of values, which hold exactly these.

        Raises:
            AvroError: a block is broken.
        """
        sizes = np.array([len(data) for _, data in blocks], np.int64)
        data, ends = np.frombuffer(b"".join(data for _, data in blocks), np.uint8), np.cumsum(sizes)
        found = []
        for part in self.program.read(data, ends - sizes, ends, [n for n, _ in blocks], at_once=at_once):
            if part.bad.any():
                raise AvroError("a record does not fit its schema")
            found.append(part)
        return found

    def rows(self, blocks: Sequence[tuple[int, bytes]], *, at_once: bool = False) -> pa.Table:
        """Read the rows of blocks; `at_once` as one piece.

        Raises:
            AvroError: a block is broken.
        """
        found = self.blocks(blocks, at_once=at_once)
        table = self._table(found)
        if any(part.bad.any() for part in found):
            raise AvroError("a value does not fit its type: a number is too large, or a text is not UTF-8")
        return table

    def _table(self, found: Sequence[Found]) -> pa.Table:
        parts = [[make(part, ~part.bad if part.bad.any() else None) for make in self.program.columns] for part in found]
        return pa.Table.from_batches([pa.RecordBatch.from_arrays(p, schema=self.schema) for p in parts], self.schema)

    def column(self, found: Sequence[Found], index: int) -> pa.Array:
        """One column of rows that were found in blocks.

        Raises:
            AvroError: a value does not fit its type.
        """
        arrays = [self.program.columns[index](part, None) for part in found]
        if any(part.bad.any() for part in found):
            raise AvroError("a number is too large for its type, or a text is not UTF-8")
        return pa.concat_arrays(arrays) if arrays else pa.nulls(0, self.fields[index].type.meant)


@lru_cache(maxsize=64)
def _metadata_reader(schema: bytes) -> AvroReader:
    return AvroReader.of(parse_record(parse_avro_schema(schema), physical=True))


def read_metadata_rows(data: bytes) -> tuple[tuple[AvroField, ...], pa.Table]:
    """The fields and rows of a file of table metadata.

    Raises:
        AvroError: it is damaged, or larger than any file of table metadata. Any other of `DAMAGE`: it is damaged otherwise.
    """
    header = read_header(data)
    reader = _metadata_reader(header.schema)
    return reader.fields, reader.rows(list(read_blocks(data, header)))


class _Compiler:
    """Makes a program of types. Mutable: collects its steps."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._targets: list[int] = []
        self._slots = 0
        self._open = 0
        self._depth = 0

    def program(self, fields: Sequence[AvroField]) -> Program:
        """The program that reads a value of each type, one after the other."""
        columns = tuple(self._value(field.type) for field in fields)
        code = np.array(self._steps, np.int64), np.array(self._targets, np.int64)
        return Program(*code, self._slots, self._depth, columns)

    def _step(self, kind: int, size: int = 0, slots: int = 1) -> int:
        """Add a step and return its slot. The items of an array have none: these are read later, by their own program."""
        slot = 0 if self._open else self._slots
        self._slots += 0 if self._open else slots
        self._steps += (kind, slot, size, 0)
        return slot

    def _here(self) -> int:
        return len(self._steps) // steps.STEP

    def _nest(self, parts: Iterable[AvroField], last: int, slot: int) -> None:
        """Add the steps of a value without results."""
        self._open += 1
        self._depth = max(self._depth, self._open)
        for part in parts:
            self._value(part.type)
        self._open -= 1
        self._steps += (last, slot, 0, 0)

    def _value(self, kind: AvroType) -> Make:
        make = self._stored(kind)
        finish = kind.finish
        return make if finish is None else lambda found, present: finish(make(found, present))

    def _stored(self, kind: AvroType) -> Make:
        match kind.kind:
            case "null":
                return lambda found, _: pa.nulls(len(found))
            case "record":
                makes = [self._value(part.type) for part in kind.parts]
                return partial(_struct, makes=makes, arrow=kind.meant)
            case "union":
                return self._union(kind)
            case "array" | "map":
                return self._array(kind)
            case "raw":
                slot = self._step(steps.RAW)
                self._nest(kind.parts, steps.END, slot)
                return partial(_bytes, slot=slot)
            case "bytes" | "string":
                return partial(_bytes if kind.kind == "bytes" else _text, slot=self._step(steps.SIZED))
            case "int" | "long" | "enum":
                return partial(
                    _integers, slot=self._step(steps.LONG), kind=kind.kind, symbols=kind.schema.get("symbols")
                )
            case _:
                width = kind.min_bytes
                return partial(_fixed, slot=self._step(steps.FIXED, width), kind=kind.kind, width=width)

    def _union(self, kind: AvroType) -> Make:
        slot, here, first = self._step(steps.UNION, len(kind.parts)), len(self._steps), len(self._targets)
        self._steps[here - steps.STEP + steps.FIRST] = first
        self._targets += [0] * len(kind.parts)
        makes: dict[int, tuple[Make, pa.DataType]] = {}
        jumps = []
        for number, part in enumerate(kind.parts):
            self._targets[first + number] = self._here()
            make = self._value(part.type)
            if part.type.kind != "null":
                makes[number] = make, part.type.meant
            jumps.append(len(self._steps))
            self._step(steps.JUMP, slots=0)
        for jump in jumps:
            self._steps[jump + steps.SIZE] = self._here()

        def make_union(found: Found, present: Present) -> pa.Array:
            branch = found.words[slot]

            def where(chosen: Mask) -> Mask:
                return chosen if present is None else chosen & present

            def member(number: int) -> pa.Array:
                chosen = where(branch == number)
                make, meant = makes[number]
                return make(found, None if chosen.all() else chosen) if chosen.any() else pa.nulls(len(found), meant)

            if kind.meant == _UNREADABLE:
                raise pa.ArrowNotImplementedError(f"a union of several types is not supported ({len(found)} values)")
            members = list(map(member, makes))
            if len(makes) > 1 or len(kind.parts) > 2:
                some = validity_bitmap(where(np.isin(branch, [*makes])))
                return pa.Array.from_buffers(kind.meant, len(found), [some], children=members)
            return members[0] if members else pa.nulls(len(found))

        return make_union

    def _array(self, kind: AvroType) -> Make:
        """An array, or a map, which has pairs as items."""
        slot, here = self._step(steps.ARRAY, slots=2), len(self._steps)
        self._nest(kind.parts, steps.NEXT, 0)
        self._steps[here - steps.STEP + steps.SIZE] = self._here()
        kinds = self._steps[here : -steps.STEP : steps.STEP]
        self._steps[here - steps.STEP + steps.FIRST] = len(kinds) * (set(kinds) <= {steps.LONG, steps.SIZED})
        if self._open:
            return _unread
        program = _Compiler().program(kind.parts)

        def make(found: Found, present: Present) -> pa.Array:
            counts = found.words[slot + 1]
            rows, offsets = np.flatnonzero(counts), index_array(np.append(0, np.cumsum(counts))).cast(pa.int32())
            spans = found.words[slot][rows], found.stops[slot][rows], counts[rows]
            arrays = [pa.nulls(0, part.type.meant) for part in kind.parts]
            for inner in program.read(found.data, *spans, of_arrays=True):
                arrays = [column(inner, None) for column in program.columns]
                if inner.bad.any():
                    found.bad[np.repeat(np.arange(len(found)), counts)[inner.bad]] = True
            nothing = None if present is None else boolean_array(~present)
            if kind.kind == "array":
                return pa.ListArray.from_arrays(offsets, *arrays, type=kind.meant, mask=nothing)
            # A key that is no text makes its message invalid.
            keys = arrays[0].fill_null("") if arrays[0].null_count and pa.types.is_string(arrays[0].type) else arrays[0]
            return pa.MapArray.from_arrays(offsets, keys, arrays[1], type=kind.meant, mask=nothing)

        return make


def _unread(_: Found, __: Present) -> pa.Array:
    raise AssertionError("the items of an array are read by their own program")


def _struct(found: Found, present: Present, makes: Sequence[Make], arrow: pa.StructType) -> pa.Array:
    members = [make(found, present) for make in makes]
    return pa.Array.from_buffers(arrow, len(found), [validity_bitmap(present)], children=members)


def _integers(found: Found, present: Present, slot: int, kind: str, symbols: Sequence[str] | None) -> pa.Array:
    words = found.words[slot]
    low, end = (0, len(symbols or ())) if kind == "enum" else (-(2**31), 2**31)
    if kind != "long":
        out = (words < low) | (words >= end)
        if present is not None:
            out &= present
        found.bad[:] |= out
        words = np.where(out, 0, words).astype(np.int32)
    else:
        words = words.copy()  # as the words of all slots are freed at once
    arrow = pa.from_numpy_dtype(words.dtype)
    array = pa.Array.from_buffers(arrow, len(words), [validity_bitmap(present), pa.py_buffer(words)])
    return array if kind != "enum" else pa.array(symbols or [""], pa.string()).take(array)


def _bytes(found: Found, present: Present, slot: int) -> pa.BinaryArray:
    taken = byte_slices(found.data, found.words[slot], found.stops[slot])
    return pa.Array.from_buffers(pa.binary(), len(found), [validity_bitmap(present), *taken.buffers()[1:]])


def _text(found: Found, present: Present, slot: int) -> pa.StringArray:
    array = _bytes(found, present, slot)
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="replace") for value in array.to_pylist()]
        found.bad[:] |= [t is not None and t.encode() != v for t, v in zip(texts, array.to_pylist(), strict=True)]
        return pa.array([None if bad else t for t, bad in zip(texts, found.bad, strict=True)], pa.string())


_FLOATS: Mapping[str, Any] = {"float": "<f4", "double": "<f8"}


def _fixed(found: Found, present: Present, slot: int, kind: str, width: int) -> pa.Array:
    rows = slice(None) if present is None else np.flatnonzero(present)
    places = found.words[slot][rows]
    out = np.zeros((len(found), width), np.uint8)
    out[rows] = found.data[places[:, None] + np.arange(width)]
    if kind == "boolean":
        found.bad[:] |= out[:, 0] > 1
        values = boolean_array(out[:, 0] != 0)
        return pa.Array.from_buffers(values.type, len(found), [validity_bitmap(present), values.buffers()[1]])
    arrow = pa.binary(width) if kind == "fixed" else pa.from_numpy_dtype(np.dtype(_FLOATS[kind]))
    return pa.Array.from_buffers(arrow, len(found), [validity_bitmap(present), pa.py_buffer(out)])
