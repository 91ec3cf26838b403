"""Whether a filter is worth its cost at one level, by what it excluded so far in one run. Never changes a result.

Measured over all splits of this process. A level that is switched off is tried again now and then: data drifts.
"""

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from scan_core.metrics import ScanMetrics
from scan_core.runtime_filter.request import FilterDecision, Level

TRIED_ROWS = 500_000
"""Rows after which a level has shown what it is worth."""
LEAST_SHARE = {
    Level.ROW_GROUPS: 0.0,  # statistics are in memory already
    Level.BLOOM_FILTERS: 0.02,
    Level.DICTIONARIES: 0.02,
    Level.BITMAPS: 0.0,  # they decide by their own cost
    Level.PAGES: 0.02,
    Level.ROWS: 0.05,
}
"""Of the rows tried, what a level must exclude to go on: looking costs about so much of reading them."""
_TRIED_AGAIN = 16
"""Of so many occasions while it is off, one is used to look again."""
_FORGET = 0.5
_REMEMBERED_RUNS = 64


@dataclass(slots=True)
class Tally:
    """What one filter excluded at one level."""

    rows: float = 0.0
    excluded: float = 0.0
    is_off: bool = False
    passed_over: int = 0
    switched_off: int = 0


@dataclass(slots=True)
class Run:
    """The tallies of one filter in one run of a plan."""

    decision: FilterDecision
    tallies: dict[Level, Tally] = field(default_factory=dict)

    def is_on(self, level: Level, *, adaptive: bool) -> bool:
        """Whether to use the filter at a level now."""
        if not self.decision.is_on(level):
            return False
        tally = self.tallies.get(level)
        if tally is None or not tally.is_off or not adaptive:
            return True
        tally.passed_over += 1
        return tally.passed_over % _TRIED_AGAIN == 0

    def record(self, level: Level, rows: int, excluded: int, metrics: ScanMetrics) -> None:
        """Remember what was excluded of some rows."""
        tally = self.tallies.setdefault(level, Tally())
        tally.rows += rows
        tally.excluded += excluded
        if tally.rows < TRIED_ROWS:
            return
        is_useless = tally.excluded < LEAST_SHARE[level] * tally.rows
        if is_useless and not tally.is_off:
            tally.switched_off += 1
            metrics.runtime_filters_switched_off += 1
        tally.is_off = is_useless
        tally.rows, tally.excluded = tally.rows * _FORGET, tally.excluded * _FORGET


class Runs:
    """The runs of this process, the least recently used forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Run] = OrderedDict()

    def of(self, decision: FilterDecision) -> Run:
        """The run of a plan's filter; one that is not named is its own."""
        if not decision.run:
            return Run(decision)
        with self._lock:
            run = self._kept.setdefault(decision.run, Run(decision))
            self._kept.move_to_end(decision.run)
            while len(self._kept) > _REMEMBERED_RUNS:
                self._kept.popitem(last=False)
            return run

    def known(self, name: str) -> Run | None:
        """The run with this name, if something was measured."""
        return self._kept.get(name)

    def forget_threads(self) -> None:
        """In a forked process nobody holds the lock: the thread that did was left behind."""
        self._lock = threading.Lock()


RUNS = Runs()
os.register_at_fork(after_in_child=RUNS.forget_threads)
