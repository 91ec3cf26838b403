"""Compiled kernels that read the name of a member: the one that usually comes next, or another one that is known."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: PLR0917 - kernels take arrays one by one

import numpy as np

from pipelines.formats.json_kernels import BAD, ONE, Bytes, Places, require, skip_space, skip_string
from pipelines.formats.word_kernels import same_bytes
from scan_core.native.machine_code import callee, inlined


@callee
def require_names(names: Bytes, name_offsets: Places) -> None:
    """Refuse names that do not lie, with 8 bytes of padding behind them, where their offsets say."""
    require(len(name_offsets) > 0 and name_offsets[0] >= 0)
    for k in range(1, len(name_offsets)):
        require(name_offsets[k - 1] <= name_offsets[k])
    require(np.int64(name_offsets[len(name_offsets) - 1]) + 8 <= len(names))


@callee
def require_columns(name_offsets: Places, slots: Places, base: int, columns: int) -> None:
    """Refuse names one of which has no column, or one beyond `columns`."""
    require(len(slots) == len(name_offsets) - 1 and base >= 0)
    for k in range(len(slots)):
        require(slots[k] >= 0 and base + np.int64(slots[k]) < columns)


@inlined
def expected_name(data: Bytes, first: int, end: int, names: Bytes, name_offsets: Places, expected: int) -> int:
    """Length of name `expected` plus 1 if that is the name that begins at `first`, quote included; else 0."""
    if expected >= len(name_offsets) - 1:
        return np.uint64(0)
    offset = np.uint64(name_offsets[expected])
    length = np.uint64(name_offsets[expected + 1]) - offset
    if first + length >= end or data[first + length] != 0x22:
        return np.uint64(0)
    return length + ONE if same_bytes(data, first, end, names, offset, length) else np.uint64(0)


@callee
def _find_name(data: Bytes, first: int, last: int, names: Bytes, name_offsets: Places, expected: int) -> int:
    """Index of the name data[first:last], searched from `expected` on and around; -1 if unknown."""
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
