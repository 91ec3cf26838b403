import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from nevermore.scan_core.keys.equality_index import EqualityIndex, build_index, find_deleted, threshold_of
from nevermore.scan_core.keys.lookup import DeleteKeys, DenseIndex, HashedIndex
from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.native import compiled
from tests.scan_core.keys.key_values import arrays, canonical, cases, delete_keys, oracle
from tests.support.kernels_used import kernels_used

PLENTY = 1 << 30


def index_of(kinds: Any, *parts: Any, max_dense_bytes: Any = PLENTY) -> EqualityIndex:
    return build_index(delete_keys(kinds, parts), kinds, max_dense_bytes)


def deleted(index: Any, kinds: Any, rows: Any, data_sequence_number: Any = 0) -> list[bool]:
    return find_deleted(index, arrays(kinds, rows), threshold_of(index, data_sequence_number)).tolist()


@settings(max_examples=150, deadline=None)
@given(cases())
def test_rule_18_index_gives_what_an_oracle_of_dictionaries_gives(case: Any) -> None:
    kinds, parts, probe, encode = case
    highest = oracle(parts)
    for max_dense_bytes in (PLENTY, 0):
        index = build_index(delete_keys(kinds, parts), kinds, max_dense_bytes)
        for number in (0, 1, 3, 6):
            found = find_deleted(index, arrays(kinds, probe, encode=encode), threshold_of(index, number))
            assert found.tolist() == [highest.get(canonical(r), 0) > number for r in probe]


@settings(max_examples=100, deadline=None)
@given(cases())
def test_compiled_index_gives_what_numpy_gives(case: Any) -> None:
    compiled.load()
    kinds, parts, probe, encode = case
    keys, probes = delete_keys(kinds, parts), arrays(kinds, probe, encode=encode)
    with kernels_used(are_on=False):
        plain = build_index(keys, kinds, 0)
        expected = find_deleted(plain, probes, 2).tolist()
    for index in (plain, build_index(keys, kinds, 0)):
        for are_on in (False, True):
            with kernels_used(are_on=are_on):
                assert find_deleted(index, probes, 2).tolist() == expected


def test_rule_01_delete_spares_rows_of_its_own_sequence_number() -> None:
    index = index_of([pa.int64()], (5, [(1,)]))
    assert deleted(index, [pa.int64()], [(1,)], 4) == [True]
    assert deleted(index, [pa.int64()], [(1,)], 5) == [False]


def test_rule_18_highest_sequence_number_of_a_repeated_key_wins() -> None:
    index = index_of([pa.int64()], (3, [(1,)]), (7, [(1,), (2,)]), (5, [(1,), (3,)]))
    assert deleted(index, [pa.int64()], [(1,), (2,), (3,)], 5) == [True, True, False]


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float64(), pa.binary(16)], ids=str)
def test_rule_09_null_equals_null_and_nothing_else(kind: Any) -> None:
    zero = {pa.int64(): 0, pa.string(): "", pa.float64(): 0.0, pa.binary(16): bytes(16)}[kind]
    assert deleted(index_of([kind], (1, [(None,)])), [kind], [(None,), (zero,)]) == [True, False]
    assert deleted(index_of([kind], (1, [(zero,)])), [kind], [(None,), (zero,)]) == [False, True]


def test_rule_09_null_in_one_of_two_columns() -> None:
    kinds = [pa.int64(), pa.string()]
    index = index_of(kinds, (1, [(1, None), (None, "a"), (None, None)]))
    rows = [(1, None), (1, "a"), (None, "a"), (None, None), (0, None), (None, "")]
    assert deleted(index, kinds, rows) == [True, False, True, True, False, False]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_rule_12_nan_of_every_payload_is_one_key(kind: Any) -> None:
    width, codes = ("f", [0x7FC00000, 0xFFC00000, 0x7FC12345]), None
    bits = np.array(width[1], np.uint32).view(np.float32)
    if kind == pa.float64():
        codes = [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000012345]
        bits = np.array(codes, np.uint64).view(np.float64)
    index = build_index([DeleteKeys(1, (pa.array(bits[:1]),))], [kind], PLENTY)
    assert find_deleted(index, [pa.array(bits)], 0).tolist() == [True, True, True]


def test_rule_12_negative_zero_differs_from_zero() -> None:
    index = index_of([pa.float64()], (1, [(0.0,)]))
    assert deleted(index, [pa.float64()], [(0.0,), (-0.0,)]) == [True, False]
    assert struct.pack("d", -0.0) != struct.pack("d", 0.0)


@pytest.mark.parametrize("keys", [range(100), [i << 40 for i in range(100)]], ids=["dense", "sparse"])
def test_rule_13_int_rows_meet_long_keys(keys: Any) -> None:
    index = index_of([pa.int64()], (1, [(k,) for k in keys]))
    assert find_deleted(index, [pa.array([0, 7, 100], pa.int32())], 0)[0]


def test_rule_17_values_equal_in_their_first_bytes_differ() -> None:
    kinds = [pa.string()]
    long = "x" * 200
    index = index_of(kinds, (1, [(long + "a",), ("",)]))
    assert deleted(index, kinds, [(long + "a",), (long + "b",), (long,), ("",), ("\0",)]) == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_rule_17_decimal_with_more_digits_than_its_type_is_refused() -> None:
    raw = pa.array(np.array([5, 1], np.int64)).buffers()[1]
    broken = pa.Array.from_buffers(pa.decimal128(9, 2), 1, [None, raw])
    index = index_of([pa.decimal128(9, 2)], (1, []))
    with pytest.raises(MalformedTableError, match="more digits"):
        find_deleted(index, [broken], 0)


def test_ladder_is_dense_for_close_integers_and_hashed_for_distant_ones() -> None:
    assert isinstance(index_of([pa.int64()], (1, [(i,) for i in range(50)])), DenseIndex)
    assert isinstance(index_of([pa.date32()], (1, [(i,) for i in range(50)])), DenseIndex)
    assert isinstance(index_of([pa.int64()], (1, [(-(2**63),), (2**63 - 1,)])), HashedIndex)
    assert isinstance(index_of([pa.string()], (1, [("a",)])), HashedIndex)


@pytest.mark.parametrize("lower", [-(2**63), 2**63 - 3, -1])
def test_dense_table_at_the_ends_of_the_integers(lower: Any) -> None:
    kinds = [pa.int64()]
    keys = [(lower,), (lower + 2,)]
    index = index_of(kinds, (1, keys))
    probes = [(lower,), (lower + 1,), (lower + 2,), (-(2**63),), (2**63 - 1,), (0,)]
    assert deleted(index, kinds, probes) == [p in keys for p in probes]


def test_more_than_255_sequence_numbers() -> None:
    kinds = [pa.int64()]
    for spread in (1, 1 << 40):
        index = index_of(kinds, *((n, [(n * spread,)]) for n in range(1, 400)))
        assert deleted(index, kinds, [(n * spread,) for n in range(1, 400)], 300) == [n > 300 for n in range(1, 400)]


def test_sliced_and_dictionary_arrays_answer_like_plain_ones() -> None:
    kinds = [pa.string(), pa.int64()]
    rows = [("a", 1), (None, 2), ("b", None), ("a", 2)] * 5
    index = index_of(kinds, (1, [("a", 2), (None, 2)]))
    expected = deleted(index, kinds, rows)
    sliced = [c.slice(3, 14) for c in arrays(kinds, rows)]
    encoded = [c.slice(3, 14) for c in arrays(kinds, rows, encode=True)]
    assert find_deleted(index, sliced, 0).tolist() == expected[3:17]
    assert find_deleted(index, encoded, 0).tolist() == expected[3:17]


def test_single_dictionary_larger_than_its_rows() -> None:
    kinds = [pa.string()]
    index = index_of(kinds, (1, [("k7",), (None,)]))
    column = pa.array([f"k{i}" for i in range(50)] + [None]).dictionary_encode()
    assert find_deleted(index, [column.slice(6, 3)], 0).tolist() == [False, True, False]
    assert find_deleted(index, [column.slice(50, 1)], 0).tolist() == [True]
    assert find_deleted(index, [column.slice(0, 51)], 0).tolist() == [i in {7, 50} for i in range(51)]


def test_index_without_keys_deletes_nothing() -> None:
    for kinds in ([pa.int64()], [pa.string()], [pa.int64(), pa.string()]):
        index = index_of(kinds, (1, []))
        assert deleted(index, kinds, [(None,) * len(kinds)]) == [False]


def test_many_keys_with_repeats_match_a_set() -> None:
    rng = np.random.default_rng(3)
    keys = rng.integers(-(2**62), 2**62, 30_000)
    keys = np.concatenate([keys, keys[:7_000]])
    index = build_index([DeleteKeys(1, (pa.array(keys),))], [pa.int64()], PLENTY)
    assert index.num_keys == 30_000
    probe = np.concatenate([keys[::3], rng.integers(-(2**62), 2**62, 50_000)])
    assert find_deleted(index, [pa.array(probe)], 0).tolist() == np.isin(probe, keys).tolist()


def test_sparse_integer_keys_take_at_most_40_bytes_each() -> None:
    keys = np.random.default_rng(4).integers(-(2**62), 2**62, 100_000)
    index = build_index([DeleteKeys(1, (pa.array(keys),))], [pa.int64()], PLENTY)
    assert isinstance(index, HashedIndex)
    assert index.num_bytes <= 40 * len(keys)


def test_keys_that_collide_without_a_secret_seed_are_still_found_fast() -> None:
    """Differences in the top bits of two words cancel in a sum of products; per-position secrets prevent it."""
    top = 1 << 63
    left = np.arange(20_000, dtype=np.uint64)
    pairs = [np.concatenate([left, left ^ top]), np.concatenate([left, left ^ top])]
    columns = tuple(pa.array(p.view(np.int64)) for p in pairs)
    index = build_index([DeleteKeys(1, columns)], [pa.int64(), pa.int64()], PLENTY)
    assert isinstance(index, HashedIndex)
    assert index.num_keys == 40_000
    assert len(index.table.levels) <= 8


def test_nested_key_array_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="list"):
        index_of([pa.string()], (1, [("a",)])).deleted([pa.array([[1]])], 0)


@pytest.mark.each(21)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
@pytest.mark.parametrize("shape", ["begins alike", "ends alike", "short", "equal lengths"])
@pytest.mark.parametrize("columns", [1, 2])
def test_keys_with_equal_ends_are_told_apart(kind: pa.DataType, shape: str, columns: int) -> None:
    rng = np.random.default_rng(5)
    made = {
        "begins alike": lambda n: f"prefix of all {n}",
        "ends alike": lambda n: f"{n:x} suffix of all",
        "short": lambda n: f"{n:x}"[:7],
        "equal lengths": lambda n: f"{n:016x}",
    }[shape]
    numbers = rng.integers(0, 1 << 24, 20_000).tolist()
    keys = [None, "", *map(made, numbers[:500])]
    probes = [*map(made, numbers), None, "", "x"] * 2
    kinds = [pa.int64()] * (columns - 1) + [kind]

    def arrays_of(values: list[str | None]) -> list[pa.Array]:
        return [pa.array([len(v or "") for v in values])] * (columns - 1) + [pa.array(values, pa.string()).cast(kind)]

    index = build_index([DeleteKeys(1, tuple(arrays_of(keys)))], kinds, PLENTY)
    assert isinstance(index, HashedIndex)
    expected = [probe in set(keys) for probe in probes]
    compiled.load()
    for are_on in (True, False):
        with kernels_used(are_on=are_on):
            assert find_deleted(index, arrays_of(probes), 0).tolist() == expected
