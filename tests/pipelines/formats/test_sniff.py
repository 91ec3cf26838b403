"""Which format events have, by what stands in them and nothing else; doubt is an error, never a guess."""

import json
from typing import Any

import pytest

from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.events import USUAL_OP_COLUMNS
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.registry import decode, sniff

Event = dict[str, Any]


def sniffed(*events: Event | None) -> str:
    return sniff(from_documents([None if e is None else json.dumps(e).encode() for e in events]))


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        ({"op": "m", "source": {}, "message": {}}, "debezium-json"),
        ({"op": "t", "source": {"table": "t"}, "ts_ms": 1}, "debezium-json"),
        ({"id": 1, "__op": "c"}, "debezium-json"),
        ({"id": 1, "__op": "INSERT"}, "rows"),
        ({"ts_ms": 1}, "debezium-json"),
        ({"status": "BEGIN", "id": "5", "event_count": None}, "debezium-json"),
        ({"ddl": "ALTER", "databaseName": "d"}, "debezium-json"),
        ({"isDdl": True, "sql": "x", "type": "ALTER", "database": "d", "table": "t", "ts": 1}, "canal-json"),
        ({"type": "table-create", "database": "d", "table": "t", "def": {}, "ts": 1}, "maxwell-json"),
        ({"metadata": {"record-type": "control", "operation": "create-table"}}, "dms"),
        ({"action": "B"}, "wal2json"),
        ({"action": "C", "xid": 5, "timestamp": "x", "lsn": "0/1"}, "wal2json"),
        ({"action": "T", "schema": "s", "table": "t"}, "wal2json"),
        ({"action": "M", "transactional": True, "prefix": "p", "content": "c"}, "wal2json"),
        ({"change": []}, "wal2json"),
        *(({"id": 1, name: "I"}, "rows") for name in USUAL_OP_COLUMNS if name != "__op"),
        ({"op": "c", "id": 1, "metadata": "x", "change": 5, "action": "I"}, "rows"),
    ],
)
def test_single_event_tells_its_format(event: Event, wanted: str) -> None:
    assert sniffed(event) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"ts_ms": @}', "debezium-json"),
        ('{"payload": {"op": "c", "after": {"n": @}}}', "debezium-json"),
        ('{"__op": "c", "n": @}', "debezium-json"),
        ('{"type": "INSERT", "database": "d", "table": "t", "isDdl": false, "es": 1, "sql": "", "data": [{"n": @}]}', "canal-json"),
        ('{"type": "insert", "database": "d", "table": "t", "ts": 1, "data": {"n": @}}', "maxwell-json"),
        ('{"metadata": {"record-type": "data", "operation": "insert"}, "data": {"n": @}}', "dms"),
        ('{"change": [{"columnvalues": [@]}]}', "wal2json"),
        ('{"action": "C", "xid": @, "timestamp": "x"}', "wal2json"),
        ('{"op": "I", "n": @}', "rows"),
    ],
    ids=["heartbeat", "envelope", "unwrapped", "canal", "maxwell", "dms", "wal2json", "commit", "rows"],
)  # fmt: skip
def test_numbers_of_more_digits_than_python_reads_hide_no_format(text: str, wanted: str) -> None:
    for number in ("9" * 5_000, "-" + "9" * 5_000):
        assert sniff(from_documents([text.replace("@", number).encode()])) == wanted


@pytest.mark.parametrize(
    "events",
    [
        [{"id": 1, "action": "INSERT"}],
        [{"id": 1, "action": "C"}],
        [{"id": 1, "metadata": {"operation": "x"}}],
        [{"op": "c", "after": {}}, {"database": "d", "table": "t", "type": "insert", "ts": 1, "data": {}}],
    ],
)
def test_doubt_is_an_error_that_shows_an_event(events: list[Event]) -> None:
    with pytest.raises(SourceError, match=r"state the format.*The first is"):
        sniffed(*events)


def test_batch_of_tombstones_alone_is_no_error() -> None:
    feed = FeedConfig(format="debezium-json", tables=(TableFeed(name="a.t", key=("id",)),))
    assert decode(from_documents([None, b"null", b" \n"]), feed).skipped == {"tombstone": 2, "blank line": 1}
