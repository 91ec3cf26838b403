"""Data-induced predicates: what the filter of one table says about another, by the bounds of their join key alone.

A predicate leaves some files and row groups of its table; the bounds of the join key in these are ranges outside of which
no row of the other table finds a partner. Nothing is executed: manifests and footers tell. (Orr, Kandula, Chaudhuri,
Pushing data-induced predicates through joins in big-data clusters, VLDB 2019.)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scan_core.errors import OptionError
from scan_core.plan.file_pruner import file_statistics
from scan_core.plan.planner import ScanPlan
from scan_core.prune.domain import of_statistics
from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics
from scan_core.read.file_statistics import FileStatistics
from scan_core.read.open_file import open_file
from scan_core.read.projection import FileProjection
from scan_core.runtime_filter.column_keys import KeyField, engine_array, engine_values
from scan_core.runtime_filter.key_ranges import MOST_RANGES, KeyRanges, merged_ranges
from scan_core.snapshot import FileFormat
from scan_core.split import FileScanTask

if TYPE_CHECKING:
    from scan_core.scan import Scan

MOST_FOOTERS = 64
"""Files whose row groups are looked at; reading more footers takes longer than they save."""
_COMPARABLE = (
    frozenset({"int", "long"}),
    frozenset({"float", "double"}),
    frozenset({"timestamp"}),
    frozenset({"timestamptz"}),
)


@dataclass(frozen=True)
class KeyRangeSource:
    """The ranges of a column of a scan, found when the first plan of the other side needs them."""

    scan: "Scan"
    column: str
    most_ranges: int = MOST_RANGES
    _known: dict[str, KeyRanges] = field(default_factory=dict, repr=False, compare=False)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was asked for: the lock stays in its process."""
        return KeyRangeSource, (self.scan, self.column, self.most_ranges)

    def ranges(self, of: KeyField) -> KeyRanges:
        """As ranges of a column of the other side.

        Raises:
            OptionError: the two columns' values cannot be compared by their bounds.
        """
        with self._lock:
            if "ranges" not in self._known:
                self._known["ranges"] = key_ranges(self.scan, self.column, self.most_ranges)
            found = self._known["ranges"]
        if not are_comparable(found.field, of):
            raise OptionError(f"ranges of {found.field.type} {self.column!r} do not tell of {of.type} {of.name!r}")
        return KeyRanges(of, found.ranges)


@dataclass(frozen=True)
class GivenRanges:
    """Ranges that another process found: a table of `low` and `high`; None if nothing is known."""

    bounds: pa.Table | None

    @classmethod
    def of(cls, found: KeyRanges) -> "GivenRanges":
        """Ranges as a table."""
        if found.ranges is None:
            return cls(None)
        ends = [engine_array([r[side] for r in found.ranges], found.field.type) for side in (0, 1)]
        return cls(pa.table(ends, names=["low", "high"]))

    def ranges(self, of: KeyField) -> KeyRanges:
        """The inverse, for a column of the type they were found for."""
        if self.bounds is None:
            return KeyRanges(of, None)
        low, high = (engine_values(self.bounds.column(side).combine_chunks()) for side in (0, 1))
        return KeyRanges(of, tuple(zip(low, high, strict=True)))


def induced_ranges(scan: "Scan", column: str, most_ranges: int = MOST_RANGES) -> KeyRangeSource:
    """Ranges outside of which a column of a scan has no value, for `prefilter` of the other side of a join.

    Args:
        scan: with the predicate that leaves some files and row groups.
        column: the join key.
        most_ranges: neighbours are merged until no more are left.

    Raises:
        OptionError: fewer than one range.
    """
    if most_ranges < 1:
        raise OptionError(f"most_ranges must be at least 1, not {most_ranges}")
    return KeyRangeSource(scan, column, most_ranges)


def are_comparable(one: KeyField, other: KeyField) -> bool:
    """Whether bounds of one column mean the same in the other."""
    if one.type == other.type:
        return True
    names = {str(one.type), str(other.type)}
    return any(names <= family for family in _COMPARABLE)


def key_ranges(scan: "Scan", column: str, most_ranges: int = MOST_RANGES) -> KeyRanges:
    """The ranges of a column over what statistics leave of a scan; unknown if nothing tells."""
    plan = scan.plan()
    key = scan.key_fields([column])[0]
    bounds: list[tuple[Any, Any]] = []
    for known in _survivors(plan, scan, key):
        found = _range(known, key)
        if found is None:
            return KeyRanges(key, None)
        bounds += found
    return KeyRanges(key, merged_ranges(bounds, most_ranges))


def _range(known: ColumnStatistics | None, key: KeyField) -> list[tuple[Any, Any]] | None:
    """No range for NULLs alone; None if the values are unknown."""
    domain = of_statistics(known, key.type)
    if domain.may_be_nan:
        return None
    if not domain.may_be_value:
        return []
    return None if domain.lower is None or domain.upper is None else [(domain.lower, domain.upper)]


def _survivors(plan: ScanPlan, scan: "Scan", key: KeyField) -> Iterator[ColumnStatistics | None]:
    """Statistics of the key in every file, or row group where footers are read, that the plan leaves."""
    schema = scan.table.metadata.schemas[plan.context.projection.schema_id]
    reads_footers = len(plan.tasks) <= MOST_FOOTERS and plan.context.predicate is not None
    for task in plan.tasks:
        if reads_footers and task.data_file.format is FileFormat.PARQUET and not task.data_file.is_encrypted:
            yield from _row_groups(plan, task, key)
        else:
            yield file_statistics(task.data_file, schema)(key.field_id)


def _row_groups(plan: ScanPlan, task: FileScanTask, key: KeyField) -> Iterator[ColumnStatistics | None]:
    from scan_core.read.predicate import open_conjuncts

    context, file = plan.context, task.data_file
    reader = open_file(file.path, file.format, context.io, file.file_size_bytes)
    try:
        projection = FileProjection(
            reader.arrow_schema,
            has_field_ids=reader.has_field_ids,
            context=context,
            file=file,
            member=reader.member,
        )
        statistics = FileStatistics(reader, projection)
        conjuncts = open_conjuncts(context, file, projection, statistics)
        for row_group in reader.row_groups:
            if all(c.match(statistics.of(row_group, c.types)) is not Match.NEVER for c in conjuncts):
                yield statistics.of(row_group, {key.field_id: key.type})(key.field_id)
    finally:
        reader.close()
