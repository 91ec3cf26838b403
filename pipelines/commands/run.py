"""`nevermore run`: the ingest as a service, until it is told to stop."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipelines.ingest_report import IngestReport


def run(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Mirrors of the config; all if none is named.", show_default=False),
    ] = None,
    config: Annotated[Path, typer.Option("--config", help="The project's config.")] = Path("nevermore.yaml"),
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval", min=0.01, help="Seconds between rounds, instead of `commit_interval`.", show_default=False
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A line with an object per round that did something.")
    ] = False,
) -> None:
    """Apply change events as they arrive. SIGINT or SIGTERM ends it after the commit at hand, with exit code 0."""
    import signal
    import threading

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
        run_continuously(settings, stop, _teller(as_json=as_json), tables or None, interval)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _teller(*, as_json: bool) -> "Callable[[IngestReport], None]":
    """Shows rounds: one line that is rewritten on a terminal, else a line per round that did something."""
    import sys
    from datetime import UTC, datetime

    rewrites = sys.stderr.isatty() and not as_json
    total = 0

    def tell(report: "IngestReport") -> None:
        nonlocal total
        total += sum(sum(t.events.values()) for t in report.tables)
        failed = [t for t in report.tables if t.error is not None]
        if as_json:
            if not report.found_nothing_new:
                import orjson

                typer.echo(orjson.dumps(report.as_dict()))
                sys.stdout.flush()
            return
        quarantined = sum(t.quarantined for t in report.tables) + report.unassigned
        parts = [f"{datetime.now(UTC):%H:%M:%S}", f"{total:,} events"]
        parts += [f"{t.table} snapshot {t.snapshot_id}" for t in report.tables if t.status == "applied"]
        parts += [f"{quarantined:,} to quarantine"] if quarantined else []
        parts += [f"{t.table} failed: {t.error}" for t in failed]
        if rewrites:
            typer.echo("\r\033[K" + ", ".join(parts), err=True, nl=False)
        elif not report.found_nothing_new:
            typer.echo(", ".join(parts), err=True)

    return tell
