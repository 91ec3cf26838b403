"""Compiled kernels that decode bytes written as text: base64, hexadecimal, Latin-1, and integers in bytes."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0917, PLR1714 - one compiled loop per kernel; Numba inlines no generators

import numpy as np
from numpy.typing import NDArray

from pipelines.jsonscan.value_kernels import Bytes, Places, require
from scan_core.native import callee, kernel

Mask = NDArray[np.bool_]


@callee
def _require_rows(offsets: Places, data: Bytes, valid: Mask, bad: Mask) -> None:
    """Refuse texts that are not contiguous in `data`, and masks that are too short."""
    require(len(offsets) > len(valid) and len(bad) >= len(valid) and offsets[0] >= 0)
    for row in range(len(valid)):
        require(offsets[row] <= offsets[row + 1])
    require(offsets[len(valid)] <= len(data))


@callee
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


@kernel("i32[] u8[] bool[] i32[]= u8[]= bool[]=")
def decode_base64(offsets: Places, data: Bytes, valid: Mask, out_offsets: Places, out: Bytes, bad: Mask) -> int:
    """Decode base64 texts (standard or URL-safe, padded or not) one after the other; marks invalid ones in `bad`."""
    _require_rows(offsets, data, valid, bad)
    require(len(out_offsets) > len(valid) and len(out) >= np.int64(offsets[len(valid)]) - offsets[0])
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


@kernel("i32[] u8[] bool[] i32[]= u8[]= bool[]=")
def decode_hex(offsets: Places, data: Bytes, valid: Mask, out_offsets: Places, out: Bytes, bad: Mask) -> int:
    r"""Bytes of hexadecimal texts, dashes and a leading `\\x` or `0x` ignored; marks what is none in `bad`."""
    _require_rows(offsets, data, valid, bad)
    require(len(out_offsets) > len(valid) and len(out) >= np.int64(offsets[len(valid)]) - offsets[0])
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


@kernel("i32[] u8[] bool[] i32[]= u8[]= bool[]=")
def encode_latin1(offsets: Places, data: Bytes, valid: Mask, out_offsets: Places, out: Bytes, bad: Mask) -> int:
    """Encode texts as Latin-1, one byte per character; marks characters above U+00FF in `bad`."""
    _require_rows(offsets, data, valid, bad)
    require(len(out_offsets) > len(valid) and len(out) >= np.int64(offsets[len(valid)]) - offsets[0])
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
