"""Kernels that walk the Avro records of a manifest: `avro/columns.py`."""

from typing import Any

from scan_core.native.arithmetic import u
from scan_core.native.machine_code import inlined

_NULL = -(1 << 63)
_LONG, _SPAN, _FIXED, _BYTES_PAIRS, _LONGS, _MARK = u(0), u(1), u(2), u(4), u(5), u(6)
"""Kinds of steps, as `avro/columns.py` numbers them."""


@inlined
def _varint_end(data: Any, size: Any, at: Any) -> Any:
    """The position after a varint; beyond `size` if there is none of at most 64 bits."""
    end = at
    while end < size and data[end] > 127:
        end += u(1)
    if end >= size or end - at > u(9) or (end - at == u(9) and data[end] > 1):
        return size + u(1)
    return end + u(1)


@inlined
def _varint(data: Any, at: Any, end: Any) -> Any:
    """The number in [at, end), zig-zag decoded, as 64 bits."""
    value, shift = u(0), u(0)
    while at < end:
        value |= (u(data[at]) & u(127)) << shift
        at, shift = at + u(1), shift + u(7)
    return (value >> u(1)) ^ (u(0) - (value & u(1)))


def walk_records(  # noqa: C901, PLR0912, PLR0915, PLR0917  one pass over bytes; kernels take no objects
    data: Any, size: Any, num_records: Any, program: Any, num_steps: Any, out: Any, width: Any
) -> Any:
    """Where the fields of each record lie, in rows of `width` numbers; returns how many records were walked.

    Steps are four numbers: kind, slot, whether null comes first (1) or second (2) in a union, and bytes. Stops at what
    is damaged or unusual. The last number of the last row walked is where its record ends.
    """
    at = u(0)
    for record in range(num_records):
        row = record * width
        for step in range(num_steps):
            kind, slot = program[step * u(4)], row + program[step * u(4) + u(1)]
            union = program[step * u(4) + u(2)]
            if kind == _MARK:
                out[slot] = at
                continue
            if union != u(0):
                if at >= size:
                    return record
                branch = u(data[at])
                at += u(1)
                null_branch = u(0) if union == u(1) else u(2)
                if branch == null_branch:
                    out[slot] = _NULL
                    has_length = kind != _LONG
                    if has_length and kind != _FIXED:
                        out[slot + u(1)] = -1
                    continue
                if branch != u(2) - null_branch:
                    return record
            if kind == _FIXED:
                at += program[step * u(4) + u(3)]
                if at > size:
                    return record
                continue
            end = _varint_end(data, size, at)
            if end > size:
                return record
            number = _varint(data, at, end)
            at = end
            if kind == _LONG:
                if number == u(1) << u(63):
                    return record
                out[slot] = number
                continue
            if number > size - at:  # negative ones included
                return record
            out[slot], out[slot + u(1)] = at, number
            if kind == _SPAN:
                at += number
                continue
            for _ in range(number):
                end = _varint_end(data, size, at)
                if end > size:
                    return record
                if kind == _LONGS:
                    at = end
                    continue
                at = end
                end = _varint_end(data, size, at)
                if end > size:
                    return record
                if kind == _BYTES_PAIRS:
                    length = _varint(data, at, end)
                    if length > size - end:
                        return record
                    end += length
                at = end
            if number > u(0):
                if at >= size or data[at] != 0:
                    return record
                at += u(1)
        out[row + width - u(1)] = at
    return num_records


def find_in_pairs(  # noqa: PLR0917  kernels take no objects
    data: Any, size: Any, starts: Any, counts: Any, num_rows: Any, key: Any, of_bytes: Any, found: Any, lengths: Any
) -> Any:
    """Of arrays of pairs that were walked: the number under `key`, or where its bytes begin, and its length.

    The first pair of a key counts. Lengths are -1 where there is none, also in an array that is cut off, and 0 for
    numbers; returns how many have one.
    """
    hits = u(0)
    for row in range(num_rows):
        lengths[row] = -1
        at = u(starts[row])
        for _ in range(counts[row]):
            end = _varint_end(data, size, at)
            if end > size:
                break
            is_wanted = _varint(data, at, end) == key
            at = end
            end = _varint_end(data, size, at)
            if end > size:
                break
            number = _varint(data, at, end)
            at = end
            if of_bytes != u(0) and number > size - at:
                break
            if is_wanted:
                found[row] = at if of_bytes != u(0) else number
                lengths[row] = number if of_bytes != u(0) else u(0)
                hits += u(1)
                break
            if of_bytes != u(0):
                at += number
    return hits


def read_longs(  # noqa: PLR0917  kernels take no objects
    data: Any, size: Any, starts: Any, counts: Any, num_rows: Any, out: Any, capacity: Any
) -> Any:
    """The integers of arrays that were walked, one after the other; returns how many, fewer where one is cut off."""
    place = u(0)
    for row in range(num_rows):
        at = u(starts[row])
        for _ in range(counts[row]):
            end = _varint_end(data, size, at)
            if end > size or place >= capacity:
                return place
            out[place] = _varint(data, at, end)
            at, place = end, place + u(1)
    return place


SIGNATURES = {
    "walk_records": (walk_records, "u8*[size] u64 u64 u64*[4*num_steps] u64 i64*[num_records*width] u64"),
    "find_in_pairs": (
        find_in_pairs,
        "u8*[size] u64 i64*[num_rows] i64*[num_rows] u64 u64 u64 i64*[num_rows] i64*[num_rows]",
    ),
    "read_longs": (read_longs, "u8*[size] u64 i64*[num_rows] i64*[num_rows] u64 i64*[capacity] u64"),
}
"""As in `hashes.py`. These read bytes of files: whatever they are, nothing outside of `data` is read. The caller proves
that the slots of a program lie within `width`, as `compile_columns` numbers them.
"""
