"""Debezium's VariableScaleDecimal, of a numeric without precision: exact text, or what `types` says."""

import json
from base64 import b64encode
from dataclasses import replace
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.feed import Decided, FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import DecodedFeed, decode
from nevermore.pipelines.sources.files import discover
from tests.pipelines.formats import avro_events, decoded_feed, protobuf_events
from tests.pipelines.formats.decoded_feed import canal

# Unscaled value, scale, and the text as PostgreSQL writes the number.
NUMBERS = [
    (150, 2, "1.50"),
    (0, 3, "0.000"),
    (-1, 5, "-0.00001"),
    (7, 0, "7"),
    (12, -3, "12000"),
    (10**60 + 1, 20, f"{10**40}.{1:020}"),
    (10**6_000 + 7, 1, f"1{'0' * 5_999}.7"),
    (-(10**5_000), 0, f"-1{'0' * 5_000}"),
]
TOO_LARGE = [(1, 2**31 - 1), (1, -(2**31))]
NAME = "io.debezium.data.VariableScaleDecimal"


LONG = f"-{'9' * 40}.{'8' * 20}"


@pytest.mark.each(6)
@pytest.mark.parametrize("number", ["1.50", LONG, "9" * 80])
@pytest.mark.parametrize("kind", ["numeric", "numeric(80,20)", "numeric(80)", "numeric(30,-20)", "decimal(65,30)"])
@pytest.mark.parametrize("feed", ["wal2json", "wal2json as text", "canal-json"])
def test_columns_of_more_digits_than_a_decimal_has_are_exact_text(feed: str, kind: str, number: str) -> None:
    if feed == "canal-json":
        kind = kind.replace("numeric(30,-20)", "decimal(65)").replace("numeric", "decimal")
        if kind == "decimal":
            pytest.skip("decimal(10, 0) of MySQL")
        event = json.dumps(canal("INSERT", [{"id": "1", "n": number}], mysqlType={"id": "bigint", "n": kind}))
    else:
        columns = [{"name": "id", "type": "integer", "value": 1}, {"name": "n", "type": kind, "value": number}]
        event = json.dumps({"action": "I", "schema": "public", "table": "products", "columns": columns})
        event = event.replace(f'"{number}"', number) if feed == "wal2json" else event
    found = decoded_feed.read(feed.partition(" ")[0], event.encode())
    assert decoded_feed.reasons(found) == []
    assert [change["after"] for change in decoded_feed.changes(found, "after")] == [{"id": 1, "n": number}]


DECIMAL = "org.apache.kafka.connect.data.Decimal"
# Scale, precision as stated or None, type in the config or None, and the type of the column.
DECIMALS = [
    (40, 80, None, pa.string()),
    (40, None, None, pa.string()),
    (2, 60, None, pa.string()),
    (-30, 20, None, pa.string()),
    (2, None, None, pa.decimal128(38, 2)),
    (2, 10, None, pa.decimal128(10, 2)),
    (2, 10, "string", pa.string()),
    (40, 80, "decimal(38, 3)", pa.decimal128(38, 3)),
    (20, 50, "decimal(38, 3)", pa.decimal128(38, 3)),
]


@pytest.mark.each(2)
@pytest.mark.parametrize(("scale", "precision", "wanted", "kind"), DECIMALS)
@pytest.mark.parametrize("feed", ["debezium-json", "debezium-avro", "debezium-avro by others"])
def test_unscaled_bytes_of_more_digits_than_a_decimal_has_are_exact_text(
    feed: str, scale: int, precision: int | None, wanted: str | None, kind: pa.DataType, tmp_path: Path
) -> None:
    unit = 0 if pa.types.is_decimal(kind) and scale == 40 else 10 ** max(scale - 3, 0)
    numbers = [123 * unit, -10 * unit, 0]
    if pa.types.is_string(kind):
        numbers.append(10**70 + 7)
    if feed == "debezium-json":
        parameters = {"scale": str(scale)} | ({"connect.decimal.precision": str(precision)} if precision else {})
        fields = [{"field": "id", "type": "int32"}]
        fields += [{"field": "n", "type": "bytes", "name": DECIMAL, "parameters": parameters}]  # type: ignore[dict-item]
        schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
        payloads = [
            {"before": None, "after": {"id": 1, "n": b64encode(as_bytes(n)).decode()}, "op": "c"} for n in numbers
        ]
        whole = [json.dumps({"schema": schema, "payload": p}).encode() for p in payloads]
        # those without a schema are written as before
        raw, options = from_documents(whole), {}
        later = from_documents([json.dumps(payload).encode() for payload in payloads])
    else:
        of_bytes: dict[str, Any] = {"logicalType": "decimal", "precision": precision or 64, "scale": scale}
        if feed == "debezium-avro":
            stated = {"connect.decimal.precision": str(precision)} if precision else {}
            of_bytes |= {"connect.name": DECIMAL, "connect.parameters": {"scale": str(scale), **stated}}
        schema = avro_events.envelope({"n": {"type": "bytes", **of_bytes}})
        (tmp_path / "1.avsc").write_text(json.dumps(schema))
        messages = [
            avro_events.message(schema, avro_events.event("c", {"id": 1, "n": as_bytes(n)}), 1) for n in numbers
        ]
        raw, options, later = from_documents(messages), {"schemas": str(tmp_path)}, None
    table = TableFeed(name="t", key=("id",), types={"n": wanted} if wanted else {})
    found = decode(raw, FeedConfig(format=feed.partition(" ")[0], options=options, tables=(table,)))
    assert found.rejected.num_rows == 0
    column = found.tables["t"].table.column("after").combine_chunks().field("n")
    assert column.type == kind
    exact = [Decimal(n).scaleb(-scale, Context(prec=200)) for n in numbers]
    assert [Decimal(value) for value in column.to_pylist()] == exact
    if pa.types.is_string(kind):
        assert column.to_pylist() == [format(number, "f") for number in exact]
    if later is not None:
        known = {field.name: field.type for field in found.tables["t"].row_type}
        table = replace(table, types={}, known_types=known, known_encodings=found.decided.encodings["t"])
        again = decode(later, FeedConfig(format=feed, tables=(table,)))
        assert again.rejected.num_rows == 0, again.rejected.table.column("reason")
        assert again.tables["t"].table.column("after").combine_chunks().field("n").equals(column)


def as_bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def json_events(numbers: list[tuple[int, int]], _folder: Path, *, enveloped: bool = True) -> RawEvents:
    members = [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}]
    number = {"type": "struct", "name": NAME, "fields": members}
    fields = [{"field": "id", "type": "int32"}, {**number, "field": "n"}]
    fields += [{"field": "many", "type": "array", "items": number}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    events = []
    for place, (unscaled, scale) in enumerate(numbers):
        value = {"scale": scale, "value": b64encode(as_bytes(unscaled)).decode()}
        payload = {"before": None, "after": {"id": place, "n": value, "many": [value]}, "op": "c"}
        events.append({"schema": schema, "payload": payload} if enveloped else payload)
    return from_documents([json.dumps(event).encode() for event in events])


def avro_file(numbers: list[tuple[int, int]], folder: Path) -> RawEvents:
    again = {"type": "array", "items": "io.debezium.data.VariableScaleDecimal"}
    schema = avro_events.envelope({"n": avro_events.VARIABLE_SCALE, "many": again})
    values = [{"scale": scale, "value": as_bytes(unscaled)} for unscaled, scale in numbers]
    events = [avro_events.event("c", {"id": n, "n": v, "many": [v]}) for n, v in enumerate(values)]
    (folder / "1.avro").write_bytes(avro_events.container(schema, events))
    (batch,) = discover([str(folder / "*.avro")])
    return batch.raw


def protobuf_messages(numbers: list[tuple[int, int]], folder: Path) -> RawEvents:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    kind, field = "confluent.type.Decimal", protobuf_events.field
    row = protobuf_events.message(
        "Row", field("id", 1, "int64"), field("n", 2, kind), field("many", 3, kind, "repeated")
    )
    made = protobuf_events.envelope(row)
    (folder / "1.desc").write_bytes(FileDescriptorSet(file=[made]).SerializeToString())
    documents = []
    for place, (unscaled, scale) in enumerate(numbers):
        event = protobuf_events.class_of(made, "Envelope")(op="c")
        event.after.id = place
        for value in (event.after.n, event.after.many.add()):
            value.value, value.scale = as_bytes(unscaled), scale
        documents.append(protobuf_events.framed(event.SerializeToString(), 1))
    return from_documents(documents)


FEEDS = {
    "json": ("debezium-json", json_events),
    "avro": ("debezium-avro", avro_file),
    "protobuf": ("debezium-protobuf", protobuf_messages),
}


def read(kind: str, raw: RawEvents, folder: Path, decided: Decided | None = None, **table: Any) -> DecodedFeed:
    options = {"schemas": str(folder)} if kind == "debezium-protobuf" else {}
    tables = (TableFeed(name="t", key=("id",), **table),)
    return decode(raw, FeedConfig(format=kind, options=options, tables=tables, decided=decided or Decided()))


def rows_of(decoded: DecodedFeed) -> list[dict[str, Any]]:
    return list(decoded.tables["t"].table.column("after").to_pylist())


@pytest.mark.parametrize("feed", FEEDS)
def test_numbers_of_own_scales_are_exact_text(feed: str, tmp_path: Path) -> None:
    kind, make = FEEDS[feed]
    decoded = read(kind, make([(unscaled, scale) for unscaled, scale, _ in NUMBERS], tmp_path), tmp_path)
    assert decoded.rejected.num_rows == 0
    assert [(row["n"], row["many"]) for row in rows_of(decoded)] == [(text, [text]) for *_, text in NUMBERS]


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(
    ("wanted", "values"),
    [
        ("decimal(20, 4)", [Decimal("1.5000"), Decimal("12000.0000"), None]),
        ("double", [1.5, 12000.0, 1e40]),
        ("string", ["1.50", "12000", f"{10**40}.{1:020}"]),
    ],
    ids=["decimal", "double", "string"],
)
def test_types_of_the_config_decide(feed: str, wanted: str, values: list[Any], tmp_path: Path) -> None:
    kind, make = FEEDS[feed]
    given = [NUMBERS[0], NUMBERS[4], NUMBERS[5]]
    raw = make([(unscaled, scale) for unscaled, scale, _ in given], tmp_path)
    decoded = read(kind, raw, tmp_path, types={"n": wanted})
    assert [row["n"] for row in rows_of(decoded)] == [value for value in values if value is not None]
    assert decoded.rejected.num_rows == values.count(None)


@pytest.mark.parametrize("feed", FEEDS)
def test_a_scale_that_no_number_has_goes_to_quarantine(feed: str, tmp_path: Path) -> None:
    kind, make = FEEDS[feed]
    decoded = read(kind, make([*TOO_LARGE, (1, 1)], tmp_path), tmp_path)
    assert [row["n"] for row in rows_of(decoded)] == ["0.1"]
    assert decoded.rejected.num_rows == len(TOO_LARGE)


def test_events_without_a_schema_are_read_as_those_with_one_before(tmp_path: Path) -> None:
    first = read("debezium-json", json_events([(150, 2)], tmp_path), tmp_path)
    known = {field.name: field.type for field in first.tables["t"].row_type}
    raw = json_events([(2_500, 3)], tmp_path, enveloped=False)
    later = read(
        "debezium-json",
        raw,
        tmp_path,
        known_types=known,
        known_encodings=first.decided.encodings["t"],
        known_key=("id",),
    )
    assert [(row["n"], row["many"]) for row in rows_of(later)] == [("2.500", ["2.500"])]
