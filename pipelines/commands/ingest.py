"""`nevermore ingest`: what is new in the sources, into change logs and mirrors."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipelines.ingest_report import IngestReport, TableReport
    from pipelines.table_ingest import Progress


def ingest(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...", help="Mirrors of the config; all of them if none is named.", show_default=False
        ),
    ] = None,
    config: Annotated[Path, typer.Option("--config", help="The project's config.")] = Path("nevermore.yaml"),
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
    report = run_once(settings, progress=None if as_json else _progress(), tables=tables or None)
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


def _progress() -> "Progress":
    """A line that is rewritten on a terminal; nothing elsewhere, where the summary says it all."""
    import sys

    shown = sys.stderr.isatty()

    def tell(table: "TableReport") -> None:
        if shown:
            events = sum(table.events.values())
            typer.echo(f"\r\033[K{table.table}: {events:,} events, {table.mirror_commits} commits", err=True, nl=False)

    return tell


def _print(report: "IngestReport") -> None:
    for table in report.tables:
        if table.error is not None:
            typer.echo(f"{table.table}: failed: {table.error.removeprefix(f'{table.table}: ')}", err=True)
            continue
        if table.status == "nothing new":
            typer.echo(f"{table.table}: nothing new")
            continue
        events = ", ".join(f"{number:,} {_KINDS.get(op, op)}" for op, number in sorted(table.events.items()))
        typer.echo(
            f"{table.table}: {events or 'no events'}; {table.data_rows:,} rows and {table.delete_rows:,} deletes "
            f"in {table.mirror_commits} commit{'' if table.mirror_commits == 1 else 's'}, snapshot {table.snapshot_id}"
        )
        if table.superseded:
            typer.echo(
                f"{table.table}: {table.superseded:,} events older than a truncate that was applied were left out"
            )
        for column in table.unmet_columns:
            typer.echo(f"{table.table}: {column}")
        if table.quarantined:
            typer.echo(f"{table.table}: {table.quarantined:,} events went to quarantine", err=True)
    for reason, number in report.skipped.items():
        if reason == "other table":
            names = ", ".join(name or "(no name)" for name in report.untaken_tables)
            typer.echo(f"left out: {number:,} event{'' if number == 1 else 's'} of other tables: {names}")
        else:
            typer.echo(f"left out: {number:,} {reason}")


_KINDS = {"c": "creates", "u": "updates", "d": "deletes", "r": "snapshot reads", "t": "truncates"}
