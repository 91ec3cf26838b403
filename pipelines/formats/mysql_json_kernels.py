"""A compiled function that writes JSON values of MySQL's binary log, which are stored as trees of offsets, as text.

The text is the one that the server itself writes, so that rows of a load and rows of the log have the same.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0915, PLR0917 - one compiled loop per kernel, which takes arrays one by one

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.formats.mysql_kernels import (
    decimal_bytes,
    little,
    put_clock,
    put_date,
    put_decimal,
    put_number,
)
from nevermore.pipelines.jsonscan.value_kernels import require
from nevermore.scan_core.native import callee, kernel

MAX_DEPTH = 101
"""Containers in each other: the server allows 100."""
FRAME = 6
"""Numbers of a container that is being written: begin, end, members, next member, whether it is an object, bytes of an offset."""
SCRATCH_BYTES = 96
"""For the text of a number or a time; a decimal of 65 digits is the longest."""
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_NULL, _TRUE, _FALSE = (np.frombuffer(word, np.uint8) for word in (b"null", b"true", b"false"))
_PREFIX = np.frombuffer(b"base64:type", np.uint8)
_OBJECT, _LARGE_OBJECT, _LARGE_ARRAY, _LITERAL, _INT16, _UINT16, _INT32, _UINT32 = 0, 1, 3, 4, 5, 6, 7, 8
_INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = 9, 10, 11, 12, 15
_TIMESTAMP, _DATE, _TIME, _DATETIME, _DECIMAL = 7, 10, 11, 12, 246
_LINE = 76
"""Characters of base64 after which the server begins a new line."""

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]


@callee
def put(out: Bytes, to: int, byte: int) -> int:
    """Write a byte if there is room; return the position after it."""
    if to < len(out):
        out[to] = byte
    return to + 1


@callee
def put_bytes(out: Bytes, to: int, data: Bytes, begin: int, end: int) -> int:
    """Write bytes; return the position after them."""
    for p in range(begin, end):
        to = put(out, to, data[p])
    return to


@callee
def put_escaped(out: Bytes, to: int, data: Bytes, begin: int, end: int) -> int:
    """Write a string in quotes; return the position after it."""
    to = put(out, to, 0x22)
    for p in range(begin, end):
        byte = np.int64(data[p])
        if byte in (0x22, 0x5C):
            to = put(out, put(out, to, 0x5C), byte)
        elif byte >= 0x20:
            to = put(out, to, byte)
        else:
            to = put(out, to, 0x5C)
            if byte in (8, 9, 10, 12, 13):
                short = (
                    0x62 if byte == 8 else 0x74 if byte == 9 else 0x6E if byte == 10 else 0x66 if byte == 12 else 0x72
                )
                to = put(out, to, short)
            else:
                to = put(out, to, 0x75)
                to = put(out, put(out, to, 0x30), 0x30)
                to = put(out, put(out, to, np.int64(_HEX[byte >> 4])), np.int64(_HEX[byte & 15]))
    return put(out, to, 0x22)


@callee
def put_digits(out: Bytes, to: int, text: Bytes, begin: int, end: int, first: int, until: int) -> int:
    """Write the digits of a number from the `first` one on, without its point; return the position after them."""
    number = 0
    for p in range(begin, end):
        if text[p] == 0x2E:
            continue
        if first <= number < until:
            to = put(out, to, text[p])
        number += 1
    return to


@callee
def put_double(out: Bytes, to: int, text: Bytes, begin: int, end: int) -> int:
    """Write a double, of which `text` has the shortest digits, as the server writes it; return the position after it."""
    p = begin
    if p < end and text[p] == 0x2D:
        to = put(out, to, 0x2D)
        p += 1
    mantissa = p
    while mantissa < end and text[mantissa] != 0x65:
        mantissa += 1
    exponent = 0
    for k in range(mantissa + 1, end):
        if text[k] not in (0x2B, 0x2D):
            exponent = exponent * 10 + np.int64(text[k]) - 0x30
    if mantissa + 1 < end and text[mantissa + 1] == 0x2D:
        exponent = -exponent
    first, last, point, digits = -1, -1, -1, 0
    for k in range(p, mantissa):
        if text[k] == 0x2E:
            point = digits
            continue
        if text[k] != 0x30:
            first = digits if first < 0 else first
            last = digits
        digits += 1
    if first < 0:
        return put(out, put(out, put(out, to, 0x30), 0x2E), 0x30)
    point = (digits if point < 0 else point) - first + exponent
    count = last - first + 1
    if point > 15 or point <= -15:
        to = put_digits(out, to, text, p, mantissa, first, first + 1)
        if count > 1:
            to = put_digits(out, put(out, to, 0x2E), text, p, mantissa, first + 1, last + 1)
        to = put(out, to, 0x65)
        power = point - 1
        if power < 0:
            to = put(out, to, 0x2D)
            power = -power
        if power >= 100:
            to = put(out, to, 0x30 + power // 100)
        if power >= 10:
            to = put(out, to, 0x30 + power // 10 % 10)
        return put(out, to, 0x30 + power % 10)
    if point <= 0:
        to = put(out, put(out, to, 0x30), 0x2E)
        for _ in range(-point):
            to = put(out, to, 0x30)
        return put_digits(out, to, text, p, mantissa, first, last + 1)
    to = put_digits(out, to, text, p, mantissa, first, min(first + point, last + 1))
    for _ in range(point - count):
        to = put(out, to, 0x30)
    to = put(out, to, 0x2E)
    if count <= point:
        return put(out, to, 0x30)
    return put_digits(out, to, text, p, mantissa, first + point, last + 1)


@callee
def put_base64(out: Bytes, to: int, kind: int, data: Bytes, begin: int, end: int, scratch: Bytes) -> int:
    """Write bytes of a type that JSON has not; return the position after them."""
    to = put_bytes(out, put(out, to, 0x22), _PREFIX, 0, len(_PREFIX))
    to = put_bytes(out, to, scratch, 0, put_number(scratch, 0, np.uint64(kind), 1))
    to = put(out, to, 0x3A)
    column = 0
    for p in range(begin, end, 3):
        if column == _LINE:
            to = put(out, put(out, to, 0x5C), 0x6E)
            column = 0
        group = np.int64(data[p]) << 16
        if p + 1 < end:
            group |= np.int64(data[p + 1]) << 8
        if p + 2 < end:
            group |= np.int64(data[p + 2])
        to = put(out, to, np.int64(_BASE64[group >> 18]))
        to = put(out, to, np.int64(_BASE64[group >> 12 & 63]))
        to = put(out, to, np.int64(_BASE64[group >> 6 & 63]) if p + 1 < end else 0x3D)
        to = put(out, to, np.int64(_BASE64[group & 63]) if p + 2 < end else 0x3D)
        column += 4
    return put(out, to, 0x22)


@callee
def put_time_of(kind: int, packed: int, out: Bytes, to: int, scratch: Bytes) -> int:
    """Write a date or time; return the position after it."""
    size = 0
    if kind == _TIME and packed < 0:
        scratch[0] = 0x2D
        size = 1
        packed = -packed
    fraction, whole = packed & 0xFFFFFF, packed >> 24
    if kind == _TIME:
        size = put_clock(scratch, size, whole >> 12 & 0x3FF, whole >> 6 & 63, whole & 63, fraction, 6)
    else:
        day, clock = whole >> 17, whole & 0x1FFFF
        size = put_date(scratch, size, (day >> 5) // 13, (day >> 5) % 13, day & 31)
        if kind != _DATE:
            scratch[size] = 0x20
            size = put_clock(scratch, size + 1, clock >> 12, clock >> 6 & 63, clock & 63, fraction, 6)
    to = put(out, to, 0x22)
    to = put_bytes(out, to, scratch, 0, size)
    return put(out, to, 0x22)


@callee
def length_at(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """(a length of seven bits a byte, the position after it); the position is -1 if it exceeds the value."""
    value = np.int64(0)
    for k in range(5):
        if at + k >= end:
            return 0, -1
        byte = np.int64(data[at + k])
        value |= (byte & 0x7F) << np.int64(7 * k)
        if byte < 0x80:
            return value, at + k + 1
    return 0, -1


@callee
def signed(data: Bytes, at: int, size: int) -> int:
    """The signed integer of `size` bytes, least significant first."""
    value = np.int64(little(data, at, size))
    half = np.int64(1) << np.int64(8 * size - 1)
    if size < 8 and value >= half:
        value -= half + half
    return value


@kernel("u8[] i32[] i32[] bool[] u8[]= i32[]= u64[]= u8[] i32[] i64[][]= u8[]=")
def write_trees(
    data: Bytes,
    start: Places,
    end: Places,
    given: NDArray[np.bool_],
    out: Bytes,
    ends: Places,
    doubles: NDArray[np.uint64],
    digits: Bytes,
    digit_ends: Places,
    frames: NDArray[np.int64],
    scratch: Bytes,
) -> int:
    """Write JSON values as text, in two calls: the first finds the doubles, of which the second gets the digits.

    Args:
        data: bytes of all values.
        start: begin of each value.
        end: end of each value.
        given: whether there is a value.
        out: receives the text; with too little room, it is only counted.
        ends: receives the end of each text, and after the last the number of doubles.
        doubles: receives the bits of the doubles as far as there is room.
        digits: the shortest text of each double that parses back to it; without it, doubles take no room.
        digit_ends: begin of each of these texts, and the end of the last; empty in the first call.
        frames: room for `FRAME` numbers of `MAX_DEPTH` containers.
        scratch: room for `SCRATCH_BYTES`.

    Returns:
        Bytes of the text; if a value is none of JSON, its number times -1, minus 1.
    """
    count = len(start)
    require(len(end) >= count and len(given) >= count and len(ends) > count)
    require(frames.shape[0] >= MAX_DEPTH and frames.shape[1] >= FRAME and len(scratch) >= SCRATCH_BYTES)
    num_digits = len(digit_ends) - 1
    for k in range(num_digits):
        require(0 <= digit_ends[k] <= digit_ends[k + 1] <= len(digits))
    to, found = np.int64(0), np.int64(0)
    for row in range(count):
        ends[row] = to
        if not given[row]:
            continue
        begin, stop = np.int64(start[row]), np.int64(end[row])
        require(0 <= begin <= stop <= len(data))
        if begin == stop:  # how some statements store null
            to = put_bytes(out, to, _NULL, 0, len(_NULL))
            ends[row] = to
            continue
        depth = 0
        budget = (stop - begin) // 3 + 1  # each member takes three bytes
        kind, at, until = np.int64(data[begin]), begin + 1, stop
        while True:
            # one value, of `kind` at `at`
            is_container = kind <= _LARGE_ARRAY
            if is_container:
                width = 2 + 2 * (kind & 1)
                if depth == MAX_DEPTH or at + 2 * width > until:
                    return -1 - row
                members = np.int64(little(data, at, width))
                size = np.int64(little(data, at + width, width))
                is_object = kind <= _LARGE_OBJECT
                each = (width + 2 if is_object else 0) + 1 + width
                if size > until - at or 2 * width + members * each > size:
                    return -1 - row
                frames[depth, 0], frames[depth, 1], frames[depth, 2] = at, at + size, members
                frames[depth, 3], frames[depth, 4], frames[depth, 5] = 0, 1 if is_object else 0, width
                depth += 1
                to = put(out, to, 0x7B if is_object else 0x5B)
            elif kind == _LITERAL:
                if at >= until or data[at] > 2:
                    return -1 - row
                if data[at] == 0:
                    to = put_bytes(out, to, _NULL, 0, len(_NULL))
                elif data[at] == 1:
                    to = put_bytes(out, to, _TRUE, 0, len(_TRUE))
                else:
                    to = put_bytes(out, to, _FALSE, 0, len(_FALSE))
            elif kind <= _UINT64:
                size = 2 if kind <= _UINT16 else 4 if kind <= _UINT32 else 8
                if at + size > until:
                    return -1 - row
                number = little(data, at, size)
                if kind in (_INT16, _INT32, _INT64) and signed(data, at, size) < 0:
                    to = put(out, to, 0x2D)
                    number = np.uint64(0) - np.uint64(signed(data, at, size))
                to = put_bytes(out, to, scratch, 0, put_number(scratch, 0, number, 1))
            elif kind == _DOUBLE:
                if at + 8 > until:
                    return -1 - row
                if found < len(doubles):
                    doubles[found] = little(data, at, 8)
                if found < num_digits:
                    to = put_double(out, to, digits, digit_ends[found], digit_ends[found + 1])
                found += 1
            elif kind == _STRING:
                length, at = length_at(data, at, until)
                if at < 0 or length > until - at:
                    return -1 - row
                to = put_escaped(out, to, data, at, at + length)
            elif kind == _OPAQUE:
                if at >= until:
                    return -1 - row
                of = np.int64(data[at])
                length, at = length_at(data, at + 1, until)
                if at < 0 or length > until - at:
                    return -1 - row
                if of == _DECIMAL:
                    if length < 2:
                        return -1 - row
                    precision, scale = np.int64(data[at]), np.int64(data[at + 1])
                    if (
                        scale > precision
                        or precision < 1
                        or precision > 65
                        or length < 2 + decimal_bytes(precision, scale)
                    ):
                        return -1 - row
                    to = put_bytes(out, to, scratch, 0, put_decimal(data, at + 2, precision, scale, scratch, 0))
                elif of in (_TIMESTAMP, _DATE, _TIME, _DATETIME):
                    if length < 8:
                        return -1 - row
                    to = put_time_of(of, signed(data, at, 8), out, to, scratch)
                else:
                    to = put_base64(out, to, of, data, at, at + length, scratch)
            else:
                return -1 - row
            # what follows it
            while depth > 0 and frames[depth - 1, 3] == frames[depth - 1, 2]:
                depth -= 1
                to = put(out, to, 0x7D if frames[depth, 4] == 1 else 0x5D)
            if depth == 0:
                break
            budget -= 1
            if budget < 0:
                return -1 - row
            base, until = frames[depth - 1, 0], frames[depth - 1, 1]
            members, member, width = frames[depth - 1, 2], frames[depth - 1, 3], frames[depth - 1, 5]
            frames[depth - 1, 3] = member + 1
            if member > 0:
                to = put(out, put(out, to, 0x2C), 0x20)
            entries = base + 2 * width
            if frames[depth - 1, 4] == 1:
                key = entries + member * (width + 2)
                offset, length = np.int64(little(data, key, width)), np.int64(little(data, key + width, 2))
                if offset > until - base or length > until - base - offset:
                    return -1 - row
                to = put_escaped(out, to, data, base + offset, base + offset + length)
                to = put(out, put(out, to, 0x3A), 0x20)
                entries += members * (width + 2)
            entry = entries + member * (1 + width)
            kind, at = np.int64(data[entry]), entry + 1
            is_inline = _LITERAL <= kind <= _UINT16 or (width == 4 and kind in (_INT32, _UINT32))
            if not is_inline:
                offset = np.int64(little(data, at, width))
                if offset > until - base:
                    return -1 - row
                at = base + offset
        require(to <= 2**31 - 1)
        ends[row] = to
    ends[count] = found
    return to
