"""`nevermore adopt`: an existing Iceberg table as a mirror."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG


def adopt(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A mirror of the config.", show_default=False)],
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    skip_log: Annotated[
        bool, typer.Option("--skip-log", help="The rows hold all that the change log has by now.")
    ] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Bring a table of format version 1 to version 2.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as an object.")] = False,
) -> None:
    """Make a table that Spark, Flink or PyIceberg wrote a mirror; its rows stay, its change log is applied to them.

    Refused, with nothing changed: a key that is not unique, another partitioning than the config's, format version 3.
    """
    from pipelines.adoption import adopt as make_mirror
    from pipelines.config import load
    from pipelines.recovery import open_existing

    settings = load(config)
    settings.table(table)
    done = make_mirror(open_existing(settings), settings, table, skip_log=skip_log, upgrade_format=upgrade)
    if as_json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps(asdict(done)))
        return
    key = f"key ({', '.join(done.key)})" if done.key else "no key"
    typer.echo(
        f"{table}: {done.num_rows:,} rows, {key}, changes after {done.applied_ordinal:,} will be applied; "
        f"snapshot {done.snapshot_id}"
    )
