"""Murmur3 (x86, 32 bits, seed 0) over whole columns, as Iceberg's bucket transform needs it.

Algorithm: Austin Appleby's MurmurHash3_x86_32; which bytes of a value are hashed: Iceberg specification, appendix B.
"""

import numpy as np
import numpy.typing as npt

UInt32s = npt.NDArray[np.uint32]

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_FIVE = np.uint32(5)
_ADD = np.uint32(0xE6546B64)


def hash_longs(values: npt.NDArray[np.int64]) -> UInt32s:
    """Hash of each value's eight little-endian bytes."""
    words = values.view(np.uint64)
    low = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (words >> np.uint64(32)).astype(np.uint32)
    state = _mix(np.zeros(len(values), np.uint32), low)
    return _finish(_mix(state, high), np.full(len(values), 8, np.uint32))


def hash_bytes(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> UInt32s:
    """Hash of the byte strings data[start : start + length], in passes of four bytes over those still long enough."""
    state = np.zeros(len(starts), np.uint32)
    blocks = lengths >> 2
    rows = np.flatnonzero(blocks > 0)
    block = 0
    while len(rows):
        at = starts[rows] + 4 * block
        word = np.zeros(len(rows), np.uint32)
        for byte in range(4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        state[rows] = _mix(state[rows], word)
        block += 1
        rows = rows[blocks[rows] > block]
    return _finish(_mix_tail(state, data, starts + (blocks << 2), lengths & 3), lengths.astype(np.uint32))


def _mix_tail(
    state: UInt32s, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> UInt32s:
    word = np.zeros(len(state), np.uint32)
    for byte in range(3):
        rows = np.flatnonzero(lengths > byte)
        word[rows] |= data[starts[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    return state ^ _scramble(word)


def _scramble(word: UInt32s) -> UInt32s:
    return _rotate(word * _C1, 15) * _C2


def _mix(state: UInt32s, word: UInt32s) -> UInt32s:
    return _rotate(state ^ _scramble(word), 13) * _FIVE + _ADD


def _rotate(word: UInt32s, bits: int) -> UInt32s:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _finish(state: UInt32s, lengths: UInt32s) -> UInt32s:
    state = state ^ lengths
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))
