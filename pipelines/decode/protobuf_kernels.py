"""Compiled functions that find the fields of Protobuf messages."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: PLR0917 - one compiled loop per kernel, which takes arrays one by one

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.jsonscan.value_kernels import require
from nevermore.scan_core.native import callee, kernel

VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5
"""How a field is written, by the numbers of the format. Groups, which are older, count as broken."""
_MAX_TAG = 2**32 - 1

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
Words = NDArray[np.int64]


@callee
def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """(64 bits of the number at a position, the position after it); -1 as position if it is cut or too long."""
    value = np.uint64(0)
    for k in range(10):
        if at + k >= end:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[at + k])
        if k == 9 and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        value |= (byte & np.uint64(127)) << np.uint64(7 * k)
        if byte < np.uint64(128):
            return np.int64(value), np.int64(at + k + 1)
    return np.int64(0), np.int64(-1)


@callee
def read_fixed(data: Bytes, at: int, end: int, size: int) -> tuple[int, int]:
    """(the bits of `size` bytes, the position after them); -1 as position if these are cut."""
    if end - at < size:
        return np.int64(0), np.int64(-1)
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return np.int64(value), np.int64(at + size)


@callee
def read_value(data: Bytes, at: int, end: int, wire: int) -> tuple[int, int]:
    """(the bits of a value or where its bytes begin, the position after it); -1 as position if it is broken."""
    if wire == VARINT:
        return read_varint(data, at, end)
    if wire == FIXED64:
        return read_fixed(data, at, end, 8)
    if wire == FIXED32:
        return read_fixed(data, at, end, 4)
    if wire == SIZED:
        size, first = read_varint(data, at, end)
        if first < 0 or size < 0 or size > end - first:
            return np.int64(0), np.int64(-1)
        return first, first + size
    return np.int64(0), np.int64(-1)


@callee
def count_packed(data: Bytes, first: int, end: int, wire: int) -> int:
    """How many numbers are packed between two positions; -1 if the last one is cut."""
    count = np.int64(0)
    at = np.int64(first)
    while at < end:
        _, at = read_value(data, at, end, wire)
        if at < 0:
            return np.int64(-1)
        count += 1
    return count


@callee
def find_field(numbers: Places, number: int, hint: int) -> int:
    """The index of a number in ascending ones, which most likely is `hint`; -1 if there is none."""
    if hint < len(numbers) and numbers[hint] == number:
        return np.int64(hint)
    low, high = np.int64(0), np.int64(len(numbers))
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < len(numbers) and numbers[low] == number else np.int64(-1)


@kernel("u8[] i32[] i32[] i32[] u8[] bool[] i64[][]= i32[][]= u8[][]= bool[]=")
def find_fields(
    data: Bytes,
    start: Places,
    end: Places,
    numbers: Places,
    wires: NDArray[np.uint8],
    many: NDArray[np.bool_],
    words: NDArray[np.int64],
    stops: NDArray[np.int32],
    seen: NDArray[np.uint8],
    bad: NDArray[np.bool_],
) -> None:
    """Find the known fields of messages of one type; others are skipped.

    Args:
        data: bytes of all messages.
        start: begin of each message.
        end: end of each message.
        numbers: numbers of the known fields, ascending.
        wires: how each is written.
        many: fields with any number of values.
        words: receives, per field and message, the bits of the last value, or where its bytes begin.
        stops: receives, per field and message, where these bytes end, or of `many` the number of values.
        seen: receives, per field and message, how often the field occurs, at most 2.
        bad: marks broken messages, of which the other results mean nothing.
    """
    count, fields = len(start), len(numbers)
    require(len(end) >= count and len(bad) >= count and len(wires) >= fields and len(many) >= fields)
    require(words.shape[0] >= fields and stops.shape[0] >= fields and seen.shape[0] >= fields)
    require(words.shape[1] >= count and stops.shape[1] >= count and seen.shape[1] >= count)
    for row in range(count):
        at, until = np.int64(start[row]), np.int64(end[row])
        require(at >= 0 and at <= until <= len(data))
        hint = np.int64(0)
        while at < until:
            tag, place = read_varint(data, at, until)
            wire = tag & 7
            word, after = np.int64(0), np.int64(-1)
            if place >= 0 and tag >= 8 and tag <= _MAX_TAG:
                word, after = read_value(data, place, until, wire)
            if after < 0:
                bad[row] = True
                break
            field = find_field(numbers, tag >> 3, hint)
            if field >= 0:
                hint = field + 1
                if wire == wires[field]:
                    seen[field, row] = min(seen[field, row] + 1, 2)
                    if many[field]:
                        stops[field, row] += 1
                    else:
                        words[field, row] = word
                        stops[field, row] = after
                elif wire == SIZED and many[field]:
                    packed = count_packed(data, word, after, np.int64(wires[field]))
                    if packed < 0:
                        bad[row] = True
                        break
                    stops[field, row] += packed
            at = after


@kernel("u8[] i32[] i32[] i64 i64 bool[] i64[]= i32[]=")
def find_values(
    data: Bytes,
    start: Places,
    end: Places,
    number: int,
    wire: int,
    bad: NDArray[np.bool_],
    words: Words,
    stops: Places,
) -> int:
    """Find all values of one field of messages, which `find_fields` has found to be right, and return their number.

    Args:
        data: bytes of all messages.
        start: begin of each message.
        end: end of each message.
        number: number of the field.
        wire: how its values are written, if they are not packed.
        bad: messages to leave out.
        words: receives the bits of each value, or where its bytes begin.
        stops: receives where these bytes end.
    """
    count = len(start)
    require(len(end) >= count and len(bad) >= count and len(stops) >= len(words))
    found = np.int64(0)
    for row in range(count):
        at, until = np.int64(start[row]), np.int64(end[row])
        require(at >= 0 and at <= until <= len(data))
        if bad[row]:
            continue
        while at < until:
            tag, place = read_varint(data, at, until)
            require(place >= 0)
            word, after = read_value(data, place, until, tag & 7)
            require(after >= 0)
            if tag >> 3 == number:
                if tag & 7 == wire:
                    require(found < len(words))
                    words[found] = word
                    stops[found] = after
                    found += 1
                elif tag & 7 == SIZED:
                    inner = word
                    while inner < after:
                        word, inner = read_value(data, inner, after, wire)
                        require(inner >= 0 and found < len(words))
                        words[found] = word
                        stops[found] = inner
                        found += 1
            at = after
    return found
