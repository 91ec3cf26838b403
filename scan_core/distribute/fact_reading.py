"""How the fact of a join is read: by which reader, with which filters.

Files that no key falls into are left out in planning, whoever reads the others; which reader that is, and what it does with
the keys, is told in `prefilter_reading.py`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from scan_core.distribute.join_keys import width_of
from scan_core.distribute.prefilter_reading import within_keys
from scan_core.runtime_filter.explain import explain_filters
from scan_core.runtime_filter.induced import KeyRangeSource

if TYPE_CHECKING:
    from scan_core.scan import Scan

Reader = Literal["auto", "python", "native"]
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


@dataclass(frozen=True)
class FactReading:
    """The fact as a DataFrame, and how it came to be.

    Attributes:
        frame: rows of the fact; it may lack rows without partner.
        source: what `dataframe` returned, before conditions that only Spark's own reader needs.
        scan: with what the dimensions say.
        conditions: columns on which Spark's reader was given conditions.
    """

    frame: DataFrame
    source: DataFrame
    scan: "Scan"
    conditions: tuple[str, ...] = ()

    def explained(self) -> Iterator[str]:
        """The reader and why, what keys left out in planning, and what tasks made of them so far."""
        from scan_core.distribute.spark import choice_of, reports_of

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
    """The fact as a DataFrame that may lack rows without partner."""
    from scan_core.distribute.spark import choice_of, dataframe, register

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
    """Whether so many rows fit into what the session broadcasts; Spark does not know the size of a Python source."""
    try:
        text = str(spark.conf.get("spark.sql.autoBroadcastJoinThreshold")).strip().lower()
    except PySparkException:
        return False
    match = re.fullmatch(r"(-?\d+)\s*([a-z]*)", text)
    if match is None or match[2] not in _UNITS:
        return False
    return num_rows * width_of(frame.schema) <= int(match[1]) * _UNITS[match[2]]
