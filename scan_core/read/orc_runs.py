"""The run-length encodings of ORC streams: booleans, and integers in both versions, as NumPy arrays.

Runs are walked in Python, values within a run never. (ORC v1 specification, Run Length Encoding.)
"""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
"""Bits a value, by their five-bit code."""


def decode_booleans(data: bytes, count: int) -> npt.NDArray[np.bool_]:
    """The first `count` booleans of a stream, most significant bit first.

    Raises:
        ValueError: the stream ends before.
    """
    parts: list[bytes] = []
    position, left = 0, -(-count // 8)
    while left > 0 and position < len(data):
        control = data[position]
        if control < 0x80:
            part = data[position + 1 : position + 2] * (control + 3)
            position += 2
        else:
            part = data[position + 1 : position + 257 - control]
            position += 257 - control
        parts.append(part)
        left -= len(part)
    bits = np.unpackbits(np.frombuffer(b"".join(parts), np.uint8))
    if len(bits) < count:
        raise ValueError(f"a stream of booleans ends after {len(bits)} of {count}")
    return bits[:count].astype(np.bool_)


def decode_integers(data: bytes, count: int, *, version: int, signed: bool) -> Integers:
    """The first `count` integers of a stream in run-length encoding 1 or 2; unsigned ones are below 2**63.

    Raises:
        ValueError: the stream ends before, or a run contradicts itself.
    """
    runs: list[Integers] = []
    cursor, left = _Cursor(data), count
    try:
        while left > 0:
            run = _run_v1(cursor, signed) if version == 1 else _run_v2(cursor, signed)
            runs.append(run)
            left -= len(run)
    except IndexError as error:
        raise ValueError(f"a stream of integers ends after {count - left} of {count}") from error
    return np.concatenate([np.zeros(0, np.int64), *runs])[:count]


class _Cursor:
    """Bytes, and how many of them were read."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def byte(self) -> int:
        self._position += 1
        return self._data[self._position - 1]

    def take(self, count: int) -> bytes:
        taken = self._data[self._position : self._position + count]
        if len(taken) < count:
            raise IndexError
        self._position += count
        return taken

    def varint(self, *, signed: bool) -> int:
        value = 0
        for index in range(10):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1) if signed else value
        raise ValueError("an integer of more than ten bytes")

    def packed(self, count: int, width: int) -> npt.NDArray[np.uint64]:
        """`count` values of `width` bits each, padded to whole bytes."""
        if width == 0:
            return np.zeros(count, np.uint64)
        bits = np.unpackbits(np.frombuffer(self.take((count * width + 7) // 8), np.uint8))
        values = np.zeros(count, np.uint64)
        for column in bits[: count * width].reshape(count, width).T:
            values = (values << np.uint64(1)) | column
        return values


def _run_v1(cursor: _Cursor, signed: bool) -> Integers:  # noqa: FBT001  private
    control = cursor.byte()
    if control >= 0x80:
        return _array([cursor.varint(signed=signed) for _ in range(256 - control)])
    step = int.from_bytes(cursor.take(1), signed=True)
    return _array([cursor.varint(signed=signed)]) + step * np.arange(control + 3, dtype=np.int64)


def _run_v2(cursor: _Cursor, signed: bool) -> Integers:  # noqa: FBT001  private
    first = cursor.byte()
    if first >> 6 == 0:
        value = int.from_bytes(cursor.take(((first >> 3) & 7) + 1), "big")
        return np.repeat(_array([(value >> 1) ^ -(value & 1) if signed else value]), (first & 7) + 3)
    code = (first >> 1) & 31
    length = ((first & 1) << 8 | cursor.byte()) + 1
    match first >> 6:
        case 1:
            values = cursor.packed(length, _WIDTHS[code])
            return _unzigzag(values) if signed else values.astype(np.int64)
        case 2:
            return _patched_base(cursor, length, _WIDTHS[code])
        case _:
            return _delta(cursor, length, _WIDTHS[code] if code else 0, signed=signed)


def _patched_base(cursor: _Cursor, length: int, width: int) -> Integers:
    third, fourth = cursor.byte(), cursor.byte()
    base_bytes, patch_width = (third >> 5) + 1, _WIDTHS[third & 31]
    gap_width, num_patches = (fourth >> 5) + 1, fourth & 31
    base = int.from_bytes(cursor.take(base_bytes), "big")
    sign = 1 << (8 * base_bytes - 1)
    base = -(base & ~sign) if base & sign else base
    values = cursor.packed(length, width)
    entry_width = next(w for w in _WIDTHS if w >= min(gap_width + patch_width, 64))
    patches = cursor.packed(num_patches, entry_width)
    at = 0
    for patch in patches.tolist():
        at += patch >> patch_width
        if at >= length or width >= 64:
            raise ValueError("a patch lies outside of its run")
        values[at] |= np.uint64(((patch & ((1 << patch_width) - 1)) << width) & (2**64 - 1))
    return values.astype(np.int64) + _array([base])


def _delta(cursor: _Cursor, length: int, width: int, *, signed: bool) -> Integers:
    base, step = cursor.varint(signed=signed), cursor.varint(signed=True)
    steps = np.full(max(length - 1, 0), _array([step])[0])
    if width and length > 2:
        packed = cursor.packed(length - 2, width).astype(np.int64)
        steps[1:] = packed if step >= 0 else -packed
    values: Integers = _array([base]) + np.concatenate([np.zeros(1, np.int64), np.cumsum(steps)])
    return values


def _unzigzag(values: npt.NDArray[np.uint64]) -> Integers:
    halves: Integers = (values >> np.uint64(1)).astype(np.int64)
    return halves ^ -(values & np.uint64(1)).astype(np.int64)


def _array(values: list[int]) -> Integers:
    try:
        return np.array(values, np.int64)
    except OverflowError as error:
        raise ValueError("an integer of more than 64 bits") from error
