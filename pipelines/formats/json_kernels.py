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

_COMPILE: dict[str, Any] = {"cache": True, "nogil": True, "boundscheck": False, "_nrt": False}
"""Without reference counting (`_nrt`) nothing can be allocated, and passing an array on costs no atomic operation."""
_INLINE: dict[str, Any] = {**_COMPILE, "forceinline": True}
"""A call that is not inlined costs more than most of what these functions do."""


_ENDS_RUN = np.zeros(256, np.bool_)
"""Bytes at which a run of plain characters of a string ends: quote, backslash, control characters."""
_ENDS_RUN[:0x20] = True
_ENDS_RUN[[0x22, 0x5C]] = True

# Positions are unsigned: Numba checks signed indexes for negative ones at every access, which doubles the time.
_1, _2, _4, _5 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(5)
_3, _8 = np.uint64(3), np.uint64(8)
_BAD = np.uint64(2**64 - 1)
"""In place of a position: the value there is broken."""


@njit(**_INLINE)
def _skip_space(data: Bytes, p: int, end: int) -> int:
    while p < end and data[p] <= 0x20 and (data[p] == 0x20 or data[p] == 0x0A or data[p] == 0x0D or data[p] == 0x09):
        p += _1
    return p


@njit(**_INLINE)
def _is_hex(c: int) -> bool:
    return (0x30 <= c <= 0x39) or (0x41 <= c <= 0x46) or (0x61 <= c <= 0x66)


@njit(**_COMPILE)
def _skip_escape(data: Bytes, p: int, end: int) -> int:
    """Position after the escape whose backslash is at p."""
    p += _1
    if p >= end:
        return _BAD
    e = data[p]
    if e == 0x75:
        if p + _4 >= end:
            return _BAD
        for k in range(_1, _5):
            if not _is_hex(data[p + k]):
                return _BAD
        return p + _5
    if e == 0x22 or e == 0x5C or e == 0x2F or e == 0x62 or e == 0x66 or e == 0x6E or e == 0x72 or e == 0x74:
        return p + _1
    return _BAD


@njit(**_INLINE)
def _skip_string(data: Bytes, p: int, end: int) -> tuple[int, bool]:
    """(position after the closing quote, whether a backslash occurs); p is after the opening quote."""
    escaped = False
    while True:
        while p < end and not _ENDS_RUN[data[p]]:
            p += _1
        if p >= end or data[p] < 0x20:
            return _BAD, escaped
        if data[p] == 0x22:
            return p + _1, escaped
        escaped = True
        p = _skip_escape(data, p, end)
        if p == _BAD:
            return _BAD, escaped


@njit(**_INLINE)
def _matches(data: Bytes, p: int, end: int, word: Bytes) -> bool:
    length = np.uint64(len(word))
    if p + length > end:
        return False
    for k in range(length):
        if data[p + k] != word[k]:
            return False
    return True


_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)
_NULL = np.frombuffer(b"null", np.uint8)
_NAN = np.frombuffer(b"NaN", np.uint8)
_INFINITY = np.frombuffer(b"Infinity", np.uint8)


@njit(**_INLINE)
def _skip_digits(data: Bytes, p: int, end: int) -> int:
    while p < end and 0x30 <= data[p] <= 0x39:
        p += _1
    return p


@njit(**_INLINE)
def _skip_number(data: Bytes, p: int, end: int) -> tuple[int, int]:
    """(position after the number without its sign, INT or FLOAT)."""
    if p >= end or not 0x30 <= data[p] <= 0x39:
        return _BAD, INT
    p = p + _1 if data[p] == 0x30 else _skip_digits(data, p, end)
    kind = INT
    if p < end and data[p] == 0x2E:
        kind = FLOAT
        first = p + _1
        p = _skip_digits(data, first, end)
        if p == first:
            return _BAD, kind
    if p < end and (data[p] == 0x65 or data[p] == 0x45):
        kind = FLOAT
        first = p + _1
        if first < end and (data[first] == 0x2B or data[first] == 0x2D):
            first += _1
        p = _skip_digits(data, first, end)
        if p == first:
            return _BAD, kind
    return p, kind


@njit(**_COMPILE)
def _skip_scalar(data: Bytes, p: int, end: int) -> tuple[int, int]:
    """(position after a literal or number, its kind)."""
    c = data[p]
    if c == 0x74:
        return (p + _4 if _matches(data, p, end, _TRUE) else _BAD), TRUE
    if c == 0x66:
        return (p + _5 if _matches(data, p, end, _FALSE) else _BAD), FALSE
    if c == 0x6E:
        return (p + _4 if _matches(data, p, end, _NULL) else _BAD), NULL
    if c == 0x4E:
        return (p + _3 if _matches(data, p, end, _NAN) else _BAD), FLOAT
    if c == 0x2D:
        p += _1
    if p < end and data[p] == 0x49:
        return (p + _8 if _matches(data, p, end, _INFINITY) else _BAD), FLOAT
    return _skip_number(data, p, end)


@njit(**_INLINE)
def _skip_key(data: Bytes, p: int, end: int) -> int:
    """Position of the value of the member whose name begins at p."""
    if p >= end or data[p] != 0x22:
        return _BAD
    p, _ = _skip_string(data, p + _1, end)
    if p == _BAD:
        return _BAD
    p = _skip_space(data, p, end)
    if p >= end or data[p] != 0x3A:
        return _BAD
    return _skip_space(data, p + _1, end)


@njit(**_COMPILE)
def _skip_value(data: Bytes, p: int, end: int, stack: Bytes) -> tuple[int, int]:
    """(position after the value at p, its kind). `stack` has MAX_DEPTH bytes."""
    if p >= end:
        return _BAD, MISSING
    c = data[p]
    if c == 0x22:
        q, escaped = _skip_string(data, p + _1, end)
        return q, (ESCAPED if escaped else STRING)
    if c != 0x7B and c != 0x5B:
        return _skip_scalar(data, p, end)
    kind = OBJECT if c == 0x7B else ARRAY
    depth = -1
    while True:
        # At the begin of a value.
        if p >= end:
            return _BAD, kind
        c = data[p]
        if c == 0x7B or c == 0x5B:
            depth += 1
            if depth >= MAX_DEPTH:
                return _BAD, kind
            stack[depth] = c + 2  # the bracket that closes it
            p = _skip_space(data, p + _1, end)
            if p >= end:
                return _BAD, kind
            if data[p] != stack[depth]:
                if c == 0x7B:
                    p = _skip_key(data, p, end)
                continue
        elif c == 0x22:
            p, _ = _skip_string(data, p + _1, end)
        else:
            p, _ = _skip_scalar(data, p, end)
        # Behind a value, or before the bracket of an empty container.
        while True:
            if p >= end:
                return _BAD, kind
            p = _skip_space(data, p, end)
            if p >= end:
                return _BAD, kind
            if data[p] == 0x2C:
                p = _skip_space(data, p + _1, end)
                if stack[depth] == 0x7D:
                    p = _skip_key(data, p, end)
                break
            if data[p] != stack[depth]:
                return _BAD, kind
            p += _1
            depth -= 1
            if depth < 0:
                return p, kind


@njit(**_INLINE)
def _is_name(data: Bytes, first: int, names: Bytes, offset: int, length: int) -> bool:
    for j in range(length):
        if names[offset + j] != data[first + j]:
            return False
    return True


@njit(**_INLINE)
def _expected_name(data: Bytes, first: int, end: int, names: Bytes, name_offsets: Places, expected: int) -> int:
    """Length of name `expected` plus 1 if that is the name that begins at `first`, quote included; else 0."""
    if expected >= len(name_offsets) - 1:
        return np.uint64(0)
    offset = np.uint64(name_offsets[expected])
    length = np.uint64(name_offsets[expected + 1]) - offset
    if first + length >= end or data[first + length] != 0x22:
        return np.uint64(0)
    return length + _1 if _is_name(data, first, names, offset, length) else np.uint64(0)


@njit(**_COMPILE)
def _find_name(data: Bytes, first: int, last: int, names: Bytes, name_offsets: Places, expected: int) -> int:
    """Index of the name data[first:last], searched from `expected` on and around; -1 if unknown."""
    count = len(name_offsets) - 1
    length = last - first
    for step in range(count):
        k = expected + step
        if k >= count:
            k -= count
        offset = np.uint64(name_offsets[k])
        if np.uint64(name_offsets[k + 1]) - offset == length and _is_name(data, first, names, offset, length):
            return k
    return -1


@njit(**_INLINE)
def _next_member(
    data: Bytes, p: int, end: int, names: Bytes, name_offsets: Places, expected: int
) -> tuple[int, int, int, int]:
    """(position of the value, index of the name, begin and end of the name) of the member that begins at p.

    The index is -1 for an unknown name.
    """
    if data[p] != 0x22:
        return _BAD, -1, p, p
    first = p + _1
    found = expected
    length = _expected_name(data, first, end, names, name_offsets, expected)
    if length:
        p = first + length
    else:
        p, _ = _skip_string(data, first, end)
        if p == _BAD:
            return _BAD, -1, first, first
        found = _find_name(data, first, p - _1, names, name_offsets, expected)
    last = p - _1
    p = _skip_space(data, p, end)
    if p >= end or data[p] != 0x3A:
        return _BAD, found, first, last
    return _skip_space(data, p + _1, end), found, first, last


@njit(**_INLINE)
def _scan_object(
    data: Bytes,
    p: int,
    end: int,
    row: int,
    names: Bytes,
    name_offsets: Places,
    slots: Places,
    base: int,
    learn: bool,
    out_start: Places,
    out_end: Places,
    out_kind: Kinds,
    stack: Bytes,
) -> tuple[int, int, int]:
    """Find the members of the object at p, to columns from `base` on.

    Returns (position after it, 0, 0), or (_BAD, begin, end) of an unknown name, or (_BAD, 0, 0) if it is broken.
    """
    expected = 0
    nothing = np.uint64(0)
    p = _skip_space(data, p + _1, end)
    if p < end and data[p] == 0x7D:
        return p + _1, nothing, nothing
    while p < end:
        p, found, first, last = _next_member(data, p, end, names, name_offsets, expected)
        if p >= end:
            break
        if found < 0 and learn:
            return _BAD, first, last
        value = p
        p, kind = _skip_value(data, p, end, stack)
        if p > end:
            break
        if found >= 0:
            expected = found + 1 if found + 1 < len(slots) else 0
            column = base + slots[found]
            quote = _1 if kind == STRING or kind == ESCAPED else nothing
            out_start[column, row] = value + quote
            out_end[column, row] = p - quote
            out_kind[column, row] = kind
        p = _skip_space(data, p, end)
        if p >= end:
            break
        if data[p] == 0x7D:
            return p + _1, nothing, nothing
        if data[p] != 0x2C:
            break
        p = _skip_space(data, p + _1, end)
    return _BAD, nothing, nothing


@njit(**_COMPILE)
def _status_of_other(data: Bytes, p: int, end: int, stack: Bytes) -> int:
    """Status of a document that does not begin as an object."""
    if p >= end:
        return EMPTY
    q, kind = _skip_value(data, p, end, stack)
    if q > end or _skip_space(data, q, end) != end:
        return BROKEN
    return IS_NULL if kind == NULL else NOT_CONTAINER


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
    stack: Bytes,
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
        stack: MAX_DEPTH bytes of scratch space.

    Returns:
        (row, begin, end) of an unknown name, or (number of rows, 0, 0) when done.
    """
    count = len(starts)
    for row in range(first_row, count):
        for column in range(out_kind.shape[0]):
            out_kind[column, row] = MISSING
        if starts[row] < 0:
            status[row] = ABSENT
            continue
        end = np.uint64(ends[row])
        p = _skip_space(data, np.uint64(starts[row]), end)
        if p >= end or data[p] != 0x7B:
            status[row] = _status_of_other(data, p, end, stack)
            continue
        p, first, last = _scan_object(
            data, p, end, row, names, name_offsets, slots, 0, learn, out_start, out_end, out_kind, stack
        )
        if first:
            return row, first, last
        status[row] = OK if p <= end and _skip_space(data, p, end) == end else BROKEN
    return count, np.uint64(0), np.uint64(0)


@njit(**_COMPILE)
def scan_nested(
    data: Bytes,
    starts: Places,
    ends: Places,
    first_row: int,
    names: Bytes,
    name_offsets: Places,
    slots: Places,
    bases: Places,
    row_names: Bytes,
    row_offsets: Places,
    row_slots: Places,
    origin_base: int,
    origin_names: Bytes,
    origin_offsets: Places,
    origin_slots: Places,
    out_start: Places,
    out_end: Places,
    out_kind: Kinds,
    status: Kinds,
    stack: Bytes,
) -> tuple[int, int, int]:
    """Find members, and those of some of them that are objects, in one pass: change events with their row images.

    `bases` has per slot of `names` the first output column of its own members; 0 for members not looked into. The one
    with `origin_base` has members `origin_names`, others are row images, whose names are learned. The other arguments
    and the result are those of `scan_members`; an unknown name is one of a row image.
    """
    count = len(starts)
    nothing = np.uint64(0)
    for row in range(first_row, count):
        for column in range(out_kind.shape[0]):
            out_kind[column, row] = MISSING
        if starts[row] < 0:
            status[row] = ABSENT
            continue
        end = np.uint64(ends[row])
        p = _skip_space(data, np.uint64(starts[row]), end)
        if p >= end or data[p] != 0x7B:
            status[row] = _status_of_other(data, p, end, stack)
            continue
        status[row] = BROKEN
        expected = 0
        p = _skip_space(data, p + _1, end)
        if p < end and data[p] == 0x7D:
            if _skip_space(data, p + _1, end) == end:
                status[row] = OK
            continue
        while p < end:
            p, found, _, _ = _next_member(data, p, end, names, name_offsets, expected)
            if p >= end:
                break
            value = p
            kind = OBJECT
            base = bases[slots[found]] if found >= 0 and data[p] == 0x7B else 0
            if base == 0:
                p, kind = _skip_value(data, p, end, stack)
            elif base == origin_base:
                p, _, _ = _scan_object(
                    data, p, end, row, origin_names, origin_offsets, origin_slots, base, False,
                    out_start, out_end, out_kind, stack,
                )  # fmt: skip
            else:
                p, first, last = _scan_object(
                    data, p, end, row, row_names, row_offsets, row_slots, base, True,
                    out_start, out_end, out_kind, stack,
                )  # fmt: skip
                if first:
                    return row, first, last
            if p > end:
                break
            if found >= 0:
                expected = found + 1 if found + 1 < len(slots) else 0
                quote = _1 if kind == STRING or kind == ESCAPED else nothing
                out_start[slots[found], row] = value + quote
                out_end[slots[found], row] = p - quote
                out_kind[slots[found], row] = kind
            p = _skip_space(data, p, end)
            if p >= end:
                break
            if data[p] == 0x7D:
                if _skip_space(data, p + _1, end) == end:
                    status[row] = OK
                break
            if data[p] != 0x2C:
                break
            p = _skip_space(data, p + _1, end)
    return count, nothing, nothing


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
    stack: Bytes,
) -> None:
    """Count (fill False) or write (fill True) the elements of one array per row, at `offsets[row]` on."""
    for row in range(len(starts)):
        lengths[row] = 0
        if starts[row] < 0:
            status[row] = ABSENT
            continue
        end = np.uint64(ends[row])
        p = _skip_space(data, np.uint64(starts[row]), end)
        if p >= end or data[p] != 0x5B:
            status[row] = _status_of_other(data, p, end, stack)
            continue
        status[row] = BROKEN
        found = 0
        p = _skip_space(data, p + _1, end)
        if p < end and data[p] == 0x5D:
            if _skip_space(data, p + _1, end) == end:
                status[row] = OK
            continue
        while p < end:
            value = p
            p, kind = _skip_value(data, p, end, stack)
            if p > end:
                break
            if fill:
                quote = _1 if kind == STRING or kind == ESCAPED else np.uint64(0)
                at = offsets[row] + found
                out_start[at] = value + quote
                out_end[at] = p - quote
                out_kind[at] = kind
            found += 1
            p = _skip_space(data, p, end)
            if p >= end:
                break
            if data[p] == 0x5D:
                if _skip_space(data, p + _1, end) == end:
                    status[row] = OK
                    lengths[row] = found
                break
            if data[p] != 0x2C:
                break
            p = _skip_space(data, p + _1, end)


@njit(**_COMPILE)
def split_documents(
    data: Bytes, start: int, stop: int, out: NDArray[np.int64], stack: Bytes, separated: bool
) -> tuple[int, int]:
    """The JSON values that follow each other in data[start:stop], with white space or (`separated`) commas between.

    Writes (begin, end) pairs to `out` and returns (pairs written, position reached): the end, or where a value is
    broken or unfinished, or `out` is full.
    """
    found = 0
    end = np.uint64(stop)
    p = _skip_space(data, np.uint64(start), end)
    while p < end and found < len(out):
        q, _ = _skip_value(data, p, end, stack)
        if q > end:
            return found, np.int64(p)
        out[found, 0] = p
        out[found, 1] = q
        found += 1
        p = _skip_space(data, q, end)
        if separated and p < end:
            if data[p] != 0x2C:
                return found, np.int64(p)
            p = _skip_space(data, p + _1, end)
    return found, np.int64(p)


@njit(**_COMPILE)
def begin_with(
    data: Bytes, starts: Places, ends: Places, names: Bytes, name_offsets: Places, out: NDArray[np.bool_]
) -> None:
    """Mark the documents that are objects whose first member has one of the names."""
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        end = np.uint64(ends[row])
        p = _skip_space(data, np.uint64(starts[row]), end)
        if p >= end or data[p] != 0x7B:
            continue
        p = _skip_space(data, p + _1, end)
        if p >= end or data[p] != 0x22:
            continue
        for k in range(len(name_offsets) - 1):
            if _expected_name(data, p + _1, end, names, name_offsets, k):
                out[row] = True


_LOW_BITS = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)


@njit(**_COMPILE)
def find_newlines(data: Bytes, words: NDArray[np.uint64], out: Places) -> int:
    """Positions behind the newlines of `data`, of which `words` are the whole eights of bytes; returns their number.

    Stops when `out` is full.
    """
    found = 0
    for word in range(len(words)):
        # A byte is a newline iff it is zero here, and then its high bit is set below (Hacker's Delight, 6-1).
        other = words[word] ^ _NEWLINES
        if (other - _LOW_BITS) & ~other & _HIGH_BITS:
            first = word * 8
            for k in range(first, first + 8):
                if data[k] == 0x0A:
                    if found == len(out):
                        return found
                    out[found] = k + 1
                    found += 1
    for k in range(8 * len(words), len(data)):
        if data[k] == 0x0A:
            if found == len(out):
                return found
            out[found] = k + 1
            found += 1
    return found
