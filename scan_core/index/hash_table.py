"""Exact lookup of 64-bit hashes: sorted hashes in buckets by their leading bits, behind a bit filter.

The arrays are flat and immutable, so that they can be shared between threads or mapped from a file. One build and two
ways to look up, NumPy here and compiled in `kernels.py`, which find the same entries.
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from scan_core.index.bloom import Bits, bit_shift, build_bits, filter_bytes, may_contain
from scan_core.index.key_columns import Flags, Rows, Words

KEYS_PER_BUCKET = 2
"""Fewer cost memory for the starts of buckets, more cost steps inside of them."""
MAX_ENTRIES = (1 << 32) - 2
FILTER_BLOCK_ROWS = 16_384
"""Rows filtered at a time: intermediate arrays stay in the L2 cache."""


_HIGHEST = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True, eq=False)
class HashTable:
    """Entry e has the hash `hashes[e]`, ascending and distinct; the entries of bucket b begin at `starts[b]`.

    One more hash, the highest there is, ends every walk.
    """

    hashes: Words
    starts: npt.NDArray[np.uint32]
    shift: int
    filter: Bits
    filter_shift: int

    @property
    def num_entries(self) -> int:
        """Hashes in the table."""
        return len(self.hashes) - 1

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return self.hashes.nbytes + self.starts.nbytes + self.filter.nbytes

    def find(self, hashes: Words, kernels: ModuleType | None = None) -> tuple[Rows, Rows]:
        """Which of the hashes are in the table, as ascending positions in `hashes`, and the entry of each."""
        if kernels is not None:
            return self._find_compiled(hashes, kernels)
        survivors = np.flatnonzero(self._may_contain(hashes))
        rows, entries = self._find_exact(hashes[survivors])
        return survivors[rows], entries

    def _find_compiled(self, hashes: Words, kernels: ModuleType) -> tuple[Rows, Rows]:
        rows, entries = np.empty((2, len(hashes)), np.int64)
        shifts = np.uint64(self.filter_shift), np.uint64(self.shift)
        found = kernels.find(hashes, self.filter, shifts[0], self.starts, shifts[1], self.hashes, rows, entries)
        return rows[:found], entries[:found]

    def _may_contain(self, hashes: Words) -> Flags:
        flags = np.empty(len(hashes), np.bool_)
        for begin in range(0, len(hashes), FILTER_BLOCK_ROWS):
            block = hashes[begin : begin + FILTER_BLOCK_ROWS]
            flags[begin : begin + len(block)] = may_contain(self.filter, block, self.filter_shift)
        return flags

    def _find_exact(self, hashes: Words) -> tuple[Rows, Rows]:
        """Walk from the start of each hash's bucket to the first entry that is not less."""
        entries = self.starts[(hashes >> np.uint64(self.shift)).view(np.int64)].astype(np.int64)
        seen = self.hashes[entries]
        behind = np.flatnonzero(seen < hashes)
        while len(behind):
            following = entries[behind] + 1
            entries[behind] = following
            values = self.hashes[following]
            seen[behind] = values
            behind = behind[values < hashes[behind]]
        rows = np.flatnonzero((seen == hashes) & (entries < self.num_entries))
        return rows, entries[rows]


def build_hash_table(sorted_hashes: Words, kernels: ModuleType | None = None) -> HashTable:
    """A table over ascending, distinct hashes; its entries are their positions.

    Raises:
        ValueError: more hashes than fit one table; partition them.
    """
    count = len(sorted_hashes)
    if count > MAX_ENTRIES:
        raise ValueError(f"{count} hashes in one table of at most {MAX_ENTRIES}")
    bucket_bits = max((count // KEYS_PER_BUCKET).bit_length(), 1)
    shift, filter_shift = 64 - bucket_bits, bit_shift(count)
    ended = np.append(sorted_hashes, np.uint64(_HIGHEST))
    if kernels is not None:
        starts = np.zeros((1 << bucket_bits) + 1, np.uint32)
        bits = np.zeros(filter_bytes(filter_shift), np.uint8)
        kernels.fill_table(sorted_hashes, np.uint64(shift), np.uint64(filter_shift), starts, bits)
        return HashTable(ended, starts, shift, bits, filter_shift)
    counts = np.bincount((sorted_hashes >> np.uint64(shift)).view(np.int64), minlength=1 << bucket_bits)
    starts = np.zeros((1 << bucket_bits) + 1, np.uint32)
    np.cumsum(counts, out=starts[1:])
    return HashTable(ended, starts, shift, build_bits(sorted_hashes, filter_shift), filter_shift)


def sort_hashes(hashes: Words, kernels: ModuleType | None = None) -> tuple[Words, npt.NDArray[np.uint32]]:
    """The hashes in ascending order, and the position of each, equal ones in their order."""
    if kernels is not None:
        ordered, rows = np.empty(len(hashes), np.uint64), np.empty(len(hashes), np.uint32)
        if kernels.sort_hashes(hashes, ordered, rows):
            return ordered, rows
    # radix by the leading 16 bits, then a merge of runs that are nearly sorted
    coarse = np.argsort((hashes >> np.uint64(48)).astype(np.uint16), kind="stable")
    order = coarse[np.argsort(hashes[coarse], kind="stable")].astype(np.uint32)
    return hashes[order], order
