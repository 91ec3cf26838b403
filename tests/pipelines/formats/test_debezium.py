"""Debezium events: layouts, envelopes, keys, what is skipped and what is refused."""

from base64 import b64encode
from typing import Any

import pytest

from nevermore.pipelines.decode.batches import SEND_AGAIN, from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.formats.registry import decode
from tests.pipelines.formats.debezium_events import TABLE, Row, changes, event, read, reasons

PLACEHOLDER = "__debezium_unavailable_value"


def test_all_operations_decode_with_their_keys_and_images() -> None:
    decoded = read(
        event("r", {"id": 1, "n": "a"}),
        event("c", {"id": 2, "n": "b"}),
        event("u", {"id": 3, "n": "c"}, {"id": 2, "n": "b"}),
        event("d", None, {"id": 1, "n": "a"}),
        event("t"),
    )
    assert changes(decoded) == [
        {"op": "r", "key": {"id": 1}, "before": None, "after": {"id": 1, "n": "a"}},
        {"op": "c", "key": {"id": 2}, "before": None, "after": {"id": 2, "n": "b"}},
        {"op": "u", "key": {"id": 2}, "before": {"id": 2, "n": "b"}, "after": {"id": 3, "n": "c"}},
        {"op": "d", "key": {"id": 1}, "before": {"id": 1, "n": "a"}, "after": None},
        {"op": "t", "key": None, "before": None, "after": None},
    ]
    assert changes(decoded, "source_file", "source_offset", "unchanged")[3] == {
        "source_file": "f",
        "source_offset": 4,
        "unchanged": [],
    }
    assert decoded.tables[TABLE].counts == {"r": 1, "c": 1, "u": 1, "d": 1, "t": 1}


def test_broken_events_are_rejected_and_the_rest_goes_on() -> None:
    decoded = read(
        event("c", {"id": 1}),
        b'{"before":null,"after":{"id":2},"op":"c"',
        b"plain text",
        b"[1]",
        event("x", {"id": 3}),
        event("c", {"name": "no key"}),
        event("u"),
        event("d"),
        {"something": "else"},
        b'{"before":null,"after":{"id":4,"n":"\xff"},"op":"c"}',
        b"  \n",
        event("c", {"id": 5}),
    )
    # No column comes from an event that is refused.
    assert [row["after"] for row in changes(decoded, "after")] == [{"id": 1}, {"id": 5}]
    assert dict(reasons(decoded)) == {
        2: "not JSON",
        3: "not JSON",
        4: "JSON, but no object",
        5: "op is none of r, c, u, d, t: 'x'",
        6: "event without key column id",
        7: "event without a row: no after",
        8: "delete with neither before nor message key: no value for id",
        9: "event without key column id",
        10: "not UTF-8",
    }
    assert decoded.skipped == {"blank line": 1}
    raw = {row["source_offset"]: row["raw"] for row in decoded.rejected.table.to_pylist()}
    assert raw[3] == b"plain text"


def test_control_events_and_tombstones_are_skipped_and_counted() -> None:
    decoded = read(
        None,
        b"null",
        {"schema": None, "payload": None},
        {"source": {}, "databaseName": "d", "ddl": "create table t (id int)", "tableChanges": []},
        {"status": "BEGIN", "id": "571", "event_count": None, "data_collections": None, "ts_ms": 1},
        {"ts_ms": 1700000000000},
        event("m") | {"message": {"prefix": "p"}},
        event("c", {"id": 1}),
    )
    assert decoded.skipped == {"tombstone": 3, "control event": 3, "logical decoding message": 1}
    assert not reasons(decoded)


@pytest.mark.parametrize(
    "value",
    [
        PLACEHOLDER,
        b64encode(PLACEHOLDER.encode()).decode(),
        [PLACEHOLDER],
        {PLACEHOLDER: PLACEHOLDER},
        list(PLACEHOLDER.encode()),
    ],
)
def test_placeholder_in_any_form_means_unchanged(value: Any) -> None:
    decoded = read(event("u", {"id": 1, "n": value, "m": 2}))
    assert changes(decoded, "after", "unchanged") == [{"after": {"id": 1, "n": None, "m": 2}, "unchanged": ["n"]}]


def test_unsent_value_that_stands_in_before_is_taken_from_there() -> None:
    decoded = read(event("u", {"id": 1, "n": PLACEHOLDER}, {"id": 1, "n": "long"}))
    assert changes(decoded, "after", "unchanged") == [{"after": {"id": 1, "n": "long"}, "unchanged": []}]


def test_placeholder_as_key_is_refused() -> None:
    reason = f"event without key column id, as its value did not change; {SEND_AGAIN}"
    assert reasons(read(event("u", {"id": PLACEHOLDER}))) == [(1, reason)]


def test_events_are_ordered_by_values_of_theirs_where_asked() -> None:
    decoded = read(
        event("u", {"id": 1, "n": 3}, ts_ms=2, pos=1, row=1),
        event("u", {"id": 1, "n": 2}, ts_ms=2, pos=1, row=0),
        event("u", {"id": 1, "n": 1}, ts_ms=1, pos=9, row=0),
        order_by=("source.ts_ms", "source.row"),
    )
    assert [row["after"]["n"] for row in changes(decoded, "after")] == [1, 2, 3]


def test_log_sequence_numbers_order_as_numbers() -> None:
    events = [event("u", {"id": n}, lsn=lsn) for n, lsn in enumerate(["1/0", "0/A0", "0/9", "0/10"])]
    decoded = read(*events, order_by=("source.lsn",))
    assert [row["after"]["id"] for row in changes(decoded, "after")] == [2, 3, 1, 0]


def test_order_by_what_no_event_has_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"have no source\.pos"):
        read(event("c", {"id": 1}), order_by=("source.pos",))


def test_feed_of_several_tables_is_divided() -> None:
    decoded = read(
        event("c", {"id": 1}),
        event("c", {"oid": 2}, table="orders"),
        event("c", {"x": 3}, table="other"),
        tables=(
            TableFeed(name=TABLE, key=("id",)),
            TableFeed(name="shop.bestellungen", source_table="*.ord*", key=("oid",)),
        ),
    )
    assert changes(decoded, "after") == [{"after": {"id": 1}}]
    assert decoded.tables["shop.bestellungen"].table.column("after").to_pylist() == [{"oid": 2}]
    assert decoded.skipped == {"other table": 1}
    assert set(decoded.source_tables) == {"inventory.products", "inventory.orders", "inventory.other"}


def test_feed_of_several_tables_for_one_target_of_another_name_is_in_doubt() -> None:
    with pytest.raises(SourceError, match="source_table"):
        read(event("c", {"id": 1}), event("c", {"id": 2}, table="orders"), tables=(TableFeed(name="a.b", key=("id",)),))


def test_source_time_is_that_of_the_source_or_of_the_connector_during_snapshots() -> None:
    decoded = read(event("r", {"id": 1}, ts_ms=0), event("c", {"id": 2}))
    times = [row["source_ts"].timestamp() for row in changes(decoded, "source_ts")]
    assert times == [1_700_000_000.001, 1_700_000_000.0]


def test_documents_of_mongodb_are_refused_with_what_to_do() -> None:
    decoded = read(event("c", None) | {"after": '{"_id": {"$oid": "5f"}}'})
    assert "ExtractNewDocumentState" in decoded.rejected.table.column("reason")[0].as_py()


def test_unknown_options_and_formats_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean tombstones"):
        read(event("c", {"id": 1}), options={"tombstone": "delete"})
    with pytest.raises(ConfigError, match="did you mean debezium-json"):
        decode(from_documents([]), FeedConfig(format="debezium-jsn", tables=(TableFeed(name="a.b"),)))


def test_no_events_give_empty_batches() -> None:
    decoded = read()
    assert decoded.tables[TABLE].num_rows == 0
    assert decoded.tables[TABLE].key == ("id",)


@pytest.mark.parametrize("op", ["u", "d"])
def test_events_of_mongodb_without_a_row_are_refused_with_what_to_do(op: str) -> None:
    decoded = read(event(op, None, connector="mongodb", collection="products"))
    assert "ExtractNewDocumentState" in reasons(decoded)[0][1]


@pytest.mark.parametrize(
    "control",
    [
        {"ts_ms": 1, "ts_us": 1, "ts_ns": 1},
        {"id": "1", "aggregate_type": "Initial Snapshot", "type": "STARTED", "additional_data": {}, "timestamp": 1},
        {"status": "END", "id": "571", "event_count": 2, "data_collections": [{}], "ts_ms": 1},
        {"source": {}, "databaseName": "d", "schemaName": None, "ddl": None, "tableChanges": [], "ts_ms": 1},
    ],
)
def test_what_connectors_write_beside_changes_is_left_out(control: Row) -> None:
    decoded = read(control, {"id": 1, "status": "x"}, control, event("c", {"id": 2}))
    assert decoded.skipped == {"control event": 2}
    assert decoded.tables[TABLE].num_rows == 2
    assert not reasons(decoded)


def test_truncate_without_a_schema_takes_the_key_that_other_events_declare() -> None:
    key = {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int32"}]}, "payload": {"id": 1}}
    decoded = read(event("c", {"id": 1}), event("t"), keys=[key, None], key=())
    assert changes(decoded, "op") == [{"op": "c"}, {"op": "t"}]
