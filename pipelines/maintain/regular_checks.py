"""Checks of mirrors beside a continuous run, by `nevermore check --changed` in a process of its own.

A check takes memory and time that the next round of events does not have to wait for, and the rows that a run wrote are
better not judged in its own process.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import orjson

from pipelines.config.project import Config
from pipelines.errors import PipelineError
from pipelines.iceberg.checked_catalog import open_existing
from pipelines.ingest.table_patterns import expanded

END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class CheckRound:
    """What `nevermore check` has found in a mirror.

    Attributes:
        table: the mirror.
        passed: number of checks that passed.
        failed: the others, as `nevermore check --json` prints them.
    """

    table: str
    passed: int
    failed: tuple[Mapping[str, Any], ...]

    @property
    def lines(self) -> list[str]:
        """Lines for people."""
        if not self.failed:
            return [f"{self.table}: {self.passed} checks passed"]
        shown = []
        for check in self.failed:
            outcome = "FAILED" if check["severity"] == "block" else "WARNING"
            shown.append(f"{self.table}: {outcome} {check['check']}: {'; '.join(check['details'])}")
            shown += [f"  to see more: {command}" for command in check["reproduce"]]
        return shown

    def as_dict(self) -> dict[str, Any]:
        """The same as a document."""
        return {"table": self.table, "passed": self.passed, "failed": [dict(check) for check in self.failed]}


class RegularChecks:
    """Checks the mirrors to which events were applied, as often as their config says, one process at a time."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._checked: dict[str, float] = {}
        self._changed: set[str] = set()
        self._running: tuple[subprocess.Popen[bytes], IO[bytes]] | None = None

    def after_round(self, committed: Iterable[str]) -> Iterator[CheckRound | str]:
        """Begin the checks that are due, given the mirrors of new commits; yield what checks that have ended found."""
        self._changed.update(committed)
        if self._running is not None:
            process, output = self._running
            if process.poll() is None:
                return
            self._running = None
            yield from _outcomes(process.returncode, output)
        if due := self._due():
            self._begin(due)

    def end(self) -> None:
        """Stop a check that still runs: what it would find, the next one finds."""
        if self._running is None:
            return
        process, output = self._running
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.close()

    def _due(self) -> list[str]:
        if not self._changed:
            return []
        now, found = time.monotonic(), []
        try:
            tables = expanded(self._config, open_existing(self._config)).tables
        except PipelineError:  # the run itself reports it, and goes on
            return []
        for name in sorted(self._changed & set(tables)):
            every = tables[name].checks.every
            if every != "off" and now >= self._checked.get(name, self._began) + every:
                found.append(name)
                self._checked[name] = now
        self._changed.difference_update(found)
        return found

    def _begin(self, tables: list[str]) -> None:
        command = [sys.executable, "-P", "-m", "pipelines.cli.main", "check", *tables, "--changed", "--json"]
        command += ["--config", str(self._config.path), *(["--alert"] if self._config.alerts is not None else [])]
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it is read
        self._running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output), output  # noqa: S603 - our own interpreter


def _outcomes(code: int, output: IO[bytes]) -> Iterator[CheckRound | str]:
    output.seek(0)
    found: dict[str, list[Mapping[str, Any]]] = {}
    other = []
    with output:
        for line in output:
            try:
                document = orjson.loads(line)
                found.setdefault(document["table"], []).append(document)
            except (ValueError, KeyError, TypeError):
                other.append(line.decode(errors="replace").strip())
    for table, checks in found.items():
        failed = [check for check in checks if not check["passed"]]
        yield CheckRound(table, len(checks) - len(failed), tuple(failed))
    if code not in {0, 1}:
        yield f"checks did not end (exit code {code}): {' '.join(other[-3:])}"
