"""Protobuf schemas and messages of feeds, both read by the protobuf library: the value types of fields, and their columns."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nevermore.pipelines.decode.feed_schemas import MAX_DIGITS, OF_OWN_SCALES
from nevermore.pipelines.decode.schema_registry import RegisteredSchema, SchemaKind
from nevermore.pipelines.decode.value_types import Encoding, ValueType, list_of, list_type, map_of, map_type, struct_of
from nevermore.pipelines.errors import SourceError, WideBatchError
from nevermore.pipelines.jsonscan.members import MIN_CELLS
from nevermore.scan_core import Mask

_MAX_POSITION_BYTES = 64
"""Longest position of a message type in its file: types nest far less deeply than this allows."""
_MAX_DEPTH = 64
_NANOS = 1_000_000_000
_MAX_SECONDS_IN_NANOS = 9_223_372_036
"""More seconds do not fit 64 bits as nanoseconds."""
_FAR_SECONDS, _FAR_DAYS = 10**12, 10**7
"""What is farther from 1970 is as infinite as this."""
_DAYS_TO_1970 = date(1970, 1, 1).toordinal()
_DECIMAL = "confluent.type.Decimal"
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class ProtobufMessages:
    """How messages in Protobuf are framed: the position of their type in its file follows the id of the schema."""

    kind = SchemaKind.PROTOBUF

    @staticmethod
    def prefix_lengths(messages: pa.BinaryArray, header: int) -> NDArray[np.int64]:
        """Bytes in front of each value; 0 where they are broken."""
        return np.array([_prefix_length(message or b"", header) for message in messages.to_pylist()], np.int64)

    @staticmethod
    def reader(schema: RegisteredSchema, position: bytes, *, is_key: bool) -> "ProtobufReader":  # noqa: ARG004 - keys are messages, too
        """The reader of a message type, from its schema and its position in it.

        Raises:
            SourceError: the schema cannot be read, or has no such type.
        """
        return _reader(schema, position)


def _prefix_length(message: bytes, header: int) -> int:
    left = None
    for at, byte in enumerate(message[header : header + _MAX_POSITION_BYTES], header + 1):
        if left is None:
            # A count of 0 stands for the position [0]; other counts are small zigzag numbers of one byte.
            if byte >= 128 or byte % 2 == 1:
                break
            left = byte // 2
        elif byte < 128:
            left -= 1
        if left == 0:
            return at
    return 0


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
    """Reads the messages of one type by the protobuf library.

    Attributes:
        parse: makes a message of bytes.
        columns: its fields, with times in nanoseconds.
        coarse: its fields, with times in microseconds.
    """

    parse: Callable[[bytes], Any]
    columns: "Mapping[str, _Column]"
    coarse: "Mapping[str, _Column]"

    @property
    def types(self) -> Mapping[str, ValueType]:
        """The value type of each field."""
        return {name: column.value_type for name, column in self.columns.items()}

    def read(self, values: pa.BinaryArray) -> tuple[pa.Table, Mask]:
        """Read the values as rows, and the mask of invalid ones, whose columns mean nothing.

        A message is invalid that is broken, lacks a required field or has a time that does not exist.

        Raises:
            WideBatchError: the fields take far more memory as columns than as bytes, as most of them are not set.
        """
        num_cells = sum(_num_cells(column.held) for column in self.columns.values())
        if num_cells * len(values) > max(MIN_CELLS, values.nbytes):
            raise WideBatchError(
                f"{len(values):,} messages with {num_cells:,} fields, which take far more memory as columns than their bytes"
            )
        try:
            return self._read(values, self.columns)
        except OverflowError:  # a time is too far from 1970 for nanoseconds
            return self._read(values, self.coarse)

    def _read(self, values: pa.BinaryArray, columns: "Mapping[str, _Column]") -> tuple[pa.Table, Mask]:
        rows = [self._row(value, columns) for value in values.to_pylist()]
        bad = np.array([row is None for row in rows], np.bool_)
        arrays = {name: pa.array([row and row[name] for row in rows], column.held) for name, column in columns.items()}
        return pa.table(arrays), bad

    def _row(self, value: bytes | None, columns: "Mapping[str, _Column]") -> dict[str, Any] | None:
        from google.protobuf.message import DecodeError

        if value is None:
            return None
        try:
            message = self.parse(value)
            return _members(message, columns) if message.IsInitialized() else None
        except (DecodeError, UnicodeDecodeError, _NoTimeError):
            return None


@lru_cache(maxsize=1024)
def _reader(schema: RegisteredSchema, position: bytes) -> ProtobufReader:
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    try:
        descriptor = _message_type(schema, _indexes(position))
        return ProtobufReader(
            GetMessageClass(descriptor).FromString, _columns(descriptor, "ns"), _columns(descriptor, "us")
        )
    except (Base64Error, UnicodeError, DecodeError) as error:
        raise SourceError(
            f"a Protobuf schema that is not a serialized descriptor: it begins {schema.text[:120]!r}; use a registry that "
            "answers to format=serialized, or a folder of <id>.desc files (schemas), which protoc --include_imports "
            "--descriptor_set_out writes"
        ) from error
    except (TypeError, KeyError, ImportError) as error:
        raise SourceError(f"a Protobuf schema that cannot be used: {error}") from error


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


class _NoTimeError(ValueError):
    """A message of a time that does not exist."""


@dataclass(frozen=True)
class _Column:
    """A field of a message type.

    Attributes:
        value_type: type of the column.
        value: takes the field's value out of a message, with None for NULL; a message in it becomes a dictionary.
        held: the type of the array of such values.
    """

    value_type: ValueType
    value: Callable[[Any], Any]
    held: pa.DataType


def _num_cells(held: pa.DataType) -> int:
    return sum(_num_cells(held.field(at).type) for at in range(held.num_fields)) or 1


def _columns(descriptor: Any, unit: str, within: tuple[str, ...] = ()) -> dict[str, _Column]:
    """The columns of a message type, by ascending number of the field, with times in this unit.

    Raises:
        SourceError: no column type can hold one of its fields.
    """
    here = (*within, descriptor.full_name)
    return {known.name: _field(known, unit, here) for known in _fields(descriptor)}


def _fields(descriptor: Any) -> list[Any]:
    return sorted(descriptor.fields, key=lambda known: known.number)


def _field(known: Any, unit: str, within: tuple[str, ...]) -> _Column:
    name = known.name
    if known.message_type is not None and known.message_type.GetOptions().map_entry:
        key, item = (_one(part, unit, within) for part in _fields(known.message_type))
        return _Column(
            map_of(key.value_type, item.value_type),
            lambda message: [(key.value(of), item.value(value)) for of, value in getattr(message, name).items()],
            map_type(key.held, item.held),
        )
    one = _one(known, unit, within)
    if known.is_repeated:
        return _Column(
            list_of(one.value_type),
            lambda message: [one.value(value) for value in getattr(message, name)],
            list_type(one.held),
        )
    if not known.has_presence:
        return replace(one, value=lambda message: one.value(getattr(message, name)))
    return replace(one, value=lambda message: one.value(getattr(message, name)) if message.HasField(name) else None)


def _one(known: Any, unit: str, within: tuple[str, ...]) -> _Column:
    """The column of single values of a field; its `value` takes the value itself, not a message with it."""
    if known.type == known.TYPE_GROUP:
        raise SourceError(f"Protobuf field {known.full_name} is a group, which is not supported: make it a message")
    if known.type == known.TYPE_ENUM:
        names = {value.number: value.name for value in reversed(known.enum_type.values)}
        # A number without a name is its own text.
        return _plain(pa.string(), lambda number: names.get(number, str(number)))
    if known.type == known.TYPE_STRING:
        return _plain(pa.string(), _text)
    if known.message_type is None:
        return _plain(_scalars()[known.type])
    return _message(known, unit, within)


def _message(known: Any, unit: str, within: tuple[str, ...]) -> _Column:
    """The column of single messages of a field."""
    descriptor = known.message_type
    if descriptor.full_name in within:
        raise SourceError(
            f"Protobuf field {known.full_name} is of type {descriptor.full_name}, which contains itself: no column type can "
            "hold it; send it as text or bytes"
        )
    if descriptor.full_name in _TIMES:
        arrow, value = _TIMES[descriptor.full_name]
        if not callable(arrow):
            return _plain(arrow, value)
        nanos = 1 if unit == "ns" else 1_000
        return _Column(ValueType(arrow("us")), lambda message: value(message) // nanos, arrow(unit))
    columns = _columns(descriptor, unit, within)
    if descriptor.full_name in _WRAPPERS:
        return columns["value"]
    if not columns:
        return _plain(pa.bool_(), lambda _: True)
    if descriptor.full_name == _DECIMAL:
        value_type = _decimal_type(known)
    else:
        value_type = struct_of((name, column.value_type) for name, column in columns.items())
    held = pa.struct([(name, column.held) for name, column in columns.items()])
    return _Column(value_type, lambda message: _members(message, columns), held)


def _members(message: Any, columns: Mapping[str, _Column]) -> dict[str, Any]:
    return {name: column.value(message) for name, column in columns.items()}


def _plain(arrow: pa.DataType, value: Callable[[Any], Any] = lambda value: value) -> _Column:
    return _Column(ValueType(arrow), value, arrow)


def _decimal_type(known: Any) -> ValueType:
    """Decimals that each have their own scale, in a column with the scale that the options of the field state, if they do."""
    parameters = _options_of_fields().FromString(known.GetOptions().SerializeToString()).meta.params
    scale, digits = (int(parameters.get(name, MAX_DIGITS)) for name in ("scale", "precision"))
    if "scale" not in parameters or max(scale, digits) > MAX_DIGITS:
        return OF_OWN_SCALES
    scale = max(scale, 0)
    return ValueType(pa.decimal128(max(digits, scale, 1), scale), Encoding.SCALED)


@cache
def _scalars() -> Mapping[int, pa.DataType]:
    """Column types by type of field. A number without a sign has the next wider type."""
    from google.protobuf.descriptor import FieldDescriptor as Of

    return {
        **dict.fromkeys((Of.TYPE_INT32, Of.TYPE_SINT32, Of.TYPE_SFIXED32), pa.int32()),
        **dict.fromkeys((Of.TYPE_INT64, Of.TYPE_SINT64, Of.TYPE_SFIXED64), pa.int64()),
        **dict.fromkeys((Of.TYPE_UINT32, Of.TYPE_FIXED32), pa.int64()),
        **dict.fromkeys((Of.TYPE_UINT64, Of.TYPE_FIXED64), pa.decimal128(20, 0)),
        Of.TYPE_DOUBLE: pa.float64(),
        Of.TYPE_FLOAT: pa.float32(),
        Of.TYPE_BOOL: pa.bool_(),
        Of.TYPE_BYTES: pa.binary(),
    }


def _text(value: str | bytes) -> str:
    """A text, which the library leaves as bytes where it is not UTF-8, as proto2 allows."""
    return value.decode() if isinstance(value, bytes) else value


def _require_time(*, exists: bool) -> None:
    if not exists:
        raise _NoTimeError


def _instant(message: Any) -> int:
    """Nanoseconds since 1970."""
    _require_time(exists=0 <= message.nanos < _NANOS)
    return int(min(max(message.seconds, -_FAR_SECONDS), _FAR_SECONDS) * _NANOS + message.nanos)


def _duration(message: Any) -> int:
    """Nanoseconds; seconds and nanoseconds have the same sign."""
    seconds, nanos = message.seconds, message.nanos
    _require_time(exists=abs(seconds) < _MAX_SECONDS_IN_NANOS and abs(nanos) < _NANOS and seconds * nanos >= 0)
    return int(seconds * _NANOS + nanos)


def _date(message: Any) -> int:
    """Days since 1970; a date without a month or day does not exist, and other years than 1 to 9999 are infinitely far."""
    is_near = 0 < message.year < 10_000
    try:
        days = date(message.year if is_near else 2000, message.month, message.day).toordinal() - _DAYS_TO_1970
    except ValueError as error:
        raise _NoTimeError from error
    return days if is_near else _FAR_DAYS if message.year > 0 else -_FAR_DAYS


def _time(message: Any) -> int:
    """Nanoseconds since midnight."""
    parts = ((message.hours, 24), (message.minutes, 60), (message.seconds, 60), (message.nanos, _NANOS))
    _require_time(exists=all(0 <= number < limit for number, limit in parts))
    return int(((message.hours * 60 + message.minutes) * 60 + message.seconds) * _NANOS + message.nanos)


_TIMES: Mapping[str, tuple[Any, Callable[[Any], int]]] = {
    "google.protobuf.Timestamp": (partial(pa.timestamp, tz="UTC"), _instant),
    "google.protobuf.Duration": (pa.int64(), _duration),
    "google.type.Date": (pa.date32(), _date),
    "google.type.TimeOfDay": (pa.time64, _time),
}
"""Types of messages that are times: a column type, or one for each unit, and their values, with a unit in nanoseconds."""
