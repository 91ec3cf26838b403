"""xxHash64 with seed 0 of every value of a column at once, values of one length together.

The specification for single values is in `files/parquet/bloom.py`; both give the same numbers.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

Hashes = npt.NDArray[np.uint64]
Matrix = npt.NDArray[np.uint8]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_STRIPE, _WORD, _HALF = 32, 8, 4


def xxhash64_column(array: pa.Array) -> Hashes:
    """One hash per value of an array without NULL: of the bytes of text and binary, of the stored ones of numbers."""
    kind = array.type
    if pt.is_fixed_size_binary(kind) or pt.is_primitive(kind):
        width = kind.byte_width
        data = np.frombuffer(array.buffers()[1] or b"", np.uint8)[array.offset * width :][: len(array) * width]
        return _hash_matrix(data.reshape(len(array), width))
    is_large = pt.is_large_string(kind) or pt.is_large_binary(kind)
    offset_kind = np.dtype(np.int64 if is_large else np.int32)
    _, offsets_buffer, data_buffer = array.buffers()
    if len(array) == 0:
        return np.zeros(0, np.uint64)
    offsets = np.frombuffer(offsets_buffer, offset_kind)[array.offset :][: len(array) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    lengths = np.diff(offsets)
    hashes = np.empty(len(array), np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        places = offsets[rows][:, None] + np.arange(length)
        hashes[rows] = _hash_matrix(data[places])
    return hashes


def _hash_matrix(rows: Matrix) -> Hashes:
    count, length = rows.shape
    position = 0
    with np.errstate(over="ignore"):
        if length >= _STRIPE:
            lanes = [np.full(count, v, np.uint64) for v in (_P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1)]
            while position + _STRIPE <= length:
                lanes = [_round(lane, _words(rows, position + 8 * i)) for i, lane in enumerate(lanes)]
                position += _STRIPE
            value = sum(
                (_rotated(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)),
                np.zeros(count, np.uint64),
            )
            for lane in lanes:
                value = (value ^ _round(np.zeros(count, np.uint64), lane)) * _P1 + _P4
        else:
            value = np.full(count, _P5, np.uint64)
        value = value + np.uint64(length)
        while position + _WORD <= length:
            turned = _rotated(value ^ _round(np.zeros(count, np.uint64), _words(rows, position)), 27)
            value = turned * _P1 + _P4
            position += _WORD
        if position + _HALF <= length:
            half = np.ascontiguousarray(rows[:, position : position + _HALF]).view("<u4")[:, 0].astype(np.uint64)
            value = _rotated(value ^ (half * _P1), 23) * _P2 + _P3
            position += _HALF
        for place in range(position, length):
            value = _rotated(value ^ (rows[:, place].astype(np.uint64) * _P5), 11) * _P1
        value = (value ^ (value >> np.uint64(33))) * _P2
        value = (value ^ (value >> np.uint64(29))) * _P3
        return value ^ (value >> np.uint64(32))


def _words(rows: Matrix, position: int) -> Hashes:
    words: Hashes = np.ascontiguousarray(rows[:, position : position + _WORD]).view("<u8")[:, 0]
    return words


def _round(lane: Hashes, word: Hashes) -> Hashes:
    return _rotated(lane + word * _P2, 31) * _P1


def _rotated(value: Hashes, turn: int) -> Hashes:
    return (value << np.uint64(turn)) | (value >> np.uint64(64 - turn))
