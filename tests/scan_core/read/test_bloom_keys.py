"""Key sets against Bloom filters of files: the same hashes as value by value, and never a key lost."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from nevermore.scan_core.files.parquet.bloom import BloomTest, plain_encoded
from nevermore.scan_core.keys.hash import xxhash64_column
from nevermore.scan_core.read import key_filter
from nevermore.scan_core.read.key_filter import filter_of, may_hold_any


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=20))
def test_columns_hash_as_single_values(values: list[bytes]) -> None:
    assert xxhash64_column(pa.array(values, pa.binary())).tolist() == [xxh64_intdigest(v) for v in values]
    assert xxhash64_column(pa.array([b"x", *values], pa.large_binary())[1:]).tolist() == [
        xxh64_intdigest(v) for v in values
    ]


def test_numbers_hash_as_they_are_stored() -> None:
    for kind, physical in ((pa.int64(), 2), (pa.int32(), 1)):
        array = pa.array([-1, 0, 7, 2**31 - 1], kind)
        encoded = [plain_encoded(v, kind, physical) for v in array.to_pylist()]
        assert xxhash64_column(array).tolist() == [xxh64_intdigest(e[0]) for e in encoded if e is not None]


@pytest.mark.parametrize("first_intersected", [1, 10**9])
def test_filters_of_equal_size_exclude_what_single_keys_exclude(
    first_intersected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_filter, "INTERSECTED_FROM", first_intersected)
    stored = np.arange(0, 1_000, dtype=np.int64)
    file_filter = filter_of(xxhash64_column(pa.array(stored)), 256)
    test = BloomTest(file_filter, pa.int64(), 2)
    digest = f"test {first_intersected}"
    assert may_hold_any(test, pa.array([999, 5_000_000]), digest + "a") is True
    absent = pa.array([k for k in range(10**6, 10**6 + 2_000) if test(k)][:50])
    assert may_hold_any(test, absent, digest + "b") is False
    assert may_hold_any(test, pa.array([1.5]), digest + "c") is None
