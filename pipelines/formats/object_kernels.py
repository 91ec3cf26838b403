"""Compiled kernels that find the members of many JSON objects at once, by name. Events have theirs: `event_kernels.py`."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0917, PLR1714, SIM109, FBT001 - one compiled loop per kernel; Numba inlines no generators

import numpy as np
from numpy.typing import NDArray

from pipelines.formats.json_kernels import (
    ABSENT,
    BAD,
    BROKEN,
    ESCAPED,
    FLOAT,
    INT,
    MAX_DEPTH,
    MISSING,
    OK,
    ONE,
    REPEATED,
    STRING,
    Bytes,
    Kinds,
    Places,
    require,
    skip_space,
    status_of_other,
)
from pipelines.formats.name_kernels import expected_name, next_member, require_columns, require_names
from pipelines.formats.value_kernels import value_at
from scan_core.native.machine_code import callee, inlined, kernel


@inlined
def scan_object(
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
    out_bits: NDArray[np.uint64],
    out_odd: NDArray[np.bool_],
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
        p, found, first, last = next_member(data, p, end, names, name_offsets, expected)
        if p >= end:
            break
        if found < 0 and learn:
            return BAD, first, last
        value = p
        p, kind, bits, certain = value_at(data, p, end, stack)
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
            if kind == INT or kind == FLOAT:
                out_bits[column, row] = bits
                if not certain:
                    out_odd[column, row] = True
        p = skip_space(data, p, end)
        if p >= end:
            break
        if data[p] == 0x7D:
            return p + ONE, nothing, nothing
        if data[p] != 0x2C:
            break
        p = skip_space(data, p + ONE, end)
    return BAD, nothing, nothing


@callee
def require_spans(
    starts: Places,
    ends: Places,
    first_row: int,
    out_start: Places,
    out_end: Places,
    out_kind: Kinds,
    out_bits: NDArray[np.uint64],
    out_odd: NDArray[np.bool_],
    status: Kinds,
    stack: Bytes,
) -> None:
    """Refuse arrays that do not have a place for each document, or for each in each column of `out_kind`."""
    count = len(starts)
    require(first_row >= 0 and len(ends) >= count and len(status) >= count and len(stack) >= MAX_DEPTH)
    columns = out_kind.shape[0]
    require(out_kind.shape[1] >= count)
    require(out_start.shape[0] >= columns and out_start.shape[1] >= count)
    require(out_end.shape[0] >= columns and out_end.shape[1] >= count)
    require(out_bits.shape[0] >= columns and out_bits.shape[1] >= count)
    require(out_odd.shape[0] >= columns and out_odd.shape[1] >= count)


@kernel("u8[] i32[] i32[] i64 u8[] i32[] i32[] bool i32[][]= i32[][]= i8[][]= u64[][]= bool[][]= i8[]= u8[]=")
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
    out_bits: NDArray[np.uint64],
    out_odd: NDArray[np.bool_],
    status: Kinds,
    stack: Bytes,
) -> tuple[int, int, int]:
    """Find the members of one object per row.

    Args:
        data: bytes.
        starts: where each document begins in them; negative: no document.
        ends: where each ends.
        first_row: row to begin with.
        names: raw bytes of the member names to look for, joined, and 8 bytes of padding.
        name_offsets: their offsets.
        slots: output column of each name; several raw names may share one.
        learn: stop at an unknown name; otherwise skip it.
        out_start: [column, row] begin of the value, without the quotes of a string.
        out_end: its end.
        out_kind: its kind; MISSING in all rows from `first_row` on but that.
        out_bits: of numbers, as `value_at` has them.
        out_odd: where these are not certain.
        status: of each document; an object that gives a member twice is none: which value counts, readers disagree.
        stack: MAX_DEPTH bytes of scratch space.

    Returns:
        (row, begin, end) of an unknown name, or (number of rows, 0, 0) when done.

    Raises:
        IndexError: a column or document lies outside of its array.
    """
    count = len(starts)
    require_spans(starts, ends, first_row, out_start, out_end, out_kind, out_bits, out_odd, status, stack)
    require_names(names, name_offsets)
    require_columns(name_offsets, slots, 0, out_kind.shape[0])
    for row in range(first_row, count):
        if row == first_row:  # which an earlier call may have begun
            for column in range(out_kind.shape[0]):
                out_kind[column, row] = MISSING
        if starts[row] < 0:
            status[row] = ABSENT
            continue
        end = np.uint64(ends[row])
        require(end <= np.uint64(len(data)))
        p = skip_space(data, np.uint64(starts[row]), end)
        if p >= end or data[p] != 0x7B:
            status[row] = status_of_other(data, p, end, stack)
            continue
        p, first, last = scan_object(
            data,
            p,
            end,
            row,
            names,
            name_offsets,
            slots,
            0,
            learn,
            out_start,
            out_end,
            out_kind,
            out_bits,
            out_odd,
            stack,
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


@kernel("u8[] i32[] i32[] u8[] i32[] bool[]=")
def begin_with(
    data: Bytes, starts: Places, ends: Places, names: Bytes, name_offsets: Places, out: NDArray[np.bool_]
) -> None:
    """Mark the documents that are objects whose first member has one of the names."""
    require(len(ends) >= len(starts) and len(out) >= len(starts))
    require_names(names, name_offsets)
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        end = np.uint64(ends[row])
        require(end <= np.uint64(len(data)))
        p = skip_space(data, np.uint64(starts[row]), end)
        if p >= end or data[p] != 0x7B:
            continue
        p = skip_space(data, p + ONE, end)
        if p >= end or data[p] != 0x22:
            continue
        for k in range(len(name_offsets) - 1):
            if expected_name(data, p + ONE, end, names, name_offsets, k):
                out[row] = True
