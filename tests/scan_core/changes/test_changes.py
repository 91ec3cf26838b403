import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scan_core
from scan_core import ColumnNotFoundError, MissingFileError, OptionError, PredicateError, Scan, SnapshotNotFoundError
from scan_core.changes.request import Changes
from tests.iceberg_json import Column, Partition
from tests.table_builder import BuiltFile, TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


def scan_of(table: TableBuilder) -> Scan:
    return scan_core.open_table(table.metadata_path).scan()


def rows_of(changes: Changes) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in changes.to_table().to_pylist()), key=repr)


def changes_of(table: TableBuilder, start: int | None, end: int | None = None, **options: Any) -> list[tuple[Any, ...]]:
    changes = scan_of(table).changes(start, end, **options)
    found = rows_of(changes)
    alone = [("delete", *r) for r in rows_of(changes.deletes)] + [("insert", *r) for r in rows_of(changes.inserts)]
    assert sorted(alone, key=repr) == found
    assert changes.count() == len(found)
    return found


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., TableBuilder]:
    return lambda **options: TableBuilder(tmp_path / "t", COLUMNS, **options)


def rows(**names: int) -> dict[str, list[Any]]:
    return {"id": list(names.values()), "name": list(names)}


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


def test_rewritten_equal_row_is_no_change(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1, b=2)))
    table.commit(table.equality_delete({"id": [1, 2]}, ids=[1], columns=COLUMNS[:1]), table.data(rows(a=1, c=2)))
    assert changes_of(table, first) == [("delete", 2, "b"), ("insert", 2, "c")]


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


def test_replaced_deletion_vector_counts_only_what_it_adds(build: Callable[..., TableBuilder]) -> None:
    table = build(version=3)
    data = table.data(rows(a=1, b=2, c=3, d=4))
    start = table.commit(data)
    vector = table.deletion_vector(data, [1])
    first = table.commit(vector)
    table.commit(table.deletion_vector(data, [1, 3]), remove=[vector])
    assert changes_of(table, first) == [("delete", 4, "d")]
    assert changes_of(table, start) == [("delete", 2, "b"), ("delete", 4, "d")]


def test_smaller_deletion_vector_brings_rows_back(build: Callable[..., TableBuilder]) -> None:
    table = build(version=3)
    data = table.data(rows(a=1, b=2, c=3))
    vector = table.deletion_vector(data, [0, 1])
    first = table.commit(data, vector)
    table.commit(table.deletion_vector(data, [1, 2]), remove=[vector])
    assert changes_of(table, first) == [("delete", 3, "c"), ("insert", 1, "a")]


def test_deletion_vector_that_replaces_position_deletes_is_no_change(build: Callable[..., TableBuilder]) -> None:
    table = build(version=3)
    data = table.data(rows(a=1, b=2, c=3))
    positions = table.position_delete([(data, 1)])
    first = table.commit(data, positions)
    second = table.commit(table.deletion_vector(data, [1]), remove=[positions])
    table.commit(table.position_delete([(data, 2)]))
    assert changes_of(table, first, second) == []
    assert changes_of(table, second) == []
    assert changes_of(table, first) == []


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


def compacted(table: TableBuilder, gone: list[BuiltFile], new: dict[str, list[Any]], sequence: int) -> int:
    """A compaction that gives its file the sequence number of the snapshot it read."""
    file = table.data(new)
    file.sequence_number = sequence
    return table.commit(file, remove=gone, operation="replace")


@pytest.mark.parametrize("trust_rewrites", [False, True])
def test_compaction_is_no_change(build: Callable[..., TableBuilder], *, trust_rewrites: bool) -> None:
    table = build()
    files = [table.data(rows(a=1)), table.data(rows(b=2, c=3))]
    first = table.commit(*files)
    delete = table.equality_delete({"id": [2]}, ids=[1], columns=COLUMNS[:1])
    second = table.commit(delete)
    third = compacted(table, [*files, delete], rows(a=1, c=3), 2)
    table.commit(table.equality_delete({"id": [3]}, ids=[1], columns=COLUMNS[:1]), table.data(rows(d=4)))
    deleted, later = ("delete", 2, "b"), [("delete", 3, "c"), ("insert", 4, "d")]
    assert changes_of(table, second, third, trust_rewrites=trust_rewrites) == []
    assert changes_of(table, first, third, trust_rewrites=trust_rewrites) == [deleted]
    assert changes_of(table, first, trust_rewrites=trust_rewrites) == [deleted, *later]
    assert changes_of(table, third, trust_rewrites=trust_rewrites) == later


def test_what_trusted_compaction_rewrote_is_not_read(build: Callable[..., TableBuilder]) -> None:
    table = build()
    files = [table.data(rows(a=1)), table.data(rows(b=2, c=3))]
    first = table.commit(*files)
    compacted(table, files, rows(a=1, b=2, c=3), 1)
    table.commit(table.data(rows(d=4)))
    changes = scan_of(table).changes(first, trust_rewrites=True)
    assert changes.count() == 1
    assert changes.metrics.data_files_read == 1


def test_rewrite_that_changes_rows_shows_unless_trusted(build: Callable[..., TableBuilder]) -> None:
    table = build()
    data = table.data(rows(a=1, b=2))
    first = table.commit(data)
    compacted(table, [data], rows(a=1), 1)
    assert changes_of(table, first) == [("delete", 2, "b")]
    assert changes_of(table, first, trust_rewrites=True) == []


def test_copy_on_write_yields_only_the_rows_that_changed(build: Callable[..., TableBuilder]) -> None:
    table = build()
    data = table.data(rows(a=1, b=2, c=3))
    first = table.commit(data)
    table.commit(table.data({"id": [1, 2, 3], "name": ["a", "B", "c"]}), remove=[data], operation="overwrite")
    assert changes_of(table, first) == [("delete", 2, "b"), ("insert", 2, "B")]


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


def test_v1_tables_are_compared_by_files(build: Callable[..., TableBuilder]) -> None:
    table = build(version=1)
    data = table.data(rows(a=1, b=2))
    first = table.commit(data)
    table.commit(table.data(rows(b=2, c=3)), remove=[data], operation="overwrite")
    assert changes_of(table, first) == [("delete", 1, "a"), ("insert", 3, "c")]


def test_unreadable_column_is_named_only_if_rows_must_be_compared(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [*COLUMNS, Column(3, "blob", "variant")], version=3)
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
