"""`nevermore run`: the ingest as a service, until it is told to stop."""

import signal
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG
from pipelines.commands.terminal import ShowProgress, counted, progress

if TYPE_CHECKING:
    from pipelines.ingest_report import IngestReport

DEFAULT_HEARTBEAT_SECONDS = 30.0
"""Half of what process supervisors commonly allow for a sign of life."""


def run(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Mirrors of the config; all if none is named.", show_default=False),
    ] = None,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval", min=0.01, help="Seconds between rounds, instead of `commit_interval`.", show_default=False
        ),
    ] = None,
    heartbeat: Annotated[
        float, typer.Option("--heartbeat", min=0.01, help="With --json: seconds without a line before a sign of life.")
    ] = DEFAULT_HEARTBEAT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="A line with an object per round that did something, and heartbeats.")
    ] = False,
) -> None:
    """Apply change events as they arrive. SIGINT or SIGTERM ends it after the commit at hand, with exit code 0."""
    from pipelines.collector import settle
    from pipelines.config import load
    from pipelines.continuous import run_continuously
    from pipelines.ingest import check_tables

    settings = load(config)
    check_tables(settings)
    settle()
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if as_json:
            with _JsonLines(heartbeat) as lines:
                run_continuously(settings, stop, lines.report_round, tables or None, interval)
        else:
            with progress("Reading what is new; the first run compiles its decoders") as show:
                run_continuously(settings, stop, _report_text(show), tables or None, interval)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _JsonLines:
    """A line per round that did something; after `heartbeat_seconds` without one, a line that says how many rounds ended."""

    def __init__(self, heartbeat_seconds: float) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._rounds = 0
        self._news = threading.Event()
        self._ended = False
        self._writing = threading.Lock()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._news.set()
        self._heart.join()

    def report_round(self, report: "IngestReport") -> None:
        self._rounds += 1
        if not report.found_nothing_new:
            self._write(report.as_dict())
            self._news.set()

    def _beat(self) -> None:
        while not self._ended:
            if self._news.wait(self._heartbeat_seconds):
                self._news.clear()
            else:
                now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
                self._write({"heartbeat": True, "at": now, "rounds": self._rounds})

    def _write(self, document: Mapping[str, Any]) -> None:
        import orjson

        with self._writing:
            typer.echo(orjson.dumps(document))
            sys.stdout.flush()


def _report_text(show: ShowProgress) -> "Callable[[IngestReport], None]":
    """A line that is rewritten on a terminal, else a line per round that did something."""
    total = 0

    def report_round(report: "IngestReport") -> None:
        nonlocal total
        total += sum(sum(t.events.values()) for t in report.tables)
        quarantined = sum(t.quarantined for t in report.tables) + report.unassigned
        parts = [f"{datetime.now(UTC):%H:%M:%S}", counted(total, "event")]
        parts += [f"{t.table} snapshot {t.snapshot_id}" for t in report.tables if t.mirror_commits]
        parts += [f"{quarantined:,} to quarantine"] if quarantined else []
        parts += [f"{t.table} failed: {t.error}" for t in report.tables if t.error is not None]
        show(", ".join(parts))
        if not sys.stderr.isatty() and not report.found_nothing_new:
            typer.echo(", ".join(parts), err=True)

    return report_round
