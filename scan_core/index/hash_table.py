"""Exact lookup of 64-bit hashes: sorted hashes in buckets by their leading bits, each with a Bloom word.

The arrays are flat and immutable, so that they can be shared between threads or mapped from a file. One build and two
ways to look up, NumPy here and compiled in `kernels.py`, which find the same entries.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scan_core.index.bloom import build_words, may_contain
from scan_core.index.key_columns import Rows, Words

KEYS_PER_BUCKET = 4
"""Four 8-byte hashes are half a cache line, and share a 64-bit Bloom word: 16 bits per key."""
LOOKUP_BLOCK_ROWS = 32_768
"""Rows looked up at a time: intermediate arrays stay in the L2 cache."""


@dataclass(frozen=True, slots=True, eq=False)
class HashTable:
    """`hashes` ascending and distinct; bucket b holds entries `starts[b] .. starts[b + 1]`."""

    hashes: Words
    starts: npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
    bloom: Words
    shift: int

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return self.hashes.nbytes + self.starts.nbytes + self.bloom.nbytes

    def find(self, hashes: Words) -> tuple[Rows, Rows]:
        """Which of the hashes are in the table, as ascending positions in `hashes`, and the entry of each."""
        rows: list[Rows] = []
        entries: list[Rows] = []
        for begin in range(0, len(hashes), LOOKUP_BLOCK_ROWS):
            block = hashes[begin : begin + LOOKUP_BLOCK_ROWS]
            survivors = may_contain(self.bloom, block, self.shift)
            if len(survivors):
                found, at = self._find_exact(block[survivors])
                rows.append(survivors[found] + begin)
                entries.append(at)
        if not rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate(rows), np.concatenate(entries)

    def _find_exact(self, hashes: Words) -> tuple[Rows, Rows]:
        buckets = (hashes >> np.uint64(self.shift)).astype(np.int64)
        at = self.starts[buckets].astype(np.int64)
        ends = self.starts[buckets + 1].astype(np.int64)
        last = len(self.hashes) - 1
        behind = np.flatnonzero((at < ends) & (self.hashes[np.minimum(at, last)] < hashes))
        while len(behind):
            at[behind] += 1
            next_at = at[behind]
            still = (next_at < ends[behind]) & (self.hashes[np.minimum(next_at, last)] < hashes[behind])
            behind = behind[still]
        found = np.flatnonzero((at < ends) & (self.hashes[np.minimum(at, last)] == hashes))
        return found, at[found]


def build_hash_table(sorted_hashes: Words) -> HashTable:
    """A table over ascending, distinct hashes; its entries are their positions."""
    count = len(sorted_hashes)
    bits = max((count // KEYS_PER_BUCKET).bit_length(), 1)
    shift = 64 - bits
    buckets = (sorted_hashes >> np.uint64(shift)).astype(np.int64)
    starts = np.zeros((1 << bits) + 1, np.int64)
    np.cumsum(np.bincount(buckets, minlength=1 << bits), out=starts[1:])
    bloom = build_words(sorted_hashes, starts)
    if count < 1 << 32:
        return HashTable(sorted_hashes, starts.astype(np.uint32), bloom, shift)
    return HashTable(sorted_hashes, starts.astype(np.uint64), bloom, shift)


def order_of(hashes: Words) -> Rows:
    """The stable order that sorts the hashes: radix by the leading 16 bits, then merge of nearly sorted runs."""
    coarse = np.argsort((hashes >> np.uint64(48)).astype(np.uint16), kind="stable")
    return coarse[np.argsort(hashes[coarse], kind="stable")]
