"""The processes of runs: each holds a lock while it exists, so that a run whose process is gone is recognised and failed.

Loaded by every process of an instance whose dagster.yaml names the launcher, so it imports nothing else of ours.
"""

import fcntl
import os
from pathlib import Path

from dagster import DagsterInstance, DagsterRun
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

FOLDER = "running"
"""Folder in DAGSTER_HOME, with a file for each run, locked by its process."""


def hold(instance: DagsterInstance, run_id: str) -> None:
    """Hold the lock of a run until this process ends, however it ends; the system lets go of it then."""
    if instance.is_ephemeral:
        return
    folder = Path(instance.root_directory) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.iterdir():
        run = instance.get_run_by_id(earlier.name)
        if run is None or run.is_finished:
            earlier.unlink(missing_ok=True)
    new = folder.parent / f".{run_id}"  # a file in the folder that is not locked is that of a dead process
    fcntl.flock(os.open(new, os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
    new.rename(folder / run_id)


class Launcher(DefaultRunLauncher):
    """Dagster's launcher of processes on this machine, which tells its run monitoring whether they still exist."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """The default launcher cannot tell, so a run of a machine that went down would stay started for ever."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """A run without a file may be on another machine, and counts as running."""
        path = Path(self._instance.root_directory) / FOLDER / run.run_id
        try:
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, "its process is gone")
