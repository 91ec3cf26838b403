"""In which order the steps that narrow a selection run: cheapest rejection first, by measured cost.

All adaptivity of filtering lives here. Any order gives the same rows, for each step only removes some.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

_FORGET = 0.5
"""Weight of earlier row groups against the newest one: data drifts along a file."""
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


class ConjunctOrder:
    """Measures steps over the row groups of one split and orders them for the next one.

    Args:
        adaptive: False keeps the first guess.
    """

    def __init__(self, *, adaptive: bool) -> None:
        self._adaptive = adaptive
        self._measured: dict[object, _Measured] = {}

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
