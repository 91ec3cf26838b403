"""Compiled kernels that turn spans of bytes into contiguous text, integers and doubles."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0915, PLR0917, PLR1714 - one compiled loop per kernel; Numba inlines no generators

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipelines.formats.json_kernels import ESCAPED

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
Kinds = NDArray[np.int8]
Mask = NDArray[np.bool_]

_COMPILE: dict[str, Any] = {"cache": True, "nogil": True, "boundscheck": False, "_nrt": False}


@njit(**_COMPILE)
def _hex4(data: Bytes, p: int) -> int:
    value = 0
    for k in range(4):
        c = np.int64(data[p + k])
        digit = c - 0x30 if c <= 0x39 else (c | 0x20) - 0x57
        value = value * 16 + digit
    return value


@njit(**_COMPILE)
def _unescape(data: Bytes, p: int, end: int, out: Bytes, at: int) -> int:
    """Write the string data[p:end] without its escapes at out[at:]; returns the end, or -1 for a lone surrogate."""
    while p < end:
        c = data[p]
        if c != 0x5C:
            out[at] = c
            at += 1
            p += 1
            continue
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


@njit(**_COMPILE)
def gather_text(
    data: Bytes, start: Places, end: Places, kind: Kinds, wanted: Mask, offsets: Places, out: Bytes, bad: Mask
) -> int:
    """Copy the wanted spans one after the other, unescaping those of kind ESCAPED; marks lone surrogates in `bad`."""
    at = np.int64(0)
    offsets[0] = 0
    for row in range(len(start)):
        if wanted[row]:
            p = np.int64(start[row])
            q = np.int64(end[row])
            if kind[row] == ESCAPED:
                after = _unescape(data, p, q, out, at)
                if after < 0:
                    bad[row] = True
                else:
                    at = after
            else:
                for k in range(q - p):
                    out[at + k] = data[p + k]
                at += q - p
        offsets[row + 1] = at
    return at


_1 = np.uint64(1)
_TEN = np.uint64(10)
_ZERO = np.uint64(0x30)
_LONGEST = np.uint64(19)
_MAX = np.uint64(2**63 - 1)


@njit(**_COMPILE)
def parse_integers(data: Bytes, start: Places, end: Places, wanted: Mask, out: NDArray[np.int64], bad: Mask) -> None:
    """Decimal integers of the wanted spans; `bad` where there is none or it does not fit 64 bits."""
    for row in range(len(start)):
        out[row] = 0
        if not wanted[row]:
            continue
        p = np.uint64(start[row])
        q = np.uint64(end[row])
        negative = p < q and data[p] == 0x2D
        if negative or (p < q and data[p] == 0x2B):
            p += _1
        if p >= q or q - p > _LONGEST:
            bad[row] = True
            continue
        value = np.uint64(0)
        while p < q:
            digit = np.uint64(data[p]) - _ZERO
            if digit > np.uint64(9):
                bad[row] = True
                break
            value = value * _TEN + digit
            p += _1
        if bad[row]:
            continue
        if negative and value <= _MAX + _1:
            out[row] = np.int64(np.uint64(0) - value)
        elif not negative and value <= _MAX:
            out[row] = np.int64(value)
        else:
            bad[row] = True


_POWERS = 10.0 ** np.arange(23)


@njit(**_COMPILE)
def parse_doubles(data: Bytes, start: Places, end: Places, wanted: Mask, out: NDArray[np.float64], slow: Mask) -> None:
    """Doubles of the wanted spans where one multiplication is exact (Clinger's fast path); others are marked slow."""
    for row in range(len(start)):
        out[row] = 0.0
        if not wanted[row]:
            continue
        p = np.int64(start[row])
        q = np.int64(end[row])
        negative = p < q and data[p] == 0x2D
        if negative:
            p += 1
        mantissa = np.int64(0)
        digits = 0
        scale = 0
        point = False
        plain = p < q
        for k in range(p, q):
            c = np.int64(data[k])
            if 0x30 <= c <= 0x39:
                mantissa = mantissa * 10 + (c - 0x30)
                if mantissa > 0:
                    digits += 1
                if digits > 15:
                    plain = False
                    break
                if point:
                    scale += 1
            elif c == 0x2E and not point:
                point = True
            else:
                plain = False
                break
        if not plain or scale > 22 or (point and q - p == 1):
            slow[row] = True
            continue
        value = np.float64(mantissa) / _POWERS[scale]
        out[row] = -value if negative else value


@njit(**_COMPILE)
def match_bytes(data: Bytes, start: Places, end: Places, wanted: Mask, pattern: Bytes, out: Mask) -> None:
    """Mark the wanted spans that equal `pattern`."""
    length = len(pattern)
    for row in range(len(start)):
        if not wanted[row] or end[row] - start[row] != length:
            continue
        p = np.int64(start[row])
        same = True
        for k in range(length):
            if data[p + k] != pattern[k]:
                same = False
                break
        if same:
            out[row] = True


_BLOCK = np.uint64(256)


@njit(**_COMPILE)
def _differ(data: Bytes, p: int, pattern: Bytes, first: int, last: int) -> bool:
    """Whether data[p + first : p + last] differs from pattern[first : last]; without a branch, so that it is SIMD."""
    difference = np.uint8(0)
    for k in range(first, last):
        difference |= data[p + k] ^ pattern[k]
    return difference != 0


@njit(**_COMPILE)
def _begins_with(data: Bytes, p: int, pattern: Bytes) -> bool:
    length = np.uint64(len(pattern))
    first = np.uint64(0)
    while first < length:
        last = min(first + _BLOCK, length)
        if _differ(data, p, pattern, first, last):
            return False
        first = last
    return True


@njit(**_COMPILE)
def match_affixes(
    data: Bytes,
    start: Places,
    end: Places,
    wanted: Mask,
    prefix: Bytes,
    suffix: Bytes,
    out_start: Places,
    out_end: Places,
    out: Mask,
) -> None:
    """Mark the wanted spans that begin with `prefix` and, white space apart, end with `suffix`; write what is between."""
    a = np.uint64(len(prefix))
    b = np.uint64(len(suffix))
    for row in range(len(start)):
        if not wanted[row]:
            continue
        p = np.uint64(start[row])
        q = np.uint64(end[row])
        while q > p and (data[q - _1] == 0x20 or data[q - _1] == 0x0A or data[q - _1] == 0x0D or data[q - _1] == 0x09):
            q -= _1
        if q - p >= a + b and _begins_with(data, p, prefix) and _begins_with(data, q - b, suffix):
            out[row] = True
            out_start[row] = p + a
            out_end[row] = q - b


@njit(**_COMPILE)
def _sextet(c: int) -> int:
    if 0x41 <= c <= 0x5A:
        return c - 0x41
    if 0x61 <= c <= 0x7A:
        return c - 0x47
    if 0x30 <= c <= 0x39:
        return c + 4
    if c == 0x2B or c == 0x2D:
        return 62
    if c == 0x2F or c == 0x5F:
        return 63
    return -1


@njit(**_COMPILE)
def decode_base64(offsets: Places, data: Bytes, valid: Mask, out_offsets: Places, out: Bytes, bad: Mask) -> int:
    """Bytes of base64 texts (standard or URL-safe, padded or not), one after the other; marks what is none in `bad`."""
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(len(valid)):
        begin = at
        if valid[row]:
            p = np.int64(offsets[row])
            q = np.int64(offsets[row + 1])
            padded = q - p
            while q > p and data[q - 1] == 0x3D and padded - (q - p) < 2:
                q -= 1
            bits = np.int64(0)
            held = 0
            for k in range(p, q):
                sextet = _sextet(np.int64(data[k]))
                if sextet < 0:
                    bad[row] = True
                    break
                bits = ((bits << 6) | sextet) & 0xFFFFFF
                held += 6
                if held >= 8:
                    held -= 8
                    out[at] = (bits >> held) & 0xFF
                    at += 1
            if (q - p) % 4 == 1 or (padded != q - p and padded % 4 != 0):
                bad[row] = True
            if bad[row]:
                at = begin
        out_offsets[row + 1] = at
    return at


@njit(**_COMPILE)
def decode_hex(offsets: Places, data: Bytes, valid: Mask, out_offsets: Places, out: Bytes, bad: Mask) -> int:
    r"""Bytes of hexadecimal texts, dashes and a leading `\\x` or `0x` ignored; marks what is none in `bad`."""
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(len(valid)):
        begin = at
        if valid[row]:
            p = np.int64(offsets[row])
            q = np.int64(offsets[row + 1])
            if q - p >= 2 and (data[p] == 0x5C or data[p] == 0x30) and data[p + 1] == 0x78:
                p += 2
            high = -1
            for k in range(p, q):
                c = np.int64(data[k])
                if c == 0x2D:
                    continue
                if 0x30 <= c <= 0x39:
                    digit = c - 0x30
                elif 0x41 <= (c & 0xDF) <= 0x46:
                    digit = (c & 0xDF) - 0x37
                else:
                    bad[row] = True
                    break
                if high < 0:
                    high = digit
                else:
                    out[at] = high * 16 + digit
                    at += 1
                    high = -1
            if high >= 0:
                bad[row] = True
            if bad[row]:
                at = begin
        out_offsets[row + 1] = at
    return at


@njit(**_COMPILE)
def encode_latin1(offsets: Places, data: Bytes, valid: Mask, out_offsets: Places, out: Bytes, bad: Mask) -> int:
    """Bytes of texts whose characters stand for one byte each; marks characters above U+00FF in `bad`."""
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(len(valid)):
        begin = at
        if valid[row]:
            p = np.int64(offsets[row])
            q = np.int64(offsets[row + 1])
            while p < q:
                c = np.int64(data[p])
                if c < 0x80:
                    out[at] = c
                    p += 1
                elif (c == 0xC2 or c == 0xC3) and p + 1 < q:
                    out[at] = ((c & 3) << 6) | (np.int64(data[p + 1]) & 0x3F)
                    p += 2
                else:
                    bad[row] = True
                    break
                at += 1
            if bad[row]:
                at = begin
        out_offsets[row + 1] = at
    return at


@njit(**_COMPILE)
def widen_integers(offsets: Places, data: Bytes, valid: Mask, out: Bytes, bad: Mask) -> None:
    """Big-endian two's complement numbers as 16 little-endian bytes each; marks empty and longer ones in `bad`."""
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
