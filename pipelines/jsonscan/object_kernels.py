"""Compiled kernels that find the members of JSON objects and of change events, and what lies between documents.

These are the elements of arrays, documents that follow each other, and lines.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, FBT001, PLR0912, PLR0915, PLR0917, PLR1714, SIM109 - one compiled loop per kernel, which takes arrays one by one; Numba inlines no generators

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.jsonscan.value_kernels import (
    BROKEN,
    ESCAPED,
    MAX_DEPTH,
    MISSING,
    OK,
    ONE,
    REPEATED,
    STRING,
    Bytes,
    Kinds,
    Places,
    begin_container,
    expected_name,
    next_member,
    require,
    require_columns,
    require_names,
    skip_document,
    skip_space,
    skip_value,
    status_at,
)
from nevermore.scan_core.native import kernel


@kernel("u8[] i32[] i32[] i64 u8[] i32[] i32[] bool i32[][]= i32[][]= i8[][]= i8[]= u8[]=")
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
        names: raw bytes of the member names to look for, joined, and 8 bytes of padding.
        name_offsets: their offsets.
        slots: output column of each name; several raw names may share one.
        learn: stop at an unknown name; otherwise skip it.
        out_start: [column, row] begin of the value, without the quotes of a string.
        out_end: its end.
        out_kind: its kind; MISSING in all rows from `first_row` on but that.
        status: of each document; an object that gives a member twice is none: which value counts, readers disagree.
        stack: MAX_DEPTH bytes of scratch space.

    Returns:
        (row, begin, end) of an unknown name, or (number of rows, 0, 0) when done.

    Raises:
        IndexError: a column or document lies outside of its array.
    """
    count, columns = len(starts), out_kind.shape[0]
    require(first_row >= 0 and len(ends) >= count and len(status) >= count and len(stack) >= MAX_DEPTH)
    require(out_kind.shape[1] >= count)
    require(out_start.shape[0] >= columns and out_start.shape[1] >= count)
    require(out_end.shape[0] >= columns and out_end.shape[1] >= count)
    require_names(names, name_offsets)
    require_columns(name_offsets, slots, columns)
    inside = stack[1:]
    nothing = np.uint64(0)
    for row in range(first_row, count):
        if row == first_row:  # which an earlier call may have begun
            for column in range(columns):
                out_kind[column, row] = MISSING
        p, end, found_status = begin_container(data, starts[row], ends[row], 0x7B, stack)
        status[row] = found_status
        if found_status != OK:
            continue
        status[row] = BROKEN
        expected = 0
        p = skip_space(data, p + ONE, end)
        if p < end and data[p] == 0x7D:
            status[row] = status_at(data, p + ONE, end)
            continue
        while p < end:
            p, found, first, last = next_member(data, p, end, names, name_offsets, expected)
            if p >= end:
                break
            if found < 0 and learn:
                return row, first, last
            value = p
            p, kind = skip_value(data, p, end, inside)
            if p > end:
                status[row] = status_at(data, p, end)
                break
            if found >= 0:
                expected = found + 1 if found + 1 < len(slots) else 0
                column = slots[found]
                if out_kind[column, row] != MISSING:
                    status[row] = REPEATED
                    for other in range(columns):
                        out_kind[other, row] = MISSING
                    break
                quote = ONE if kind == STRING or kind == ESCAPED else nothing
                out_start[column, row] = value + quote
                out_end[column, row] = p - quote
                out_kind[column, row] = kind
            p = skip_space(data, p, end)
            if p >= end:
                break
            if data[p] == 0x7D:
                status[row] = status_at(data, p + ONE, end)
                break
            if data[p] != 0x2C:
                break
            p = skip_space(data, p + ONE, end)
    return count, nothing, nothing


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


@kernel("u8[] i32[] i32[] i64 i32[]= i32[] i32[]= i32[]= i8[]= i8[]= bool u8[]=")
def scan_elements(
    data: Bytes,
    starts: Places,
    ends: Places,
    opening: int,
    lengths: Places,
    offsets: Places,
    out_start: Places,
    out_end: Places,
    out_kind: Kinds,
    status: Kinds,
    fill: bool,
    stack: Bytes,
) -> None:
    """Count (fill False) or write (fill True) the elements of one array per row, from `offsets[row]` on.

    With the brace as `opening` instead of the bracket, the names and values of one object per row, in turn.

    Raises:
        IndexError: a document or an element lies outside of its array.
    """
    count = len(starts)
    require(opening == 0x5B or opening == 0x7B)
    closing, has_names = opening + 2, opening == 0x7B
    require(len(ends) >= count and len(lengths) >= count and len(status) >= count and len(stack) >= MAX_DEPTH)
    require(not fill or len(offsets) >= count)
    capacity = min(len(out_start), len(out_end), len(out_kind))
    inside = stack[1:]
    for row in range(count):
        lengths[row] = 0
        p, end, found_status = begin_container(data, starts[row], ends[row], opening, stack)
        status[row] = found_status
        if found_status != OK:
            continue
        status[row] = BROKEN
        found = 0
        p = skip_space(data, p + ONE, end)
        if p < end and data[p] == closing:
            if skip_space(data, p + ONE, end) == end:
                status[row] = OK
            continue
        while p < end:
            value = p
            is_name = has_names and found % 2 == 0
            p, kind = skip_value(data, p, end, inside)
            if p > end:
                status[row] = status_at(data, p, end)
                break
            if is_name and kind != STRING and kind != ESCAPED:
                break
            if fill:
                quote = ONE if kind == STRING or kind == ESCAPED else np.uint64(0)
                at = np.int64(offsets[row]) + found
                require(0 <= at < capacity)
                out_start[at] = value + quote
                out_end[at] = p - quote
                out_kind[at] = kind
            found += 1
            p = skip_space(data, p, end)
            if p >= end:
                break
            if not is_name and data[p] == closing:
                if skip_space(data, p + ONE, end) == end:
                    status[row] = OK
                    lengths[row] = found
                break
            if data[p] != (0x3A if is_name else 0x2C):
                break
            p = skip_space(data, p + ONE, end)


@kernel("u8[] i64 i64 i64[][]= u8[]= bool")
def split_documents(
    data: Bytes, start: int, stop: int, out: NDArray[np.int64], stack: Bytes, separated: bool
) -> tuple[int, int]:
    """Find the consecutive JSON values in data[start:stop], separated by white space or (`separated`) commas.

    Writes (begin, end) pairs to `out` and returns (pairs written, position reached): the end, or where a value is
    broken or unfinished, or `out` is full.

    Raises:
        IndexError: `start` or `stop` lies outside of the data.
    """
    require(start >= 0 and stop >= 0 and stop <= len(data) and len(stack) >= MAX_DEPTH and out.shape[1] >= 2)
    found = 0
    end = np.uint64(stop)
    p = skip_space(data, np.uint64(start), end)
    while p < end and found < len(out):
        q = skip_document(data, p, end, stack)
        if q > end:
            return found, np.int64(p)
        out[found, 0] = p
        out[found, 1] = q
        found += 1
        p = skip_space(data, q, end)
        if separated and p < end:
            if data[p] != 0x2C:
                return found, np.int64(p)
            p = skip_space(data, p + ONE, end)
    return found, np.int64(p)


@kernel("u8[] i64 i64 u8[]=")
def find_document_line(data: Bytes, start: int, stop: int, stack: Bytes) -> int:
    """Find the next line in data[start:stop], after a broken document, that begins with a complete object.

    After a colon, a bracket or a comma that object may be part of the broken document; but inside one, no other
    object follows without a comma. Returns `stop` if there is none. An object that nests too deeply counts as broken, which
    limits how much is scanned twice.

    Raises:
        IndexError: `start` or `stop` lies outside of the data.
    """
    require(start >= 0 and stop >= 0 and stop <= len(data) and len(stack) >= MAX_DEPTH)
    first, end = np.uint64(start), np.uint64(stop)
    before = np.uint8(0)  # the last byte that is not white space
    for k in range(first, end):
        c = data[k]
        if c != 0x0A or k + ONE >= end or data[k + ONE] != 0x7B:
            if c != 0x20 and c != 0x0A and c != 0x0D and c != 0x09:
                before = c
            continue
        p, _ = skip_value(data, k + ONE, end, stack)
        if p > end:
            continue
        p = skip_space(data, p, end)
        is_inside = before == 0x3A or before == 0x5B or before == 0x2C
        if not is_inside or (p < end and data[p] == 0x7B):
            return np.int64(k) + 1
    return np.int64(stop)


@kernel("u8[] i32[] u8[] u8[]= i64[]= i64[]=")
def find_separators(
    data: Bytes, offsets: Places, separator: Bytes, stack: Bytes, out: NDArray[np.int64], line_end: NDArray[np.int64]
) -> None:
    """Find the end of the key in each line data[offsets[k]:offsets[k + 1]], where the separator begins; -1 if none.

    A key that begins like a JSON object, list or string ends with it: a separator inside is part of the key. Writes
    the end of the line without its newline to `line_end`. The separator must not be empty.

    Raises:
        IndexError: a line lies outside of its array.
    """
    length = np.uint64(len(separator))
    count = len(offsets) - 1
    require(len(separator) > 0 and len(stack) >= MAX_DEPTH and len(out) >= count and len(line_end) >= count)
    for row in range(count):
        require(offsets[row] >= 0 and offsets[row] <= offsets[row + 1] and offsets[row + 1] <= len(data))
        out[row] = -1
        p, end = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        if end > p and data[end - ONE] == 0x0A:
            end -= ONE
            if end > p and data[end - ONE] == 0x0D:
                end -= ONE
        line_end[row] = end
        if p >= end:
            continue
        last = end
        if data[p] == 0x7B or data[p] == 0x5B or data[p] == 0x22:
            p = skip_document(data, p, end, stack)
            if p > end:
                continue
            last = p + length
        while p + length <= end and p + length <= last:
            k = np.uint64(0)
            while k < length and data[p + k] == separator[k]:
                k += ONE
            if k == length:
                out[row] = p
                break
            p += ONE


@kernel("u8[] i64[][]=")
def split_frames(data: Bytes, spans: Places) -> tuple[int, int, bool]:
    """(messages found, end of the last in bytes, whether all lengths are valid): begin and end, or -1 for NULL."""
    require(spans.shape[1] >= 2)
    position = 0
    size = len(data)
    for found in range(len(spans)):
        if size - position < 4:
            return found, position, True
        length = np.int64(0)
        for k in range(4):
            length = (length << 8) | np.int64(data[position + k])
        if length >= 2**31:
            if length != 2**32 - 1:
                return found, position, False
            spans[found, 0], spans[found, 1] = position + 4, -1
            position += 4
            continue
        if size - position - 4 < length:
            return found, position, True
        spans[found, 0], spans[found, 1] = position + 4, position + 4 + length
        position += 4 + length
    return len(spans), position, True
