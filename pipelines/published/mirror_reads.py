"""What a publication reads: scans of mirrors at fixed snapshots, and temporary views of them in Spark.

Imports pyspark.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from pipelines.catalog import find_table
from pipelines.errors import PublishError
from pipelines.published.query import PublishedQuery
from scan_core.distribute.spark import dataframe, reports_of
from scan_core.distribute.task_reports import TaskReports
from scan_core.metrics import ScanMetrics
from scan_core.scan import Scan
from scan_core.table import open_table


@dataclass(frozen=True, slots=True)
class MirrorRead:
    """What one table gave to a publication. `metrics` adds up planning and all tasks."""

    snapshot_id: int | None
    columns: tuple[str, ...]
    where: str | None
    metrics: ScanMetrics


def mirror_scans(catalog: Any, query: PublishedQuery) -> dict[str, Scan]:
    """A scan of each mirror with the columns that the query needs.

    Raises:
        PublishError: a mirror does not exist yet.
    """
    scans = {}
    for name in query.tables:
        mirror = find_table(catalog, name)
        if mirror is None:
            raise PublishError(f"published {query.name} reads {name}, which does not exist yet: ingest it first")
        scans[name] = open_table(mirror).scan()
    columns = query.columns({name: scan.schema for name, scan in scans.items()})
    return {name: scan.select(*columns[name]) for name, scan in scans.items()}


@contextmanager
def views_of(
    spark: SparkSession, scans: Mapping[str, Scan], reports_folder: str | None
) -> Iterator[tuple[dict[str, str], dict[str, TaskReports]]]:
    """Names of temporary views of the scans, and what their tasks will report.

    By our own reader, for its tasks tell what they read. Sessions are shared and Spark's Python sources do not work in `newSession()`: the names are ours alone.
    """
    token = uuid4().hex[:12]
    frames = {
        table: dataframe(spark, scan, reader="python", metrics_dir=_fresh(reports_folder))
        for table, scan in scans.items()
    }
    names = {table: f"nevermore_{token}_{number}" for number, table in enumerate(frames)}
    try:
        for table, frame in frames.items():
            frame.createTempView(names[table])
        yield names, {table: reports_of(frame) for table, frame in frames.items()}
    finally:
        for view in names.values():
            spark.catalog.dropTempView(view)


def snapshots_read(scans: Mapping[str, Scan]) -> dict[str, int]:
    """The snapshots that are read, by table."""
    return {name: scan.snapshot.snapshot_id for name, scan in scans.items() if scan.snapshot}


def read_of(scan: Scan, metrics: ScanMetrics) -> MirrorRead:
    """The facts of a scan that was read."""
    where = " and ".join(str(p) for p in scan.predicates) or None
    snapshot_id = scan.snapshot.snapshot_id if scan.snapshot else None
    return MirrorRead(snapshot_id, scan.columns or (), where, metrics)


def _fresh(folder: str | None) -> str | None:
    """A folder of its own for the reports of one read."""
    return folder and f"{folder}/{uuid4().hex}"
