"""What kernels have in common: numbers, hashes and bits.

Kernels are written in C's manner: pointers and 64-bit unsigned numbers, no objects, nothing allocated, nothing called.
They give the same answers as the NumPy code that calls them. Only `machine_code.py` imports them, to compile them:
importing Numba costs half a second. Every index is unsigned, which spares tests for wrapping around and lets LLVM
merge the loads of bytes.
"""

from typing import Any

import numpy as np

from scan_core.native.machine_code import inlined

u = np.uint64


@inlined
def splitmix(number: Any) -> Any:
    """`key_hash.splitmix`."""
    mixed = number + u(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> u(30))) * u(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> u(27))) * u(0x94D049BB133111EB)
    return mixed ^ (mixed >> u(31))


@inlined
def mix(word: Any, secret: Any, first: Any, multiplier: Any) -> Any:
    """What a word contributes to its row's hash."""
    mixed = (word ^ secret) * first
    return (mixed ^ (mixed >> u(32))) * multiplier


@inlined
def finished(total: Any, first: Any) -> Any:
    """The hash of what the words contributed."""
    mixed = (total ^ (total >> u(29))) * first
    return mixed ^ (mixed >> u(32))


@inlined
def ones(word: Any) -> Any:
    """How many bits are set; LLVM knows this form and makes one instruction of it."""
    word -= (word >> u(1)) & u(0x5555555555555555)
    word = (word & u(0x3333333333333333)) + ((word >> u(2)) & u(0x3333333333333333))
    word = (word + (word >> u(4))) & u(0x0F0F0F0F0F0F0F0F)
    return (word * u(0x0101010101010101)) >> u(56)


@inlined
def word_at(data: Any, place: Any) -> Any:
    """Eight bytes, little-endian."""
    low = u(data[place]) | (u(data[place + u(1)]) << u(8))
    low |= (u(data[place + u(2)]) << u(16)) | (u(data[place + u(3)]) << u(24))
    high = u(data[place + u(4)]) | (u(data[place + u(5)]) << u(8))
    high |= (u(data[place + u(6)]) << u(16)) | (u(data[place + u(7)]) << u(24))
    return low | (high << u(32))


@inlined
def word_of(data: Any, data_end: Any, place: Any, end: Any) -> Any:
    """The word at `place` of a string that ends at `end`, zero-padded; nothing is read behind `data_end`."""
    if place + u(8) <= data_end:
        word = word_at(data, place)
        if end - place < u(8):
            word &= (u(1) << ((end - place) * u(8))) - u(1)
        return word
    word, shift = u(0), u(0)
    while place < end and shift < u(64):
        word |= u(data[place]) << shift
        place, shift = place + u(1), shift + u(8)
    return word
