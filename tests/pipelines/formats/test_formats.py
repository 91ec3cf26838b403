"""The other feeds: Canal, Maxwell, DMS, wal2json, plain rows; and how a format is told from its events."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nevermore.pipelines.decode.assemble import Assembled
from nevermore.pipelines.decode.batches import Rejected, from_documents
from nevermore.pipelines.decode.events import Events
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.errors import LostEventsError, SourceError
from nevermore.pipelines.formats import registry
from nevermore.pipelines.formats.registry import decode
from tests.pipelines.formats.decoded_feed import Row, canal, changes, dms, read, reasons, wal


def test_event_that_is_wrong_in_several_ways_is_rejected_once() -> None:
    twice = {"op": "x", "before": None, "after": "text", "source": {"db": "shop", "table": "t"}, "ts_ms": 1}
    feed = FeedConfig(format="debezium-json", tables=(TableFeed(name="shop.t", key=("id",)),))
    rejected = decode(from_documents([json.dumps(twice).encode()]), feed).rejected.table
    assert rejected.column("source_offset").to_pylist() == [1]
    assert "after is text or missing" in rejected.column("reason")[0].as_py()


# -- faults of a decoder: an event that gets lost here has no number yet, so that no check could miss it ---------------


def lose_an_event(found: Events) -> Events:
    return replace(found, op=np.where(found.raw == 1, np.uint8(0), found.op))


def lose_a_refusal(found: Events) -> Events:
    return replace(found, refusals=())


def lose_a_count(found: Events) -> Events:
    return replace(found, skipped={})


def lose_a_change(done: Assembled) -> Assembled:
    return replace(done, changes=replace(done.changes, table=done.changes.table.slice(1)))


def double_a_change(done: Assembled) -> Assembled:
    both = pa.concat_tables([done.changes.table, done.changes.table.slice(0, 1)])
    return replace(done, changes=replace(done.changes, table=both))


def lose_a_rejection(done: Assembled) -> Assembled:
    return replace(done, rejected=Rejected.none())


FAULTS = {
    lose_an_event: "1 of 6 events would be lost.*first event that is no change: shop.jsonl 2",
    lose_a_refusal: "1 of 6 events would be lost",
    lose_a_count: "1 of 6 events would be lost",
    lose_a_change: "shop.t: 4 changes were read from events, but 3 are left",
    double_a_change: "shop.t: 4 changes were read from events, but 5 are left",
    lose_a_rejection: "shop.t: 4 changes were read from events, but 3 are left",
}


def shop_event(number: int, **other: Any) -> bytes:
    row = {"id": number, "n": 1, **other}
    return json.dumps(
        {"op": "c", "before": None, "after": row, "source": {"db": "shop", "table": "t"}, "ts_ms": 1}
    ).encode()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_events_that_a_decoder_loses_are_an_error(fault: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    events = [shop_event(0), shop_event(1), b"{broken", None, shop_event(2), shop_event(3)]
    if fault is lose_a_rejection:
        events[0] = shop_event(0, n="no number")
    raw = from_documents(events, "shop.jsonl")
    table = TableFeed(name="shop.t", key=("id",), types={"n": "int"})
    feed = FeedConfig(format="debezium-json", tables=(table,))
    assert decode(raw, feed).tables["shop.t"].num_rows == (3 if fault is lose_a_rejection else 4)
    is_late = fault in {lose_a_change, double_a_change, lose_a_rejection}
    chosen = registry.lookup("debezium-json")
    original = registry.assemble if is_late else chosen.decode

    def faulty(*given: Any, **options: Any) -> Any:
        return fault(original(*given, **options))

    if is_late:
        monkeypatch.setattr(registry, "assemble", faulty)
    else:
        monkeypatch.setattr(registry, "FORMATS", {"debezium-json": replace(chosen, decode=faulty)})
    with pytest.raises(LostEventsError, match=FAULTS[fault]):
        decode(raw, feed)


@pytest.mark.parametrize("name", [name for name, known in registry.FORMATS.items() if known.is_text])
def test_a_batch_without_any_text_is_rejected(name: str) -> None:
    feed = FeedConfig(format=name, tables=(TableFeed(name="shop.t", key=("id",)),))
    decoded = decode(from_documents([b"\xff", b'{"a": "\xff"}']), feed)
    assert decoded.rejected.table.column("reason").to_pylist() == ["not UTF-8"] * 2
    assert decoded.tables["shop.t"].num_rows == 0


# -- Maxwell -------------------------------------------------------------------------------------------------------------


def maxwell(kind: str, data: Row, **more: Any) -> Row:
    return {"database": "d", "table": "products", "type": kind, "ts": 1700000000, "data": data, **more}


def test_maxwell_types_and_old_values_decode() -> None:
    decoded = read(
        "maxwell-json",
        maxwell("bootstrap-start", {}),
        maxwell("bootstrap-insert", {"id": 1, "j": {"a": 1}}),
        maxwell("update", {"id": 2, "j": None}, old={"id": 1, "j": {"a": 1}}),
        maxwell("delete", {"id": 2, "j": None}),
        maxwell("table-alter", {}),
        maxwell("new-kind", {"id": 3}),
        key=(),
    )
    assert {r.split(":")[0] for r in reasons(decoded)} == {"no key", "not a Maxwell change"}
    assert decoded.skipped == {"control event": 2}
    decoded = read(
        "maxwell-json",
        maxwell("bootstrap-insert", {"id": 1, "j": {"a": 1}}, primary_key_columns=["id"]),
        maxwell("update", {"id": 2, "j": None}, old={"id": 1}, primary_key_columns=["id"]),
        maxwell("delete", {"id": 2, "j": None}, primary_key_columns=["id"]),
        key=(),
    )
    assert [(c["op"], c["key"]) for c in changes(decoded)] == [("r", {"id": 1}), ("u", {"id": 1}), ("d", {"id": 2})]
    assert changes(decoded, "after")[0] == {"after": {"id": 1, "j": '{"a": 1}'}}
    assert changes(decoded, "source_ts")[0]["source_ts"] == datetime.fromtimestamp(1700000000, UTC)


# -- sniffing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        ({"before": None, "after": {"id": 1}, "op": "c"}, "c"),
        ({"schema": {}, "payload": {"before": None, "after": {"id": 1}, "op": "c"}}, "c"),
        ({"id": 1, "__deleted": "false", "__op": "c"}, "c"),
        (canal("INSERT", [{"id": "1"}]), "c"),
        (maxwell("insert", {"id": 1}), "c"),
        (dms("insert", {"id": 1}), "c"),
        (wal("I", {"id": 1}), "c"),
        (
            {
                "change": [
                    {
                        "kind": "insert",
                        "schema": "p",
                        "table": "t",
                        "columnnames": ["id"],
                        "columntypes": ["integer"],
                        "columnvalues": [1],
                    }
                ]
            },
            "c",
        ),
        ({"op": "i", "id": 1}, "c"),
    ],
)
def test_format_is_seen_from_the_events(event: Row, wanted: str) -> None:
    assert changes(read(None, event), "op") == [{"op": wanted}]


def test_format_in_doubt_is_an_error_that_shows_the_event() -> None:
    with pytest.raises(SourceError, match="look like no known format"):
        read(None, {"what": 1})
    with pytest.raises(SourceError, match="canal-json and wal2json"):
        read(None, canal("INSERT", [{"id": "1"}]), wal("I", {"id": 1}))


def test_maxwell_events_that_are_encrypted_are_refused_and_say_so() -> None:
    event = {"database": "d", "table": "products", "type": "insert", "ts": 1}
    decoded = read("maxwell-json", event | {"data": {"id": 1}}, event | {"encrypted": {"iv": "a", "bytes": "b"}})
    assert reasons(decoded) == ["encrypted: only Maxwell's own key can decrypt it; run Maxwell without encryption"]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("rows", '{"op":"c","id":1,"v":"a"}', '{"op":"c","id":2,"v":"a","v":"b"}'),
        ("rows", '{"op":"c","id":1,"v":"a"}', '{"op":"c","id":2,"v":"a","op":"d"}'),
        ("rows", '{"op":"c","id":1,"v":{"x":1}}', '{"op":"c","id":2,"v":{"x":1,"x":2}}'),
        ("debezium-json", '{"op":"c","after":{"id":1,"v":"a"}}', '{"op":"c","after":{"id":2,"v":"a","id":3}}'),
        ("debezium-json", '{"op":"c","after":{"id":1,"v":"a"}}', '{"op":"c","after":{"id":2,"v":"a"},"op":"d"}'),
        (
            "maxwell-json",
            '{"type":"insert","database":"s","table":"t","data":{"id":1,"v":"a"}}',
            '{"type":"update","database":"s","table":"t","data":{"id":2,"v":"a"},"old":{"v":"a","v":"b"}}',
        ),
        (
            "dms",
            '{"data":{"id":1,"v":"a"},"metadata":{"record-type":"data","operation":"insert","table-name":"t"}}',
            '{"data":{"id":1,"v":"a","v":"b"},"metadata":{"record-type":"data","operation":"insert","table-name":"t"}}',
        ),
    ],
)
def test_an_object_that_gives_a_member_twice_is_rejected(name: str, good: str, bad: str) -> None:
    feed = FeedConfig(format=name, tables=(TableFeed(name="s.t", key=("id",)),))
    decoded = decode(from_documents([good.encode(), bad.encode()]), feed)
    assert decoded.tables["s.t"].num_rows == 1
    (reason,) = decoded.rejected.table.column("reason").to_pylist()
    assert "twice" in reason or "is no struct" in reason


def test_reasons_show_the_value_of_each_event_shortened() -> None:
    rows = [{"op": "c", "id": 1, "n": 5}, *({"op": "c", "id": 2, "n": n} for n in ("a\nb", "x" * 100, [1], True))]
    found = reasons(read("rows", *rows, {"op": "?", "id": 3}, {"id": 4}))
    assert found == [
        "no operation that is known in op: '?'",
        "no column with the operation",
        "column n: text 'a b' is no long",
        f"column n: text '{'x' * 60}...' is no long",
        "column n: list '[1]' is no long",
        "column n: true 'true' is no long",
    ]


@pytest.mark.parametrize("name", ["rows", "debezium-json", "maxwell-json", "dms"])
def test_null_is_a_key_and_a_missing_key_is_none(name: str) -> None:
    def of(row: Row) -> Row:
        return {
            "rows": {"op": "c", **row},
            "debezium-json": {"op": "c", "after": row, "source": {"table": "products"}},
            "maxwell-json": {"type": "insert", "database": "p", "table": "products", "ts": 1, "data": row},
            "dms": {"data": row, "metadata": {"operation": "insert", "record-type": "data", "table-name": "products"}},
        }[name]

    decoded = read(name, of({"id": 1, "n": 1}), of({"id": None, "n": 2}), of({"n": 3}))
    assert [c["key"] for c in changes(decoded, "key")] == [{"id": 1}, {"id": None}]
    assert reasons(decoded) == ["event without key column id"]
