"""Placeholders of values that were not sent: in every type and mode of Debezium's connectors, in JSON and in Avro."""

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.formats.options import DebeziumOptions
from nevermore.pipelines.formats.registry import decode
from tests.pipelines.formats.avro_events import envelope, event, message, named

DEFAULT = "__debezium_unavailable_value"
UUID_OF = {DEFAULT: "b68a35a7-17ad-35b3-af2a-ae46edb4545a", 'ü "\\': "1f14b924-ab81-3324-8781-566259dcba51"}
Spelling = Callable[[str], Any]


def signed(placeholder: str) -> list[int]:
    """The bytes of the placeholder as Java has them."""
    return [byte - 256 if byte > 127 else byte for byte in placeholder.encode()]


def as_base64(number: int) -> str:
    return b64encode(number.to_bytes(1, signed=True)).decode()


JSON_TYPES: dict[str, tuple[dict[str, Any], Spelling]] = {
    "text": ({"type": "string"}, lambda p: p),
    "json": ({"type": "string", "name": "io.debezium.data.Json"}, lambda p: p),
    "hstore as json": ({"type": "string", "name": "io.debezium.data.Json"}, lambda p: json.dumps({p: p}, ensure_ascii=False)),
    "compact hstore": ({"type": "string"}, lambda p: json.dumps({p: p}, separators=(",", ":"), ensure_ascii=False)),
    "hstore": ({"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, lambda p: {p: p}),
    "bytes": ({"type": "bytes"}, lambda p: b64encode(p.encode()).decode()),
    "base64": ({"type": "string"}, lambda p: b64encode(p.encode()).decode()),
    "base64-url-safe": ({"type": "string"}, lambda p: urlsafe_b64encode(p.encode()).decode()),
    "hex": ({"type": "string"}, lambda p: p.encode().hex()),
    "numeric": ({"type": "string"}, lambda p: p),
    "text[]": ({"type": "array", "items": {"type": "string"}}, lambda p: [p]),
    "enum[]": ({"type": "array", "items": {"type": "string", "name": "io.debezium.data.Enum"}}, lambda p: [p]),
    "jsonb[]": ({"type": "array", "items": {"type": "string", "name": "io.debezium.data.Json"}}, lambda p: [p]),
    "timestamptz[]": (
        {"type": "array", "items": {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}},
        lambda p: [p],
    ),
    "date[] in isostring": (
        {"type": "array", "items": {"type": "string", "name": "io.debezium.time.IsoDate"}},
        lambda p: [p],
    ),
    "uuid[]": ({"type": "array", "items": {"type": "string", "name": "io.debezium.data.Uuid"}}, lambda p: [UUID_OF[p]]),
    "bytea[]": ({"type": "array", "items": {"type": "bytes"}}, lambda p: [b64encode(p.encode()).decode()]),
    "bytea[] in hex": ({"type": "array", "items": {"type": "string"}}, lambda p: [p.encode().hex()]),
    "smallint[]": ({"type": "array", "items": {"type": "int16"}}, signed),
    "integer[]": ({"type": "array", "items": {"type": "int32"}}, signed),
    "bigint[]": ({"type": "array", "items": {"type": "int64"}}, signed),
    "real[]": ({"type": "array", "items": {"type": "float"}}, lambda p: [float(n) for n in signed(p)]),
    "float8[]": ({"type": "array", "items": {"type": "double"}}, lambda p: [float(n) for n in signed(p)]),
    "boolean[]": ({"type": "array", "items": {"type": "boolean"}}, lambda p: [True] * len(signed(p))),
    **{
        f"{name}[]": ({"type": "array", "items": {"type": kind, "name": f"{where}.{name}"}}, signed)
        for kind, where, names in (
            ("int32", "io.debezium.time", ("Date", "Time")),
            ("int64", "io.debezium.time", ("MicroTime", "NanoTime", "Timestamp", "MicroTimestamp", "NanoTimestamp")),
            ("int32", "org.apache.kafka.connect.data", ("Date", "Time")),
            ("int64", "org.apache.kafka.connect.data", ("Timestamp",)),
        )
        for name in names
    },
    **{
        f"numeric[] {mode}": ({"type": "array", "items": items}, spelled)
        for mode, items, spelled in (
            ("as text", {"type": "string"}, lambda p: [p]),
            ("as text of numbers", {"type": "string"}, lambda p: [str(n) for n in signed(p)]),
            ("double", {"type": "double"}, lambda p: [float(n) for n in signed(p)]),
            (
                "precise",
                {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
                lambda p: [as_base64(n) for n in signed(p)],
            ),
            (
                "precise as numbers",
                {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
                lambda p: [n / 100 for n in signed(p)],
            ),
            (
                "of variable scale",
                {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal",
                 "fields": [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}]},
                lambda p: [{"scale": 0, "value": as_base64(n)} for n in signed(p)],
            ),
        )
    },
}  # fmt: skip


def read_json(values: list[Any], placeholder: str = DEFAULT, schema: dict[str, Any] | None = None) -> list[list[str]]:
    """The unchanged columns of updates that have these values, one after the other."""
    documents = []
    for number, value in enumerate(values):
        payload = {"before": None, "after": {"id": number, "v": value}, "op": "u"}
        row = {"type": "struct", "field": "after",
               "fields": [{"type": "int32", "field": "id"}, {**(schema or {}), "field": "v"}]}  # fmt: skip
        whole = payload if schema is None else {"schema": {"type": "struct", "fields": [row]}, "payload": payload}
        documents.append(json.dumps(whole).encode())
    return unchanged(from_documents([*documents]), "debezium-json", placeholder)


def unchanged(raw: RawEvents, format_name: str, placeholder: str = DEFAULT, **options: Any) -> list[list[str]]:
    options = options if placeholder == DEFAULT else {**options, "placeholder": placeholder}
    feed = FeedConfig(format=format_name, tables=(TableFeed(name="t", key=("id",)),), options=options)
    read = decode(raw, feed)
    return [*read.tables["t"].table.column("unchanged").to_pylist(), *([[]] * read.rejected.num_rows)]


@pytest.mark.each(9)
@pytest.mark.parametrize("placeholder", [*UUID_OF], ids=["default", "custom"])
@pytest.mark.parametrize("kind", JSON_TYPES)
def test_placeholder_is_found_in_json(kind: str, placeholder: str) -> None:
    schema, spelled = JSON_TYPES[kind]
    assert read_json([spelled(placeholder)], placeholder, schema) == [["v"]]
    assert read_json([spelled(placeholder)], placeholder) == [["v"]]


@pytest.mark.each(2)
@pytest.mark.parametrize("kind", JSON_TYPES)
def test_value_that_only_begins_like_the_placeholder_is_data(kind: str) -> None:
    schema, spelled = JSON_TYPES[kind]
    value = spelled(DEFAULT)
    others: list[Any]
    if isinstance(value, list):
        others = [value[:-1], [*value, value[0]], [*value[1:], None]]
    elif isinstance(value, dict):
        others = [{DEFAULT: "other"}, {"other": DEFAULT}, {**value, "more": DEFAULT}]
    elif schema["type"] == "bytes":
        others = [b64encode(f"{DEFAULT}_".encode()).decode(), value[:-4]]
    else:
        others = [value + "_", value[:-1], f" {value}"]
    assert read_json(others, schema=schema) == [[]] * len(others)


AVRO_TYPES: dict[str, tuple[Any, Any]] = {
    "text": ("string", DEFAULT),
    "bytes": ("bytes", DEFAULT.encode()),
    "hstore": ({"type": "map", "values": "string"}, {DEFAULT: DEFAULT}),
    "text[]": ({"type": "array", "items": "string"}, [DEFAULT]),
    "uuid[]": ({"type": "array", "items": named("string", "io.debezium.data.Uuid")}, [UUID_OF[DEFAULT]]),
    "bytea[]": ({"type": "array", "items": "bytes"}, [DEFAULT.encode()]),
    "integer[]": ({"type": "array", "items": ["null", "int"]}, signed(DEFAULT)),
    "real[]": ({"type": "array", "items": ["null", "float"]}, [float(n) for n in signed(DEFAULT)]),
    "float8[]": ({"type": "array", "items": ["null", "double"]}, [float(n) for n in signed(DEFAULT)]),
    "boolean[]": ({"type": "array", "items": "boolean"}, [True] * len(DEFAULT)),
    "date[]": ({"type": "array", "items": named("int", "io.debezium.time.Date")}, signed(DEFAULT)),
    "logical date[]": ({"type": "array", "items": {"type": "int", "logicalType": "date"}}, signed(DEFAULT)),
    "timestamp[]": ({"type": "array", "items": named("long", "io.debezium.time.MicroTimestamp")}, signed(DEFAULT)),
    "logical timestamp[]": (
        {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}},
        signed(DEFAULT),
    ),
    "numeric[]": (
        {"type": "array", "items": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        [n.to_bytes(1, signed=True) for n in signed(DEFAULT)],
    ),
    "numeric[] of variable scale": (
        {"type": "array", "items": {
            "type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data",
            "connect.name": "io.debezium.data.VariableScaleDecimal",
            "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
        }},
        [{"scale": 0, "value": n.to_bytes(1, signed=True)} for n in signed(DEFAULT)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", AVRO_TYPES)
def test_placeholder_is_found_in_avro(kind: str, tmp_path: Path) -> None:
    schema, value = AVRO_TYPES[kind]
    whole = envelope({"v": schema})
    (tmp_path / "2.avsc").write_text(json.dumps(whole))
    values = [value]
    if isinstance(value, list):
        values += [value[:-1], [*value, value[0]]]
    raw = from_documents([message(whole, event("u", {"id": 1, "v": v}), 2) for v in values])
    assert unchanged(raw, "debezium-avro", schemas=str(tmp_path)) == [["v"], [], []][: len(values)]


def test_placeholder_may_be_given_as_hexadecimal_digits() -> None:
    assert read_json(["\x01p", "\x01q"], "hex:0170") == [["v"], []]
    with pytest.raises(ConfigError, match="hexadecimal"):
        DebeziumOptions(placeholder="hex:xy")
    with pytest.raises(ConfigError, match="empty"):
        DebeziumOptions(placeholder="hex:")
