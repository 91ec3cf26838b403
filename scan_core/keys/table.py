"""Exact lookup of 64-bit hashes in about 12 bytes per key: bitmaps that count, in levels.

A hash's leading bits choose one bit of a bitmap of sixteen bits per key. A clear bit ends most searches in the cache.
The number of bits set before it is the number of the entry, whose hash decides. Where several hashes share a bit, one has the
entry and the others go to the next level, a thirtieth of the size. (As in Limasset et al., Fast and scalable minimal
perfect hashing, 2017, with the hashes kept.) Arrays are flat and immutable: shared by threads, or mapped from a file.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nevermore.scan_core.keys.columns import Words
from nevermore.scan_core.keys.hash import splitmix
from nevermore.scan_core.model.running import check_running
from nevermore.scan_core.native.machine_code import Kernels
from nevermore.scan_core.rows.buffers import Mask, Rows

Entries = npt.NDArray[np.uint32]

BITS_PER_HASH = 16
MAX_ENTRIES = (1 << 32) - 2
BLOCK_ROWS = 2048
"""Rows that `kernels.py` handles at a time; it needs scratch space for them."""
_FILTER_BLOCK_ROWS = 16_384
"""The same for NumPy, whose calls cost more: intermediate arrays stay in the L2 cache."""
_MAX_LEVELS = 32
_MIN_PARTITIONED = 100_000
"""Tables of fewer hashes stay in the L2 cache while they are built."""
_EMPTY = 0xFFFFFFFF
_WORD_BITS = 64


@dataclass(frozen=True, slots=True, eq=False)
class HashTable:
    """Entry e has the hash `hashes[e]`; `counts[w]` entries come before those of word w of `bits`.

    Each row of `levels` holds multiplier, shift and first word of a level: the bit of a hash is
    `hash * multiplier >> shift`.
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

    def find(self, hashes: Words, kernels: Kernels | None = None) -> tuple[Rows, Rows]:
        """Which of the hashes are in the table, as positions in `hashes` in no order, and the entry of each."""
        if kernels is not None:
            rows, entries = np.empty((2, len(hashes)), np.uint32)
            found = kernels["find"](hashes, len(hashes), *self.arguments, *scratch(), rows, entries)
            return rows[:found].astype(np.int64), entries[:found].astype(np.int64)
        waiting = np.flatnonzero(self.may_contain(hashes))
        parts: list[tuple[Rows, Rows]] = []
        for number, (multiplier, shift, first_word) in enumerate(self.levels):
            places = (hashes[waiting] * multiplier) >> shift
            words = (places >> np.uint64(6)).view(np.int64) + int(first_word)
            bits = np.uint64(1) << (places & np.uint64(63))
            if number > 0:  # the bits of the first level have been asked for
                is_set = (self.bits[words] & bits) != 0
                waiting, words, bits = waiting[is_set], words[is_set], bits[is_set]
            entries = self.counts[words] + np.bitwise_count(self.bits[words] & (bits - np.uint64(1))).astype(np.int64)
            is_hit = self.hashes[entries] == hashes[waiting]
            parts.append((waiting[is_hit], entries[is_hit]))
            waiting = waiting[~is_hit]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    @property
    def first_bits(self) -> Words:
        """The bitmap of the first level."""
        return self.bits[: int(self.levels[1, 2])] if len(self.levels) > 1 else self.bits

    def may_contain(self, hashes: Words) -> Mask:
        """Which of the hashes have their bit set in the first level; the others are not in the table."""
        return may_contain(self.bits, hashes, self.levels[0, 1])

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


def build_hash_table(hashes: Words, kernels: Kernels | None = None) -> BuiltTable:
    """A table over hashes, which may repeat. Uses up the array.

    Raises:
        ValueError: more hashes than fit one table; partition them.
    """
    count = len(hashes)
    if count > MAX_ENTRIES:
        raise ValueError(f"{count} hashes in one table of at most {MAX_ENTRIES}")
    build: _NumpyBuild | _CompiledBuild = _NumpyBuild(hashes) if kernels is None else _CompiledBuild(hashes, kernels)
    layers: list[tuple[Words, Entries]] = []
    levels: list[tuple[int, int, int]] = []
    first_word = first_entry = 0
    while not levels or build.num_waiting:
        if len(levels) == _MAX_LEVELS:
            raise ValueError(f"{build.num_waiting} hashes without a bit of their own in {_MAX_LEVELS} levels")
        multiplier = splitmix(len(levels)) | 1 if levels else 1
        shift = _WORD_BITS - max(round(math.log2(max(build.num_waiting * BITS_PER_HASH, 1))), 6)
        bits, counts = build.place(multiplier, shift, first_entry)
        layers.append((bits, counts))
        levels.append((multiplier, shift, first_word))
        first_word, first_entry = first_word + len(bits), build.num_placed
    table_hashes, rows = build.entries()
    table = HashTable(
        table_hashes,
        np.concatenate([bits for bits, _ in layers]),
        np.concatenate([counts for _, counts in layers]),
        np.array(levels, np.uint64),
    )
    return BuiltTable(table, rows, build.repeats())


def scratch() -> tuple[Words, Words, Entries]:
    """What the kernels that search a table need for a block of rows."""
    return np.empty(BLOCK_ROWS, np.uint64), np.empty(BLOCK_ROWS, np.uint64), np.empty(4 * BLOCK_ROWS, np.uint32)


class _CompiledBuild:
    """Places hashes in the order in which they come, many of them grouped by where they will be placed."""

    def __init__(self, hashes: Words, kernels: Kernels) -> None:
        self._kernels = kernels
        self._hashes = hashes
        self._rows = np.arange(len(hashes), dtype=np.uint32)
        if len(hashes) >= _MIN_PARTITIONED:
            self._hashes = np.empty_like(hashes)
            kernels["partition"](hashes, len(hashes), np.zeros(257, np.uint64), self._hashes, self._rows)
        check_running()
        self._table = np.empty(len(hashes), np.uint64)
        self._table_rows = np.full(len(hashes), _EMPTY, np.uint32)
        self._repeats = np.empty(2 * len(hashes) + 1, np.uint64)
        self._repeats[0] = 0
        self.num_waiting = len(hashes)
        self.num_placed = 0

    def place(self, multiplier: int, shift: int, first_entry: int) -> tuple[Words, Entries]:
        """One level of the waiting hashes: its bits, and the number of entries before each word of them."""
        bits = np.zeros(_words_of(shift), np.uint64)
        counts = np.empty(len(bits), np.uint32)
        level = multiplier, shift
        self._kernels["set_bits"](self._hashes, self.num_waiting, *level, bits)
        check_running()  # each pass over ten million hashes takes some hundredths of a second
        self.num_placed = self._kernels["count_bits"](bits, len(bits), first_entry, counts)
        waiting = self._hashes, self._rows, self.num_waiting
        placed = bits, counts, self._table, self._table_rows
        self.num_waiting = self._kernels["place"](*waiting, *level, *placed, self._repeats)
        return bits, counts

    def entries(self) -> tuple[Words, Entries]:
        """Hash and row of each entry."""
        table, rows = self._table[: self.num_placed], self._table_rows[: self.num_placed]
        return (table, rows) if len(table) == len(self._table) else (table.copy(), rows.copy())

    def repeats(self) -> tuple[Rows, Rows]:
        """Pairs of rows with one hash."""
        pairs = self._repeats[1 : 1 + 2 * int(self._repeats[0])].view(np.int64)
        return pairs[0::2], pairs[1::2]


class _NumpyBuild:
    """Places hashes in ascending order."""

    def __init__(self, hashes: Words) -> None:
        order = _sorting(hashes)
        ordered = hashes[order]
        is_last = np.ones(len(hashes), np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=is_last[:-1])
        repeated = np.flatnonzero(~is_last)
        self._repeats = order[repeated], order[repeated + 1]
        self._waiting, self._rows = ordered[is_last], order[is_last].astype(np.uint32)
        self._placed: list[tuple[Words, Entries]] = []
        self.num_placed = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def place(self, multiplier: int, shift: int, first_entry: int) -> tuple[Words, Entries]:
        """See `_CompiledBuild.place`."""
        places = (self._waiting * np.uint64(multiplier)) >> np.uint64(shift)
        order = np.argsort(places, kind="stable") if multiplier != 1 else np.arange(len(places))
        places = places[order]
        is_first = np.ones(len(places), np.bool_)
        np.not_equal(places[1:], places[:-1], out=is_first[1:])
        firsts, others = order[is_first], order[~is_first]
        self._placed.append((self._waiting[firsts], self._rows[firsts]))
        self.num_placed += len(firsts)
        self._waiting, self._rows = self._waiting[others], self._rows[others]
        bits = _bitmap(places[is_first], _words_of(shift))
        counts = np.bitwise_count(bits).astype(np.uint32)
        before = np.cumsum(counts, dtype=np.uint32) - counts + np.uint32(first_entry)
        return bits, before

    def entries(self) -> tuple[Words, Entries]:
        """See `_CompiledBuild.entries`."""
        return np.concatenate([p[0] for p in self._placed]), np.concatenate([p[1] for p in self._placed])

    def repeats(self) -> tuple[Rows, Rows]:
        """See `_CompiledBuild.repeats`."""
        return self._repeats


def _words_of(shift: int) -> int:
    return 1 << (_WORD_BITS - shift - 6)


def _bitmap(places: Words, num_words: int) -> Words:
    """A bitmap of ascending positions."""
    bits = np.zeros(num_words, np.uint64)
    if len(places):
        words = places >> np.uint64(6)
        firsts = np.flatnonzero(np.concatenate([[True], words[1:] != words[:-1]]))
        masks = np.uint64(1) << (places & np.uint64(63))
        bits[words[firsts].view(np.int64)] = np.bitwise_or.reduceat(masks, firsts)
    return bits


def _sorting(hashes: Words) -> Rows:
    """The order of the hashes, equal ones in theirs: radix by the leading bits, then a merge of short runs."""
    coarse = np.argsort((hashes >> np.uint64(48)).astype(np.uint16), kind="stable")
    order: Rows = coarse[np.argsort(hashes[coarse], kind="stable")]
    return order
