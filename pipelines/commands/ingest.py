"""`nevermore ingest`: what is new in the sources, into change logs and mirrors."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG
from pipelines.commands.terminal import counted, progress

if TYPE_CHECKING:
    from pipelines.ingest_report import IngestReport, TableReport


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
    from pipelines.collector import settle
    from pipelines.config import load
    from pipelines.ingest import check_tables, run_once

    settings = load(config)
    check_tables(settings)
    settle()
    for name in tables or ():
        settings.table(name)
    with progress("Reading what is new; the first run compiles its decoders", hidden=as_json) as show:
        report = run_once(settings, progress=lambda table: show(_progress_text(table)), tables=tables or None)
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
