"""The type of a column and the encoding in which a feed writes it.

Covers members of structs, lists and maps, and the plain types that mirrors store. `json_columns.py` and
`arrow_columns.py` decode values by these types.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

import pyarrow as pa

from nevermore.pipelines.config.values import type_of
from nevermore.pipelines.errors import ConfigError
from nevermore.scan_core import ScanError, arrow_type


class Encoding(Enum):
    """How a JSON value represents a value of the column's type, where JSON alone is ambiguous."""

    NATURAL = "natural"
    """Numbers, booleans and text unchanged; temporal values as ISO text or, if numbers, in the usual unit."""
    DAYS = "days"
    SECONDS = "seconds"
    MILLIS = "millis"
    MICROS = "micros"
    NANOS = "nanos"
    SQL_MDY = "sql-mdy"
    """Dates and timestamps as PostgreSQL writes them in a DateStyle other than ISO."""
    SQL_DMY = "sql-dmy"
    POSTGRES_MDY = "postgres-mdy"
    POSTGRES_DMY = "postgres-dmy"
    GERMAN = "german"
    PLAIN = "plain"
    """Decimals as numbers or numeric text, never as base64."""
    BASE64 = "base64"
    HEX = "hex"
    LATIN1 = "latin1"
    TEXT = "text"
    """The value's own JSON text, of any kind."""
    SCALED = "scaled"
    """An object of `scale` and base64 `value`: Debezium's VariableScaleDecimal."""


InfiniteDates = Literal["quarantine", "null", "clamp"]
"""What becomes of dates and timestamps outside of the years 1 to 9999, such as PostgreSQL's infinity."""

DATE_STYLES = frozenset(
    {Encoding.SQL_MDY, Encoding.SQL_DMY, Encoding.POSTGRES_MDY, Encoding.POSTGRES_DMY, Encoding.GERMAN}
)


_UNITS = frozenset({Encoding.SECONDS, Encoding.MILLIS, Encoding.MICROS, Encoding.NANOS})
_OF_TIMES = DATE_STYLES | _UNITS | {Encoding.DAYS}
_OF_BYTES = frozenset({Encoding.BASE64, Encoding.HEX, Encoding.LATIN1})
_OF_DECIMALS = frozenset({Encoding.PLAIN, Encoding.BASE64, Encoding.SCALED})


@dataclass(frozen=True)
class ValueType:
    """A column's type and encoding.

    Attributes:
        arrow: the type of the decoded column.
        encoding: how the feed writes it.
        members: types of the members of a struct, by name; of a list, `element`; of a map, `key` and `value`.
        explicit: set by the config, so that conversions such as numbers to text are allowed.
        widens: whether an int becomes a long if a value needs it.
        into: the column's type, if it differs: decoded values must fit it unchanged.
        inferred: derived from values alone. Members that a declared struct lacks are left out; a value with a member that an
            inferred one lacks is wrong, because nobody decided that the member is not wanted.
        scale: scale of a decimal's unscaled value in bytes or base64, if it is not that of the type: Iceberg's decimals
            have scales of 0 to 38, other schemas any.
        infinite: what becomes of dates outside of the years 1 to 9999.
    """

    arrow: pa.DataType
    encoding: Encoding = Encoding.NATURAL
    members: tuple[tuple[str, "ValueType"], ...] = ()
    explicit: bool = False
    widens: bool = False
    into: pa.DataType | None = None
    scale: int | None = None
    inferred: bool = False
    infinite: InfiniteDates = "quarantine"


def list_type(element: pa.DataType) -> pa.ListType:
    """The type of lists with these elements, as tables have it."""
    return pa.list_(pa.field("element", element))


def map_type(key: pa.DataType, value: pa.DataType) -> pa.MapType:
    """The type of maps with these keys and values, as tables have it."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))


def struct_of(members: Iterable[tuple[str, ValueType]]) -> ValueType:
    """Structs with these members."""
    known = tuple(members)
    return ValueType(pa.struct([pa.field(name, member.arrow) for name, member in known]), members=known)


def list_of(element: ValueType) -> ValueType:
    """Lists with these elements."""
    return ValueType(list_type(element.arrow), members=(("element", element),))


def map_of(key: ValueType, value: ValueType) -> ValueType:
    """Maps with these keys and values."""
    return ValueType(map_type(key.arrow, value.arrow), members=(("key", key), ("value", value)))


def from_arrow(arrow: pa.DataType, encoding: Encoding = Encoding.NATURAL, *, explicit: bool = False) -> ValueType:
    """The value type of an Arrow type, with `encoding` at its leaves."""
    members: tuple[tuple[str, ValueType], ...] = ()
    if pa.types.is_struct(arrow):
        members = tuple((f.name, from_arrow(f.type, encoding, explicit=explicit)) for f in arrow)
    elif pa.types.is_map(arrow):
        members = (
            ("key", from_arrow(arrow.key_type, encoding, explicit=explicit)),
            ("value", from_arrow(arrow.item_type, encoding, explicit=explicit)),
        )
    elif pa.types.is_list(arrow):
        members = (("element", from_arrow(arrow.value_type, encoding, explicit=explicit)),)
    return ValueType(arrow, Encoding.NATURAL if members else encoding, members, explicit)


def with_plain_decimals(type_: ValueType) -> ValueType:
    """The same type for a feed that never writes decimals as base64."""
    if type_.members:
        return replace(type_, members=tuple((name, with_plain_decimals(member)) for name, member in type_.members))
    is_open = pa.types.is_decimal(type_.arrow) and type_.encoding is Encoding.NATURAL
    return replace(type_, encoding=Encoding.PLAIN) if is_open else type_


def with_infinite_dates(type_: ValueType, infinite: InfiniteDates) -> ValueType:
    """The same type with this rule for dates outside of the years 1 to 9999."""
    members = tuple((name, with_infinite_dates(member, infinite)) for name, member in type_.members)
    return replace(type_, members=members, infinite=infinite)


def as_written(wanted: ValueType, declared: ValueType) -> ValueType:
    """Add a feed's declared encodings to `wanted` where it has none: the schema knows best how values are written."""
    if wanted.members and declared.members:
        known = dict(declared.members)
        members = tuple((n, as_written(m, known[n]) if n in known else m) for n, m in wanted.members)
        return replace(wanted, members=members)
    if wanted.encoding is not Encoding.NATURAL or wanted.members or declared.members:
        return wanted
    if declared.encoding is Encoding.SCALED:
        return replace(wanted, encoding=Encoding.SCALED)
    own = declared.scale if declared.scale is not None else getattr(declared.arrow, "scale", None)
    is_number = pa.types.is_decimal(wanted.arrow)
    if declared.encoding is Encoding.BASE64 and own is not None and (is_number or pa.types.is_string(wanted.arrow)):
        return replace(wanted, encoding=Encoding.BASE64, scale=own)
    if is_number:
        return replace(wanted, encoding=Encoding.PLAIN)
    same_kind = any(of(wanted.arrow) and of(declared.arrow) for of in (pa.types.is_temporal, is_bytes))
    return replace(wanted, encoding=declared.encoding) if same_kind else wanted


def is_bytes(arrow: pa.DataType) -> bool:
    """Whether the values of the type are bytes."""
    return bool(pa.types.is_binary(arrow) or pa.types.is_fixed_size_binary(arrow))


def encodings_of(types: Mapping[str, ValueType]) -> dict[str, str]:
    """Encodings of the values of columns and their members, where decided, by path."""
    result: dict[str, str] = {}
    for name, type_ in types.items():
        if type_.members:
            result |= {f"{name}.{path}": text for path, text in encodings_of(dict(type_.members)).items()}
        elif type_.encoding is Encoding.BASE64 and (type_.scale is not None or pa.types.is_decimal(type_.arrow)):
            result[name] = f"base64:{type_.arrow.scale if type_.scale is None else type_.scale}"
        elif type_.encoding not in {Encoding.NATURAL, Encoding.TEXT}:
            result[name] = type_.encoding.value
    return result


def with_written(type_: ValueType, path: str, known: Mapping[str, str]) -> ValueType:
    """The type of the column at `path` with the encodings recorded earlier by `encodings_of`, where it has none."""
    if type_.members:
        return replace(type_, members=tuple((n, with_written(m, f"{path}.{n}", known)) for n, m in type_.members))
    if type_.encoding is not Encoding.NATURAL or path not in known:
        return type_
    name, _, scale = known[path].partition(":")
    encoding = Encoding(name)
    if scale or pa.types.is_decimal(type_.arrow) or encoding is Encoding.SCALED:
        kept = ValueType(pa.decimal128(38, 0), encoding, scale=int(scale) if scale else None)
        return as_written(type_, kept if encoding is not Encoding.PLAIN else ValueType(pa.string()))
    meant_for = pa.types.is_temporal(type_.arrow) if encoding in _OF_TIMES else is_bytes(type_.arrow)
    return replace(type_, encoding=encoding) if meant_for else type_


def from_config(types: Mapping[str, str], encodings: Mapping[str, str] | None = None) -> dict[str, ValueType]:
    """Value types by column from Iceberg type names and names of encodings.

    Raises:
        ConfigError: unknown type or encoding, or an encoding for a column without a type or of another type.
    """
    encodings = encodings or {}
    result = {}
    for column, text in types.items():
        try:
            arrow = arrow_type(type_of(text))
        except ScanError as error:
            raise ConfigError(f"types.{column}: {error}") from error
        try:
            encoding = Encoding(encodings.get(column, "natural"))
        except ValueError as error:
            valid = ", ".join(e.value for e in Encoding)
            raise ConfigError(
                f"encodings.{column}: unknown encoding {encodings[column]!r}; valid are {valid}"
            ) from error
        if encoding is not Encoding.NATURAL and encoding not in (valid_here := _encodings_for(arrow)):
            names = ", ".join(e.value for e in Encoding if e in valid_here)
            hint = f"; valid are {names}" if names else ", whose values have one encoding only"
            raise ConfigError(
                f"encodings.{column}: {encoding.value} is not an encoding of {column}, which is {describe(arrow)}{hint}"
            )
        result[column] = from_arrow(arrow, encoding, explicit=True)
    if lost := sorted(set(encodings) - set(types)):
        raise ConfigError(f"encodings name columns without a type: {', '.join(lost)}; add them to types")
    return result


def _encodings_for(arrow: pa.DataType) -> frozenset[Encoding]:
    """The encodings that decide how values of a primitive type are read."""
    if pa.types.is_date(arrow) or pa.types.is_timestamp(arrow):
        return _OF_TIMES
    if pa.types.is_time(arrow):
        return _UNITS
    if pa.types.is_decimal(arrow):
        return _OF_DECIMALS
    if pa.types.is_string(arrow):
        return frozenset({Encoding.TEXT, Encoding.SCALED})
    return _OF_BYTES if is_bytes(arrow) else frozenset()


_NAMED = (
    *("boolean", "int", "long", "float", "double", "date", "time", "uuid"),
    *("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"),
)
_NAMES = {arrow_type(type_of(name)): name for name in _NAMED}


def describe(arrow: pa.DataType) -> str:
    """The Iceberg name of an Arrow type, for messages."""
    if arrow in _NAMES:
        return _NAMES[arrow]
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_fixed_size_binary(arrow):
        return f"fixed[{arrow.byte_width}]"
    return "struct" if pa.types.is_struct(arrow) else str(arrow)


def paths_below(
    explicit: Mapping[str, ValueType], column: str, columns: Sequence[str]
) -> dict[tuple[str, ...], ValueType]:
    """The entries of `explicit` for members of a column; a column whose name equals a path takes its type."""
    prefix = f"{column}."
    return {
        tuple(name.removeprefix(prefix).split(".")): wanted
        for name, wanted in explicit.items()
        if name.startswith(prefix) and name not in columns
    }


def with_members(
    found: ValueType, wanted: Mapping[tuple[str, ...], ValueType], column: str, *, is_member: bool = False
) -> ValueType:
    """The type with `wanted` types for its members, which decide what objects and lists are that values do not tell.

    Raises:
        ConfigError: a path to a member that the type does not have.
    """
    if not wanted:
        return found
    is_open = found.encoding is Encoding.TEXT and not found.explicit
    if is_open or pa.types.is_null(found.arrow):
        if {path[0] for path in wanted} == {"element"}:
            nothing = ValueType(pa.null())
            found = ValueType(pa.list_(pa.null()), members=(("element", nothing),))  # of lists without elements
        elif is_open or is_member:
            found = ValueType(pa.struct([]), inferred=True)
        else:
            return found
    known = dict(found.members)
    lost = {path[0] for path in wanted} - set(known)
    if not pa.types.is_nested(found.arrow) or (lost and not pa.types.is_struct(found.arrow)):
        inside = ", ".join(known) or "nothing"
        shown = ", ".join(sorted(".".join((column, *path)) for path in wanted))
        raise ConfigError(f"types: {shown}: {column} is {found.arrow}, which contains {inside}")
    for name in dict.fromkeys(path[0] for path in wanted):
        own = wanted.get((name,), known.get(name, ValueType(pa.null())))
        deeper = {path[1:]: t for path, t in wanted.items() if path[0] == name and len(path) > 1}
        known[name] = with_members(own, deeper, f"{column}.{name}", is_member=True)
    members = tuple((name, member) for name, member in known.items() if not pa.types.is_null(member.arrow))
    return replace(found, arrow=_arrow(found.arrow, dict(members)), encoding=Encoding.NATURAL, members=members)


def _arrow(arrow: pa.DataType, members: Mapping[str, ValueType]) -> pa.DataType:
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(name, member.arrow) for name, member in members.items()])
    if pa.types.is_map(arrow):
        return map_type(members["key"].arrow, members["value"].arrow)
    return list_type(members["element"].arrow)


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """The Iceberg type that holds every value of an Arrow type."""
    if pa.types.is_dictionary(arrow):
        return plain_type(arrow.value_type)
    if pa.types.is_nested(arrow):
        return _plain_nested(arrow)
    if pa.types.is_temporal(arrow):
        return _plain_temporal(arrow)
    if pa.types.is_integer(arrow):
        return _plain_integer(arrow)
    if pa.types.is_decimal(arrow):
        return pa.decimal128(min(arrow.precision, 38), max(min(arrow.scale, 38), 0))
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow):
        return pa.binary()
    return pa.float32() if arrow == pa.float16() else arrow


def _plain_integer(arrow: pa.DataType) -> pa.DataType:
    if arrow == pa.uint64():
        return pa.decimal128(20, 0)
    return pa.int64() if arrow in (pa.int64(), pa.uint32()) else pa.int32()


def _plain_temporal(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_date(arrow):
        return pa.date32()
    if pa.types.is_time(arrow):
        return pa.time64("us")
    if pa.types.is_timestamp(arrow):
        # Nanoseconds require tables of format 3, whose columns say so; others hold microseconds.
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    return pa.int64()


def _plain_nested(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(f.name, plain_type(f.type)) for f in arrow])
    if pa.types.is_map(arrow):
        return map_type(plain_type(arrow.key_type), plain_type(arrow.item_type))
    return list_type(plain_type(arrow.value_type))
