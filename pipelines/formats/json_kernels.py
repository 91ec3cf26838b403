"""Compiled kernels that walk over JSON values, and the kinds of values and documents.

Library readers (DuckDB `from_json`, pyarrow.json) round 1.5 to 2, drop the digits of long decimals and cannot tell a
missing member from null, all of which change rows. The kernels only find where values lie and of which kind they are;
strictly: what `json.loads` refuses is refused here. Turning spans into columns is `json_columns.py`.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR1714, SIM110, FBT001 - one compiled loop per kernel; Numba inlines no generators

import numpy as np
from numpy.typing import NDArray

from scan_core.native.machine_code import callee, inlined

MISSING, NULL, FALSE, TRUE, INT, FLOAT, STRING, ESCAPED, OBJECT, ARRAY = range(10)
"""Kinds of a value. ESCAPED is a string with a backslash in it; INT has neither fraction nor exponent."""

OK, ABSENT, IS_NULL, EMPTY, NOT_CONTAINER, BROKEN, TOO_MANY, REPEATED = range(8)
"""Status of a document: ABSENT has no span, EMPTY holds only white space, BROKEN is no JSON, REPEATED gives a member twice."""

MAX_DEPTH = 256
"""Deeper nesting is refused: no feed has it, and hostile input must end."""

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
Kinds = NDArray[np.int8]

_ENDS_RUN = np.zeros(256, np.bool_)
"""Bytes at which a run of plain characters of a string ends: quote, backslash, control characters."""
_ENDS_RUN[:0x20] = True
_ENDS_RUN[[0x22, 0x5C]] = True

# Positions are unsigned: Numba checks signed indexes for negative ones at every access, which doubles the time.
ONE = np.uint64(1)
_3, _4, _5, _8 = np.uint64(3), np.uint64(4), np.uint64(5), np.uint64(8)
BAD = np.uint64(2**64 - 1)
"""In place of a position: the value there is broken."""


@inlined
def require(holds: bool) -> None:
    """Refuse arrays that do not hold what a kernel reads and writes in them.

    Kernels index without checks. So those that Python calls prove first, once per call or row, that every index lies
    inside; checks at every access take 25 to 50 % more time.

    Raises:
        IndexError: they do not.
    """
    if not holds:
        raise IndexError("an array given to a compiled kernel is too short or points outside of another")


@inlined
def skip_space(data: Bytes, p: int, end: int) -> int:
    """Position of the next byte that is no white space."""
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
    """(position after the value at p, its kind). `stack` has MAX_DEPTH bytes."""
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
        # At the begin of a value.
        if p >= end:
            return BAD, kind
        c = data[p]
        if c == 0x7B or c == 0x5B:
            depth += 1
            if depth >= MAX_DEPTH:
                return BAD, kind
            stack[depth] = c + 2  # the bracket that closes it
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
        # Behind a value, or before the bracket of an empty container.
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
def status_of_other(data: Bytes, p: int, end: int, stack: Bytes) -> int:
    """Status of a document that does not begin as an object."""
    if p >= end:
        return EMPTY
    q, kind = skip_value(data, p, end, stack)
    if q > end or skip_space(data, q, end) != end:
        return BROKEN
    return IS_NULL if kind == NULL else NOT_CONTAINER
