"""Joins of a table with dimensions in Spark, the table read through what the dimensions' keys leave of it.

The join itself stays Spark's. Before it, the keys of the dimension are collected up to a limit and pushed into planning
and reading of the fact, and statistics of either side become ranges on the other; only where no row can be lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from scan_core.distribute.fact_reading import FactFilter, broadcastable, read_fact
from scan_core.distribute.join_columns import On, pairs_of, require_columns
from scan_core.distribute.join_keys import BuildLimits, BuildSide, are_joined_exactly, keys_of_frame, keys_of_scan
from scan_core.distribute.join_kinds import (
    join_kind,
    may_broadcast_dimension,
    may_filter_dimension,
    may_filter_fact,
    may_give_keys_of_dimension,
)
from scan_core.distribute.spark_types import spark_schema
from scan_core.errors import OptionError
from scan_core.runtime_filter.given_keys import distinct_keys
from scan_core.runtime_filter.induced import are_comparable, induced_ranges

if TYPE_CHECKING:
    from scan_core.distribute.fact_reading import Reader
    from scan_core.scan import Scan


@dataclass(frozen=True)
class _Dimension:
    """One join of a star: the other side, ready to be joined, and what it says about the fact."""

    frame: DataFrame
    on: Mapping[str, str]
    kind: str
    names_are_equal: bool
    filters: tuple[FactFilter, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StarJoin:
    """A fact table and what it was joined with, in order."""

    spark: SparkSession
    fact: "Scan"
    reader: "Reader"
    dimensions: tuple[_Dimension, ...] = ()


_stars: "WeakKeyDictionary[DataFrame, StarJoin]" = WeakKeyDictionary()


def join(
    fact: "Scan | DataFrame",
    dimension: "Scan | DataFrame",
    *,
    on: On,
    how: str = "inner",
    spark: SparkSession | None = None,
    reader: "Reader" = "auto",
    limits: BuildLimits | None = None,
) -> DataFrame:
    """`fact` joined with `dimension`, the fact read only where it can have partners.

    The rows are those of `dataframe(spark, fact).join(dimension, on, how)`. Joins chain: a DataFrame that this function
    returned can be joined again, and the fact is then read through the keys of all its dimensions.

    Args:
        fact: a scan, or what this function returned; another DataFrame is joined as it is.
        dimension: a scan, read through the fact's ranges where legal; or a DataFrame, which is collected up to the limits
            and joined as what was collected.
        on: columns of the same name in both, or a mapping of names in the fact to those in the dimension.
        how: as in Spark. Inner, left semi and right outer joins filter the fact; inner, left semi, left outer and left
            anti ones the dimension; full outer joins nothing.
        spark: the session; by default that of a DataFrame given, or the active one.
        reader: of the fact, as in `dataframe`; "auto" also considers how much of it is left.
        limits: of what is collected.

    Raises:
        OptionError: no such column, or an unknown kind of join.
    """
    kind, limits = join_kind(how), limits or BuildLimits()
    pairs, names_are_equal = pairs_of(on)
    session = spark or _session(fact, dimension)
    if isinstance(fact, DataFrame):
        known = _stars.get(fact)
        if known is None or any(name not in known.fact.schema.names for name in pairs):
            return _joined(fact, _plain(session, dimension, pairs, kind, names_are_equal=names_are_equal))
        star = known
    else:
        star = StarJoin(session, fact, reader)
    require_columns(star.fact.schema.names, pairs, "fact")
    require_columns(_names(dimension), pairs.values(), "dimension")
    keys_are_of_fact = not any(may_give_keys_of_dimension(d.kind) for d in star.dimensions)
    request = _Request(session, star.fact, pairs, kind, limits, names_are_equal, keys_are_of_fact)
    star = replace(star, dimensions=(*star.dimensions, request.with_dimension(dimension)))
    frame = read_fact(session, star.fact, [x for d in star.dimensions for x in d.filters], star.reader)
    for step in star.dimensions:
        frame = _joined(frame, step)
    _stars[frame] = star
    return frame


def explain_join(frame: DataFrame) -> str:
    """What the dimensions' keys do to the reading of the fact, and why not more.

    Raises:
        OptionError: `frame` was not returned by `join` (one derived from it does not count).
    """
    star = _stars.get(frame)
    if star is None:
        raise OptionError("only a DataFrame that join() returned can be explained, not one derived from it")
    lines = [f"join of {star.fact.table.location}"]
    for step in star.dimensions:
        lines.append(f"  {step.kind} join on {', '.join(step.on)}")
        lines += [f"    {x.text}" for x in step.filters]
        lines += [f"    {note}" for note in step.notes]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Request:
    """One join as it is asked for; the left side's keys are the fact's unless a dimension before it gave some."""

    spark: SparkSession
    fact: "Scan"
    pairs: Mapping[str, str]
    kind: str
    limits: BuildLimits
    names_are_equal: bool
    keys_are_of_fact: bool

    def with_dimension(self, dimension: "Scan | DataFrame") -> _Dimension:
        """The other side, ready to be joined, and what it says about the fact."""
        notes = [reason] if (reason := self._why_not_filter(dimension)) is not None else []
        if isinstance(dimension, DataFrame):
            side = BuildSide(None) if notes else keys_of_frame(dimension, list(self.pairs.values()), self.limits)
            frame = dimension
            if side.rows is not None:
                frame = self.spark.createDataFrame(side.rows, schema=dimension.schema)
            filters: list[FactFilter] = []
        else:
            filters = [] if notes else self._induced(dimension)
            side = BuildSide(None) if notes else self._keys_if_smaller(dimension)
            frame = self._read(dimension, notes)
        if side.keys is not None and (reason := self._why_not_keys(side)) is None:
            filters.append(FactFilter.by_keys(tuple(self.pairs), side.keys))
            if may_broadcast_dimension(self.kind) and broadcastable(self.spark, frame, side.keys.num_rows):
                frame = f.broadcast(frame)
        elif (reason := side.why_not if side.keys is None else reason) is not None:
            notes.append(f"no filter by keys: {reason}")
        return _Dimension(frame, self.pairs, self.kind, self.names_are_equal, tuple(filters), tuple(notes))

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

    def _keys_if_smaller(self, dimension: "Scan") -> BuildSide:
        """A build side that is larger than the probe side costs more than it saves."""
        build, probe = (sum(t.data_file.record_count for t in s.plan().tasks) for s in (dimension, self.fact))
        if build > max(probe, 1):
            return BuildSide(None, f"the dimension has up to {build} rows, the fact {probe}")
        return keys_of_scan(dimension, list(self.pairs.values()), self.limits)

    def _induced(self, dimension: "Scan") -> list[FactFilter]:
        """What statistics of the dimension say about the fact."""
        if not dimension.predicates and not dimension.joins:
            return []
        return [
            FactFilter.by_ranges(name, induced_ranges(dimension, other, self.limits.max_ranges))
            for name, other in self.pairs.items()
            if self._are_comparable(dimension, name, other)
        ]

    def _read(self, dimension: "Scan", notes: list[str]) -> DataFrame:
        from scan_core.distribute.spark import dataframe

        may_filter = may_filter_dimension(self.kind) and self.keys_are_of_fact
        if may_filter and (self.fact.predicates or self.fact.joins):
            for name, other in self.pairs.items():
                if self._are_comparable(dimension, name, other):
                    dimension = dimension.prefilter(other, induced_ranges(self.fact, name, self.limits.max_ranges))
                    notes.append(f"dimension read within the ranges that statistics of the fact give for {other}")
        return dataframe(self.spark, dimension)

    def _are_comparable(self, dimension: "Scan", name: str, other: str) -> bool:
        return are_comparable(self.fact.key_fields([name])[0], dimension.key_fields([other])[0])


def _plain(
    spark: SparkSession, dimension: "Scan | DataFrame", pairs: Mapping[str, str], kind: str, *, names_are_equal: bool
) -> _Dimension:
    from scan_core.distribute.spark import dataframe

    frame = dimension if isinstance(dimension, DataFrame) else dataframe(spark, dimension)
    return _Dimension(frame, pairs, kind, names_are_equal, (), ())


def _joined(fact: DataFrame, step: _Dimension) -> DataFrame:
    if step.names_are_equal:
        return fact.join(step.frame, list(step.on), step.kind)
    conditions = [fact[f"`{a}`"] == step.frame[f"`{b}`"] for a, b in step.on.items()]
    return fact.join(step.frame, conditions, step.kind)


def _names(side: "Scan | DataFrame") -> Sequence[str]:
    return side.columns if isinstance(side, DataFrame) else side.schema.names


def _session(*sides: "Scan | DataFrame") -> SparkSession:
    for side in sides:
        if isinstance(side, DataFrame):
            return side.sparkSession
    found = SparkSession.getActiveSession()
    if found is None:
        raise OptionError("no Spark session is active: pass spark=...")
    return found
