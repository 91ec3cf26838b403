"""Events that other projects published, decoded and folded in memory, reach the rows that are expected of them."""

import json
from base64 import b64decode
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.decode.batches import Rejected, from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import DecodedFeed, decode
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.pipelines.memory_mirror import MemoryMirror


@dataclass
class Replay:
    """Mirrors of all tables of a set, and what happened on the way."""

    mirrors: dict[str, MemoryMirror]
    rejected: list[dict[str, Any]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    ops: dict[str, Counter[str]] = field(default_factory=dict)

    def apply(self, decoded: DecodedFeed) -> None:
        for name, batch in decoded.tables.items():
            self.ops.setdefault(name, Counter()).update(batch.counts)
            if batch.num_rows:
                self.mirrors[name].apply(batch.table)
        self.rejected += decoded.rejected.table.to_pylist()
        self.skipped.update(decoded.skipped)


@pytest.fixture(scope="session")
def expected(shared_dir: Path) -> dict[str, Any]:
    return json.loads((shared_dir / "cdc" / "expected.json").read_text())


def feeds_of(tables: dict[str, Any], **changes: Any) -> tuple[TableFeed, ...]:
    return tuple(
        TableFeed(name=name, source_table=name if len(tables) > 1 else None, key=tuple(table["key"]), **changes)
        for name, table in tables.items()
    )


def replay(
    folder: Path,
    files: list[str],
    feed: FeedConfig,
    state: Replay | None = None,
    options: FileOptions | None = None,
) -> Replay:
    state = state or Replay({t.name: MemoryMirror(t.key) for t in feed.tables})
    for file in files:
        for batch in discover([str(folder / file)], None, options):
            state.apply(decode(batch.raw, feed))
    return state


def expected_value(text: Any, like: Any) -> Any:
    """A value of `expected.json` in the type of the decoded one."""
    if text is None or like is None:
        return text
    match like:
        case datetime() if like.tzinfo is not None:
            return datetime.fromisoformat(text).astimezone(UTC)
        case datetime():
            return datetime.fromisoformat(text)
        case date():
            return date.fromisoformat(text)
        case time():
            return time.fromisoformat(text)
        case bytes():
            return b64decode(text)
        case Decimal():
            return Decimal(str(text))
        case str() if isinstance(text, dict):
            return like if json.loads(like) == text else text
        case dict():
            return {name: expected_value(text.get(name), value) for name, value in like.items()}
        case _:
            return text


def assert_rows(mirror: MemoryMirror, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    got = []
    want = []
    remaining = list(mirror.rows.values())
    assert len(remaining) == len(rows)
    for row in rows:
        match = next(
            (r for r in remaining if all(r.get(k) == expected_value(row[k], r.get(k)) for k in mirror.key)), None
        )
        assert match is not None, f"no row {row}"
        remaining.remove(match)
        assert set(names) >= {name for name, value in match.items() if value is not None}
        got.append({name: match.get(name) for name in names})
        want.append({name: expected_value(row[name], match.get(name)) for name in names})
    assert got == want


FORMATS_OF = {"debezium": "debezium-json", "dms": "dms", "canal": "canal-json"}
SIMPLE = [
    ("debezium_mysql_products", "debezium-json", {"c": 11, "u": 4, "d": 1}),
    ("debezium_partial_before", "debezium-json", {"c": 6, "u": 1, "d": 1}),
    ("debezium_postgres_no_before", "debezium-json", {"r": 9, "c": 2, "u": 4}),
    ("canal_mysql_products", "canal-json", {"c": 11, "u": 6, "d": 3}),
    ("maxwell_mysql_products", "maxwell-json", {"c": 11, "u": 6, "d": 3}),
    ("dms_json_schema_evolution", "dms", {"c": 8, "u": 1, "d": 1}),
]


@pytest.mark.parametrize(("name", "format_name", "ops"), SIMPLE)
def test_stream_of_one_table_reaches_expected_rows(
    name: str, format_name: str, ops: dict[str, int], shared_dir: Path, expected: dict[str, Any]
) -> None:
    case = expected[name]
    ((table_name, table),) = case["tables"].items()
    feed = FeedConfig(format=format_name, tables=feeds_of(case["tables"]))
    state = replay(shared_dir / "cdc" / name, case["files"], feed)
    assert_rows(state.mirrors[table_name], table["rows"])
    assert state.ops[table_name] == ops
    assert [r["source_offset"] for r in state.rejected] == [r["line"] for r in case.get("must_reject", [])]
    assert state.skipped["DDL"] == case.get("ddl_events", 0)


@pytest.mark.parametrize(
    "name", ["debezium_partial_before", "dms_json_schema_evolution", "canal_mysql_schema_evolution"]
)
def test_stream_of_several_files_reaches_expected_rows_after_each(
    name: str, shared_dir: Path, expected: dict[str, Any]
) -> None:
    case = expected[name]
    feed = FeedConfig(format=FORMATS_OF[name.partition("_")[0]], tables=feeds_of(case["tables"]))
    state = None
    for stage in case["stages"]:
        state = replay(shared_dir / "cdc" / name, [stage["after_file"]], feed, state)
        for table_name, table in stage["tables"].items():
            assert_rows(state.mirrors[table_name], table["rows"])
    assert state is not None
    assert state.skipped["DDL"] == case.get("ddl_events", 0)
    assert not state.rejected


@pytest.mark.parametrize("file", ["with_schema.jsonl", "without_schema.jsonl"])
def test_both_envelopes_of_debezium_reach_the_same_rows(file: str, shared_dir: Path, expected: dict[str, Any]) -> None:
    case = expected["debezium_mysql_customers"]
    ((table_name, table),) = case["tables"].items()
    state = replay(
        shared_dir / "cdc" / "debezium_mysql_customers",
        [file],
        FeedConfig(format="debezium-json", tables=feeds_of(case["tables"])),
    )
    assert_rows(state.mirrors[table_name], table["rows"])
    assert state.ops[table_name] == {"r": 4, "c": 2, "u": 3, "d": 1}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_keyed_lines_with_tombstones_ordered_by_time_reach_expected_rows(
    number: int, shared_dir: Path, expected: dict[str, Any]
) -> None:
    case = expected["debezium_keyed_tombstones"]
    ((table_name, table),) = case["tables"].items()
    stage = case["stages"][number]
    feed = FeedConfig(format="debezium-json", tables=feeds_of(case["tables"], order_by=("payload.ts_ms",)))
    state = replay(shared_dir / "cdc" / "debezium_keyed_tombstones", [stage["file"]], feed)
    rows = table["rows"] + ([stage["row_id_1"]] if stage["row_id_1"] else [])
    assert_rows(state.mirrors[table_name], rows)
    tombstones = stage["events"].pop("tombstone", 0)
    assert state.ops[table_name] == stage["events"]
    assert state.skipped["tombstone"] == tombstones


def test_keyed_lines_take_the_key_from_the_messages(shared_dir: Path, expected: dict[str, Any]) -> None:
    path = shared_dir / "cdc" / "debezium_keyed_tombstones" / "1_after_inserts.tsv"
    (batch,) = discover([str(path)])
    decoded = decode(batch.raw, FeedConfig(format="debezium-json", tables=(TableFeed(name="dev.t_kafka"),)))
    assert decoded.tables["dev.t_kafka"].key == ("id",)


@pytest.mark.parametrize("file", ["with_schema.json", "without_schema.json", "without_schema_numeric_decimal.json"])
def test_every_type_of_mysql_in_every_encoding_decodes_to_the_same_row(
    file: str, shared_dir: Path, expected: dict[str, Any]
) -> None:
    case = expected["debezium_mysql_all_types"]
    ((table_name, table),) = case["tables"].items()
    both = json.loads((shared_dir / "cdc" / "debezium_mysql_all_types" / file).read_text(), parse_float=Decimal)
    documents = [json.dumps(both[name], default=float).encode() for name in ("expected_snapshot", "expected_binlog")]
    types = {
        name: text.split(" ")[0].replace("decimal(65,1)", "decimal(38,1)")
        for name, text in table["columns"].items()
        if text != "struct"
    }
    after = both["expected_snapshot"].get("payload", both["expected_snapshot"])["after"]
    # What some of these files say in their schema is not what their values are, and others have no schema.
    encodings = {n: "base64" for n, text in types.items() if "decimal" in text and isinstance(after[n], str)}
    feed = TableFeed(name=table_name, key=("id",), types=types, encodings=encodings, source_table="*.full_types")
    state = Replay({table_name: MemoryMirror(("id",))})
    state.apply(decode(from_documents(documents, file), FeedConfig(format="debezium-json", tables=(feed,))))
    assert not state.rejected
    assert_rows(state.mirrors[table_name], table["rows"])


def test_stale_schema_is_noticed(shared_dir: Path) -> None:
    both = json.loads((shared_dir / "cdc" / "debezium_mysql_all_types" / "with_schema.json").read_text())
    raw = from_documents([json.dumps(both["expected_snapshot"]).encode()])
    decoded = decode(raw, FeedConfig(format="debezium-json", tables=(TableFeed(name="a.t", key=("id",)),)))
    (reason,) = decoded.rejected.table.column("reason").to_pylist()
    assert "is no" in reason


def test_placeholder_of_an_unsent_column_keeps_the_mirrors_value(shared_dir: Path, expected: dict[str, Any]) -> None:
    case = expected["debezium_postgres_toast"]
    ((table_name, table),) = case["tables"].items()
    path = shared_dir / "cdc" / "debezium_postgres_toast" / "key_and_value.json5"
    (batch,) = discover([str(path)], None, FileOptions(comments=("#",)))
    assert batch.raw.keys is not None
    feed = TableFeed(name=table_name, types={"dob": "timestamp"})
    state = Replay({table_name: MemoryMirror(("id",), [table["seed_row"]])})
    decoded = decode(batch.raw, FeedConfig(format="debezium-json", tables=(feed,)))
    assert decoded.tables[table_name].table.column("unchanged").to_pylist() == [["biography"]]
    state.apply(decoded)
    assert_rows(state.mirrors[table_name], table["rows"])
    assert not state.mirrors[table_name].unresolved


def test_wal2json_of_many_tables_reaches_expected_rows(shared_dir: Path, expected: dict[str, Any]) -> None:
    case = expected["wal2json_pagila"]
    state = replay(
        shared_dir / "cdc" / "wal2json_pagila",
        case["files"],
        FeedConfig(format="wal2json", tables=feeds_of(case["tables"])),
    )
    assert not state.rejected
    for table_name, table in case["tables"].items():
        assert_rows(state.mirrors[table_name], table["rows"])
        letters = {"I": "c", "U": "u", "D": "d", "T": "t"}
        assert state.ops[table_name] == {letters[op]: count for op, count in table["events"].items()}


@pytest.mark.parametrize("file", ["actions.out", "truncate.out", "pk.out"])
def test_psql_output_of_wal2json_reaches_expected_rows(file: str, shared_dir: Path, expected: dict[str, Any]) -> None:
    part = expected["wal2json_regression"]["parts"][file]
    first, last = part["lines"]
    options = FileOptions(layout="psql", first_line=first, last_line=last)
    feed = FeedConfig(format="wal2json", tables=feeds_of(part["tables"]))
    state = replay(shared_dir / "cdc" / "wal2json_regression", [file], feed, options=options)
    assert not state.rejected
    for table_name, table in part["tables"].items():
        assert_rows(state.mirrors[table_name], table["rows"])


def test_version_1_of_wal2json_gives_the_same_changes_as_version_2(shared_dir: Path) -> None:
    path = str(shared_dir / "cdc" / "wal2json_regression" / "actions.out")
    decoded = []
    for first, last in ((19, 25), (31, 44)):
        (batch,) = discover([path], None, FileOptions(layout="psql", first_line=first, last_line=last))
        feed = FeedConfig(format="wal2json", tables=(TableFeed(name="public.actions"),))
        decoded.append(decode(batch.raw, feed).tables["public.actions"])
    assert [b.key for b in decoded] == [("a",), ("a",)]
    one, two = (b.table.filter(pa.compute.not_equal(b.table.column("op"), "t")) for b in decoded)
    assert one.select(["op", "key", "after"]).to_pylist() == two.select(["op", "key", "after"]).to_pylist()


def test_renamed_key_columns_are_refused_not_guessed(shared_dir: Path, expected: dict[str, Any]) -> None:
    part = expected["wal2json_regression"]["parts"]["rename_column.out"]
    options = FileOptions(layout="psql", first_line=part["lines"][0], last_line=part["lines"][1])
    tables = tuple(TableFeed(name=name, source_table=name) for name in part["tables"])
    path = str(shared_dir / "cdc" / "wal2json_regression" / "rename_column.out")
    (batch,) = discover([path], None, options)
    decoded = decode(batch.raw, FeedConfig(format="wal2json", tables=tables))
    reasons = decoded.rejected.table.column("reason").to_pylist()
    assert any("key columns change from (a, d)" in reason for reason in reasons)


def test_reasons_of_rejected_events_come_with_their_bytes(shared_dir: Path) -> None:
    path = shared_dir / "cdc" / "debezium_postgres_no_before" / "events.jsonl"
    (batch,) = discover([str(path)])
    feed = FeedConfig(format="debezium-json", tables=(TableFeed(name="inventory.products", key=("id",)),))
    rejected: Rejected = decode(batch.raw, feed).rejected
    (row,) = rejected.table.to_pylist()
    assert row["raw"].rstrip() == path.read_bytes().splitlines()[15]
    assert "neither before nor message key" in row["reason"]
