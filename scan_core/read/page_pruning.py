"""Which rows of a row group the page index excludes: for the predicate, and for each set of equality deletes.

Columns have pages of their own lengths: a stretch is a run of rows in which no column of interest begins a new page.
What bounds mean for a predicate or a delete set is decided in `prune/` and `deletes/`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics, PageStatistics
from scan_core.rows.algebra import from_ranges
from scan_core.rows.selection import RowSelection

_MOST_STRETCHES = 4_096
"""Beyond, looking at bounds costs more than pages do."""

_SAMPLED_PARTS = 16
_LEAST_SAMPLED_STRETCHES = 64
_TRIED_ROWS = 2_000_000
_LEAST_EXCLUDED_SHARE = 0.02
"""What page bounds must exclude of the rows they were tried on to be looked at further."""

StatisticsOf = Callable[[int], ColumnStatistics | None]


class Paging:
    """Whether looking at page bounds pays, by what they excluded so far in one file. Never changes a result."""

    def __init__(self, is_on: bool) -> None:  # noqa: FBT001  the only argument
        self._is_on = is_on
        self._rows = 0
        self._excluded = 0

    @property
    def is_worthwhile(self) -> bool:
        """True until enough rows were looked at to tell that it is not."""
        return self._is_on and (self._rows < _TRIED_ROWS or self._excluded >= _LEAST_EXCLUDED_SHARE * self._rows)

    def record(self, excluded: int, num_rows: int) -> None:
        """Remember what the pages of a row group excluded."""
        self._rows += num_rows
        self._excluded += excluded


@dataclass(frozen=True, slots=True)
class Stretches:
    """Runs of rows [edges[k], edges[k + 1]) of one row group, and what is known of each."""

    edges: Sequence[int]
    known: Sequence[StatisticsOf]

    @property
    def num_rows(self) -> int:
        """Of the row group."""
        return self.edges[-1]

    def rows(self, verdicts: Sequence[Match], *wanted: Match) -> RowSelection:
        """The rows of the stretches with one of these verdicts."""
        pairs = [(self.edges[k], self.edges[k + 1]) for k, verdict in enumerate(verdicts) if verdict in wanted]
        return from_ranges(pairs, self.num_rows)


def find_stretches(pages: Mapping[int, PageStatistics], whole: StatisticsOf) -> Stretches | None:
    """The stretches of a row group; None if its pages tell no more than the row group does.

    Args:
        pages: of columns by field id, bounds in the types that `whole` uses.
        whole: statistics of the row group, for columns without page index.
    """
    edges = sorted({int(edge) for found in pages.values() for edge in found.edges})
    if not 2 < len(edges) <= _MOST_STRETCHES:
        return None
    begins = np.array(edges[:-1])
    page_of = {i: (np.searchsorted(found.edges, begins, side="right") - 1).tolist() for i, found in pages.items()}

    def known(stretch: int) -> StatisticsOf:
        def statistics_of(field_id: int) -> ColumnStatistics | None:
            if field_id not in pages:
                return whole(field_id)
            page: int = page_of[field_id][stretch]
            return pages[field_id].statistics[page]

        return statistics_of

    return Stretches(edges, [known(k) for k in range(len(edges) - 1)])


def excludes_some(stretches: Stretches, excludes: Callable[[StatisticsOf], bool]) -> bool:
    """Whether looking at every stretch is worth it: of many, a few evenly spread ones tell.

    Data that lie in order or in clusters exclude some of them; of values scattered at random none are excluded.
    """
    step = max(len(stretches.known) // _SAMPLED_PARTS, 1)
    if len(stretches.known) < _LEAST_SAMPLED_STRETCHES:
        return True
    return any(excludes(known) for known in stretches.known[step // 2 :: step])


def has_gaps(whole: StatisticsOf, key_ids: Iterable[int], may_touch: Callable[[StatisticsOf], Match]) -> bool:
    """Whether some part of a row group's key range is free of deletes, or covered: only then page bounds can help.

    Looks at equal parts of the range of the first integer key; True where there is none, for then nothing is known.
    """
    for field_id in key_ids:
        known = whole(field_id)
        if known is None or not isinstance(known.lower, int) or not isinstance(known.upper, int):
            continue
        width = (known.upper - known.lower) // _SAMPLED_PARTS + 1
        parts = [
            replace(known, lower=begin, upper=min(begin + width - 1, known.upper))
            for begin in range(known.lower, known.upper + 1, width)
        ]
        return any(
            may_touch(lambda i, part=part, key=field_id: part if i == key else whole(i)) is not Match.MAYBE  # type: ignore[misc]
            for part in parts
        )
    return True
