"""Columns that a table does not store: where a row lies, its id, what removed it."""

from pathlib import Path

from tests.scan_core.small_scans import COLUMNS, rows, rows_of, scan_of, with_deletes
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder


def test_metadata_columns_tell_where_a_row_lies(tmp_path: Path) -> None:
    table, first = with_deletes(tmp_path)
    scan = scan_of(table).select("id", "_file", "_pos", "_spec_id", "_partition").where("id < 4")
    assert scan.to_table().to_pylist() == [
        {"id": i, "_file": first.path, "_pos": i, "_spec_id": 0, "_partition": {}} for i in (0, 1, 3)
    ]
    assert rows_of(scan_of(table).select("id").where(f"_file = '{first.path}' and _pos >= 8")) == [(8,), (9,)]


def test_metadata_columns_give_partitions_of_every_spec(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=[Partition("qty", 3)])
    table.commit(table.data(rows([1]), partition={"qty": 1}))
    table.repartition(Partition("b", 1, "bucket[4]"))
    table.commit(table.data(rows([2]), partition={"b": 3}))
    scan = scan_of(table).select("id", "_partition", "_spec_id")
    assert sorted(scan.to_table().to_pylist(), key=lambda r: r["id"]) == [
        {"id": 1, "_partition": {"b": None, "qty": 1}, "_spec_id": 0},
        {"id": 2, "_partition": {"b": 3, "qty": None}, "_spec_id": 1},
    ]
    assert rows_of(scan_of(table).select("id").where("_partition.b = 3")) == [(2,)]


def test_rule_21_row_ids_follow_positions_and_stored_ones_win(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3)
    first = table.data(rows(range(4)))
    table.commit(first)
    lineage = (
        *COLUMNS,
        Column(2147483540, "_row_id", "long"),
        Column(2147483539, "_last_updated_sequence_number", "long"),
    )
    moved = {**rows([10, 11]), "_row_id": [77, None], "_last_updated_sequence_number": [None, 1]}
    table.commit(table.data(moved, columns=lineage), table.deletion_vector(first, [1]))
    scan = scan_of(table).select("id", "_row_id", "_last_updated_sequence_number", "_pos")
    assert rows_of(scan) == sorted([(0, 0, 1, 0), (2, 2, 1, 2), (3, 3, 1, 3), (10, 77, 2, 0), (11, 5, 1, 1)], key=repr)
    assert rows_of(scan_of(table).select("id").where("_row_id = 5")) == [(11,)]


def test_dead_rows_are_flagged_with_the_delete_file_that_removed_them(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data = table.data(rows(range(6)))
    table.commit(data)
    by_position = table.position_delete([(data, 2)])
    table.commit(by_position)
    by_key = table.equality_delete({"id": [4, 2]}, ids=[1])
    table.commit(by_key)
    later = table.equality_delete({"id": [4]}, ids=[1])
    table.commit(later)
    scan = scan_of(table).select("id", "_deleted", "_delete_file")
    by_id = {r["id"]: (r["_deleted"], r["_delete_file"]) for r in scan.to_table().to_pylist()}
    alive = (False, None)
    assert by_id == {0: alive, 1: alive, 2: (True, by_position.path), 3: alive, 4: (True, by_key.path), 5: alive}
    assert scan.count() == 6
    assert rows_of(scan_of(table).select("id").where("_deleted")) == [(2,), (4,)]
    assert rows_of(scan_of(table).select("id", "_deleted").where("id > 3")) == [(4, True), (5, False)]


def test_table_column_wins_over_metadata_column_of_its_name(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, [Column(1, "_pos", "string")])
    table.commit(table.data({"_pos": ["mine"]}))
    assert scan_of(table).select("_pos").to_table().to_pylist() == [{"_pos": "mine"}]
