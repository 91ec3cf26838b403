"""Many cases, each chunk of them in a process of its own: a crash or hang ends the process, not the campaign."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.worker import TOO_MUCH_MEMORY

CHUNK = 5_000
"""Cases a process: starting one costs as much as 200 of them."""
MAX_ENDED = 20
"""Processes of a chunk that may end before their last case: with more, the fault is not in single cases."""
WORKER = ("-m", "tests.fuzz.worker")
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that went wrong: a crash, a hang, a foreign exception, a refusal without a file, too much memory."""

    seed: int
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.what}\n  again: python -m tests.fuzz --seed {self.seed} --case {self.number}"


def run_campaign(
    seed: int, start: int, stop: int, *, jobs: int = 1, worker: Sequence[str] = WORKER
) -> Iterator[Finding]:
    """Run the cases [start, stop) in `jobs` processes at a time; `worker` are Python's arguments."""
    chunks = [(at, min(at + CHUNK, stop)) for at in range(start, stop, CHUNK)]
    with ThreadPoolExecutor(jobs) as pool:
        for findings in pool.map(lambda chunk: list(_run_chunk(worker, seed, *chunk)), chunks):
            yield from findings


def _run_chunk(worker: Sequence[str], seed: int, start: int, stop: int) -> Iterator[Finding]:
    num_ended = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        progress = Path(folder) / "progress"
        while start < stop:
            progress.write_text(str(start))
            command = [sys.executable, *worker, str(seed), str(start), str(stop), folder]
            ended = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=False)
            for line in ended.stdout.splitlines():
                found = json.loads(line)
                yield Finding(seed, found["number"], found["what"])
            if ended.returncode == 0:
                return
            last = int(progress.read_text())
            why = "too much memory" if ended.returncode == TOO_MUCH_MEMORY else f"the process ended, {ended.returncode}"
            yield Finding(seed, last, f"case {last}: {why}\n{ended.stderr[-4_000:]}")
            start, num_ended = last + 1, num_ended + 1
            if num_ended == MAX_ENDED:
                yield Finding(seed, start, f"given up after {num_ended} processes that ended, before case {start}")
                return
