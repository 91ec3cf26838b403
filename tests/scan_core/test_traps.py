"""Traps that other engines have fallen into: one regression test each, end to end."""

import time
from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from tests.scan_core.trapped_tables import COLUMNS, KEY, NAME, Build, every_format, scan_of, three_rows
from tests.support.agreed_rows import rows_of
from tests.support.iceberg_json import Column, Partition, struct
from tests.support.table_builder import TableBuilder


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return lambda columns=COLUMNS, **options: TableBuilder(tmp_path / "t", columns, **options)


@every_format
def test_trap_non_null_delete_leaves_null_rows(build: Build, file_format: str) -> None:
    table = build()
    table.commit(three_rows(table, file_format=file_format))
    table.commit(table.equality_delete({"id": [1, 3]}, ids=[1], columns=KEY, file_format=file_format))
    assert rows_of(table) == [(2, None), (None, "c")]


@every_format
def test_trap_null_delete_removes_null_rows(build: Build, file_format: str) -> None:
    table = build()
    table.commit(three_rows(table, file_format=file_format))
    table.commit(table.equality_delete({"id": [None]}, ids=[1], columns=KEY, file_format=file_format))
    assert rows_of(table) == [(1, "a"), (2, None)]


@every_format
def test_trap_key_column_that_is_not_selected_still_deletes(build: Build, file_format: str) -> None:
    table = build()
    table.commit(three_rows(table, file_format=file_format))
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=KEY, file_format=file_format))
    found = scan_of(table).select("name").to_table()
    assert found.column_names == ["name"]
    assert found["name"].to_pylist() == [None, "c"]


def test_trap_delete_of_another_partition_or_spec_does_not_reach(build: Build) -> None:
    table = build(partitions=[Partition("name", 2)])
    table.commit(*(table.data({"id": [1], "name": [p]}, partition={"name": p}) for p in ("a", "b")))
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=KEY, partition={"name": "b"}))
    table.repartition(Partition("other", 2))
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=KEY, partition={"other": "a"}))
    assert rows_of(table) == [(1, "a")]


def test_trap_delete_of_the_same_commit_spares_the_new_row(build: Build) -> None:
    table = build()
    table.commit(table.data({"id": [1], "name": ["old"]}))
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=KEY), table.data({"id": [1], "name": ["new"]}))
    assert rows_of(table) == [(1, "new")]


def test_trap_delete_is_not_lost_after_compaction(build: Build) -> None:
    table = build()
    old = three_rows(table)
    table.commit(old)
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=KEY))
    rewritten = three_rows(table)
    rewritten.sequence_number = 1
    table.commit(rewritten, remove=[old], operation="replace")
    assert rows_of(table) == [(2, None), (None, "c")]


def test_trap_delete_file_is_opened_once_for_all_data_files(build: Build) -> None:
    DELETE_CACHE.clear()
    table = build()
    table.commit(*(table.data({"id": [i, 100], "name": ["x", "y"]}) for i in range(20)))
    table.commit(table.equality_delete({"id": [100, 3]}, ids=[1], columns=KEY))
    scan = scan_of(table, split_bytes=1)
    assert scan.to_table().num_rows == 19
    assert scan.metrics.data_files_read == 20
    assert scan.metrics.delete_files_opened == 1


def test_trap_many_thousand_delete_rows_take_no_time(build: Build) -> None:
    table = build()
    count = 60_000
    table.commit(table.data({"id": list(range(count)), "name": [f"n{i}" for i in range(count)]}))
    dead = list(range(0, count, 2))
    table.commit(
        table.equality_delete({"id": dead, "name": [f"n{i}" for i in dead]}, ids=[1, 2]),
        table.equality_delete({"name": [f"n{i}" for i in range(1, count, 3)]}, ids=[2], columns=NAME),
    )
    started = time.process_time()
    assert scan_of(table).count() == count // 3
    assert time.process_time() - started < 20


@every_format
def test_trap_dropped_key_column_still_deletes(build: Build, file_format: str) -> None:
    table = build()
    table.commit(three_rows(table, file_format=file_format))
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=KEY, file_format=file_format))
    table.evolve(*NAME)
    assert rows_of(table) == [("c",), (None,)]
    table.evolve(*NAME, Column(3, "id", "string"))
    assert rows_of(table) == [("c", None), (None, None)]


@every_format
@pytest.mark.parametrize("promoted_first", [False, True])
def test_trap_promoted_key_matches_and_never_becomes_null(
    build: Build, file_format: str, *, promoted_first: bool
) -> None:
    narrow, wide = Column(1, "k", "int"), Column(1, "k", "long")
    table = build([narrow])
    table.commit(table.data({"k": [1, 2, None]}, file_format=file_format))
    if promoted_first:
        table.evolve(wide)
        table.commit(table.equality_delete({"k": [1, 2**32 + 2]}, ids=[1], file_format=file_format))
    else:
        table.commit(table.equality_delete({"k": [1]}, ids=[1], file_format=file_format))
        table.evolve(wide)
    table.commit(table.data({"k": [2**32 + 1]}, file_format=file_format))
    assert rows_of(table) == [(2,), (4294967297,), (None,)]


@pytest.mark.each(2)
@every_format
@pytest.mark.parametrize("name", ["a b", "a.b", "a`b", "ä", "select"])
def test_trap_odd_column_names(build: Build, file_format: str, name: str) -> None:
    columns = [Column(1, name, "long"), Column(2, "x", struct(Column(3, name, "string")))]
    table = build(columns)
    rows = {name: [1, 2], "x": [{name: "p"}, {name: "q"}]}
    table.commit(table.data(rows, file_format=file_format))
    table.commit(table.equality_delete({name: [1]}, ids=[1], columns=columns[:1], file_format=file_format))
    assert rows_of(table) == [(2, {name: "q"})]
    quoted = "`" + name.replace("`", "``") + "`"
    assert scan_of(table).where(f"{quoted} = 2").select(name).to_table()[name].to_pylist() == [2]


def test_trap_truncated_upper_bound_prunes_neither_rows_nor_deletes(build: Build) -> None:
    table = build()
    long = "same beginning, " * 4
    table.commit(table.data({"id": [1, 2], "name": [long + "1", long + "2"]}))
    table.commit(table.equality_delete({"name": [long + "2"]}, ids=[2], columns=NAME))
    assert rows_of(table) == [(1, long + "1")]
    assert scan_of(table).where(f"name = '{long}1'").count() == 1


def test_trap_wrong_bounds_of_other_columns_prune_no_delete(build: Build) -> None:
    table = build()
    table.commit(table.data({"id": [1, 2], "name": ["a", "b"]}))
    table.commit(table.equality_delete({"id": [1], "name": ["zzz"]}, ids=[1]))
    assert scan_of(table).where("name = 'a'").count() == 0
    assert rows_of(table) == [(2, "b")]


def test_trap_manifests_without_key_value_metadata(build: Build) -> None:
    table = build(manifest_metadata=False)
    table.commit(three_rows(table))
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=KEY))
    assert rows_of(table) == [(2, None), (None, "c")]


@pytest.mark.parametrize("hint", ["version-hint.text", "version-hint.txt", None])
def test_trap_version_hint_is_absent_or_named_otherwise(build: Build, hint: str | None) -> None:
    table = build()
    table.commit(three_rows(table))
    known = table.location / "metadata" / "version-hint.text"
    if hint is None:
        known.unlink()
    else:
        known.rename(known.with_name(hint))
    assert scan_core.open_table(table.location).scan().count() == 3


@pytest.mark.parametrize("name", ["00007-1c2d3e4f.metadata.json", "renamed.json", "x.metadata.json.tmp"])
def test_trap_metadata_file_of_any_name(build: Build, name: str) -> None:
    table = build()
    table.commit(three_rows(table))
    other = table.metadata_path.with_name(name)
    table.metadata_path.rename(other)
    assert scan_core.open_table(other).scan().count() == 3


@every_format
@pytest.mark.parametrize("stated", [0, 1, 99])
def test_trap_wrong_record_count_of_a_manifest(build: Build, file_format: str, stated: int) -> None:
    table = build()
    data = three_rows(table, file_format=file_format)
    delete = table.equality_delete({"id": [1, 2]}, ids=[1], columns=KEY, file_format=file_format)
    data.record["record_count"] = delete.record["record_count"] = stated
    table.commit(data)
    table.commit(delete)
    assert rows_of(table) == [(None, "c")]


def test_trap_count_is_not_answered_from_metadata(build: Build) -> None:
    table = build()
    data = three_rows(table)
    table.commit(data)
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=KEY), table.position_delete([(data, 1)]))
    assert scan_of(table).count() == scan_of(table, trust_record_counts=True).count() == 1


@every_format
def test_trap_delete_file_that_holds_whole_rows_with_nulls(build: Build, file_format: str) -> None:
    table = build()
    table.commit(three_rows(table, file_format=file_format))
    table.commit(table.equality_delete({"id": [1], "name": [None]}, ids=[1], file_format=file_format))
    assert rows_of(table) == [(2, None), (None, "c")]


@every_format
def test_trap_counts_leave_out_members_of_structs_that_are_null(build: Build, file_format: str) -> None:
    columns = [*KEY, Column(4, "s", struct(Column(5, "x", "int")))]
    table = build(columns)
    data = table.data({"id": [1, 2], "s": [None, {"x": 5}]}, file_format=file_format)
    nulls = table.equality_delete({"s": [None, {"x": 99}]}, ids=[5], columns=columns[1:], file_format=file_format)
    for file, value in ((data, 5), (nulls, 99)):
        bound = value.to_bytes(4, "little")
        counts = {"value_counts": 1, "null_value_counts": 0, "lower_bounds": bound, "upper_bounds": bound}
        for name, stated in counts.items():
            file.record[name] = [*file.record.get(name, []), {"key": 5, "value": stated}]
    table.commit(data)
    assert scan_of(table).select("id").where("s.x is null").to_table().to_pydict() == {"id": [1]}
    table.commit(nulls)
    assert rows_of(table) == [(2, {"x": 5})]
