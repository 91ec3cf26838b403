from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scan_core.index import compiled
from scan_core.index.hash_table import build_hash_table, sort_hashes
from scan_core.index.key_columns import concat, key_column
from scan_core.index.key_hash import hash_rows, hash_seed
from scan_core.index.key_match import KeyRows, same_keys
from tests.scan_core.deletes.key_values import arrays, cases


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return compiled.load()


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(0, 2**63))
def test_compiled_hashes_and_comparisons_equal_those_of_numpy(
    kernels: ModuleType, case: tuple[list[pa.DataType], list[tuple[int, list[tuple]]], list[tuple], bool], number: int
) -> None:
    kinds, _, rows, encode = case
    columns = [key_column(a) for a in arrays(kinds, rows, encode=encode)]
    seed = hash_seed(number)
    hashes = hash_rows(columns, seed)
    assert hash_rows(columns, seed, kernels).tolist() == hashes.tolist()
    left, right = (KeyRows(columns, r.ravel()) for r in np.indices((len(rows), len(rows))))
    same = same_keys(left, right)
    assert same_keys(left, right, kernels).tolist() == same.tolist()
    assert ((hashes[left.rows] == hashes[right.rows]) == same).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**64 - 1, 2**63]), max_size=200))
def test_compiled_tables_equal_those_of_numpy_and_find_what_is_in_them(kernels: ModuleType, values: list[int]) -> None:
    hashes = np.array(values, np.uint64)
    ordered, rows = sort_hashes(hashes)
    assert [a.tolist() for a in sort_hashes(hashes, kernels)] == [ordered.tolist(), rows.tolist()]
    distinct = np.unique(ordered)
    table, same = build_hash_table(distinct), build_hash_table(distinct, kernels)
    assert (table.starts.tolist(), table.filter.tolist()) == (same.starts.tolist(), same.filter.tolist())
    probes = np.concatenate([hashes, hashes + np.uint64(1), np.array([0, 2**64 - 1], np.uint64)])
    found = [a.tolist() for a in table.find(probes)]
    assert [a.tolist() for a in table.find(probes, kernels)] == found
    assert found[0] == np.flatnonzero(np.isin(probes, distinct)).tolist()
    assert distinct[found[1]].tolist() == probes[found[0]].tolist()


@pytest.mark.parametrize("count", [5_000, 300_000])
def test_many_hashes_are_sorted_stably(kernels: ModuleType, count: int) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64, count, dtype=np.uint64)
    hashes[::7] = hashes[0]
    expected = np.argsort(hashes, kind="stable")
    for chosen in (None, kernels):
        ordered, rows = sort_hashes(hashes, chosen)
        assert (rows == expected).all()
        assert (ordered == hashes[expected]).all()


def test_two_hot_keys_in_one_group_are_sorted_by_other_means(kernels: ModuleType) -> None:
    hashes = np.tile(np.array([2**40 + 1, 2**40], np.uint64), 100_000)
    assert not kernels.sort_hashes(hashes, np.empty_like(hashes), np.empty(len(hashes), np.uint32))
    ordered, rows = sort_hashes(hashes, kernels)
    assert (ordered[:100_000] == 2**40).all()
    assert (np.diff(rows[:100_000].astype(np.int64)) == 2).all()


def test_null_strings_with_bytes_of_their_own_equal_plain_nulls() -> None:
    plain = pa.array(["abc", "xyz", "abc"])
    validity = pa.array([True, False, True]).buffers()[1]
    odd = pa.Array.from_buffers(pa.string(), 3, [validity, *plain.buffers()[1:]])
    columns = [key_column(odd), key_column(pa.array(["abc", None, "abc"]))]
    seed = hash_seed(1)
    assert hash_rows(columns[:1], seed).tolist() == hash_rows(columns[1:], seed).tolist()
    rows = np.arange(3)
    assert same_keys(KeyRows(columns[:1], rows), KeyRows(columns[1:], rows)).all()
    assert concat(columns).num_rows == 6


def test_kernels_are_loaded_only_when_numpy_has_spent_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    state = compiled._State()
    monkeypatch.setattr(compiled, "_STATE", state)
    assert compiled.kernels_if_worthwhile(use_numba=True) is None
    state.numpy_seconds = 10.0
    assert compiled.kernels_if_worthwhile(use_numba=False) is None
    assert compiled.kernels_if_worthwhile(use_numba=True) is not None


def test_time_of_numpy_is_counted_and_that_of_kernels_is_not(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = compiled._State()
    monkeypatch.setattr(compiled, "_STATE", state)
    with compiled.measured(kernels):
        np.arange(100_000).sum()
    assert state.numpy_seconds == 0.0
    with compiled.measured(None):
        np.sort(np.arange(500_000)[::-1])
    assert state.numpy_seconds > 0.0
