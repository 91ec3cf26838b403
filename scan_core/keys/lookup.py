"""Exact lookup of delete keys: a table of ranks for close integers, a hash table for everything else.

Each hit of a hash is verified on the full key. Which form a delete group gets is decided in `equality_index.py`. A summary of
where keys lie on a line is kept beside the index: it is enough to prove that a range of values contains no key.

The hash table takes about 12 bytes per key. A hash's leading bits choose one bit of a bitmap of sixteen bits per key. A clear bit
ends most searches in the cache. The number of bits set before it is the number of the entry, whose hash decides. Where several
hashes share a bit, one has the entry and the others go to the next level, a thirtieth of the size. (As in Limasset et al., Fast and
scalable minimal perfect hashing, 2017, with the hashes kept.) Arrays are flat and immutable: shared by threads, or mapped from a file.
"""

import math
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.keys.columns import (
    BytesColumn,
    DictionaryColumn,
    FixedColumn,
    HashSeed,
    KeyColumn,
    KeyRows,
    Words,
    column_bytes,
    concat,
    first_words,
    hash_rows,
    hash_seed,
    is_one_word,
    key_column,
    null_flags,
    rotate,
    same_keys,
    signed_values,
    splitmix,
)
from nevermore.scan_core.model.errors import ScanError
from nevermore.scan_core.model.running import check_running
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.native.compiled import load, stored_kernels
from nevermore.scan_core.rows.buffers import Mask, Rows, validity

Ranks = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
"""1-based positions of sequence numbers among those of the group, ascending; 0 is no delete."""


@dataclass(frozen=True, slots=True, eq=False)
class DeleteKeys:
    """Keys of one delete file: one array per key column, in the table's current types."""

    sequence_number: int
    columns: tuple[pa.Array, ...]

    @property
    def num_rows(self) -> int:
        """Keys, repeats included."""
        return len(self.columns[0])


def rank_of(sequence_number: int, sequence_numbers: Sequence[int]) -> int:
    """The rank of a delete; for a data file the threshold that ranks must exceed: strictly greater (rule 1)."""
    return bisect_right(sequence_numbers, sequence_number)


def rank_type(sequence_numbers: Sequence[int]) -> np.dtype[np.unsignedinteger]:
    """The narrowest type that holds all ranks."""
    return np.min_scalar_type(len(sequence_numbers))


def ranks_of(parts: Sequence[DeleteKeys], sequence_numbers: Sequence[int]) -> Ranks:
    """The rank of every key of the parts, one after the other."""
    kind = rank_type(sequence_numbers)
    of_parts = np.array([rank_of(p.sequence_number, sequence_numbers) for p in parts], kind)
    ranks: Ranks = np.repeat(of_parts, [p.num_rows for p in parts]).astype(kind, copy=False)
    return ranks


MAX_BUCKETS = 65_536
SIGN_BIT = 1 << 63
"""Added to signed numbers, so that their order is that of unsigned ones."""
_MASK = (1 << 64) - 1
_EXACT = Context(prec=76)


@dataclass(frozen=True, slots=True, eq=False)
class KeySummary:
    """Occupied buckets of one key column: bucket = (prefix - base) >> shift; None if nothing is known."""

    kind: pa.DataType
    has_null: bool
    base: int
    shift: int
    buckets: Words | None

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return 0 if self.buckets is None else self.buckets.nbytes

    def meets(self, statistics: ColumnStatistics | None) -> bool:
        """False only if no value described by the statistics can be one of the keys."""
        if statistics is None:
            return True
        if self.has_null and statistics.null_count != 0:
            return True
        if statistics.value_count is not None and statistics.null_count == statistics.value_count:
            return False
        return self.meets_range(statistics.lower, statistics.upper)

    def meets_range(self, lower: Any, upper: Any) -> bool:
        """False only if no key lies between the bounds; None is no bound."""
        if self.buckets is None:
            return True
        if len(self.buckets) == 0:
            return False
        if lower is None or upper is None:
            return True
        low, high = prefix_of(lower, self.kind), prefix_of(upper, self.kind)
        if low is None or high is None or low > high:  # the wrong way round: not to be believed
            return True
        if high < self.base:
            return False
        begin = np.searchsorted(self.buckets, np.uint64(max(low - self.base, 0) >> self.shift))
        end = np.searchsorted(self.buckets, np.uint64((high - self.base) >> self.shift), side="right")
        return bool(begin < end)


def summarise(columns: Sequence[KeyColumn], *, has_null: bool, kind: pa.DataType) -> KeySummary:
    """The summary of all values of the columns, which are parts of one key column of type `kind`."""
    return _summary([_prefixes(c, kind) for c in columns], 0, has_null=has_null, kind=kind)


def _summary(parts: Sequence[Words | None], shift: int, *, has_null: bool, kind: pa.DataType) -> KeySummary:
    """The summary of prefixes, in buckets of at least `1 << shift` of them."""
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return KeySummary(kind, has_null, 0, 0, None)
    filled = [p for p in known if len(p)]
    if not filled:
        return KeySummary(kind, has_null, 0, 0, np.empty(0, np.uint64))
    base, top = min(int(p.min()) for p in filled), max(int(p.max()) for p in filled)
    if not shift and sum(len(p) for p in filled) <= MAX_BUCKETS:
        return KeySummary(kind, has_null, base, 0, np.unique(np.concatenate(filled)) - np.uint64(base))
    shift = max((top - base).bit_length() - (MAX_BUCKETS - 1).bit_length(), shift)
    occupied = np.zeros(((top - base) >> shift) + 1, np.bool_)
    for part in filled:
        occupied[((part - np.uint64(base)) >> np.uint64(shift)).view(np.int64)] = True
    return KeySummary(kind, has_null, base, shift, np.flatnonzero(occupied).astype(np.uint64))


def merge_summaries(parts: Sequence[KeySummary]) -> KeySummary:
    """The summary of all keys of parts of one column; coarser than any of them."""
    prefixes = list[Words | None]()
    for part in parts:
        first = None if part.buckets is None else (part.buckets << np.uint64(part.shift)) + np.uint64(part.base)
        prefixes.append(first)
        if first is not None:  # a bucket of a part may reach into the next one of the whole
            prefixes.append(first + np.minimum(np.uint64((1 << part.shift) - 1), ~first))
    shift, has_null = max(part.shift for part in parts), any(part.has_null for part in parts)
    return _summary(prefixes, shift, has_null=has_null, kind=parts[0].kind)


def summarise_table(
    occupied: npt.NDArray[np.unsignedinteger], lower: int, *, has_null: bool, kind: pa.DataType
) -> KeySummary:
    """The summary of the integers `lower` + i for which `occupied[i]` is not 0."""
    shift = max(len(occupied).bit_length() - (MAX_BUCKETS - 1).bit_length(), 0)
    width = 1 << shift
    whole = len(occupied) // width * width
    any_in = occupied[:whole].reshape(-1, width).max(axis=1) > 0 if whole else np.zeros(0, np.bool_)
    if whole < len(occupied):
        any_in = np.append(any_in, occupied[whole:].any())
    return KeySummary(kind, has_null, lower + SIGN_BIT, shift, np.flatnonzero(any_in).astype(np.uint64))


def prefix_of(value: Any, kind: pa.DataType) -> int | None:
    """The order-preserving prefix of a bound; None where the value or type has none."""
    if pt.is_decimal(kind):
        if not isinstance(value, Decimal):
            return None
        unscaled = int(value.scaleb(kind.scale, _EXACT).to_integral_value(ROUND_FLOOR, _EXACT))
        return (unscaled + SIGN_BIT if kind.precision <= 18 else (unscaled >> 64) + SIGN_BIT) & _MASK
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return int.from_bytes(value[:8].ljust(8, b"\0"), "big")
    if isinstance(value, int):
        return min(max(value + SIGN_BIT, 0), _MASK)
    return None


def _prefixes(column: KeyColumn, kind: pa.DataType) -> Words | None:
    if isinstance(column, DictionaryColumn):
        return _prefixes(column.values, kind)
    flags = null_flags(column)
    if isinstance(column, BytesColumn):
        column = column.with_slack()
        rows = np.arange(column.num_rows) if flags is None else np.flatnonzero(~flags)
        prefixes = np.zeros(len(rows), np.uint64)
        filled = np.flatnonzero(column.offsets[rows + 1] > column.offsets[rows])
        prefixes[filled] = first_words(column, rows[filled]).byteswap()
        return prefixes
    if pt.is_floating(kind) or not column.words:
        return None
    is_binary = pt.is_fixed_size_binary(kind) and not pt.is_decimal(kind)
    words = column.words[0 if is_binary else -1]
    words = words if flags is None else words[~flags]
    return words.byteswap() if is_binary else words ^ np.uint64(SIGN_BIT)


Entries = npt.NDArray[np.uint32]

BITS_PER_HASH = 16
MAX_ENTRIES = (1 << 32) - 2
BLOCK_ROWS = 2048
"""Rows that `kernels.py` handles at a time; it needs scratch space for them."""
_FILTER_BLOCK_ROWS = 16_384
"""Rows that NumPy handles at a time: intermediate arrays stay in the L2 cache."""
_MAX_LEVELS = 32
_MIN_PARTITIONED = 100_000
"""Tables of fewer hashes stay in the L2 cache while they are built."""
_EMPTY = 0xFFFFFFFF
_WORD_BITS = 64


@dataclass(frozen=True, slots=True, eq=False)
class HashTable:
    """Entry e has the hash `hashes[e]`; `counts[w]` entries come before those of word w of `bits`.

    Each row of `levels` holds multiplier, shift and first word of a level: the bit of a hash is
    `hash * multiplier >> shift`. Without compiled kernels a table has no levels: its hashes ascend, and are found by search.
    """

    hashes: Words
    bits: Words
    counts: Entries
    levels: Words

    @property
    def num_entries(self) -> int:
        """Hashes in the table."""
        return len(self.hashes)

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return self.hashes.nbytes + self.bits.nbytes + self.counts.nbytes + self.levels.nbytes

    def find(self, hashes: Words) -> tuple[Rows, Rows]:
        """Which of the hashes are in the table, as positions in `hashes` in no order, and the entry of each."""
        if len(self.levels):
            kernels = load()
            rows, entries = np.empty((2, len(hashes)), np.uint32)
            found = kernels["find"](hashes, len(hashes), *self.arguments, *scratch(), rows, entries)
            return rows[:found].astype(np.int64), entries[:found].astype(np.int64)
        if not self.num_entries:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        places = np.minimum(np.searchsorted(self.hashes, hashes), self.num_entries - 1)
        found = np.flatnonzero(self.hashes[places] == hashes)
        return found, places[found]

    @property
    def first_bits(self) -> Words:
        """The bitmap of the first level."""
        return self.bits[: int(self.levels[1, 2])] if len(self.levels) > 1 else self.bits

    @property
    def arguments(self) -> tuple[Words, int, Words, Entries, Words]:
        """The table as kernels take it."""
        return self.levels, len(self.levels), self.bits, self.counts, self.hashes


def may_contain(bits: Words, hashes: Words, shift: np.uint64) -> Mask:
    """Which of the hashes have their bit set in the first level of a table."""
    found = np.empty(len(hashes), np.bool_)
    for begin in range(0, len(hashes), _FILTER_BLOCK_ROWS):
        places = hashes[begin : begin + _FILTER_BLOCK_ROWS] >> shift
        words = np.take(bits, (places >> np.uint64(6)).view(np.int64), mode="clip")
        words >>= places & np.uint64(63)
        words &= np.uint64(1)
        found[begin : begin + len(places)] = words
    return found


@dataclass(frozen=True, slots=True, eq=False)
class BuiltTable:
    """A table, the row that each entry came from, and pairs of rows with one hash.

    Of rows with one hash the entry has the last; the pairs chain each of the others to one that follows it.
    """

    table: HashTable
    rows: Entries
    repeats: tuple[Rows, Rows]


def build_hash_table(hashes: Words) -> BuiltTable:
    """A table over hashes, which may repeat. Uses up the array.

    Raises:
        ValueError: more hashes than fit one table; partition them.
    """
    count = len(hashes)
    if count > MAX_ENTRIES:
        raise ValueError(f"{count} hashes in one table of at most {MAX_ENTRIES}")
    if (kernels := stored_kernels()) is None:
        return _sorted_table(hashes)
    rows = np.arange(count, dtype=np.uint32)
    if count >= _MIN_PARTITIONED:  # grouped by where they will be placed
        unordered, hashes = hashes, np.empty_like(hashes)
        kernels["partition"](unordered, count, np.zeros(257, np.uint64), hashes, rows)
    placed_hashes, placed_rows = np.empty(count, np.uint64), np.full(count, _EMPTY, np.uint32)
    repeats = np.empty(2 * count + 1, np.uint64)
    repeats[0] = 0
    layers: list[tuple[Words, Entries]] = []
    levels: list[tuple[int, int, int]] = []
    waiting, first_word, placed = count, 0, 0
    while not levels or waiting:
        if len(levels) == _MAX_LEVELS:
            raise ValueError(f"{waiting} hashes without a bit of their own in {_MAX_LEVELS} levels")
        multiplier = splitmix(len(levels)) | 1 if levels else 1
        shift = _WORD_BITS - max(round(math.log2(max(waiting * BITS_PER_HASH, 1))), 6)
        bits = np.zeros(1 << (_WORD_BITS - shift - 6), np.uint64)
        counts = np.empty(len(bits), np.uint32)
        check_running()  # each pass over ten million hashes takes some hundredths of a second
        kernels["set_bits"](hashes, waiting, multiplier, shift, bits)
        placed = kernels["count_bits"](bits, len(bits), placed, counts)
        check_running()
        to_place = hashes, rows, waiting, multiplier, shift
        waiting = kernels["place"](*to_place, bits, counts, placed_hashes, placed_rows, repeats)
        layers.append((bits, counts))
        levels.append((multiplier, shift, first_word))
        first_word += len(bits)
    if placed < count:
        placed_hashes, placed_rows = placed_hashes[:placed].copy(), placed_rows[:placed].copy()
    table = HashTable(
        placed_hashes,
        np.concatenate([bits for bits, _ in layers]),
        np.concatenate([counts for _, counts in layers]),
        np.array(levels, np.uint64),
    )
    pairs = repeats[1 : 1 + 2 * int(repeats[0])].view(np.int64)
    return BuiltTable(table, placed_rows, (pairs[0::2], pairs[1::2]))


def _sorted_table(hashes: Words) -> BuiltTable:
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    is_last = np.append(ordered[1:] != ordered[:-1], np.ones(min(len(hashes), 1), np.bool_))
    repeated = np.flatnonzero(~is_last)
    no_levels = np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty((0, 3), np.uint64)
    table = HashTable(ordered[is_last], *no_levels)
    return BuiltTable(table, order[is_last].astype(np.uint32), (order[repeated], order[repeated + 1]))


def scratch() -> tuple[Words, Words, Entries]:
    """What the kernels that search a table need for a block of rows."""
    return np.empty(BLOCK_ROWS, np.uint64), np.empty(BLOCK_ROWS, np.uint64), np.empty(4 * BLOCK_ROWS, np.uint32)


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

    def _dead(self, values: Rows | npt.NDArray[np.int32], threshold: int) -> Mask:
        dead = np.empty(len(values), np.bool_)
        outside = np.uint64(len(self.ranks) - 1)
        lower = np.uint64(self.lower & 0xFFFFFFFFFFFFFFFF)
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


def _values(part: DeleteKeys) -> tuple[Rows, bool]:
    """The values that are not NULL, and whether there are NULLs."""
    array = part.columns[0]
    has_null = array.null_count > 0
    if has_null:
        array = array.drop_null()
    if pt.is_dictionary(array.type):
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
    rows: Entries
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
        return self.deleted_hashes(hash_rows(columns, self.seed), columns, threshold)

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
        plain = key.dictionary_decode() if pt.is_dictionary(key.type) else key
        found: Mask = signed_values(plain) == value
        return found if (valid := validity(plain)) is None else found & valid


def common_value(arrays: Sequence[pa.Array]) -> int | None:
    """The value that every row of these arrays of an integer-like type has; None if they differ, or one is NULL."""
    found: int | None = None
    for array in arrays:
        if not len(array):
            continue
        if array.null_count or pt.is_dictionary(array.type):
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
