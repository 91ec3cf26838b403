"""The index of one equality-delete group: key -> rank of the highest sequence number that deletes it (rule 18).

A data file's own sequence number becomes a threshold on ranks, so one index answers for every file of its scope. The
ladder of forms: a table over close integers, else hashes, else, where memory does not suffice, hashes in partitions.
What may be skipped by bounds is told by `key_summary.py`.
"""

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from scan_core.deletes.delete_keys import DeleteKeys, rank_of
from scan_core.deletes.dense_index import DenseIndex, build_dense, build_dense_streamed
from scan_core.deletes.hashed_index import HashedIndex, build_hashed
from scan_core.deletes.partitioned_index import PartitionedIndex, build_partitioned
from scan_core.index.key_columns import Flags, is_integer_like
from scan_core.rows.buffers import numbers

EqualityIndex = DenseIndex | HashedIndex | PartitionedIndex

_BUILD_BYTES_PER_KEY = 64
"""What building a hash table holds for each key beside its column values, at its peak."""
_DENSE_SHARE = 4
"""A dense table may take this part of the memory limit."""
_BUILD_SHARE = 2
"""Loading and building may take this part; beyond it keys go through spill files."""
_PARTITION_SHARE = 8
"""One partition may take this part while it is built."""
_LEAST_PARTITION_BYTES = 4 * 1024**2
"""Smaller partitions save no memory worth their files."""


def threshold_of(index: EqualityIndex, data_sequence_number: int) -> int:
    """Ranks above it delete rows of a data file with this sequence number."""
    return rank_of(data_sequence_number, index.sequence_numbers)


def find_deleted(index: EqualityIndex, keys: Sequence[pa.Array], threshold: int, *, use_numba: bool = True) -> Flags:
    """Which rows are dead; of a single dictionary-encoded key every distinct value is looked up once."""
    if len(keys) > 1 or not pa.types.is_dictionary(keys[0].type):
        return index.deleted(keys, threshold, use_numba=use_numba)
    array = keys[0]
    values, codes = array.dictionary, array.indices
    if len(values) > len(array):
        return index.deleted([array.dictionary_decode()], threshold, use_numba=use_numba)
    if codes.null_count:
        codes = codes.cast(pa.int64()).fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    dead: Flags = index.deleted([values], threshold, use_numba=use_numba)[numbers(codes)]
    return dead


def build_index(
    parts: Sequence[DeleteKeys], key_types: Sequence[pa.DataType], memory_limit_bytes: int, *, use_numba: bool = True
) -> DenseIndex | HashedIndex:
    """The index over the keys of all delete files of a group, which fit into memory.

    Args:
        parts: keys by file, in any order.
        key_types: of the key columns, in the table's current types.
        memory_limit_bytes: of the scan; caps a dense table.
        use_numba: allow compiled kernels.
    """
    sequence_numbers = tuple(sorted({p.sequence_number for p in parts}))
    parts = sorted((p for p in parts if p.num_rows), key=lambda p: p.sequence_number)
    if len(key_types) == 1 and is_integer_like(key_types[0]):
        dense = build_dense(parts, key_types[0], sequence_numbers, memory_limit_bytes // _DENSE_SHARE)
        if dense is not None:
            return dense
    return build_hashed(parts, key_types, sequence_numbers, use_numba=use_numba)


def build_bytes(num_keys: int, stored_bytes: int) -> int:
    """What loading and indexing so many keys from files of so many bytes is expected to hold at its peak."""
    return num_keys * _BUILD_BYTES_PER_KEY + 4 * stored_bytes


def needs_streaming(expected_bytes: int, memory_limit_bytes: int) -> bool:
    """Whether the keys should be read file by file instead of held together."""
    return expected_bytes > memory_limit_bytes // _BUILD_SHARE


def build_index_streamed(
    read: Callable[[], Iterable[DeleteKeys]],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    expected_bytes: int,
    memory_limit_bytes: int,
    *,
    use_numba: bool = True,
) -> EqualityIndex:
    """The index over keys that do not fit into memory together.

    Args:
        read: reads the files anew, one after the other, ascending by sequence number.
        key_types: of the key columns, in the table's current types.
        sequence_numbers: of all files, ascending.
        expected_bytes: of `build_bytes`.
        memory_limit_bytes: of the scan.
        use_numba: allow compiled kernels.

    Raises:
        OSError: no space for spill files.
    """
    if len(key_types) == 1 and is_integer_like(key_types[0]):
        dense = build_dense_streamed(read(), key_types[0], sequence_numbers, memory_limit_bytes // _DENSE_SHARE)
        if dense is not None:
            return dense
    partitions = -(-expected_bytes // max(memory_limit_bytes // _PARTITION_SHARE, _LEAST_PARTITION_BYTES))
    return build_partitioned(read(), key_types, sequence_numbers, partitions, use_numba=use_numba)
