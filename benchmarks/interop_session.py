"""One session of Spark 4.1, the newest that Iceberg Java has a runtime for, for us and for it in turn.

Benchmarks run again under the Python of the environment that `make interop` makes, which borrows all else from ours. CPU
time is that of the Java process and its Python workers.
"""

import os
import sys
from pathlib import Path

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_REPO = Path(__file__).parent.parent
_INSIDE = "NEVERMORE_BENCHMARK_INSIDE"
_TICKS = os.sysconf("SC_CLK_TCK")


def is_inside() -> bool:
    """Whether this process runs in that environment."""
    return _INSIDE in os.environ


_spent: dict[tuple[int, str], int] = {}
"""Ticks of each process that was ever seen, by its id and its start."""


def cpu_seconds() -> float:
    """CPU time of this process, of the JVM that it started, and of the JVM's Python workers.

    Workers that have ended keep counting with what they had spent when they were last seen: their parent ignores their end, so that
    the system adds it to nobody's time.
    """
    for pid in _descendants():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        _spent[pid, fields[19]] = sum(map(int, fields[11:13]))
    own = os.times()
    return own.user + own.system + sum(_spent.values()) / _TICKS


def _descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(parent, []).append(int(folder.name))
    found, queue = [], [os.getpid()]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def run_inside(module: str) -> None:
    """Replace this process by the same one under the Python of Spark 4.1, which borrows all else from here."""
    environment = _REPO / ".venv-interop"
    python = environment / "bin" / "python"
    if not python.exists():
        print(f"{module} is left out: {python} is missing, make interop makes it", file=sys.stderr)
        return
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = [
        environment / "lib" / version / "site-packages",
        Path(sys.prefix) / "lib" / version / "site-packages",
        _REPO,
    ]
    os.execve(  # noqa: S606 - no shell, our own module
        python,
        [str(python), "-W", "ignore", "-m", module, *sys.argv[1:]],
        {
            **os.environ,
            _INSIDE: "1",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
        },
    )
