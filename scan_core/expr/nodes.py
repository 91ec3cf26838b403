"""Expression nodes, unbound and bound. Frozen, picklable; evaluation lives in `kernels.py`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BoundPredicate:
    """Conjuncts that every row of the result must fulfil, bound to field ids.

    Attributes:
        sql: the text the user wrote, or the printed form of expression objects.
        conjuncts: bound boolean expressions, all of which must be true (NULL is not true).
    """

    sql: str
    conjuncts: tuple[Any, ...]

    @property
    def column_ids(self) -> tuple[int, ...]:
        """Ids of the top-level columns it reads, ascending."""
        raise NotImplementedError
