"""`nevermore scan`: rows of a table without its deleted rows."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.row_options import FORMAT, LIMIT, METRICS, OUTPUT, OutputFormat
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
from pipelines.errors import ConfigError


def scan(
    table: Annotated[str, TABLE],
    relocate: Annotated[list[str] | None, RELOCATE] = None,
    snapshot: Annotated[int | None, SNAPSHOT] = None,
    as_of: Annotated[str | None, AS_OF] = None,
    ref: Annotated[str | None, REF] = None,
    columns: Annotated[str | None, COLUMNS] = None,
    where: Annotated[str | None, WHERE] = None,
    limit: Annotated[int | None, LIMIT] = None,
    sample: Annotated[
        float | None,
        typer.Option("--sample", metavar="FRACTION", help="A random part, such as 0.01.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the sample: the same seed takes the same rows.")] = 0,
    output_format: Annotated[OutputFormat | None, FORMAT] = None,
    output: Annotated[Path | None, OUTPUT] = None,
    count: Annotated[bool, typer.Option("--count", help="Print the number of rows only.")] = False,
    metrics: Annotated[bool, METRICS] = False,
    config: Annotated[Path | None, CONFIG] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines; a count as an object.")] = False,
) -> None:
    """Read the rows of a table that no delete removes.

    Example: `nevermore scan warehouse/shop/orders --where "amount > 100" --columns id,amount --format jsonl`
    """
    from pipelines.commands.scan_request import build_scan

    request = build_scan(
        open_named_table(table, relocate, config),
        columns=columns,
        where=where,
        snapshot=snapshot,
        as_of=as_of,
        ref=ref,
        limit=limit,
        sample=sample,
        seed=seed,
    )
    if count and (output is not None or output_format is not None):
        raise ConfigError("--count prints one number; leave out --output and --format")
    if count:
        number = request.count()
        typer.echo(f'{{"count":{number}}}' if as_json else str(number))
    else:
        from pipelines.commands.row_output import write_rows

        chosen = OutputFormat.JSONL if as_json else output_format
        write_rows(request, chosen.value if chosen else None, output)
    if metrics:
        import orjson

        typer.echo(orjson.dumps(request.metrics.as_dict(), option=orjson.OPT_INDENT_2), err=True)
