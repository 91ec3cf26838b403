"""`nevermore materialize`: re-make business days of a published table."""

from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.spark_options import MASTER, REMOTE

if TYPE_CHECKING:
    from pipelines.published.materialize import MaterializeReport


def materialize(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A table under `published` in the config.", show_default=False)
    ],
    day: Annotated[
        str, typer.Option("--day", help="The business day, 2026-01-31; FIRST..LAST for several.", show_default=False)
    ],
    config: Annotated[Path, typer.Option("--config", help="The project's config.")] = Path("nevermore.yaml"),
    master: Annotated[str | None, MASTER] = None,
    remote: Annotated[str | None, REMOTE] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per day.")] = False,
) -> None:
    """Make business days of a published table anew, each in one snapshot: replaced, appended or upserted as its mode says."""
    from pipelines.config import load
    from pipelines.published.materialize import materialize as make

    settings = load(config)
    for one in days(day):
        report = make(settings, name, one, master=master, remote=remote)
        if as_json:
            import orjson

            typer.echo(orjson.dumps(report.as_dict()))
        else:
            typer.echo(f"{name} {one}: {_told(report)}")


def _told(report: "MaterializeReport") -> str:
    if report.is_repeat:
        return f"an earlier run has appended these rows, snapshot {report.snapshot_id}"
    replaced = f", {report.delete_rows:,} keys deleted first" if report.delete_rows else ""
    return (
        f"{report.rows:,} rows in {report.data_files} files{replaced}, snapshot {report.snapshot_id}; "
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
