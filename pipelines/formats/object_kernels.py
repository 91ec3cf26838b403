"""Compiled kernels that find the members of many JSON objects at once, by name."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0915, PLR0917, PLR1714, SIM109, SIM110, FBT001 - one compiled loop per kernel; Numba inlines no generators

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipelines.formats.json_kernels import (
    ABSENT,
    BAD,
    BROKEN,
    COMPILE,
    ESCAPED,
    INLINE,
    MISSING,
    OBJECT,
    OK,
    ONE,
    REPEATED,
    STRING,
    Bytes,
    Kinds,
    Places,
    skip_space,
    skip_string,
    skip_value,
    status_of_other,
)


@njit(**INLINE)
def _is_name(data: Bytes, first: int, names: Bytes, offset: int, length: int) -> bool:
    for j in range(length):
        if names[offset + j] != data[first + j]:
            return False
    return True


@njit(**INLINE)
def _expected_name(data: Bytes, first: int, end: int, names: Bytes, name_offsets: Places, expected: int) -> int:
    """Length of name `expected` plus 1 if that is the name that begins at `first`, quote included; else 0."""
    if expected >= len(name_offsets) - 1:
        return np.uint64(0)
    offset = np.uint64(name_offsets[expected])
    length = np.uint64(name_offsets[expected + 1]) - offset
    if first + length >= end or data[first + length] != 0x22:
        return np.uint64(0)
    return length + ONE if _is_name(data, first, names, offset, length) else np.uint64(0)


@njit(**COMPILE)
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


@njit(**INLINE)
def _next_member(
    data: Bytes, p: int, end: int, names: Bytes, name_offsets: Places, expected: int
) -> tuple[int, int, int, int]:
    """(position of the value, index of the name, begin and end of the name) of the member that begins at p.

    The index is -1 for an unknown name.
    """
    if data[p] != 0x22:
        return BAD, -1, p, p
    first = p + ONE
    found = expected
    length = _expected_name(data, first, end, names, name_offsets, expected)
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


@njit(**INLINE)
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

    Returns (position after it, 0, 0), or (BAD, begin, end) of an unknown name, or (BAD, 0, 0) if it is broken, or
    (BAD, 0, 1) if a member is repeated.
    """
    expected = 0
    nothing = np.uint64(0)
    p = skip_space(data, p + ONE, end)
    if p < end and data[p] == 0x7D:
        return p + ONE, nothing, nothing
    while p < end:
        p, found, first, last = _next_member(data, p, end, names, name_offsets, expected)
        if p >= end:
            break
        if found < 0 and learn:
            return BAD, first, last
        value = p
        p, kind = skip_value(data, p, end, stack)
        if p > end:
            break
        if found >= 0:
            expected = found + 1 if found + 1 < len(slots) else 0
            column = base + slots[found]
            if out_kind[column, row] != MISSING:
                return BAD, nothing, ONE
            quote = ONE if kind == STRING or kind == ESCAPED else nothing
            out_start[column, row] = value + quote
            out_end[column, row] = p - quote
            out_kind[column, row] = kind
        p = skip_space(data, p, end)
        if p >= end:
            break
        if data[p] == 0x7D:
            return p + ONE, nothing, nothing
        if data[p] != 0x2C:
            break
        p = skip_space(data, p + ONE, end)
    return BAD, nothing, nothing


@njit(**COMPILE)
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
        out_kind: its kind.
        status: of each document; an object that gives a member twice is none: which value counts, readers disagree.
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
        p = skip_space(data, np.uint64(starts[row]), end)
        if p >= end or data[p] != 0x7B:
            status[row] = status_of_other(data, p, end, stack)
            continue
        p, first, last = _scan_object(
            data, p, end, row, names, name_offsets, slots, 0, learn, out_start, out_end, out_kind, stack
        )
        if first:
            return row, first, last
        if p == BAD and last:
            status[row] = REPEATED
            for column in range(out_kind.shape[0]):
                out_kind[column, row] = MISSING
            continue
        status[row] = OK if p <= end and skip_space(data, p, end) == end else BROKEN
    return count, np.uint64(0), np.uint64(0)


@njit(**COMPILE)
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
        p = skip_space(data, np.uint64(starts[row]), end)
        if p >= end or data[p] != 0x7B:
            status[row] = status_of_other(data, p, end, stack)
            continue
        status[row] = BROKEN
        expected = 0
        p = skip_space(data, p + ONE, end)
        if p < end and data[p] == 0x7D:
            if skip_space(data, p + ONE, end) == end:
                status[row] = OK
            continue
        while p < end:
            p, found, _, _ = _next_member(data, p, end, names, name_offsets, expected)
            if p >= end:
                break
            if found >= 0 and out_kind[slots[found], row] != MISSING:
                status[row] = REPEATED
                break
            value = p
            kind = OBJECT
            last = nothing
            base = bases[slots[found]] if found >= 0 and data[p] == 0x7B else 0
            if base == 0:
                p, kind = skip_value(data, p, end, stack)
            elif base == origin_base:
                p, _, last = _scan_object(
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
                if last:
                    status[row] = REPEATED
                break
            if found >= 0:
                expected = found + 1 if found + 1 < len(slots) else 0
                quote = ONE if kind == STRING or kind == ESCAPED else nothing
                out_start[slots[found], row] = value + quote
                out_end[slots[found], row] = p - quote
                out_kind[slots[found], row] = kind
            p = skip_space(data, p, end)
            if p >= end:
                break
            if data[p] == 0x7D:
                if skip_space(data, p + ONE, end) == end:
                    status[row] = OK
                break
            if data[p] != 0x2C:
                break
            p = skip_space(data, p + ONE, end)
    return count, nothing, nothing


@njit(**COMPILE)
def begin_with(
    data: Bytes, starts: Places, ends: Places, names: Bytes, name_offsets: Places, out: NDArray[np.bool_]
) -> None:
    """Mark the documents that are objects whose first member has one of the names."""
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        end = np.uint64(ends[row])
        p = skip_space(data, np.uint64(starts[row]), end)
        if p >= end or data[p] != 0x7B:
            continue
        p = skip_space(data, p + ONE, end)
        if p >= end or data[p] != 0x22:
            continue
        for k in range(len(name_offsets) - 1):
            if _expected_name(data, p + ONE, end, names, name_offsets, k):
                out[row] = True
