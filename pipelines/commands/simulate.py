"""`nevermore simulate`: land the change feed of a small shop."""

from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer


def simulate(
    directory: Annotated[Path, typer.Option("--dir", help="Landing folder; gets one folder per table.")] = Path(
        "landing"
    ),
    rows: Annotated[int, typer.Option("--rows", help="Change events in all, roughly.")] = 100_000,
    batches: Annotated[int, typer.Option("--batches", help="Files per table.")] = 4,
    seed: Annotated[int, typer.Option("--seed", help="The same seed writes the same events.")] = 42,
    first_day: Annotated[
        datetime, typer.Option("--first-day", formats=["%Y-%m-%d"], help="The day of the first batch.")
    ] = datetime(2026, 1, 1),  # noqa: DTZ001 - a day
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per file.")] = False,
) -> None:
    """Write the change feed of a small shop as Debezium JSON: customers, orders and order lines, in batches."""
    from pipelines.errors import ConfigError
    from pipelines.simulate import simulate as write_feed

    feed = write_feed(directory, seed=seed, rows=rows, batches=batches, first_day=first_day.date())
    try:
        for landed in chain.from_iterable(feed):
            if as_json:
                import orjson

                typer.echo(orjson.dumps({"table": landed.table, "path": str(landed.path), "events": landed.events}))
            else:
                kinds = ", ".join(f"{number} {kind}" for kind, number in landed.events.items())
                typer.echo(f"{landed.path}: {kinds}")
    except ValueError as error:
        raise ConfigError(str(error)) from error
