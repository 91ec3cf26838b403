import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore.scan_core.keys.columns import KeyRows, concat, hash_rows, hash_seed, key_column, same_keys
from nevermore.scan_core.keys.lookup import build_hash_table
from nevermore.scan_core.native import compiled, machine_code
from nevermore.scan_core.native.machine_code import load_kernels
from tests.scan_core.keys.key_values import arrays, cases
from tests.support.kernels_used import kernels_used


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    compiled.load()


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(0, 2**63))
def test_compiled_hashes_and_comparisons_equal_those_of_numpy(
    case: tuple[list[pa.DataType], list[tuple[int, list[tuple]]], list[tuple], bool], number: int
) -> None:
    kinds, _, rows, encode = case
    columns = [key_column(a) for a in arrays(kinds, rows, encode=encode)]
    seed = hash_seed(number)
    left, right = (KeyRows(columns, r.ravel()) for r in np.indices((len(rows), len(rows))))
    found = []
    for are_on in (False, True):
        with kernels_used(are_on=are_on):
            found.append((hash_rows(columns, seed), same_keys(left, right)))
    (hashes, same), (compiled_hashes, compiled_same) = found
    assert compiled_hashes.tolist() == hashes.tolist()
    assert compiled_same.tolist() == same.tolist()
    assert ((hashes[left.rows] == hashes[right.rows]) == same).all()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**64 - 1, 2**63]), max_size=200),
    st.booleans(),
    st.booleans(),
)
def test_tables_find_what_is_in_them_however_they_are_built_and_searched(
    values: list[int],
    is_built_by_kernels: bool,  # noqa: FBT001
    is_searched_by_kernels: bool,  # noqa: FBT001
) -> None:
    hashes = np.array(values, np.uint64)
    probes = np.concatenate([hashes, hashes + np.uint64(1), np.array([0, 2**64 - 1], np.uint64)])
    expected = np.flatnonzero(np.isin(probes, hashes)).tolist()
    with kernels_used(are_on=is_built_by_kernels):
        built = build_hash_table(hashes.copy())
    table = built.table
    assert (len(table.levels) > 0) == is_built_by_kernels
    assert sorted(table.hashes.tolist()) == np.unique(hashes).tolist()
    assert hashes[built.rows].tolist() == table.hashes.tolist()
    last = {value: row for row, value in enumerate(values)}
    assert built.rows.tolist() == [last[value] for value in table.hashes.tolist()]
    one, other = built.repeats
    assert hashes[one].tolist() == hashes[other].tolist()
    assert len(one) == len(values) - len(last)
    with kernels_used(are_on=is_searched_by_kernels):
        rows, entries = table.find(probes)
    assert sorted(rows.tolist()) == expected
    assert table.hashes[entries].tolist() == probes[rows].tolist()


@pytest.mark.parametrize(("are_on", "max_bytes"), [(False, 8), (True, 14)], ids=["NumPy", "compiled"])
def test_a_table_of_many_hashes_takes_few_levels_and_few_bytes(*, are_on: bool, max_bytes: int) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64, 300_000, dtype=np.uint64)
    hashes[::7] = hashes[0]
    with kernels_used(are_on=are_on):
        table = build_hash_table(hashes.copy()).table
    assert table.num_entries == len(np.unique(hashes))
    assert len(table.levels) <= 8
    assert table.num_bytes <= max_bytes * table.num_entries
    probes = np.concatenate([hashes, ~hashes])
    found = np.zeros(len(probes), np.bool_)
    found[table.find(probes)[0]] = True
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
    monkeypatch.setattr(machine_code, "_STATE", machine_code._State())
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "is_compiled", lambda: False)
        patch.setattr(machine_code, "load_kernels", lambda _unit: pytest.fail("compiles"))
        assert compiled.stored_kernels() is None
        assert compiled.is_missed()
    load_kernels()
    with kernels_used(are_on=False):
        assert compiled.stored_kernels() is None
    assert compiled.stored_kernels() is not None
    assert not compiled.is_missed()
