"""Debezium's Avro as its converter writes it: schemas with Connect's names, messages in Confluent's wire format."""

import struct
from io import BytesIO
from typing import Any

import fastavro

Event = dict[str, Any]


def named(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """A type under a logical name of Connect."""
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


VARIABLE_SCALE = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.version": 1,
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
# Precision 64 is what Connect's converter writes where it knows none.
DECIMAL = named(
    "bytes",
    "org.apache.kafka.connect.data.Decimal",
    scale=2,
    precision=64,
    logicalType="decimal",
    **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "10"}},
)
COLUMNS = {
    "name": "string",
    "price": DECIMAL,
    "micros": named("long", "io.debezium.time.MicroTimestamp"),
    "millis": named("long", "io.debezium.time.Timestamp"),
    "connect": named("long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis"),
    "zoned": named("string", "io.debezium.time.ZonedTimestamp"),
    "day": named("int", "io.debezium.time.Date"),
    "time": named("long", "io.debezium.time.MicroTime"),
    "iso": named("string", "io.debezium.time.IsoDate"),
    "uuid": named("string", "io.debezium.data.Uuid"),
    "any_scale": VARIABLE_SCALE,
    "tags": {"type": "array", "items": ["null", "string"]},
    "hstore": {"type": "map", "values": ["null", "string"]},
    "blob": "bytes",
    "json": named("string", "io.debezium.data.Json"),
    "size": named("string", "io.debezium.data.Enum", **{"connect.parameters": {"allowed": "s,m,l"}}),
    "flag": "boolean",
    "ratio": "float",
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": [named("string", "io.debezium.data.Enum"), "null"], "default": "false"},
        {"name": "db", "type": "string"},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "lsn", "type": optional("long"), "default": None},
    ],
    "connect.name": "io.debezium.connector.postgresql.Source",
}
KEY = {"type": "record", "name": "Key", "namespace": "shop.t", "fields": [{"name": "id", "type": "int"}]}


def envelope(columns: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of change events of a table with an `id` and these columns."""
    fields = [
        {"name": n, "type": optional(t), "default": None} for n, t in (COLUMNS if columns is None else columns).items()
    ]
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}, *fields]}
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.t",
        "fields": [
            {"name": "before", "type": optional(row), "default": None},
            {"name": "after", "type": optional("Value"), "default": None},
            {"name": "source", "type": SOURCE},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": optional("long"), "default": None},
        ],
        "connect.name": "shop.t.Envelope",
    }


def row(key: int, **values: Any) -> Event:
    """A row with a value in every column."""
    return {
        "id": key,
        "name": f"row {key}",
        "price": b"\x04\xd2",
        "micros": 1_600_000_000_000_001,
        "millis": 1_600_000_000_001,
        "connect": 1_600_000_000_001,
        "zoned": "2020-01-01T00:00:00.5Z",
        "day": 18_000,
        "time": 3_600_000_001,
        "iso": "2020-02-29",
        "uuid": "123e4567-e89b-12d3-a456-426614174000",
        "any_scale": {"scale": 3, "value": b"\xfb\x2e"},
        "tags": ["a", None],
        "hstore": {"k": "v", "n": None},
        "blob": b"\xff\x00",
        "json": '{"a": 1}',
        "size": "m",
        "flag": True,
        "ratio": 0.5,
        **values,
    }


def event(op: str, after: Event | None = None, before: Event | None = None) -> Event:
    """A change event of table `d.public.t`."""
    source = {"version": "3", "ts_ms": 5, "snapshot": "false", "db": "d", "schema": "public", "table": "t", "lsn": 9}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 6}


def datum(schema: Any, value: Event) -> bytes:
    """A value in Avro; bytes stand as they are for decimals."""
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(_plain(schema)), value)
    return stream.getvalue()


def message(schema: Any, value: Event, schema_id: int) -> bytes:
    """A value in Confluent's wire format."""
    return b"\0" + struct.pack(">I", schema_id) + datum(schema, value)


def container(schema: Any, values: list[Event], codec: str = "null") -> bytes:
    """An Avro file."""
    stream = BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(_plain(schema)), values, codec=codec)
    return stream.getvalue()


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if isinstance(schema, dict):
        return {name: _plain(part) for name, part in schema.items() if name != "logicalType"}
    return schema
