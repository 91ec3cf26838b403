"""What tasks reported of one read."""

import json

from nevermore.scan_core import ScanMetrics
from nevermore.scan_core.spark import TaskReports


def of_last_stage(reports: TaskReports) -> ScanMetrics:
    """Metrics of the newest read of a relation; those of the plan if no task has reported."""
    paths = [reports.directory / "plan.json"]
    if reports.stage_ids:
        paths += reports.directory.glob(f"stage-{reports.stage_ids[-1]:06}-split-*.json")
    return sum((ScanMetrics(**json.loads(p.read_text())["metrics"]) for p in paths if p.exists()), ScanMetrics())
