"""Key sets against Bloom filters of files: never a key lost."""

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest

from nevermore.scan_core.files.parquet.bloom import BloomFilter, BloomTest, block_bits
from nevermore.scan_core.read.key_filter import MAX_HASHED, may_hold_any


def filter_of(values: range, num_blocks: int) -> BloomFilter:
    blocks = np.zeros((num_blocks, 8), np.uint32)
    hashes = np.array([xxh64_intdigest(v.to_bytes(8, "little", signed=True)) for v in values], np.uint64)
    np.bitwise_or.at(blocks, *block_bits(hashes, num_blocks))
    return BloomFilter(blocks)


def test_a_filter_excludes_what_single_keys_exclude() -> None:
    test = BloomTest(filter_of(range(1_000), 256), pa.int64(), 2)
    assert may_hold_any(test, pa.array([999, 5_000_000]), "a") is True
    absent = pa.array([k for k in range(10**6, 10**6 + 2_000) if test(k)][:50])
    assert may_hold_any(test, absent, "b") is False
    assert may_hold_any(test, pa.array([1.5]), "c") is None
    assert may_hold_any(test, absent.cast(pa.int32()), "d") is False
    assert may_hold_any(test, pa.array(range(10**6, 10**6 + MAX_HASHED + 1)), "e") is True
    assert may_hold_any(test, pa.array([2**40], pa.timestamp("us")), "f") is None


def test_keys_are_hashed_as_the_file_encodes_them() -> None:
    stamps = BloomTest(filter_of(range(1_000), 256), pa.timestamp("us"), 2)
    assert may_hold_any(stamps, pa.array([7], pa.timestamp("us")), "g") is True
    assert may_hold_any(stamps, pa.array([7], pa.timestamp("ns")), "h") is None
    narrow = BloomTest(stamps.filter_, pa.int32(), 1)
    assert may_hold_any(narrow, pa.array([2**40]), "i") is False, "no value of the file is as large"
