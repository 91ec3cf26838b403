"""Schemas that feeds declare, converted to value types.

Covers Kafka Connect schemas and the type names of MySQL and PostgreSQL. Avro schemas are in `avro.py`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

from nevermore.pipelines.decode.value_types import Encoding, ValueType, list_of, map_of, struct_of

_PHYSICAL: Mapping[str, pa.DataType] = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}

_TIMESTAMP = pa.timestamp("us")
_TIMESTAMPTZ = pa.timestamp("us", "UTC")
_TIME = pa.time64("us")

_LOGICAL: Mapping[str, ValueType] = {
    "org.apache.kafka.connect.data.Date": ValueType(pa.date32(), Encoding.DAYS),
    "org.apache.kafka.connect.data.Time": ValueType(_TIME, Encoding.MILLIS),
    "org.apache.kafka.connect.data.Timestamp": ValueType(_TIMESTAMP, Encoding.MILLIS),
    "io.debezium.time.Date": ValueType(pa.date32(), Encoding.DAYS),
    "io.debezium.time.Time": ValueType(_TIME, Encoding.MILLIS),
    "io.debezium.time.MicroTime": ValueType(_TIME, Encoding.MICROS),
    "io.debezium.time.NanoTime": ValueType(_TIME, Encoding.NANOS),
    "io.debezium.time.Timestamp": ValueType(_TIMESTAMP, Encoding.MILLIS),
    "io.debezium.time.MicroTimestamp": ValueType(_TIMESTAMP, Encoding.MICROS),
    "io.debezium.time.NanoTimestamp": ValueType(_TIMESTAMP, Encoding.NANOS),
    "io.debezium.time.ZonedTimestamp": ValueType(_TIMESTAMPTZ),
    "io.debezium.time.IsoDate": ValueType(pa.date32()),
    "io.debezium.time.IsoTime": ValueType(_TIME),
    "io.debezium.time.IsoTimestamp": ValueType(_TIMESTAMP),
    # A time with a zone has no Iceberg type; as text it loses nothing.
    "io.debezium.time.ZonedTime": ValueType(pa.string()),
    "io.debezium.time.Interval": ValueType(pa.string()),
    "io.debezium.time.MicroDuration": ValueType(pa.int64()),
    "io.debezium.time.NanoDuration": ValueType(pa.int64()),
    "io.debezium.time.Year": ValueType(pa.int32()),
    "io.debezium.data.Bits": ValueType(pa.binary(), Encoding.BASE64),
    "io.debezium.data.Json": ValueType(pa.string(), Encoding.TEXT),
    "io.debezium.data.Xml": ValueType(pa.string()),
    "io.debezium.data.Enum": ValueType(pa.string()),
    "io.debezium.data.EnumSet": ValueType(pa.string()),
    "io.debezium.data.Uuid": ValueType(pa.binary(16), Encoding.HEX),
    "io.debezium.data.Ltree": ValueType(pa.string()),
    "io.debezium.data.TsVector": ValueType(pa.string()),
}

MAX_DIGITS = 38
"""Most digits of an Iceberg decimal; also the largest scale."""
UNKNOWN_PRECISION = 64
"""What Connect's converter to Avro writes where it knows none."""
OF_OWN_SCALES = ValueType(pa.string(), Encoding.SCALED)
"""Decimals that each have their own scale, such as those of a numeric without precision: only text holds them all."""


class RepeatedNameError(ValueError):
    """A name occurs twice where it may occur once, so its value is ambiguous."""


def load(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        RepeatedNameError: an object in it gives a member twice.
        ValueError: not JSON.
    """
    orjson.loads(text)  # rejects what the other parser accepts beyond JSON: NaN, Infinity
    return json.loads(text, object_pairs_hook=_members)


def once(names: Iterable[Any]) -> tuple[Any, ...]:
    """Return the names if they are unique.

    Raises:
        RepeatedNameError: a name occurs twice.
    """
    found = tuple(names)
    if len(set(found)) < len(found):
        raise RepeatedNameError(f"a name occurs twice: {', '.join(map(str, found))}")
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    once(name for name, _ in pairs)
    return dict(pairs)


@lru_cache(maxsize=256)
def parse(document: bytes) -> Mapping[str, Any] | None:
    """Parse the schema in a document; None for `null` and for anything that is not a schema.

    Raises:
        RepeatedNameError: an object in it gives a member twice.
    """
    try:
        schema = load(document)
    except orjson.JSONDecodeError:
        return None
    return schema if isinstance(schema, dict) else None


@lru_cache(maxsize=256)
def row_types(document: bytes, *images: str) -> Mapping[str, ValueType]:
    """Value types by column of the first of `images` that is a field, or of the schema's own fields if none is.

    A schema document that names no such struct gives an empty mapping.

    Raises:
        RepeatedNameError: a member or a column occurs in it twice.
        ValueError: parts of the document are not in Connect's form.
    """
    schema = parse(document)
    if schema is None:
        return {}
    try:
        return _row_types(schema, images)
    except RepeatedNameError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("not a schema of Kafka Connect") from error


def _row_types(schema: Mapping[str, Any], images: Sequence[str]) -> Mapping[str, ValueType]:
    fields = schema.get("fields") or []
    for part in (fields, *(field.get("fields") or [] for field in fields if field.get("field") in images)):
        once(field["field"] for field in part if "field" in field)
    for image in images:
        for field in fields:
            if field.get("field") == image and field.get("fields"):
                return {member["field"]: value_type(member) for member in field["fields"] if "field" in member}
    if images and any(f.get("field") in ("op", "source", *images) for f in fields):
        return {}
    return {member["field"]: value_type(member) for member in fields if "field" in member}


def value_type(schema: Mapping[str, Any]) -> ValueType:
    """The value type of one Connect field schema."""
    named = logical_type(schema.get("name"), schema.get("parameters") or {})
    if named is not None:
        return named
    match schema.get("type"):
        case "struct":
            members = tuple((f["field"], value_type(f)) for f in schema.get("fields") or [])
            once(name for name, _ in members)
            if not members:
                return ValueType(pa.string(), Encoding.TEXT)
            return struct_of(members)
        case "array":
            return list_of(value_type(schema.get("items") or {}))
        case "map":
            return map_of(value_type(schema.get("keys") or {}), value_type(schema.get("values") or {}))
        case "bytes":
            return ValueType(pa.binary(), Encoding.BASE64)
        case str(physical) if physical in _PHYSICAL:
            return ValueType(_PHYSICAL[physical])
        case _:
            return ValueType(pa.string(), Encoding.TEXT)


def logical_type(name: Any, parameters: Mapping[str, Any]) -> ValueType | None:
    """The value type of a logical name of Connect or Debezium; None if the name is not known."""
    if name == "org.apache.kafka.connect.data.Decimal":
        return _decimal(parameters)
    if name == "io.debezium.data.VariableScaleDecimal":
        return OF_OWN_SCALES
    return _LOGICAL.get(name) if isinstance(name, str) else None


def _decimal(parameters: Mapping[str, Any]) -> ValueType:
    """Connect's Decimal: the scale is always given, the precision only sometimes."""
    return decimal_type(
        int(parameters.get("scale", 0)), int(parameters.get("connect.decimal.precision", UNKNOWN_PRECISION))
    )


def decimal_type(scale: int, precision: int) -> ValueType:
    """A decimal of unscaled bytes; exact text if it has more digits than one of Iceberg."""
    digits, held = _digits(MAX_DIGITS if precision == UNKNOWN_PRECISION else precision, scale)
    if held > MAX_DIGITS or (digits > MAX_DIGITS and precision != UNKNOWN_PRECISION):
        return replace(_EXACT, encoding=Encoding.BASE64, scale=scale)
    decimal = pa.decimal128(min(digits, MAX_DIGITS), held)
    return ValueType(decimal, Encoding.BASE64, scale=None if held == scale else scale)


_TEXT = ValueType(pa.string())
_EXACT = ValueType(pa.string(), explicit=True)
"""Decimals of more digits than Iceberg has, or of any number of digits, which some feeds write as numbers of JSON."""
_NAME = re.compile(r"\s*([a-z_0-9]+(?: +[a-z_0-9]+)*)\s*(?:\(([^)]*)\))?\s*([a-z ]*?)\s*", re.IGNORECASE)

_DECIMAL_ARGUMENTS = re.compile(r"\d{1,9}(,-?\d{1,9})?")

_MYSQL: Mapping[str, ValueType] = {
    **dict.fromkeys(
        ("tinyint", "smallint", "mediumint", "int", "integer", "year", "bool", "boolean"), ValueType(pa.int32())
    ),
    "bigint": ValueType(pa.int64()),
    "bit": ValueType(pa.int64()),
    # A FLOAT's shortest text is exact as a double, not as a float that is widened later.
    **dict.fromkeys(("float", "double", "real", "double precision"), ValueType(pa.float64())),
    "date": ValueType(pa.date32()),
    "time": ValueType(pa.time64("us")),
    **dict.fromkeys(("datetime", "timestamp"), ValueType(pa.timestamp("us"))),
    **dict.fromkeys(
        (
            *("binary", "varbinary", "blob", "tinyblob", "mediumblob", "longblob", "vector", "geometry", "point"),
            *("linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
            *("geometrycollection", "geomcollection"),
        ),
        ValueType(pa.binary(), Encoding.LATIN1),
    ),
}
_WIDER_UNSIGNED = {
    "int": ValueType(pa.int64()),
    "integer": ValueType(pa.int64()),
    "bigint": ValueType(pa.decimal128(20, 0)),
}

_POSTGRES: Mapping[str, ValueType] = {
    **dict.fromkeys(("smallint", "integer", "int", "int2", "int4", "smallserial", "serial"), ValueType(pa.int32())),
    **dict.fromkeys(("bigint", "int8", "bigserial", "oid", "xid"), ValueType(pa.int64())),
    **dict.fromkeys(("real", "float4"), ValueType(pa.float32())),
    **dict.fromkeys(("double precision", "float8"), ValueType(pa.float64())),
    **dict.fromkeys(("boolean", "bool"), ValueType(pa.bool_())),
    "date": ValueType(pa.date32()),
    **dict.fromkeys(("time", "time without time zone"), ValueType(pa.time64("us"))),
    **dict.fromkeys(("timestamp", "timestamp without time zone"), ValueType(pa.timestamp("us"))),
    **dict.fromkeys(("timestamptz", "timestamp with time zone"), ValueType(pa.timestamp("us", "UTC"))),
    "uuid": ValueType(pa.binary(16), Encoding.HEX),
    "bytea": ValueType(pa.binary(), Encoding.HEX),
    **dict.fromkeys(("json", "jsonb"), ValueType(pa.string(), Encoding.TEXT)),
}


@lru_cache(maxsize=4096)
def mysql_type(name: str) -> ValueType:
    """The value type of a MySQL type such as `VARCHAR(255)`, `bigint(20) unsigned`; text if it is not known."""
    base, arguments, rest = _parsed(name)
    if base in ("decimal", "numeric", "dec", "fixed"):
        return _sql_decimal(arguments, "10,0")
    if "unsigned" in rest and base in _WIDER_UNSIGNED:
        return _WIDER_UNSIGNED[base]
    if base == "bit" and arguments in ("", "1"):
        return ValueType(pa.bool_())
    return _MYSQL.get(base, _TEXT)


@lru_cache(maxsize=4096)
def postgres_type(name: str, dates: Encoding = Encoding.NATURAL) -> ValueType:
    """The value type of a PostgreSQL type such as `numeric(5,2)`, `timestamp(3) with time zone`; text if not known.

    `dates` is the encoding of dates and timestamps (the server's DateStyle).
    """
    found = _postgres_type(name)
    has_date = pa.types.is_date(found.arrow) or pa.types.is_timestamp(found.arrow)
    return replace(found, encoding=dates) if has_date else found


def _postgres_type(name: str) -> ValueType:
    base, arguments, rest = _parsed(name)
    if name.endswith("]") or base.startswith("_"):
        return _TEXT
    if base in ("numeric", "decimal"):
        return _sql_decimal(arguments, f"{MAX_DIGITS + 1}")  # without precision, it may have any number of digits
    return _POSTGRES.get(f"{base} {rest}".strip(), _POSTGRES.get(base, _TEXT) if not rest else _TEXT)


def _parsed(name: str) -> tuple[str, str, str]:
    """(base name, arguments, rest) in lower case; `unsigned` and `zerofill` are always in the rest."""
    match = _NAME.fullmatch(name)
    if match is None:
        return name.lower(), "", ""
    base, rest = match[1].lower(), match[3].lower()
    for word in ("zerofill", "unsigned"):
        if base.endswith(f" {word}"):
            base, rest = base.removesuffix(f" {word}"), f"{word} {rest}".strip()
    return base, (match[2] or "").replace(" ", ""), rest


def _sql_decimal(arguments: str, default: str) -> ValueType:
    """A decimal with these arguments, or `default` without any; text for more digits than an Iceberg decimal has."""
    stated = arguments if _DECIMAL_ARGUMENTS.fullmatch(arguments) else default
    precision, _, scale = stated.partition(",")
    digits, held = _digits(int(precision), int(scale or 0))
    return ValueType(pa.decimal128(digits, held)) if digits <= MAX_DIGITS else _EXACT


def _digits(precision: int, scale: int) -> tuple[int, int]:
    """Precision and scale of a decimal that holds these numbers: a negative scale becomes trailing zeros."""
    held = max(scale, 0)
    return max(precision + held - scale, held, 1), held
