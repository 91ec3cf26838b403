"""The other side of a join in Spark: how it is read, and what its keys and statistics say about the fact.

Collected as a whole, it is joined as what was collected; otherwise Spark reads it, within the ranges that statistics of
the fact give.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from scan_core.distribute.fact_reading import FactFilter, broadcastable
from scan_core.distribute.join_keys import BuildLimits, BuildSide, are_joined_exactly, keys_of_frame, keys_of_scan
from scan_core.distribute.join_kinds import may_broadcast_dimension, may_filter_dimension, may_filter_fact
from scan_core.distribute.prefilter_reading import may_cover
from scan_core.distribute.spark_types import spark_schema
from scan_core.errors import OptionError
from scan_core.runtime_filter.given_keys import distinct_keys
from scan_core.runtime_filter.induced import are_comparable, induced_ranges

if TYPE_CHECKING:
    from scan_core.plan.planner import ScanPlan
    from scan_core.scan import Scan


@dataclass(frozen=True)
class Dimension:
    """One join of a star: the other side, ready to be joined, and what it says about the fact."""

    frame: DataFrame
    on: Mapping[str, str]
    kind: str
    names_are_equal: bool
    filters: tuple[FactFilter, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DimensionRequest:
    """One join as it is asked for; the left side's keys are the fact's unless a dimension before it gave some."""

    spark: SparkSession
    fact: "Scan"
    pairs: Mapping[str, str]
    kind: str
    limits: BuildLimits
    names_are_equal: bool
    keys_are_of_fact: bool

    def with_dimension(self, dimension: "Scan | DataFrame") -> Dimension:
        """The other side, ready to be joined, and what it says about the fact."""
        notes = [reason] if (reason := self._why_not_filter(dimension)) is not None else []
        if isinstance(dimension, DataFrame):
            schema, read = dimension.schema, dimension
            side = BuildSide(None) if notes else keys_of_frame(dimension, self._names, self.limits)
        else:
            side_notes: list[str] = []
            schema, read = spark_schema(dimension.schema), self._within_fact(dimension, side_notes)
            side = self._collected(read, filters_fact=not notes)
            notes += side_notes
        frame = self._frame(read) if side.rows is None else self.spark.createDataFrame(side.rows, schema=schema)
        filters: list[FactFilter] = []
        if side.keys is not None and (reason := self._why_not_keys(side)) is None:
            filters.append(FactFilter.by_keys(tuple(self.pairs), side.keys))
            if may_broadcast_dimension(self.kind) and broadcastable(self.spark, frame, side.keys.num_rows):
                frame = f.broadcast(frame)
        elif (reason := side.why_not if side.keys is None else reason) is not None:
            notes.append(f"no filter by keys: {reason}")
            if not isinstance(dimension, DataFrame):
                filters = self._induced(dimension)
        return Dimension(frame, self.pairs, self.kind, self.names_are_equal, tuple(filters), tuple(notes))

    @property
    def _names(self) -> list[str]:
        """The columns of the dimension."""
        return list(self.pairs.values())

    def _why_not_filter(self, dimension: "Scan | DataFrame") -> str | None:
        if not may_filter_fact(self.kind):
            return f"no filter on the fact: a {self.kind} join gives its rows without partner, too"
        left = spark_schema(self.fact.schema)
        right: st.StructType = dimension.schema if isinstance(dimension, DataFrame) else spark_schema(dimension.schema)
        if not all(are_joined_exactly(left[a].dataType, right[b].dataType) for a, b in self.pairs.items()):
            return "no filter on the fact: Spark casts the keys, and compares other values than a filter would"
        return None

    def _why_not_keys(self, side: BuildSide) -> str | None:
        """What Spark shows as text, such as UUIDs, may be of another kind in the fact."""
        assert side.keys is not None  # noqa: S101  its caller asked
        try:
            distinct_keys(side.keys, self.fact.key_fields(list(self.pairs)), list(self.pairs))
        except OptionError as error:
            return str(error)
        return None

    def _collected(self, dimension: "Scan", *, filters_fact: bool) -> BuildSide:
        """What is read of a scan in this process; where it filters nothing, rows that Spark would read in Python."""
        if not filters_fact and not dimension.predicates:
            return BuildSide(None)
        plans = dimension.plan(), self.fact.plan()
        build, probe = (sum(task.data_file.record_count for task in plan.tasks) for plan in plans)
        if build > max(probe, 1):  # costs more than it saves
            reason = f"the dimension has up to {build} rows, the fact {probe}"
            return BuildSide(None, reason if filters_fact else None)
        if filters_fact and self._may_cover_fact(dimension, plans):
            return BuildSide(None, "the dimension's keys may be all that the fact has, as statistics tell")
        found = keys_of_scan(dimension, self._names, self.limits)
        return found if filters_fact else BuildSide(None, None, found.rows)

    def _may_cover_fact(self, dimension: "Scan", plans: "tuple[ScanPlan, ScanPlan]") -> bool:
        """A filter by several columns may remove much, though each column's values are all there."""
        if len(self.pairs) > 1:
            return False
        ((name, other),) = self.pairs.items()
        return self._are_comparable(dimension, name, other) and may_cover(
            dimension, other, self.fact, name, plans=plans
        )

    def _induced(self, dimension: "Scan") -> list[FactFilter]:
        """What statistics of the dimension say about the fact."""
        if not dimension.predicates and not dimension.joins:
            return []
        return [
            FactFilter.by_ranges(name, induced_ranges(dimension, other, self.limits.max_ranges))
            for name, other in self.pairs.items()
            if self._are_comparable(dimension, name, other)
        ]

    def _within_fact(self, dimension: "Scan", notes: list[str]) -> "Scan":
        """The dimension where it can have partners, as statistics of the fact tell."""
        may_filter = may_filter_dimension(self.kind) and self.keys_are_of_fact
        if may_filter and (self.fact.predicates or self.fact.joins):
            for name, other in self.pairs.items():
                if self._are_comparable(dimension, name, other):
                    dimension = dimension.prefilter(other, induced_ranges(self.fact, name, self.limits.max_ranges))
                    notes.append(f"dimension read within the ranges that statistics of the fact give for {other}")
        return dimension

    def _frame(self, dimension: "Scan | DataFrame") -> DataFrame:
        from scan_core.distribute.spark import dataframe

        return dimension if isinstance(dimension, DataFrame) else dataframe(self.spark, dimension)

    def _are_comparable(self, dimension: "Scan", name: str, other: str) -> bool:
        return are_comparable(self.fact.key_fields([name])[0], dimension.key_fields([other])[0])
