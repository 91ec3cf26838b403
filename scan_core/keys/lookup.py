"""Exact lookup of delete keys: a table of ranks for close integers, a hash table for everything else.

Each hit of a hash is verified on the full key. Which form a delete group gets is decided in `keys/equality_index.py`.

"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.keys.columns import (
    DictionaryColumn,
    FixedColumn,
    KeyColumn,
    Words,
    column_bytes,
    concat,
    is_one_word,
    key_column,
    null_flags,
    signed_values,
)
from nevermore.scan_core.keys.hash import HashSeed, KeyRows, hash_rows, hash_seed, rotate, same_keys
from nevermore.scan_core.keys.summary import (
    DeleteKeys,
    KeySummary,
    Ranks,
    rank_of,
    rank_type,
    ranks_of,
    summarise,
    summarise_table,
)
from nevermore.scan_core.keys.table import BuiltTable, HashTable, build_hash_table, scratch
from nevermore.scan_core.model.errors import ScanError
from nevermore.scan_core.native.compiled import load, stored_kernels
from nevermore.scan_core.rows.buffers import Mask, Rows, validity

MAX_SLOTS_PER_KEY = 64
"""Above, the table costs more memory and cache misses than hashing saves."""
MAX_BYTES = 256 * 1024**2
_BLOCK_ROWS = 32_768


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

    def deleted(self, keys: Sequence[pa.Array], threshold: int) -> Mask:
        """Rows whose key has a rank above the threshold."""
        (array,) = keys
        values = signed_values(array)
        dead = self._dead(values, threshold)
        if (valid := validity(array)) is not None:
            dead[~valid] = self.null_rank > threshold
        return dead

    def _dead(self, values: npt.NDArray[np.int64] | npt.NDArray[np.int32], threshold: int) -> Mask:
        dead = np.empty(len(values), np.bool_)
        outside = np.uint64(len(self.ranks) - 1)
        lower = np.uint64(self.lower & 0xFFFFFFFFFFFFFFFF)
        if self.ranks.itemsize == 1 and (kernels := stored_kernels()) is not None:
            mark = kernels["mark_close_i64" if values.itemsize == 8 else "mark_close_i32"]
            mark(values, len(values), lower, self.ranks, outside, threshold, dead.view(np.uint8))
            return dead
        for begin in range(0, len(values), _BLOCK_ROWS):
            block = values[begin : begin + _BLOCK_ROWS]
            slots = block.astype(np.int64, copy=False).view(np.uint64) - lower
            np.minimum(slots, outside, out=slots)
            np.greater(self.ranks[slots.view(np.int64)], threshold, out=dead[begin : begin + len(block)])
        return dead

    def covers(self, lower: int, upper: int, threshold: int) -> bool:
        """Whether every integer from `lower` to `upper` is deleted."""
        begin, end = lower - self.lower, upper + 1 - self.lower
        if begin < 0 or end >= len(self.ranks) or begin >= end:
            return False
        return bool((self.ranks[begin:end] > threshold).all())


def build_dense(
    parts: Sequence[DeleteKeys], kind: pa.DataType, sequence_numbers: tuple[int, ...], limit_bytes: int
) -> DenseIndex | None:
    """A table over the only key column of the parts, ascending by sequence number; None if they spread too far."""
    filled = [values for part in parts if len(values := _values(part)[0])]
    lower, upper = min((int(v.min()) for v in filled), default=0), max((int(v.max()) for v in filled), default=-1)
    num_keys, kind_of_rank = sum(map(len, filled)), rank_type(sequence_numbers)
    limit_slots = min(MAX_SLOTS_PER_KEY * num_keys, min(limit_bytes, MAX_BYTES) // kind_of_rank.itemsize)
    if upper - lower + 1 > limit_slots:
        return None
    ranks: Ranks = np.zeros(upper - lower + 2, kind_of_rank)
    return _filled(ranks, lower, parts, kind, sequence_numbers, limit_slots)


def build_dense_streamed(
    parts: Iterable[DeleteKeys], kind: pa.DataType, sequence_numbers: tuple[int, ...], limit_bytes: int
) -> DenseIndex | None:
    """The same over parts that are dropped one after the other, however far they spread within the limit."""
    kind_of_rank = rank_type(sequence_numbers)
    limit_slots = min(limit_bytes, MAX_BYTES) // kind_of_rank.itemsize
    return _filled(np.zeros(1, kind_of_rank), 0, parts, kind, sequence_numbers, limit_slots)


def _filled(  # noqa: PLR0917  a table that is made, and what it is made of
    ranks: Ranks,
    lower: int,
    parts: Iterable[DeleteKeys],
    kind: pa.DataType,
    sequence_numbers: tuple[int, ...],
    limit_slots: int,
) -> DenseIndex | None:
    """The index over a table of zeros from `lower` on, which grows where the parts go beyond it."""
    upper, null_rank = lower + len(ranks) - 2, 0
    for part in parts:
        rank = rank_of(part.sequence_number, sequence_numbers)
        values, has_null = _values(part)
        null_rank = rank if has_null else null_rank
        if not len(values):
            continue
        low, high = int(values.min()), int(values.max())
        if lower <= upper:
            low, high = min(low, lower), max(high, upper)
        if high - low + 1 > limit_slots:
            return None
        ranks = _grown(ranks, lower, low, high, limit_slots)
        lower, upper = low, high
        ranks[values - lower] = rank  # ascending: the highest rank of a key is written last
    summary = summarise_table(ranks[:-1], lower, has_null=null_rank > 0, kind=kind)
    return DenseIndex(sequence_numbers, lower, ranks, null_rank, (summary,))


def _values(part: DeleteKeys) -> tuple[npt.NDArray[np.int64], bool]:
    """The values that are not NULL, and whether there are NULLs."""
    array = part.columns[0]
    has_null = array.null_count > 0
    if has_null:
        array = array.drop_null()
    if pa.types.is_dictionary(array.type):
        has_null = has_null or array.dictionary.null_count > 0
        array = array.dictionary_decode().drop_null()
    return signed_values(array).astype(np.int64, copy=False), has_null


def _grown(ranks: Ranks, lower: int, low: int, high: int, limit_slots: int) -> Ranks:
    """The table from `low` to at least `high`; room ahead where it grows, so that it is not copied for each file."""
    slots, needed = len(ranks) - 1, high - low + 1
    if slots and low == lower and needed <= slots:
        return ranks
    grown = np.zeros((max(needed, min(2 * needed, limit_slots)) if slots else needed) + 1, ranks.dtype)
    kept = min(slots, high + 1 - lower)
    grown[lower - low : lower - low + kept] = ranks[:kept]
    return grown


_MAX_SEEDS = 8
_NO_ROWS = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class HashedIndex:
    """Entry e of `table` is row `rows[e]` of `columns`, and has rank `ranks[e]`.

    `columns` and `rows` are empty where the hash alone is the key; NULL then has `null_rank`.
    """

    sequence_numbers: tuple[int, ...]
    seed: HashSeed
    table: HashTable
    columns: tuple[KeyColumn, ...]
    rows: npt.NDArray[np.uint32]
    ranks: Ranks
    null_rank: int
    summaries: tuple[KeySummary, ...]

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        held = self.table.num_bytes + self.rows.nbytes + self.ranks.nbytes + sum(s.num_bytes for s in self.summaries)
        return held + sum(column_bytes(c) for c in self.columns)

    @property
    def num_keys(self) -> int:
        """Distinct keys."""
        return len(self.ranks) + int(self.null_rank > 0)

    def deleted(self, keys: Sequence[pa.Array], threshold: int) -> Mask:
        """Rows whose key has a rank above the threshold."""
        columns = [key_column(array) for array in keys]
        if len(self.table.levels) and not self.columns and isinstance(columns[0], FixedColumn):
            return self._deleted_words(columns[0], threshold)
        return self.deleted_hashes(hash_rows(columns, self.seed), columns, threshold)

    def _deleted_words(self, column: FixedColumn, threshold: int) -> Mask:
        """Deleted rows for keys of one word, which are hashed and looked up without storing the hashes."""
        words = np.ascontiguousarray(column.words[0])
        key = self.seed.secret(0, 0), self.seed.first, self.seed.multiplier(0, 0)
        ranks = self.ranks.view(np.uint8), self.ranks.itemsize, threshold
        dead = np.zeros(len(words), np.bool_)
        load()["mark_words"](words, len(words), *key, *self.table.arguments, *ranks, *scratch(), dead.view(np.uint8))
        if column.valid is not None:
            dead[~column.valid] = self.null_rank > threshold
        return dead

    def deleted_hashes(
        self,
        hashes: Words,
        columns: Sequence[KeyColumn],
        threshold: int,
        among: Rows | None = None,
    ) -> Mask:
        """The same for rows that were hashed with `seed` before; `among` are their places in the columns."""
        rows, entries = self.table.find(hashes)
        if threshold > 0:
            live = self.ranks[entries] > threshold
            rows, entries = rows[live], entries[live]
        dead = np.zeros(len(hashes), np.bool_)
        if self.columns:
            stored = KeyRows(self.columns, self.rows[entries].astype(np.int64))
            places = rows if among is None else among[rows]
            dead[rows[same_keys(KeyRows(columns, places), stored)]] = True
        else:
            dead[rows] = True
            if (nulls := null_flags(columns[0])) is not None:
                dead[nulls if among is None else nulls[among]] = self.null_rank > threshold
        return dead


def build_hashed(
    parts: Sequence[DeleteKeys],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    *,
    seed: HashSeed | None = None,
    rotation: int = 0,
) -> HashedIndex:
    """A table over the keys of the parts, which ascend by sequence number.

    Hashed with the given seed, by default with a random one under which no two keys have one hash; then hashes are rotated by the number of bits that all keys of a partition have in common.

    Raises:
        ScanError: different keys have one hash under the given seed.
    """
    columns = tuple(
        concat([key_column(p.columns[i]) for p in parts] or [key_column(pa.array([], kind))])
        for i, kind in enumerate(key_types)
    )
    ranks = ranks_of(parts, sequence_numbers)
    has_null = [null_flags(c) is not None for c in columns]
    is_bijective = len(columns) == 1 and is_one_word(key_types[0])
    null_rank = 0
    if is_bijective:
        null_rank = max(
            (rank_of(p.sequence_number, sequence_numbers) for p in parts if p.columns[0].null_count), default=0
        )
        columns, ranks = _without_nulls(columns[0], ranks)
    seed, built = _build_table(columns, seed, rotation)
    ranks = ranks[built.rows]
    summaries = tuple(
        summarise([c], has_null=n, kind=kind) for c, n, kind in zip(columns, has_null, key_types, strict=True)
    )
    columns, rows = ((), _NO_ROWS) if is_bijective else (columns, built.rows)
    return HashedIndex(sequence_numbers, seed, built.table, columns, rows, ranks, null_rank, summaries)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FactoredIndex:
    """Keys that all have the same values in some integer-like columns, as those of one partition often have.

    Attributes:
        constants: (number of a key column, its value) for each of these columns.
        rest: the index over the other key columns, in their order.
        summaries: of all key columns.
    """

    constants: tuple[tuple[int, int], ...]
    rest: DenseIndex | HashedIndex
    summaries: tuple[KeySummary, ...]

    @property
    def sequence_numbers(self) -> tuple[int, ...]:
        """Sequence numbers of the deletes, ascending."""
        return self.rest.sequence_numbers

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return self.rest.num_bytes

    @property
    def num_keys(self) -> int:
        """Distinct keys."""
        return self.rest.num_keys

    def has_constant(self, key: pa.Array, value: int) -> Mask:
        """Which rows have the value in a column."""
        plain = key.dictionary_decode() if pa.types.is_dictionary(key.type) else key
        found: Mask = signed_values(plain) == value
        return found if (valid := validity(plain)) is None else found & valid


def common_value(arrays: Sequence[pa.Array]) -> int | None:
    """The value that every row of these arrays of an integer-like type has; None if they differ, or one is NULL."""
    found: int | None = None
    for array in arrays:
        if not len(array):
            continue
        if array.null_count or pa.types.is_dictionary(array.type):
            return None
        values = signed_values(array)
        first = int(values[0]) if found is None else found
        if int(values[-1]) != first or not (values == first).all():  # the last row tells most columns apart
            return None
        found = first
    return found


def random_seed() -> HashSeed:
    """A seed that cannot be guessed."""
    return hash_seed(secrets.randbits(63))


def _without_nulls(column: KeyColumn, ranks: Ranks) -> tuple[tuple[KeyColumn, ...], Ranks]:
    nulls = null_flags(column)
    if nulls is None:
        return (column,), ranks
    kept = np.flatnonzero(~nulls)
    plain, places = (column.values, column.codes[kept]) if isinstance(column, DictionaryColumn) else (column, kept)
    assert isinstance(plain, FixedColumn)  # noqa: S101 - the key is one word
    return (FixedColumn((plain.words[0][places],), None, len(kept)),), ranks[kept]


def _build_table(columns: Sequence[KeyColumn], seed: HashSeed | None, rotation: int) -> tuple[HashSeed, BuiltTable]:
    """A seed under which different keys have different hashes, and the table of these."""
    for _ in range(_MAX_SEEDS if seed is None else 1):
        tried = random_seed() if seed is None else seed
        built = build_hash_table(rotate(hash_rows(columns, tried), rotation))
        one, other = (KeyRows(columns, rows) for rows in built.repeats)
        if same_keys(one, other).all():
            return tried, built
    raise ScanError(f"delete keys collide under {_MAX_SEEDS if seed is None else 1} random seeds")
