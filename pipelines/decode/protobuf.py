"""Protobuf schemas and messages of feeds.

Contains the value types of Protobuf fields and decoding of many messages in one call, field by field: a kernel finds where
the values of all messages are, and these become columns. The schemas themselves are read by the protobuf library.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nevermore.pipelines.decode import protobuf_kernels as kernels
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.feed_schemas import DEFAULT_VARIABLE_SCALE, MAX_DIGITS
from nevermore.pipelines.decode.schema_registry import RegisteredSchema, SchemaKind
from nevermore.pipelines.decode.value_types import Encoding, ValueType
from nevermore.pipelines.errors import SourceError, WideBatchError
from nevermore.pipelines.jsonscan.members import max_cells
from nevermore.pipelines.jsonscan.spans import from_binary
from nevermore.pipelines.jsonscan.text_kernels import gather_text
from nevermore.pipelines.jsonscan.value_kernels import STRING
from nevermore.scan_core import Mask, Rows

_MAX_POSITION_BYTES = 64
"""Longest position of a message type in its file: types nest far less deeply than this allows."""
_MAX_DEPTH = 64
_SECONDS_OF_YEAR_1, _SECONDS_OF_YEAR_10000 = -62_135_596_800, 253_402_300_800
_NANOS = 1_000_000_000
_MAX_SECONDS_IN_NANOS = 9_223_372_036
"""More seconds do not fit 64 bits as nanoseconds."""
_DECIMAL = "confluent.type.Decimal"
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)

Words = NDArray[np.int64]
Places = NDArray[np.int32]


class ProtobufMessages:
    """How messages in Protobuf are framed: the position of their type in its file follows the id of the schema."""

    kind = SchemaKind.PROTOBUF

    @staticmethod
    def prefix_lengths(messages: pa.BinaryArray, header: int) -> NDArray[np.int64]:
        """Bytes in front of each value; 0 where they are broken."""
        found = from_binary(messages)
        begin = np.maximum(found.start, 0).astype(np.int64)
        sizes = np.where(found.start >= 0, found.end - begin, 0)
        at = np.full(len(messages), header, np.int64)
        left = np.full(len(messages), -1, np.int64)
        is_broken = np.zeros(len(messages), np.bool_)
        while len(rows := np.flatnonzero((left != 0) & ~is_broken)):
            is_short = (at[rows] >= sizes[rows]) | (at[rows] - header >= _MAX_POSITION_BYTES)
            is_broken[rows[is_short]] = True
            rows = rows[~is_short]
            byte = found.data[begin[rows] + at[rows]]
            at[rows] += 1
            is_count = left[rows] == -1
            # A count of 0 stands for the position [0]; other counts are small zigzag numbers of one byte.
            is_broken[rows[is_count & ((byte >= 128) | (byte % 2 == 1))]] = True
            left[rows] = np.where(is_count, byte // 2, left[rows] - (byte < 128))
        return np.where(is_broken, 0, at)

    @staticmethod
    def reader(schema: RegisteredSchema, position: bytes, *, is_key: bool) -> "ProtobufReader":  # noqa: ARG004 - keys are messages, too
        """The reader of a message type, from its schema and its position in it.

        Raises:
            SourceError: the schema cannot be read, or has no such type.
        """
        return _reader(schema, position)


def _indexes(position: bytes) -> tuple[int, ...]:
    """The indexes that a valid position states."""
    numbers: list[int] = []
    value = shift = 0
    for byte in position:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append((value >> 1) ^ -(value & 1))
            value = shift = 0
    return tuple(numbers[1:]) or (0,)


@dataclass(frozen=True)
class ProtobufReader:
    """Reads the messages of one type; `types` are the value types of its fields."""

    types: Mapping[str, ValueType]
    message: "_Message"

    def read(self, values: pa.BinaryArray) -> tuple[pa.Table, Mask]:
        """Read the values as rows, and the mask of invalid ones, whose columns mean nothing.

        A message is invalid that is broken, lacks a required field, has a message field, a map entry or a `oneof` twice,
        which no writer of whole messages produces, or has a time that does not exist.
        """
        documents = from_binary(values)
        nothing = documents.start < 0
        start, end = (np.where(nothing, 0, places).astype(np.int32) for places in (documents.start, documents.end))
        columns, bad = self.message.read(_Spans(documents.data, start, end))
        return pa.table(columns), bad | nothing


@lru_cache(maxsize=1024)
def _reader(schema: RegisteredSchema, position: bytes) -> ProtobufReader:
    from google.protobuf.message import DecodeError

    try:
        descriptor = _message_type(schema, _indexes(position))
        message = _message(descriptor, ())
    except (Base64Error, UnicodeError, DecodeError) as error:
        raise SourceError(
            f"a Protobuf schema that is not a serialized descriptor: it begins {schema.text[:120]!r}; use a registry that "
            "answers to format=serialized, or a folder of <id>.desc files (schemas), which protoc --include_imports "
            "--descriptor_set_out writes"
        ) from error
    except (TypeError, KeyError, ImportError) as error:
        raise SourceError(f"a Protobuf schema that cannot be used: {error}") from error
    return ProtobufReader({f.name: f.value_type for f in message.fields}, message)


def _message_type(schema: RegisteredSchema, position: Sequence[int]) -> Any:
    """The message type at a position in the file of a schema.

    Raises:
        SourceError: there is no such type.
        TypeError: the files do not fit together.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    given = {name: b64decode(text, validate=True) for name, text in schema.references}
    own = FileDescriptorProto.FromString(b64decode(schema.text, validate=True))
    own.name = "nevermore/message.proto"
    pool = DescriptorPool()
    _add(own, given, pool, set(), 0)
    return pool.FindMessageTypeByName(_name_at(own, position))


def _add(file: Any, given: Mapping[str, bytes], pool: Any, added: set[str], depth: int) -> None:
    """Add a file to a pool, after those that it imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    if depth > _MAX_DEPTH:
        raise SourceError(f"a Protobuf schema whose imports are nested too deeply, or import each other: {file.name}")
    for name in file.dependency:
        if name in added:
            continue
        needed = FileDescriptorProto.FromString(given[name]) if name in given else known_file(name)
        needed.name = name
        _add(needed, given, pool, added, depth + 1)
    if file.name not in added:
        pool.Add(file)
        added.add(file.name)


def known_file(name: str) -> Any:
    """A file that schemas import without a reference to it.

    Raises:
        SourceError: not one of these.
        ImportError: not in the installed packages.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.json_format import ParseDict

    file = FileDescriptorProto()
    if name in _FILES:
        return ParseDict({"name": name, "syntax": "proto3", **_FILES[name]}, file)
    if not name.startswith("google/"):
        raise SourceError(
            f"a Protobuf schema imports {name}, to which it has no reference: register that file, and the schema with a "
            "reference to it"
        )
    import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR.CopyToProto(file)
    return file


def _described(
    number: int, name: str, kind: str, label: str = "OPTIONAL", type_name: str | None = None
) -> dict[str, Any]:
    described = {"number": number, "name": name, "type": f"TYPE_{kind}", "label": f"LABEL_{label}"}
    return described if type_name is None else {**described, "typeName": type_name}


def _integers(*names: str) -> list[dict[str, Any]]:
    return [_described(number, name, "INT32") for number, name in enumerate(names, 1)]


_FILES: Mapping[str, Mapping[str, Any]] = {
    "google/type/date.proto": {
        "package": "google.type",
        "messageType": [{"name": "Date", "field": _integers("year", "month", "day")}],
    },
    "google/type/timeofday.proto": {
        "package": "google.type",
        "messageType": [{"name": "TimeOfDay", "field": _integers("hours", "minutes", "seconds", "nanos")}],
    },
    "confluent/type/decimal.proto": {
        "package": "confluent.type",
        "messageType": [
            {
                "name": "Decimal",
                "field": [
                    _described(1, "value", "BYTES"),
                    _described(2, "precision", "UINT32"),
                    _described(3, "scale", "INT32"),
                ],
            }
        ],
    },
    "confluent/meta.proto": {
        "package": "confluent",
        "messageType": [
            {
                "name": "Meta",
                "field": [
                    _described(1, "doc", "STRING"),
                    _described(2, "params", "MESSAGE", "REPEATED", ".confluent.Meta.ParamsEntry"),
                    _described(3, "tags", "STRING", "REPEATED"),
                ],
                "nestedType": [
                    {
                        "name": "ParamsEntry",
                        "field": [_described(1, "key", "STRING"), _described(2, "value", "STRING")],
                        "options": {"mapEntry": True},
                    }
                ],
            },
            {"name": "FieldOptions", "field": [_described(1088, "meta", "MESSAGE", type_name=".confluent.Meta")]},
        ],
    },
}
"""Files that the schemas of Kafka Connect's converter import; 1088 is the number of its option of fields."""


@cache
def _options_of_fields() -> Any:
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    pool.Add(known_file("confluent/meta.proto"))
    return GetMessageClass(pool.FindMessageTypeByName("confluent.FieldOptions"))


def _name_at(file: Any, position: Sequence[int]) -> str:
    """The full name of the message type at a position: indexes of the types, each within the one before.

    Raises:
        SourceError: there is none, or writers count differently, as some count the entries of maps.
    """
    names = [file.package] if file.package else []
    here = file.message_type
    for index in position:
        counted = [here, [message for message in here if not message.options.map_entry]]
        candidates = {messages[index].name for messages in counted if 0 <= index < len(messages)}
        if len(candidates) != 1:
            where = ".".join(names) or "the schema"
            raise SourceError(f"a Protobuf message is of type {index} of {where}, which does not exist or is ambiguous")
        (name,) = candidates
        here = next(message for message in here if message.name == name).nested_type
        names.append(name)
    return ".".join(names)


@dataclass(frozen=True)
class _Spans:
    """Messages or values: bytes, and where each begins and ends in them."""

    data: NDArray[np.uint8]
    start: Places
    end: Places

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class _Values:
    """Values of a field as the kernels find them: bits of numbers, or where bytes begin and end."""

    data: NDArray[np.uint8]
    words: Words
    stops: Places

    def __len__(self) -> int:
        return len(self.words)

    @property
    def spans(self) -> _Spans:
        return _Spans(self.data, self.words.astype(np.int32), self.stops)

    def take(self, rows: Rows) -> "_Values":
        return _Values(self.data, self.words[rows], self.stops[rows])


Read = Callable[[_Values], tuple[pa.Array, Mask]]
"""Makes an array of values; the mask marks those that are invalid."""


@dataclass(frozen=True)
class _Field:
    """A field of a message type.

    Attributes:
        name: its name.
        number: its number.
        wire: how its values are written.
        is_many: whether it may have any number of values.
        is_message: whether its values are messages, which the format allows to be sent in parts.
        has_presence: whether a field without a value is NULL, and not the default of its type.
        is_required: whether a message without it is invalid.
        value_type: type of the column.
        read: makes the array of its values.
    """

    name: str
    number: int
    wire: int
    is_many: bool
    is_message: bool
    has_presence: bool
    is_required: bool
    value_type: ValueType
    read: Read


@dataclass(frozen=True)
class _Message:
    """A message type: its fields by ascending number, and the groups of them of which a message has one at most."""

    fields: tuple[_Field, ...]
    groups: tuple[tuple[int, ...], ...]
    numbers: Places = field(init=False)
    wires: NDArray[np.uint8] = field(init=False)
    many: Mask = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", np.array([f.number for f in self.fields], np.int32))
        object.__setattr__(self, "wires", np.array([f.wire for f in self.fields], np.uint8))
        object.__setattr__(self, "many", np.array([f.is_many for f in self.fields], np.bool_))

    def read(self, messages: _Spans) -> tuple[dict[str, pa.Array], Mask]:
        """Read the fields of messages, and mark the invalid messages.

        Raises:
            WideBatchError: the fields take far more memory as columns than as bytes, as most of them are not set.
        """
        shape = (len(self.fields), len(messages))
        if shape[0] * shape[1] > max_cells(messages.data):
            raise WideBatchError(
                f"{shape[1]:,} messages with {shape[0]:,} fields, which take far more memory as columns than their bytes"
            )
        words, stops = np.zeros(shape, np.int64), np.zeros(shape, np.int32)
        seen, bad = np.zeros(shape, np.uint8), np.zeros(len(messages), np.bool_)
        kernels.find_fields(
            messages.data, messages.start, messages.end, self.numbers, self.wires, self.many, words, stops, seen, bad
        )
        if bad.any():
            words[:, bad] = stops[:, bad] = seen[:, bad] = 0
        wrong = bad.copy()
        arrays = {}
        for at, known in enumerate(self.fields):
            if known.is_many:
                arrays[known.name], of_field = _lists(known, messages, stops[at], bad)
            else:
                present = seen[at] > 0
                values = _Values(messages.data, words[at], stops[at])
                arrays[known.name], of_field = _singles(known, values, present)
                if known.is_message:
                    wrong |= seen[at] > 1
                if known.is_required:
                    wrong |= ~present
            wrong |= of_field
        for group in self.groups:
            wrong |= (seen[list(group)] > 0).sum(axis=0) > 1
        return arrays, wrong


def _singles(known: _Field, values: _Values, present: Mask) -> tuple[pa.Array, Mask]:
    """The values of a field, one for each message."""
    if present.all() or not known.has_presence:
        return known.read(values)
    rows = np.flatnonzero(present)
    array, bad_values = known.read(values.take(rows))
    bad = np.zeros(len(values), np.bool_)
    bad[rows] = bad_values
    return array.take(pa.array(np.cumsum(present) - 1, mask=~present)), bad


def _lists(known: _Field, messages: _Spans, counts: Places, bad: Mask) -> tuple[pa.Array, Mask]:
    """The values of a field, a list or map for each message."""
    offsets = np.r_[0, np.cumsum(counts, dtype=np.int64)]
    total = int(offsets[-1])
    words, stops = np.zeros(total, np.int64), np.zeros(total, np.int32)
    found = kernels.find_values(
        messages.data, messages.start, messages.end, known.number, known.wire, bad, words, stops
    )
    if found != total:
        raise AssertionError(f"{found} values of {known.name} instead of {total}")
    array, bad_values = known.read(_Values(messages.data, words, stops))
    row_of = np.repeat(np.arange(len(messages)), counts)
    places = pa.array(offsets, pa.int32())
    wrong = np.zeros(len(messages), np.bool_)
    if pa.types.is_map(known.value_type.arrow):
        keys, values = array.flatten()
        keys = keys.fill_null("") if keys.null_count else keys  # no text, which makes the message invalid
        codes = np.asarray(keys.dictionary_encode().indices).astype(np.int64)
        _, first = np.unique(row_of * (total + 1) + codes, return_index=True)
        is_repeated = np.ones(total, np.bool_)
        is_repeated[first] = False
        bad_values |= is_repeated
        made = pa.MapArray.from_arrays(places, keys, values)
    else:
        made = pa.ListArray.from_arrays(places, array, type=pa.list_(pa.field("element", array.type)))
    wrong[row_of[bad_values]] = True
    return made, wrong


def _message(descriptor: Any, within: tuple[str, ...], *, is_entry: bool = False) -> _Message:
    """What to read of a message type.

    Raises:
        SourceError: no column type can hold one of its fields.
    """
    here = (*within, descriptor.full_name)
    found = sorted((_field(known, here, is_entry=is_entry) for known in descriptor.fields), key=lambda f: f.number)
    places = {known.name: at for at, known in enumerate(found)}
    groups = (tuple(places[member.name] for member in group.fields) for group in descriptor.oneofs)
    return _Message(tuple(found), tuple(group for group in groups if len(group) > 1))


def _field(known: Any, within: tuple[str, ...], *, is_entry: bool) -> _Field:
    is_map = known.message_type is not None and known.message_type.GetOptions().map_entry
    if is_map:
        wire, value_type, read = _map(known, within)
    else:
        wire, value_type, read = _value(known, within)
        if known.is_repeated:
            arrow = pa.list_(pa.field("element", value_type.arrow))
            value_type = ValueType(arrow, members=(("element", value_type),))
    return _Field(
        name=known.name,
        number=known.number,
        wire=wire,
        is_many=known.is_repeated,
        is_message=known.message_type is not None,
        # The key and value of a map are always there: what is not sent is the default.
        has_presence=known.has_presence and not is_entry,
        is_required=known.is_required and not is_entry,
        value_type=value_type,
        read=read,
    )


def _map(known: Any, within: tuple[str, ...]) -> tuple[int, ValueType, Read]:
    entry = _message(known.message_type, within, is_entry=True)
    key, value = (f.value_type for f in entry.fields)
    arrow = pa.map_(pa.field("key", key.arrow, nullable=False), pa.field("value", value.arrow))

    def read(values: _Values) -> tuple[pa.Array, Mask]:
        members, bad = entry.read(values.spans)
        return pa.StructArray.from_arrays([members["key"], members["value"]], ["key", "value"]), bad

    return kernels.SIZED, ValueType(arrow, members=(("key", key), ("value", value))), read


def _value(known: Any, within: tuple[str, ...]) -> tuple[int, ValueType, Read]:
    """(how a single value of a field is written, its type, what reads it)."""
    descriptor = known.message_type
    if known.type == known.TYPE_GROUP:
        raise SourceError(f"Protobuf field {known.full_name} is a group, which is not supported: make it a message")
    if known.type == known.TYPE_ENUM:
        names = {value.number: value.name for value in reversed(known.enum_type.values)}
        return kernels.VARINT, ValueType(pa.string()), lambda values: _names(values, names)
    if descriptor is None:
        wire, arrow, scalar = _scalars()[known.type]
        return wire, ValueType(arrow), scalar
    if descriptor.full_name in within:
        raise SourceError(
            f"Protobuf field {known.full_name} is of type {descriptor.full_name}, which contains itself: no column type can "
            "hold it; send it as text or bytes"
        )
    message = _message(descriptor, within)
    if descriptor.full_name in _TIMES:
        arrow, convert = _TIMES[descriptor.full_name]
        return kernels.SIZED, ValueType(arrow), lambda values: _time(values, message, convert)
    if descriptor.full_name in _WRAPPERS:
        return kernels.SIZED, message.fields[0].value_type, lambda values: _wrapped(values, message)
    if not message.fields:
        return kernels.SIZED, ValueType(pa.bool_()), lambda values: _presence(values, message)
    members = tuple((f.name, f.value_type) for f in message.fields)
    if descriptor.full_name == _DECIMAL:
        value_type = _decimal_type(known)
    else:
        value_type = ValueType(pa.struct([pa.field(n, member.arrow) for n, member in members]), members=members)
    return kernels.SIZED, value_type, lambda values: _struct(values, message)


def _decimal_type(known: Any) -> ValueType:
    """Decimals that each have their own scale, in a column with the scale that the options of the field state."""
    parameters = _options_of_fields().FromString(known.GetOptions().SerializeToString()).meta.params
    scale = min(max(int(parameters.get("scale", DEFAULT_VARIABLE_SCALE)), 0), MAX_DIGITS)
    digits = min(max(int(parameters.get("precision", MAX_DIGITS)), scale, 1), MAX_DIGITS)
    return ValueType(pa.decimal128(digits, scale), Encoding.SCALED)


def _right(array: pa.Array) -> tuple[pa.Array, Mask]:
    return array, np.zeros(len(array), np.bool_)


def _low(values: _Values) -> NDArray[np.uint32]:
    return values.words.astype(np.uint32)


def _zigzag(numbers: NDArray[Any], signed: Any) -> NDArray[Any]:
    half = (numbers >> numbers.dtype.type(1)).view(signed)
    result: NDArray[Any] = half ^ -(numbers & numbers.dtype.type(1)).view(signed)
    return result


def _bytes(values: _Values) -> pa.BinaryArray:
    count = len(values)
    spans = values.spans
    offsets, out = np.zeros(count + 1, np.int32), np.empty(int((spans.end - spans.start).sum(dtype=np.int64)), np.uint8)
    wanted, bad = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    gather_text(values.data, spans.start, spans.end, np.full(count, STRING, np.int8), wanted, offsets, out, bad)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(out)])


def _text(values: _Values) -> tuple[pa.Array, Mask]:
    return cast_each(_bytes(values), pa.string())


def _names(values: _Values, names: Mapping[int, str]) -> tuple[pa.Array, Mask]:
    """Names of an enumeration; a number without a name is its own text."""
    numbers, codes = np.unique(values.words.astype(np.int32), return_inverse=True)
    texts = pa.array([names.get(number, str(number)) for number in numbers.tolist()], pa.string())
    return _right(texts.take(pa.array(codes)))


@cache
def _scalars() -> Mapping[int, tuple[int, pa.DataType, Read]]:
    """By type of field: how it is written, its type, what reads it. A number without a sign has the next wider type."""
    from google.protobuf.descriptor import FieldDescriptor as Of

    long, unsigned = pa.int64(), pa.decimal128(20, 0)

    def as_unsigned(values: _Values) -> tuple[pa.Array, Mask]:
        return _right(pa.array(values.words.view(np.uint64)).cast(unsigned))

    def of(make: Callable[[_Values], NDArray[Any]], arrow: pa.DataType) -> Read:
        return lambda values: _right(pa.array(make(values), arrow))

    as_int = of(lambda v: v.words.astype(np.int32), pa.int32())
    as_long = of(lambda v: v.words, long)
    as_unsigned_int = of(_low, long)
    return {
        Of.TYPE_INT32: (kernels.VARINT, pa.int32(), as_int),
        Of.TYPE_SFIXED32: (kernels.FIXED32, pa.int32(), as_int),
        Of.TYPE_SINT32: (kernels.VARINT, pa.int32(), of(lambda v: _zigzag(_low(v), np.int32), pa.int32())),
        Of.TYPE_UINT32: (kernels.VARINT, long, as_unsigned_int),
        Of.TYPE_FIXED32: (kernels.FIXED32, long, as_unsigned_int),
        Of.TYPE_INT64: (kernels.VARINT, long, as_long),
        Of.TYPE_SFIXED64: (kernels.FIXED64, long, as_long),
        Of.TYPE_SINT64: (kernels.VARINT, long, of(lambda v: _zigzag(v.words.view(np.uint64), np.int64), long)),
        Of.TYPE_UINT64: (kernels.VARINT, unsigned, as_unsigned),
        Of.TYPE_FIXED64: (kernels.FIXED64, unsigned, as_unsigned),
        Of.TYPE_DOUBLE: (kernels.FIXED64, pa.float64(), of(lambda v: v.words.view(np.float64), pa.float64())),
        Of.TYPE_FLOAT: (kernels.FIXED32, pa.float32(), of(lambda v: _low(v).view(np.float32), pa.float32())),
        Of.TYPE_BOOL: (kernels.VARINT, pa.bool_(), of(lambda v: v.words != 0, pa.bool_())),
        Of.TYPE_STRING: (kernels.SIZED, pa.string(), _text),
        Of.TYPE_BYTES: (kernels.SIZED, pa.binary(), lambda values: _right(_bytes(values))),
    }


def _struct(values: _Values, message: _Message) -> tuple[pa.Array, Mask]:
    members, bad = message.read(values.spans)
    return pa.StructArray.from_arrays([*members.values()], [*members]), bad


def _wrapped(values: _Values, message: _Message) -> tuple[pa.Array, Mask]:
    members, bad = message.read(values.spans)
    return members["value"], bad


def _presence(values: _Values, message: _Message) -> tuple[pa.Array, Mask]:
    """True for each message of a type without fields."""
    _, bad = message.read(values.spans)
    return pa.array(np.ones(len(values), np.bool_)), bad


Convert = Callable[..., tuple[pa.Array, Mask]]
"""Makes times of the numbers in their messages; the mask marks those that exist."""


def _time(values: _Values, message: _Message, convert: Convert) -> tuple[pa.Array, Mask]:
    members, bad = message.read(values.spans)
    array, exists = convert(*(np.asarray(member).astype(np.int64) for member in members.values()))
    return array, bad | ~exists


def _in_units(seconds: Words, nanos: Words) -> tuple[pa.Array, str]:
    """(the integers, their unit): microseconds, or nanoseconds where these are needed and fit."""
    if (nanos % 1_000).any() and (np.abs(seconds) < _MAX_SECONDS_IN_NANOS).all():
        return pa.array(seconds * _NANOS + nanos), "ns"
    return pa.array(seconds * 1_000_000 + nanos // 1_000), "us"


def _timestamps(seconds: Words, nanos: Words) -> tuple[pa.Array, Mask]:
    exists = (seconds >= _SECONDS_OF_YEAR_1) & (seconds < _SECONDS_OF_YEAR_10000) & (nanos >= 0) & (nanos < _NANOS)
    integers, unit = _in_units(np.where(exists, seconds, 0), np.where(exists, nanos, 0))
    return integers.view(pa.timestamp(unit, "UTC")), exists


def _durations(seconds: Words, nanos: Words) -> tuple[pa.Array, Mask]:
    """Durations in nanoseconds; seconds and nanoseconds have the same sign."""
    exists = (np.abs(seconds) < _MAX_SECONDS_IN_NANOS) & (seconds != np.iinfo(np.int64).min)
    exists &= (np.abs(nanos) < _NANOS) & (np.sign(seconds) * np.sign(nanos) >= 0)
    return pa.array(np.where(exists, seconds, 0) * _NANOS + np.where(exists, nanos, 0)), exists


def _dates(year: Words, month: Words, day: Words) -> tuple[pa.Array, Mask]:
    """Whole dates; those without a year, month or day are no date of a column."""
    exists = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = (np.where(exists, year, 1970) - 1970) * 12 + np.where(exists, month, 1) - 1
    begin = months.astype("datetime64[M]")
    dates = begin.astype("datetime64[D]") + np.where(exists, day, 1) - 1
    exists &= dates.astype("datetime64[M]") == begin
    return pa.array(dates.astype(np.int64).astype(np.int32)).view(pa.date32()), exists


def _times(hours: Words, minutes: Words, seconds: Words, nanos: Words) -> tuple[pa.Array, Mask]:
    exists = np.ones(len(hours), np.bool_)
    for number, limit in ((hours, 24), (minutes, 60), (seconds, 60), (nanos, _NANOS)):
        exists &= (number >= 0) & (number < limit)
    whole = np.where(exists, (hours * 60 + minutes) * 60 + seconds, 0)
    integers, unit = _in_units(whole, np.where(exists, nanos, 0))
    return integers.view(pa.time64(unit)), exists


_TIMES: Mapping[str, tuple[pa.DataType, Convert]] = {
    "google.protobuf.Timestamp": (pa.timestamp("us", "UTC"), _timestamps),
    "google.protobuf.Duration": (pa.int64(), _durations),
    "google.type.Date": (pa.date32(), _dates),
    "google.type.TimeOfDay": (pa.time64("us"), _times),
}
