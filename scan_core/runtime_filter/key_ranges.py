"""KeyRanges: a few ranges of one column outside of which no join partner lies.

Known without running anything, from the statistics of the other table (`induced.py`); they exclude files, row groups
and pages, never single rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from scan_core.prune.domain import of_statistics
from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics, StatisticsOf
from scan_core.runtime_filter.column_keys import KeyField

MOST_RANGES = 16
"""More describe the other side better, but every file and page is compared with each."""


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Ranges, both ends included, ascending and disjoint, of values as `ColumnStatistics` represents them.

    None: nothing is known.
    """

    field: KeyField
    ranges: tuple[tuple[Any, Any], ...] | None

    @property
    def fields(self) -> tuple[KeyField, ...]:
        """The one column."""
        return (self.field,)

    def may_hold(self, statistics: ColumnStatistics | None) -> bool:
        """False only if no value so described lies in a range; NULL never does."""
        if statistics is None or self.ranges is None:
            return True
        known = of_statistics(statistics, self.field.type)
        if known.may_be_nan:
            return True
        if not known.may_be_value:
            return False
        return any(
            (known.upper is None or low <= known.upper) and (known.lower is None or known.lower <= high)
            for low, high in self.ranges
        )

    def match(self, statistics_of: StatisticsOf) -> Match:
        """NEVER: no row so described lies in a range; otherwise MAYBE."""
        return Match.MAYBE if self.may_hold(statistics_of(self.field.field_id)) else Match.NEVER


def merged_ranges(ranges: Iterable[tuple[Any, Any]], most: int = MOST_RANGES) -> tuple[tuple[Any, Any], ...]:
    """Ascending, disjoint ranges that cover the given ones, at most so many: the narrowest gaps are closed first."""
    found: list[tuple[Any, Any]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    while len(found) > most:
        at = min(range(len(found) - 1), key=lambda i: _gap(found[i][1], found[i + 1][0]))
        found[at : at + 2] = [(found[at][0], found[at + 1][1])]
    return tuple(found)


def _gap(low: Any, high: Any) -> float:
    """How far apart two values are, as far as that can be told."""
    if isinstance(low, int | float | Decimal):
        return float(high) - float(low)
    first, second = (v.encode() if isinstance(v, str) else bytes(v) for v in (low, high))
    same = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    return float(int.from_bytes(second[same : same + 8].ljust(8, b"\0"), "big")
                 - int.from_bytes(first[same : same + 8].ljust(8, b"\0"), "big")) / 256.0**same if same < 100 else 0.0  # fmt: skip
