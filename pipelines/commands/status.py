"""`nevermore status`: positions, lag, delete debt and last commits of each mirror, freshness of published tables."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG
from pipelines.commands.terminal import counted

if TYPE_CHECKING:
    from datetime import datetime

    from pipelines.status import CommitFacts, PublishedStatus, TableStatus


def status(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Tables of the config; all if none is named.", show_default=False),
    ] = None,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False,
) -> None:
    """Show how far each table is: changes logged and applied, deletes carried, quarantine, last commits.

    Of published tables: when they were made, and which of their mirrors have changed since.
    """
    from pipelines.catalog import has_catalog, open_catalog
    from pipelines.config import load
    from pipelines.status import published_status
    from pipelines.status import status as status_of
    from pipelines.table_patterns import expanded

    settings = load(config)
    catalog = open_catalog(settings) if has_catalog(settings) else None
    known = settings if catalog is None else expanded(settings, catalog)
    mirrors = [name for name in tables or () if name not in known.published]
    found = [] if tables and not mirrors else status_of(catalog, known, mirrors or None)
    published = published_status(catalog, known, tables or None)
    if as_json:
        import orjson

        documents = [*map(_mirror_document, found), *({"kind": "published", **asdict(table)} for table in published)]
        typer.echo(orjson.dumps(documents))
        return
    if not found and not published:
        typer.echo(f"no table of {config} was found in its feeds yet; nevermore ingest looks")
    for mirror in found:
        typer.echo("\n".join(_lines(mirror)))
    for table in published:
        typer.echo("\n".join(_published_lines(table)))


def _mirror_document(table: "TableStatus") -> dict[str, Any]:
    """Positions are JSON themselves: as an object, not as text inside of the document."""
    import orjson

    return {
        "kind": "mirror",
        **asdict(table),
        "position": None if table.position is None else orjson.loads(table.position),
        "place": table.place,
        "waiting": table.waiting,
        "lag_seconds": table.lag_seconds,
        "delete_debt": table.delete_debt,
    }


def _published_lines(table: "PublishedStatus") -> list[str]:
    if not table.commits:
        return [f"{table.table}: never published" + ("" if table.error is None else f"; {table.error}")]
    if table.error is not None:
        state = table.error
    elif table.behind is None:
        state = "its snapshots do not say what it was made from"
    elif table.behind:
        state = f"behind {', '.join(table.behind)}"
    else:
        state = "up to date"
    head = f"{table.table}: published, {counted(table.rows, 'row')} in {counted(table.data_files, 'file')}, {state}"
    return [head, *map(_commit_line, table.commits)]


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
        lines.append(f"  quarantine  {counted(table.quarantined, 'event')}")
    return lines + [_commit_line(commit) for commit in table.commits]


def _commit_line(commit: "CommitFacts") -> str:
    counts = f"{counted(commit.added_rows, 'row')}, {counted(commit.added_deletes, 'delete')}"
    return f"  commit      {_when(commit.committed_at)} {commit.operation} {commit.snapshot_id}: {counts}"


def _when(moment: "datetime | None") -> str:
    return "unknown" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
