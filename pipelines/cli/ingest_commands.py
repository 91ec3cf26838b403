"""The commands that start a project and fill it: `nevermore init`, `simulate`, `ingest` and `run`."""

import signal
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from pipelines.cli.arguments import DEFAULT_CONFIG, PROJECT_CONFIG
from pipelines.cli.terminal import ShowProgress, counted, progress

if TYPE_CHECKING:
    from pipelines.ingest.report import IngestReport, TableReport


def init(
    directory: Annotated[Path, typer.Option("--dir", help="Folder of the new project.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace a nevermore.yaml that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The path as an object.")] = False,
) -> None:
    """Write a commented nevermore.yaml to start from, and a workspace.yaml so that `dagster dev` opens the project."""
    from pipelines.config.document import WORKSPACE, config_template
    from pipelines.errors import ConfigError

    path = directory / "nevermore.yaml"
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already; --force replaces it")
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(config_template(), encoding="utf-8")
    workspace = directory / "workspace.yaml"
    if not workspace.exists():  # one that is there may load other code, too
        workspace.write_text(WORKSPACE, encoding="utf-8")
    if as_json:
        import orjson

        typer.echo(orjson.dumps({"path": str(path)}))
    else:
        typer.echo(f"Wrote {path}. Edit it, then run: nevermore ingest --config {path} --once")


def simulate(
    directory: Annotated[Path, typer.Option("--dir", help="Landing folder; gets one folder per table.")] = Path(
        "landing"
    ),
    rows: Annotated[int, typer.Option("--rows", help="Change events in all, roughly.")] = 100_000,
    batches: Annotated[int, typer.Option("--batches", help="Files per table.")] = 4,
    seed: Annotated[int, typer.Option("--seed", help="The same seed writes the same events.")] = 42,
    first_day: Annotated[
        datetime, typer.Option("--first-day", formats=["%Y-%m-%d"], help="The day of the first batch.")
    ] = datetime(2026, 1, 1),  # noqa: DTZ001 - a day
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per file.")] = False,
) -> None:
    """Write the change feed of a small shop as Debezium JSON: customers, orders and order lines, in batches."""
    from pipelines.errors import ConfigError
    from pipelines.simulate import simulate as write_feed

    feed = write_feed(directory, seed=seed, rows=rows, batches=batches, first_day=first_day.date())
    try:
        for landed in chain.from_iterable(feed):
            if as_json:
                import orjson

                typer.echo(orjson.dumps({"table": landed.table, "path": str(landed.path), "events": landed.events}))
            else:
                kinds = ", ".join(f"{number} {kind}" for kind, number in landed.events.items())
                typer.echo(f"{landed.path}: {kinds}")
    except ValueError as error:
        raise ConfigError(str(error)) from error


def ingest(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...", help="Mirrors of the config; all of them if none is named.", show_default=False
        ),
    ] = None,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    once: Annotated[
        bool, typer.Option("--once", help="Apply what is there now, then stop: the default. `nevermore run` goes on.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="The report as an object.")] = False,
) -> None:
    """Apply new change events to their mirrors, each batch in one snapshot.

    Exit code 0: all applied; 3: applied, something quarantined; 1: a table failed, nothing of its failing batch was
    applied; 2: usage or config.
    """
    from pipelines.config.project import load
    from pipelines.ingest.feed_run import check_tables, found_nothing_new, run_once, settle

    settings = load(config)
    check_tables(settings)
    settle()
    for name in tables or ():
        settings.table(name)
    with progress("Reading what is new; the first run compiles its decoders", hidden=as_json) as show:
        report = found_nothing_new(settings, tables or None) or run_once(
            settings, progress=lambda table: show(_progress_text(table)), tables=tables or None
        )
    if as_json:
        import orjson

        typer.echo(orjson.dumps(report.as_dict()))
    else:
        _print(report)
        for pattern in report.unmatched_patterns:
            told = settings.patterns[pattern]
            chosen = [f"{n}: {', '.join(v)}" for n in ("include_tables", "exclude_tables") if (v := getattr(told, n))]
            narrowed = f" ({'; '.join(chosen)})" if chosen else ""
            typer.echo(f"{pattern}: no table of its feed was found{narrowed}", err=True)
    raise typer.Exit(report.exit_code)


def _progress_text(table: "TableReport") -> str:
    return f"{table.table}: {counted(sum(table.events.values()), 'event')}, {counted(table.mirror_commits, 'commit')}"


def _print(report: "IngestReport") -> None:
    for table in report.tables:
        if table.error is not None:
            typer.echo(f"{table.table}: failed: {table.error.removeprefix(f'{table.table}: ')}", err=True)
            continue
        if table.status == "nothing new":
            typer.echo(f"{table.table}: nothing new")
            continue
        events = ", ".join(counted(number, _KINDS.get(op, op)) for op, number in sorted(table.events.items()))
        written = f"{counted(table.data_rows, 'row')} and {counted(table.delete_rows, 'delete')}"
        commits = f"{counted(table.mirror_commits, 'commit')}, snapshot {table.snapshot_id}"
        typer.echo(
            f"{table.table}: {events or 'no events'}; "
            + (f"{written} in {commits}" if table.mirror_commits else "nothing to commit")
        )
        if table.superseded:
            typer.echo(
                f"{table.table}: {counted(table.superseded, 'event')} left out, older than a truncate that was applied"
            )
        if table.missed_removals:
            typer.echo(f"{table.table}: {table.missed_removals:,} rows to be removed were not in the mirror", err=True)
        for column in table.unmet_columns:
            typer.echo(f"{table.table}: {column}")
        if table.quarantined:
            typer.echo(f"{table.table}: {counted(table.quarantined, 'event')} went to quarantine", err=True)
    for reason, number in report.skipped.items():
        if reason == "other table":
            names = ", ".join(name or "(no name)" for name in report.untaken_tables)
            typer.echo(f"left out: {counted(number, 'event')} of other tables: {names}")
        else:
            typer.echo(f"left out: {number:,} {reason}")


_KINDS = {"c": "create", "u": "update", "d": "delete", "r": "snapshot read", "t": "truncate"}


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
    from pipelines.config.project import load
    from pipelines.ingest.feed_run import check_tables, run_continuously, settle

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
