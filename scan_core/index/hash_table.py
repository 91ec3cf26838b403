"""Exact lookup of 64-bit hashes: sorted hashes in buckets by their leading bits, behind a bit filter.

The arrays are flat and immutable, so that they can be shared between threads or mapped from a file. One build and two
ways to look up, NumPy here and compiled in `kernels.py`, which find the same entries.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scan_core.index.bloom import Bits, bit_shift, build_bits, may_contain
from scan_core.index.key_columns import Flags, Rows, Words

KEYS_PER_BUCKET = 2
"""Fewer cost memory for the starts of buckets, more cost steps inside of them."""
FILTER_BLOCK_ROWS = 16_384
"""Rows filtered at a time: intermediate arrays stay in the L2 cache."""


_HIGHEST = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True, eq=False)
class HashTable:
    """Entry e has the hash `hashes[e]`, ascending and distinct; the entries of bucket b begin at `starts[b]`.

    One more hash, the highest there is, ends every walk.
    """

    hashes: Words
    starts: npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
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

    def find(self, hashes: Words) -> tuple[Rows, Rows]:
        """Which of the hashes are in the table, as ascending positions in `hashes`, and the entry of each."""
        survivors = np.flatnonzero(self._may_contain(hashes))
        rows, entries = self._find_exact(hashes[survivors])
        return survivors[rows], entries

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


def build_hash_table(sorted_hashes: Words) -> HashTable:
    """A table over ascending, distinct hashes; its entries are their positions."""
    count = len(sorted_hashes)
    bucket_bits = max((count // KEYS_PER_BUCKET).bit_length(), 1)
    shift = 64 - bucket_bits
    buckets = (sorted_hashes >> np.uint64(shift)).astype(np.int64)
    starts = np.zeros((1 << bucket_bits) + 1, np.int64)
    np.cumsum(np.bincount(buckets, minlength=1 << bucket_bits), out=starts[1:])
    filter_shift = bit_shift(count)
    bits = build_bits(sorted_hashes, filter_shift)
    narrow = starts.astype(np.uint32) if count < 1 << 32 else starts.astype(np.uint64)
    ended = np.append(sorted_hashes, np.uint64(_HIGHEST))
    return HashTable(ended, narrow, shift, bits, filter_shift)


def order_of(hashes: Words) -> Rows:
    """The stable order that sorts the hashes: radix by the leading 16 bits, then merge of nearly sorted runs."""
    coarse = np.argsort((hashes >> np.uint64(48)).astype(np.uint16), kind="stable")
    return coarse[np.argsort(hashes[coarse], kind="stable")]
