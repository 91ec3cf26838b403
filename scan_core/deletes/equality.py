"""The index of one equality-delete group: key -> rank of the highest sequence number that deletes it (rule 18).

A data file's own sequence number becomes a threshold on ranks, so one index answers for every file of its scope. The
ladder of forms: a table over close integers, else hashes, else, where memory does not suffice, hashes in partitions.
What may be skipped by bounds is told by `key_summary.py`.
"""

from collections.abc import Sequence

import pyarrow as pa

from scan_core.deletes.delete_keys import DeleteKeys, rank_of
from scan_core.deletes.dense_index import DenseIndex, build_dense
from scan_core.deletes.hashed_index import HashedIndex, build_hashed
from scan_core.index.key_columns import Flags, is_integer_like

EqualityIndex = DenseIndex | HashedIndex


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
    dead: Flags = index.deleted([values], threshold, use_numba=use_numba)[codes.to_numpy()]
    return dead


def build_index(
    parts: Sequence[DeleteKeys], key_types: Sequence[pa.DataType], max_dense_bytes: int, *, use_numba: bool = True
) -> EqualityIndex:
    """The index over the keys of all delete files of a group.

    Args:
        parts: keys by file, in any order.
        key_types: of the key columns, in the table's current types.
        max_dense_bytes: the largest dense table allowed.
        use_numba: allow compiled kernels.
    """
    sequence_numbers = tuple(sorted({p.sequence_number for p in parts}))
    parts = sorted((p for p in parts if p.num_rows), key=lambda p: p.sequence_number)
    if len(key_types) == 1 and is_integer_like(key_types[0]):
        dense = build_dense(parts, sequence_numbers, max_dense_bytes)
        if dense is not None:
            return dense
    return build_hashed(parts, key_types, sequence_numbers, use_numba=use_numba)
