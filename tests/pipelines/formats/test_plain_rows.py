"""Plain rows: how their operation is told, rows before updates."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.sources.files import discover
from tests.pipelines.formats.decoded_feed import TABLE, changes, read, reasons

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
