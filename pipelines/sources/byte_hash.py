"""XXH64 of bytes that come in blocks: what files are known by, at the speed of memory (Y. Collet, xxHash, 2012).

It tells files apart that differ by chance, not files that someone made to be taken for each other.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"

import numpy as np
from numpy.typing import NDArray

from pipelines.jsonscan.value_kernels import require
from scan_core.native import inlined, kernel

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE = 32
_MASK = 2**64 - 1


class ByteHash:
    """The hash of all bytes so far; `hexdigest` may be asked in between."""

    def __init__(self) -> None:
        p1, p2 = int(_P1), int(_P2)
        self._lanes = np.array([(p1 + p2) & _MASK, p2, 0, -p1 & _MASK], np.uint64)
        self._rest = b""
        self._length = 0

    def update(self, block: bytes) -> None:
        """Take more bytes."""
        self._length += len(block)
        if self._rest:
            missing = _STRIPE - len(self._rest)
            self._rest, block = self._rest + block[:missing], block[missing:]
            if len(self._rest) < _STRIPE:
                return
            _mix(np.frombuffer(self._rest, "<u8"), self._lanes)
        whole = len(block) // _STRIPE * _STRIPE
        if whole:
            _mix(np.frombuffer(block, "<u8", whole // 8), self._lanes)
        self._rest = block[whole:]

    def hexdigest(self) -> str:
        """16 hexadecimal digits."""
        words = np.frombuffer(self._rest, "<u8", len(self._rest) // 8)
        tail = np.frombuffer(self._rest, np.uint8)[len(words) * 8 :]
        return f"{int(_finished(self._lanes, words, tail, np.uint64(self._length))):016x}"


@inlined
def _rotated(value: int, bits: int) -> int:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@kernel("u64[] u64[]=")
def _mix(words: NDArray[np.uint64], lanes: NDArray[np.uint64]) -> None:
    require(len(words) % 4 == 0 and len(lanes) == 4)
    a, b, c, d = lanes[0], lanes[1], lanes[2], lanes[3]
    for i in range(0, len(words), 4):
        k = np.uint64(i)
        a = _rotated(a + words[k] * _P2, 31) * _P1
        b = _rotated(b + words[k + np.uint64(1)] * _P2, 31) * _P1
        c = _rotated(c + words[k + np.uint64(2)] * _P2, 31) * _P1
        d = _rotated(d + words[k + np.uint64(3)] * _P2, 31) * _P1
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d


@kernel("u64[] u64[] u8[] u64")
def _finished(lanes: NDArray[np.uint64], words: NDArray[np.uint64], tail: NDArray[np.uint8], length: int) -> int:
    require(len(lanes) == 4)
    if length >= np.uint64(_STRIPE):
        total = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
        for lane in lanes:
            total = (total ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        total = _P5
    total += length
    for word in words:
        total = _rotated(total ^ (_rotated(word * _P2, 31) * _P1), 27) * _P1 + _P4
    first = 0
    if len(tail) >= 4:
        four = np.uint64(tail[0]) | np.uint64(tail[1]) << np.uint64(8)
        four |= np.uint64(tail[2]) << np.uint64(16) | np.uint64(tail[3]) << np.uint64(24)
        total = _rotated(total ^ (four * _P1), 23) * _P2 + _P3
        first = 4
    for i in range(first, len(tail)):
        total = _rotated(total ^ (np.uint64(tail[i]) * _P5), 11) * _P1
    total = (total ^ (total >> np.uint64(33))) * _P2
    total = (total ^ (total >> np.uint64(29))) * _P3
    return total ^ (total >> np.uint64(32))
