"""Which equality deletes a plan gives to which data file."""

import math
from pathlib import Path
from typing import Any

import pytest

from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.options import ScanOptions
from tests.support.iceberg_json import Column, Partition, struct
from tests.support.plans import equality_paths, plan, task_of
from tests.support.table_builder import BuiltFile, TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]
BY_NAME = [Partition("name", 2)]
UNPRUNED = ScanOptions.without_optimisations()


def rows(*ids: int | None) -> dict[str, list[Any]]:
    return {"id": list(ids), "name": ["x"] * len(ids)}


def deletes_of(table: TableBuilder, data: BuiltFile, options: ScanOptions | None = None) -> set[str]:
    return equality_paths(task_of(plan(table.metadata_path, options=options), data.path))


def test_rule_01_a_delete_hits_only_files_with_a_lower_sequence_number(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    before, same, after = table.data(rows(1)), table.data(rows(1)), table.data(rows(1))
    delete = table.equality_delete(rows(1), ids=[1])
    table.commit(before)
    table.commit(same, delete)
    table.commit(after)
    for options in (None, UNPRUNED):
        assert deletes_of(table, before, options) == {delete.path}
        assert deletes_of(table, same, options) == set()
        assert deletes_of(table, after, options) == set()


def test_rule_03_a_compacted_file_with_an_older_number_is_still_hit(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit(table.data(rows(1)))
    delete = table.equality_delete(rows(1), ids=[1])
    table.commit(delete)
    compacted = table.data(rows(1))
    compacted.sequence_number = 1
    table.commit(compacted)
    assert deletes_of(table, compacted) == {delete.path}


def test_rule_04_a_partitioned_delete_reaches_its_own_partition_only(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=BY_NAME)
    mine, other = table.data(rows(1), partition={"name": "a"}), table.data(rows(1), partition={"name": "b"})
    delete = table.equality_delete(rows(1), ids=[1], partition={"name": "a"})
    table.commit(mine, other)
    table.commit(delete)
    assert deletes_of(table, mine) == {delete.path}
    assert deletes_of(table, other) == set()


@pytest.mark.parametrize("partitions", [[], [Partition("name", 2, "void")]])
def test_rule_04_a_delete_of_an_unpartitioned_spec_is_global(tmp_path: Path, partitions: list[Partition]) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=BY_NAME)
    one, two = table.data(rows(1), partition={"name": "a"}), table.data(rows(1), partition={"name": "b"})
    table.commit(one, two)
    spec_id = table.repartition(*partitions)
    three = table.data(rows(1), spec_id=spec_id)
    table.commit(three)
    delete = table.equality_delete(rows(1), ids=[1], spec_id=spec_id)
    table.commit(delete)
    assert all(deletes_of(table, file) == {delete.path} for file in (one, two, three))


def test_rule_04_a_delete_of_one_spec_never_hits_a_file_of_another(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=BY_NAME)
    old = table.data(rows(1), partition={"name": "a"})
    table.commit(old)
    table.repartition(Partition("name_again", 2))
    new = table.data(rows(1), partition={"name_again": "a"})
    table.commit(new)
    delete = table.equality_delete(rows(1), ids=[1], partition={"name_again": "a"})
    table.commit(delete)
    assert deletes_of(table, old) == set()
    assert deletes_of(table, new) == {delete.path}


def test_rule_05_the_null_partition_is_a_partition(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=BY_NAME)
    null, other = table.data(rows(1), partition={"name": None}), table.data(rows(1), partition={"name": "b"})
    delete = table.equality_delete(rows(1), ids=[1], partition={"name": None})
    table.commit(null, other)
    table.commit(delete)
    assert deletes_of(table, null) == {delete.path}
    assert deletes_of(table, other) == set()


def test_rule_05_nan_partitions_are_one_and_zeros_are_two(tmp_path: Path) -> None:
    columns = [Column(1, "id", "long"), Column(2, "f", "double")]
    table = TableBuilder(tmp_path, columns, partitions=[Partition("f", 2)])

    def data(value: float) -> BuiltFile:
        return table.data({"id": [1], "f": [value]}, partition={"f": value})

    nan, plus, minus = data(math.nan), data(0.0), data(-0.0)
    table.commit(nan, plus, minus)
    for_nan = table.equality_delete({"id": [1]}, ids=[1], partition={"f": -math.nan})
    for_zero = table.equality_delete({"id": [1]}, ids=[1], partition={"f": -0.0})
    table.commit(for_nan, for_zero)
    assert deletes_of(table, nan) == {for_nan.path}
    assert deletes_of(table, plus) == set()
    assert deletes_of(table, minus) == {for_zero.path}


def test_rule_05_an_unknown_transform_still_compares_by_value(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=[Partition("z", 1, "zorder", result="string")])
    mine, other = table.data(rows(1), partition={"z": "a"}), table.data(rows(1), partition={"z": "b"})
    delete = table.equality_delete(rows(1), ids=[1], partition={"z": "a"})
    table.commit(mine, other)
    table.commit(delete)
    assert deletes_of(table, mine) == {delete.path}
    assert deletes_of(table, other) == set()


def test_rule_08_a_delete_that_meets_no_live_file_is_not_validated(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=BY_NAME)
    data = table.data(rows(1), partition={"name": "a"})
    elsewhere = table.equality_delete(rows(1), ids=None, partition={"name": "z"})
    too_old = table.equality_delete(rows(1), ids=[99], partition={"name": "a"})
    table.commit(elsewhere, too_old)
    table.commit(data)
    for options in (None, UNPRUNED):
        planned = plan(table.metadata_path, options=options)
        assert equality_paths(planned.tasks[0]) == set()
        assert planned.metrics.delete_files_planned == 0


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (None, r"equality_ids \(135\) is missing or empty"),
        ([], r"equality_ids \(135\) is missing or empty"),
        ([99], "names field 99, which no schema of the table has"),
        ([1, 4], r"names field 4, .*inside a list or map"),
        ([3], r"names field 3, which is a list"),
    ],
)
def test_rule_11_illegal_equality_ids_are_malformed_even_where_bounds_exclude_the_file(
    tmp_path: Path, ids: list[int] | None, message: str
) -> None:
    kind = {"type": "list", "element-id": 4, "element": "int", "element-required": False}
    table = TableBuilder(tmp_path, [*COLUMNS, Column(3, "l", kind)])
    table.commit(table.data({"id": [1], "name": ["a"], "l": [[1]]}))
    delete = table.equality_delete({"id": [500]}, ids=ids, columns=[COLUMNS[0]])
    table.commit(delete)
    with pytest.raises(MalformedTableError, match=message) as caught:
        plan(table.metadata_path)
    assert delete.path in str(caught.value)


def test_rule_11_keys_inside_structs_are_legal(tmp_path: Path) -> None:
    columns = [COLUMNS[0], Column(5, "s", struct(Column(6, "a", "int")))]
    table = TableBuilder(tmp_path, columns)
    data = table.data({"id": [1], "s": [{"a": 1}]})
    table.commit(data)
    delete = table.equality_delete({"s": [{"a": 1}]}, ids=[6], columns=[columns[1]])
    table.commit(delete)
    (group,) = task_of(plan(table.metadata_path), data.path).equality_deletes
    assert group.key_ids == (6,)


def test_rule_14_a_dropped_key_column_is_found_in_an_older_schema(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data = table.data(rows(1))
    table.commit(data)
    delete = table.equality_delete(rows(1), ids=[1])
    table.commit(delete)
    table.evolve(COLUMNS[1])
    assert deletes_of(table, data) == {delete.path}


def test_rule_18_one_group_per_key_set_and_scope_whatever_the_order_of_ids(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data = table.data(rows(1))
    table.commit(data)
    deletes = [table.equality_delete(rows(1), ids=ids) for ids in ([1], [2, 1], [1, 2], [2])]
    table.commit(*deletes)
    again = table.equality_delete(rows(1), ids=[1])
    table.commit(again)
    groups = {g.key_ids: g for g in task_of(plan(table.metadata_path), data.path).equality_deletes}
    assert {k: len(g.files) for k, g in groups.items()} == {(1,): 2, (1, 2): 2, (2,): 1}
    assert [f.data_sequence_number for f in groups[1,].files] == [2, 3]
    assert groups[1,].max_sequence_number == 3


def test_rule_18_data_files_of_one_scope_share_the_group(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit(table.data(rows(1)), table.data(rows(1)))
    table.commit(table.equality_delete(rows(1), ids=[1]))
    first, second = plan(table.metadata_path).tasks
    assert first.equality_deletes is second.equality_deletes


def test_rule_20_bounds_leave_out_deletes_that_cannot_touch_a_file(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    low, high = table.data(rows(1, 9)), table.data(rows(100, 200))
    table.commit(low, high)
    hits_low, hits_high = table.equality_delete(rows(5), ids=[1]), table.equality_delete(rows(150), ids=[1])
    hits_none = table.equality_delete(rows(50), ids=[1])
    table.commit(hits_low, hits_high, hits_none)
    planned = plan(table.metadata_path)
    assert planned.metrics.delete_files_planned == 2
    assert planned.metrics.delete_files_pruned == 1
    assert hits_none.path not in deletes_of(table, low) | deletes_of(table, high)
    assert deletes_of(table, low, UNPRUNED) == {hits_low.path, hits_high.path, hits_none.path}


@pytest.mark.parametrize("many_deletes", [1, 5])
def test_rule_20_null_keys_and_null_rows_keep_a_delete(tmp_path: Path, many_deletes: int) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    with_null, without = table.data(rows(1, None)), table.data(rows(1, 2))
    table.commit(with_null, without)
    deletes = [table.equality_delete(rows(900 + i, None), ids=[1]) for i in range(many_deletes)]
    table.commit(*deletes)
    assert deletes_of(table, with_null) == {d.path for d in deletes}
    assert deletes_of(table, without) == set()


@pytest.mark.parametrize("side", ["data", "delete"])
@pytest.mark.parametrize(
    "change",
    [
        {"lower_bounds": None},
        {"upper_bounds": None},
        {"lower_bounds": [{"key": 1, "value": b"\0"}]},
        {"lower_bounds": [{"key": 1, "value": b"\xff" * 7 + b"\x7f"}]},
    ],
)
def test_rule_20_missing_undecodable_or_inverted_bounds_prune_nothing(
    tmp_path: Path, side: str, change: dict[str, Any]
) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data, delete = table.data(rows(1)), table.equality_delete(rows(500), ids=[1])
    (data if side == "data" else delete).record.update(change)
    table.commit(data)
    table.commit(delete)
    assert deletes_of(table, data) == {delete.path}


def test_rule_20_missing_null_counts_mean_that_there_may_be_nulls(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data, delete = table.data(rows(1)), table.equality_delete(rows(500), ids=[1])
    data.record["null_value_counts"] = delete.record["null_value_counts"] = None
    table.commit(data)
    table.commit(delete)
    assert deletes_of(table, data) == {delete.path}


def test_rule_20_uuids_compare_as_unsigned_bytes(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, [Column(1, "id", "uuid")])
    low, high = b"\x10" * 16, b"\xf0" * 16
    data = table.data({"id": [low, high]})
    table.commit(data)
    delete = table.equality_delete({"id": [b"\x80" * 16]}, ids=[1])
    outside = table.equality_delete({"id": [b"\xff" * 16]}, ids=[1])
    table.commit(delete, outside)
    assert deletes_of(table, data) == {delete.path}


@pytest.mark.parametrize("upper", [b"abcdefghijklmnop", b"abcdefgh", b"abc"])
def test_rule_20_an_upper_bound_cut_off_without_rounding_up_prunes_nothing(tmp_path: Path, upper: bytes) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data = table.data({"id": [1], "name": ["abcdefghijklmnopqrstuvwxyz"]})
    table.commit(data)
    delete = table.equality_delete({"name": ["abcdefghijklmnopqrstuvwxyz"]}, ids=[2], columns=[COLUMNS[1]])
    for file in (data, delete):
        file.record["upper_bounds"] = [{"key": 2, "value": upper}]
        file.record["lower_bounds"] = [{"key": 2, "value": upper}]
    table.commit(delete)
    assert deletes_of(table, data) == {delete.path}


def test_rule_12_float_bounds_prune_only_where_the_delete_has_no_nan(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, [Column(1, "f", "double")])
    data = table.data({"f": [1.0, math.nan]})
    table.commit(data)
    no_nan, nan, unknown = (table.equality_delete({"f": [500.0]}, ids=[1]) for _ in range(3))
    for file, count in ((no_nan, 0), (nan, 1)):
        file.record["nan_value_counts"] = [{"key": 1, "value": count}]
    unknown.record["nan_value_counts"] = None
    table.commit(no_nan, nan, unknown)
    assert deletes_of(table, data) == {nan.path, unknown.path}


def test_rule_13_bounds_from_before_a_promotion_are_compared_in_the_wider_type(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, [Column(1, "id", "int")])
    data = table.data({"id": [1, 5]})
    table.commit(data)
    table.evolve(Column(1, "id", "long"))
    inside, outside = table.equality_delete({"id": [3]}, ids=[1]), table.equality_delete({"id": [2**32 + 3]}, ids=[1])
    table.commit(inside, outside)
    assert deletes_of(table, data) == {inside.path}


def test_rule_08b_other_columns_of_a_delete_file_prune_nothing(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data = table.data({"id": [1], "name": ["live"]})
    table.commit(data)
    stale = table.equality_delete({"id": [1], "name": ["zzz"]}, ids=[1])
    table.commit(stale)
    assert deletes_of(table, data) == {stale.path}
    planned = plan(table.metadata_path, where="name = 'live'")
    assert equality_paths(planned.tasks[0]) == {stale.path}


def test_a_delete_file_committed_empty_and_never_created_is_left_out(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data = table.data(rows(1))
    table.commit(data)
    empty = table.equality_delete(rows(), ids=[1])
    table.commit(empty)
    assert deletes_of(table, data, UNPRUNED) == {empty.path}
    empty.local.unlink()
    assert deletes_of(table, data, UNPRUNED) == set()
