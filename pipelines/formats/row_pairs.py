"""Updates that come as two rows, that before and that after it: which row goes with which, and what waits for its other.

Only operations are looked at (ASCII codes, 0 for what is no change, such as a blank line), never the rows.
"""

import numpy as np
from numpy.typing import NDArray

Ops = NDArray[np.uint8]

BEFORE = ord("b")
"""The row before an update that follows at once: all it can tell is that the key was another."""


def old_rows(op: Ops) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the row before each change stands, and which changes have one: deletes, and updates behind such a row."""
    places = np.arange(len(op))
    # Blank lines stand between no pair.
    former = np.r_[-1, np.maximum.accumulate(np.where(op != 0, places, -1))][: len(op)]
    paired = (op == ord("u")) & (former >= 0) & (op[former] == BEFORE)
    return np.where(paired, former, places), paired | (op == ord("d"))


def with_retractions(op: Ops) -> Ops:
    """The operations, of several rows before updates in a row all but the last as deletes: their updates follow later."""
    known = np.flatnonzero(op)
    is_before = op[known] == BEFORE
    if not (is_before[1:] & is_before[:-1]).any():
        return op
    places = np.arange(len(known))
    ahead = np.minimum.accumulate(np.where(is_before, len(known), places)[::-1])[::-1]
    is_update = np.r_[op[known] == ord("u"), False][ahead]
    op = op.copy()
    op[known[is_before & (ahead > places + 1) & is_update]] = ord("d")
    return op


def waiting_rows(op: Ops) -> tuple[int, bool]:
    """How many of the last rows wait for what follows, and whether these rows tell: not if all of them wait."""
    known = np.flatnonzero(op)
    others = np.flatnonzero(op[known] != BEFORE)
    waiting = known[others[-1] + 1 :] if len(others) else known
    return (len(op) - int(waiting[0]) if len(waiting) else 0), len(others) > 0
