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
from nevermore.scan_core.native.compiled import load, stored_kernels
from nevermore.scan_core.rows.buffers import Mask, Rows

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
