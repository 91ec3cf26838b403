from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.scan_core.deletes.filter import open_delete_filter
from nevermore.scan_core.deletes.indexes import DELETE_CACHE, Cover, needed_keys
from nevermore.scan_core.keys.equality_index import build_index, find_deleted
from nevermore.scan_core.keys.lookup import DeleteKeys
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, FileScanTask
from tests.scan_core.deletes.files import context_for, data_file, equality_file
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

KINDS = [pa.int64(), pa.string()]


def keys(number: int, *rows: tuple[Any, Any]) -> DeleteKeys:
    return DeleteKeys(number, tuple(pa.array([r[i] for r in rows], k) for i, k in enumerate(KINDS)))


def cover(key_id: int, *parts: tuple[int, list[Any]]) -> Cover:
    kind = KINDS[key_id - 1]
    return Cover((key_id - 1,), build_index([DeleteKeys(n, (pa.array(v, kind),)) for n, v in parts], [kind], 1 << 30))


def left(wide: Sequence[DeleteKeys], *covers: Cover) -> list[tuple[int, list[Any]]]:
    found = [needed_keys(part, covers, ScanMetrics()) for part in wide]
    return [(k.sequence_number, list(zip(*(c.to_pylist() for c in k.columns), strict=True))) for k in found]


def test_rule_08c_only_a_cover_that_is_not_older_drops_a_key() -> None:
    wide = [keys(3, (1, "a"), (2, "b")), keys(5, (1, "c")), keys(6, (1, "d"), (None, "e"))]
    assert left(wide, cover(1, (5, [1]))) == [(3, [(2, "b")]), (5, []), (6, [(1, "d"), (None, "e")])]
    assert left(wide, cover(1, (6, [None]), (2, [1, 2])), cover(2, (9, ["b"]))) == [
        (3, [(1, "a")]),
        (5, [(1, "c")]),
        (6, [(1, "d")]),
    ]


rows = st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from("ab"))
wide_files = st.lists(st.tuples(st.integers(1, 6), st.lists(rows, max_size=4)), min_size=1, max_size=3)
narrow_files = st.lists(st.tuples(st.integers(1, 6), st.lists(st.none() | st.integers(0, 2), max_size=2)), max_size=3)


@settings(max_examples=100, deadline=None)
@given(wide_files, narrow_files, st.lists(rows, max_size=20), st.integers(0, 6))
def test_rule_08c_simplified_sets_together_remove_the_same_rows(
    wide: list[tuple[int, list[tuple[Any, Any]]]],
    narrow: list[tuple[int, list[Any]]],
    probe: list[tuple[Any, Any]],
    number: int,
) -> None:
    loaded = [keys(n, *rows) for n, rows in wide]
    narrow_cover = cover(1, *narrow)
    columns = [pa.array([r[i] for r in probe], k) for i, k in enumerate(KINDS)]

    def dead(parts: Sequence[DeleteKeys]) -> list[bool]:
        index = build_index(parts, KINDS, 1 << 30)
        by_wide = find_deleted(index, columns, sum(n <= number for n in index.sequence_numbers))
        numbers = narrow_cover.index.sequence_numbers
        return (by_wide | find_deleted(narrow_cover.index, columns[:1], sum(n <= number for n in numbers))).tolist()

    assert dead([needed_keys(part, [narrow_cover], ScanMetrics()) for part in loaded]) == dead(loaded)


def test_covered_keys_are_dropped_while_loading_and_each_file_is_opened_once(tmp_path: Path) -> None:
    DELETE_CACHE.clear()
    narrow = equality_file(tmp_path / "n.parquet", {"id": [1, 2]}, [1], number=5)
    wide = equality_file(tmp_path / "w.parquet", {"id": [1, 3], "name": ["a", "b"]}, [1, 2], number=4)
    by_id = EqualityDeleteGroup((1,), (narrow,))
    by_both = EqualityDeleteGroup((1, 2), (wide,), covered_by=(by_id,))
    for prune, expected in ((True, 1), (False, 2)):
        DELETE_CACHE.clear()
        metrics = ScanMetrics()
        context = context_for(options=ScanOptions.of(prune_deletes=prune))
        for groups in ((by_both,), (by_id, by_both)):
            task = FileScanTask(data_file(), 0, 1000, groups)
            filters = open_delete_filter(task, context, metrics).equality
            assert filters[-1].index.num_keys == expected
        assert metrics.delete_files_opened == 2


@pytest.mark.parametrize("prune", [True, False])
def test_rule_08c_cover_must_reach_as_far_and_be_no_older(tmp_path: Path, prune: bool) -> None:  # noqa: FBT001
    columns = [Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "p", "int")]
    table = TableBuilder(tmp_path / "t", columns, partitions=[Partition("p", 3)])
    partitioned = table.spec_id
    rows = {"id": [1, 2, 3, 4], "name": ["a", "b", "c", "d"]}
    table.commit(*(table.data(rows | {"p": [p] * 4}, partition={"p": p}) for p in (0, 1)))
    everywhere = table.repartition()
    table.commit(
        table.equality_delete({"id": [1, 2], "name": ["a", "b"]}, ids=[1, 2], spec_id=everywhere),
        table.equality_delete({"id": [1]}, ids=[1], spec_id=partitioned, partition={"p": 0}),
        table.equality_delete({"id": [3], "name": ["c"]}, ids=[1, 2], spec_id=partitioned, partition={"p": 1}),
    )
    table.commit(table.equality_delete({"id": [3]}, ids=[1], spec_id=everywhere))
    scan = scan_core.open_table(table.metadata_path).scan().with_options(ScanOptions.of(prune_deletes=prune))
    found = sorted(scan.select("id", "p").to_table().to_pylist(), key=str)
    assert found == [{"id": 4, "p": 0}, {"id": 4, "p": 1}]
    covers = {
        (g.key_ids, g.files[0].partition): [c.key_ids for c in g.covered_by]
        for task in scan.plan().tasks
        for g in task.equality_deletes
        if len(g.key_ids) == 2
    }
    assert any(covers.values()) == prune
