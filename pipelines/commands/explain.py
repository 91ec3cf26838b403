"""`nevermore explain`: what a scan would read, what it would skip, and why."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.table_argument import (
    AS_OF,
    COLUMNS,
    CONFIG,
    REF,
    RELOCATE,
    SNAPSHOT,
    TABLE,
    WHERE,
    open_named_table,
)


def explain(
    table: Annotated[str, TABLE],
    relocate: Annotated[list[str] | None, RELOCATE] = None,
    snapshot: Annotated[int | None, SNAPSHOT] = None,
    as_of: Annotated[str | None, AS_OF] = None,
    ref: Annotated[str | None, REF] = None,
    columns: Annotated[str | None, COLUMNS] = None,
    where: Annotated[str | None, WHERE] = None,
    config: Annotated[Path | None, CONFIG] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The text and the counters as an object.")] = False,
) -> None:
    """Show the plan of a scan: files and partitions pruned, deletes that apply and how they are matched."""
    from pipelines.commands.scan_request import build_scan

    request = build_scan(
        open_named_table(table, relocate, config), columns=columns, where=where, snapshot=snapshot, as_of=as_of, ref=ref
    )
    text = request.explain()
    if as_json:
        import orjson

        typer.echo(orjson.dumps({"explain": text, "metrics": request.plan().metrics.as_dict()}))
    else:
        typer.echo(text)
