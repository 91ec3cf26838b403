"""Rows of a mirror that came or went, as a DataFrame: Spark's tasks read them, and no row is held by the driver.

Imports pyspark. Rows that went and came again with equal values, as compactions leave them, cancel out by a shuffle.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType

from scan_core.changes.request import Changes
from scan_core.changes.row_changes import ChangeType, read_changes
from scan_core.distribute.spark import parallelism_of
from scan_core.distribute.spark_batches import conform
from scan_core.distribute.spark_source import SPLITS_PER_CORE
from scan_core.distribute.spark_types import arrow_schema_of, spark_schema
from scan_core.distribute.worker_archives import keep_archives_of_spark
from scan_core.metrics import ScanMetrics
from scan_core.schema import PrimitiveType

TIMES = "_nevermore_times"
"""The last column: how often a row came or went."""
_FLOATS = frozenset({"float", "double"})


def changed_rows(spark: SparkSession, changes: Changes) -> DataFrame | None:
    """Each row that came or went, in Spark's types, with `TIMES`; None if none did.

    Args:
        spark: whose tasks read.
        changes: with no columns but those of the result.
    """
    work = changes.work()
    if not work.splits:
        return None
    fields = changes.context.projection.fields
    schema = spark_schema(changes.context.projection)
    task_schema = StructType(
        [
            *(StructField(f"c{n}", column.dataType, column.nullable) for n, column in enumerate(schema)),
            StructField(TIMES, LongType()),
        ]
    )
    num_tasks = min(len(work.splits), SPLITS_PER_CORE * parallelism_of(spark))
    packed = [pickle.dumps(work.splits[n::num_tasks], protocol=5) for n in range(num_tasks)]
    # one part per task: of a single partition, round robin deals exactly one to each
    parts = spark.createDataFrame(pa.table({"splits": pa.array(packed, pa.binary())})).coalesce(1)
    read = parts.repartition(num_tasks).mapInArrow(_ReadChanges(arrow_schema_of(task_schema)), task_schema)
    # nested values are not compared: rows that were only moved then count as changed
    if work.compared is not None and all(isinstance(field.type, PrimitiveType) for field in fields):
        read = _net(read, [isinstance(x.type, PrimitiveType) and x.type.name in _FLOATS for x in fields])
    columns = [f.col(f"c{n}") for n in range(len(fields))]
    return read.select(*columns, f.abs(f.col(TIMES))).toDF(*schema.names, TIMES)


def _net(read: DataFrame, are_floats: Sequence[bool]) -> DataFrame:
    """Rows whose comings and goings do not cancel out, each once."""
    by, values = [], []
    for n, is_float in enumerate(are_floats):
        column = f.col(f"c{n}")
        # text tells -0.0 from 0.0, which a grouping takes for one
        by.append(column.cast("string").alias(f"t{n}") if is_float else column)
        values += [f.first(column).alias(f"c{n}")] if is_float else []
    return read.groupBy(*by).agg(f.sum(TIMES).alias(TIMES), *values).where(f.col(TIMES) != 0)


@dataclass(frozen=True, slots=True)
class _ReadChanges:
    """Reads parts of the work; pickled to the workers. Rows that went count -1."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives_of_spark()
        of_rows = pa.schema(list(self.schema)[:-1])
        for batch in batches:
            for packed in batch.column(0):
                for split in pickle.loads(packed.as_py()):  # noqa: S301 - of our own driver
                    for change, rows in read_changes(split, ScanMetrics()):
                        given = conform(rows, of_rows)
                        sign = pa.repeat(pa.scalar(-1 if change is ChangeType.DELETE else 1, pa.int64()), rows.num_rows)
                        yield pa.RecordBatch.from_arrays([*given.columns, sign], schema=self.schema)
