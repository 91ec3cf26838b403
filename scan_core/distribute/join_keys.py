"""The join keys of a dimension, collected on the driver up to a limit: all of them, or none and the reason why.

A limit that is reached means no filter, never a cut list. A DataFrame is collected as a whole, and joined as what was
collected: asked twice, it might give other rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as st

if TYPE_CHECKING:
    from scan_core.scan import Scan

_WHOLE_NUMBERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_FLOATS = (st.FloatType, st.DoubleType)
_COLLECTED = (
    *(*_WHOLE_NUMBERS, *_FLOATS, st.DecimalType, st.StringType, st.BinaryType, st.BooleanType),
    *(st.DateType, st.TimestampType, st.TimestampNTZType),
)
_MOST_DIGITS = 38


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
        rows: of a DataFrame all that was collected, which is joined in its place.
    """

    keys: pa.Table | None
    why_not: str | None = None
    rows: pa.Table | None = None


def keys_of_scan(dimension: "Scan", columns: Sequence[str], limits: BuildLimits) -> BuildSide:
    """The keys of a scan, read in this process."""
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in dimension.select(*columns).to_batches():
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if (reason := _too_much(rows, size, limits)) is not None:
            return BuildSide(None, reason)
        batches.append(batch)
    schema = dimension.select(*columns).arrow_schema
    return BuildSide(pa.Table.from_batches(batches, schema=schema))


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


def _digits(kind: st.DataType) -> tuple[int, int]:
    """Before and after the point."""
    if isinstance(kind, st.DecimalType):
        return kind.precision - kind.scale, kind.scale
    return 20, 0


def _too_much(rows: int, size: int, limits: BuildLimits) -> str | None:
    if rows > limits.max_rows:
        return f"the dimension has more than {limits.max_rows} rows (max_rows)"
    return f"the dimension takes more than {limits.max_bytes} bytes (max_bytes)" if size > limits.max_bytes else None
