"""How the counts of distributed tasks come home: one small JSON file per task in a folder that all of them share.

Spark gives Python data sources neither accumulators nor custom metrics. A file named by stage and split is idempotent
instead: a retried or speculative task overwrites its own report, so nothing is counted twice.
"""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scan_core.metrics import ScanMetrics

_PLAN_FILE = "plan.json"


@dataclass(frozen=True, slots=True)
class TaskReports:
    """The reports of every query over one relation.

    Attributes:
        directory: a folder that driver and workers can write: a temporary one for local sessions, a shared mount for
            clusters.
    """

    directory: Path

    @classmethod
    def in_folder(cls, directory: Path | str | None) -> "TaskReports":
        """Reports in `directory`, or in a new temporary folder that goes when this process ends."""
        return cls(Path(directory or tempfile.mkdtemp(prefix="reports-", dir=temporary_root())))

    def write_plan(self, metrics: ScanMetrics, num_splits: int) -> None:
        """Report what planning read and pruned; the last plan stands."""
        _write_atomically(self.directory / _PLAN_FILE, {"num_splits": num_splits, "metrics": metrics.as_dict()})

    def write_task(self, stage_id: int, split_index: int, metrics: ScanMetrics) -> None:
        """Report one split as read by one stage, replacing the report of an earlier attempt."""
        _write_atomically(self.directory / f"stage-{stage_id:06}-split-{split_index:06}.json", metrics.as_dict())

    @property
    def num_splits(self) -> int:
        """Splits of the plan; 0 before anything was planned."""
        return int(self._plan().get("num_splits", 0))

    @property
    def stage_ids(self) -> tuple[int, ...]:
        """Stages that reported, in the order they were submitted."""
        return tuple(sorted({_stage_id(path) for path in self.directory.glob("stage-*.json")}))

    def of_stage(self, stage_id: int) -> ScanMetrics:
        """The plan's counts plus those of every split that this stage read."""
        total = self._plan_metrics()
        for path in self.directory.glob(f"stage-{stage_id:06}-split-*.json"):
            total.add(ScanMetrics(**json.loads(path.read_text())))
        return total

    def of_last_stage(self) -> ScanMetrics:
        """What the newest read of the relation did; the plan alone if no task has reported."""
        stages = self.stage_ids
        return self.of_stage(stages[-1]) if stages else self._plan_metrics()

    def total(self) -> ScanMetrics:
        """The plan's counts once, plus those of every read so far: a self-join reads twice."""
        total = self._plan_metrics()
        for path in sorted(self.directory.glob("stage-*.json")):
            total.add(ScanMetrics(**json.loads(path.read_text())))
        return total

    def _plan_metrics(self) -> ScanMetrics:
        return ScanMetrics(**self._plan().get("metrics", {}))

    def _plan(self) -> dict[str, Any]:
        path = self.directory / _PLAN_FILE
        return dict(json.loads(path.read_text())) if path.exists() else {}


@cache
def temporary_root() -> Path:
    """A folder of this process, removed when it ends."""
    folder = tempfile.mkdtemp(prefix="nevermore-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _stage_id(path: Path) -> int:
    return int(path.name.split("-")[1])


def _write_atomically(path: Path, document: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        json.dump(document, file)
    Path(temporary).replace(path)
