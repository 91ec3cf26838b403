"""The compiled kernel that finds the records of a CSV text."""

# mypy: disable-error-code="untyped-decorator,no-any-return"
# ruff: noqa: C901, PLR0912, PLR0917, FBT001 - one compiled loop; Numba inlines no generators

import numpy as np
from numpy.typing import NDArray

from pipelines.jsonscan.value_kernels import require
from scan_core.native import kernel

GOOD, BLANK, BAD_QUOTE, UNCLOSED = range(4)
"""Status of a record: valid, an empty line, text after a closing quote, a quote that is never closed."""

_NEWLINE, _RETURN, _QUOTE = 0x0A, 0x0D, 0x22


@kernel("u8[] i64 bool i64[]= i32[]= i8[]=")
def split_records(
    data: NDArray[np.uint8],
    delimiter: int,
    is_all: bool,
    ends: NDArray[np.int64],
    widths: NDArray[np.int32],
    status: NDArray[np.int8],
) -> int:
    """Write the end of each record (after its newline), its number of fields and its status; return the number of records.

    A last record without a newline counts only if `is_all`; otherwise it may continue.
    """
    require(len(widths) >= len(ends) and len(status) >= len(ends))
    found = 0
    size = len(data)
    p = 0
    while p < size and found < len(ends):
        begin = p
        width = 1
        state = GOOD
        at_start = True
        quoted = False
        closed = False
        ended = False
        while p < size:
            byte = data[p]
            if quoted:
                if byte == _QUOTE:
                    if p + 1 < size and data[p + 1] == _QUOTE:
                        p += 1
                    else:
                        quoted = False
                        closed = True
            elif byte in (_NEWLINE, _RETURN):
                ended = True
                break
            elif byte == delimiter:
                width += 1
                at_start = True
                closed = False
                p += 1
                continue
            elif byte == _QUOTE and at_start:
                quoted = True
            elif closed:
                state = BAD_QUOTE
            at_start = False
            p += 1
        if not ended and not is_all:
            return found
        if quoted:
            state = UNCLOSED
        if p == begin:
            state = BLANK
        if ended:
            if data[p] == _RETURN and p + 1 == size and not is_all:
                return found  # the second byte of a CR LF may follow
            p += 2 if data[p] == _RETURN and p + 1 < size and data[p + 1] == _NEWLINE else 1
        ends[found] = p
        widths[found] = width
        status[found] = state
        found += 1
    return found
