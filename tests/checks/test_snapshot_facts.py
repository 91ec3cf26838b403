"""`verify_table` finds what the files of a snapshot contradict in each other, and rewrites that brought rows back or lost them."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.checks.damage import verify_table
from tests.support.built_files import BuiltFile
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]
BY_NAME = [Partition("name", 2, "identity")]


def rows(table: TableBuilder, first: int, last: int) -> BuiltFile:
    partition = {"name": "a"} if table.specs[0] else None
    return table.data({"id": list(range(first, last)), "name": ["a"] * (last - first)}, partition=partition)


def problems(table: TableBuilder) -> str:
    return " ".join(map(str, verify_table(scan_core.open_table(table.metadata_path)).damage))


def later_data(table: TableBuilder) -> None:
    file = rows(table, 5, 6)
    file.sequence_number = 9
    table.commit(file)


def later_delete(table: TableBuilder) -> None:
    file = table.equality_delete({"id": [1]}, ids=[1])
    file.sequence_number = 7
    table.commit(file)


def same_file_twice(table: TableBuilder) -> None:
    file = rows(table, 5, 6)
    table.commit(file)
    table.commit(copy.deepcopy(file))


def two_vectors(table: TableBuilder) -> None:
    file = rows(table, 5, 9)
    table.commit(file)
    table.commit(table.deletion_vector(file, [1]))
    table.commit(table.deletion_vector(file, [2]))


def old_vector(table: TableBuilder) -> None:
    file = rows(table, 5, 9)
    table.commit(file)
    vector = table.deletion_vector(file, [1])
    vector.sequence_number = 1
    table.commit(vector)


def vector_of_another_partition(table: TableBuilder) -> None:
    file = rows(table, 5, 9)
    vector = table.deletion_vector(file, [1])
    vector.record["partition"] = {"name": "b"}
    table.commit(file)
    table.commit(vector)


def positions_of_another_partition(table: TableBuilder) -> None:
    file = rows(table, 5, 9)
    table.commit(file)
    table.commit(table.position_delete([(file, 1)], partition={"name": "b"}))


def key_that_the_file_lacks(table: TableBuilder) -> None:
    table.commit(table.equality_delete({"id": [1]}, ids=[2]))


def no_key(table: TableBuilder) -> None:
    file = table.equality_delete({"id": [1]}, ids=[1])
    file.record["equality_ids"] = []
    table.commit(file)


def few_row_ids(table: TableBuilder) -> None:
    table.edit(lambda document: document.update({"next-row-id": 3}))


CASES: list[tuple[Callable[[TableBuilder], None], int, bool, str]] = [
    (later_data, 2, False, "has sequence number 9, but snapshot 1002 has 2"),
    (later_delete, 2, False, "has sequence number 7, but snapshot 1002 has 2"),
    (same_file_twice, 2, False, "is in two entries of one snapshot"),
    (two_vectors, 3, False, "is a second vector of"),
    (old_vector, 3, False, "has sequence number 1, but its data file"),
    (vector_of_another_partition, 3, True, "partition name = 'b' (spec 0) by its manifest, but it deletes rows of"),
    (positions_of_another_partition, 2, True, "partition name = 'b' (spec 0) by its manifest, but it deletes rows of"),
    (key_that_the_file_lacks, 2, False, "expected the key column with id 2 by its manifest"),
    (no_key, 2, False, "expected ids of key columns (equality_ids) in its manifest, found none"),
    (few_row_ids, 3, False, "has row ids up to 4, but next-row-id of the table is 3"),
]


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("damage", "version", "is_partitioned", "told"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_files_that_contradict_each_other_are_damage(
    damage: Callable[[TableBuilder], None], version: int, *, is_partitioned: bool, told: str, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=version, partitions=BY_NAME if is_partitioned else ())
    table.commit(rows(table, 0, 5))
    assert problems(table) == ""
    damage(table)
    assert told in problems(table)


def with_deletes(folder: Path, kind: str) -> tuple[TableBuilder, BuiltFile, list[BuiltFile]]:
    table = TableBuilder(folder, COLUMNS, version=3 if kind == "vectors" else 2)
    data = rows(table, 0, 5)
    table.commit(data)
    deletes = {
        "equality": lambda: [table.equality_delete({"id": [1]}, ids=[1])],
        "positions": lambda: [table.position_delete([(data, 1)])],
        "vectors": lambda: table.deletion_vectors({data: [1]}),
    }[kind]()
    table.commit(*deletes)
    return table, data, deletes


KINDS = ["equality", "positions", "vectors"]


@pytest.mark.parametrize("kind", KINDS)
def test_deletes_that_another_tool_dropped_are_found_later_too(kind: str, tmp_path: Path) -> None:
    table, _, deletes = with_deletes(tmp_path, kind)
    assert problems(table) == ""
    table.commit(remove=deletes, operation="replace")
    assert "must change no row, but 1 row came and 0 went" in problems(table)
    table.commit(rows(table, 5, 9))
    assert "snapshot 1003: it replaces files of snapshot 1002" in problems(table)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("last", "told"), [(5, "1 row came and 0 went"), (3, "1 row came and 2 went")])
def test_rewrites_that_bring_rows_back_or_lose_them_are_found(kind: str, last: int, told: str, tmp_path: Path) -> None:
    table, data, deletes = with_deletes(tmp_path, kind)
    table.commit(rows(table, 0, last), remove=[data, *deletes], operation="replace")
    assert told in problems(table)


@pytest.mark.parametrize("kind", KINDS)
def test_rewrites_that_change_no_row_are_not_damage(kind: str, tmp_path: Path) -> None:
    table, data, deletes = with_deletes(tmp_path, kind)
    file = table.data({"id": [0, 2, 3, 4], "name": ["a"] * 4})
    table.commit(file, remove=[data, *deletes], operation="replace")
    assert problems(table) == ""


def test_global_deletes_that_a_removal_of_dangling_deletes_dropped_are_found(tmp_path: Path) -> None:
    """Spark's `remove-dangling-deletes` looks for data files of the partition of a delete; a global one has none."""
    table = TableBuilder(tmp_path, COLUMNS, partitions=BY_NAME)
    table.commit(rows(table, 0, 5))
    by_name = table.spec_id
    unpartitioned = table.repartition()
    deletes = table.equality_delete({"id": [1, 2]}, ids=[1], spec_id=unpartitioned)
    table.repartition(*table.specs[by_name])
    table.commit(deletes)
    assert problems(table) == ""
    assert scan_core.open_table(table.metadata_path).scan().count() == 3
    table.commit(remove=[deletes], operation="replace")
    assert "must change no row, but 2 rows came and 0 went" in problems(table)
