"""Compiled functions that walk over JSON values: the building blocks of the other kernels.

Contains the kinds of values, operations on words of eight bytes, and the names of members. General JSON readers
round decimals and cannot distinguish a missing member from null, so they are not used. The kernels that Python calls
are in modules of their own, because each module is compiled as one unit.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nevermore.scan_core.native import callee, inlined, intrinsic

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, FBT001, PLR0912, PLR0917, PLR1714, SIM110 - one compiled loop per kernel, which takes arrays one by one; Numba inlines no generators


MISSING, NULL, FALSE, TRUE, INT, FLOAT, STRING, ESCAPED, OBJECT, ARRAY = range(10)
"""Kinds of a value. ESCAPED is a string with a backslash in it; INT has neither fraction nor exponent."""

OK, ABSENT, IS_NULL, EMPTY, NOT_CONTAINER, BROKEN, TOO_MANY, REPEATED, TOO_DEEP = range(9)
"""Status of a document: ABSENT has no span, EMPTY is only white space, BROKEN is not JSON, REPEATED has a member twice."""

MAX_DEPTH = 256
"""Maximum nesting of objects and arrays in a document. Deeper ones are hostile: no real feed has them."""

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
Kinds = NDArray[np.int8]

_ENDS_RUN = np.zeros(256, np.bool_)
"""Bytes that end a run of plain characters in a string: quote, backslash, control characters."""
_ENDS_RUN[:0x20] = True
_ENDS_RUN[[0x22, 0x5C]] = True

# Positions are unsigned: Numba checks signed indexes for negative values at every access, which doubles the time.
ONE = np.uint64(1)
_3, _4, _5, _8 = np.uint64(3), np.uint64(4), np.uint64(5), np.uint64(8)
BAD = np.uint64(2**64 - 1)
"""Position that marks a broken value. Greater than every end, as DEEP is."""
DEEP = np.uint64(2**64 - 2)
"""Position that marks a value that nests too deeply."""


@inlined
def require(holds: bool) -> None:
    """Refuse arrays that are too short for what a kernel reads and writes.

    Kernels index without checks. So kernels called from Python prove first, once per call or row, that every index is
    valid; checks at every access take 25 to 50 % more time.

    Raises:
        IndexError: they are too short.
    """
    if not holds:
        raise IndexError("an array given to a compiled kernel is too short or points outside of another")


@callee
def big_endian(data: Bytes, at: int, size: int) -> int:
    """The unsigned integer of `size` bytes at a position; the caller has checked the bounds."""
    value = np.int64(0)
    for k in range(size):
        value = (value << np.int64(8)) | np.int64(data[at + k])
    return value


_u = np.uint64
EIGHT = _u(8)
_BITS = _u(3)
"""A shift by this many turns bytes into bits."""
_QUOTES, _BACKSLASHES = _u(0x2222222222222222), _u(0x5C5C5C5C5C5C5C5C)
_ONES, _BLANKS, _HIGH_BITS = _u(0x0101010101010101), _u(0x2020202020202020), _u(0x8080808080808080)


@intrinsic
def trailing_zeros(_context: Any, _word: Any) -> Any:
    """Number of trailing zero bits."""
    from llvmlite import ir
    from numba import types

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@inlined
def word_at(data: Bytes, p: int) -> int:
    """Eight bytes, little-endian; a single load, as LLVM recognises this form."""
    low = _u(data[p]) | (_u(data[p + _u(1)]) << _u(8))
    low |= (_u(data[p + _u(2)]) << _u(16)) | (_u(data[p + _u(3)]) << _u(24))
    high = _u(data[p + _u(4)]) | (_u(data[p + _u(5)]) << _u(8))
    high |= (_u(data[p + _u(6)]) << _u(16)) | (_u(data[p + _u(7)]) << _u(24))
    return low | (high << _u(32))


@inlined
def put_word(out: Bytes, p: int, word: int) -> None:
    """Write eight bytes, little-endian; one store."""
    for k in range(EIGHT):
        out[p + k] = np.uint8((word >> (k << _BITS)) & _u(0xFF))


@inlined
def end_of_plain_run(data: Bytes, p: int, end: int) -> int:
    """Position of the first quote, backslash or control character from p on, or of the last bytes before `end`."""
    while p + EIGHT <= end:
        word = word_at(data, p)
        quote, backslash = word ^ _QUOTES, word ^ _BACKSLASHES
        found = ((quote - _ONES) & ~quote) | ((backslash - _ONES) & ~backslash) | ((word - _BLANKS) & ~word)
        found &= _HIGH_BITS
        if found:
            return p + (trailing_zeros(found) >> _BITS)
        p += EIGHT
    return p


@inlined
def skip_space(data: Bytes, p: int, end: int) -> int:
    """Position of the next byte that is not white space."""
    while p < end and data[p] <= 0x20 and (data[p] == 0x20 or data[p] == 0x0A or data[p] == 0x0D or data[p] == 0x09):
        p += ONE
    return p


@inlined
def _is_hex(c: int) -> bool:
    return (0x30 <= c <= 0x39) or (0x41 <= c <= 0x46) or (0x61 <= c <= 0x66)


@callee
def _skip_escape(data: Bytes, p: int, end: int) -> int:
    """Position after the escape whose backslash is at p."""
    p += ONE
    if p >= end:
        return BAD
    e = data[p]
    if e == 0x75:
        if p + _4 >= end:
            return BAD
        for k in range(ONE, _5):
            if not _is_hex(data[p + k]):
                return BAD
        return p + _5
    if e == 0x22 or e == 0x5C or e == 0x2F or e == 0x62 or e == 0x66 or e == 0x6E or e == 0x72 or e == 0x74:
        return p + ONE
    return BAD


@inlined
def skip_string(data: Bytes, p: int, end: int) -> tuple[int, bool]:
    """(position after the closing quote, whether a backslash occurs); p is after the opening quote."""
    escaped = False
    while True:
        p = end_of_plain_run(data, p, end)
        while p < end and not _ENDS_RUN[data[p]]:
            p += ONE
        if p >= end or data[p] < 0x20:
            return BAD, escaped
        if data[p] == 0x22:
            return p + ONE, escaped
        escaped = True
        p = _skip_escape(data, p, end)
        if p == BAD:
            return BAD, escaped


@inlined
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


@inlined
def _skip_digits(data: Bytes, p: int, end: int) -> int:
    while p < end and 0x30 <= data[p] <= 0x39:
        p += ONE
    return p


@inlined
def _skip_number(data: Bytes, p: int, end: int) -> tuple[int, int]:
    """(position after the number without its sign, INT or FLOAT)."""
    if p >= end or not 0x30 <= data[p] <= 0x39:
        return BAD, INT
    p = p + ONE if data[p] == 0x30 else _skip_digits(data, p, end)
    kind = INT
    if p < end and data[p] == 0x2E:
        kind = FLOAT
        first = p + ONE
        p = _skip_digits(data, first, end)
        if p == first:
            return BAD, kind
    if p < end and (data[p] == 0x65 or data[p] == 0x45):
        kind = FLOAT
        first = p + ONE
        if first < end and (data[first] == 0x2B or data[first] == 0x2D):
            first += ONE
        p = _skip_digits(data, first, end)
        if p == first:
            return BAD, kind
    return p, kind


@callee
def _skip_scalar(data: Bytes, p: int, end: int) -> tuple[int, int]:
    """(position after a literal or number, its kind)."""
    c = data[p]
    if c == 0x74:
        return (p + _4 if _matches(data, p, end, _TRUE) else BAD), TRUE
    if c == 0x66:
        return (p + _5 if _matches(data, p, end, _FALSE) else BAD), FALSE
    if c == 0x6E:
        return (p + _4 if _matches(data, p, end, _NULL) else BAD), NULL
    if c == 0x4E:
        return (p + _3 if _matches(data, p, end, _NAN) else BAD), FLOAT
    if c == 0x2D:
        p += ONE
    if p < end and data[p] == 0x49:
        return (p + _8 if _matches(data, p, end, _INFINITY) else BAD), FLOAT
    return _skip_number(data, p, end)


@inlined
def _skip_key(data: Bytes, p: int, end: int) -> int:
    """Position of the value of the member whose name begins at p."""
    if p >= end or data[p] != 0x22:
        return BAD
    p, _ = skip_string(data, p + ONE, end)
    if p == BAD:
        return BAD
    p = skip_space(data, p, end)
    if p >= end or data[p] != 0x3A:
        return BAD
    return skip_space(data, p + ONE, end)


@callee
def skip_value(data: Bytes, p: int, end: int, stack: Bytes) -> tuple[int, int]:
    """(position after the value at p, its kind); DEEP if it has more levels than `stack` has bytes.

    Kernels that scan inside a document pass on a stack without the levels above the value, so that the limit applies to
    the whole document, whichever kernel scans it.
    """
    if p >= end:
        return BAD, MISSING
    c = data[p]
    if c == 0x22:
        q, escaped = skip_string(data, p + ONE, end)
        return q, (ESCAPED if escaped else STRING)
    if c != 0x7B and c != 0x5B:
        return _skip_scalar(data, p, end)
    kind = OBJECT if c == 0x7B else ARRAY
    depth = -1
    while True:
        # At the beginning of a value.
        if p >= end:
            return BAD, kind
        c = data[p]
        if c == 0x7B or c == 0x5B:
            depth += 1
            if depth >= len(stack):
                return DEEP, kind
            stack[depth] = c + 2  # its closing bracket
            p = skip_space(data, p + ONE, end)
            if p >= end:
                return BAD, kind
            if data[p] != stack[depth]:
                if c == 0x7B:
                    p = _skip_key(data, p, end)
                continue
        elif c == 0x22:
            p, _ = skip_string(data, p + ONE, end)
        else:
            p, _ = _skip_scalar(data, p, end)
        # After a value, or before the bracket of an empty container.
        while True:
            if p >= end:
                return BAD, kind
            p = skip_space(data, p, end)
            if p >= end:
                return BAD, kind
            if data[p] == 0x2C:
                p = skip_space(data, p + ONE, end)
                if stack[depth] == 0x7D:
                    p = _skip_key(data, p, end)
                break
            if data[p] != stack[depth]:
                return BAD, kind
            p += ONE
            depth -= 1
            if depth < 0:
                return p, kind


@callee
def skip_document(data: Bytes, p: int, end: int, stack: Bytes) -> int:
    """Position after the value at p; a value that nests too deeply ends where its brackets are balanced.

    Files are split into documents by this: one that is too deep is still one document, which decoding rejects.
    """
    q, _ = skip_value(data, p, end, stack)
    if q != DEEP:
        return q
    depth = 0
    while p < end:
        c = data[p]
        p += ONE
        if c == 0x22:
            p, _ = skip_string(data, p, end)
        elif c == 0x7B or c == 0x5B:
            depth += 1
        elif c == 0x7D or c == 0x5D:
            depth -= 1
            if depth == 0:
                return p
    return BAD


@inlined
def status_at(data: Bytes, p: int, end: int) -> int:
    """Status of a document whose value ends at p: nothing but white space may follow."""
    if p == DEEP:
        return TOO_DEEP
    return OK if p <= end and skip_space(data, p, end) == end else BROKEN


@callee
def _status_of_other(data: Bytes, p: int, end: int, stack: Bytes) -> int:
    """Status of a document that does not begin with the expected bracket."""
    if p >= end:
        return EMPTY
    p, kind = skip_value(data, p, end, stack)
    status = status_at(data, p, end)
    if status != OK:
        return status
    return IS_NULL if kind == NULL else NOT_CONTAINER


@inlined
def begin_container(data: Bytes, start: int, stop: int, bracket: int, stack: Bytes) -> tuple[int, int, int]:
    """(position of the opening bracket, end of the document, status): OK, or why data[start:stop] does not begin with it.

    Raises:
        IndexError: the document lies outside of the data.
    """
    if start < 0:
        return BAD, BAD, ABSENT
    end = np.uint64(stop)
    require(end <= np.uint64(len(data)))
    p = skip_space(data, np.uint64(start), end)
    if p < end and data[p] == bracket:
        return p, end, OK
    return p, end, _status_of_other(data, p, end, stack)


@inlined
def same_bytes(data: Bytes, p: int, end: int, pattern: Bytes, first: int, length: int) -> bool:
    """Whether data[p : p + length] is pattern[first : first + length]; both end before `end` and 8 bytes of padding."""
    done = _u(0)
    while done + EIGHT <= length:
        if word_at(data, p + done) != word_at(pattern, first + done):
            return False
        done += EIGHT
    if done == length:
        return True
    if p + done + EIGHT <= end:
        other = word_at(data, p + done) ^ word_at(pattern, first + done)
        return other << ((EIGHT - (length - done)) << _BITS) == _u(0)
    while done < length:
        if data[p + done] != pattern[first + done]:
            return False
        done += ONE
    return True


@callee
def require_names(names: Bytes, name_offsets: Places) -> None:
    """Refuse names that are not at their offsets, followed by 8 bytes of padding."""
    require(len(name_offsets) > 0 and name_offsets[0] >= 0)
    for k in range(1, len(name_offsets)):
        require(name_offsets[k - 1] <= name_offsets[k])
    require(np.int64(name_offsets[len(name_offsets) - 1]) + 8 <= len(names))


@callee
def require_columns(name_offsets: Places, slots: Places, columns: int) -> None:
    """Refuse names without a column, or with one beyond `columns`."""
    require(len(slots) == len(name_offsets) - 1)
    for k in range(len(slots)):
        require(slots[k] >= 0 and slots[k] < columns)


@inlined
def expected_name(data: Bytes, first: int, end: int, names: Bytes, name_offsets: Places, expected: int) -> int:
    """Length of name `expected` plus 1 if that name begins at `first`, including the quote; else 0."""
    if expected >= len(name_offsets) - 1:
        return np.uint64(0)
    offset = np.uint64(name_offsets[expected])
    length = np.uint64(name_offsets[expected + 1]) - offset
    if first + length >= end or data[first + length] != 0x22:
        return np.uint64(0)
    return length + ONE if same_bytes(data, first, end, names, offset, length) else np.uint64(0)


@callee
def _find_name(data: Bytes, first: int, last: int, names: Bytes, name_offsets: Places, expected: int) -> int:
    """Index of the name data[first:last], searched from `expected` outwards; -1 if unknown."""
    count = len(name_offsets) - 1
    length = last - first
    for step in range(count):
        k = expected + step
        if k >= count:
            k -= count
        offset = np.uint64(name_offsets[k])
        if np.uint64(name_offsets[k + 1]) - offset == length and same_bytes(data, first, last, names, offset, length):
            return k
    return -1


@inlined
def next_member(
    data: Bytes, p: int, end: int, names: Bytes, name_offsets: Places, expected: int
) -> tuple[int, int, int, int]:
    """(position of the value, index of the name, begin and end of the name) of the member that begins at p.

    The index is -1 for an unknown name.
    """
    if data[p] != 0x22:
        return BAD, -1, p, p
    first = p + ONE
    found = expected
    length = expected_name(data, first, end, names, name_offsets, expected)
    if length:
        p = first + length
    else:
        p, _ = skip_string(data, first, end)
        if p == BAD:
            return BAD, -1, first, first
        found = _find_name(data, first, p - ONE, names, name_offsets, expected)
    last = p - ONE
    p = skip_space(data, p, end)
    if p >= end or data[p] != 0x3A:
        return BAD, found, first, last
    return skip_space(data, p + ONE, end), found, first, last
