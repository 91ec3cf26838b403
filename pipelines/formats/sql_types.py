"""Type names of MySQL and PostgreSQL, as feeds state them, to value types."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa

from pipelines.formats.connect_schema import DEFAULT_VARIABLE_SCALE, MAX_DIGITS
from pipelines.formats.value_type import Encoding, ValueType

_TEXT = ValueType(pa.string())
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
            "binary",
            "varbinary",
            "blob",
            "tinyblob",
            "mediumblob",
            "longblob",
            "geometry",
            "point",
            "linestring",
            "polygon",
            "multipoint",
            "multilinestring",
            "multipolygon",
            "geometrycollection",
            "geomcollection",
            "vector",
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
        return _decimal(arguments, "10,0")
    if "unsigned" in rest and base in _WIDER_UNSIGNED:
        return _WIDER_UNSIGNED[base]
    if base == "bit" and arguments in ("", "1"):
        return ValueType(pa.bool_())
    return _MYSQL.get(base, _TEXT)


@lru_cache(maxsize=4096)
def postgres_type(name: str, dates: Encoding = Encoding.NATURAL) -> ValueType:
    """The value type of a PostgreSQL type such as `numeric(5,2)`, `timestamp(3) with time zone`; text if not known.

    `dates` is how the server writes dates and timestamps (its DateStyle).
    """
    found = _postgres_type(name)
    has_date = pa.types.is_date(found.arrow) or pa.types.is_timestamp(found.arrow)
    return replace(found, encoding=dates) if has_date else found


def _postgres_type(name: str) -> ValueType:
    base, arguments, rest = _parsed(name)
    if name.endswith("]") or base.startswith("_"):
        return _TEXT
    if base in ("numeric", "decimal"):
        return _decimal(arguments, f"38,{DEFAULT_VARIABLE_SCALE}")
    return _POSTGRES.get(f"{base} {rest}".strip(), _POSTGRES.get(base, _TEXT) if not rest else _TEXT)


def _parsed(name: str) -> tuple[str, str, str]:
    """(base name, arguments, what follows) in lower case; `unsigned` and `zerofill` always follow."""
    match = _NAME.fullmatch(name)
    if match is None:
        return name.lower(), "", ""
    base, rest = match[1].lower(), match[3].lower()
    for word in ("zerofill", "unsigned"):
        if base.endswith(f" {word}"):
            base, rest = base.removesuffix(f" {word}"), f"{word} {rest}".strip()
    return base, (match[2] or "").replace(" ", ""), rest


def _decimal(arguments: str, default: str) -> ValueType:
    """A decimal of these arguments, of `default` where they are none; PostgreSQL has scales below 0 and up to 1,000."""
    stated = arguments if _DECIMAL_ARGUMENTS.fullmatch(arguments) else default
    precision, _, scale = stated.partition(",")
    digits, held = int(precision), min(max(int(scale or 0), 0), MAX_DIGITS)
    digits += max(-int(scale or 0), 0)
    return ValueType(pa.decimal128(min(max(digits, held, 1), MAX_DIGITS), held))
