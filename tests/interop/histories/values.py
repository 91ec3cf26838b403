"""Iceberg types as JSON, the Arrow types with field ids that carry them, and random values of them.

Values come from small domains, on purpose: keys must collide.
"""

import datetime as dt
import decimal
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

LONG = "abcdefghijklmnop"
_BEFORE_EPOCH = -1_000_001
"""Microseconds. Instants in the last second before 1970 are a second later once Java has written them to ORC."""
DOMAINS: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [0, 1, 2, 3, -1, 2**31 - 1, -(2**31)],
    "long": [0, 1, 2, 3, -1, 2**32, 2**32 + 1, 2**63 - 1, -(2**63)],
    "float": [0.0, -0.0, 1.5, float("nan"), float("inf")],
    "double": [0.0, -0.0, 1.5, float("nan"), float("-inf"), -1e300],
    "decimal(9,2)": [decimal.Decimal(v) for v in ("0.00", "1.50", "1.51", "-9999999.99")],
    "decimal(12,2)": [decimal.Decimal(v) for v in ("0.00", "1.50", "1.51", "-9999999.99", "9999999999.99")],
    "decimal(30,4)": [decimal.Decimal(v) for v in ("0.0000", "1.5000", "-0.0001", "12345678901234567890123456.0000")],
    "date": [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "time": [dt.time(0), dt.time(0, 0, 0, 1), dt.time(23, 59, 59, 999999)],
    "timestamp": [0, 1, _BEFORE_EPOCH, 1_704_067_200_000_000, 1_704_067_200_000_001, -2_208_988_800_000_000],
    "timestamptz": [0, 1, _BEFORE_EPOCH, 1_704_067_200_000_000, 1_704_067_200_000_001],
    "timestamp_ns": [0, 1, 1000 * _BEFORE_EPOCH, 1_704_067_200_000_000_000, 1_704_067_200_000_000_001],
    "timestamptz_ns": [0, 1, 1000 * _BEFORE_EPOCH - 1, 1_704_067_200_000_000_001],
    "string": ["", "a", "b", "é", "e\u0301", "a\0", LONG + "1", LONG + "2", "\uffff", "\U0001f426"],
    "uuid": [uuid.UUID(int=v).bytes for v in (0, 1, 2**127 - 1, 2**127, 2**128 - 1)],
    "fixed[3]": [b"abc", b"ab\0", b"\xff\xff\xff", b"\0\0\0"],
    "binary": [b"", b"\0", b"\0\0", b"\xff", LONG.encode() + b"1", LONG.encode() + b"2"],
}
KEY_TYPES = [t for t in DOMAINS if t != "decimal(12,2)" and not t.endswith("_ns")]
KEY_TYPES_V3 = [*KEY_TYPES, "timestamp_ns", "timestamptz_ns"]
PROMOTIONS = {"int": "long", "float": "double", "decimal(9,2)": "decimal(12,2)"}
_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "uuid": pa.uuid(),
    "binary": pa.binary(),
}


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type whose Parquet file Iceberg Java reads as `kind`."""
    match kind:
        case {"type": "struct"}:
            return pa.struct([arrow_field(f) for f in kind["fields"]])
        case {"type": "list"}:
            return pa.list_(_with_id("element", kind["element"], kind["element-id"]))
        case {"type": "map"}:
            key = _with_id("key", kind["key"], kind["key-id"]).with_nullable(False)
            return pa.map_(key, _with_id("value", kind["value"], kind["value-id"]))
    name, _, sizes = str(kind).replace(" ", "").rstrip(")]").partition("(" if "(" in kind else "[")
    if name == "decimal":
        return pa.decimal128(*(int(s) for s in sizes.split(",")))
    return pa.binary(int(sizes)) if name == "fixed" else _PRIMITIVES[name]


def arrow_field(field: Mapping[str, Any]) -> pa.Field:
    return _with_id(field["name"], field["type"], field["id"])


def _with_id(name: str, kind: Any, field_id: int) -> pa.Field:
    return pa.field(name, arrow_type(kind), metadata={"PARQUET:field_id": str(field_id)})


def arrow_table(fields: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[int, Any]]) -> pa.Table:
    """Rows given by field id. Columns of type unknown are left out: a file has none of them."""
    stored = [f for f in fields if f["type"] != "unknown"]
    columns = [pa.array([_named(f["type"], row.get(f["id"])) for row in rows], arrow_type(f["type"])) for f in stored]
    schema = pa.schema([arrow_field(f).with_name(f"c{f['id']}") for f in stored])
    return pa.Table.from_arrays(columns, schema=schema)


def _named(kind: Any, value: Any) -> Any:
    """A value whose struct members go by field id, with names for Arrow."""
    if value is None or isinstance(kind, str):
        return value
    match kind["type"]:
        case "struct":
            return {f["name"]: _named(f["type"], value.get(f["id"])) for f in kind["fields"]}
        case "list":
            return [_named(kind["element"], v) for v in value]
        case _:
            return [(k, _named(kind["value"], v)) for k, v in value]


def random_value(rng: random.Random, kind: Any, *, required: bool = False) -> Any:
    """A value, or NULL. Struct members by field id."""
    if kind == "unknown" or (not required and rng.random() < 0.15):
        return None
    if isinstance(kind, str):
        return rng.choice(DOMAINS[kind])
    match kind["type"]:
        case "struct":
            return {f["id"]: random_value(rng, f["type"], required=f["required"]) for f in kind["fields"]}
        case "list":
            return [random_value(rng, kind["element"]) for _ in range(rng.randrange(3))]
        case _:
            keys = rng.sample(DOMAINS[kind["key"]], rng.randrange(3))
            return [(key, random_value(rng, kind["value"])) for key in keys]


def leaves(fields: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[int, ...], Mapping[str, Any]]]:
    """Primitive fields that may be keys, with their paths of field ids: not those within lists and maps."""
    for field in fields:
        if isinstance(field["type"], str):
            yield (field["id"],), field
        elif field["type"]["type"] == "struct":
            for path, leaf in leaves(field["type"]["fields"]):
                yield (field["id"], *path), leaf
