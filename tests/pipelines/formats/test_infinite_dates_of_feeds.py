"""Dates outside of the years 1 to 9999 in every feed that has times, in each of its types: one rule for all."""

import json
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.events import documents_of, rows_of, schema_of
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.decode.value_types import InfiniteDates
from nevermore.pipelines.formats.registry import DecodedFeed, decode
from nevermore.pipelines.sources.files import discover
from tests.pipelines.formats import avro_events, protobuf_events
from tests.pipelines.formats.avro_events import named
from tests.pipelines.formats.decoded_feed import canal, dms

FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - without a zone
MOST = 2**63 - 1
DEBEZIUM, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
AVRO: dict[str, tuple[Any, Any, Any]] = {
    "micros": (named("long", f"{DEBEZIUM}MicroTimestamp"), 9223372036825200000, -9223372036832400000),
    "limits of micros": (named("long", f"{DEBEZIUM}MicroTimestamp"), MOST, -MOST - 1),
    "millis": (named("long", f"{DEBEZIUM}Timestamp"), 9223372036825200, -9223372036832400),
    "nanos": (named("long", f"{DEBEZIUM}NanoTimestamp"), MOST, -MOST - 1),
    "days": (named("int", f"{DEBEZIUM}Date"), -2147472692, -2147472691),
    "connect": (named("long", f"{CONNECT}Timestamp", logicalType="timestamp-millis"), MOST, -MOST - 1),
    "connect days": (named("int", f"{CONNECT}Date", logicalType="date"), 2932897, -719163),
    "zoned": (named("string", f"{DEBEZIUM}ZonedTimestamp"), "infinity", "-infinity"),
    "far zoned": (
        named("string", f"{DEBEZIUM}ZonedTimestamp"),
        "+294247-01-10T04:00:25.2Z",
        "-290308-12-21T19:59:27.6Z",
    ),
    "text of days": (named("string", f"{DEBEZIUM}IsoDate"), "10000-01-01", "0000-12-31"),
    "text": (named("string", f"{DEBEZIUM}IsoTimestamp"), "infinity", "-infinity"),
    **{
        f"{prefix}{unit}": ({"type": "long", "logicalType": f"{prefix}{unit}"}, MOST, -MOST - 1)
        for prefix in ("timestamp-", "local-timestamp-")
        for unit in ("millis", "micros", "nanos")
    },
    "date": ({"type": "int", "logicalType": "date"}, 2**31 - 1, -(2**31)),
}


def avro_file(form: str, folder: Path) -> RawEvents:
    kind, *values = AVRO[form]
    schema = avro_events.envelope({"v": kind, "many": {"type": "array", "items": kind}})
    events = [avro_events.event("c", {"id": n, "v": v, "many": [v]}) for n, v in enumerate(values)]
    with (folder / "1.avro").open("wb") as file:
        fastavro.writer(file, schema, events)
    (batch,) = discover([str(folder / "*.avro")])
    return batch.raw


def avro_messages(form: str, folder: Path) -> RawEvents:
    kind, *values = AVRO[form]
    schema = avro_events.envelope({"v": kind, "many": {"type": "array", "items": kind}})
    (folder / "1.avsc").write_text(json.dumps(schema))
    events = [avro_events.event("c", {"id": n, "v": v, "many": [v]}) for n, v in enumerate(values)]
    return from_documents([avro_events.message(schema, event, 1) for event in events])


PROTOBUF: dict[str, tuple[str, dict[str, int], dict[str, int]]] = {
    "moment": ("google.protobuf.Timestamp", {"seconds": 253402300800}, {"seconds": -62135596801, "nanos": 999_999_999}),
    "infinite moment": ("google.protobuf.Timestamp", {"seconds": MOST}, {"seconds": -MOST - 1}),
    "millis": ("google.protobuf.Timestamp", {"seconds": 9223372036825}, {"seconds": -9223372036833}),
    "date": ("google.type.Date", {"year": 10000, "month": 2, "day": 29}, {"year": 0, "month": 12, "day": 31}),
    "infinite date": (
        "google.type.Date",
        {"year": 2**31 - 1, "month": 1, "day": 1},
        {"year": -(2**31), "month": 1, "day": 1},
    ),
}


def protobuf_messages(form: str, folder: Path) -> RawEvents:
    kind, *values = PROTOBUF[form]
    fields = protobuf_events.field("v", 2, kind), protobuf_events.field("many", 3, kind, "repeated")
    made = protobuf_events.envelope(
        protobuf_events.message("Row", protobuf_events.field("id", 1, "int64"), *fields),
        imports=(*protobuf_events.IMPORTS, *protobuf_events.OTHER_IMPORTS),
    )
    (folder / "1.desc").write_bytes(_descriptors(made))
    envelope = protobuf_events.class_of(made, "Envelope")
    documents = []
    for number, value in enumerate(values):
        event = envelope(op="c")
        event.after.id = number
        for place in (event.after.v, event.after.many.add()):
            place.SetInParent()
            for name, part in value.items():
                setattr(place, name, part)
        documents.append(protobuf_events.framed(event.SerializeToString(), 1))
    return from_documents(documents)


def _descriptors(made: Any) -> bytes:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return bytes(FileDescriptorSet(file=[made]).SerializeToString())


TEXTS: dict[str, tuple[str, str, str]] = {
    "infinite": ("timestamp", "infinity", "-infinity"),
    "infinite with a zone": ("timestamptz", "infinity", "-infinity"),
    "infinite day": ("date", "infinity", "-infinity"),
    "far": ("timestamp", "10000-01-01 00:00:00", "0044-03-15 00:00:00 BC"),
    "far with a zone": ("timestamptz", "294276-12-31 23:59:59.999999+00", "4714-11-24 00:00:00+00 BC"),
    "far day": ("date", "5874897-12-31", "4714-11-24 BC"),
    "year 0": ("timestamp", "10000-01-01 00:00:00", "0000-01-01 00:00:00"),
    "day of year 0": ("date", "10000-01-01", "0000-01-01"),
}


def _documents(events: list[Any]) -> RawEvents:
    return from_documents([json.dumps(event).encode() for event in events])


def of_canal(form: str, _folder: Path) -> RawEvents:
    kind, *values = TEXTS[form]
    types = {"id": "bigint", "v": {"timestamptz": "timestamp", "timestamp": "datetime"}.get(kind, kind)}
    return _documents(
        [canal("INSERT", [{"id": str(n), "v": v}], mysqlType=types, table="t") for n, v in enumerate(values)]
    )


def of_maxwell(form: str, _folder: Path) -> RawEvents:
    _, *values = TEXTS[form]
    row = {"database": "d", "table": "t", "type": "insert", "ts": 1}
    return _documents([{**row, "data": {"id": n, "v": v}} for n, v in enumerate(values)])


def of_dms(form: str, _folder: Path) -> RawEvents:
    _, *values = TEXTS[form]
    return _documents([dms("insert", {"id": n, "v": v}) for n, v in enumerate(values)])


def of_wal2json(form: str, _folder: Path) -> RawEvents:
    kind, *values = TEXTS[form]
    name = {"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone"}.get(kind, kind)
    cells = [
        [{"name": "id", "type": "bigint", "value": n}, {"name": "v", "type": name, "value": v}]
        for n, v in enumerate(values)
    ]
    return _documents([{"action": "I", "schema": "public", "table": "t", "columns": c} for c in cells])


def of_rows(form: str, _folder: Path) -> RawEvents:
    _, *values = TEXTS[form]
    return _documents([{"op": "I", "id": n, "v": v} for n, v in enumerate(values)])


def of_columns(form: str, _folder: Path) -> RawEvents:
    """CSV, and Parquet with text."""
    _, *values = TEXTS[form]
    raw = from_documents(pa.nulls(2, pa.binary()))
    rows = pa.table({"op": ["I", "I"], "id": [0, 1], "v": pa.array(values)})
    return RawEvents(raw.source_file, raw.source_offset, rows=rows)


def of_times(form: str, _folder: Path) -> RawEvents:
    """Parquet with times."""
    unit, zone = form.split()
    raw = from_documents(pa.nulls(2, pa.binary()))
    if unit == "day":
        values = pa.array([2**31 - 1, -(2**31)], pa.int32()).view(pa.date32())
    else:
        values = pa.array([MOST, -MOST - 1], pa.int64()).view(pa.timestamp(unit, "UTC" if zone == "zone" else None))
    rows = pa.table({"op": ["I", "I"], "id": [0, 1], "v": values})
    return RawEvents(raw.source_file, raw.source_offset, rows=rows)


Make = Callable[[str, Path], RawEvents]
FEEDS: dict[str, tuple[str, Make, list[str]]] = {
    "avro file": ("debezium-avro", avro_file, [*AVRO]),
    "avro messages": ("debezium-avro", avro_messages, [*AVRO]),
    "protobuf": ("debezium-protobuf", protobuf_messages, [*PROTOBUF]),
    "canal": ("canal-json", of_canal, [*TEXTS]),
    "maxwell": ("maxwell-json", of_maxwell, [*TEXTS]),
    "dms": ("dms", of_dms, [*TEXTS]),
    "wal2json": ("wal2json", of_wal2json, [*TEXTS]),
    "rows": ("rows", of_rows, [*TEXTS]),
    "columns": ("rows", of_columns, [*TEXTS]),
    "times": ("rows", of_times, [f"{unit} {zone}" for unit in ("s", "ms", "us", "ns") for zone in ("zone", "plain")]),
    "days": ("rows", of_times, ["day plain"]),
}
CASES = [(feed, form) for feed, (*_, forms) in FEEDS.items() for form in forms]


def read(feed: str, form: str, rule: InfiniteDates, folder: Path) -> DecodedFeed:
    kind, make, _ = FEEDS[feed]
    raw = make(form, folder)
    types = {"v": TEXTS[form][0]} if form in TEXTS and feed not in {"wal2json", "canal"} else {}
    if feed in {"times", "days"}:
        types = {"v": "date" if feed == "days" else "timestamptz" if form.endswith("zone") else "timestamp"}
    options = (
        {"schemas": str(folder)} if raw.documents is not None and kind in {"debezium-avro", "debezium-protobuf"} else {}
    )
    table = TableFeed(name="t", key=("id",), infinite_dates=rule, types=types)
    return decode(raw, FeedConfig(format=kind, options=options, tables=(table,)))


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return datetime(value.year, value.month, value.day) if isinstance(value, date) else value  # noqa: DTZ001


@pytest.mark.each(36)
@pytest.mark.parametrize(("feed", "form"), CASES, ids=[f"{feed}: {form}" for feed, form in CASES])
def test_each_rule_holds_for_every_type_of_every_feed(feed: str, form: str, tmp_path: Path) -> None:
    clamped = read(feed, form, "clamp", tmp_path)
    assert clamped.rejected.table.column("reason").to_pylist() == []
    column = clamped.tables["t"].row_type.field("v").type
    assert pa.types.is_temporal(column)
    last = LAST if pa.types.is_timestamp(column) else datetime(9999, 12, 31)  # noqa: DTZ001
    rows = clamped.tables["t"].table.column("after").to_pylist()
    assert [plain(row["v"]) for row in rows] == [last, FIRST]
    assert [plain(row.get("many", [row["v"]])[0]) for row in rows] == [last, FIRST]
    rows = read(feed, form, "null", tmp_path).tables["t"].table.column("after").to_pylist()
    assert [(row["v"], row.get("many", [None])) for row in rows] == [(None, [None])] * 2
    refused = read(feed, form, "quarantine", tmp_path)
    reasons = refused.rejected.table.column("reason").to_pylist()
    assert refused.tables["t"].num_rows == 0
    assert len(reasons) == 2
    assert all("column v" in reason and "infinite_dates: null or clamp" in reason for reason in reasons), reasons


def test_rows_with_such_dates_come_out_of_the_quarantine_as_they_were() -> None:
    moments = pa.array([MOST, 0, -MOST - 1, None], pa.int64())
    held = [moments.view(pa.timestamp(unit, zone)) for unit in ("s", "ms", "us") for zone in (None, "UTC")]
    days = pa.array([2**31 - 1, 0, -(2**31), None], pa.int32()).view(pa.date32())
    rows = pa.table([*held, days], names=[*map(str, range(len(held))), "day"])
    near = rows.slice(1, 1)
    documents = pa.concat_arrays([documents_of(rows), documents_of(near)]).to_pylist()
    schema = schema_of(documents[0])
    assert schema is not None
    assert rows_of(documents, schema).equals(pa.concat_tables([rows, near]))
