"""The commands that start a project and fill it: `nevermore init`, `simulate`, `ingest` and `run`."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from nevermore.pipelines.cli.arguments import (
    AsJson,
    MirrorNames,
    ProjectConfig,
    load,
)
from nevermore.pipelines.cli.terminal import ShowProgress, print_json, print_result, progress
from nevermore.pipelines.config import DEFAULT_CONFIG, Engine
from nevermore.pipelines.wording import counted
from nevermore.scan_core.io import write_whole

if TYPE_CHECKING:
    from nevermore.pipelines.cli.watch import CheckRound
    from nevermore.pipelines.config.project import Config
    from nevermore.pipelines.ingest.feed_run import OnReport
    from nevermore.pipelines.ingest.report import IngestReport, TableReport
    from nevermore.pipelines.maintain.compact import CompactReport
    from nevermore.pipelines.maintain.retention import Expiry

    Maintained = CompactReport | Expiry | CheckRound | str
    """A compaction, an expiry, what checks found, or a warning."""


def init(
    directory: Annotated[Path, typer.Option("--dir", help="Folder of the new project.")] = Path(),
    address: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ADDRESS",
            help="Look into a source and write a config for its tables: postgresql://user@host/db, mysql://user@host/db, "
            "kafka://broker:9092/topic, s3://bucket/prefix, or a local folder.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing nevermore.yaml.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented nevermore.yaml to start from, and a workspace.yaml with which `dagster dev` opens the project."""
    from nevermore.pipelines.config.document import TEMPLATE, workspace
    from nevermore.pipelines.config.project import write_config
    from nevermore.pipelines.errors import ConfigError

    path = directory / "nevermore.yaml"
    if path.exists() and not force:
        raise ConfigError(f"{path} already exists; --force replaces it")
    text, found, notes = TEMPLATE, [], []
    if address is not None:
        from nevermore.pipelines.ingest.discovery import config_text, discover, tables_of

        with progress("Looking at the source", hidden=as_json):
            sources = discover(address, directory.absolute())
        text, found = config_text(sources), list(tables_of(sources))
        notes = [f"Before the first run: {step}" for source in sources for step in source.steps]
    directory.mkdir(parents=True, exist_ok=True)
    file, also = directory / "workspace.yaml", ""
    if not file.exists():  # an existing one may load other code, too
        write_whole(file, workspace(directory))
        also = f" and {file}, with which `dagster dev` opens the project"
    write_config(path, text)  # last: without it, a command that could not write can be run again
    lines = [f"Wrote {path}{also}. Edit {path.name}, then run: nevermore ingest --config {path}"]
    document: dict[str, Any] = {"path": str(path)}
    if address is not None:
        document |= {"tables": found, "steps": notes}
        lines = [f"Wrote {path} with {counted(sum(t['ready'] for t in found), 'table')}{also}.", *notes]
        lines += [f"{table['name']}: {warning}" for table in found for warning in table["warnings"]]
        lines.append(f"Then run: nevermore doctor --config {path}; nevermore ingest --config {path}")
    print_result(document, lines, as_json=as_json)


def doctor(config: ProjectConfig = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Check before anything is read: catalog, warehouse, sources, rights, settings, replication slots, clocks.

    Exit code 0: a run would work, perhaps with warnings; 1: it would fail.
    """
    from nevermore.pipelines.ingest.doctor import examine
    from nevermore.pipelines.ingest.feeds import check_tables

    settings = load(config)
    check_tables(settings)
    has_failed = False
    for examined in examine(settings):
        finding = examined.finding
        has_failed |= finding.status == "failed"
        line = f"{finding.status.upper():8}{examined.subject}: {finding.what}: {finding.found}"
        print_result(examined.as_dict(), [line], as_json=as_json)
    raise typer.Exit(1 if has_failed else 0)


def simulate(
    directory: Annotated[Path, typer.Option("--dir", help="Landing folder; gets one subfolder per table.")] = Path(
        "landing"
    ),
    rows: Annotated[int, typer.Option("--rows", help="Approximate number of change events in total.")] = 100_000,
    batches: Annotated[int, typer.Option("--batches", help="Number of files per table.")] = 4,
    seed: Annotated[int, typer.Option("--seed", help="Random seed: the same seed writes the same events.")] = 42,
    first_day: Annotated[
        datetime, typer.Option("--first-day", formats=["%Y-%m-%d"], help="Day of the first batch.")
    ] = datetime(2026, 1, 1),  # noqa: DTZ001 - a day
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per file.")] = False,
) -> None:
    """Write the change feed of a small shop as Debezium JSON: customers, orders and order lines, in batches."""
    from nevermore.pipelines.errors import ConfigError
    from nevermore.pipelines.simulate import simulate as write_feed

    feed = write_feed(directory, seed=seed, rows=rows, batches=batches, first_day=first_day.date())
    try:
        for file in chain.from_iterable(feed):
            document = {"table": file.table, "path": str(file.path), "events": file.events}
            kinds = ", ".join(f"{number} {kind}" for kind, number in file.events.items())
            print_result(document, [f"{file.path}: {kinds}"], as_json=as_json)
    except ValueError as error:
        raise ConfigError(str(error)) from error


Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=512,
        metavar="N",
        help="Threads that read, decode and encode; default: `threads` of the config, or one per core.",
    ),
]


ChosenEngine = Annotated[
    Engine | None,
    typer.Option(
        "--engine",
        help="Where events are read and decoded: in this process, in Spark tasks, or in Spark tasks above a size; default: `ingest` of the config.",
    ),
]


def ingest(
    tables: MirrorNames = None,
    config: ProjectConfig = DEFAULT_CONFIG,
    threads: Threads = None,
    engine: ChosenEngine = None,
    as_json: AsJson = False,
) -> None:
    """Apply new change events, then stop; `nevermore run` keeps running.

    Exit code 0: all events were applied; 1: a table failed, and nothing of its failed batch was applied; 2: invalid
    usage or config; 3: some events went to quarantine.
    """
    from nevermore.pipelines.ingest.feeds import check_tables

    settings = _as_asked(load(config), threads, engine, tables)
    check_tables(settings)
    from nevermore.pipelines.ingest.feed_run import freeze_imports, run_once

    freeze_imports()
    with progress("Reading new events; the first run compiles decoders", hidden=as_json) as show:
        report = run_once(
            settings,
            lambda table: show(
                f"{table.table}: {counted(sum(table.events.values()), 'event')}, {counted(table.mirror_commits, 'commit')}"
            ),
            tables or None,
        )
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report, settings)
    raise typer.Exit(report.exit_code)


def _as_asked(settings: "Config", threads: int | None, engine: Engine | None, tables: list[str] | None) -> "Config":
    """The config with what options of the command set instead."""
    if threads is not None:
        settings = settings.model_copy(update={"threads": threads})
    return settings if engine is None else settings.with_engine(engine, tables or settings.tables | settings.patterns)


def _print(report: "IngestReport", settings: "Config") -> None:
    for table in report.tables:
        for line in _result_lines(table):
            typer.echo(line)
        for line in _warning_lines(table):
            typer.echo(line, err=True)
    for reason, number in report.skipped.items():
        if reason == "other table":
            names = ", ".join(name or "(no name)" for name in report.untaken_tables)
            typer.echo(f"skipped: {counted(number, 'event')} of other tables: {names}")
        else:
            typer.echo(f"skipped: {counted_reason(number, reason)}")
    if report.unassigned:
        what = f"{counted(report.unassigned, 'event')} of no table of the config"
        typer.echo(f"{what}: to quarantine.feed_of_TABLE, of the first table of the feed", err=True)
    for warning in report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for name in report.unmatched_patterns:
        pattern = settings.patterns[name]
        options = {"include_tables": pattern.include_tables, "exclude_tables": pattern.exclude_tables}
        filters = "; ".join(f"{option}: {', '.join(tables)}" for option, tables in options.items() if tables)
        typer.echo(f"{name}: matches no table in its feed{f' ({filters})' if filters else ''}", err=True)


def _result_lines(table: "TableReport") -> Iterator[str]:
    if table.error is None:
        yield str(table)
    if table.status == "applied":
        if table.why_local is not None:
            did = "read" if table.engine == "local" else "applied to the mirror"
            yield f"{table.table}: {did} by this process, not by Spark: {table.why_local}"
        if table.superseded:
            yield f"{table.table}: skipped {counted(table.superseded, 'event')} older than a truncate already applied"
        yield from (f"{table.table}: {column}" for column in table.unmet_columns)
        if table.indexes is not None:
            yield from (f"{table.table}: {line}" for line in table.indexes.lines)
        if table.conversion is not None:
            yield from (f"{table.table}: {line}" for line in table.conversion.lines)


def _warning_lines(table: "TableReport") -> Iterator[str]:
    if table.error is not None:
        yield f"{table.table}: failed: {table.error.removeprefix(f'{table.table}: ')}"
        return
    if table.indexes is not None:
        yield from (f"{table.table}: indexes: {warning}" for warning in table.indexes.warnings)
    if table.conversion is not None and table.conversion.warning is not None:
        yield f"{table.table}: deletes were not converted: {table.conversion.warning}"
    if table.missed_removals:
        yield f"{table.table}: {counted(table.missed_removals, 'removal')} matched no row in the mirror"
    if table.quarantined:
        yield f"{table.table}: {counted(table.quarantined, 'event')} went to quarantine"


_EVENTS_WAITING = "waiting for "
_OTHER_FORMS = {
    "psql output": ("line of psql output", "lines of psql output"),
    "DDL": ("DDL statement", "DDL statements"),
    "row before an update": ("row before an update", "rows before updates"),
    "left out by ops": ("row excluded by ops", "rows excluded by ops"),
    "truncate of a table without rows": ("truncate of a table without rows", "truncates of tables without rows"),
}
"""Singular and plural of reasons whose plural is not formed by appending s."""


def counted_reason(number: int, reason: str) -> str:
    """`2 re-delivered files`, `2 lines of psql output`, `1 event waiting for the commit of their transaction`."""
    if reason.startswith(_EVENTS_WAITING):
        return f"{counted(number, 'event')} {reason}"
    if reason in _OTHER_FORMS:
        return f"{number:,} {_OTHER_FORMS[reason][number != 1]}"
    return counted(number, reason)


DEFAULT_HEARTBEAT_SECONDS = 30.0
"""Half the silence that process supervisors commonly tolerate."""


def run(
    tables: MirrorNames = None,
    config: ProjectConfig = DEFAULT_CONFIG,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            min=0.01,
            help="Seconds between rounds; default: `commit_interval` of the tables.",
        ),
    ] = None,
    threads: Threads = None,
    engine: ChosenEngine = None,
    heartbeat: Annotated[
        float,
        typer.Option(
            "--heartbeat", min=0.01, help="With --json: print a heartbeat after this many seconds of silence."
        ),
    ] = DEFAULT_HEARTBEAT_SECONDS,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Serve /metrics for Prometheus, /healthz and /readyz there, such as 127.0.0.1:9464.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print a JSON line for each round that applied events, maintenance and heartbeats."
        ),
    ] = False,
) -> None:
    """Apply change events as they arrive, check mirrors, compact those whose scans have become slow, expire old snapshots.

    Mirrors with new events are checked every hour (`checks: {every: 1h}`), beside the run. Snapshots expire where `maintenance`
    in the config has `expire_every`. With `alerts` in the config, a webhook is told
    when a table fails, recovers, lags, or has events in quarantine, and when a replication slot holds too much log.

    SIGINT or SIGTERM stops it after the current commit, with exit code 0.
    """
    from nevermore.pipelines.cli.watch import RegularChecks, watching
    from nevermore.pipelines.ingest.feed_run import freeze_imports, run_continuously
    from nevermore.pipelines.ingest.feeds import check_tables
    from nevermore.pipelines.maintain.compact import Upkeep
    from nevermore.pipelines.maintain.retention import RegularExpiry
    from nevermore.pipelines.watch import span

    settings = _as_asked(load(config), threads, engine, tables)
    check_tables(settings)
    freeze_imports()
    stop = threading.Event()
    upkeep, expiry, checks = Upkeep(settings), RegularExpiry(settings, tables), RegularChecks(settings)

    def then_maintain(report_round: "OnReport", report_maintenance: "Callable[[Maintained], None]") -> "OnReport":
        def after_round(report: "IngestReport") -> None:
            watch.after_round(report)
            report_round(report)
            committed = [t.table for t in report.tables if t.mirror_commits]
            for done in upkeep.after_commits(name for name in committed if not stop.is_set()):
                report_maintenance(done)
            if not stop.is_set():
                for found in checks.after_round(committed):
                    report_maintenance(found)
                for expired in expiry.run():
                    report_maintenance(expired)

        return after_round

    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    entries = [*settings.tables.values(), *settings.patterns.values()]
    longest = interval or max((entry.commit_interval for entry in entries), default=0.0)
    try:
        with watching(settings, listen, longest) as watch, span("nevermore.run", run=watch.run):
            if as_json:
                with _JsonLines(heartbeat, stop) as lines:
                    report = then_maintain(lines.report_round, lines.report_maintenance)
                    run_continuously(settings, stop, report, tables or None, interval)
            else:
                with progress("Reading new events; the first run compiles decoders") as show:
                    report = then_maintain(_report_text(show), _print_maintenance)
                    run_continuously(settings, stop, report, tables or None, interval)
    finally:
        checks.end()
        for number, handler in before.items():
            signal.signal(number, handler)


class _JsonLines:
    """Prints a line for each round that applied events; after `heartbeat_seconds` without one, the number of rounds so far.

    If a heartbeat cannot be written, the run is stopped and ends with that error.
    """

    def __init__(self, heartbeat_seconds: float, stop: threading.Event) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._stop = stop
        self._error: OSError | None = None
        self._rounds = 0
        self._news = threading.Event()
        self._ended = False
        self._writing = threading.Lock()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended = True
        self._news.set()
        self._heart.join()
        if kind is None and self._error is not None:
            raise self._error

    def report_round(self, report: "IngestReport") -> None:
        self._rounds += 1
        if not report.found_nothing_new or report.warnings:
            self._write(report.as_dict())
            self._news.set()

    def report_maintenance(self, done: "Maintained") -> None:
        if isinstance(done, str):
            self._write({"warning": done})
        else:
            kind = "checked" if hasattr(done, "failed") else "expired" if hasattr(done, "expired") else "compacted"
            self._write({kind: done})
        self._news.set()

    def _beat(self) -> None:
        while not self._ended:
            if self._news.wait(self._heartbeat_seconds):
                self._news.clear()
            else:
                now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
                try:
                    self._write({"heartbeat": True, "at": now, "rounds": self._rounds})
                except OSError as error:
                    self._error = error
                    self._stop.set()
                    return

    def _write(self, document: Mapping[str, Any]) -> None:
        with self._writing:
            print_json(document)
            sys.stdout.flush()


def _print_maintenance(done: "Maintained") -> None:
    for line in [done] if isinstance(done, str) else done.lines:
        typer.echo(line, err=True)


def _report_text(show: ShowProgress) -> "Callable[[IngestReport], None]":
    """Updates one line on a terminal; elsewhere prints a line for each round that applied events, or failed or warns differently."""
    total = 0
    known: list[str] = []

    def report_round(report: "IngestReport") -> None:
        nonlocal total, known
        total += sum(sum(t.events.values()) for t in report.tables)
        quarantined = sum(t.quarantined for t in report.tables) + report.unassigned
        parts = [f"{datetime.now(UTC):%H:%M:%S}", counted(total, "event")]
        parts += [f"{t.table} snapshot {t.snapshot_id}" for t in report.tables if t.mirror_commits]
        parts += [f"{quarantined:,} to quarantine"] if quarantined else []
        parts += [f"{t.table} indexes: {w}" for t in report.tables if t.indexes for w in t.indexes.warnings]
        conversions = [(t.table, t.conversion) for t in report.tables if t.conversion is not None]
        parts += [f"{name} deletes were not converted: {c.warning}" for name, c in conversions if c.warning]
        applied = any(t.error is None and t.status != "nothing new" for t in report.tables)
        failures = [f"{t.table} failed: {t.error.removeprefix(f'{t.table}: ')}" for t in report.tables if t.error]
        failures += [f"warning: {warning}" for warning in report.warnings]
        show(", ".join(parts + failures))
        if not sys.stderr.isatty() and (applied or failures != known):
            typer.echo(", ".join(parts + (failures or ["no more failures"] if known else failures)), err=True)
        known = failures

    return report_round
