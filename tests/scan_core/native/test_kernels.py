import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore.scan_core.keys.columns import concat, key_column
from nevermore.scan_core.keys.hash import KeyRows, hash_rows, hash_seed, same_keys
from nevermore.scan_core.keys.table import build_hash_table
from nevermore.scan_core.native import compiled
from nevermore.scan_core.native.machine_code import Kernels, load_kernels
from tests.scan_core.keys.key_values import arrays, cases
from tests.support.kernels_used import kernels_used


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return compiled.load()


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(0, 2**63))
def test_compiled_hashes_and_comparisons_equal_those_of_numpy(
    kernels: Kernels, case: tuple[list[pa.DataType], list[tuple[int, list[tuple]]], list[tuple], bool], number: int
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
def test_tables_find_what_is_in_them_however_they_are_built_and_searched(kernels: Kernels, values: list[int]) -> None:
    hashes = np.array(values, np.uint64)
    probes = np.concatenate([hashes, hashes + np.uint64(1), np.array([0, 2**64 - 1], np.uint64)])
    expected = np.flatnonzero(np.isin(probes, hashes)).tolist()
    for built in (build_hash_table(hashes.copy()), build_hash_table(hashes.copy(), kernels)):
        table = built.table
        assert sorted(table.hashes.tolist()) == np.unique(hashes).tolist()
        assert hashes[built.rows].tolist() == table.hashes.tolist()
        last = {value: row for row, value in enumerate(values)}
        assert built.rows.tolist() == [last[value] for value in table.hashes.tolist()]
        one, other = built.repeats
        assert hashes[one].tolist() == hashes[other].tolist()
        assert len(one) == len(values) - len(last)
        for searched in (table.find(probes), table.find(probes, kernels)):
            assert sorted(searched[0].tolist()) == expected
            assert table.hashes[searched[1]].tolist() == probes[searched[0]].tolist()


@pytest.mark.parametrize("build", ["NumPy", "compiled"])
def test_a_table_of_many_hashes_takes_few_levels_and_few_bytes(kernels: Kernels, build: str) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64, 300_000, dtype=np.uint64)
    hashes[::7] = hashes[0]
    table = build_hash_table(hashes.copy(), kernels if build == "compiled" else None).table
    assert table.num_entries == len(np.unique(hashes))
    assert len(table.levels) <= 8
    assert table.num_bytes <= 14 * table.num_entries
    probes = np.concatenate([hashes, ~hashes])
    found = np.zeros((2, len(probes)), np.bool_)
    found[0, table.find(probes)[0]] = True
    found[1, table.find(probes, kernels)[0]] = True
    assert (found == np.isin(probes, hashes)).all()


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


def test_scans_use_kernels_that_are_compiled_and_never_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_STATE", compiled._State())
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "is_compiled", lambda: False)
        patch.setattr(compiled, "load_kernels", lambda: pytest.fail("compiles"))
        assert compiled.stored_kernels() is None
        assert compiled.is_missed()
    load_kernels()
    with kernels_used(are_on=False):
        assert compiled.stored_kernels() is None
    assert compiled.stored_kernels() is not None
    assert not compiled.is_missed()
