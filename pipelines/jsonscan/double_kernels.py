"""The nearest double of a decimal number, exactly rounded, by two multiplications of 64 bits (Eisel and Lemire).

D. Lemire, "Number parsing at a gigabyte per second" (2021). Numbers of more than 19 digits, and those that are next to
zero or infinity, are left to the caller.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0917 - one compiled loop

import numpy as np
from numpy.typing import NDArray

from pipelines.jsonscan.value_kernels import ONE, Bytes, high_product, leading_zeros, require
from scan_core.native import callee, kernel

SMALLEST, LARGEST = -342, 308
"""Powers of ten beyond which every number of 19 digits is zero or infinite."""
MAX_DIGITS = 19
"""Maximum of significant digits: more do not fit 64 bits."""


def _powers_of_five() -> NDArray[np.uint64]:
    """The upper 128 bits of 5**q, as high and low half; rounded up for negative q, as the proof requires."""
    table = []
    for q in range(SMALLEST, LARGEST + 1):
        if q >= 0:
            power = 5**q
            shift = 128 - power.bit_length()
            bits = power << shift if shift >= 0 else power >> -shift
        else:
            power = 5**-q
            length = power.bit_length() + 127
            bits = (1 << length) // power + 1
        table += [bits >> 64, bits & (2**64 - 1)]
    return np.array(table, np.uint64)


_FIVES = _powers_of_five()
_63 = np.uint64(63)
SIGN = np.uint64(1) << _63
_PRECISION = np.uint64(0x1FF)
"""The bits below the 55 that determine a mantissa: 52, its hidden bit, and two for rounding."""
_HIDDEN = np.uint64(1) << np.uint64(52)
_NO_BITS = np.uint64(0)


@callee
def nearest(w: int, q: int) -> tuple[int, bool]:
    """(bits of the double nearest to w * 10**q, whether it is certain); w is not 0."""
    zeros = leading_zeros(w)
    w <<= zeros
    at = np.uint64(2 * (q - SMALLEST))
    high, low = high_product(w, _FIVES[at]), w * _FIVES[at]
    if high & _PRECISION == _PRECISION:
        second = high_product(w, _FIVES[at + ONE])
        low += second
        if second > low:
            high += ONE
        if low == np.uint64(2**64 - 1) and (q < -27 or q > 55):
            return _NO_BITS, False
    upper = high >> _63
    shift = upper + np.uint64(9)
    mantissa = high >> shift
    exponent = ((152170 + 65536) * q >> 16) + 63 + np.int64(upper) - np.int64(zeros) + 1023
    if exponent <= 0:
        return _NO_BITS, False
    if low <= ONE and -4 <= q <= 23 and mantissa & np.uint64(3) == ONE and mantissa << shift == high:
        mantissa &= ~ONE  # half way between two doubles: the even one
    mantissa = (mantissa + (mantissa & ONE)) >> ONE
    if mantissa >= _HIDDEN << ONE:
        mantissa = _HIDDEN
        exponent += 1
    if exponent >= 0x7FF:
        return _NO_BITS, False
    return (mantissa & ~_HIDDEN) | (np.uint64(exponent) << np.uint64(52)), True


@callee
def double_of(data: Bytes, p: int, q: int) -> tuple[int, bool]:
    """(bits of the double data[p:q], whether it was found)."""
    sign = _NO_BITS
    if p < q and data[p] == 0x2D:
        sign = SIGN
        p += ONE
    mantissa = np.uint64(0)
    digits, scale, given = 0, 0, 0
    point = False
    while p < q:
        digit = np.uint64(data[p]) - np.uint64(0x30)
        if digit <= np.uint64(9):
            mantissa = mantissa * np.uint64(10) + digit
            given += 1
            if mantissa:
                digits += 1
            if point:
                scale += 1
        elif data[p] == 0x2E and not point:
            point = True
        else:
            break
        p += ONE
    if given == 0 or digits > MAX_DIGITS:
        return _NO_BITS, False
    power = -scale
    if p < q:
        if data[p] != 0x65 and data[p] != 0x45:
            return _NO_BITS, False
        p += ONE
        negative = p < q and data[p] == 0x2D
        if negative or (p < q and data[p] == 0x2B):
            p += ONE
        if p >= q or q - p > np.uint64(4):
            return _NO_BITS, False
        exponent = 0
        while p < q:
            digit = np.uint64(data[p]) - np.uint64(0x30)
            if digit > np.uint64(9):
                return _NO_BITS, False
            exponent = exponent * 10 + np.int64(digit)
            p += ONE
        power += -exponent if negative else exponent
    if mantissa == np.uint64(0):
        return sign, True
    if power < SMALLEST or power > LARGEST:
        return _NO_BITS, False
    bits, certain = nearest(mantissa, power)
    return bits | sign, certain


@kernel("u8[] i32[] i32[] bool[] u64[]= bool[]=")
def parse_doubles(
    data: Bytes,
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    wanted: NDArray[np.bool_],
    bits: NDArray[np.uint64],
    slow: NDArray[np.bool_],
) -> None:
    """Compute the bits of the doubles of the wanted spans; those that are not certain are marked slow."""
    count = len(start)
    require(len(end) >= count and len(wanted) >= count and len(bits) >= count and len(slow) >= count)
    for row in range(count):
        bits[row] = _NO_BITS
        if wanted[row]:
            require(end[row] >= 0 and end[row] <= len(data))
            found, certain = double_of(data, np.uint64(start[row]), np.uint64(end[row]))
            bits[row] = found
            slow[row] |= not certain
