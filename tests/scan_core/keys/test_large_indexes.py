"""Indexes in files: shared between processes, and larger than memory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from nevermore.scan_core.deletes.filter import open_delete_filter
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.io.private_files import private_folder
from nevermore.scan_core.keys import equality_index
from nevermore.scan_core.keys.equality_index import (
    PartitionedIndex,
    build_index,
    build_index_streamed,
    build_partitioned,
    find_deleted,
    map_index,
    shared_index,
    threshold_of,
    write_index,
)
from nevermore.scan_core.keys.lookup import DeleteKeys, DenseIndex
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.statistics import ColumnStatistics
from tests.scan_core.deletes.files import context_for, equality_file, task_for
from tests.scan_core.keys.key_values import arrays, canonical, cases, delete_keys, oracle
from tests.support.kernels_used import kernels_used

MEGABYTE = 1024**2


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    DELETE_CACHE.clear()


@settings(max_examples=60, deadline=None)
@given(cases())
def test_rule_18_partitions_give_what_an_oracle_of_dictionaries_gives(case: Any) -> None:
    kinds, parts, probe, encode = case
    parts = sorted(parts, key=lambda p: p[0])
    numbers = tuple(sorted({n for n, _ in parts}))
    highest, keys = oracle(parts), delete_keys(kinds, parts)
    with kernels_used(are_on=False):
        indexes = [
            build_partitioned(iter(keys), kinds, numbers, 4),
            build_index_streamed(lambda: iter(keys), kinds, numbers, 100, MEGABYTE),
        ]
    for index in indexes:
        found = find_deleted(index, arrays(kinds, probe, encode=encode), threshold_of(index, 2))
        assert found.tolist() == [highest.get(canonical(r), 0) > 2 for r in probe]


def chunks(keys: np.ndarray, count: int) -> Iterator[DeleteKeys]:
    for number, part in enumerate(np.array_split(keys, count), start=1):
        yield DeleteKeys(number, (pa.array(part),))


def test_sparse_keys_beyond_the_limit_are_partitioned_and_hold_little_memory() -> None:
    keys = np.random.default_rng(1).integers(-(2**62), 2**62, 400_000)
    numbers = tuple(range(1, 9))
    index = build_index_streamed(lambda: chunks(keys, 8), [pa.int64()], numbers, 64 * len(keys), 8 * MEGABYTE)
    assert isinstance(index, PartitionedIndex)
    assert len(index.parts) > 2
    assert index.num_keys == len(keys)
    assert max(len(p.index.table.levels) for p in index.parts) <= 8
    assert index.num_bytes < 2 * MEGABYTE
    probe = np.concatenate([keys[::5], keys[::5] + 1])
    expected = np.isin(probe, keys)
    assert (find_deleted(index, [pa.array(probe)], 0) == expected).all()
    late = np.isin(probe, keys[len(keys) // 2 :])
    assert (find_deleted(index, [pa.array(probe)], threshold_of(index, 4)) == late).all()
    (summary,) = index.summaries
    for key in keys[:50].tolist():
        assert summary.meets(ColumnStatistics(key, key, 0, None, 1))
    assert not summary.meets(ColumnStatistics(2**62 + 2**61, 2**63 - 1, 0, None, 1))


def test_close_keys_beyond_the_limit_still_become_a_table_file_by_file() -> None:
    rng = np.random.default_rng(2)
    keys = rng.permutation(300_000)
    asked: list[int] = []

    def read() -> Iterator[DeleteKeys]:
        asked.append(1)
        return chunks(keys - 150_000, 20)

    index = build_index_streamed(read, [pa.int64()], tuple(range(1, 21)), 10**9, 4 * MEGABYTE)
    assert isinstance(index, DenseIndex)
    assert asked == [1]
    whole = build_index(list(chunks(keys - 150_000, 20)), [pa.int64()], 1 << 30)
    probe = pa.array(np.arange(-151_000, 151_000))
    for threshold in (0, 7):
        assert (find_deleted(index, [probe], threshold) == find_deleted(whole, [probe], threshold)).all()
    assert index.covers(-150_000, 149_999, 0)
    assert not index.covers(-150_001, 149_999, 0)
    assert not index.summaries[0].meets(ColumnStatistics(150_000, 160_000, 0, None, 1))


def test_little_memory_changes_no_result(tmp_path: Path) -> None:
    files = [
        equality_file(tmp_path / f"{i}.parquet", {"id": [i << 40, None], "name": [f"n{i}", None]}, [1, 2], number=i + 2)
        for i in range(5)
    ]
    keys = [pa.array([0, 1 << 40, None, None]), pa.array(["n0", "n2", None, "n0"])]
    for limit in (1, 1 << 40):
        DELETE_CACHE.clear()
        context = context_for(options=ScanOptions(memory_limit_bytes=limit))
        (deletes,) = open_delete_filter(task_for(*files, key_ids=(1, 2)), context, ScanMetrics()).equality
        assert isinstance(deletes.index, PartitionedIndex) == (limit == 1)
        assert deletes.keep(keys).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    "kinds", [[pa.int64()], [pa.string()], [pa.string(), pa.int64()], [pa.int32(), pa.string()]], ids=str
)
def test_mapped_index_answers_like_the_one_in_memory(tmp_path: Path, kinds: list[pa.DataType]) -> None:
    value = {pa.int64(): [5, 1 << 50, None], pa.string(): ["a", "b" * 100, None], pa.int32(): [7, 7, 7]}
    rows = list(zip(*(value[k] for k in kinds), strict=True))
    index = build_index(delete_keys(kinds, [(1, rows[:2]), (2, rows[1:])]), kinds, 1 << 30)
    tmp_path.chmod(0o700)
    with private_folder(tmp_path) as folder:
        write_index(index, folder, "i.index")
        with folder.read("i.index") as file:
            mapped = map_index(file)
    for _ in range(2):
        for threshold in (0, 1):
            expected = find_deleted(index, arrays(kinds, rows), threshold).tolist()
            assert find_deleted(mapped.index, arrays(kinds, rows), threshold).tolist() == expected
        mapped.release()
    assert [p.name for p in tmp_path.iterdir()] == ["i.index"]


@pytest.mark.parametrize("damage", [b"", b"NVRMIDX1", b"x" * 1000], ids=["empty", "short", "foreign"])
def test_damaged_index_file_is_built_anew(tmp_path: Path, damage: bytes) -> None:
    tmp_path.chmod(0o700)
    index = build_index([DeleteKeys(1, (pa.array([1]),))], [pa.int64()], 1 << 30)
    shared_index(str(tmp_path), "key", lambda: index)
    (path,) = tmp_path.glob("*.index")
    path.write_bytes(damage)
    built: list[int] = []
    again = shared_index(str(tmp_path), "key", lambda: built.append(1) or index)
    assert built == [1]
    assert find_deleted(again, [pa.array([1, 2])], 0).tolist() == [True, False]


_CHILD = """
import sys
import pyarrow as pa
from nevermore.scan_core.deletes.filter import open_delete_filter
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.io.private_files import private_folder
from pathlib import Path
from nevermore.scan_core.model.snapshot import FileFormat
from tests.scan_core.deletes.files import context_for, delete_file, task_for
file = delete_file(Path(sys.argv[1]), FileFormat.PARQUET, equality_ids=(1,))
metrics = ScanMetrics()
context = context_for(options=ScanOptions(index_folder=sys.argv[2]))
(deletes,) = open_delete_filter(task_for(file), context, metrics).equality
print(deletes.keep([pa.array([1, 2, 3])]).tolist(), metrics.delete_files_opened)
"""


def test_processes_of_one_host_build_an_index_once(tmp_path: Path) -> None:
    file = equality_file(tmp_path / "d.parquet", {"id": [1, 3]}, [1])
    folder = tmp_path / "indexes"
    command = [sys.executable, "-c", _CHILD, file.path, str(folder)]
    root = Path(__file__).parents[3]
    jobs = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = sorted(job.communicate(timeout=300)[0].strip() for job in jobs)
    assert answers == ["[False, True, False] 0", "[False, True, False] 0", "[False, True, False] 1"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(OptionError, match="writable by nobody else"):
        shared_index(str(tmp_path), "key", lambda: None)


def test_oldest_files_are_removed_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(equality_index, "MAX_FOLDER_BYTES", 1500)
    index = build_index([DeleteKeys(1, (pa.array([1]),))], [pa.int64()], 1 << 30)
    for number in range(5):
        shared_index(str(tmp_path), number, lambda: index)
        for age, path in enumerate(sorted(tmp_path.glob("*.index"), key=os.path.getmtime, reverse=True)):
            os.utime(path, (1_000_000 - age, 1_000_000 - age))
    assert 1 <= len(list(tmp_path.glob("*.index"))) < 5
