"""A publisher in a process of its own: python -m tests.pipelines.publish.publisher FOLDER MODE NUMBER TIMES."""

import sys
from functools import partial
from pathlib import Path

from nevermore.pipelines.iceberg.commit import retry_conflicts
from tests.pipelines.publish.amounts import FIRST, KEYS, Project


def main() -> None:
    folder, mode, number, times = sys.argv[1:]
    project = Project(Path(folder))
    print("ready", flush=True)  # noqa: T201 - so that several begin at once
    sys.stdin.readline()
    for turn in range(int(times)):
        amount = 1_000 * int(number) + turn
        rows = dict.fromkeys(range(KEYS), amount)
        retry_conflicts(partial(project.publish, mode, FIRST, rows, state=str(turn)))  # type: ignore[arg-type] # a mode


if __name__ == "__main__":
    main()
