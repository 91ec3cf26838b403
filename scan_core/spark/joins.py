"""Joins of a fact table with dimensions in Spark; the fact is read only where dimension keys may match."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from nevermore.scan_core.joins.late_keys import distinct_keys
from nevermore.scan_core.model.errors import OptionError, UnsupportedError
from nevermore.scan_core.plan.explain import explain_filters
from nevermore.scan_core.semi_join import KeyRangeSource, are_comparable, induced_ranges
from nevermore.scan_core.spark.frames import choice_of, dataframe, register, reports_of
from nevermore.scan_core.spark.reader_choice import Reader, may_cover, require_side, within_keys
from nevermore.scan_core.spark.types import arrow_schema_of, conform, quoted_name, spark_schema

if TYPE_CHECKING:
    from nevermore.scan_core.scan import Scan


On = str | Sequence[str] | Mapping[str, str]

_NAMES = "a join is on names of columns, not on conditions: on='id', on=['id', 'day'] or on={'customer_id': 'id'}"


def pairs_of(on: On) -> tuple[dict[str, str], bool]:
    """Pair columns of the fact with those of the dimension; also whether each pair shares one name.

    Raises:
        OptionError: no columns were given, or conditions instead of columns.
    """
    if isinstance(on, str):
        return {on: on}, True
    if not isinstance(on, Collection):
        raise OptionError(_NAMES)
    if not on:
        raise OptionError("a join needs at least one column")
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    if not all(isinstance(name, str) for pair in pairs.items() for name in pair):
        raise OptionError(_NAMES)
    return pairs, not isinstance(on, Mapping)


@dataclass(frozen=True, slots=True)
class JoinKind:
    """A kind of join, and the sides that may be filtered because their unmatched rows never reach the result.

    Spark can broadcast the dimension under the same condition as the fact can be filtered.
    """

    name: str
    aliases: tuple[str, ...]
    filters_fact: bool = False
    filters_dimension: bool = False

    @property
    def keeps_dimension(self) -> bool:
        """Whether the result has rows without a fact row, so that a later join can see keys that the fact lacks."""
        return not self.filters_dimension


_KINDS = (
    JoinKind("inner", ("inner",), filters_fact=True, filters_dimension=True),
    JoinKind("left_semi", ("semi", "leftsemi"), filters_fact=True, filters_dimension=True),
    JoinKind("left_anti", ("anti", "leftanti"), filters_dimension=True),
    JoinKind("left", ("left", "leftouter"), filters_dimension=True),
    JoinKind("right", ("right", "rightouter"), filters_fact=True),
    JoinKind("full", ("outer", "full", "fullouter")),
)
_BY_ALIAS = {alias: kind for kind in _KINDS for alias in kind.aliases}


def join_kind(how: str) -> JoinKind:
    """The kind of join for a name or alias that Spark accepts.

    Raises:
        OptionError: the name is unknown, or is a cross join, which has no keys.
    """
    plain = how.strip().lower().replace("_", "")
    if plain == "cross":
        raise OptionError("a cross join has no keys; use DataFrame.crossJoin")
    if plain not in _BY_ALIAS:
        near = get_close_matches(plain, _BY_ALIAS, n=1, cutoff=0.0)
        raise OptionError(f"unknown join {how!r}; did you mean {near[0]!r}?")
    return _BY_ALIAS[plain]


_WHOLE_NUMBERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_FLOATS = (st.FloatType, st.DoubleType)
_COLLECTED = (
    *(*_WHOLE_NUMBERS, *_FLOATS, st.DecimalType, st.StringType, st.BinaryType, st.BooleanType),
    *(st.DateType, st.TimestampType, st.TimestampNTZType),
)
_MAX_DIGITS = 38
_SIZES = ((st.StringType, 20), (st.BinaryType, 100), (st.DecimalType, 16), (st.BooleanType, 1))
"""Bytes per value as Spark estimates them; 8 for other types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """How much of a dimension is collected.

    Attributes:
        max_rows: more rows mean no filter by keys.
        max_bytes: more bytes, as Arrow holds them, mean no filter by keys.
        max_ranges: maximum number of key ranges derived from statistics of the dimension.
    """

    max_rows: int = 1_000_000
    max_bytes: int = 64 * 1024**2
    max_ranges: int = 16


@dataclass(frozen=True, slots=True)
class BuildSide:
    """What was collected.

    Attributes:
        keys: the key rows, None if they were not collected as a whole.
        why_not: the reason for that.
        rows: all that was collected, of the types of Spark, which is joined in the dimension's place; None if that is
            the keys alone.
    """

    keys: pa.Table | None
    why_not: str | None = None
    rows: pa.Table | None = None


def keys_of_scan(dimension: "Scan", columns: Sequence[str], limits: BuildLimits) -> BuildSide:
    """Read the keys of a scan in this process, and its other columns too if they fit and Spark accepts their types."""
    schema = spark_schema(dimension.schema)
    if all(isinstance(field.dataType, _COLLECTED) for field in schema) and _may_fit(dimension, schema, limits):
        found = _collected(dimension, columns, arrow_schema_of(schema), limits)
        if found.keys is not None or len(columns) == len(schema.fields):
            return found
    return _collected(dimension.select(*columns), columns, None, limits)


def _may_fit(dimension: "Scan", schema: st.StructType, limits: BuildLimits) -> bool:
    """Whether the result may fit, judged by row counts; with a predicate it always may."""
    if dimension.predicates or dimension.joins or dimension.row_limit is not None:
        return True
    rows = sum(task.data_file.record_count for task in dimension.plan().tasks)
    return rows * width_of(schema) <= limits.max_bytes


def _collected(dimension: "Scan", columns: Sequence[str], target: pa.Schema | None, limits: BuildLimits) -> BuildSide:
    """The scan's rows, also cast to the types of `target` if given."""
    batches: list[pa.RecordBatch] = []
    shown: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in dimension.to_batches():
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if (reason := _too_much(rows, size, limits)) is not None:
            return BuildSide(None, reason)
        batches.append(batch.select(list(columns)))
        if target is not None:
            shown.append(conform(batch, target))
    schema = dimension.select(*columns).arrow_schema
    keys = pa.Table.from_batches(batches, schema=schema)
    return BuildSide(keys, None, None if target is None else pa.Table.from_batches(shown, schema=target))


def keys_of_frame(dimension: DataFrame, columns: Sequence[str], limits: BuildLimits) -> BuildSide:
    """Collect the keys of a DataFrame, together with its other columns."""
    schema = dimension.schema
    if len(set(schema.names)) < len(schema.names):
        return BuildSide(None, "two columns of the dimension have one name")
    for field in schema:
        if not isinstance(field.dataType, _COLLECTED):
            return BuildSide(None, f"column {field.name!r} is {field.dataType.simpleString()}, which is not collected")
    try:
        rows = dimension.limit(limits.max_rows + 1).toArrow()
    except PySparkException as error:
        return BuildSide(None, f"collecting the dimension failed: {error}")
    if (reason := _too_much(rows.num_rows, rows.nbytes, limits)) is not None:
        return BuildSide(None, reason)
    return BuildSide(rows.select(list(columns)), None, rows)


def are_joined_exactly(fact: st.DataType, dimension: st.DataType) -> bool:
    """Whether Spark compares the two types value for value, as a filter by keys does."""
    if isinstance(fact, st.StringType):
        plain = st.StringType().simpleString()
        return isinstance(dimension, st.StringType) and {fact.simpleString(), dimension.simpleString()} == {plain}
    exact = (*_WHOLE_NUMBERS, st.DecimalType)
    if isinstance(fact, exact) and isinstance(dimension, exact):
        (one, one_scale), (other, other_scale) = _digits(fact), _digits(dimension)
        return max(one, other) + max(one_scale, other_scale) <= _MAX_DIGITS
    if isinstance(fact, _FLOATS):
        return isinstance(dimension, _FLOATS)
    same = (st.BinaryType, st.BooleanType, st.DateType, st.TimestampType, st.TimestampNTZType)
    return isinstance(fact, same) and type(fact) is type(dimension)


def width_of(schema: st.StructType) -> int:
    """Spark's estimate of the bytes per row."""
    return sum(next((size for kind, size in _SIZES if isinstance(field.dataType, kind)), 8) for field in schema.fields)


def _digits(kind: st.DataType) -> tuple[int, int]:
    """Digits before and after the decimal point."""
    if isinstance(kind, st.DecimalType):
        return kind.precision - kind.scale, kind.scale
    return 20, 0


def _too_much(rows: int, size: int, limits: BuildLimits) -> str | None:
    if rows > limits.max_rows:
        return f"the dimension has more than {limits.max_rows} rows (max_rows)"
    return f"the dimension takes more than {limits.max_bytes} bytes (max_bytes)" if size > limits.max_bytes else None


_UNITS = {"": 1, "b": 1, "k": 1024, "kb": 1024, "m": 1024**2, "mb": 1024**2, "g": 1024**3, "gb": 1024**3}


@dataclass(frozen=True)
class FactFilter:
    """A filter of the fact derived from one dimension: keys of some columns, or ranges of one column."""

    columns: tuple[str, ...]
    keys: pa.Table | KeyRangeSource
    text: str


@dataclass(frozen=True)
class FactReading:
    """The fact as a DataFrame, and how it is read.

    Attributes:
        frame: rows of the fact; rows without a match may be missing.
        source: what `dataframe` returned, before adding conditions that only Spark's own reader needs.
        scan: the fact's scan, narrowed by the dimensions.
        conditions: columns for which Spark's reader received conditions.
    """

    frame: DataFrame
    source: DataFrame
    scan: "Scan"
    conditions: tuple[str, ...] = ()

    def explained(self) -> Iterator[str]:
        """Describe the reader and the reason for it, what keys pruned in planning, and what they removed in tasks so far."""
        plan, reports = self.scan.plan(), reports_of(self.source)
        yield f"  fact read by the {choice_of(self.source)}"
        pruned = plan.metrics.data_files_pruned_by_runtime_filters
        yield f"    {pruned} of {pruned + len(plan.tasks)} data files are left out in planning"
        if self.conditions:
            yield f"    Spark reads it with conditions on {', '.join(self.conditions)}"
        yield from (f"  {line}" for line in explain_filters(plan.context))
        if reports.stage_ids:
            last = reports.of_last_stage()
            yield (
                f"    the last stage left out {last.row_groups_pruned_by_runtime_filters} row groups and "
                f"{last.rows_removed_by_runtime_filters} rows; {last.runtime_filters_switched_off} times a filter that "
                "excluded too little was switched off"
            )


def read_fact(spark: SparkSession, fact: "Scan", filters: Sequence[FactFilter], reader: Reader) -> FactReading:
    """Read the fact as a DataFrame from which rows without a match may be missing."""
    filtered = fact
    for x in filters:
        filtered = filtered.prefilter(x.columns, x.keys)
    if filters:
        register(spark)
    source = frame = dataframe(spark, filtered, reader)
    conditions: list[str] = []
    if choice_of(source).strategy == "native":
        for x in filters:
            if isinstance(x.keys, pa.Table):
                within = within_keys(frame, filtered, x.columns, x.keys)
                conditions += x.columns if within is not frame else ()
                frame = within
    return FactReading(frame, source, filtered, tuple(dict.fromkeys(conditions)))


def broadcastable(spark: SparkSession, frame: DataFrame, num_rows: int) -> bool:
    """Whether the rows fit the session's broadcast limit; Spark does not know the size of a Python source."""
    try:
        text = str(spark.conf.get("spark.sql.autoBroadcastJoinThreshold")).strip().lower()
    except PySparkException:
        return False
    match = re.fullmatch(r"(-?\d+)\s*([a-z]*)", text)
    if match is None or match[2] not in _UNITS:
        return False
    return num_rows * width_of(frame.schema) <= int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Dimension:
    """One join of a star: the other side, ready to be joined, and what it says about the fact."""

    frame: DataFrame
    on: Mapping[str, str]
    kind: JoinKind
    names_are_equal: bool
    filters: tuple[FactFilter, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DimensionRequest:
    """One requested join; the left keys are the fact's columns unless an earlier dimension provided some of them."""

    spark: SparkSession
    fact: "Scan"
    pairs: Mapping[str, str]
    kind: JoinKind
    limits: BuildLimits
    names_are_equal: bool
    keys_are_of_fact: bool

    def with_dimension(self, dimension: "Scan | DataFrame") -> Dimension:
        """The other side, ready to be joined, and what it says about the fact."""
        notes = [reason] if (reason := self._why_not_filter(dimension)) is not None else []
        if isinstance(dimension, DataFrame):
            schema, read = dimension.schema, dimension
            side = BuildSide(None) if notes else keys_of_frame(dimension, list(self.pairs.values()), self.limits)
        else:
            side_notes: list[str] = []
            schema, read = spark_schema(dimension.schema), self._within_fact(dimension, side_notes)
            side = self._collected(read, filters_fact=not notes)
            notes += side_notes
        if side.rows is not None:
            frame = self.spark.createDataFrame(side.rows, schema=schema)
        else:
            frame = read if isinstance(read, DataFrame) else dataframe(self.spark, read)
        filters: list[FactFilter] = []
        why_not = side.why_not
        if side.keys is not None:
            try:
                distinct_keys(side.keys, self.fact.key_fields(list(self.pairs)), list(self.pairs))
            except (
                OptionError
            ) as error:  # a type that Spark shows as text, such as UUID, may be another type in the fact
                why_not = str(error)
        if side.keys is not None and why_not is None:
            text = f"fact filtered by {side.keys.num_rows} collected keys of {', '.join(self.pairs)}"
            filters.append(FactFilter(tuple(self.pairs), side.keys, text))
            if self.kind.filters_dimension and broadcastable(self.spark, frame, side.keys.num_rows):
                frame = f.broadcast(frame)
        elif why_not is not None:
            notes.append(f"no filter by keys: {why_not}")
            if not isinstance(dimension, DataFrame):
                filters = self._induced(dimension)
        return Dimension(frame, self.pairs, self.kind, self.names_are_equal, tuple(filters), tuple(notes))

    def _why_not_filter(self, dimension: "Scan | DataFrame") -> str | None:
        if not self.kind.filters_fact:
            return f"no filter on the fact: a {self.kind.name} join gives its rows without partner, too"
        left = spark_schema(self.fact.schema)
        right: st.StructType = dimension.schema if isinstance(dimension, DataFrame) else spark_schema(dimension.schema)
        if not all(are_joined_exactly(left[a].dataType, right[b].dataType) for a, b in self.pairs.items()):
            return "no filter on the fact: Spark casts the keys, and compares other values than a filter would"
        return None

    def _collected(self, dimension: "Scan", *, filters_fact: bool) -> BuildSide:
        """Read keys and rows of a scan; if the keys would not filter the fact, only rows that Spark would read in Python."""
        if not filters_fact and not dimension.predicates:
            return BuildSide(None)
        plans = dimension.plan(), self.fact.plan()
        build, probe = (sum(task.data_file.record_count for task in plan.tasks) for plan in plans)
        if build > max(probe, 1):  # costs more than it saves
            reason = f"the dimension has up to {build} rows, the fact {probe}"
            return BuildSide(None, reason if filters_fact else None)
        ((name, other), *more) = self.pairs.items()
        # combinations of several columns may remove much even if every value of each column occurs
        is_plain = filters_fact and not more and self._are_comparable(dimension, name, other)
        if is_plain and may_cover(dimension, other, self.fact, name, plans=plans):
            return BuildSide(None, "according to statistics, the dimension may contain all keys of the fact table")
        found = keys_of_scan(dimension, list(self.pairs.values()), self.limits)
        return found if filters_fact else BuildSide(None, None, found.rows)

    def _induced(self, dimension: "Scan") -> list[FactFilter]:
        """Derive a filter of the fact from statistics of the dimension."""
        if not dimension.predicates and not dimension.joins:
            return []
        return [
            FactFilter(
                (name,),
                induced_ranges(dimension, other, self.limits.max_ranges),
                f"fact planned within the ranges that statistics of the dimension give for {name}",
            )
            for name, other in self.pairs.items()
            if self._are_comparable(dimension, name, other)
        ]

    def _within_fact(self, dimension: "Scan", notes: list[str]) -> "Scan":
        """Narrow the dimension to ranges that can match, by statistics of the fact."""
        may_filter = self.kind.filters_dimension and self.keys_are_of_fact
        if may_filter and (self.fact.predicates or self.fact.joins):
            for name, other in self.pairs.items():
                if self._are_comparable(dimension, name, other):
                    dimension = dimension.prefilter(other, induced_ranges(self.fact, name, self.limits.max_ranges))
                    notes.append(f"dimension read within the ranges that statistics of the fact give for {other}")
        return dimension

    def _are_comparable(self, dimension: "Scan", name: str, other: str) -> bool:
        return are_comparable(self.fact.key_fields([name])[0], dimension.key_fields([other])[0])


@dataclass(frozen=True)
class StarJoin:
    """A fact table and the dimensions it was joined with, in order."""

    spark: SparkSession
    fact: "Scan"
    reader: Reader
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
    reader: Reader = "auto",
    limits: BuildLimits | None = None,
) -> DataFrame:
    """Join `fact` with `dimension`, reading the fact only where rows can match.

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
            other = dimension if isinstance(dimension, DataFrame) else dataframe(session, dimension)
            return _joined(fact, Dimension(other, pairs, kind, names_are_equal, (), ()))
        star = known
    else:
        star = StarJoin(session, fact, reader)
    other_names = dimension.columns if isinstance(dimension, DataFrame) else dimension.schema.names
    for side, names, wanted in (("fact", star.fact.schema.names, pairs), ("dimension", other_names, pairs.values())):
        if missing := [name for name in wanted if name not in names]:
            raise OptionError(f"the {side} has no column {missing[0]!r}; it has {', '.join(names)}")
    keys_are_of_fact = not any(d.kind.keeps_dimension for d in star.dimensions)
    request = DimensionRequest(session, star.fact, pairs, kind, limits, names_are_equal, keys_are_of_fact)
    star = replace(star, dimensions=(*star.dimensions, request.with_dimension(dimension)))
    reading = read_fact(session, star.fact, [x for d in star.dimensions for x in d.filters], star.reader)
    frame = reading.frame
    for step in star.dimensions:
        frame = _joined(frame, step)
    _stars[frame] = replace(star, reading=reading)
    return frame


def explain_join(frame: DataFrame) -> str:
    """Explain how the dimensions' keys narrow the fact, why not further, and what they removed in tasks so far.

    Raises:
        OptionError: `frame` was not returned by `join` (one derived from it does not count).
    """
    star = _stars.get(frame)
    if star is None:
        raise OptionError("only a DataFrame that join() returned can be explained, not one derived from it")
    lines = [f"join of {star.fact.table.location}"]
    for step in star.dimensions:
        lines.append(f"  {step.kind.name} join on {', '.join(step.on)}")
        lines += [f"    {x.text}" for x in step.filters]
        lines += [f"    {note}" for note in step.notes]
    if star.reading is not None:
        lines += star.reading.explained()
    return "\n".join(lines)


def _joined(fact: DataFrame, step: Dimension) -> DataFrame:
    if step.names_are_equal:
        return fact.join(step.frame, list(step.on), step.kind.name)
    conditions = [fact[quoted_name(a)] == step.frame[quoted_name(b)] for a, b in step.on.items()]
    return fact.join(step.frame, conditions, step.kind.name)


def _session(*sides: "Scan | DataFrame") -> SparkSession:
    for side in sides:
        if isinstance(side, DataFrame):
            return side.sparkSession
    found = SparkSession.getActiveSession()
    if found is None:
        raise OptionError("no Spark session is active: pass spark=...")
    return found


@dataclass(frozen=True, slots=True)
class Prefiltered:
    """A scan from which rows without a match may have been removed.

    Attributes:
        scan: the narrowed scan, or the original.
        what: what narrowed it, in words; empty if nothing did.
        why_not_by_keys: why keys were not collected, if they were not.
    """

    scan: "Scan"
    what: str = ""
    why_not_by_keys: str = ""


def prefilter_by_keys(
    scan: "Scan", columns: Sequence[str], keys: "Scan", key_columns: Sequence[str], limits: BuildLimits | None = None
) -> Prefiltered:
    """Narrow `scan` by the keys of another scan, read in this process, or by its statistics if reading costs too much.

    Args:
        scan: scan whose rows are needed only if they have a match.
        columns: join columns of `scan`.
        keys: scan of the other side.
        key_columns: columns of the other side, compared with `columns` in order, as Spark compares them.
        limits: of what is collected.
    """
    limits = limits or BuildLimits()
    found = _keys_of_partners(scan, columns, keys, key_columns, limits)
    if isinstance(found, pa.Table):
        return Prefiltered(scan.prefilter(columns, found), f"{found.num_rows} rows of keys")
    return replace(prefilter_by_ranges(scan, columns, keys, key_columns, limits), why_not_by_keys=found)


def prefilter_by_ranges(
    scan: "Scan", columns: Sequence[str], keys: "Scan", key_columns: Sequence[str], limits: BuildLimits | None = None
) -> Prefiltered:
    """Narrow `scan` to key ranges from the file statistics of another scan, without reading its data."""
    limits = limits or BuildLimits()
    names = [
        ours for ours, theirs in zip(columns, key_columns, strict=True) if _are_keys_alike(scan, ours, keys, theirs)
    ]
    pairs = dict(zip(columns, key_columns, strict=True))
    for name in names:
        scan = scan.prefilter(name, induced_ranges(keys, pairs[name], limits.max_ranges))
    return Prefiltered(scan, f"ranges of {', '.join(names)} that statistics give" if names else "")


def _keys_of_partners(
    scan: "Scan", columns: Sequence[str], keys: "Scan", key_columns: Sequence[str], limits: BuildLimits
) -> pa.Table | str:
    try:
        left, right = spark_schema(scan.select(*columns).schema), spark_schema(keys.select(*key_columns).schema)
        scan.key_fields(columns)
        keys.key_fields(key_columns)
    except (OptionError, UnsupportedError) as error:
        return str(error)
    if not all(are_joined_exactly(a.dataType, b.dataType) for a, b in zip(left.fields, right.fields, strict=True)):
        return "Spark casts the keys, and compares other values than a filter would"
    plans = keys.plan(), scan.plan()
    is_one = len(columns) == 1 and _are_keys_alike(scan, columns[0], keys, key_columns[0])
    if is_one and may_cover(keys, key_columns[0], scan, columns[0], plans=plans):
        return "according to statistics, these may be all keys"
    side = keys_of_scan(keys.select(*key_columns), key_columns, limits)
    if side.keys is None:
        return str(side.why_not)
    try:  # a type that Spark shows as text, such as UUID, may be another type here
        distinct_keys(side.keys, scan.key_fields(columns), columns)
    except OptionError as error:
        return str(error)
    return side.keys


def _are_keys_alike(scan: "Scan", ours: str, keys: "Scan", theirs: str) -> bool:
    try:
        return are_comparable(scan.key_fields([ours])[0], keys.key_fields([theirs])[0])
    except OptionError:
        return False
