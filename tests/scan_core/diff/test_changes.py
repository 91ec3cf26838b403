""""""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nevermore import scan_core
from tests.scan_core.diff.table_changes import COLUMNS, changes_of, rows, rows_of, scan_of
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder


def test_appended_rows_are_inserts(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1)))
    second = table.commit(table.data(rows(b=2, c=3)))
    third = table.commit(table.data(rows(d=4)))
    assert changes_of(table, first) == [("insert", 2, "b"), ("insert", 3, "c"), ("insert", 4, "d")]
    assert changes_of(table, first, second) == [("insert", 2, "b"), ("insert", 3, "c")]
    assert changes_of(table, second, third) == [("insert", 4, "d")]
    assert changes_of(table, third) == changes_of(table, third, third) == []
    assert len(changes_of(table, None)) == 4
    assert changes_of(table, None, first) == [("insert", 1, "a")]


def test_update_is_delete_and_insert_of_the_same_key(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1, b=2)))
    table.commit(table.equality_delete({"id": [2]}, ids=[1], columns=COLUMNS[:1]), table.data(rows(new=2)))
    assert changes_of(table, first) == [("delete", 2, "b"), ("insert", 2, "new")]


def test_deletes_come_before_inserts(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1, b=2)))
    table.commit(table.data(rows(new=2)), table.equality_delete({"id": [1, 2]}, ids=[1], columns=COLUMNS[:1]))
    assert scan_of(table).changes(first).to_table()["_change_type"].to_pylist() == ["delete", "delete", "insert"]


def test_equal_rows_are_counted(build: Callable[..., TableBuilder]) -> None:
    table = build()
    data = table.data({"id": [1, 1, 1], "name": ["a", "a", "a"]})
    first = table.commit(data)
    table.commit(table.data(rows(a=1)), remove=[data], operation="overwrite")
    assert changes_of(table, first) == [("delete", 1, "a"), ("delete", 1, "a")]


def test_row_inserted_and_deleted_in_between_is_no_change(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1)))
    table.commit(table.data(rows(b=2)))
    table.commit(table.equality_delete({"id": [2]}, ids=[1], columns=COLUMNS[:1]))
    assert changes_of(table, first) == []


def test_position_delete_counts(build: Callable[..., TableBuilder]) -> None:
    table = build()
    data = table.data(rows(a=1, b=2, c=3))
    first = table.commit(data)
    second = table.commit(table.position_delete([(data, 0)]))
    table.commit(table.position_delete([(data, 2)]))
    assert changes_of(table, first) == [("delete", 1, "a"), ("delete", 3, "c")]
    assert changes_of(table, second) == [("delete", 3, "c")]


def test_position_delete_in_the_commit_of_its_data_file_is_no_change(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1)))
    data = table.data(rows(b=2, c=3))
    table.commit(data, table.position_delete([(data, 0)]))
    assert changes_of(table, first) == [("insert", 3, "c")]


def test_removed_equality_delete_brings_rows_back(build: Callable[..., TableBuilder]) -> None:
    table = build()
    delete = table.equality_delete({"id": [1, 2]}, ids=[1], columns=COLUMNS[:1])
    other = table.equality_delete({"name": ["b"]}, ids=[2], columns=COLUMNS[1:])
    table.commit(table.data(rows(a=1, b=2)))
    first = table.commit(delete, other)
    table.commit(remove=[delete], operation="overwrite")
    assert changes_of(table, first) == [("insert", 1, "a")]


def test_row_that_older_delete_removed_is_not_deleted_again(build: Callable[..., TableBuilder]) -> None:
    table = build()
    table.commit(table.data(rows(a=1, b=2)))
    first = table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=COLUMNS[:1]))
    table.commit(table.equality_delete({"name": ["a", "b"]}, ids=[2], columns=COLUMNS[1:]))
    assert changes_of(table, first) == [("delete", 2, "b")]


def test_global_delete_reaches_every_partition_and_scoped_one_its_own(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, partitions=[Partition("name", 2)])
    files = [table.data({"id": [1, 2], "name": [p, p]}, partition={"name": p}) for p in ("a", "b")]
    first = table.commit(*files)
    scoped = table.equality_delete({"id": [1]}, ids=[1], columns=COLUMNS[:1], partition={"name": "b"})
    second = table.commit(scoped)
    table.repartition()
    table.commit(table.equality_delete({"id": [2]}, ids=[1], columns=COLUMNS[:1]))
    assert changes_of(table, first, second) == [("delete", 1, "b")]
    assert changes_of(table, second) == [("delete", 2, "a"), ("delete", 2, "b")]


def test_truncated_table_yields_all_its_rows_as_deletes(build: Callable[..., TableBuilder]) -> None:
    table = build()
    files = [table.data(rows(a=1)), table.data(rows(b=2))]
    first = table.commit(*files)
    table.commit(remove=files, operation="delete")
    assert changes_of(table, first) == [("delete", 1, "a"), ("delete", 2, "b")]


def test_unaffected_files_are_not_opened(build: Callable[..., TableBuilder]) -> None:
    table = build()
    untouched = [table.data({"id": [i * 10], "name": ["x"]}) for i in range(5)]
    touched = table.data(rows(a=1, b=2, c=3))
    first = table.commit(*untouched, touched)
    table.commit(table.equality_delete({"id": [2]}, ids=[1], columns=COLUMNS[:1]), table.data(rows(n=7)))
    for file in untouched:
        file.local.unlink()
    changes = scan_of(table).changes(first)
    assert rows_of(changes) == [("delete", 2, "b"), ("insert", 7, "n")]
    assert changes.metrics.data_files_read == 2


def test_manifests_of_shared_data_are_not_opened_after_an_append(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1)))
    second = table.commit(table.data(rows(b=2)))
    changes = scan_of(table).changes(first, second)
    assert rows_of(changes) == [("insert", 2, "b")]
    assert changes.metrics.manifests_read == 1


def test_payload_is_read_only_where_rows_changed(build: Callable[..., TableBuilder]) -> None:
    table = build()
    count = 5_000
    data = table.data({"id": list(range(count)), "name": [f"{i}-{i * 7919}" for i in range(count)]}, row_group_size=100)
    first = table.commit(data)
    table.commit(table.equality_delete({"id": [4_321]}, ids=[1], columns=COLUMNS[:1]))
    changes = scan_of(table).changes(first)
    assert rows_of(changes) == [("delete", 4_321, f"4321-{4_321 * 7919}")]
    assert changes.metrics.bytes_read < data.record["file_size_in_bytes"] // 10


def test_v1_tables_are_compared_by_files(build: Callable[..., TableBuilder]) -> None:
    table = build(version=1)
    data = table.data(rows(a=1, b=2))
    first = table.commit(data)
    table.commit(table.data(rows(b=2, c=3)), remove=[data], operation="overwrite")
    assert changes_of(table, first) == [("delete", 1, "a"), ("insert", 3, "c")]


def test_unreadable_column_is_named_only_if_rows_must_be_compared(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [*COLUMNS, Column(3, "blob", "geometry")], version=3)
    data = table.data(rows(a=1, b=2), columns=COLUMNS)
    first = table.commit(data)
    second = table.commit(table.position_delete([(data, 0)]))
    scan = scan_of(table).select("id")
    assert rows_of(scan.changes(first)) == [("delete", 1)]
    table.commit(table.data(rows(c=3), columns=COLUMNS))
    scan = scan_of(table).select("id")
    assert rows_of(scan.changes(second)) == [("insert", 3)]
    with pytest.raises(scan_core.UnsupportedError, match="'blob'"):
        scan.changes(first).to_table()


def test_closing_early_leaves_no_threads(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1)))
    table.commit(*(table.data({"id": list(range(50)), "name": ["x"] * 50}) for _ in range(10)))
    options = scan_core.ScanOptions(split_bytes=1, batch_rows=5, parallelism=3)
    batches = scan_of(table).with_options(options).changes(first).to_batches()
    assert next(batches).num_rows == 5
    batches.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("scan-")]
