"""Reports of distributed tasks: one small JSON file per task, gathered from the hosts of a cluster."""

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from nevermore.scan_core.io.private_files import private_folder, temporary_folder
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.spark.package import SPARK_FAILURES

REPORT_PATTERN = "stage-*.json"
_PLAN_FILE = "plan.json"
_log = logging.getLogger(__name__)


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
        return cls(Path(directory or tempfile.mkdtemp(prefix="reports-", dir=temporary_folder())), fetch)

    def write_plan(self, metrics: ScanMetrics, num_splits: int) -> None:
        """Report what planning read and pruned; the last plan counts."""
        self._write(_PLAN_FILE, num_splits, metrics)

    def write_task(self, stage_id: int, split_index: int, metrics: ScanMetrics, num_splits: int = 0) -> None:
        """Report one of `num_splits` splits as read by one stage, replacing the report of an earlier attempt."""
        self._write(f"stage-{stage_id:06}-split-{split_index:06}.json", num_splits, metrics)

    @property
    def num_splits(self) -> int:
        """Splits of the plan; 0 before anything was planned."""
        return int(self._plan().get("num_splits", 0))

    @property
    def num_missing(self) -> int:
        """Splits of stages under `stage_ids` that have not reported: left out by a limit, lost, or still running."""
        return _num_missing(self._reports())

    @property
    def stage_ids(self) -> tuple[int, ...]:
        """Stages that reported, in the order they were submitted."""
        return tuple(sorted({_stage_id(name) for name in self._reports()}))

    def total(self) -> ScanMetrics:
        """The plan's counts once, plus those of every read so far: a self-join reads twice."""
        total = ScanMetrics(**self._plan().get("metrics", {}))
        for report in self._reports().values():
            total.add(ScanMetrics(**report["metrics"]))
        return total

    def _reports(self) -> dict[str, dict[str, Any]]:
        """The reports by file, fetched from other hosts if some may be missing."""
        found = _parsed(reports_here(self.directory))
        if self.fetch is not None and (not found or _num_missing(found)):
            self.fetch(self.directory)
            found = _parsed(reports_here(self.directory))
        return found

    def _plan(self) -> dict[str, Any]:
        found = reports_here(self.directory, _PLAN_FILE)
        return dict(json.loads(found[_PLAN_FILE])) if found else {}

    def _write(self, name: str, num_splits: int, metrics: ScanMetrics) -> None:
        write_report(self.directory, name, json.dumps({"num_splits": num_splits, "metrics": metrics.as_dict()}))


def reports_here(directory: Path, pattern: str = REPORT_PATTERN) -> dict[str, str]:
    """The text of every report that lies in a folder of this host, in the order of their names.

    Raises:
        UnsafeFileError: others may write to the folder.
    """
    if not directory.exists():
        return {}
    with private_folder(directory) as folder:
        found = {}
        for name in sorted(n for n in folder.names() if fnmatch(n, pattern)):
            with folder.read(name) as file:
                found[name] = file.read().decode()
        return found


def write_report(directory: Path, name: str, text: str) -> None:
    """Write a file that appears at once, whole, in place of another of that name.

    Raises:
        UnsafeFileError: others may write to the folder.
    """
    with private_folder(directory) as folder, folder.replace(name) as file:
        file.write(text.encode())


def _parsed(reports: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    return {name: json.loads(text) for name, text in reports.items()}


def _num_missing(reports: Mapping[str, Mapping[str, Any]]) -> int:
    found: dict[int, list[int]] = {}
    for name, report in reports.items():
        found.setdefault(_stage_id(name), []).append(int(report["num_splits"]))
    return sum(max(0, max(numbers) - len(numbers)) for numbers in found.values())


def _stage_id(name: str) -> int:
    return int(name.split("-")[1])


def fetching(spark: SparkSession, parallelism: int) -> Callable[[Path], None] | None:
    """How to bring reports from workers' hosts into a folder of this one; None where workers run on this host."""
    if str(spark.conf.get("spark.master", "local")).startswith("local["):
        return None
    return partial(_fetch, spark, parallelism)


def _fetch(spark: SparkSession, parallelism: int, folder: Path) -> None:
    number = 2 * parallelism  # the first wave fills every slot of every executor
    rows = spark.range(0, number, 1, number).mapInArrow(partial(_reports_here, str(folder)), "name string, text string")
    try:
        found = rows.distinct().toArrow()
    except SPARK_FAILURES as error:  # what was read and written is right without them
        _log.warning("reports of tasks are missing, as Spark cannot fetch them (%s)", type(error).__name__)
        return
    for name, text in zip(found["name"].to_pylist(), found["text"].to_pylist(), strict=True):
        write_report(folder, Path(name).name, text)


def _reports_here(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        found = reports_here(Path(folder))
        names, texts = pa.array(list(found), pa.string()), pa.array(list(found.values()), pa.string())
        yield pa.RecordBatch.from_pydict({"name": names, "text": texts})
