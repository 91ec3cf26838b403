"""Compiled kernels that walk over a JSON value and take the value of a number with them, without a second look at it."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901 - one compiled loop per kernel

import numpy as np

from pipelines.formats.double_kernels import LARGEST, MOST_DIGITS, SIGN, SMALLEST, nearest
from pipelines.formats.json_kernels import BAD, ESCAPED, FLOAT, INT, ONE, STRING, Bytes, skip_value
from pipelines.formats.json_kernels import skip_string as skip_rest_of_string
from pipelines.formats.word_kernels import end_of_plain_run, run_of_digits
from scan_core.native.machine_code import callee, inlined

_u = np.uint64
_NONE = _u(0)
_MAX = _u(2**63 - 1)
_NINE = _u(9)
_ZERO_DIGIT = _u(0x30)
_LONGEST_EXPONENT = 100_000


@inlined
def _fraction(data: Bytes, p: int, end: int, value: int, digits: int) -> tuple[int, int, int, int]:
    """(position after point and digits, BAD if there are none; value; digits that count; power of ten), from a point on."""
    point = p + ONE
    p, value = run_of_digits(data, point, end, value)
    if p == point:
        return BAD, value, digits, 0
    power = -np.int64(p - point)
    digits += p - point
    if digits > MOST_DIGITS and digits == p - point + ONE and data[point - _u(2)] == 0x30:
        first = point
        while first < p and data[first] == 0x30:
            first += ONE
        digits = p - first
    return p, value, digits, power


@inlined
def _exponent(data: Bytes, p: int, end: int) -> tuple[int, int]:
    """(position after the exponent whose letter is at p, BAD if it has no digits; the exponent)."""
    p += ONE
    negative = p < end and data[p] == 0x2D
    if negative or (p < end and data[p] == 0x2B):
        p += ONE
    first = p
    exponent = np.int64(0)
    while p < end:
        digit = _u(data[p]) - _ZERO_DIGIT
        if digit > _NINE:
            break
        if exponent < _LONGEST_EXPONENT:
            exponent = exponent * 10 + np.int64(digit)
        p += ONE
    return (BAD if p == first else p), (-exponent if negative else exponent)


@callee
def _number_at(data: Bytes, p: int, end: int) -> tuple[int, int, int, bool]:
    """What `value_at` returns, of the number at p."""
    negative = data[p] == 0x2D
    if negative:
        p += ONE
    if p >= end or _u(data[p]) - _ZERO_DIGIT > _NINE:
        return BAD, INT, _NONE, False
    first, value = p, _NONE
    is_zero = data[p] == 0x30
    if is_zero:
        p += ONE
    else:
        p, value = run_of_digits(data, p, end, value)
    digits = p - first
    has_exponent = p < end and (data[p] | 0x20) == 0x65
    if not has_exponent and (p >= end or data[p] != 0x2E):
        fits = digits <= MOST_DIGITS and value <= _MAX + _u(negative)
        # -0 is a number that doubles have and integers lack
        return p, INT, (_NONE - value if negative else value), fits and not (negative and is_zero)
    power = 0
    if not has_exponent:
        p, value, digits, power = _fraction(data, p, end, value, digits)
        if p > end:
            return BAD, FLOAT, _NONE, False
        has_exponent = p < end and (data[p] | 0x20) == 0x65
    if has_exponent:
        p, exponent = _exponent(data, p, end)
        power += exponent
    sign = SIGN if negative else _NONE
    if p > end or digits > MOST_DIGITS:
        return p, FLOAT, _NONE, False
    if value == _NONE:
        return p, FLOAT, sign, True
    if power < SMALLEST or power > LARGEST:
        return p, FLOAT, _NONE, False
    bits, certain = nearest(value, power)
    return p, FLOAT, bits | sign, certain


@inlined
def value_at(data: Bytes, p: int, end: int, stack: Bytes) -> tuple[int, int, int, bool]:
    """(position after the value at p, its kind, the bits of a number, whether they are certain).

    INT has the bits of an integer of 64 bits, FLOAT those of the nearest double. Numbers that these hold not or not
    surely, and -0 written as an integer, are not certain; nor is what is no number.
    """
    c = data[p]
    if c == 0x22:
        q = end_of_plain_run(data, p + ONE, end)
        if q < end and data[q] == 0x22:
            return q + ONE, STRING, _NONE, False
        q, escaped = skip_rest_of_string(data, q, end)
        return q, (ESCAPED if escaped else STRING), _NONE, False
    if _u(c) - _ZERO_DIGIT <= _NINE or (c == 0x2D and p + ONE < end and data[p + ONE] != 0x49):
        return _number_at(data, p, end)
    q, kind = skip_value(data, p, end, stack)
    return q, kind, _NONE, False
