"""Where the columns that a change did not send come from: an earlier change of the row, the mirror, or nobody (rule 26)."""

import numpy as np
from numpy.typing import NDArray

from pipelines.mirrors.change_arrays import ChangeArrays

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

NOT_FOUND_REASON = "column {} was not sent and the table has no row with this key to take it from"
UNRESOLVED_REASON = "column {} was not sent and the row was deleted or truncated before, or moved to another key"


class UnsentSources:
    """Per change and unsent column, the change that has the value; or that the mirror has it, or nobody."""

    def __init__(self, changes: ChangeArrays, alive: Mask, absent: Mask, *, truncated: bool) -> None:
        self._absent = absent
        self._has_moves = bool(changes.moves.any())
        self._truncated = truncated
        self._previous = _previous_touch(changes, alive) if changes.unsent else None
        self.source_of: dict[str, Rows] = {}
        self.from_mirror: dict[str, Mask] = {}
        self._lost: dict[str, Rows] = {}
        for name, unsent in changes.unsent.items():
            self._resolve(name, unsent & alive & changes.puts)

    def unresolved(self) -> dict[str, Rows]:
        """Changes whose row was gone when they came, by reason."""
        return self._lost

    def _resolve(self, name: str, unsent: Mask) -> None:
        if not unsent.any() or self._previous is None:
            return
        touch, is_put = self._previous
        base = unsent & (touch < 0)
        gone = unsent & (touch >= 0) & ~is_put
        missing = base & self._absent
        if self._truncated:
            gone, base = gone | base, np.zeros_like(base)
        pointer = np.where(unsent & ~base & ~gone, touch, np.arange(len(unsent)))
        while True:
            jumped = pointer[pointer]
            if (jumped == pointer).all():
                break
            pointer = jumped
        for lost, reason in ((gone, UNRESOLVED_REASON), (missing & ~gone, NOT_FOUND_REASON)):
            if lost.any():
                # Without key changes the ones that build on a lost change are lost too; else the next round tells.
                self._lost[reason.format(name)] = np.flatnonzero(lost if self._has_moves else unsent & lost[pointer])
        if gone.any() or missing.any():
            return
        self.source_of[name] = pointer
        self.from_mirror[name] = base


def _previous_touch(changes: ChangeArrays, alive: Mask) -> tuple[Rows, Mask]:
    """Per change, the latest earlier touch of the key it takes its row from (-1: none), and whether that left a row."""
    rows = np.flatnonzero(alive)
    moving = rows[changes.moves[rows]]
    key = np.concatenate([changes.new_code[rows], changes.old_code[moving]])
    time = np.concatenate([rows, moving])
    put = np.concatenate([changes.puts[rows], np.zeros(len(moving), np.bool_)])
    order = np.lexsort((time, key))
    key, time, put = key[order], time[order], put[order]
    span = np.int64(len(changes) + 1)
    ordered = key * span + time
    wanted = changes.old_code * span + np.arange(len(changes))
    at = np.searchsorted(ordered, wanted, side="left") - 1
    found = at >= 0
    same = found & (key[np.maximum(at, 0)] == changes.old_code) if len(key) else found
    at = np.maximum(at, 0)
    nothing = np.full(len(changes), -1, np.int64)
    if not len(key):
        return nothing, np.zeros(len(changes), np.bool_)
    return np.where(same, time[at], nothing), same & put[at]
