"""Compiled kernels for many columns at once, including those that decode them in one pass over the rows.

Documents are stored row by row, so a pass per column would read all of their bytes from memory once per column.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0917 - one compiled loop per kernel

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.jsonscan.text_kernels import copy_text, double_of, integer_of
from nevermore.pipelines.jsonscan.value_kernels import ESCAPED, ONE, Bytes, Kinds, Places, require
from nevermore.scan_core.native import kernel

TEXT, INTEGER, DOUBLE = range(3)
BLOCK_ROWS = 64
"""Rows whose documents stay in the cache while all columns are decoded."""


@kernel("i8[][] i64[][]=")
def count_kinds(kind: Kinds, counts: NDArray[np.int64]) -> None:
    """Number of values of each kind: [column, kind]."""
    require(counts.shape[0] >= kind.shape[0])
    kinds = np.uint64(counts.shape[1])
    for column in range(kind.shape[0]):
        c = np.uint64(column)
        highest = np.uint8(0)
        for row in range(kind.shape[1]):  # a separate loop is compiled to SIMD
            highest = max(highest, np.uint8(kind[c, np.uint64(row)]))
        require(highest < kinds)
        for row in range(kind.shape[1]):
            counts[c, np.uint64(kind[c, np.uint64(row)])] += 1


@kernel("u8[] i32[][] i32[][] i8[][] u64[] u8[] u64[] i64[] i64[]= u8[]= i32[][]= u64[][]= bool[][]=")
def parse_rows(
    data: Bytes,
    start: Places,
    end: Places,
    kind: Kinds,
    columns: NDArray[np.uint64],
    what: Bytes,
    kinds: NDArray[np.uint64],
    base: NDArray[np.int64],
    at: NDArray[np.int64],
    out: Bytes,
    offsets: Places,
    numbers: NDArray[np.uint64],
    bad: NDArray[np.bool_],
) -> None:
    """Decode the wanted columns.

    Args:
        data: bytes.
        start: [column, row] begin of each value.
        end: its end.
        kind: its kind.
        columns: which to decode.
        what: TEXT, INTEGER or DOUBLE of each of them.
        kinds: bits of the kinds of value to decode of each; others are zero or empty.
        base: where the text of each begins in `out`.
        at: scratch space of as many.
        out: text of all, one column behind the other.
        offsets: [wanted column, row] of its text, from 0.
        numbers: [wanted column, row] integers, and the bits of doubles.
        bad: [wanted column, row] no such value, or none that the quick way finds.

    Raises:
        IndexError: a column, a value or its text lies outside of its array.
    """
    count = start.shape[1]
    wanted = len(columns)
    require(end.shape[1] >= count and kind.shape[1] >= count)
    require(len(what) >= wanted and len(kinds) >= wanted and len(base) >= wanted and len(at) >= wanted)
    require(offsets.shape[0] >= wanted and offsets.shape[1] > count)
    require(numbers.shape[0] >= wanted and numbers.shape[1] >= count)
    require(bad.shape[0] >= wanted and bad.shape[1] >= count)
    given = np.uint64(min(start.shape[0], end.shape[0], kind.shape[0]))
    for k in range(wanted):
        require(columns[k] < given and 0 <= base[k] <= len(out))
    for k in range(len(columns)):
        at[k] = base[k]
    for begin in range(0, count, BLOCK_ROWS):
        last = min(begin + BLOCK_ROWS, count)
        for number in range(len(columns)):
            k = np.uint64(number)
            c, what_k, kinds_k = columns[k], what[k], kinds[k]
            if what_k == TEXT:
                to, first = at[k], base[k]
                for row in range(begin, last):
                    r = np.uint64(row)
                    offsets[k, r] = to - first
                    if (kinds_k >> np.uint64(kind[c, r])) & ONE:
                        after = copy_text(
                            data, np.int64(start[c, r]), np.int64(end[c, r]), kind[c, r] == ESCAPED, out, to
                        )
                        if after < 0:
                            bad[k, r] = True
                        else:
                            to = after
                at[k] = to
                continue
            for row in range(begin, last):
                r = np.uint64(row)
                if not (kinds_k >> np.uint64(kind[c, r])) & ONE:
                    continue
                p, q = np.uint64(start[c, r]), np.uint64(end[c, r])
                require(q <= np.uint64(len(data)))
                if what_k == INTEGER:
                    value, fits = integer_of(data, p, q)
                    numbers[k, r] = np.uint64(value) if fits else np.uint64(0)
                    bad[k, r] = not fits
                else:
                    bits, certain = double_of(data, p, q)
                    numbers[k, r] = bits
                    bad[k, r] = not certain
    rows = np.uint64(count)
    for number in range(len(columns)):
        k = np.uint64(number)
        offsets[k, rows] = at[k] - base[k]
