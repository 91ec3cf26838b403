"""Joins of a table with dimensions in Spark, the table read through what the dimensions' keys leave of it.

The join itself stays Spark's. Before it, the keys of the dimension are collected up to a limit and pushed into planning
and reading of the fact, and statistics of either side become ranges on the other; only where no row can be lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from scan_core.distribute.fact_reading import FactReading, read_fact
from scan_core.distribute.frame_arguments import require_side
from scan_core.distribute.join_columns import On, pairs_of, require_columns
from scan_core.distribute.join_dimension import Dimension, DimensionRequest
from scan_core.distribute.join_keys import BuildLimits
from scan_core.distribute.join_kinds import (
    join_kind,
    may_give_keys_of_dimension,
)
from scan_core.errors import OptionError

if TYPE_CHECKING:
    from scan_core.distribute.fact_reading import Reader
    from scan_core.scan import Scan


@dataclass(frozen=True)
class StarJoin:
    """A fact table and what it was joined with, in order."""

    spark: SparkSession
    fact: "Scan"
    reader: "Reader"
    dimensions: tuple[Dimension, ...] = ()
    reading: FactReading | None = None


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
    require_side(fact, "fact")
    require_side(dimension, "dimension")
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
    request = DimensionRequest(session, star.fact, pairs, kind, limits, names_are_equal, keys_are_of_fact)
    star = replace(star, dimensions=(*star.dimensions, request.with_dimension(dimension)))
    reading = read_fact(session, star.fact, [x for d in star.dimensions for x in d.filters], star.reader)
    frame = reading.frame
    for step in star.dimensions:
        frame = _joined(frame, step)
    _stars[frame] = replace(star, reading=reading)
    return frame


def explain_join(frame: DataFrame) -> str:
    """What the dimensions' keys do to the reading of the fact, why not more, and what tasks made of them so far.

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
    if star.reading is not None:
        lines += star.reading.explained()
    return "\n".join(lines)


def _plain(
    spark: SparkSession, dimension: "Scan | DataFrame", pairs: Mapping[str, str], kind: str, *, names_are_equal: bool
) -> Dimension:
    from scan_core.distribute.spark import dataframe

    frame = dimension if isinstance(dimension, DataFrame) else dataframe(spark, dimension)
    return Dimension(frame, pairs, kind, names_are_equal, (), ())


def _joined(fact: DataFrame, step: Dimension) -> DataFrame:
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
