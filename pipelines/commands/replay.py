"""`nevermore replay`: part of a change log applied to its mirror once more."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG
from pipelines.commands.terminal import counted


def replay(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A mirror of the config.", show_default=False)],
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="ORDINAL|TIME", help="First change, or when it arrived.", show_default=False),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="ORDINAL|TIME", help="Last change, or when it arrived.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All changes, instead of a range.")] = False,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as an object.")] = False,
) -> None:
    """Apply a range of the change log once more: its keys end as the log says, with all that came later.

    Example: `nevermore replay shop.products --from 1200 --to 1300`
    """
    from pipelines.config import load
    from pipelines.errors import ConfigError
    from pipelines.recovery import open_existing
    from pipelines.replay import replay as apply_again
    from pipelines.table_patterns import expanded

    settings = load(config)
    settings.table(table)
    if everything == (start is not None or end is not None):
        raise ConfigError(
            "--all and --from or --to are mutually exclusive; give one of them"
            if everything
            else f"nevermore replay {table} needs a range: --from and --to, one of them, or --all for the whole change log"
        )
    catalog = open_existing(settings)
    done = apply_again(catalog, expanded(settings, catalog), table, start, end)
    if as_json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps(asdict(done)))
    else:
        typer.echo(
            f"{table}: changes {done.first:,} to {done.last:,}, {done.num_changes:,} applied in {done.commits} "
            f"commit{'' if done.commits == 1 else 's'}, snapshot {done.snapshot_id}"
        )
        if done.quarantined:
            typer.echo(f"{table}: {counted(done.quarantined, 'event')} went to quarantine", err=True)
    raise typer.Exit(3 if done.quarantined else 0)
