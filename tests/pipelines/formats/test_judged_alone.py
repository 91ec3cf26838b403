"""Each event is judged by itself, and what is cut, skipped or refused is said in the right words."""

import json
from io import BytesIO
from itertools import permutations
from pathlib import Path
from typing import Any

import fastavro
import pytest

from nevermore.pipelines.config.values import type_of
from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.decode.value_types import from_config
from nevermore.pipelines.formats.registry import DecodedFeed, decode
from nevermore.pipelines.sources.files import discover
from nevermore.scan_core import arrow_type
from tests.pipelines.ingest.test_new_column import Feed

SCHEMA = {"type": "struct", "fields": []}


def event(key: int, table: str = "t") -> dict[str, Any]:
    return {"before": None, "after": {"id": key}, "source": {"db": "shop", "table": table}, "op": "c", "ts_ms": 1}


def read(*events: Any, **table: Any) -> DecodedFeed:
    raw = from_documents([json.dumps(e, separators=(",", ":")).encode() for e in events])
    return decode(raw, FeedConfig(format="debezium-json", tables=(TableFeed(name="t", **{"key": ("id",), **table}),)))


ENVELOPES = [
    {"schema": SCHEMA, "payload": event(1)},
    {"schema": SCHEMA, "payload": event(2), "meta": {"a": 1}},
    {"schema": SCHEMA, "payload": event(3), "meta": {"a": {"b": {}}}, "more": {}},
    {"schema": SCHEMA, "meta": {"a": 1}, "payload": event(4)},
    {"schema": SCHEMA, "payload": event(5), "meta": 1},
]


@pytest.mark.each(4)
@pytest.mark.parametrize("order", [*permutations(range(len(ENVELOPES)), 3)])
def test_envelope_with_further_members_is_read_whatever_its_neighbours_are(order: tuple[int, ...]) -> None:
    done = read(*(ENVELOPES[at] for at in order))
    assert done.rejected.num_rows == 0
    assert [row["id"] for row in done.tables["t"].table.column("after").to_pylist()] == [at + 1 for at in order]


def test_envelopes_of_a_file_are_read_whatever_their_neighbours_are(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json")
    feed.land(*(json.dumps(e, separators=(",", ":")) for e in (*ENVELOPES, ENVELOPES[0])))
    assert feed.rows() == [{"id": i} for i in range(1, 6)]


@pytest.mark.parametrize("name", ["debezium_signal", "debezium_heartbeat"])
def test_changes_of_tables_of_the_connector_are_control_events(name: str) -> None:
    done = read(event(1), event(2, name), event(3, "other"), source_table="t")
    assert (done.skipped, done.untaken) == ({"control event": 1, "other table": 1}, ("shop.other",))
    chosen = read(event(1), event(2, name), source_table=name)
    assert [row["id"] for row in chosen.tables["t"].table.column("after").to_pylist()] == [2]


@pytest.mark.parametrize("key", ["idd", "ID", "i"])
def test_key_that_no_event_has_is_compared_with_the_columns_that_they_have(key: str) -> None:
    delete = event(1) | {"before": {"id": 1}, "after": None, "op": "d"}
    done = read(event(1), delete, key=(key,))
    reasons = done.rejected.table.column("reason").to_pylist()
    assert all("did you mean id?" in reason and key in reason for reason in reasons)
    assert not any("neither before" in reason for reason in reasons)


TYPES = ["list<int>", "map<string, long>", "struct<a: int, b: list<string>>", "list<struct<a: decimal(5, 2), t: date>>",
         "map<string, list<map<string, double>>>", "decimal(5, 2)", "list<decimal(9,2)>"]  # fmt: skip


@pytest.mark.parametrize("text", TYPES)
def test_types_are_read_as_they_are_described(text: str) -> None:
    assert str(type_of(text)).replace(" ", "") == text.replace(" ", "")
    assert from_config({"c": text})["c"].arrow == arrow_type(type_of(text))


def test_nested_types_of_the_config_are_those_of_the_mirror(tmp_path: Path) -> None:
    feed = Feed(
        tmp_path, "debezium-json", types={"labels": "list<int>", "m": "map<string, long>", "s": "struct<a: int>"}
    )
    feed.land(event(1) | {"after": {"id": 1, "labels": [1], "m": {"x": 2}, "s": {"a": 3}}})
    feed.land(event(2) | {"after": {"id": 2, "labels": [], "m": {}, "s": None}})
    assert [row["labels"] for row in feed.rows()] == [[1], []]


NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
DEPTHS = {
    "column": NANOS,
    "struct": {"type": "record", "name": "S", "fields": [{"name": "at", "type": NANOS}]},
    "list": {"type": "array", "items": NANOS},
    "map": {"type": "map", "values": NANOS},
}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("digits", [0, 789])
def test_digits_below_a_microsecond_are_counted_at_every_depth(depth: str, digits: int, tmp_path: Path) -> None:
    moment = 1_700_000_000_123_456_000 + digits
    value = {"column": moment, "struct": {"at": moment}, "list": [moment], "map": {"k": moment}}[depth]
    fields = [{"name": "id", "type": "int"}, {"name": "op", "type": "string"}, {"name": "v", "type": DEPTHS[depth]}]
    stream = BytesIO()
    fastavro.writer(stream, {"type": "record", "name": "R", "fields": fields}, [{"id": 1, "op": "c", "v": value}])
    (tmp_path / "1.avro").write_bytes(stream.getvalue())
    (batch,) = discover([str(tmp_path / "*.avro")])
    done = decode(batch.raw, FeedConfig(format="rows", tables=(TableFeed(name="t", key=("id",)),)))
    assert done.skipped == ({"digits below a microsecond": 1} if digits else {})


@pytest.mark.parametrize("value", [{"at": "2024-01-01T00:00:00.123456789"}, {"at": "2024-01-01T00:00:00.123456"}])
def test_digits_of_nested_text_are_counted(value: dict[str, str]) -> None:
    done = read(event(1) | {"after": {"id": 1, "v": value}}, types={"v.at": "timestamp"})
    assert done.skipped == ({"digits below a microsecond": 1} if "789" in value["at"] else {})
