"""Compiled kernels that turn spans of bytes into contiguous text and integers, and decode bytes that are written as text.

Bytes may be written in base64, in hexadecimal, or as Latin-1. Arrow reads doubles.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0915, PLR0917, PLR1714, FBT001 - one compiled loop per kernel; Numba inlines no generators

from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.jsonscan.value_kernels import (
    EIGHT,
    ESCAPED,
    ONE,
    Bytes,
    Kinds,
    Places,
    put_word,
    require,
    word_at,
)
from nevermore.scan_core.native import callee, inlined, kernel

Mask = NDArray[np.bool_]


def _digits(*alphabets: str) -> NDArray[np.int64]:
    """The digit that each byte stands for in one of several alphabets; -1 for none."""
    digits = np.full(256, -1, np.int64)
    for alphabet in alphabets:
        digits[list(alphabet.encode())] = range(len(alphabet))
    return digits


_SEXTETS = _digits(*(ascii_uppercase + ascii_lowercase + digits + others for others in ("+/", "-_")))
_NIBBLES = _digits("0123456789ABCDEF", "0123456789abcdef")


@callee
def _hex4(data: Bytes, p: int) -> int:
    value = 0
    for k in range(4):
        value = value * 16 + _NIBBLES[data[p + k]]
    return value


@callee
def _unescape(data: Bytes, p: int, end: int, out: Bytes, at: int) -> int:
    """Write the string data[p:end] without its escapes at out[at:]; returns the end, or -1 for a lone surrogate.

    The result is never longer. A broken escape, which scanning rejects, also returns -1.
    """
    while p < end:
        c = data[p]
        if c != 0x5C:
            out[at] = c
            at += 1
            p += 1
            continue
        if p + 2 > end:
            return -1
        e = data[p + 1]
        p += 2
        if e != 0x75:
            if e == 0x62:
                e = np.uint8(0x08)
            elif e == 0x66:
                e = np.uint8(0x0C)
            elif e == 0x6E:
                e = np.uint8(0x0A)
            elif e == 0x72:
                e = np.uint8(0x0D)
            elif e == 0x74:
                e = np.uint8(0x09)
            out[at] = e
            at += 1
            continue
        if p + 4 > end:
            return -1
        point = _hex4(data, p)
        p += 4
        if 0xD800 <= point <= 0xDBFF:
            if p + 6 > end or data[p] != 0x5C or data[p + 1] != 0x75:
                return -1
            low = _hex4(data, p + 2)
            if low < 0xDC00 or low > 0xDFFF:
                return -1
            point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
            p += 6
        elif 0xDC00 <= point <= 0xDFFF:
            return -1
        if point < 0x80:
            out[at] = point
            at += 1
        elif point < 0x800:
            out[at] = 0xC0 | (point >> 6)
            out[at + 1] = 0x80 | (point & 0x3F)
            at += 2
        elif point < 0x10000:
            out[at] = 0xE0 | (point >> 12)
            out[at + 1] = 0x80 | ((point >> 6) & 0x3F)
            out[at + 2] = 0x80 | (point & 0x3F)
            at += 3
        else:
            out[at] = 0xF0 | (point >> 18)
            out[at + 1] = 0x80 | ((point >> 12) & 0x3F)
            out[at + 2] = 0x80 | ((point >> 6) & 0x3F)
            out[at + 3] = 0x80 | (point & 0x3F)
            at += 4
    return at


@inlined
def copy_text(data: Bytes, p: int, q: int, escaped: bool, out: Bytes, at: int) -> int:
    """Write data[p:q], unescaped if it is `escaped`, at out[at:]; returns the end, or -1 for a lone surrogate.

    Up to 8 bytes behind it may be overwritten.
    """
    require(p >= 0 and p <= q <= len(data) and at >= 0 and q - p <= len(out) - at)
    if escaped:
        return _unescape(data, p, q, out, at)
    first, to = np.uint64(p), np.uint64(at)
    length = np.uint64(q - p)
    done = np.uint64(0)
    # eight bytes at a time, even past the end: the rest of `out` is written later, or padding
    if first + length + EIGHT <= np.uint64(len(data)) and to + length + EIGHT <= np.uint64(len(out)):
        while done < length:
            put_word(out, to + done, word_at(data, first + done))
            done += EIGHT
    while done < length:
        out[to + done] = data[first + done]
        done += ONE
    return at + q - p


@kernel("u8[] i32[] i32[] i8[] bool[] i32[]= u8[]= bool[]=")
def gather_text(
    data: Bytes, start: Places, end: Places, kind: Kinds, wanted: Mask, offsets: Places, out: Bytes, bad: Mask
) -> int:
    """Copy the wanted spans one after the other, unescaping those of kind ESCAPED; marks lone surrogates in `bad`."""
    count = len(start)
    require(len(end) >= count and len(kind) >= count and len(wanted) >= count and len(offsets) > count)
    require(len(bad) >= count and len(out) < 2**31)
    at = np.int64(0)
    offsets[0] = 0
    for row in range(count):
        if wanted[row]:
            after = copy_text(data, np.int64(start[row]), np.int64(end[row]), kind[row] == ESCAPED, out, at)
            if after < 0:
                bad[row] = True
            else:
                at = after
        offsets[row + 1] = at
    return at


_TEN = np.uint64(10)
_ZERO = np.uint64(0x30)
_LONGEST = np.uint64(19)
_MAX = np.uint64(2**63 - 1)


@inlined
def integer_of(data: Bytes, p: int, q: int) -> tuple[int, bool]:
    """(the decimal integer data[p:q], whether there is one that fits 64 bits)."""
    negative = p < q and data[p] == 0x2D
    if negative or (p < q and data[p] == 0x2B):
        p += ONE
    if p >= q or q - p > _LONGEST:
        return np.int64(0), False
    value = np.uint64(0)
    while p < q:
        digit = np.uint64(data[p]) - _ZERO
        if digit > np.uint64(9):
            return np.int64(0), False
        value = value * _TEN + digit
        p += ONE
    if negative:
        return np.int64(np.uint64(0) - value), value <= _MAX + ONE
    return np.int64(value), value <= _MAX


@kernel("u8[] i32[] i32[] bool[] i64[]= bool[]=")
def parse_integers(data: Bytes, start: Places, end: Places, wanted: Mask, out: NDArray[np.int64], bad: Mask) -> None:
    """Decimal integers of the wanted spans; `bad` where there is none or it does not fit 64 bits."""
    count = len(start)
    require(len(end) >= count and len(wanted) >= count and len(out) >= count and len(bad) >= count)
    for row in range(count):
        out[row] = 0
        if wanted[row]:
            require(end[row] >= 0 and end[row] <= len(data))
            value, fits = integer_of(data, np.uint64(start[row]), np.uint64(end[row]))
            out[row] = value if fits else np.int64(0)
            bad[row] |= not fits


@callee
def _require_rows(offsets: Places, data: Bytes, valid: Mask, bad: Mask) -> None:
    """Refuse texts that are not contiguous in `data`, and masks that are too short."""
    require(len(offsets) > len(valid) and len(bad) >= len(valid) and offsets[0] >= 0)
    for row in range(len(valid)):
        require(offsets[row] <= offsets[row + 1])
    require(offsets[len(valid)] <= len(data))


@callee
def _from_base64(data: Bytes, p: int, q: int, out: Bytes, at: int) -> int:
    """Write the bytes of a base64 text (standard or URL-safe, padded or not) at out[at:]; the end, -1 if it is none."""
    padded = q - p
    while q > p and data[q - 1] == 0x3D and padded - (q - p) < 2:
        q -= 1
    if (q - p) % 4 == 1 or (padded != q - p and padded % 4 != 0):
        return -1
    bits = np.int64(0)
    held = 0
    for k in range(p, q):
        sextet = _SEXTETS[data[k]]
        if sextet < 0:
            return -1
        bits = ((bits << 6) | sextet) & 0xFFFFFF
        held += 6
        if held >= 8:
            held -= 8
            out[at] = (bits >> held) & 0xFF
            at += 1
    return at


@callee
def _from_hex(data: Bytes, p: int, q: int, out: Bytes, at: int) -> int:
    r"""The same of a hexadecimal text; dashes and a leading `\\x` or `0x` are ignored."""
    if q - p >= 2 and (data[p] == 0x5C or data[p] == 0x30) and data[p + 1] == 0x78:
        p += 2
    high = np.int64(-1)
    for k in range(p, q):
        if data[k] == 0x2D:
            continue
        digit = _NIBBLES[data[k]]
        if digit < 0:
            return -1
        if high < 0:
            high = digit
        else:
            out[at] = high * 16 + digit
            at += 1
            high = np.int64(-1)
    return at if high < 0 else -1


@callee
def _to_latin1(data: Bytes, p: int, q: int, out: Bytes, at: int) -> int:
    """The same of a text whose characters stand for one byte each: none is above U+00FF."""
    while p < q:
        c = np.int64(data[p])
        if c < 0x80:
            out[at] = c
            p += 1
        elif (c == 0xC2 or c == 0xC3) and p + 1 < q:
            out[at] = ((c & 3) << 6) | (np.int64(data[p + 1]) & 0x3F)
            p += 2
        else:
            return -1
        at += 1
    return at


BASE64, HEX, LATIN1 = range(3)


@kernel("i64 i32[] u8[] bool[] i32[]= u8[]= bool[]=")
def decode_bytes(
    how: int, offsets: Places, data: Bytes, valid: Mask, out_offsets: Places, out: Bytes, bad: Mask
) -> int:
    """Decode texts of bytes one after the other, written as BASE64, HEX or LATIN1; marks invalid ones in `bad`."""
    _require_rows(offsets, data, valid, bad)
    require(len(out_offsets) > len(valid) and len(out) >= np.int64(offsets[len(valid)]) - offsets[0])
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(len(valid)):
        if valid[row]:
            p, q = np.int64(offsets[row]), np.int64(offsets[row + 1])
            if how == BASE64:
                after = _from_base64(data, p, q, out, at)
            else:
                after = _from_hex(data, p, q, out, at) if how == HEX else _to_latin1(data, p, q, out, at)
            bad[row] |= after < 0
            at = max(at, after)
        out_offsets[row + 1] = at
    return at


@kernel("i32[] u8[] bool[] u8[][]= bool[]=")
def widen_integers(offsets: Places, data: Bytes, valid: Mask, out: Bytes, bad: Mask) -> None:
    """Extend big-endian two's complement numbers to 16 little-endian bytes; marks empty and longer ones in `bad`."""
    _require_rows(offsets, data, valid, bad)
    require(out.shape[0] >= len(valid) and out.shape[1] >= 16)
    for row in range(len(valid)):
        if not valid[row]:
            continue
        p = np.int64(offsets[row])
        q = np.int64(offsets[row + 1])
        if p == q:
            bad[row] = True
            continue
        fill = np.uint8(0xFF) if data[p] >= 0x80 else np.uint8(0)
        while q - p > 16 and data[p] == fill:
            p += 1
        if q - p > 16 or (q - p == 16 and (data[p] >= 0x80) != (fill == 0xFF)):
            bad[row] = True
            continue
        for k in range(16):
            out[row, k] = data[q - 1 - k] if k < q - p else fill
