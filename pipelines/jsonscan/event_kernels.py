"""The compiled kernel that finds the members of change events, and those of their row images, in one pass."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0915, PLR0917, PLR1714, SIM109 - one compiled loop; Numba inlines no generators

import numpy as np
from numpy.typing import NDArray

from pipelines.jsonscan.object_kernels import require_spans, scan_object
from pipelines.jsonscan.value_kernels import (
    ABSENT,
    BROKEN,
    ESCAPED,
    MISSING,
    OBJECT,
    OK,
    ONE,
    REPEATED,
    STRING,
    Bytes,
    Kinds,
    Places,
    next_member,
    require,
    require_columns,
    require_names,
    skip_space,
    skip_value,
    status_of_other,
)
from scan_core.native.machine_code import kernel


@kernel(
    "u8[] i32[] i32[] i64 u8[] i32[] i32[] i32[] u8[] i32[] i32[] i64 u8[] i32[] i32[] i32[][]= i32[][]= i8[][]= u64[][]= bool[][]= i8[]= u8[]="
)
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
    out_bits: NDArray[np.uint64],
    out_odd: NDArray[np.bool_],
    status: Kinds,
    stack: Bytes,
) -> tuple[int, int, int]:
    """Find members, and those of some of them that are objects, in one pass: change events with their row images.

    `bases` has per slot of `names` the first output column of its own members; 0 for members not looked into. The one
    with `origin_base` has members `origin_names`, others are row images, whose names are learned. The other arguments
    and the result are those of `object_kernels.scan_members`; an unknown name is one of a row image. Rows of names that
    are unknown are begun again, so the columns of row images need a place for all names that are known.
    """
    count = len(starts)
    nothing = np.uint64(0)
    require_spans(starts, ends, first_row, out_start, out_end, out_kind, out_bits, out_odd, status, stack)
    require_names(names, name_offsets)
    require_names(row_names, row_offsets)
    require_names(origin_names, origin_offsets)
    require_columns(name_offsets, slots, 0, min(out_kind.shape[0], len(bases)))
    for base in bases:
        if base == origin_base:
            require_columns(origin_offsets, origin_slots, base, out_kind.shape[0])
        elif base != 0:
            require_columns(row_offsets, row_slots, base, out_kind.shape[0])
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
        status[row] = BROKEN
        expected = 0
        p = skip_space(data, p + ONE, end)
        if p < end and data[p] == 0x7D:
            if skip_space(data, p + ONE, end) == end:
                status[row] = OK
            continue
        while p < end:
            p, found, _, _ = next_member(data, p, end, names, name_offsets, expected)
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
                p, _, last = scan_object(
                    data, p, end, row, origin_names, origin_offsets, origin_slots, base, False,
                    out_start, out_end, out_kind, out_bits, out_odd, stack,
                )  # fmt: skip
            else:
                p, first, last = scan_object(
                    data, p, end, row, row_names, row_offsets, row_slots, base, True,
                    out_start, out_end, out_kind, out_bits, out_odd, stack,
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
