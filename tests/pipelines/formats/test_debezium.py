"""Debezium events: layouts, envelopes, keys, what is skipped and what is refused."""

import json
from base64 import b64encode
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipelines.errors import ConfigError, SourceError
from pipelines.formats.feed import FeedConfig, TableFeed
from pipelines.formats.registry import DecodedFeed, decode
from pipelines.sources.raw_events import from_documents

Row = dict[str, Any]
TABLE = "shop.products"
PLACEHOLDER = "__debezium_unavailable_value"


def event(op: str, after: Row | None = None, before: Row | None = None, **source: Any) -> Row:
    origin = {"db": "inventory", "table": "products", "ts_ms": 1_700_000_000_000, **source}
    return {"before": before, "after": after, "source": origin, "op": op, "ts_ms": 1_700_000_000_001}


def read(
    *events: Row | bytes | None,
    keys: list[Row | None] | None = None,
    options: dict[str, Any] | None = None,
    tables: tuple[TableFeed, ...] | None = None,
    **feed: Any,
) -> DecodedFeed:
    documents = [e if isinstance(e, bytes) or e is None else json.dumps(e).encode() for e in events]
    message_keys = None if keys is None else [None if k is None else json.dumps(k).encode() for k in keys]
    feeds = tables or (TableFeed(name=TABLE, **{"key": ("id",), **feed}),)
    config = FeedConfig(format="debezium-json", tables=feeds, options=options or {})
    return decode(from_documents(documents, "f", keys=message_keys), config)


def changes(decoded: DecodedFeed, *names: str) -> list[Row]:
    return decoded.tables[TABLE].table.select(list(names or ("op", "key", "before", "after"))).to_pylist()


def reasons(decoded: DecodedFeed) -> list[tuple[int, str]]:
    columns = ("source_offset", "reason")
    return [tuple(row[c] for c in columns) for row in decoded.rejected.table.to_pylist()]


def schema_of(fields: dict[str, str]) -> Row:
    row = [{"field": name, "type": kind, "optional": True} for name, kind in fields.items()]
    images = [{"field": name, "type": "struct", "fields": row} for name in ("before", "after")]
    return {"type": "struct", "fields": [*images, {"field": "op", "type": "string"}]}


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


def test_values_that_contradict_the_first_are_rejected_with_value_and_type() -> None:
    decoded = read(event("c", {"id": 1, "n": 5}), event("c", {"id": 2, "n": "five"}), event("c", {"id": 3, "n": 7}))
    assert [row["after"]["id"] for row in changes(decoded, "after")] == [1, 3]
    assert reasons(decoded) == [(2, "column n: text 'five' is no long")]


def test_numbers_with_a_fraction_in_an_untyped_key_are_whole_ones_or_rejected() -> None:
    decoded = read(*(event("c", {"id": key, "w": 5.0}) for key in (5.0, 6, 6.5, 1e3)))
    assert decoded.tables["shop.products"].row_type == pa.struct([("id", pa.int64()), ("w", pa.float64())])
    assert [change["key"]["id"] for change in changes(decoded, "key")] == [5, 6, 1000]
    assert reasons(decoded) == [(3, "column id: number '6.5' is no long")]


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


@pytest.mark.parametrize("schema_first", [True, False])
def test_declared_types_of_the_envelope_hold_in_either_member_order(schema_first: bool) -> None:  # noqa: FBT001 - a parameter
    schema = schema_of({"id": "int32", "n": "int64", "f": "float"})
    events = []
    for number in range(5):
        parts = [("schema", schema), ("payload", event("c", {"id": number, "n": 1, "f": 1}))]
        events.append(dict(parts if schema_first else parts[::-1]))
    decoded = read(*events)
    assert decoded.tables[TABLE].row_type == pa.struct([("id", pa.int32()), ("n", pa.int64()), ("f", pa.float32())])
    assert decoded.tables[TABLE].num_rows == 5


def test_schema_that_changes_in_mid_stream_widens_and_keeps_the_order() -> None:
    old, new = schema_of({"id": "int32", "n": "int32"}), schema_of({"id": "int32", "n": "int64", "extra": "string"})
    decoded = read(
        {"schema": old, "payload": event("c", {"id": 1, "n": 1})},
        {"schema": new, "payload": event("c", {"id": 2, "n": 2**40, "extra": "x"})},
        {"schema": old, "payload": event("c", {"id": 3, "n": 3})},
        event("c", {"id": 4, "n": 4}),
    )
    assert decoded.tables[TABLE].row_type == pa.struct([("id", pa.int32()), ("n", pa.int64()), ("extra", pa.string())])
    assert [row["after"] for row in changes(decoded, "after")] == [
        {"id": 1, "n": 1, "extra": None},
        {"id": 2, "n": 2**40, "extra": "x"},
        {"id": 3, "n": 3, "extra": None},
        {"id": 4, "n": 4, "extra": None},
    ]


def test_schema_that_changes_against_all_promotion_is_rejected() -> None:
    decoded = read(
        {"schema": schema_of({"id": "int32", "n": "int32"}), "payload": event("c", {"id": 1, "n": 1})},
        {"schema": schema_of({"id": "int32", "n": "string"}), "payload": event("c", {"id": 2, "n": "x"})},
    )
    assert [row["after"]["id"] for row in changes(decoded, "after")] == [1]
    assert reasons(decoded) == [(2, "column n changes from int to string, which no promotion covers: 'x'")]


def test_more_schemas_than_are_compared_are_still_cut() -> None:
    events = [
        {"schema": schema_of({"id": "int32", f"c{n}": "int32"}), "payload": event("c", {"id": n, f"c{n}": n})}
        for n in range(80)
    ]
    decoded = read(*events)
    assert decoded.tables[TABLE].num_rows == 80
    assert [row["after"]["id"] for row in changes(decoded, "after")] == list(range(80))


def test_before_that_lacks_the_key_is_no_key_change() -> None:
    decoded = read(event("u", {"id": 7, "n": 1}, {"n": 0}))
    assert changes(decoded, "key") == [{"key": {"id": 7}}]


def test_message_key_identifies_a_delete_without_before() -> None:
    decoded = read(event("c", {"id": 1}), event("d"), keys=[{"id": 1}, {"id": 9}])
    assert changes(decoded, "op", "key")[1] == {"op": "d", "key": {"id": 9}}


def test_key_comes_from_the_messages_where_none_is_configured() -> None:
    decoded = read(event("c", {"a": 1, "b": 2, "n": 3}), keys=[{"b": 2, "a": 1}], key=())
    assert decoded.tables[TABLE].key == ("b", "a")


def test_without_any_key_events_are_rejected_aloud() -> None:
    decoded = read(event("c", {"a": 1}), key=())
    assert reasons(decoded) == [(1, "no key: the feed names none, declare it in the config (key: [...])")]


def test_identity_of_a_table_without_key_is_the_whole_row() -> None:
    decoded = read(event("u", {"a": 1, "b": 2}, {"a": 1, "b": 1}), key=(), identity_full=True)
    assert changes(decoded, "key") == [{"key": {"a": 1, "b": 1}}]


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
    assert reasons(read(event("u", {"id": PLACEHOLDER}))) == [(1, "event without key column id")]


def test_unwrapped_rows_with_flags_decode() -> None:
    decoded = read(
        {"id": 1, "n": "a", "__op": "c", "__deleted": "false", "__table": "products", "__source_ts_ms": 5},
        {"id": 1, "n": "b", "__op": "u", "__deleted": "false", "__table": "products", "__source_ts_ms": 6},
        {"id": 1, "n": "b", "__op": "d", "__deleted": "true", "__table": "products", "__source_ts_ms": 7},
        None,
        {"id": 2, "n": None, "__deleted": True, "__table": "products"},
    )
    assert changes(decoded) == [
        {"op": "c", "key": {"id": 1}, "before": None, "after": {"id": 1, "n": "a"}},
        {"op": "u", "key": {"id": 1}, "before": None, "after": {"id": 1, "n": "b"}},
        {"op": "d", "key": {"id": 1}, "before": {"id": 1, "n": "b"}, "after": None},
        {"op": "d", "key": {"id": 2}, "before": {"id": 2, "n": None}, "after": None},
    ]
    assert decoded.skipped == {"tombstone": 1}


def test_unwrapped_tombstones_delete_where_they_are_the_only_sign() -> None:
    decoded = read({"id": 1, "n": "a"}, None, keys=[{"id": 1}, {"id": 1}], options={"tombstones": "delete"}, key=())
    assert changes(decoded, "op", "key") == [{"op": "u", "key": {"id": 1}}, {"op": "d", "key": {"id": 1}}]


def test_key_columns_that_only_the_message_key_has_are_filled_in() -> None:
    decoded = read({"n": "a"}, keys=[{"id": 4}], key=())
    assert changes(decoded, "key", "after") == [{"key": {"id": 4}, "after": {"n": "a", "id": 4}}]


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


def test_columns_are_left_out_renamed_and_cast() -> None:
    decoded = read(
        event("c", {"ID": 1, "secret": "s", "price": "12.50", "n": 5}),
        key=("id",),
        exclude=("secret",),
        rename={"ID": "id", "n": "quantity"},
        types={"price": "decimal(10,2)"},
        cast={"n": "string"},
    )
    assert decoded.tables[TABLE].row_type == pa.struct(
        [("id", pa.int64()), ("price", pa.decimal128(10, 2)), ("quantity", pa.string())]
    )
    assert changes(decoded, "after")[0]["after"]["quantity"] == "5"


def test_include_keeps_only_what_it_names_and_the_key() -> None:
    decoded = read(event("c", {"id": 1, "a": 2, "b": 3}), include=("a",))
    assert changes(decoded, "after") == [{"after": {"id": 1, "a": 2}}]


@pytest.mark.parametrize(
    ("known", "value", "wanted"),
    [
        (pa.int32(), 5, pa.int32()),
        (pa.int32(), 2**40, pa.int64()),
        (pa.float64(), 5, pa.float64()),
        (pa.decimal128(10, 2), "1.5", pa.decimal128(10, 2)),
        (pa.timestamp("us"), "2020-01-01T00:00:00", pa.timestamp("us")),
        (pa.string(), None, pa.string()),
        (pa.struct([("x", pa.int32())]), {"x": 1, "y": "n"}, pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ],
)
def test_columns_of_the_mirror_keep_their_type_unless_a_value_needs_a_wider_one(
    known: pa.DataType, value: Any, wanted: pa.DataType
) -> None:
    decoded = read(event("c", {"id": 1, "n": value}), known_types={"n": known})
    assert not reasons(decoded)
    assert decoded.tables[TABLE].row_type.field("n").type == wanted


@pytest.mark.parametrize(
    ("known", "value"), [(pa.int64(), 1.5), (pa.int64(), "x"), (pa.string(), 5), (pa.date32(), "n")]
)
def test_values_that_the_mirrors_column_cannot_hold_are_rejected(known: pa.DataType, value: Any) -> None:
    decoded = read(event("c", {"id": 1, "n": value}), event("c", {"id": 2, "n": None}), known_types={"n": known})
    assert [offset for offset, _ in reasons(decoded)] == [1]
    assert decoded.tables[TABLE].num_rows == 1


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


def test_decimals_that_each_state_their_scale_need_no_schema() -> None:
    feed = TableFeed(name=TABLE, key=("id",), types={"n": "decimal(10, 2)"})
    rows = [{"id": 1, "n": {"scale": 2, "value": "ANY="}}, {"id": 2, "n": {"scale": 0, "value": "Aw=="}}]
    decoded = read(*(event("c", row) for row in rows), tables=(feed,))
    assert [r["after"]["n"] for r in changes(decoded, "after")] == [Decimal("2.14"), Decimal("3.00")]


def test_unknown_options_and_formats_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean tombstones"):
        read(event("c", {"id": 1}), options={"tombstone": "delete"})
    with pytest.raises(ConfigError, match="did you mean debezium-json"):
        decode(from_documents([]), FeedConfig(format="debezium-jsn", tables=(TableFeed(name="a.b"),)))


def test_no_events_give_empty_batches() -> None:
    decoded = read()
    assert decoded.tables[TABLE].num_rows == 0
    assert decoded.tables[TABLE].key == ("id",)


@pytest.mark.parametrize(
    ("value", "cut"),
    [(1_600_000_000_000_001_000, 0), (1_600_000_000_000_001_001, 1), ("2020-01-01T00:00:00.1234567", 1)],
)
def test_times_finer_than_a_microsecond_are_cut_and_counted(value: Any, cut: int) -> None:
    feed = TableFeed(name=TABLE, key=("id",), types={"at": "timestamp"})
    decoded = read(event("c", {"id": 1, "at": value}), tables=(feed,))
    assert decoded.skipped.get("digits below a microsecond", 0) == cut
    assert changes(decoded, "after")[0]["after"]["at"] is not None


def test_declared_nanoseconds_are_kept_as_numbers_where_config_says_long() -> None:
    feed = TableFeed(name=TABLE, key=("id",), types={"at": "long"})
    decoded = read(event("c", {"id": 1, "at": 1_600_000_000_000_001_001}), tables=(feed,))
    assert changes(decoded, "after")[0]["after"]["at"] == 1_600_000_000_000_001_001
    assert decoded.skipped == {}


def test_unwrapped_rows_may_have_columns_called_op_and_after() -> None:
    row = {"id": 1, "op": "c", "after": "noon"}
    decoded = read(row | {"__op": "c"})
    assert changes(decoded, "after") == [{"after": row}]
    assert reasons(decoded) == []


def test_envelopes_and_rows_of_one_batch_are_told_apart_one_by_one() -> None:
    decoded = read(
        event("c", {"id": 1, "n": "a"}),
        {"id": 2, "n": "b"},
        {"id": 3, "n": "c", "__op": "c", "__db": "inventory", "__table": "products"},
        event("d", None, {"id": 1, "n": "a"}),
        {"id": 2, "n": "b", "__deleted": "true"},
        {"id": 4, "status": "open", "ddl": "x", "n": "d"},
        event("u", {"id": 3, "n": "e"}, {"id": 3, "n": "c"}),
    )
    assert not reasons(decoded)
    assert [(row["op"], row["key"]["id"]) for row in changes(decoded, "op", "key")] == [
        *(("c", 1), ("u", 2), ("c", 3), ("d", 1)),
        *(("d", 2), ("u", 4), ("u", 3)),
    ]
    assert changes(decoded, "after")[5]["after"] == {"id": 4, "n": "d", "status": "open", "ddl": "x"}


@pytest.mark.parametrize(
    "odd",
    [
        *({"op": "c"}, {"op": 5, "after": {"id": 9}}, {"after": {"id": 9}}, {"before": None, "after": None}),
        *({"source": {"db": "d"}, "ts_ms": 1}, {"id": 9, "before": {"id": 9}}, {}),
    ],
)
def test_envelope_that_lacks_something_is_no_row(odd: Row) -> None:
    decoded = read(event("c", {"id": 1}), odd, {"id": 2})
    assert [number for number, _ in reasons(decoded)] == [2]
    assert [row["key"]["id"] for row in changes(decoded, "key")] == [1, 2]


def test_bare_events_are_of_the_types_that_enveloped_ones_declare() -> None:
    date = {"field": "d", "type": "int32", "name": "io.debezium.time.Date", "optional": True}
    schema = schema_of({"id": "int32"})
    schema["fields"][1]["fields"].append(date)
    decoded = read(
        event("c", {"id": 1, "d": 1}),
        {"schema": schema, "payload": event("c", {"id": 2, "d": 2})},
        {"schema": None, "payload": event("c", {"id": 2**40, "d": 3})},
        {"id": 4, "d": 4},
    )
    assert not reasons(decoded)
    assert [str(row["after"]["d"]) for row in changes(decoded, "after")] == [f"1970-01-0{n}" for n in range(2, 6)]


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


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("beside", [{}, {"topic": "t", "partition": 0, "offset": 7, "ts": 1}])
def test_messages_that_were_dumped_with_key_and_value_are_read(as_text: bool, beside: Row) -> None:  # noqa: FBT001 - parameters
    name = "payload" if as_text else "value"
    pairs = [({"id": 1}, event("c", {"id": 1, "n": 'a"b'})), ({"id": 2}, event("d")), ({"id": 1}, None)]
    place = {"topic": "t", "partition": 0, "offset": 7} if as_text else beside
    text = json.dumps if as_text else (lambda value: value)
    decoded = read(*({**place, "key": text(k), name: None if v is None else text(v)} for k, v in pairs), b" \n", key=())
    assert changes(decoded, "op", "key") == [{"op": "c", "key": {"id": 1}}, {"op": "d", "key": {"id": 2}}]
    assert decoded.skipped == {"tombstone": 1, "blank line": 1}


def test_rows_of_columns_key_and_value_are_no_dumped_messages() -> None:
    decoded = read({"key": "a", "value": "b"}, {"key": "b", "value": "c"}, key=("key",))
    assert [row["after"] for row in changes(decoded, "after")] == [
        {"key": "a", "value": "b"},
        {"key": "b", "value": "c"},
    ]
