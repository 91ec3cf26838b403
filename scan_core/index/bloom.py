"""A filter of one bit per hash, sixteen times as many bits as keys, for hashes in ascending order.

It answers most misses with one access to memory that stays in the cache. One hash function is enough: what passes is
looked up exactly, and every further bit costs all rows more than the few false positives it prevents.
"""

import numpy as np
import numpy.typing as npt

from scan_core.index.key_columns import Flags, Words

BITS_PER_KEY = 16
Bits = npt.NDArray[np.uint8]

_MASKS = (1 << np.arange(8)).astype(np.uint8)


def bit_shift(num_keys: int) -> int:
    """The bit of a hash is its leading bits: `hash >> bit_shift`. At least one byte of bits."""
    return 64 - max((num_keys * BITS_PER_KEY).bit_length(), 3)


def filter_bytes(shift: int) -> int:
    """Size of the filter."""
    return 1 << (64 - shift - 3)


def build_bits(sorted_hashes: Words, shift: int) -> Bits:
    """The filter over ascending hashes."""
    bits = np.zeros(filter_bytes(shift), np.uint8)
    if not len(sorted_hashes):
        return bits
    places = sorted_hashes >> np.uint64(shift)
    masks = _MASKS[(places & np.uint64(7)).view(np.int64)]
    places >>= np.uint64(3)
    firsts = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))
    bits[places[firsts].view(np.int64)] = np.bitwise_or.reduceat(masks, firsts)
    return bits


def may_contain(bits: Bits, hashes: Words, shift: int) -> Flags:
    """Which of the hashes may be in the filter."""
    places = hashes >> np.uint64(shift)
    found = np.take(_MASKS, (places & np.uint64(7)).view(np.int64), mode="clip")
    places >>= np.uint64(3)
    found &= np.take(bits, places.view(np.int64), mode="clip")
    present: Flags = found != 0
    return present
