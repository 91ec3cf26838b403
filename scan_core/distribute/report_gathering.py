"""Reports of tasks fetched from the hosts of a cluster, where driver and workers share no folder.

Tasks leave their reports in a folder of their own host. A small Spark job with more tasks than the cluster runs at once
reaches every host, and hands back what lies there; reports are named by stage and split, so that none counts twice.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from scan_core.distribute.task_reports import reports_here, write_report

_TASKS_PER_SLOT = 2
"""The first wave fills every slot of every executor."""


def fetching(spark: SparkSession, parallelism: int) -> Callable[[Path], None] | None:
    """How to bring reports from workers' hosts into a folder of this one; None where workers run on this host."""
    if str(spark.conf.get("spark.master", "local")).startswith("local["):
        return None
    return partial(_fetch, spark, parallelism)


def _fetch(spark: SparkSession, parallelism: int, folder: Path) -> None:
    number = _TASKS_PER_SLOT * parallelism
    rows = spark.range(0, number, 1, number).mapInArrow(partial(_reports_here, str(folder)), "name string, text string")
    found = rows.distinct().toArrow()
    for name, text in zip(found["name"].to_pylist(), found["text"].to_pylist(), strict=True):
        write_report(folder, Path(name).name, text)


def _reports_here(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        found = reports_here(Path(folder))
        names, texts = pa.array(list(found), pa.string()), pa.array(list(found.values()), pa.string())
        yield pa.RecordBatch.from_pydict({"name": names, "text": texts})
