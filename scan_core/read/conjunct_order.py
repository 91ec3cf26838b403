"""In which order the steps that narrow a selection run: cheapest rejection first, by measured cost.

All adaptivity of filtering lives here. Any order gives the same rows, for each step only removes some.
"""

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from scan_core.bounded_cache import BoundedCache

if TYPE_CHECKING:
    from scan_core.split import ScanContext

_FORGET = 0.5
"""Weight of earlier row groups against the newest one: data drifts along a file."""
_NARROW_BELOW = 0.5
"""Of fewer rows pages may be left out when columns are read."""
_COPY_COST = 24.0
"""Of cutting a column, per row that is left, in the units of `first_guess`."""
_COPY_COLLECTION_COST = 150.0
"""Of cutting a list or map: its elements move too, and child arrays are searched faster than that."""
_LEAST_ROWS = 256
"""Too few rows measure only the clock."""


class Costed(Protocol):
    """A step as its order sees it."""

    @property
    def key(self) -> object:
        """What stays the same for this step from file to file."""
        ...

    @property
    def first_guess(self) -> float:
        """Relative cost as long as nothing is measured; lower runs first."""
        ...


@dataclass(slots=True)
class _Measured:
    seconds: float = 0.0
    rows_in: float = 0.0
    rows_out: float = 0.0

    @property
    def cost(self) -> float:
        """Seconds per row, scaled by the share of rows that it lets through: time / (rows in / rows out)."""
        return self.seconds / self.rows_in * ((self.rows_out + 1) / (self.rows_in + 1))


class OrderHints:
    """What earlier splits of the same table and filter measured, in this process; the least recently used are dropped."""

    def __init__(self, max_filters: int) -> None:
        self._max_filters = max_filters
        self._measured: BoundedCache[Hashable, Mapping[object, _Measured]] = BoundedCache()

    def get(self, key: Hashable) -> dict[object, _Measured]:
        """The measurements under `key`, to be added to."""
        return _copy(self._measured.find(key) or {})

    def put(self, key: Hashable, measured: Mapping[object, _Measured]) -> None:
        """Remember measurements; those of the split that ends last are kept."""
        self._measured.put(key, _copy(measured), self._max_filters)

    def forget_threads(self) -> None:
        """See `BoundedCache`."""
        self._measured.forget_threads()

    def clear(self) -> None:
        """Forget everything."""
        self._measured.clear()


def _copy(measured: Mapping[object, _Measured]) -> dict[object, _Measured]:
    return {step: replace(found) for step, found in measured.items()}


_REMEMBERED_FILTERS = 256
HINTS = OrderHints(_REMEMBERED_FILTERS)
os.register_at_fork(after_in_child=HINTS.forget_threads)


class ConjunctOrder:
    """Measures steps over the row groups of one split and orders them for the next one.

    Args:
        adaptive: False keeps the first guess.
        hint_key: what is measured is remembered under it, for the next split to begin with; None for nothing.
    """

    def __init__(self, *, adaptive: bool, hint_key: Hashable = None) -> None:
        self._adaptive = adaptive
        self._hint_key = hint_key if adaptive else None
        self._measured = HINTS.get(hint_key) if self._hint_key is not None else {}

    @classmethod
    def of(cls, context: "ScanContext") -> "ConjunctOrder":
        """The order for a split of this scan."""
        text = "" if context.predicate is None else context.predicate.sql  # of an IN list it may be megabytes
        return cls(adaptive=context.options.adaptive_order, hint_key=(context.table, hash(text)))

    def order(self, steps: Sequence[Costed]) -> list[int]:
        """Indices of `steps`, in the order to run them.

        A step that is not measured although others are saw too few rows to matter: it runs last.
        """

        def rank(index: int) -> tuple[bool, float]:
            measured = self._measured.get(steps[index].key)
            if measured is None:
                return True, steps[index].first_guess
            return False, measured.cost

        return sorted(range(len(steps)), key=rank)

    def narrows(self, step: Costed, rows_left: int, num_rows: int, *, rereads_collection: bool = False) -> bool:
        """Is it cheaper to cut columns to the rows that are left than to run the step on all `num_rows` rows?

        Rows that are dead already may be judged again: what a step says of them is not asked for. With
        `rereads_collection` the step needs nothing but a list or map that is there for all `num_rows` rows: conjuncts on
        it run over the same child arrays as long as cutting those costs more.
        """
        if self._adaptive and rereads_collection:
            return rows_left * _COPY_COLLECTION_COST < (num_rows - rows_left) * step.first_guess
        if not self._adaptive or rows_left < _NARROW_BELOW * num_rows:
            return True
        return rows_left * _COPY_COST < (num_rows - rows_left) * step.first_guess

    def start(self) -> float:
        """The clock, for `record`."""
        return perf_counter()

    def record(self, step: Costed, started: float, rows_in: int, rows_out: int) -> None:
        """Remember what a step cost and let through."""
        if not self._adaptive or rows_in < _LEAST_ROWS:
            return
        seconds = perf_counter() - started
        measured = self._measured.setdefault(step.key, _Measured())
        measured.seconds = measured.seconds * _FORGET + seconds
        measured.rows_in = measured.rows_in * _FORGET + rows_in
        measured.rows_out = measured.rows_out * _FORGET + rows_out
        if self._hint_key is not None:
            HINTS.put(self._hint_key, self._measured)
