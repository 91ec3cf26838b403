"""The job with an accident in its middle, once: a process is killed, a task fails after its file, or is overtaken.

python -m tests.cluster.faulty_job CONFIG FAULT FOLDER, where FOLDER remembers that it has happened.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType

from nevermore.pipelines.config.project import load
from nevermore.pipelines.publish import refresh, writer
from nevermore.pipelines.publish.refresh import publish
from nevermore.pipelines.spark.session import project_session
from tests.cluster.sales_project import DAYS

FAULTS = ("python-worker", "executor", "fails-after-file", "overtaken")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("folder")
    arguments = parser.parse_args()
    config = load(arguments.config)
    session = project_session(config.spark)
    fault, folder = arguments.fault, arguments.folder
    session.udf.register("through", killing(fault, folder), LongType())
    refresh.DRIVER_BYTES, asked = 0, refresh.file_layout  # all is left to tasks, which write several row groups
    refresh.file_layout = lambda options: replace(asked(options), row_group_rows=1_000)
    before = writer._run
    writer._run = lambda name, frame, task: before(name, frame, after_writing(task, fault, folder))
    reports = [publish(config, "shop.sold", partitions=[day]).as_dict() for day in (*DAYS, DAYS[0])]
    print(json.dumps({"reports": reports, "happened": [p.name for p in Path(folder).iterdir()]}))  # noqa: T201
    session.stop()


def killing(fault: str, folder: str) -> Callable[[int], int]:
    """A function of SQL that gives back its argument, and kills where it runs when it has been called often."""
    calls = [0]

    def through(value: int) -> int:
        import os
        import signal

        calls[0] += 1
        if calls[0] != 2_000 or fault not in {"python-worker", "executor"}:
            return value
        try:
            os.close(os.open(f"{folder}/{fault}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return value
        victim = os.getpid()
        if fault == "executor":
            with open(f"/proc/{os.getppid()}/stat") as stat:  # noqa: PTH123 - of the daemon, whose parent it is
                victim = int(stat.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{victim}/cmdline") as command:  # noqa: PTH123
                assert "CoarseGrainedExecutorBackend" in command.read()
        os.kill(victim, signal.SIGKILL)
        return value

    return through


def after_writing(task: Callable[..., Any], fault: str, folder: str) -> Callable[..., Any]:
    """The task, whose first attempt fails, or waits for long, when its files are finished."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import time

        reports = list(task(batches))
        if fault in {"fails-after-file", "overtaken"}:
            try:
                os.close(os.open(f"{folder}/{fault}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                yield from reports
                return
            if fault == "fails-after-file":
                raise OSError("the disk of this machine is broken")
            time.sleep(120)
        yield from reports

    return write


if __name__ == "__main__":
    main()
