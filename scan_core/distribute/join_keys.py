"""The join keys of a dimension, collected on the driver up to a limit: all of them, or none and the reason why.

A limit that is reached means no filter, never a cut list. A dimension is collected as a whole where that fits, and joined
as what was collected: a scan would be read twice, a DataFrame might give other rows when asked again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as st

from scan_core.distribute.spark_batches import conform
from scan_core.distribute.spark_types import arrow_schema_of, spark_schema

if TYPE_CHECKING:
    from scan_core.scan import Scan

_WHOLE_NUMBERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_FLOATS = (st.FloatType, st.DoubleType)
_COLLECTED = (
    *(*_WHOLE_NUMBERS, *_FLOATS, st.DecimalType, st.StringType, st.BinaryType, st.BooleanType),
    *(st.DateType, st.TimestampType, st.TimestampNTZType),
)
_MOST_DIGITS = 38
_SIZES = ((st.StringType, 20), (st.BinaryType, 100), (st.DecimalType, 16), (st.BooleanType, 1))
"""Bytes of a value as Spark estimates them; 8 for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """How much of a dimension is collected.

    Attributes:
        max_rows: more rows mean no filter by keys.
        max_bytes: more bytes, as Arrow holds them, mean no filter by keys.
        max_ranges: of what statistics of the dimension tell about the fact.
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
    """The keys of a scan, read in this process, and its other columns with them if they fit and Spark takes them."""
    schema = spark_schema(dimension.schema)
    if all(isinstance(field.dataType, _COLLECTED) for field in schema) and _may_fit(dimension, schema, limits):
        found = _collected(dimension, columns, arrow_schema_of(schema), limits)
        if found.keys is not None or len(columns) == len(schema.fields):
            return found
    return _collected(dimension.select(*columns), columns, None, limits)


def _may_fit(dimension: "Scan", schema: st.StructType, limits: BuildLimits) -> bool:
    """Whether what is read may be so little, as far as the number of rows tells; a predicate may leave any number."""
    if dimension.predicates or dimension.joins or dimension.row_limit is not None:
        return True
    rows = sum(task.data_file.record_count for task in dimension.plan().tasks)
    return rows * width_of(schema) <= limits.max_bytes


def _collected(dimension: "Scan", columns: Sequence[str], target: pa.Schema | None, limits: BuildLimits) -> BuildSide:
    """What the scan gives, as `target` besides if there is one."""
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
    """The keys of a DataFrame, and its other columns with them."""
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
        return max(one, other) + max(one_scale, other_scale) <= _MOST_DIGITS
    if isinstance(fact, _FLOATS):
        return isinstance(dimension, _FLOATS)
    same = (st.BinaryType, st.BooleanType, st.DateType, st.TimestampType, st.TimestampNTZType)
    return isinstance(fact, same) and type(fact) is type(dimension)


def width_of(schema: st.StructType) -> int:
    """Bytes of a row as Spark estimates them."""
    return sum(next((size for kind, size in _SIZES if isinstance(field.dataType, kind)), 8) for field in schema.fields)


def _digits(kind: st.DataType) -> tuple[int, int]:
    """Before and after the point."""
    if isinstance(kind, st.DecimalType):
        return kind.precision - kind.scale, kind.scale
    return 20, 0


def _too_much(rows: int, size: int, limits: BuildLimits) -> str | None:
    if rows > limits.max_rows:
        return f"the dimension has more than {limits.max_rows} rows (max_rows)"
    return f"the dimension takes more than {limits.max_bytes} bytes (max_bytes)" if size > limits.max_bytes else None
