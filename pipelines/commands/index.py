"""`nevermore index`: bitmap indexes of columns, beside the data files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.table_argument import CONFIG, TABLE, changeable_table

if TYPE_CHECKING:
    from pipelines.maintenance.bitmap_indexes import IndexReport

_MOST_LISTED = 20
DEFAULT_MOST_VALUES = 10_000


def index(
    table: Annotated[str, TABLE],
    columns: Annotated[
        str, typer.Option("--columns", metavar="A,B", help="Columns to index; `struct.member` names a member.")
    ],
    snapshot: Annotated[
        int | None, typer.Option("--snapshot", metavar="ID", help="Index this snapshot.", show_default=False)
    ] = None,
    most_values: Annotated[
        int, typer.Option("--most-values", min=1, help="Leave out files with more distinct values of a column.")
    ] = DEFAULT_MOST_VALUES,
    config: Annotated[Path | None, CONFIG] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as an object.")] = False,
) -> None:
    """Write bitmap indexes: filters on these columns then find rows without reading the columns.

    Files that have an index keep it, so run it again after new data. Other engines ignore indexes.

    Example: `nevermore index shop.orders --columns status,country`
    """
    from pipelines.commands.scan_request import split_names
    from pipelines.maintenance.bitmap_indexes import build_indexes
    from pipelines.maintenance.statistics_target import statistics_target

    target = statistics_target(changeable_table(table, config))
    report = build_indexes(target, split_names(columns), snapshot_id=snapshot, most_values=most_values)
    if as_json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps(asdict(report)))
    else:
        typer.echo("\n".join(_lines(report)))


def _lines(report: "IndexReport") -> list[str]:
    head = f"snapshot {report.snapshot_id}: {report.data_files} data files, columns {', '.join(report.columns)}"
    counts = f"  {report.built} indexes built, {report.kept} kept, {len(report.skipped)} left out"
    where = "nothing to register" if report.path is None else f"{report.size_bytes:,} bytes in {report.path}"
    lines = [head, f"{counts}; {where}"]
    lines += [f"  left out: {s.column} of {s.data_file}: {s.reason}" for s in report.skipped[:_MOST_LISTED]]
    if len(report.skipped) > _MOST_LISTED:
        lines.append(f"  and {len(report.skipped) - _MOST_LISTED} more; --json lists all")
    return lines
