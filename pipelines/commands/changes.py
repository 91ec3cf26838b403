"""`nevermore changes`: rows inserted and deleted between two snapshots of a table."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.row_options import FORMAT, LIMIT, METRICS, OUTPUT, OutputFormat
from pipelines.commands.table_argument import COLUMNS, CONFIG, REF, RELOCATE, TABLE, WHERE, open_named_table
from pipelines.errors import ConfigError


def changes(
    table: Annotated[str, TABLE],
    start: Annotated[
        int | None,
        typer.Option("--from", metavar="ID", help="The earlier snapshot; else before the first.", show_default=False),
    ] = None,
    end: Annotated[
        int | None,
        typer.Option("--to", metavar="ID", help="The later snapshot; else the current one.", show_default=False),
    ] = None,
    relocate: Annotated[list[str] | None, RELOCATE] = None,
    ref: Annotated[str | None, REF] = None,
    columns: Annotated[str | None, COLUMNS] = None,
    where: Annotated[str | None, WHERE] = None,
    limit: Annotated[int | None, LIMIT] = None,
    trust_rewrites: Annotated[
        bool,
        typer.Option("--trust-rewrites", help="Believe that compactions changed nothing, rather than compare."),
    ] = False,
    output_format: Annotated[OutputFormat | None, FORMAT] = None,
    output: Annotated[Path | None, OUTPUT] = None,
    count: Annotated[bool, typer.Option("--count", help="Print how many rows were deleted and inserted.")] = False,
    metrics: Annotated[bool, METRICS] = False,
    config: Annotated[Path | None, CONFIG] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines; counts as an object.")] = False,
) -> None:
    """Show what changed between two snapshots; an update is a delete and an insert.

    Each row has a column `_change_type`. Rows that compactions moved are not changes, and a row that came and went is not shown.

    Example: `nevermore changes warehouse/shop/orders --from 4012 --to 4377 --format jsonl`
    """
    from pipelines.commands.scan_request import build_scan

    if end is not None and ref is not None:
        raise ConfigError("--to and --ref exclude each other; give one")
    scan = build_scan(
        open_named_table(table, relocate, config),
        columns=columns,
        where=where,
        snapshot=end,
        as_of=None,
        ref=ref,
        limit=limit,
    )
    request = scan.changes(start, trust_rewrites=trust_rewrites)
    if count:
        counts: Counter[str] = Counter()
        for batch in request.to_batches():
            counts.update({str(c["values"]): c["counts"] for c in batch.column(0).value_counts().to_pylist()})
        deletes, inserts = counts["delete"], counts["insert"]
        text = f'{{"deletes": {deletes}, "inserts": {inserts}}}' if as_json else f"-{deletes} +{inserts}"
        typer.echo(text)
    else:
        from pipelines.commands.row_output import write_rows

        chosen = OutputFormat.JSONL if as_json else output_format
        write_rows(request, chosen.value if chosen else None, output)
    if metrics:
        import orjson

        typer.echo(orjson.dumps(request.metrics.as_dict(), option=orjson.OPT_INDENT_2), err=True)
