"""Many keys against the Bloom filter of a column chunk: as a filter of the same parameters, and hash by hash.

Two filters of one size can be intersected: a key in both sets its eight bits in one block of each. That is quick and
rough; where it leaves doubt and the keys are not too many, each key's own bits are looked for. The hash is xxHash64 with
seed 0, as the file's own.
"""

import os

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from scan_core.bounded_cache import BoundedCache
from scan_core.read.bloom_filter import BloomFilter, BloomTest, block_bits
from scan_core.runtime_filter.xxhash_columns import xxhash64_column

Hashes = npt.NDArray[np.uint64]

INTERSECTED_FROM = 50_000
"""Keys from which the intersection of filters is asked first."""
MOST_HASHED = 2_000_000
"""More keys are not looked for one by one."""
_BLOCK = 16_384
_INT32, _INT64, _BYTE_ARRAY, _FIXED = 1, 2, 6, 7
_MOST_BYTES = 64 * 1024**2
"""Of the hashes that are remembered, and as many of filters: those of a few joins."""


def may_hold_any(test: BloomTest, keys: pa.Array, digest: str) -> bool | None:
    """False if certainly none of the keys is in the column chunk; None if the keys' encoding in the file is unknown.

    Args:
        test: of the column chunk.
        keys: in the table's type.
        digest: what tells the key set from others, for what is remembered of it.
    """
    hashes = _hashes(keys, test, digest)
    if hashes is None:
        return None
    if len(hashes) >= INTERSECTED_FROM and not _intersect(test.filter_, _filter_like(test, hashes, keys, digest)):
        return False
    if len(hashes) > MOST_HASHED:
        return True
    return _any_in(test.filter_, hashes)


def filter_of(hashes: Hashes, num_blocks: int) -> BloomFilter:
    """A Bloom filter of these hashes with the parameters of another one."""
    blocks = np.zeros((num_blocks, 8), np.uint32)
    for begin in range(0, len(hashes), _BLOCK):
        places, masks = block_bits(hashes[begin : begin + _BLOCK], num_blocks)
        np.bitwise_or.at(blocks, places, masks)
    return BloomFilter(blocks)


def _intersect(one: BloomFilter, other: BloomFilter) -> bool:
    return bool(((one.blocks & other.blocks) != 0).all(axis=1).any())


def _any_in(filter_: BloomFilter, hashes: Hashes) -> bool:
    for begin in range(0, len(hashes), _BLOCK):
        places, masks = block_bits(hashes[begin : begin + _BLOCK], len(filter_.blocks))
        if bool(((filter_.blocks[places] & masks) == masks).all(axis=1).any()):
            return True
    return False


def _encoded_hashes(keys: pa.Array, physical_type: int, file_type: pa.DataType) -> Hashes | None:
    """Hashes of the keys as the file would store them; None if that is not known for certain."""
    kind = keys.type
    integer_like = pt.is_signed_integer(kind) or pt.is_date32(kind)
    micros = (pt.is_timestamp(kind) or pt.is_time64(kind)) and kind.unit == getattr(file_type, "unit", None) == "us"
    if physical_type in {_INT32, _INT64} and (integer_like or micros):
        wide = keys.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
        if physical_type == _INT32:
            numbers = np.asarray(wide)
            fits = (numbers >= -(2**31)) & (numbers < 2**31)
            wide = pa.array(numbers[fits].astype(np.int32))
        return xxhash64_column(wide)
    if physical_type == _BYTE_ARRAY and (pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind)):
        return xxhash64_column(keys)
    if physical_type == _FIXED and pt.is_fixed_size_binary(kind) and not pt.is_decimal(kind):
        return xxhash64_column(keys)
    return None


def _hashes(keys: pa.Array, test: BloomTest, digest: str) -> Hashes | None:
    """Of a key set as the file would store it, computed once."""
    key = digest, str(keys.type), test.physical_type, str(test.file_type)
    return _HASHES.get(key, lambda: _encoded_hashes(keys, test.physical_type, test.file_type), _MOST_BYTES)


def _filter_like(test: BloomTest, hashes: Hashes, keys: pa.Array, digest: str) -> BloomFilter:
    """The keys as a filter of the size of another, made once per size."""
    num_blocks = len(test.filter_.blocks)
    key = digest, str(keys.type), test.physical_type, str(test.file_type), num_blocks
    return _FILTERS.get(key, lambda: filter_of(hashes, num_blocks), _MOST_BYTES)


_HASHES: BoundedCache[tuple[str, str, int, str], Hashes | None] = BoundedCache(lambda h: 0 if h is None else h.nbytes)
_FILTERS: BoundedCache[tuple[str, str, int, str, int], BloomFilter] = BoundedCache(lambda f: f.blocks.nbytes)
os.register_at_fork(after_in_child=_HASHES.forget_threads)
os.register_at_fork(after_in_child=_FILTERS.forget_threads)
