"""What runs of published tables report: metadata of materializations, and whether the table holds what was written."""

from collections.abc import Sequence

import dagster as dg
from sqlglot import exp

from checks.publish_checks import ProjectAuditor
from pipelines.catalog import find_table, open_catalog
from pipelines.config import Config
from pipelines.published.audit import CheckFailedError
from pipelines.published.entries import published_entry
from pipelines.published.partition import NULL_KEY
from pipelines.published.refresh import publish
from pipelines.published.refresh_report import PublishReport
from pipelines.published.slice_conditions import scan_condition
from scan_core.metrics import ScanMetrics
from scan_core.scan import Scan
from scan_core.table import open_table

MOST_TOLD = 50
"""Partitions whose reason is shown on a materialization."""


def checked_publish(
    config: Config, name: str, *, partitions: Sequence[str] = (), master: str | None = None
) -> PublishReport:
    """Publish from mirrors whose checks have passed, whichever run has written them.

    Raises:
        dagster.Failure: a check failed; the run is not tried again, as the rows would be the same.
    """
    try:
        return publish(config, name, partitions=partitions, master=master, auditor=ProjectAuditor())
    except CheckFailedError as error:
        failed = {f"{v.table}: {v.check}": dg.TextMetadataValue(v.text) for v in error.verdicts if not v.passed}
        raise dg.Failure(str(error), metadata=failed, allow_retries=False) from error


def refresh_metadata(report: PublishReport) -> dict[str, dg.MetadataValue]:
    """Metadata of one run of `publish`: what was made, why, and from what."""
    values = _metadata(
        report.metrics,
        rows=report.rows,
        data_files=report.data_files,
        bytes_written=report.bytes_written,
        snapshot_id=report.snapshot_id,
    )
    values["reason"] = dg.TextMetadataValue(report.reason)
    values["partitions made"] = (
        dg.TextMetadataValue("all") if report.partitions is None else dg.IntMetadataValue(len(report.partitions))
    )
    if report.why:
        values["why"] = dg.JsonMetadataValue({key: list(why) for key, why in list(report.why.items())[:MOST_TOLD]})
    if len(report.rows_by_partition) > 1:
        rows = dict(list(report.rows_by_partition.items())[:MOST_TOLD])
        values["rows by partition"] = dg.JsonMetadataValue(rows)
    if report.checks:
        told = {f"{verdict.table}: {verdict.check}": verdict.text for verdict in report.checks}
        values["checks before publishing"] = dg.JsonMetadataValue(told)
    for table, count in report.changed_rows.items():
        values[f"changed rows of {table}"] = dg.IntMetadataValue(count)
    for table, read in report.reads.items():
        values[f"snapshot id of {table}"] = dg.TextMetadataValue(str(read.snapshot_id))
    return values


def count_made(config: Config, report: PublishReport) -> int:
    """Rows of the partitions that a run made, read back through scan_core from its snapshot."""
    table = find_table(open_catalog(config), report.name)
    if table is None or report.snapshot_id is None:
        return 0
    scan = open_table(table).scan().as_of_snapshot(report.snapshot_id)
    if report.partitions is None:
        return scan.count()
    return sum(_count_of(scan, config, report.name, key) for key in report.partitions)


def _count_of(scan: Scan, config: Config, name: str, key: str) -> int:
    partition = published_entry(config, name).partitioning
    if partition is None:
        return scan.count()
    quoted = "`" + partition.column.replace("`", "``") + "`"
    if key == NULL_KEY:
        return scan.where(f"{quoted} is null").count()
    kind = scan.schema.find(partition.column).type
    physical = partition.physical(key, kind)
    condition = scan_condition(exp.column(partition.column), scan.schema, partition, {physical})
    if condition is None:  # values without a literal: what the manifests say of the partition
        files = (task.data_file for task in scan.plan().tasks)
        return sum(file.record_count for file in files if file.partition[0] == physical)
    return scan.where(condition.sql).count()


def _metadata(
    metrics: ScanMetrics, *, rows: int, data_files: int, bytes_written: int, snapshot_id: int | None
) -> dict[str, dg.MetadataValue]:
    removed = metrics.rows_removed_by_position_deletes + metrics.rows_removed_by_equality_deletes
    return {
        "dagster/partition_row_count": dg.IntMetadataValue(rows),
        "rows removed by deletes": dg.IntMetadataValue(removed),
        "rows read": dg.IntMetadataValue(metrics.rows_out),
        "data files": dg.IntMetadataValue(data_files),
        "bytes written": dg.IntMetadataValue(bytes_written),
        "bytes read": dg.IntMetadataValue(metrics.bytes_read),
        "bytes skipped": dg.IntMetadataValue(metrics.bytes_skipped),
        "snapshot id": dg.TextMetadataValue(str(snapshot_id)),
    }
