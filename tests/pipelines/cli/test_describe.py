import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

Run = Callable[..., tuple[int, str, str]]
COLUMNS = [Column(1, "id", "long"), Column(2, "day", "date")]


@pytest.fixture
def builder(tmp_path: Path) -> TableBuilder:
    """Two data files, of which a delete reaches the older one."""
    builder = TableBuilder(tmp_path, COLUMNS)
    old = builder.data({"id": [1, 2], "day": [None, None]})
    builder.commit(old)
    builder.commit(builder.equality_delete({"id": [1]}, ids=[1]), builder.data({"id": [1], "day": [None]}))
    return builder


def answer(run: Run, *words: object) -> Any:
    code, output, errors = run(*words, "--json")
    assert code == 0, errors
    return json.loads(output)


def test_files_tells_what_applies_to_what(builder: TableBuilder, run: Run) -> None:
    found = answer(run, "files", builder.metadata_path)
    by_sequence = {f["sequence_number"]: f for f in found["data_files"]}
    (delete,) = found["delete_files"]
    assert (delete["content"], delete["key"], delete["rows"], delete["data_files"]) == ("equality", ["id"], 1, 1)
    assert {n: f["delete_files"] for n, f in by_sequence.items()} == {1: [delete["path"]], 2: []}
    assert found["snapshot_id"] == builder.current_snapshot_id
    printed = run("files", builder.metadata_path)[1]
    assert "equality (id)" in printed
    assert str(builder.metadata_path.parent.parent) in printed


def test_files_left_by_a_filter(builder: TableBuilder, run: Run) -> None:
    found = answer(run, "files", builder.metadata_path, "--where", "id > 1")
    assert [f["rows"] for f in found["data_files"]] == [2]
    assert answer(run, "files", builder.metadata_path, "--where", "id > 2")["data_files"] == []


def test_long_lists_are_cut_and_say_so(builder: TableBuilder, run: Run) -> None:
    assert "and 1 more data file; --limit" in run("files", builder.metadata_path, "--limit", 1)[1]
    assert "and 1 more snapshot; --limit" in run("snapshots", builder.metadata_path, "--limit", 1)[1]


def test_snapshots_come_newest_first_with_their_refs(builder: TableBuilder, run: Run) -> None:
    first, second = reversed(found := answer(run, "snapshots", builder.metadata_path))
    assert [s["sequence_number"] for s in found] == [2, 1]
    assert (second["parent_id"], second["refs"], second["operation"]) == (first["snapshot_id"], ["main"], "overwrite")
    builder.rollback(first["snapshot_id"])
    builder.write_metadata()
    assert [s["is_ancestor"] for s in answer(run, "snapshots", builder.metadata_path)] == [False, True]
    assert "not in the current history" in run("snapshots", builder.metadata_path)[1]


def test_describe_tells_columns_partitions_and_location(builder: TableBuilder, run: Run) -> None:
    builder.repartition(Partition("day_month", 2, "month"))
    builder.write_metadata()
    found = answer(run, "describe", builder.metadata_path)
    assert [(c["id"], c["name"], c["type"]) for c in found["columns"]] == [(1, "id", "long"), (2, "day", "date")]
    assert found["partitioning"] == ["month(day) as day_month"]
    assert found["current_snapshot"]["snapshot_id"] == builder.current_snapshot_id
    printed = run("describe", builder.metadata_path)[1]
    assert found["location"] in printed
    assert "month(day) as day_month" in printed


def test_an_empty_table_is_described_too(tmp_path: Path, run: Run) -> None:
    builder = TableBuilder(tmp_path, COLUMNS)
    builder.write_metadata()
    assert answer(run, "describe", builder.metadata_path)["current_snapshot"] is None
    assert answer(run, "snapshots", builder.metadata_path) == []
    assert answer(run, "files", builder.metadata_path) == {"snapshot_id": None, "data_files": [], "delete_files": []}
    assert "the table is empty" in run("describe", builder.metadata_path)[1]


def test_tables_lists_what_is_there_and_what_is_not(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "nevermore.yaml"
    config.write_text(
        """
tables:
  shop.a: {source: {path: "a/*.jsonl", format: debezium-json}, key: [id], types: {id: long}}
  shop.b: {source: {path: "b/*.jsonl", format: debezium-json}, key: [id], types: {id: long}}
"""
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jsonl").write_text('{"op": "c", "before": null, "after": {"id": 1}, "ts_ms": 1}\n')
    monkeypatch.setenv("NEVERMORE_CONFIG", str(config))  # every command finds it there
    assert run("ingest", "shop.a")[0] == 0
    found = {t["table"]: t for t in answer(run, "tables")}
    assert found["shop.a"]["rows_in_files"] == 1
    assert found["change_log.shop_a"]["role"] == "change log of shop.a"
    assert found["shop.b"]["location"] is None
    assert "not created yet" in run("tables")[1]
    assert run("status", "shop.a")[0] == 0
    assert run("scan", "shop.a", "--count")[:2] == (0, "1\n")
    assert run("describe", "shop.a")[1].count("key") >= 1
