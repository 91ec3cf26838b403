"""The other feeds: Canal, Maxwell, DMS, wal2json, plain rows; and how a format is told from its events."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import ConfigError, SourceError
from pipelines.formats.feed import FeedConfig, TableFeed
from pipelines.formats.registry import DecodedFeed, decode
from pipelines.formats.wal2json import Wal2JsonOptions, complete_transactions
from pipelines.sources.event_groups import Complete
from pipelines.sources.file_options import FileOptions
from pipelines.sources.files import discover
from pipelines.sources.raw_events import RawEvents, from_documents

TABLE = "shop.products"
Row = dict[str, Any]


def read(
    format_name: str | None,
    *events: Any,
    options: dict[str, Any] | None = None,
    raw: RawEvents | None = None,
    **feed: Any,
) -> DecodedFeed:
    documents = [e if isinstance(e, bytes) else json.dumps(e).encode() for e in events]
    feeds = (TableFeed(name=TABLE, **{"key": ("id",), **feed}),)
    config = FeedConfig(format=format_name, tables=feeds, options=options or {})
    return decode(raw or from_documents(documents, "f"), config)


def changes(decoded: DecodedFeed, *names: str) -> list[Row]:
    return decoded.tables[TABLE].table.select(list(names or ("op", "key", "before", "after"))).to_pylist()


def reasons(decoded: DecodedFeed) -> list[str]:
    return decoded.rejected.table.column("reason").to_pylist()


# -- Canal ---------------------------------------------------------------------------------------------------------------


def canal(kind: str, data: Any, old: Any = None, **more: Any) -> Row:
    types = {"id": "BIGINT", "n": "VARCHAR(9)"}
    base = {
        "data": data,
        "old": old,
        "type": kind,
        "database": "d",
        "table": "products",
        "isDdl": False,
        "es": 1700000000000,
    }
    return {**base, "mysqlType": types, "pkNames": ["id"], **more}


def test_event_that_is_wrong_in_several_ways_is_rejected_once() -> None:
    twice = {"op": "x", "before": None, "after": "text", "source": {"db": "shop", "table": "t"}, "ts_ms": 1}
    feed = FeedConfig(format="debezium-json", tables=(TableFeed(name="shop.t", key=("id",)),))
    rejected = decode(from_documents([json.dumps(twice).encode()]), feed).rejected.table
    assert rejected.column("source_offset").to_pylist() == [1]
    assert "after is text or missing" in rejected.column("reason")[0].as_py()


def test_canal_message_of_several_rows_gives_a_change_each_in_order() -> None:
    decoded = read(
        "canal-json",
        canal("INSERT", [{"id": "1", "n": "a"}, {"id": "2", "n": None}]),
        canal("UPDATE", [{"id": "3", "n": "b"}, {"id": "2", "n": "c"}], [{"id": "1"}, {"n": None}]),
        canal("DELETE", [{"id": "2", "n": "c"}]),
        key=(),
    )
    assert changes(decoded) == [
        {"op": "c", "key": {"id": 1}, "before": None, "after": {"id": 1, "n": "a"}},
        {"op": "c", "key": {"id": 2}, "before": None, "after": {"id": 2, "n": None}},
        {"op": "u", "key": {"id": 1}, "before": {"id": 1, "n": "b"}, "after": {"id": 3, "n": "b"}},
        {"op": "u", "key": {"id": 2}, "before": {"id": 2, "n": None}, "after": {"id": 2, "n": "c"}},
        {"op": "d", "key": {"id": 2}, "before": {"id": 2, "n": "c"}, "after": None},
    ]
    assert changes(decoded, "source_offset") == [{"source_offset": n} for n in (1, 1, 2, 2, 3)]


def test_canal_ddl_is_skipped_truncate_applied_and_the_rest_refused() -> None:
    decoded = read(
        "canal-json",
        canal("ALTER", None, isDdl=True, sql="/* x */ ALTER TABLE products ADD n INT"),
        canal("TRUNCATE", None, isDdl=True),
        canal("INSERT", None),
        canal("GUESS", [{"id": "1"}]),
    )
    assert decoded.skipped == {"DDL": 1}
    assert changes(decoded, "op") == [{"op": "t"}]
    assert ["data is missing" in r or "type is none of" in r for r in reasons(decoded)] == [True, True]


@pytest.mark.parametrize("kind", ["QUERY", "CINDEX", "ERASE", "XACOMMIT", "GTID"])
def test_canal_events_without_rows_are_skipped_whether_or_not_they_say_that_they_are_ddl(kind: str) -> None:
    decoded = read("canal-json", canal(kind, None, isDdl=False, sql="x"))
    assert decoded.skipped == {"DDL": 1}
    assert reasons(decoded) == []


def test_canal_values_that_do_not_fit_their_mysql_type_reject_the_message() -> None:
    decoded = read("canal-json", canal("INSERT", [{"id": "1", "n": "a"}, {"id": "one", "n": "b"}]))
    assert changes(decoded, "after") == [{"after": {"id": 1, "n": "a"}}]
    assert reasons(decoded) == ["column id: text 'one' is no long"]


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
    assert {r.split(":")[0] for r in reasons(decoded)} == {"no key", "no Maxwell change"}
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


# -- DMS -----------------------------------------------------------------------------------------------------------------


def dms(operation: str, data: Row, **more: Any) -> Row:
    metadata = {"timestamp": "2024-10-27T12:39:03.210671Z", "record-type": "data", "operation": operation}
    return {"data": data, "metadata": {**metadata, "schema-name": "d", "table-name": "products"}, **more}


def test_dms_before_images_in_either_form_show_key_changes() -> None:
    decoded = read(
        "dms-json",
        dms("load", {"id": 1, "n": "a"}),
        dms("update", {"id": 2, "n": "a", "BI_id": 1, "BI_n": "a"}),
        dms("update", {"id": 3, "n": "b"}, **{"before-image": {"id": 2}}),
        dms("delete", {"id": 3, "n": "b"}),
        {"metadata": {"record-type": "control", "operation": "create-table", "table-name": "products"}},
    )
    assert [(c["op"], c["key"]) for c in changes(decoded)] == [
        ("r", {"id": 1}),
        ("u", {"id": 1}),
        ("u", {"id": 2}),
        ("d", {"id": 3}),
    ]
    assert decoded.skipped == {"control event": 1}
    assert decoded.tables[TABLE].row_type == pa.struct([("id", pa.int64()), ("n", pa.string())])


def test_dms_files_of_csv_and_parquet_reach_the_same_changes(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("Op,id,price,at\nI,1,12.50,2024-01-01 10:00:00\nU,1,13.50,\nD,1,,\n")
    rows = {"Op": ["I", "U", "D"], "id": ["1"] * 3, "price": [Decimal("12.50"), Decimal("13.50"), None]}
    pq.write_table(
        pa.table({**rows, "at": pa.array([datetime(2024, 1, 1, 10), None, None], pa.timestamp("ms"))}),  # noqa: DTZ001 - DMS writes local times
        tmp_path / "2.parquet",
    )
    found = []
    for name in ("1.csv", "2.parquet"):
        (batch,) = discover([str(tmp_path / name)])
        types = {"id": "long", "price": "decimal(10,2)", "at": "timestamp"}
        found.append(changes(read("dms", raw=batch.raw, types=types)))
    assert found[0] == found[1]
    assert [c["op"] for c in found[0]] == ["c", "u", "d"]
    assert found[0][0]["after"]["price"] == Decimal("12.50")


def test_dms_full_load_files_have_no_op_column(tmp_path: Path) -> None:
    (tmp_path / "LOAD1.csv").write_text("1;a\n2;b\n")
    options = FileOptions(header=False, columns=("id", "n"), delimiter=";")
    (batch,) = discover([str(tmp_path / "*.csv")], None, options)
    assert [c["op"] for c in changes(read("dms-csv", raw=batch.raw))] == ["r", "r"]


# -- plain rows ----------------------------------------------------------------------------------------------------------


def test_rows_with_the_usual_words_decode() -> None:
    words = ["insert", "U", "+u", "update_postimage", "DELETE", "snapshot", "update_preimage"]
    decoded = read("rows", *[{"_op": word, "id": n} for n, word in enumerate(words)])
    assert [c["op"] for c in changes(decoded)] == ["c", "u", "u", "u", "d", "r"]
    assert decoded.skipped == {"row before an update": 1}
    assert decoded.tables[TABLE].row_type == pa.struct([("id", pa.int64())])


def test_rows_say_what_happened_in_many_spellings() -> None:
    words = [
        "I",
        "ins",
        "Created",
        "+I",
        "UPSERT",
        "upd",
        "Modified",
        "+U",
        "-U",
        "del",
        "REMOVED",
        "-D",
        "update_preimage",
    ]
    decoded = read(None, *({"id": i, "Operation": word} for i, word in enumerate(words)))
    assert [r["op"] for r in changes(decoded, "op")] == [*"ccccuuuuddd"]
    assert decoded.skipped == {"row before an update": 2}
    assert reasons(decoded) == []


def test_rows_of_sql_servers_change_tables_have_numbers() -> None:
    decoded = read(None, *({"id": 1, "__$operation": number} for number in (2, 3, 4, 1, 5)))
    assert [r["op"] for r in changes(decoded, "op")] == ["c", "u", "d", "u"]


def test_rows_before_several_updates_may_come_before_all_of_them() -> None:
    words = [("+I", 1), ("-U", 1), ("-U", 2), ("+U", 3), ("+U", 4), ("-U", 5), ("-U", 6), ("+I", 7)]
    decoded = read("rows", *({"id": key, "op": word} for word, key in words))
    found = [(c["op"], c["key"]["id"], c["before"]) for c in changes(decoded)]
    assert found == [("c", 1, None), ("d", 1, {"id": 1}), ("u", 2, {"id": 2}), ("u", 4, None), ("c", 7, None)]
    assert decoded.skipped == {"row before an update": 3}


def test_rows_with_a_flag_for_deletes_decode() -> None:
    options = {"op_column": "gone", "ops": {"true": "d", "false": "u"}}
    decoded = read("rows", {"id": 1, "gone": False}, {"id": 1, "gone": True}, options=options)
    assert [r["op"] for r in changes(decoded, "op")] == ["u", "d"]


def test_rows_with_own_words_and_column_decode() -> None:
    options = {"op_column": "kind", "ops": {"NEW": "c", "GONE": "d"}, "ts_column": "at"}
    decoded = read(
        "rows",
        {"kind": "NEW", "id": 1, "at": "2024-01-01T00:00:00Z"},
        {"kind": "GONE", "id": 1, "at": None},
        {"kind": "HUH", "id": 1},
        options=options,
    )
    assert [c["op"] for c in changes(decoded)] == ["c", "d"]
    assert reasons(decoded) == ["no operation that is known in kind: 'HUH'"]
    assert changes(decoded, "source_ts")[0] == {"source_ts": datetime(2024, 1, 1, tzinfo=UTC)}


def test_rows_without_an_operation_need_to_be_told() -> None:
    with pytest.raises(SourceError, match="op_column"):
        read("rows", {"id": 1})
    assert changes(read("rows", {"id": 1}, options={"no_op": "u"}), "op") == [{"op": "u"}]
    with pytest.raises(ConfigError, match="none of r, c"):
        read("rows", {"id": 1}, options={"no_op": "z"})


def test_rejected_rows_of_column_files_come_as_json(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("op,id\ni,1\ni,x\n")
    (batch,) = discover([str(tmp_path / "1.csv")])
    decoded = read("rows", raw=batch.raw, types={"id": "long"})
    assert changes(decoded, "key") == [{"key": {"id": 1}}]
    (rejected,) = decoded.rejected.table.to_pylist()
    assert rejected["source_offset"] == 2
    assert json.loads(rejected["raw"]) == {"op": "i", "id": "x", "__columns": "text"}


# -- wal2json ------------------------------------------------------------------------------------------------------------


def wal(action: str, columns: Row | None = None, identity: Row | None = None, **more: Any) -> Row:
    kinds = {"id": "integer", "n": "numeric(8,3)", "t": "text"}

    def cells(row: Row) -> list[Row]:
        return [{"name": name, "type": kinds[name], "value": value} for name, value in row.items()]

    event: Row = {"action": action, "schema": "public", "table": "products", **more}
    return (
        event
        | ({} if columns is None else {"columns": cells(columns)})
        | ({} if identity is None else {"identity": cells(identity)})
    )


def test_wal2json_column_that_an_update_lacks_is_unchanged() -> None:
    decoded = read(
        "wal2json",
        wal("I", {"id": 1, "n": 1.5, "t": "long"}),
        wal("U", {"id": 1, "n": 2}, {"id": 1}),
        wal("U", {"id": 1, "n": 2}, {"id": 1, "n": 1.5, "t": "long"}),
    )
    assert changes(decoded, "unchanged", "after")[1:] == [
        {"unchanged": ["t"], "after": {"id": 1, "n": Decimal("2.000"), "t": None}},
        {"unchanged": [], "after": {"id": 1, "n": Decimal("2.000"), "t": "long"}},
    ]


def test_wal2json_columns_of_the_mirror_that_no_event_has_are_unchanged_too() -> None:
    decoded = read("wal2json", wal("U", {"id": 1, "n": 2}, {"id": 1}), known_types={"id": pa.int32(), "t": pa.string()})
    assert changes(decoded, "unchanged") == [{"unchanged": ["t"]}]


def test_wal2json_key_is_the_primary_key_or_else_the_identity() -> None:
    primary = read("wal2json", wal("I", {"id": 1, "t": "a"}, pk=[{"name": "id", "type": "integer"}]), key=())
    assert primary.tables[TABLE].key == ("id",)
    identity = read("wal2json", wal("I", {"id": 1, "t": "a"}), wal("U", {"id": 2, "t": "a"}, {"id": 1}), key=())
    assert identity.tables[TABLE].key == ("id",)
    assert changes(identity, "key") == [{"key": {"id": 1}}, {"key": {"id": 1}}]
    nothing = read("wal2json", wal("I", {"id": 1, "t": "a"}), key=())
    assert reasons(nothing)[0].startswith("no key")


def test_wal2json_numbers_keep_their_digits() -> None:
    event = json.dumps(wal("I", {"id": 1, "n": 0})).replace('"value": 0', '"value": 4.560').encode()
    assert changes(read("wal2json", event), "after")[0]["after"]["n"] == Decimal("4.560")


def test_wal2json_version_1_with_uneven_lists_is_refused_and_the_rest_goes_on() -> None:
    good = {
        "kind": "insert",
        "schema": "p",
        "table": "products",
        "columnnames": ["id"],
        "columntypes": ["integer"],
        "columnvalues": [1],
    }
    bad = {**good, "columnvalues": []}
    decoded = read("wal2json", {"change": [good]}, {"change": [bad]}, {"change": [{**good, "columnvalues": [3]}]})
    assert [c["key"] for c in changes(decoded, "key")] == [{"id": 1}, {"id": 3}]
    assert "differ in number" in reasons(decoded)[0]


@pytest.mark.parametrize(
    ("actions", "wanted"),
    [("BICBI", 3), ("ICBIU", 2), ("BIC", 3), ("BIUD", 0), ("IUD", None), ("BICK", 4), ("", None)],
)
def test_events_of_finished_transactions_are_counted(actions: str, wanted: int | None) -> None:
    documents = pa.array([json.dumps({"action": a}).encode() for a in actions], pa.binary())
    found = complete_transactions(documents, Wal2JsonOptions())
    assert found == (None if wanted is None else Complete(wanted, of_transactions=True))


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


# -- rows before updates, full loads, headers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "words"),
    [("op", ("+I", "-U", "+U")), ("_change_type", ("insert", "update_preimage", "update_postimage"))],
)
def test_row_before_an_update_tells_the_key_that_it_had(column: str, words: tuple[str, str, str]) -> None:
    insert, before, after = words
    decoded = read(
        "rows",
        {column: insert, "id": 1, "n": "a"},
        {column: before, "id": 1, "n": "a"},
        {column: after, "id": 2, "n": "b"},
        {column: after, "id": 2, "n": "c"},
    )
    assert [(row["op"], row["key"]["id"]) for row in changes(decoded)] == [("c", 1), ("u", 1), ("u", 2)]
    assert decoded.skipped == {"row before an update": 1}


def test_words_that_are_left_out_are_no_rows_before_updates() -> None:
    rows = [{"op": "OLD", "id": 1}, {"op": "U", "id": 2}]
    decoded = read("rows", *rows, options={"ops": {"OLD": "x"}})
    assert [row["key"]["id"] for row in changes(decoded)] == [2]
    assert decoded.skipped == {"left out by ops": 1}
    told = read("rows", *rows, options={"ops": {"OLD": "b"}})
    assert [row["key"]["id"] for row in changes(told)] == [1]


def landed(folder: Path, name: str, text: str, **options: Any) -> RawEvents:
    (folder / name).write_text(text)
    (batch,) = discover([str(folder / name)], None, FileOptions(**options))
    return batch.raw


def test_dms_columns_of_before_images_in_files_show_key_changes(tmp_path: Path) -> None:
    raw = landed(tmp_path, "1.csv", "Op,id,n,BI_id,BI_n\nI,1,a,,\nU,2,a,1,a\nU,2,b,,\nD,2,b,2,b\n")
    decoded = read("dms", raw=raw, types={"id": "long"})
    assert [(row["op"], row["key"]["id"], row["after"]) for row in changes(decoded)] == [
        ("c", 1, {"id": 1, "n": "a"}),
        ("u", 1, {"id": 2, "n": "a"}),
        ("u", 2, {"id": 2, "n": "b"}),
        ("d", 2, None),
    ]


def test_dms_files_whose_op_is_written_in_lower_case_are_no_full_load(tmp_path: Path) -> None:
    raw = landed(tmp_path, "1.csv", "op,id\nI,1\nD,1\n")
    assert [row["op"] for row in changes(read("dms", raw=raw, types={"id": "long"}))] == ["c", "d"]
    raw = landed(tmp_path, "2.csv", "op,id\nI,1\nrepair,2\n")
    assert [row["op"] for row in changes(read("dms", raw=raw, types={"id": "long"}))] == ["r", "r"]


def test_dms_full_load_is_seen_from_its_name(tmp_path: Path) -> None:
    raw = landed(tmp_path, "LOAD0000000A.csv", "id,city\n1,Berlin\n")
    assert [row["op"] for row in changes(read(None, raw=raw, types={"id": "long"}))] == ["r"]


def test_dms_changes_without_a_header_read_with_one_are_an_error_that_says_what_to_add(tmp_path: Path) -> None:
    raw = landed(tmp_path, "1.csv", "I,3,Rome\nU,1,Bonn\n")
    with pytest.raises(SourceError, match=r"I,3,Rome, is a change.*header: false, columns: \[Op"):
        read("dms", raw=raw)


def test_maxwell_events_that_are_encrypted_are_refused_and_say_so() -> None:
    event = {"database": "d", "table": "products", "type": "insert", "ts": 1}
    decoded = read("maxwell-json", event | {"data": {"id": 1}}, event | {"encrypted": {"iv": "a", "bytes": "b"}})
    assert reasons(decoded) == ["encrypted: only Maxwell's own key opens it; run Maxwell without encrypt"]


def test_canal_truncate_takes_the_key_of_the_rows_around_it() -> None:
    truncate = canal("TRUNCATE", None, mysqlType=None, pkNames=None, isDdl=True)
    decoded = read("canal-json", canal("INSERT", [{"id": "1", "n": "a"}]), truncate, key=())
    assert [row["op"] for row in changes(decoded)] == ["c", "t"]


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
        "no operation that is known in op: there is none",
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
