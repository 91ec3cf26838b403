"""The rows that a run has staged, read back by the engine from exactly the files of that run."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from checks.manifest_facts import compare_manifests
from checks.result import CheckResult
from pipelines.published.audit import StagedRows
from scan_core.metrics import ScanMetrics
from scan_core.plan.planner import ScanPlan
from scan_core.read.public_types import public_batch
from scan_core.read.read_ahead import FilesAhead
from scan_core.read.split_reader import count_split, read_split
from scan_core.scan import Scan
from scan_core.split import Split
from scan_core.table import open_table

COMPLETE = "published_rows_are_complete"


def rows_are_complete(staged: StagedRows) -> CheckResult:
    """The staged snapshot has all rows that the tasks wrote, and no others in partitions that are replaced."""
    scan = staged_scan(staged)
    plan = scan.plan()
    own = _own(plan, staged)
    paths = staged.paths
    found = sum(scan.run(own, _count))
    details = []
    if missing := len(paths) - len({task.data_file.path for task in own.tasks}):
        details.append(f"{missing} files of the run are not in the snapshot")
    if found != staged.num_rows:
        details.append(f"tasks wrote {staged.num_rows:,} rows, the snapshot holds {found:,}")
    if staged.mode == "replace":
        values = staged.values
        others = sum(
            (task.data_file.path in paths) is not (values is None or task.data_file.partition[0] in values)
            for task in plan.tasks
        )
        if others:
            details.append(f"{others} files are not in the partitions that were made, or in them and of other runs")
    return CheckResult(COMPLETE, not details, {"rows written": staged.num_rows, "rows found": found}, details=details)


def staged_manifests_match_files(staged: StagedRows) -> CheckResult:
    """What manifests of the staged snapshot say of files is so, as far as the snapshot that it builds upon did not say it."""
    table = open_table(staged.staged.table)
    snapshot = table.metadata.snapshots[staged.staged.committed.snapshot_id]
    return compare_manifests(table, snapshot, since=staged.staged.base_id)


def staged_scan(staged: StagedRows) -> Scan:
    """All rows of the staged snapshot."""
    return open_table(staged.staged.table).scan().as_of_snapshot(staged.staged.committed.snapshot_id)


def staged_table(staged: StagedRows) -> pa.Table:
    """The rows of the run alone."""
    scan = staged_scan(staged)
    schema = scan.arrow_schema
    batches = [public_batch(batch, schema) for batch in scan.run(_own(scan.plan(), staged), read_split)]
    return pa.Table.from_batches(batches, schema=schema)


def _own(plan: ScanPlan, staged: StagedRows) -> ScanPlan:
    paths = staged.paths
    return replace(plan, tasks=[task for task in plan.tasks if task.data_file.path in paths])


def _count(split: Split, metrics: ScanMetrics, ahead: FilesAhead) -> Iterator[int]:
    yield count_split(split, metrics, ahead)
