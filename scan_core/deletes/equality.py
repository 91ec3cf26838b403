"""The index of one equality-delete group: key -> rank of the highest sequence number that deletes it (rule 18).

A data file's own sequence number becomes a threshold on ranks, so one index answers for every file of its scope. The
ladder: a table over a dense range of integers, else sorted 64-bit hashes with Bloom words, each hit verified on the
full key. What may be skipped by bounds is told by `key_summary.py`.
"""

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.deletes.key_summary import KeySummary, summarise
from scan_core.errors import ScanError
from scan_core.index.compiled import kernels_if_worthwhile, measured
from scan_core.index.hash_table import HashTable, build_hash_table, sort_hashes
from scan_core.index.key_columns import (
    Flags,
    KeyColumn,
    Words,
    column_bytes,
    concat,
    is_integer_like,
    key_column,
    null_flags,
    signed_values,
)
from scan_core.index.key_hash import HashSeed, hash_rows, hash_seed
from scan_core.index.key_match import KeyRows, same_keys

Ranks = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

MAX_DENSE_SLOTS_PER_KEY = 64
"""Above, the table costs more memory and cache misses than hashing saves."""
MAX_DENSE_BYTES = 256 * 1024**2
_BLOCK_ROWS = 32_768
_MAX_SEEDS = 8


@dataclass(frozen=True, slots=True, eq=False)
class DeleteKeys:
    """Keys of one delete file: one array per key column, in the table's current types."""

    sequence_number: int
    columns: tuple[pa.Array, ...]

    @property
    def num_rows(self) -> int:
        """Keys, repeats included."""
        return len(self.columns[0])


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DenseIndex:
    """Ranks of the integers `lower`, `lower` + 1, ...; the last slot is 0 and stands for everything outside."""

    sequence_numbers: tuple[int, ...]
    lower: int
    ranks: Ranks
    null_rank: int
    summaries: tuple[KeySummary, ...]

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return self.ranks.nbytes + sum(s.num_bytes for s in self.summaries)

    @property
    def num_keys(self) -> int:
        """Distinct keys."""
        return int(np.count_nonzero(self.ranks)) + int(self.null_rank > 0)

    def deleted(self, keys: Sequence[pa.Array], threshold: int, *, use_numba: bool = True) -> Flags:
        """Rows whose key has a rank above the threshold; NumPy is as fast as compiled code here."""
        del use_numba
        (array,) = keys
        values = signed_values(array)
        dead = np.empty(len(values), np.bool_)
        outside = np.uint64(len(self.ranks) - 1)
        lower = np.uint64(self.lower & 0xFFFFFFFFFFFFFFFF)
        for begin in range(0, len(values), _BLOCK_ROWS):
            block = values[begin : begin + _BLOCK_ROWS]
            slots = block.astype(np.int64, copy=False).view(np.uint64) - lower
            np.minimum(slots, outside, out=slots)
            np.greater(self.ranks[slots.view(np.int64)], threshold, out=dead[begin : begin + len(block)])
        if array.null_count:
            dead[array.is_null().to_numpy(zero_copy_only=False)] = self.null_rank > threshold
        return dead

    def covers(self, lower: int, upper: int, threshold: int) -> bool:
        """Whether every integer from `lower` to `upper` is deleted."""
        begin, end = lower - self.lower, upper + 1 - self.lower
        if begin < 0 or end >= len(self.ranks) or begin >= end:
            return False
        return bool((self.ranks[begin:end] > threshold).all())


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class HashedIndex:
    """Entry e of `table` is row `rows[e]` of `columns`, and has rank `ranks[e]`."""

    sequence_numbers: tuple[int, ...]
    seed: HashSeed
    table: HashTable
    columns: tuple[KeyColumn, ...]
    rows: npt.NDArray[np.uint32]
    ranks: Ranks
    summaries: tuple[KeySummary, ...]

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        held = self.table.num_bytes + self.rows.nbytes + self.ranks.nbytes + sum(s.num_bytes for s in self.summaries)
        return held + sum(column_bytes(c) for c in self.columns)

    @property
    def num_keys(self) -> int:
        """Distinct keys."""
        return len(self.ranks)

    def deleted(self, keys: Sequence[pa.Array], threshold: int, *, use_numba: bool = True) -> Flags:
        """Rows whose key has a rank above the threshold."""
        kernels = kernels_if_worthwhile(use_numba=use_numba)
        with measured(kernels):
            columns = [key_column(array) for array in keys]
            rows, entries = self.table.find(hash_rows(columns, self.seed, kernels), kernels)
            if threshold > 0:
                live = self.ranks[entries] > threshold
                rows, entries = rows[live], entries[live]
            stored = KeyRows(self.columns, self.rows[entries].astype(np.int64))
            dead = np.zeros(columns[0].num_rows, np.bool_)
            dead[rows[same_keys(KeyRows(columns, rows), stored, kernels)]] = True
            return dead


EqualityIndex = DenseIndex | HashedIndex


def threshold_of(index: EqualityIndex, data_sequence_number: int) -> int:
    """Ranks above it delete rows of a data file with this sequence number: strictly greater ones (rule 1)."""
    return bisect_right(index.sequence_numbers, data_sequence_number)


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
    rank_type = np.min_scalar_type(len(sequence_numbers))
    if len(key_types) == 1 and is_integer_like(key_types[0]):
        dense = _build_dense(parts, sequence_numbers, rank_type, min(max_dense_bytes, MAX_DENSE_BYTES))
        if dense is not None:
            return dense
    kernels = kernels_if_worthwhile(use_numba=use_numba)
    with measured(kernels):
        return _build_hashed(parts, key_types, sequence_numbers, rank_type, kernels)


def _build_dense(
    parts: Sequence[DeleteKeys], sequence_numbers: tuple[int, ...], rank_type: np.dtype[np.unsignedinteger], limit: int
) -> DenseIndex | None:
    """None if the keys spread too far."""
    ranked: list[tuple[int, npt.NDArray[np.int64]]] = []
    null_rank = 0
    for part in parts:
        rank = bisect_right(sequence_numbers, part.sequence_number)
        array = part.columns[0]
        if array.null_count:
            null_rank = rank
            array = array.drop_null()
        if len(array):
            ranked.append((rank, signed_values(array).astype(np.int64, copy=False)))
    lower = min((int(v.min()) for _, v in ranked), default=0)
    upper = max((int(v.max()) for _, v in ranked), default=-1)
    slots = upper - lower + 1
    if slots > MAX_DENSE_SLOTS_PER_KEY * sum(len(v) for _, v in ranked) or slots * rank_type.itemsize > limit:
        return None
    ranks = np.zeros(slots + 1, rank_type)
    for rank, values in ranked:  # ascending: the highest rank of a key is written last
        ranks[values - lower] = rank
    summary = summarise([key_column(pa.array(v)) for _, v in ranked], has_null=null_rank > 0, kind=pa.int64())
    return DenseIndex(sequence_numbers, lower, ranks, null_rank, (summary,))


def _build_hashed(
    parts: Sequence[DeleteKeys],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    rank_type: np.dtype[np.unsignedinteger],
    kernels: ModuleType | None,
) -> HashedIndex:
    columns = tuple(
        concat([key_column(p.columns[i]) for p in parts] or [key_column(pa.array([], kind))])
        for i, kind in enumerate(key_types)
    )
    part_ranks = np.array([bisect_right(sequence_numbers, p.sequence_number) for p in parts], rank_type)
    ranks = np.repeat(part_ranks, [p.num_rows for p in parts]).astype(rank_type, copy=False)
    seed, hashes, rows = _sort_keys(columns, kernels)
    ordered_ranks = ranks[rows]
    is_new = hashes[1:] != hashes[:-1]
    if not is_new.all():
        firsts = np.flatnonzero(np.concatenate([[True], is_new]))
        ordered_ranks = np.maximum.reduceat(ordered_ranks, firsts)
        rows, hashes = rows[firsts], hashes[firsts]
    summaries = tuple(
        summarise([c], has_null=null_flags(c) is not None, kind=kind)
        for c, kind in zip(columns, key_types, strict=True)
    )
    table = build_hash_table(hashes, kernels)
    return HashedIndex(sequence_numbers, seed, table, columns, rows, ordered_ranks, summaries)


def _sort_keys(
    columns: Sequence[KeyColumn], kernels: ModuleType | None
) -> tuple[HashSeed, Words, npt.NDArray[np.uint32]]:
    """A seed under which different keys have different hashes, the hashes in order, and the row of each."""
    for _ in range(_MAX_SEEDS):
        seed = hash_seed(secrets.randbits(63))
        hashes, rows = sort_hashes(hash_rows(columns, seed, kernels), kernels)
        repeats = np.flatnonzero(hashes[1:] == hashes[:-1])
        one, next_one = (KeyRows(columns, rows[repeats + i].astype(np.int64)) for i in (0, 1))
        if same_keys(one, next_one, kernels).all():
            return seed, hashes, rows
    raise ScanError(f"delete keys collide under {_MAX_SEEDS} random seeds")
