"""Which position-delete files and deletion vectors a plan gives to which data file."""

from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.options import ScanOptions
from tests.support.iceberg_json import Column, Partition
from tests.support.plans import plan, task_of
from tests.support.table_builder import BuiltFile, TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]
BY_NAME = [Partition("name", 2)]
ROWS: dict[str, list[Any]] = {"id": [1, 2], "name": ["x", "x"]}
UNPRUNED = ScanOptions.without_optimisations()


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    return TableBuilder(tmp_path, COLUMNS, partitions=BY_NAME)


@pytest.fixture
def v3(tmp_path: Path) -> TableBuilder:
    return TableBuilder(tmp_path, COLUMNS, version=3)


def data_in(table: TableBuilder, name: str) -> BuiltFile:
    return table.data(ROWS, partition={"name": name})


def bounded(delete: BuiltFile, path: str) -> BuiltFile:
    """The delete file with this path as both bounds of `file_path`."""
    bound = [{"key": 2147483546, "value": path.encode()}]
    delete.record["lower_bounds"] = delete.record["upper_bounds"] = bound
    return delete


def files_of(table: TableBuilder, data: BuiltFile, options: ScanOptions | None = None) -> set[str]:
    return {f.path for f in task_of(plan(table.metadata_path, options=options), data.path).position_deletes}


def vector_of(table: TableBuilder, data: BuiltFile) -> str | None:
    vector = task_of(plan(table.metadata_path), data.path).deletion_vector
    return None if vector is None else vector.path


def test_rule_02_position_deletes_hit_their_own_commit_but_no_later_file(table: TableBuilder) -> None:
    before, same, after = (data_in(table, "a") for _ in range(3))
    table.commit(before)
    delete = table.position_delete([(before, 0), (same, 0)], partition={"name": "a"})
    table.commit(same, delete)
    table.commit(after)
    for options in (None, UNPRUNED):
        assert files_of(table, before, options) == {delete.path}
        assert files_of(table, same, options) == {delete.path}
        assert files_of(table, after, options) == set()


def test_rule_04_position_deletes_without_reference_stay_in_their_partition(table: TableBuilder) -> None:
    mine, other = data_in(table, "a"), data_in(table, "b")
    delete = table.position_delete([(mine, 0), (other, 0)], partition={"name": "a"})
    table.commit(mine, other, delete)
    assert files_of(table, mine) == {delete.path}
    assert files_of(table, other) == set()


def test_rule_04_position_deletes_of_an_unpartitioned_spec_are_not_global(table: TableBuilder) -> None:
    data = data_in(table, "a")
    table.commit(data)
    spec_id = table.repartition()
    stray = table.position_delete([("/elsewhere", 0), (data, 0)], spec_id=spec_id)
    table.commit(stray)
    assert files_of(table, data, UNPRUNED) == set()


@pytest.mark.parametrize("changes", [{"partition": {"name": "b"}}, {"spec": True}])
def test_rule_04_a_reference_into_another_partition_is_malformed(table: TableBuilder, changes: dict[str, Any]) -> None:
    data = data_in(table, "a")
    table.commit(data)
    if changes.pop("spec", False):
        changes["spec_id"] = table.repartition()
    delete = table.position_delete(
        [(data, 0)],
        referenced=data,
        partition=changes.get("partition", {}),
        **{k: v for k, v in changes.items() if k != "partition"},
    )
    table.commit(delete)
    with pytest.raises(MalformedTableError, match=r"partition \(102\)") as caught:
        plan(table.metadata_path)
    assert delete.path in str(caught.value)


def test_rule_07_a_referenced_file_is_the_only_target(table: TableBuilder) -> None:
    mine, other = data_in(table, "a"), data_in(table, "a")
    delete = table.position_delete([(mine, 0)], referenced=mine)
    table.commit(mine, other, delete)
    assert files_of(table, mine, UNPRUNED) == {delete.path}
    assert files_of(table, other, UNPRUNED) == set()


def test_rule_07_a_reference_with_another_scheme_is_found_and_counted(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, written_location="/warehouse/t")
    data = table.data(ROWS)
    delete = table.position_delete([(data, 0)], referenced=data)
    delete.record["referenced_data_file"] = "hdfs://host" + data.path
    table.commit(data, delete)
    planned = plan(table.metadata_path, relocate={"/warehouse/t": str(tmp_path)})
    assert {f.path for f in planned.tasks[0].position_deletes} == {delete.path}
    assert planned.metrics.relocated_position_matches == 1


def test_rule_07_two_different_schemes_never_match(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data = table.data(ROWS)
    delete = table.position_delete([(data, 0)], referenced=data)
    data.record["file_path"] = "file://" + data.path
    delete.record["referenced_data_file"] = "hdfs://host" + str(data.local)
    table.commit(data, delete)
    assert files_of(table, data) == set()


def test_rule_20_equal_path_bounds_stand_for_a_reference(table: TableBuilder) -> None:
    mine, other = data_in(table, "a"), data_in(table, "a")
    delete = bounded(table.position_delete([(mine, 0)]), mine.path)
    table.commit(mine, other, delete)
    assert files_of(table, mine) == {delete.path}
    assert files_of(table, other) == set()
    assert files_of(table, other, UNPRUNED) == {delete.path}


def test_rule_20_path_bounds_that_were_cut_off_prune_nothing(table: TableBuilder) -> None:
    data = data_in(table, "a")
    delete = table.position_delete([(data, 0)])
    table.commit(data, bounded(delete, data.path[:16]))
    assert files_of(table, data) == {delete.path}


def test_rule_08_deletes_of_files_that_are_gone_are_left_out(table: TableBuilder) -> None:
    kept, gone = data_in(table, "a"), data_in(table, "a")
    table.commit(kept, gone)
    by_bounds = bounded(table.position_delete([(gone, 0)]), gone.path)
    by_name = table.position_delete([(gone, 1)], referenced=gone)
    table.commit(by_bounds, by_name)
    table.commit(remove=[gone])
    planned = plan(table.metadata_path)
    assert planned.tasks[0].position_deletes == ()
    assert planned.metrics.delete_files_pruned == 2


def test_rule_06_a_vector_replaces_position_delete_files_but_not_equality_deletes(v3: TableBuilder) -> None:
    data = v3.data(ROWS)
    v3.commit(data)
    v3.commit(v3.position_delete([(data, 0)], referenced=data))
    vector, equality = v3.deletion_vector(data, [1]), v3.equality_delete({"id": [1]}, ids=[1])
    v3.commit(vector, equality)
    (task,) = plan(v3.metadata_path).tasks
    assert task.deletion_vector is not None
    assert task.deletion_vector.path == vector.path
    assert task.position_deletes == ()
    assert len(task.equality_deletes) == 1


def test_rule_06_two_vectors_for_one_data_file_are_malformed(v3: TableBuilder) -> None:
    data = v3.data(ROWS)
    v3.commit(data)
    v3.commit(v3.deletion_vector(data, [0]))
    v3.commit(v3.deletion_vector(data, [1]))
    with pytest.raises(MalformedTableError, match="two deletion vectors in one snapshot") as caught:
        plan(v3.metadata_path)
    assert data.path in str(caught.value)


def test_rule_06_a_vector_older_than_its_data_file_is_malformed(v3: TableBuilder) -> None:
    data = v3.data(ROWS)
    vector = v3.deletion_vector(data, [0])
    v3.commit(vector)
    v3.commit(data)
    with pytest.raises(MalformedTableError, match=r"sequence_number \(3\) 1 of the deletion vector is older"):
        plan(v3.metadata_path)


def test_rule_06_a_vector_hits_its_own_commit(v3: TableBuilder) -> None:
    data = v3.data(ROWS)
    vector = v3.deletion_vector(data, [0])
    v3.commit(data, vector)
    assert vector_of(v3, data) == vector.path


def test_rule_06_vectors_of_several_files_may_share_one_puffin_file(v3: TableBuilder) -> None:
    one, two = v3.data(ROWS), v3.data(ROWS)
    v3.commit(one, two)
    v3.commit(*v3.deletion_vectors({one: [0], two: [1]}))
    planned = plan(v3.metadata_path)
    offsets = {t.deletion_vector.content_offset for t in planned.tasks if t.deletion_vector}
    assert len(offsets) == 2
    assert planned.metrics.delete_files_planned == 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("referenced_data_file", None, r"referenced_data_file \(143\) of a deletion vector is missing"),
        ("content_offset", None, r"content_offset \(144\) of a deletion vector is None"),
        ("content_size_in_bytes", -1, r"content_size_in_bytes \(145\) of a deletion vector is -1"),
        ("content", 2, r"content \(134\) of a deletion vector is 2"),
    ],
)
def test_rule_06_a_vector_that_lacks_a_fact_is_malformed(
    v3: TableBuilder, field: str, value: Any, message: str
) -> None:
    data = v3.data(ROWS)
    v3.commit(data)
    vector = v3.deletion_vector(data, [0])
    vector.record[field] = value
    v3.commit(vector)
    with pytest.raises(MalformedTableError, match=message) as caught:
        plan(v3.metadata_path)
    assert vector.path in str(caught.value)


def test_rule_08_a_broken_vector_of_a_file_that_is_gone_is_not_validated(v3: TableBuilder) -> None:
    data, kept = v3.data(ROWS), v3.data(ROWS)
    v3.commit(data, kept)
    vector = v3.deletion_vector(data, [0])
    vector.record["content_offset"] = None
    v3.commit(vector)
    v3.commit(remove=[data])
    assert vector_of(v3, kept) is None


def moved_table(tmp_path: Path, kind: str) -> tuple[TableBuilder, BuiltFile]:
    """A table whose metadata was rewritten when it was moved, and whose position deletes still name the old place."""
    table = TableBuilder(tmp_path / "t", COLUMNS, version=3 if kind == "vector" else 2)
    data = table.data(ROWS)
    old = f"/old/place/data/{data.local.name}"
    if kind == "vector":
        (delete,) = table.deletion_vectors({data: [0]})
        delete.record["referenced_data_file"] = old
    else:
        here, data.record["file_path"] = data.path, old
        delete = table.position_delete([(data, 0)], **({"referenced": data} if kind == "referenced" else {}))
        data.record["file_path"] = here
        if kind == "bounds":
            bounded(delete, old)
    table.commit(data, delete)
    return table, data


@pytest.mark.parametrize("kind", ["rows", "bounds", "referenced", "vector"])
def test_rule_07_deletes_that_name_the_place_before_a_move_are_refused_or_relocated(tmp_path: Path, kind: str) -> None:
    table, data = moved_table(tmp_path, kind)
    with pytest.raises(MalformedTableError, match=r"before the table was moved.*--relocate '/old/place="):
        scan_core.open_table(table.metadata_path).scan().to_table()
    relocated = scan_core.open_table(table.metadata_path, relocate={"/old/place": str(tmp_path / "t")})
    assert relocated.scan().count() == data.record["record_count"] - 1


def test_rule_07_a_delete_of_a_file_that_is_gone_from_elsewhere_is_no_moved_one(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    data = table.data(ROWS)
    here, data.record["file_path"] = data.path, f"/elsewhere/{data.local.name}.orc"
    delete = table.position_delete([(data, 0)])
    data.record["file_path"] = here
    table.commit(data, delete)
    assert scan_core.open_table(table.metadata_path).scan().count() == data.record["record_count"]
