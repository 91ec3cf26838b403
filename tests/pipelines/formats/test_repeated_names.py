"""A name given twice, at any place of an event that is read, leaves no choice between the two: the event is rejected."""

import json

import pytest

from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import decode
from tests.pipelines.formats.decoded_feed import TABLE, canal, dms, reasons

CANAL = canal("UPDATE", [{"id": "1", "n": "b"}], [{"n": "a"}], sqlType={"id": -5, "n": 12})
MAXWELL = {
    "database": "d",
    "table": "products",
    "type": "update",
    "ts": 1,
    "data": {"id": 1, "n": "b"},
    "old": {"n": "a"},
    "primary_key_columns": ["id"],
}
FIELDS = [{"type": "int32", "field": "id"}, {"type": "string", "field": "n"}]
ENVELOPE = {
    "type": "struct",
    "fields": [
        {"type": "struct", "field": "before", "fields": FIELDS},
        {"type": "struct", "field": "after", "fields": FIELDS},
    ],
}
BARE = {
    "op": "u",
    "before": {"id": 1, "n": "a"},
    "after": {"id": 1, "n": "b"},
    "source": {"db": "d", "table": "products", "ts_ms": 1, "lsn": 7},
    "ts_ms": 2,
}
DEBEZIUM = {"schema": ENVELOPE, "payload": BARE}
V2 = {
    "action": "U",
    "schema": "d",
    "table": "products",
    "columns": [{"name": "id", "type": "integer", "value": 1}, {"name": "n", "type": "text", "value": "b"}],
    "identity": [{"name": "id", "type": "integer", "value": 1}, {"name": "n", "type": "text", "value": "a"}],
    "pk": [{"name": "id", "type": "integer"}],
}
V1 = {
    "change": [
        {
            "kind": "update",
            "schema": "d",
            "table": "products",
            "columnnames": ["id", "n"],
            "columntypes": ["integer", "text"],
            "columnvalues": [1, "b"],
            "oldkeys": {"keynames": ["id"], "keytypes": ["integer"], "keyvalues": [1]},
            "pk": {"pknames": ["id"], "pktypes": ["integer"]},
        }
    ]
}
DMS = dms("update", {"id": 1, "n": "b"})
CASES: dict[str, tuple[str, object, str, str]] = {
    # format, event, what stands in it once, what stands there instead
    "canal mysqlType": ("canal-json", CANAL, '"mysqlType": {', '"mysqlType": {"id": "INT", '),
    "canal sqlType": ("canal-json", CANAL, '"sqlType": {', '"sqlType": {"id": 4, '),
    "canal old": ("canal-json", CANAL, '"old": [{', '"old": [{"n": "x", '),
    "canal data": ("canal-json", CANAL, '"data": [{', '"data": [{"n": "x", '),
    "canal pkNames": ("canal-json", CANAL, '"pkNames": ["id"', '"pkNames": ["id", "id"'),
    "canal message": ("canal-json", CANAL, '"database":', '"database": "e", "database":'),
    "maxwell old": ("maxwell-json", MAXWELL, '"old": {', '"old": {"n": "x", '),
    "maxwell data": ("maxwell-json", MAXWELL, '"data": {', '"data": {"n": "x", '),
    "maxwell key": ("maxwell-json", MAXWELL, '_columns": ["id"', '_columns": ["id", "id"'),
    "debezium fields": ("debezium-json", DEBEZIUM, '"schema": {', '"schema": {"fields": [], '),
    "debezium field": ("debezium-json", DEBEZIUM, '{"type": "int32", ', '{"type": "int64", "type": "int32", '),
    "debezium column": ("debezium-json", DEBEZIUM, '[{"type": "int32", ', '[{"type": "int64", "field": "id"}, {"type": "int32", '),
    "debezium image": ("debezium-json", DEBEZIUM, '"payload": {', '"payload": {"after": {"id": 9}, '),
    "debezium payload": ("debezium-json", DEBEZIUM, '"payload": {', '"payload": {}, "payload": {'),
    "debezium source": ("debezium-json", DEBEZIUM, '"source": {', '"source": {"table": "x", '),
    "debezium bare source": ("debezium-json", BARE, '"source": {', '"source": {"table": "x", '),
    "debezium bare after": ("debezium-json", BARE, '"after": {', '"after": {"n": "x", '),
    "debezium bare before": ("debezium-json", BARE, '"before": {', '"before": {"n": "x", '),
    "wal2json columns": ("wal2json", V2, '"columns": [', '"columns": [{"name": "n", "type": "text", "value": "x"}, '),
    "wal2json identity": ("wal2json", V2, '"identity": [', '"identity": [{"name": "n", "type": "text", "value": "x"}, '),
    "wal2json pk": ("wal2json", V2, '"pk": [', '"pk": [{"name": "id", "type": "integer"}, '),
    "wal2json cell": ("wal2json", V2, '"type": "text", "value": "b"', '"type": "text", "value": "x", "value": "b"'),
    "wal2json old cell": ("wal2json", V2, '"type": "text", "value": "a"', '"type": "text", "value": "x", "value": "a"'),
    "wal2json names": (
        "wal2json",
        V1,
        '"columnnames": ["id", "n"], "columntypes": ["integer", "text"], "columnvalues": [1, "b"]',
        '"columnnames": ["id", "n", "n"], "columntypes": ["integer", "text", "text"], "columnvalues": [1, "x", "b"]',
    ),
    "wal2json keys": (
        "wal2json",
        V1,
        '"keynames": ["id"], "keytypes": ["integer"], "keyvalues": [1]',
        '"keynames": ["id", "id"], "keytypes": ["integer", "integer"], "keyvalues": [1, 2]',
    ),
    "wal2json key object": ("wal2json", V1, '"oldkeys": {', '"oldkeys": {"keyvalues": [2], '),
    "wal2json pk object": ("wal2json", V1, '"pk": {', '"pk": {"pknames": ["n"], '),
    "wal2json pknames": ("wal2json", V1, '["id"], "pktypes": ["integer"]', '["id", "id"], "pktypes": ["integer", "integer"]'),
    "wal2json change": ("wal2json", V1, '"kind":', '"kind": "delete", "kind":'),
    "wal2json transaction": ("wal2json", V1, '{"change":', '{"change": [], "change":'),
    "dms data": ("dms", DMS, '"data": {', '"data": {"n": "x", '),
    "dms metadata": ("dms", DMS, '"metadata": {', '"metadata": {"operation": "delete", '),
}  # fmt: skip


TOLD_OTHERWISE = {"debezium payload", "wal2json change", "wal2json transaction", "dms metadata"}
"""What lacks a part that its format needs is refused for that."""


@pytest.mark.each(8)
@pytest.mark.parametrize("name", CASES)
def test_a_name_given_twice_rejects_the_event_and_no_other(name: str) -> None:
    format_name, event, once, twice = CASES[name]
    text = json.dumps(event)
    assert once in text
    odd = text.replace(once, twice, 1)
    feeds = (TableFeed(name=TABLE, key=("id",)),)
    for documents in ([odd], [text, odd, text], [odd, text]):
        raw = from_documents([document.encode() for document in documents], "f")
        decoded = decode(raw, FeedConfig(format=format_name, tables=feeds, options={}))
        assert decoded.tables[TABLE].table.num_rows == len(documents) - 1, reasons(decoded)
        assert len(reasons(decoded)) == 1
        assert "twice" in reasons(decoded)[0] or name in TOLD_OTHERWISE


@pytest.mark.parametrize("number", ["1e999", "-1e400", "9" * 5000])
@pytest.mark.parametrize(
    ("name", "part"),
    [("canal mysqlType", '"mysqlType": {"v": @, '), ("canal sqlType", '"sqlType": {"v": @, '), ("maxwell key", '_columns": [@, "id"')],
)  # fmt: skip
def test_a_declaration_with_a_number_out_of_range_rejects_the_event_and_no_other(
    name: str, part: str, number: str
) -> None:
    format_name, event, once, _ = CASES[name]
    text = json.dumps(event)
    odd = text.replace(once, part.replace("@", number), 1)
    feeds = (TableFeed(name=TABLE, key=("id",)),)
    raw = from_documents([document.encode() for document in (text, odd, text)], "f")
    decoded = decode(raw, FeedConfig(format=format_name, tables=feeds, options={}))
    assert decoded.tables[TABLE].table.num_rows == 2
    assert ["out of range" in reason for reason in reasons(decoded)] == [True]
