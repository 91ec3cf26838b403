"""`nevermore materialize`: re-make business days of a published table."""

from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

import typer


def materialize(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A table under `published` in the config.", show_default=False)
    ],
    day: Annotated[
        str, typer.Option("--day", help="The business day, 2026-01-31; FIRST..LAST for several.", show_default=False)
    ],
    config: Annotated[Path, typer.Option("--config", help="The project's config.")] = Path("nevermore.yaml"),
    master: Annotated[str, typer.Option("--master", help="Where Spark runs, as for spark-submit.")] = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per day.")] = False,
) -> None:
    """Make business days of a published table anew, each replaced in one snapshot."""
    from pipelines.config import load
    from pipelines.materialize import materialize as make

    settings = load(config)
    for one in days(day):
        report = make(settings, name, one, master=master)
        if as_json:
            import orjson

            typer.echo(orjson.dumps(report.as_dict()))
        else:
            typer.echo(
                f"{name} {one}: {report.rows:,} rows in {report.data_files} files, snapshot {report.snapshot_id}; "
                f"{report.rows_removed_by_deletes:,} rows removed by deletes while reading"
            )


def days(text: str) -> list[str]:
    """The days of `2026-01-31` or `2026-01-01..2026-01-31`, both ends included.

    Raises:
        ConfigError: not such a text, or the last day is before the first.
    """
    from pipelines.errors import ConfigError

    first, separator, last = text.partition("..")
    try:
        start = date.fromisoformat(first)
        end = date.fromisoformat(last) if separator else start
    except ValueError as error:
        raise ConfigError(f"--day {text!r}: write 2026-01-31 or 2026-01-01..2026-01-31") from error
    if end < start:
        raise ConfigError(f"--day {text!r}: the last day is before the first")
    return [(start + timedelta(days=n)).isoformat() for n in range((end - start).days + 1)]
