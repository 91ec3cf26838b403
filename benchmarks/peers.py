"""The other engines: each in a process of its own that stays, asked one query at a time.

`make peers` makes the environment of the Python engines, `make interop` that of Spark with Iceberg Java. An engine
whose environment is missing is left out, by name, on standard error.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.race import Answer

_REPO = Path(__file__).parent.parent
_ENVIRONMENTS = {"spark": ".venv-interop"}
_STOP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Peer:
    """A running engine."""

    engine: str
    process: subprocess.Popen[str]

    def ask(self, sql: str, *, metadata: str | None = None, files: str | None = None) -> Answer:
        """Run `sql` over {table}: an Iceberg table by its metadata file, or the raw Parquet files of a folder.

        Raises:
            SystemExit: the engine fails, with its message.
        """
        return self.request({"sql": sql, "metadata": metadata, "files": files}, sql)

    def request(self, what: Mapping[str, Any], title: str) -> Answer:
        """Send any request that the script of the engine takes; `title` says in a message what it was.

        Raises:
            SystemExit: the engine fails, with its message.
        """
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        reply: dict[str, Any] = json.loads(line) if line else {"error": "the process has ended"}
        if "error" in reply:
            raise SystemExit(f"{self.engine}: {reply['error']} ({title})")
        return Answer(reply["answer"], reply["seconds"], reply["cpu"])


@contextmanager
def running(engines: Iterable[str], folder: Path = _REPO, script: str = "peer") -> Iterator[dict[str, Peer]]:
    """Those of `engines` that are installed, by name; stopped at the end. ClickHouse reads nothing outside of `folder`."""
    with ExitStack() as stack:
        started = {}
        for engine in engines:
            python = _REPO / _ENVIRONMENTS.get(engine, ".venv-peers") / "bin" / "python"
            if not python.exists():
                print(f"{engine} is left out: {python} is missing", file=sys.stderr)
                continue
            command = [str(python), "-W", "ignore", "-m", f"benchmarks.{script}", engine]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(_REPO),
                    "PYSPARK_PYTHON": str(python),
                    "PYSPARK_DRIVER_PYTHON": str(python),
                },
            )
            stack.callback(_stop, process)
            assert process.stdout
            if not any(line.startswith('{"ready"') for line in process.stdout):
                raise SystemExit(f"{engine} does not start: run {' '.join(command)} to see why")
            started[engine] = Peer(engine, process)
        yield started


def raw_files(table: Any, folder: Path) -> str:
    """A folder with hard links to the data files of a PyIceberg table, for engines that read raw Parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in table.inspect.data_files()["file_path"].to_pylist():
        link = folder / Path(path).name
        if not link.exists():
            os.link(path.removeprefix("file://"), link)
    return str(folder)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()
