"""How the counts of distributed tasks come home: one small JSON file per task in a folder of its host.

Spark gives Python data sources neither accumulators nor custom metrics. A file named by stage and split is idempotent
instead: a retried or speculative task overwrites its own report, so nothing is counted twice. Where hosts share no
folder, `report_gathering.py` fetches the files.
"""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from scan_core.metrics import ScanMetrics

REPORT_PATTERN = "stage-*.json"
_PLAN_FILE = "plan.json"


@dataclass(frozen=True, slots=True)
class TaskReports:
    """The reports of every query over one relation.

    Attributes:
        directory: a folder that driver and workers can write, each on its own host, or one that they share.
        fetch: brings reports that lie on other hosts into the folder; None where all of them are written to it.
    """

    directory: Path
    fetch: Callable[[Path], None] | None = field(default=None, compare=False)

    @classmethod
    def in_folder(cls, directory: Path | str | None, fetch: Callable[[Path], None] | None = None) -> "TaskReports":
        """Reports in `directory`, or in a new temporary folder that goes when this process ends."""
        return cls(Path(directory or tempfile.mkdtemp(prefix="reports-", dir=temporary_root())), fetch)

    def write_plan(self, metrics: ScanMetrics, num_splits: int) -> None:
        """Report what planning read and pruned; the last plan stands."""
        _write_atomically(self.directory / _PLAN_FILE, {"num_splits": num_splits, "metrics": metrics.as_dict()})

    def write_task(self, stage_id: int, split_index: int, metrics: ScanMetrics, num_splits: int = 0) -> None:
        """Report one split, of so many, as read by one stage, replacing the report of an earlier attempt."""
        document = {"num_splits": num_splits, "metrics": metrics.as_dict()}
        _write_atomically(self.directory / f"stage-{stage_id:06}-split-{split_index:06}.json", document)

    @property
    def num_splits(self) -> int:
        """Splits of the plan; 0 before anything was planned."""
        return int(self._plan().get("num_splits", 0))

    @property
    def num_missing(self) -> int:
        """Splits of stages under `stage_ids` that have not reported: left out by a limit, lost, or still running."""
        found: dict[int, list[int]] = {}
        for path in self._files():
            found.setdefault(_stage_id(path), []).append(int(json.loads(path.read_text())["num_splits"]))
        return sum(max(0, max(numbers) - len(numbers)) for numbers in found.values())

    @property
    def stage_ids(self) -> tuple[int, ...]:
        """Stages that reported, in the order they were submitted."""
        return tuple(sorted({_stage_id(path) for path in self._files()}))

    def of_stage(self, stage_id: int) -> ScanMetrics:
        """The plan's counts plus those of every split that this stage read."""
        total = self._plan_metrics()
        for path in self._files(stage_id):
            total.add(_metrics(path))
        return total

    def of_last_stage(self) -> ScanMetrics:
        """What the newest read of the relation did; the plan alone if no task has reported."""
        stages = self.stage_ids
        return self.of_stage(stages[-1]) if stages else self._plan_metrics()

    def total(self) -> ScanMetrics:
        """The plan's counts once, plus those of every read so far: a self-join reads twice."""
        total = self._plan_metrics()
        for path in self._files():
            total.add(_metrics(path))
        return total

    def _files(self, stage_id: int | None = None) -> list[Path]:
        """The reports, fetched from other hosts if some may be missing."""
        pattern = REPORT_PATTERN if stage_id is None else f"stage-{stage_id:06}-split-*.json"
        here = replace(self, fetch=None)
        if self.fetch is not None and (not list(self.directory.glob(pattern)) or here.num_missing):
            self.fetch(self.directory)
        return sorted(self.directory.glob(pattern))

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


def _metrics(path: Path) -> ScanMetrics:
    return ScanMetrics(**json.loads(path.read_text())["metrics"])


def _write_atomically(path: Path, document: Mapping[str, object]) -> None:
    write_text_atomically(path, json.dumps(document))


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file that appears at once, whole, in place of another of that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(temporary).replace(path)
