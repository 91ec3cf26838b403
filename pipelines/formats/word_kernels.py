"""Compiled building blocks that look at eight bytes at a time: digits, the end of a text, products of 128 bits.

Words are read only where all eight bytes lie before the end that the caller names. After D. Lemire, "Number parsing at a
gigabyte per second" (2021), and S. E. Anderson's "Bit twiddling hacks".
"""

# ruff: noqa: PLR0917 - kernels take arrays one by one
# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"

from typing import Any

import numpy as np

from pipelines.formats.json_kernels import ONE, Bytes
from scan_core.native.machine_code import inlined, intrinsic

_u = np.uint64
EIGHT = _u(8)
_BITS = _u(3)
"""A shift by these turns bytes into bits."""
_TENS = np.array([10**n for n in range(9)], np.uint64)
_QUOTES, _BACKSLASHES = _u(0x2222222222222222), _u(0x5C5C5C5C5C5C5C5C)
_ONES, _BLANKS, _HIGH_BITS = _u(0x0101010101010101), _u(0x2020202020202020), _u(0x8080808080808080)


@intrinsic
def high_product(_context: Any, _a: Any, _b: Any) -> Any:
    """The upper half of a product of two numbers of 64 bits."""
    from llvmlite import ir
    from numba import types

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def leading_zeros(_context: Any, _word: Any) -> Any:
    """How many of the upper bits are zero."""
    from llvmlite import ir
    from numba import types

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def trailing_zeros(_context: Any, _word: Any) -> Any:
    """How many of the lower bits are zero."""
    from llvmlite import ir
    from numba import types

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@inlined
def word_at(data: Bytes, p: int) -> int:
    """Eight bytes, little-endian; one load, as LLVM knows this form."""
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
def _number_of(word: int) -> int:
    """The number that eight digits are; zero bytes count as zeros."""
    word = (word & _u(0x0F0F0F0F0F0F0F0F)) * _u(2561) >> _u(8)
    word = (word & _u(0x00FF00FF00FF00FF)) * _u(6553601) >> _u(16)
    return (word & _u(0x0000FFFF0000FFFF)) * _u(42949672960001) >> _u(32)


@inlined
def _first_other(word: int) -> int:
    """A word whose lowest bit stands in the first byte that is no digit; 0 if all are."""
    offset = word ^ _u(0x3030303030303030)
    return ((offset + _u(0x7676767676767676)) | offset) & _HIGH_BITS


@inlined
def run_of_digits(data: Bytes, p: int, end: int, value: int) -> tuple[int, int]:
    """(position after the digits from p on, `value` followed by these digits, modulo 2**64)."""
    while p + EIGHT <= end:
        word = word_at(data, p)
        other = _first_other(word)
        if other == _u(0):
            value = value * _u(100_000_000) + _number_of(word)
            p += EIGHT
            continue
        count = trailing_zeros(other) >> _BITS
        if count:
            value = value * _TENS[count] + _number_of(word << ((EIGHT - count) << _BITS))
        return p + count, value
    while p < end:
        digit = _u(data[p]) - _u(0x30)
        if digit > _u(9):
            break
        value = value * _u(10) + digit
        p += ONE
    return p, value


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
