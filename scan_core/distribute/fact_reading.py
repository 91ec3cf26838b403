"""How the fact of a join is read: by which reader, with which filters.

Few rows left: the python reader, which looks each row up before it crosses to the JVM. Otherwise Spark's own reader, with
the keys' least and greatest values as conditions that it prunes row groups by.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from scan_core.runtime_filter.induced import KeyRangeSource

if TYPE_CHECKING:
    from scan_core.plan.planner import ScanPlan
    from scan_core.scan import Scan

Reader = Literal["auto", "python", "native"]
PYTHON_SHARE = 0.2
"""Of the rows left, up to which looking them up in Python beats handing all of them to the JVM."""
_SIZES = ((st.StringType, 20), (st.BinaryType, 100), (st.DecimalType, 16), (st.BooleanType, 1))
"""Bytes of a value as Spark estimates them; 8 for others."""
_UNITS = {"": 1, "b": 1, "k": 1024, "kb": 1024, "m": 1024**2, "mb": 1024**2, "g": 1024**3, "gb": 1024**3}


@dataclass(frozen=True)
class FactFilter:
    """What one dimension says about the fact: keys of some columns, or ranges of one."""

    columns: tuple[str, ...]
    keys: pa.Table | KeyRangeSource
    text: str

    @classmethod
    def by_keys(cls, columns: tuple[str, ...], keys: pa.Table) -> "FactFilter":
        """Collected keys."""
        return cls(columns, keys, f"fact filtered by {keys.num_rows} collected keys of {', '.join(columns)}")

    @classmethod
    def by_ranges(cls, column: str, ranges: KeyRangeSource) -> "FactFilter":
        """Ranges that statistics of the dimension give."""
        return cls(
            (column,), ranges, f"fact planned within the ranges that statistics of the dimension give for {column}"
        )


def read_fact(spark: SparkSession, fact: "Scan", filters: Sequence[FactFilter], reader: Reader) -> DataFrame:
    """The fact as a DataFrame that may lack rows without partner."""
    from scan_core.distribute.spark import dataframe, register

    if not filters:
        return dataframe(spark, fact, reader)
    filtered = fact
    for x in filters:
        filtered = filtered.prefilter(x.columns, x.keys)
    register(spark)
    if reader != "native" and (reader == "python" or _share_left(fact, filtered) <= PYTHON_SHARE):
        return dataframe(spark, filtered, "python")
    frame = dataframe(spark, fact, reader)
    for x in filters:
        if isinstance(x.keys, pa.Table):
            frame = _within_bounds(frame, x.columns, x.keys)
    return frame


def broadcastable(spark: SparkSession, frame: DataFrame, num_rows: int) -> bool:
    """Whether so many rows fit into what the session broadcasts; Spark does not know the size of a Python source."""
    try:
        text = str(spark.conf.get("spark.sql.autoBroadcastJoinThreshold")).strip().lower()
    except PySparkException:
        return False
    match = re.fullmatch(r"(-?\d+)\s*([a-z]*)", text)
    if match is None or match[2] not in _UNITS:
        return False
    width = sum(
        next((size for kind, size in _SIZES if isinstance(field.dataType, kind)), 8) for field in frame.schema.fields
    )
    return num_rows * width <= int(match[1]) * _UNITS[match[2]]


def _share_left(fact: "Scan", filtered: "Scan") -> float:
    """Of the fact's rows, those that are expected to be left; 1 if nothing tells."""
    everything, left = fact.plan(), filtered.plan()
    total, kept = _num_rows(everything), _num_rows(left)
    shares = [x.decision.share for x in left.context.runtime_filters if x.decision.share is not None]
    return kept / total * min(shares, default=1.0) if total else 0.0


def _num_rows(plan: "ScanPlan") -> int:
    return sum(task.data_file.record_count for task in plan.tasks)


def _within_bounds(frame: DataFrame, columns: Sequence[str], keys: pa.Table) -> DataFrame:
    """Rows between the least and the greatest key, as conditions that Spark's own reader prunes by."""
    for name, column in zip(columns, keys.columns, strict=True):
        kind = frame.schema[name].dataType
        ends = _ends(column)
        if ends is not None and isinstance(kind, st.IntegralType | st.DateType | st.StringType):
            low, high = (f.lit(end) for end in ends)
            frame = frame.filter((frame[f"`{name}`"] >= low) & (frame[f"`{name}`"] <= high))
    return frame


def _ends(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_string(kind)):
        return None
    found = pc.min_max(column)
    low, high = found["min"].as_py(), found["max"].as_py()
    return None if low is None else (low, high)
