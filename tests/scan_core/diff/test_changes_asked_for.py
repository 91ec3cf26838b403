"""Which rows and columns of the changes are asked for, and between which snapshots."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nevermore.scan_core import (
    ColumnNotFoundError,
    MissingFileError,
    OptionError,
    PredicateError,
    SnapshotNotFoundError,
)
from tests.scan_core.diff.table_changes import COLUMNS, rows, rows_of, scan_of
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder


def test_columns_and_filter_apply_after_comparison(build: Callable[..., TableBuilder]) -> None:
    table = build()
    data = table.data(rows(a=1, b=2, c=3))
    first = table.commit(data)
    table.commit(table.data({"id": [1, 2, 3], "name": ["a", "B", "C"]}), remove=[data], operation="overwrite")
    scan = scan_of(table)
    assert rows_of(scan.select("id").changes(first)) == [("delete", 2), ("delete", 3), ("insert", 2), ("insert", 3)]
    assert rows_of(scan.where("id = 3").changes(first)) == [("delete", 3, "c"), ("insert", 3, "C")]
    assert rows_of(scan.where("name = 'C'").select("id").changes(first)) == [("insert", 3)]
    assert scan.select("name", "id").changes(first).arrow_schema.names == ["_change_type", "name", "id"]
    assert scan.limit(1).changes(first).count() == scan.changes(first).limit(1).count() == 1
    assert scan.changes(first).limit(3).limit(9).to_table().num_rows == 3


def test_filter_prunes_files_and_partitions(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, partitions=[Partition("name", 2)])
    first = table.commit(table.data({"id": [1], "name": ["a"]}, partition={"name": "a"}))
    table.commit(*(table.data({"id": [i], "name": [p]}, partition={"name": p}) for i, p in enumerate("abc")))
    changes = scan_of(table).where("name = 'b'").changes(first)
    assert rows_of(changes) == [("insert", 1, "b")]
    assert changes.metrics.data_files_read == 1


def test_metadata_columns_tell_where_rows_are(build: Callable[..., TableBuilder]) -> None:
    table = build()
    data = table.data(rows(a=1, b=2))
    first = table.commit(data)
    table.commit(table.position_delete([(data, 1)]))
    scan = scan_of(table).select("_file", "_pos", "id")
    assert rows_of(scan.changes(first)) == [("delete", data.path, 1, 2)]
    with pytest.raises(ColumnNotFoundError, match="_deleted"):
        scan_of(table).select("id", "_deleted").changes(first)
    with pytest.raises(PredicateError, match="_pos"):
        scan_of(table).where("_pos = 1").changes(first)
    with pytest.raises(OptionError):
        scan_of(table).changes(first).limit(-1)


def test_rows_have_the_schema_of_the_later_snapshot(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1)))
    table.evolve(Column(1, "key", "long"), Column(3, "added", "int"))
    second = table.commit(table.equality_delete({"key": [1]}, ids=[1], columns=[Column(1, "key", "long")]))
    table.evolve(Column(1, "newest", "long"))
    changes = scan_of(table).changes(first, second)
    assert changes.to_table().to_pylist() == [{"_change_type": "delete", "key": 1, "added": None}]
    assert scan_of(table).changes(first).arrow_schema.names == ["_change_type", "newest"]


def test_branch_is_read_to_its_head(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1)))
    table.commit(table.data(rows(b=2)), branch="audit", parent=first)
    assert rows_of(scan_of(table).at_ref("audit").changes(first)) == [("insert", 2, "b")]
    assert rows_of(scan_of(table).changes(first)) == []


def test_snapshots_that_do_not_descend_are_refused(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1)))
    second = table.commit(table.data(rows(b=2)))
    other = table.commit(table.data(rows(c=3)), branch="other", parent=first)
    scan = scan_of(table)
    with pytest.raises(SnapshotNotFoundError, match="swap them"):
        scan.changes(second, first)
    with pytest.raises(SnapshotNotFoundError, match="different branches"):
        scan.changes(second, other)
    with pytest.raises(SnapshotNotFoundError, match="no snapshot 7"):
        scan.changes(7)
    with pytest.raises(SnapshotNotFoundError, match="no snapshot 7"):
        scan.changes(first, 7)


def test_expired_ancestor_is_named(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first, second, _ = (table.commit(table.data(rows(a=i))) for i in range(3))
    table.edit(lambda d: d.update(snapshots=[s for s in d["snapshots"] if s["snapshot-id"] != second]))
    with pytest.raises(SnapshotNotFoundError, match=f"{second}, an ancestor, has expired"):
        scan_of(table).changes(first)


def test_missing_manifest_names_snapshot_and_file(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1)))
    table.commit(table.data(rows(b=2)))
    (table.location / "metadata" / f"snap-{first}.avro").unlink()
    with pytest.raises(MissingFileError, match=f"snapshot {first}.*snap-{first}.avro"):
        scan_of(table).changes(first).to_table()


def test_table_without_snapshots_has_no_changes(build: Callable[..., TableBuilder]) -> None:
    found = scan_of(build()).changes(None).to_table()
    assert found.num_rows == 0
    assert found.schema.names == ["_change_type", "id", "name"]


def test_tables_without_columns_differ_by_how_many_rows_they_have(build: Callable[..., TableBuilder]) -> None:
    table = build()
    data = table.data(rows(a=1, b=2, c=3))
    first = table.commit(data)
    table.commit(table.data(rows(d=4)), remove=[data], operation="overwrite")
    table.evolve()
    assert scan_of(table).changes(first).deletes.count() == 2
    assert scan_of(table).changes(first).inserts.count() == 0


def test_no_columns_are_selected_for_counting(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1, b=2)))
    table.commit(table.data(rows(c=3)), table.equality_delete({"id": [1]}, ids=[1], columns=COLUMNS[:1]))
    changes = scan_of(table).select().changes(first)
    assert (changes.deletes.count(), changes.inserts.count(), changes.count()) == (1, 1, 2)
    assert changes.to_table().column_names == ["_change_type"]
