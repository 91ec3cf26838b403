"""A publication whose tasks hang when their files are finished: python -m tests.cluster.hanging_job CONFIG DAY MARKER."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nevermore.pipelines.config.project import load
from nevermore.pipelines.publish import writer
from nevermore.pipelines.publish.refresh import publish

HANG_SECONDS = 60


def main() -> None:
    config, day, marker = sys.argv[1:]
    before = writer._run
    writer._run = lambda name, frame, task: before(name, frame, hanging(task, marker))
    publish(load(Path(config)), "shop.sold", partitions=[day])


def hanging(task: Callable[..., Any], marker: str) -> Callable[..., Any]:
    """The task, which tells that its files are finished, and reports nothing for long."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import time

        reports = list(task(batches))
        os.close(os.open(marker, os.O_CREAT))
        time.sleep(HANG_SECONDS)
        yield from reports

    return write


if __name__ == "__main__":
    main()
