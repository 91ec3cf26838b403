"""The data source `format("nevermore")`: splits are planned on the driver, a task reads one split.

Only rows of the result cross to the JVM, as Arrow batches. Columns and predicate arrive as options. `pushFilters` is
never overridden: up to Spark 4.3 a pushed filter leaks into other uses of the same DataFrame, which silently loses rows.
"""

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from scan_core.distribute.index_sharing import with_shared_indexes
from scan_core.distribute.row_shares import share_row_groups
from scan_core.distribute.source_options import SourceOptions
from scan_core.distribute.spark_batches import conform
from scan_core.distribute.spark_types import arrow_schema_of, spark_schema
from scan_core.distribute.split_packing import pack_splits, unpack_split
from scan_core.distribute.task_reports import TaskReports
from scan_core.distribute.worker_archives import keep_archives_of_spark
from scan_core.errors import OptionError, ScanError
from scan_core.metrics import ScanMetrics
from scan_core.native.compiled import is_missed
from scan_core.private_files import UnsafeFileError
from scan_core.read.split_reader import read_split

FORMAT = "nevermore"
_log = logging.getLogger(__name__)
SPLITS_PER_CORE = 2
"""Two keep every core busy to the end; more only add the cost of starting a task."""
_SLACK = 9 / 8
"""Files that weigh about the same shall not leave a small split over that every core waits for."""
MIN_SPLIT_BYTES = 4 * 1024**2
"""Below this, handing a task to a Python worker costs more than reading it."""


class NevermoreDataSource(DataSource):  # type: ignore[misc] # pyspark is not typed for mypy here
    """`format("nevermore")`; options are those of `SourceOptions`."""

    @classmethod
    def name(cls) -> str:
        """What SQL and `format()` call it."""
        return FORMAT

    def schema(self) -> st.StructType:
        """All columns of the scan, unless `.schema(...)` chose some."""
        with _without_traceback():
            return spark_schema(SourceOptions.parse(self.options).scan().schema)

    def reader(self, schema: st.StructType) -> "NevermoreReader":
        """A reader of the columns of `schema`. Spark asks once per load: every use of a DataFrame reads one snapshot."""
        keep_archives_of_spark()  # here Spark plans, in a worker that it may use again
        with _without_traceback():
            return NevermoreReader(SourceOptions.parse(self.options), schema)


@dataclass(frozen=True, slots=True)
class SplitPartition(InputPartition):  # type: ignore[misc]
    """One split, as bytes that only its task unpacks."""

    index: int
    num_splits: int
    split: bytes


class NevermoreReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver (when made), reads in tasks (`read`).

    Spark pickles a reader once for all of its tasks: what splits share travels with it.
    """

    def __init__(self, options: SourceOptions, schema: st.StructType) -> None:
        """Args: what to read, and the schema Spark was told: its names choose the columns."""
        self._schema = schema
        self._metrics_dir = options.metrics_dir
        scan = options.scan().select(*schema.names)
        _require_same_types(spark_schema(scan.schema), schema)
        plan = scan.plan()
        split_bytes = fair_split_bytes(plan.total_bytes, options.parallelism, plan.context.options.split_bytes)
        splits = tuple(share_row_groups(plan.splits(split_bytes), split_bytes))
        if self._metrics_dir is not None:
            TaskReports(self._metrics_dir).write_plan(plan.metrics, len(splits))
        packed = pack_splits(splits)
        self._shared = packed.shared
        self._partitions = [SplitPartition(index, len(splits), split) for index, split in enumerate(packed.splits)]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_partitions": []}

    def partitions(self) -> list[InputPartition]:
        """One partition per split."""
        return list(self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, conformed to the declared schema."""
        if not isinstance(partition, SplitPartition):
            return  # Spark makes one empty partition of an empty list
        keep_archives_of_spark()
        target = arrow_schema_of(self._schema)
        split = unpack_split(self._shared, partition.split)
        split = replace(split, context=with_shared_indexes(split.context))
        metrics = ScanMetrics(fallbacks=is_missed(split.context.options))
        try:
            with _without_traceback():
                for batch in read_split(split, metrics):
                    yield conform(batch, target)
        finally:
            task = TaskContext.get()
            if self._metrics_dir is not None and task is not None:
                try:
                    TaskReports(self._metrics_dir).write_task(
                        task.stageId(), partition.index, metrics, partition.num_splits
                    )
                except UnsafeFileError as error:  # whoever makes that folder first on this host must not stop the query
                    _log.warning("the report of a task is missing: %s", error)


def fair_split_bytes(total_bytes: int, parallelism: int, most: int) -> int:
    """What splits should weigh, at most `most`, so that tasks keep every core busy and are worth their start."""
    fair_bytes = math.ceil(_SLACK * total_bytes / (SPLITS_PER_CORE * parallelism))
    return max(MIN_SPLIT_BYTES, min(most, fair_bytes))


@contextmanager
def _without_traceback() -> Iterator[None]:
    """Let Spark's message of an error begin with what the error says: a Python worker asks this variable, and then ends."""
    try:
        yield
    except ScanError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _require_same_types(table: st.StructType, declared: st.StructType) -> None:
    for have, want in zip(table, declared, strict=True):
        if have.dataType.simpleString() != want.dataType.simpleString():
            raise OptionError(
                f"column {want.name!r} is {have.dataType.simpleString()}, the schema given to Spark says "
                f"{want.dataType.simpleString()}"
            )
