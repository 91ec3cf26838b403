"""`nevermore resync`: a mirror made anew from its change log."""

from pathlib import Path
from typing import Annotated

import typer


def resync(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A mirror of the config.", show_default=False)],
    config: Annotated[Path, typer.Option("--config", help="The project's config.")] = Path("nevermore.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as an object.")] = False,
) -> None:
    """Make a mirror anew from its change log; readers see the old rows or the new ones, nothing between."""
    from pipelines.catalog import open_catalog
    from pipelines.config import load
    from pipelines.resync import resync as make_anew
    from pipelines.table_patterns import expanded

    settings = load(config)
    settings.table(table)
    catalog = open_catalog(settings)
    done = make_anew(catalog, expanded(settings, catalog), table)
    if as_json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps(asdict(done)))
    else:
        typer.echo(f"{table}: {done.num_rows:,} rows from {done.num_changes:,} changes, snapshot {done.snapshot_id}")
        if done.quarantined:
            typer.echo(f"{table}: {done.quarantined:,} events went to quarantine", err=True)
    raise typer.Exit(3 if done.quarantined else 0)
