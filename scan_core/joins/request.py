"""RuntimeFilter: what a scan carries of one join, and the cost model that decides where it is used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from nevermore.scan_core.joins.column_keys import KeyField, KeyRanges
from nevermore.scan_core.joins.key_set import KeyLookup, KeySet
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.snapshot import DataFile
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.verdicts import Level

FilterKeys = KeySet | KeyRanges


@dataclass(frozen=True, slots=True)
class FilterDecision:
    """What the cost model decided for one plan.

    Attributes:
        run: name of the plan, under which its run is measured.
        off: levels at which the filter is not used, each with the reason.
        share: expected share of rows with a key in the remaining files; None if unknown.
    """

    run: str = ""
    off: tuple[tuple[Level, str], ...] = ()
    share: float | None = None

    def is_on(self, level: Level) -> bool:
        """Whether the filter is initially used at this level."""
        return all(level is not other for other, _ in self.off)


@dataclass(frozen=True, slots=True)
class RuntimeFilter:
    """A request to skip rows whose columns match none of the keys.

    Attributes:
        fields: the columns.
        keys: what they are compared with.
        is_exact: the result has no such row; otherwise it may have some, because the caller joins again.
        decision: of the cost model; everything is on before it is asked.
    """

    fields: tuple[KeyField, ...]
    keys: FilterKeys
    is_exact: bool
    decision: FilterDecision = field(default_factory=FilterDecision)

    @property
    def name(self) -> str:
        """Description for messages and `explain`."""
        kind = "semi join" if self.is_exact else "prefilter"
        return f"{kind} on {', '.join(f.name for f in self.fields)}"

    def decided(self, decision: FilterDecision) -> "RuntimeFilter":
        """This filter with the decision of the cost model."""
        return replace(self, decision=decision)


BUILD_COST, ROW_COST, SAVED_COST = 60.0, 8.0, 40.0
"""Nanoseconds to index a key, to look a row up, and what a row costs further on (decoding, handing over, joining)."""
MAX_SHARE = 0.9
"""Above this share of rows with a key, looking rows up costs more than handing all of them to the join."""
MAX_TESTED_SHARE = 0.5
"""Above this, every row group probably contains a key, so Bloom filters and dictionaries are not read."""

FileStatisticsOf = Callable[[DataFile], Callable[[int], ColumnStatistics | None]]


def decide(
    filter_: RuntimeFilter, files: Sequence[DataFile], statistics_of: FileStatisticsOf, options: ScanOptions
) -> FilterDecision:
    """Decide at which levels to use a filter in a plan of these files.

    Args:
        filter_: the filter.
        files: those left to read.
        statistics_of: statistics of a file's columns from its manifest.
        options: of the scan.
    """
    run = uuid4().hex
    keys = filter_.keys
    if not options.switches.use_runtime_filters:
        return FilterDecision(
            run, tuple((level, "use_runtime_filters is off") for level in Level if level is not Level.ROWS)
        )
    off = _switched_off(options)
    if not isinstance(keys, KeySet):
        return FilterDecision(run, tuple(off.items()))
    share = expected_share(keys.lookup(options), files, statistics_of)
    if share is not None and share > MAX_TESTED_SHARE:
        reason = f"{_percent(share)} of the rows are expected to have a key"
        off[Level.BLOOM_FILTERS] = reason
    if not filter_.is_exact and share is not None:
        rows = sum(f.record_count for f in files)
        if share > MAX_SHARE:
            off[Level.ROWS] = (
                f"{_percent(share)} of the rows are expected to have a key, and the join is repeated on the result"
            )
        elif rows * (ROW_COST - (1 - share) * SAVED_COST) + keys.num_keys * BUILD_COST > 0:
            off[Level.ROWS] = f"looking {rows} rows up in {keys.num_keys} keys is expected to cost more than it saves"
    return FilterDecision(run, tuple(off.items()), share)


def expected_share(lookup: KeyLookup, files: Sequence[DataFile], statistics_of: FileStatisticsOf) -> float | None:
    """The expected share of rows of these files that have a key; None if it cannot be estimated.

    By the first column of integers, as if values were spread evenly between the bounds of each file.
    """
    column = next((c for c in lookup.columns if c.numbers is not None), None)
    if column is None or not files:
        return 0.0 if lookup.keys.num_keys == 0 else None
    rows = hits = 0.0
    for file in files:
        known = statistics_of(file)(column.field.field_id)
        if known is None or not isinstance(known.lower, int) or not isinstance(known.upper, int):
            return None
        if known.lower > known.upper:
            return None
        held = column.count_between(known.lower, known.upper) or 0
        rows += file.record_count
        hits += file.record_count * held / (known.upper - known.lower + 1)
    return hits / rows if rows else None


def _switched_off(options: ScanOptions) -> dict[Level, str]:
    """Levels that the options switch off."""
    allowed = {
        Level.FILES: options.switches.prune_files,
        Level.ROW_GROUPS: options.switches.prune_row_groups,
        Level.BLOOM_FILTERS: options.switches.prune_row_groups and options.switches.use_bloom_filters,
        Level.BITMAPS: options.switches.use_bitmap_indexes,
        Level.PAGES: options.switches.prune_pages,
    }
    return {level: "switched off by an option" for level, is_on in allowed.items() if not is_on}


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
