"""Protobuf schemas and messages of feeds, both read by the protobuf library: the value types of fields, and their columns."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from nevermore.pipelines.decode.value_types import Encoding, ValueType
from nevermore.pipelines.errors import SourceError, WideBatchError
from nevermore.pipelines.jsonscan.members import MIN_CELLS
from nevermore.pipelines.jsonscan.spans import from_binary
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
    """Reads the messages of one type by the protobuf library; `types` are the value types of its fields."""

    types: Mapping[str, ValueType]
    parse: Callable[[bytes], Any]
    columns: "tuple[_Column, ...]"
    num_cells: int

    def read(self, values: pa.BinaryArray) -> tuple[pa.Table, Mask]:
        """Read the values as rows, and the mask of invalid ones, whose columns mean nothing.

        A message is invalid that is broken, lacks a required field or has a time that does not exist.

        Raises:
            WideBatchError: the fields take far more memory as columns than as bytes, as most of them are not set.
        """
        if self.num_cells * len(values) > max(MIN_CELLS, values.nbytes):
            raise WideBatchError(
                f"{len(values):,} messages with {self.num_cells:,} fields, which take far more memory as columns than "
                "their bytes"
            )
        rows = [self._row(value) for value in values.to_pylist()]
        bad = np.fromiter((row is None for row in rows), np.bool_, len(rows))
        return pa.table({name: _nth(rows, at, column) for at, (name, column) in enumerate(self._named())}), bad

    def _named(self) -> "Iterator[tuple[str, _Column]]":
        return zip(self.types, self.columns, strict=True)

    def _row(self, value: bytes | None) -> tuple[Any, ...] | None:
        from google.protobuf.message import DecodeError

        if value is None:
            return None
        try:
            message = self.parse(value)
            return _members(message, self.columns) if message.IsInitialized() else None
        except (DecodeError, UnicodeDecodeError, _NoTimeError):
            return None


@lru_cache(maxsize=1024)
def _reader(schema: RegisteredSchema, position: bytes) -> ProtobufReader:
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    try:
        descriptor = _message_type(schema, _indexes(position))
        columns = _columns(descriptor, ())
    except (Base64Error, UnicodeError, DecodeError) as error:
        raise SourceError(
            f"a Protobuf schema that is not a serialized descriptor: it begins {schema.text[:120]!r}; use a registry that "
            "answers to format=serialized, or a folder of <id>.desc files (schemas), which protoc --include_imports "
            "--descriptor_set_out writes"
        ) from error
    except (TypeError, KeyError, ImportError) as error:
        raise SourceError(f"a Protobuf schema that cannot be used: {error}") from error
    types = {known.name: column.value_type for known, column in zip(_fields(descriptor), columns, strict=True)}
    return ProtobufReader(types, GetMessageClass(descriptor).FromString, columns, sum(map(_num_cells, columns)))


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
        value: takes the field's value out of a message, with None for NULL; a message in it becomes a tuple.
        array: makes the array of many such values.
        members: columns of the messages in it.
    """

    value_type: ValueType
    value: Callable[[Any], Any]
    array: Callable[[Sequence[Any]], pa.Array]
    members: "tuple[_Column, ...]" = ()


def _num_cells(column: _Column) -> int:
    return sum(map(_num_cells, column.members)) or 1


def _members(message: Any, columns: Sequence[_Column]) -> tuple[Any, ...]:
    return tuple(column.value(message) for column in columns)


def _nth(rows: Sequence[tuple[Any, ...] | None], at: int, column: _Column) -> pa.Array:
    return column.array([None if row is None else row[at] for row in rows])


def _fields(descriptor: Any) -> list[Any]:
    return sorted(descriptor.fields, key=lambda known: known.number)


def _columns(descriptor: Any, within: tuple[str, ...]) -> tuple[_Column, ...]:
    """The columns of a message type, by ascending number of the field.

    Raises:
        SourceError: no column type can hold one of its fields.
    """
    here = (*within, descriptor.full_name)
    return tuple(_field(known, here) for known in _fields(descriptor))


def _field(known: Any, within: tuple[str, ...]) -> _Column:
    name = known.name
    if known.message_type is not None and known.message_type.GetOptions().map_entry:
        return _map(name, *(_one(part, within) for part in _fields(known.message_type)))
    one = _one(known, within)
    if known.is_repeated:
        return _list(name, one)
    if not known.has_presence:
        return replace(one, value=lambda message: one.value(getattr(message, name)))
    return replace(one, value=lambda message: one.value(getattr(message, name)) if message.HasField(name) else None)


def _list(name: str, one: _Column) -> _Column:
    arrow = pa.list_(pa.field("element", one.value_type.arrow))

    def array(lists: Sequence[Any]) -> pa.Array:
        element = one.array([value for values in lists for value in values or ()])
        return pa.ListArray.from_arrays(_offsets(lists), element, type=pa.list_(pa.field("element", element.type)))

    return _Column(
        ValueType(arrow, members=(("element", one.value_type),)),
        lambda message: [one.value(value) for value in getattr(message, name)],
        array,
        (one,),
    )


def _map(name: str, key: _Column, item: _Column) -> _Column:
    arrow = pa.map_(pa.field("key", key.value_type.arrow, nullable=False), pa.field("value", item.value_type.arrow))

    def array(maps: Sequence[Any]) -> pa.Array:
        entries = [entry for given in maps for entry in given or ()]
        keys, items = key.array([of for of, _ in entries]), item.array([value for _, value in entries])
        return pa.MapArray.from_arrays(_offsets(maps), keys, items)

    return _Column(
        ValueType(arrow, members=(("key", key.value_type), ("value", item.value_type))),
        lambda message: [(key.value(of), item.value(value)) for of, value in getattr(message, name).items()],
        array,
        (key, item),
    )


def _offsets(lists: Sequence[Any]) -> pa.Array:
    return pa.array(np.cumsum([0, *(len(values or ()) for values in lists)]), pa.int32())


def _one(known: Any, within: tuple[str, ...]) -> _Column:
    """The column of single values of a field; its `value` takes the value itself, not a message with it."""
    descriptor = known.message_type
    if known.type == known.TYPE_GROUP:
        raise SourceError(f"Protobuf field {known.full_name} is a group, which is not supported: make it a message")
    if known.type == known.TYPE_ENUM:
        names = {value.number: value.name for value in reversed(known.enum_type.values)}
        # A number without a name is its own text.
        return _plain(pa.string(), lambda number: names.get(number, str(number)))
    if known.type == known.TYPE_STRING:
        return _plain(pa.string(), _text)
    if descriptor is None:
        return _plain(_scalars()[known.type])
    if descriptor.full_name in within:
        raise SourceError(
            f"Protobuf field {known.full_name} is of type {descriptor.full_name}, which contains itself: no column type can "
            "hold it; send it as text or bytes"
        )
    if descriptor.full_name in _TIMES:
        return _TIMES[descriptor.full_name]
    columns = _columns(descriptor, within)
    if descriptor.full_name in _WRAPPERS:
        return columns[0]
    if not columns:
        return _plain(pa.bool_(), lambda _: True)
    return _struct(known, [part.name for part in _fields(descriptor)], columns)


def _plain(arrow: pa.DataType, value: Callable[[Any], Any] = lambda value: value) -> _Column:
    return _Column(ValueType(arrow), value, lambda values: pa.array(values, arrow))


def _struct(known: Any, names: Sequence[str], columns: tuple[_Column, ...]) -> _Column:
    if known.message_type.full_name == _DECIMAL:
        value_type = _decimal_type(known)
    else:
        members = tuple((name, column.value_type) for name, column in zip(names, columns, strict=True))
        value_type = ValueType(pa.struct([pa.field(name, member.arrow) for name, member in members]), members=members)

    def array(rows: Sequence[Any]) -> pa.Array:
        mask = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays([_nth(rows, at, c) for at, c in enumerate(columns)], [*names], mask=mask)

    return _Column(value_type, lambda message: _members(message, columns), array, columns)


def _decimal_type(known: Any) -> ValueType:
    """Decimals that each have their own scale, in a column with the scale that the options of the field state, if they do."""
    parameters = _options_of_fields().FromString(known.GetOptions().SerializeToString()).meta.params
    if "scale" not in parameters:
        return OF_OWN_SCALES
    scale = min(max(int(parameters["scale"]), 0), MAX_DIGITS)
    digits = min(max(int(parameters.get("precision", MAX_DIGITS)), scale, 1), MAX_DIGITS)
    return ValueType(pa.decimal128(digits, scale), Encoding.SCALED)


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


def _in_units(values: Sequence[int | None], arrow: Callable[[str], pa.DataType]) -> pa.Array:
    """Times in microseconds, or in nanoseconds where these are needed and fit 64 bits."""
    given = [value for value in values if value is not None]
    if any(value % 1_000 for value in given) and all(abs(value) < 2**63 for value in given):
        return pa.array(values, pa.int64()).view(arrow("ns"))
    micros = [None if value is None else value // 1_000 for value in values]
    return pa.array(micros, pa.int64()).view(arrow("us"))


def _instants(unit: str) -> pa.DataType:
    return pa.timestamp(unit, "UTC")


_TIMES: Mapping[str, _Column] = {
    "google.protobuf.Timestamp": _Column(ValueType(_instants("us")), _instant, partial(_in_units, arrow=_instants)),
    "google.protobuf.Duration": _plain(pa.int64(), _duration),
    "google.type.Date": _plain(pa.date32(), _date),
    "google.type.TimeOfDay": _Column(ValueType(pa.time64("us")), _time, partial(_in_units, arrow=pa.time64)),
}
