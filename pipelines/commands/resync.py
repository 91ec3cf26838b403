"""`nevermore resync`: a mirror made anew from its change log, or from a full load of the source."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG
from pipelines.commands.terminal import counted


def resync(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A mirror of the config.", show_default=False)],
    snapshot_source: Annotated[
        list[str] | None,
        typer.Option(
            "--snapshot-source", metavar="PATH", help="Files of a full load, or a pattern.", show_default=False
        ),
    ] = None,
    snapshot_format: Annotated[
        str | None,
        typer.Option(
            "--snapshot-format", metavar="FORMAT", help="Theirs, if not that of the feed.", show_default=False
        ),
    ] = None,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as an object.")] = False,
) -> None:
    """Make a mirror anew from its change log; readers see the old rows or the new ones, nothing between.

    With `--snapshot-source` the rows of a full load go into the log first: they take the place of all rows, and keys that
    the load lacks are gone. A table that was adopted is made anew only so: its log does not have the rows that it began with.
    """
    from pipelines.config import load
    from pipelines.recovery import open_existing
    from pipelines.resync import resync as make_anew
    from pipelines.resync import resync_from
    from pipelines.table_patterns import expanded

    settings = load(config)
    settings.table(table)
    catalog = open_existing(settings)
    current = expanded(settings, catalog)
    if snapshot_source:
        paths = tuple(p if "://" in p else str(Path(p).absolute()) for p in snapshot_source)
        done = resync_from(catalog, current, table, paths, snapshot_format)
    else:
        done = make_anew(catalog, current, table)
    if as_json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps(asdict(done)))
    else:
        typer.echo(
            f"{table}: {counted(done.num_rows, 'row')} from {counted(done.num_changes, 'change')}, snapshot {done.snapshot_id}"
        )
        if done.quarantined:
            typer.echo(f"{table}: {counted(done.quarantined, 'event')} went to quarantine", err=True)
    raise typer.Exit(3 if done.quarantined else 0)
