"""`nevermore recover`: a catalog that lost tables, or names those of another place, brought back to its warehouse."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG


def recover(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Tables of the warehouse; all if none is named.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False,
) -> None:
    """Make the catalog name the newest whole metadata of each table in the warehouse, after a loss, a move or a copy.

    Mirrors, change logs, quarantines and published tables are found by their folders. Tables of a project that was moved
    or copied get metadata with the paths of the new place. Run it while nothing else writes.
    """
    from pipelines.catalog import open_catalog
    from pipelines.config import load
    from pipelines.recovery import recover as bring_back

    settings = load(config)
    done = bring_back(settings, open_catalog(settings), tables or (), is_dry=dry_run)
    if as_json:
        import orjson

        typer.echo(orjson.dumps([asdict(table) for table in done]))
        return
    if not done:
        typer.echo(f"the warehouse {settings.catalog.warehouse} has no table")
    for table in done:
        would = "would be " if dry_run and table.action != "unchanged" else ""
        state = "empty" if table.snapshot_id is None else f"snapshot {table.snapshot_id}"
        typer.echo(f"{table.table}: {would}{table.action}, {state}, {Path(table.metadata).name}")
        for reason in table.passed_over:
            typer.echo(f"{table.table}: passed over {reason}", err=True)
