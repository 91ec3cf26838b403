"""`nevermore status`: positions, lag, delete debt and last commits of each table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from datetime import datetime

    from pipelines.status import TableStatus


def status(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Mirrors of the config; all if none is named.", show_default=False),
    ] = None,
    config: Annotated[Path, typer.Option("--config", help="The project's config.")] = Path("nevermore.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False,
) -> None:
    """Show how far each table is: changes logged and applied, deletes carried, quarantine, last commits."""
    from pipelines.catalog import has_catalog, open_catalog
    from pipelines.config import load
    from pipelines.status import status as status_of
    from pipelines.table_patterns import expanded

    settings = load(config)
    catalog = open_catalog(settings) if has_catalog(settings) else None
    found = status_of(catalog, settings if catalog is None else expanded(settings, catalog), tables)
    if as_json:
        from dataclasses import asdict

        import orjson

        more = [
            {"waiting": s.waiting, "lag_seconds": s.lag_seconds, "delete_debt": s.delete_debt, "place": s.place}
            for s in found
        ]
        documents = [asdict(s) | extra for s, extra in zip(found, more, strict=True)]
        typer.echo(orjson.dumps(documents))
        return
    if not found:
        typer.echo(f"no table of {config} was found in its feeds yet; nevermore ingest looks")
    for table in found:
        typer.echo("\n".join(_lines(table)))


def _lines(table: "TableStatus") -> list[str]:
    if table.position is None:
        return [f"{table.table}: nothing ingested yet"]
    applied = "unknown: no snapshot of the mirror tells it" if table.applied is None else f"{table.applied:,}"
    behind = f", {table.waiting:,} waiting" if table.waiting else ""
    if table.waiting and table.lag_seconds is not None:
        behind += f", {table.lag_seconds:,.0f} s behind the log"
    carried = f"{table.delete_rows:,} delete rows in {table.delete_files:,} files"
    lines = [
        f"{table.table}: {table.logged:,} changes logged, applied {applied}{behind}",
        f"  position    {table.place}",
        f"  log written {_when(table.log_committed_at)}",
        f"  delete debt {carried} on {table.rows_written:,} rows in {table.data_files:,} files ({table.delete_debt:.0%})",
    ]
    if table.quarantined:
        lines.append(f"  quarantine  {table.quarantined:,} events")
    for commit in table.commits:
        counts = f"{commit.added_rows:,} rows, {commit.added_deletes:,} deletes"
        lines.append(f"  commit      {_when(commit.committed_at)} {commit.operation} {commit.snapshot_id}: {counts}")
    return lines


def _when(moment: "datetime | None") -> str:
    return "unknown" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
