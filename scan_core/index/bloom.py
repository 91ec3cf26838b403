"""A Bloom filter of one 64-bit word per bucket, for hashes that are already grouped by their leading bits.

Every key sets three bits of the word of its bucket, about 16 bits per key: one memory access answers most misses.
(Putze, Sanders, Singler: Cache-, hash- and space-efficient Bloom filters, 2007, "blocked" variant.)
"""

import numpy as np

from scan_core.index.key_columns import Rows, Words

_ONE = np.uint64(1)
_SIX_BITS = np.uint64(63)


def bits_of(hashes: Words) -> Words:
    """The three bits each hash sets, taken from its low 18 bits (buckets use the leading ones)."""
    bits: Words = np.left_shift(_ONE, hashes & _SIX_BITS)
    bits |= np.left_shift(_ONE, (hashes >> np.uint64(6)) & _SIX_BITS)
    bits |= np.left_shift(_ONE, (hashes >> np.uint64(12)) & _SIX_BITS)
    return bits


def build_words(sorted_hashes: Words, bucket_starts: Rows) -> Words:
    """One word per bucket; `bucket_starts` has one entry more than there are buckets."""
    words = np.zeros(len(bucket_starts) - 1, np.uint64)
    filled = np.flatnonzero(bucket_starts[1:] > bucket_starts[:-1])
    if len(filled):
        words[filled] = np.bitwise_or.reduceat(bits_of(sorted_hashes), bucket_starts[filled])
    return words


def may_contain(words: Words, hashes: Words, shift: int) -> Rows:
    """Positions of the hashes whose bits are all set; the bucket of a hash is `hash >> shift`."""
    bits = bits_of(hashes)
    missing = bits & ~words[hashes >> np.uint64(shift)]
    return np.flatnonzero(missing == 0)
