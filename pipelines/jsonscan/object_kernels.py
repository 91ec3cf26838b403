"""Compiled kernels that find the members of JSON objects and of change events."""

import numpy as np
from numpy.typing import NDArray

from pipelines.jsonscan.double_kernels import LARGEST, MAX_DIGITS, SIGN, SMALLEST, nearest
from pipelines.jsonscan.value_kernels import (
    BAD,
    BROKEN,
    ESCAPED,
    FLOAT,
    INT,
    MAX_DEPTH,
    MISSING,
    OBJECT,
    OK,
    ONE,
    REPEATED,
    STRING,
    Bytes,
    Kinds,
    Places,
    begin_container,
    end_of_plain_run,
    expected_name,
    next_member,
    require,
    require_columns,
    require_names,
    run_of_digits,
    skip_space,
    skip_value,
    status_at,
)
from pipelines.jsonscan.value_kernels import skip_string as skip_rest_of_string
from scan_core.native import callee, inlined, kernel

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, FBT001, PLR0912, PLR0915, PLR0917, PLR1714, SIM109 - one compiled loop per kernel, which takes arrays one by one; Numba inlines no generators


_u = np.uint64
_NONE = _u(0)
_MAX = _u(2**63 - 1)
_NINE = _u(9)
_ZERO_DIGIT = _u(0x30)
_LONGEST_EXPONENT = 100_000


@inlined
def _fraction(data: Bytes, p: int, end: int, value: int, digits: int) -> tuple[int, int, int, int]:
    """(position after point and digits, BAD without digits; value; number of significant digits; power of ten)."""
    point = p + ONE
    p, value = run_of_digits(data, point, end, value)
    if p == point:
        return BAD, value, digits, 0
    power = -np.int64(p - point)
    digits += p - point
    if digits > MAX_DIGITS and digits == p - point + ONE and data[point - _u(2)] == 0x30:
        first = point
        while first < p and data[first] == 0x30:
            first += ONE
        digits = p - first
    return p, value, digits, power


@inlined
def _exponent(data: Bytes, p: int, end: int) -> tuple[int, int]:
    """(position after the exponent whose letter is at p, BAD without digits; the exponent)."""
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
    """Scan the number at p; returns what `value_at` returns."""
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
        fits = digits <= MAX_DIGITS and value <= _MAX + _u(negative)
        # doubles have -0, integers do not
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
    if p > end or digits > MAX_DIGITS:
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

    INT has the bits of a 64-bit integer, FLOAT those of the nearest double. Numbers that these cannot hold or not
    with certainty, and -0 written as an integer, are not certain; nor are other values.
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
    (DEEP, 0, 0) if it nests too deeply, or (BAD, 0, 1) if a member is repeated. `stack` is that of `skip_value`.
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
            return p, nothing, nothing
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
    """Refuse arrays without room for each document, or for each document in each column of `out_kind`."""
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
    inside = stack[1:]
    for row in range(first_row, count):
        if row == first_row:  # which an earlier call may have begun
            for column in range(out_kind.shape[0]):
                out_kind[column, row] = MISSING
        p, end, found_status = begin_container(data, starts[row], ends[row], 0x7B, stack)
        status[row] = found_status
        if found_status != OK:
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
            inside,
        )
        if first:
            return row, first, last
        if p == BAD and last:
            status[row] = REPEATED
            for column in range(out_kind.shape[0]):
                out_kind[column, row] = MISSING
            continue
        status[row] = status_at(data, p, end)
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
    are unknown are restarted, so the columns of row images need room for all known names.
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
    inside, inside_images = stack[1:], stack[2:]
    for row in range(first_row, count):
        if row == first_row:  # which an earlier call may have begun
            for column in range(out_kind.shape[0]):
                out_kind[column, row] = MISSING
        p, end, found_status = begin_container(data, starts[row], ends[row], 0x7B, stack)
        status[row] = found_status
        if found_status != OK:
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
                p, kind = skip_value(data, p, end, inside)
            elif base == origin_base:
                p, _, last = scan_object(
                    data, p, end, row, origin_names, origin_offsets, origin_slots, base, False,
                    out_start, out_end, out_kind, out_bits, out_odd, inside_images,
                )  # fmt: skip
            else:
                p, first, last = scan_object(
                    data, p, end, row, row_names, row_offsets, row_slots, base, True,
                    out_start, out_end, out_kind, out_bits, out_odd, inside_images,
                )  # fmt: skip
                if first:
                    return row, first, last
            if p > end:
                status[row] = REPEATED if last else status_at(data, p, end)
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
