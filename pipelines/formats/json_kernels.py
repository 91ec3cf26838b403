"""Compiled kernels that find the members of many JSON objects at once, and nothing else.

Library readers (DuckDB `from_json`, pyarrow.json) round 1.5 to 2, drop the digits of long decimals and cannot tell a
missing member from null, all of which change rows. These kernels only find where values lie and of which kind they
are; strictly: what `json.loads` refuses is refused here. Turning spans into columns is `json_columns.py`.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0915, PLR0917, PLR1714, SIM109, SIM110, FBT001 - one compiled loop per kernel; Numba inlines no generators

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

MISSING, NULL, FALSE, TRUE, INT, FLOAT, STRING, ESCAPED, OBJECT, ARRAY = range(10)
"""Kinds of a value. ESCAPED is a string with a backslash in it; INT has neither fraction nor exponent."""

OK, ABSENT, IS_NULL, EMPTY, NOT_CONTAINER, BROKEN, TOO_MANY = range(7)
"""Status of a document: ABSENT has no span, EMPTY holds only white space, BROKEN is no JSON."""

MAX_DEPTH = 256
"""Deeper nesting is refused: no feed has it, and hostile input must end."""

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
Kinds = NDArray[np.int8]

_COMPILE: dict[str, Any] = {"cache": True, "nogil": True, "boundscheck": False}


@njit(**_COMPILE)
def _skip_space(data: Bytes, p: int, end: int) -> int:
    while p < end and (data[p] == 0x20 or data[p] == 0x0A or data[p] == 0x0D or data[p] == 0x09):
        p += 1
    return p


@njit(**_COMPILE)
def _is_hex(c: int) -> bool:
    return (0x30 <= c <= 0x39) or (0x41 <= c <= 0x46) or (0x61 <= c <= 0x66)


@njit(**_COMPILE)
def _skip_string(data: Bytes, p: int, end: int) -> tuple[int, bool]:
    """(position after the closing quote, whether a backslash occurs); p is after the opening quote; -1 if broken."""
    escaped = False
    while p < end:
        c = data[p]
        if c == 0x22:
            return p + 1, escaped
        if c < 0x20:
            return -1, escaped
        if c == 0x5C:
            escaped = True
            p += 1
            if p >= end:
                return -1, escaped
            e = data[p]
            if e == 0x75:
                if p + 4 >= end:
                    return -1, escaped
                for k in range(1, 5):
                    if not _is_hex(data[p + k]):
                        return -1, escaped
                p += 4
            elif not (
                e == 0x22 or e == 0x5C or e == 0x2F or e == 0x62 or e == 0x66 or e == 0x6E or e == 0x72 or e == 0x74
            ):
                return -1, escaped
        p += 1
    return -1, escaped


@njit(**_COMPILE)
def _matches(data: Bytes, p: int, end: int, word: Bytes) -> bool:
    if p + len(word) > end:
        return False
    for k in range(len(word)):
        if data[p + k] != word[k]:
            return False
    return True


_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)
_NULL = np.frombuffer(b"null", np.uint8)
_NAN = np.frombuffer(b"NaN", np.uint8)
_INFINITY = np.frombuffer(b"Infinity", np.uint8)


@njit(**_COMPILE)
def _skip_scalar(data: Bytes, p: int, end: int) -> tuple[int, int]:
    """(position after a literal or number, its kind); -1 if there is none."""
    c = data[p]
    if c == 0x74:
        return (p + 4 if _matches(data, p, end, _TRUE) else -1), TRUE
    if c == 0x66:
        return (p + 5 if _matches(data, p, end, _FALSE) else -1), FALSE
    if c == 0x6E:
        return (p + 4 if _matches(data, p, end, _NULL) else -1), NULL
    if c == 0x4E:
        return (p + 3 if _matches(data, p, end, _NAN) else -1), FLOAT
    if c == 0x2D:
        p += 1
        if p >= end:
            return -1, INT
        c = data[p]
    if c == 0x49:
        return (p + 8 if _matches(data, p, end, _INFINITY) else -1), FLOAT
    if c == 0x30:
        p += 1
    elif 0x31 <= c <= 0x39:
        while p < end and 0x30 <= data[p] <= 0x39:
            p += 1
    else:
        return -1, INT
    kind = INT
    if p < end and data[p] == 0x2E:
        kind = FLOAT
        p += 1
        first = p
        while p < end and 0x30 <= data[p] <= 0x39:
            p += 1
        if p == first:
            return -1, kind
    if p < end and (data[p] == 0x65 or data[p] == 0x45):
        kind = FLOAT
        p += 1
        if p < end and (data[p] == 0x2B or data[p] == 0x2D):
            p += 1
        first = p
        while p < end and 0x30 <= data[p] <= 0x39:
            p += 1
        if p == first:
            return -1, kind
    return p, kind


_KEY_OR_CLOSE, _KEY, _COLON, _VALUE, _VALUE_OR_CLOSE, _COMMA = range(6)


@njit(**_COMPILE)
def _skip_value(data: Bytes, p: int, end: int, stack: Bytes) -> tuple[int, int]:
    """(position after the value at p, its kind); -1 if it is broken. `stack` has MAX_DEPTH bytes."""
    if p >= end:
        return -1, MISSING
    c = data[p]
    if c == 0x22:
        q, escaped = _skip_string(data, p + 1, end)
        return q, (ESCAPED if escaped else STRING)
    if c != 0x7B and c != 0x5B:
        return _skip_scalar(data, p, end)
    kind = OBJECT if c == 0x7B else ARRAY
    depth = 0
    stack[0] = c
    state = _KEY_OR_CLOSE if c == 0x7B else _VALUE_OR_CLOSE
    p += 1
    while p < end:
        c = data[p]
        if c == 0x20 or c == 0x0A or c == 0x0D or c == 0x09:
            p += 1
            continue
        if state == _COMMA or (c == 0x7D and state == _KEY_OR_CLOSE) or (c == 0x5D and state == _VALUE_OR_CLOSE):
            if (c == 0x7D and stack[depth] == 0x7B) or (c == 0x5D and stack[depth] == 0x5B):
                p += 1
                if depth == 0:
                    return p, kind
                depth -= 1
                state = _COMMA
            elif c == 0x2C and state == _COMMA:
                p += 1
                state = _KEY if stack[depth] == 0x7B else _VALUE
            else:
                return -1, kind
        elif state == _KEY_OR_CLOSE or state == _KEY:
            if c != 0x22:
                return -1, kind
            p, _ = _skip_string(data, p + 1, end)
            if p < 0:
                return p, kind
            state = _COLON
        elif state == _COLON:
            if c != 0x3A:
                return -1, kind
            p += 1
            state = _VALUE
        elif c == 0x22:
            p, _ = _skip_string(data, p + 1, end)
            if p < 0:
                return p, kind
            state = _COMMA
        elif c == 0x7B or c == 0x5B:
            depth += 1
            if depth >= MAX_DEPTH:
                return -1, kind
            stack[depth] = c
            state = _KEY_OR_CLOSE if c == 0x7B else _VALUE_OR_CLOSE
            p += 1
        else:
            p, _ = _skip_scalar(data, p, end)
            if p < 0:
                return p, kind
            state = _COMMA
    return -1, kind


@njit(**_COMPILE)
def _find_name(data: Bytes, first: int, last: int, names: Bytes, name_offsets: Places, expected: int) -> int:
    """Index of the name data[first:last], searched from `expected` on and around; -1 if unknown."""
    count = len(name_offsets) - 1
    length = last - first
    for step in range(count):
        k = expected + step
        if k >= count:
            k -= count
        offset = name_offsets[k]
        if name_offsets[k + 1] - offset != length:
            continue
        same = True
        for j in range(length):
            if names[offset + j] != data[first + j]:
                same = False
                break
        if same:
            return k
    return -1


@njit(**_COMPILE)
def scan_members(
    data: Bytes,
    starts: Places,
    ends: Places,
    first_row: int,
    names: Bytes,
    name_offsets: Places,
    slots: Places,
    learn: bool,
    out_start: Places,
    out_end: Places,
    out_kind: Kinds,
    status: Kinds,
) -> tuple[int, int, int]:
    """Find the members of one object per row.

    Args:
        data: bytes.
        starts: where each document begins in them; negative: no document.
        ends: where each ends.
        first_row: row to begin with.
        names: raw bytes of the member names to look for, joined.
        name_offsets: their offsets.
        slots: output column of each name; several raw names may share one.
        learn: stop at an unknown name; otherwise skip it.
        out_start: [column, row] begin of the value, without the quotes of a string.
        out_end: its end.
        out_kind: its kind; a name given twice counts as given last, as other readers have it.
        status: of each document.

    Returns:
        (row, begin, end) of an unknown name, or (number of rows, -1, -1) when done.
    """
    stack = np.empty(MAX_DEPTH, np.uint8)
    count = len(starts)
    columns = out_kind.shape[0]
    for row in range(first_row, count):
        for column in range(columns):
            out_kind[column, row] = MISSING
        if starts[row] < 0:
            status[row] = ABSENT
            continue
        end = np.int64(ends[row])
        p = _skip_space(data, np.int64(starts[row]), end)
        if p >= end:
            status[row] = EMPTY
            continue
        if data[p] != 0x7B:
            q, kind = _skip_value(data, p, end, stack)
            if q < 0 or _skip_space(data, q, end) != end:
                status[row] = BROKEN
            else:
                status[row] = IS_NULL if kind == NULL else NOT_CONTAINER
            continue
        status[row] = BROKEN
        expected = 0
        p = _skip_space(data, p + 1, end)
        if p < end and data[p] == 0x7D:
            if _skip_space(data, p + 1, end) == end:
                status[row] = OK
            continue
        while p < end:
            if data[p] != 0x22:
                break
            name_start = p + 1
            p, _ = _skip_string(data, name_start, end)
            if p < 0:
                break
            name_end = p - 1
            p = _skip_space(data, p, end)
            if p >= end or data[p] != 0x3A:
                break
            p = _skip_space(data, p + 1, end)
            found = _find_name(data, name_start, name_end, names, name_offsets, expected)
            if found < 0 and learn:
                return row, name_start, name_end
            value = p
            p, kind = _skip_value(data, p, end, stack)
            if p < 0:
                break
            if found >= 0:
                expected = found + 1 if found + 1 < len(slots) else 0
                slot = slots[found]
                quote = 1 if kind == STRING or kind == ESCAPED else 0
                out_start[slot, row] = value + quote
                out_end[slot, row] = p - quote
                out_kind[slot, row] = kind
            p = _skip_space(data, p, end)
            if p >= end:
                break
            if data[p] == 0x2C:
                p = _skip_space(data, p + 1, end)
                continue
            if data[p] == 0x7D and _skip_space(data, p + 1, end) == end:
                status[row] = OK
            break
    return count, -1, -1


@njit(**_COMPILE)
def scan_elements(
    data: Bytes,
    starts: Places,
    ends: Places,
    lengths: Places,
    offsets: Places,
    out_start: Places,
    out_end: Places,
    out_kind: Kinds,
    status: Kinds,
    fill: bool,
) -> None:
    """Count (fill False) or write (fill True) the elements of one array per row, at `offsets[row]` on."""
    stack = np.empty(MAX_DEPTH, np.uint8)
    for row in range(len(starts)):
        lengths[row] = 0
        if starts[row] < 0:
            status[row] = ABSENT
            continue
        end = np.int64(ends[row])
        p = _skip_space(data, np.int64(starts[row]), end)
        if p >= end:
            status[row] = EMPTY
            continue
        if data[p] != 0x5B:
            q, kind = _skip_value(data, p, end, stack)
            if q < 0 or _skip_space(data, q, end) != end:
                status[row] = BROKEN
            else:
                status[row] = IS_NULL if kind == NULL else NOT_CONTAINER
            continue
        status[row] = BROKEN
        found = 0
        p = _skip_space(data, p + 1, end)
        if p < end and data[p] == 0x5D:
            if _skip_space(data, p + 1, end) == end:
                status[row] = OK
            continue
        while p < end:
            value = p
            p, kind = _skip_value(data, p, end, stack)
            if p < 0:
                break
            if fill:
                quote = 1 if kind == STRING or kind == ESCAPED else 0
                at = offsets[row] + found
                out_start[at] = value + quote
                out_end[at] = p - quote
                out_kind[at] = kind
            found += 1
            p = _skip_space(data, p, end)
            if p >= end:
                break
            if data[p] == 0x2C:
                p = _skip_space(data, p + 1, end)
                continue
            if data[p] == 0x5D and _skip_space(data, p + 1, end) == end:
                status[row] = OK
                lengths[row] = found
            break


@njit(**_COMPILE)
def split_documents(
    data: Bytes, start: int, end: int, out: NDArray[np.int64], stack: Bytes, separated: bool
) -> tuple[int, int]:
    """The JSON values that follow each other in data[start:end], with white space or (`separated`) commas between.

    Writes (begin, end) pairs to `out` and returns (pairs written, position reached): the end, or where a value is
    broken or unfinished, or `out` is full.
    """
    found = 0
    p = _skip_space(data, start, end)
    while p < end and found < len(out):
        q, _ = _skip_value(data, p, end, stack)
        if q < 0:
            return found, p
        out[found, 0] = p
        out[found, 1] = q
        found += 1
        p = _skip_space(data, q, end)
        if separated and p < end:
            if data[p] != 0x2C:
                return found, p
            p = _skip_space(data, p + 1, end)
    return found, p
