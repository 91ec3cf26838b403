"""The commands that read rows: `nevermore scan`, `changes`, `explain` and `why`."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.arguments import (
    AS_OF,
    COLUMNS,
    CONFIG,
    DEFAULT_CONFIG,
    FORMAT,
    LIMIT,
    METRICS,
    OUTPUT,
    REF,
    RELOCATE,
    SNAPSHOT,
    TABLE,
    WHERE,
    OutputFormat,
    is_identifier,
    open_named_table,
)
from pipelines.errors import ConfigError

if TYPE_CHECKING:
    from pipelines.changes.change_log import KeyLog
    from pipelines.cli.row_output import RowSource
    from scan_core import KeyReport, RowFate, ScanMetrics


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
    from pipelines.cli.arguments import build_scan

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
        _print_rows(request, OutputFormat.JSONL if as_json else output_format, output)
    if metrics:
        _print_metrics(request.metrics)


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
    from pipelines.cli.arguments import build_scan

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
        _print_rows(request, OutputFormat.JSONL if as_json else output_format, output)
    if metrics:
        _print_metrics(request.metrics)


def _print_rows(rows: "RowSource", output_format: OutputFormat | None, output: Path | None) -> None:
    from pipelines.cli.row_output import write_rows

    write_rows(rows, output_format.value if output_format else None, output)


def _print_metrics(metrics: "ScanMetrics") -> None:
    import orjson

    typer.echo(orjson.dumps(metrics.as_dict(), option=orjson.OPT_INDENT_2), err=True)


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
    from pipelines.cli.arguments import build_scan

    request = build_scan(
        open_named_table(table, relocate, config), columns=columns, where=where, snapshot=snapshot, as_of=as_of, ref=ref
    )
    text = request.explain()
    if as_json:
        import orjson

        typer.echo(orjson.dumps({"explain": text, "metrics": request.plan().metrics.as_dict()}))
    else:
        typer.echo(text)


def why(
    table: Annotated[str, TABLE],
    key: Annotated[
        list[str],
        typer.Option(
            "--key",
            metavar="COLUMN=VALUE[,...]",
            help="The key; `null` is NULL, `'null'` the word. A part with a comma is written in double quotes. Repeatable.",
            show_default=False,
        ),
    ],
    relocate: Annotated[list[str] | None, RELOCATE] = None,
    snapshot: Annotated[int | None, SNAPSHOT] = None,
    as_of: Annotated[str | None, AS_OF] = None,
    ref: Annotated[str | None, REF] = None,
    config: Annotated[Path | None, CONFIG] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as an object.")] = False,
) -> None:
    """Tell why the rows of a key are alive or gone, and which delete file removed each.

    Example: `nevermore why warehouse/shop/orders --key id=5`
    """
    from pipelines.cli.arguments import build_scan
    from scan_core import key_report

    values = parse_key(",".join(key))
    scan = build_scan(
        open_named_table(table, relocate, config), columns=None, where=None, snapshot=snapshot, as_of=as_of, ref=ref
    )
    report = key_report(scan, values)
    log = _key_log(table, config, values) if report.seen_in is None else None
    if as_json:
        import orjson

        typer.echo(orjson.dumps(_document(report, values, log)))
    else:
        typer.echo("\n".join([*_lines(report), *_log_lines(log)]))


def parse_key(text: str) -> dict[str, str | None]:
    """`id=5,name=x` as a mapping.

    Raises:
        ConfigError: a part without `=`, or a column named twice.
    """
    from pipelines.cli.arguments import split_names

    values: dict[str, str | None] = {}
    for part in split_names(text):
        name, separator, value = part.partition("=")
        if not separator or not name or name in values:
            raise ConfigError(f"--key {text!r}: write COLUMN=VALUE, several separated by commas, each column once")
        is_quoted = len(value) > 1 and value[0] == value[-1] == "'"
        values[name] = value[1:-1] if is_quoted else None if value.lower() == "null" else value
    if not values:
        raise ConfigError("--key is empty: write COLUMN=VALUE")
    return values


def _key_log(name: str, config: Path | None, key: dict[str, str | None]) -> "KeyLog | None":
    """What the change log of a mirror of the config at hand says of the key; None for other tables."""
    import scan_core

    path = config or DEFAULT_CONFIG
    if not is_identifier(name) or not path.exists():
        return None
    from pipelines.changes.change_log import key_log
    from pipelines.config.project import change_log_name, load
    from pipelines.iceberg.catalog import find_table, open_to_look

    settings, log_name = load(path), change_log_name(name)
    catalog = open_to_look(settings)
    found = None if catalog is None else find_table(catalog, log_name)
    return None if found is None else key_log(log_name, scan_core.open_table(found), key)


def _log_lines(log: "KeyLog | None") -> list[str]:
    if log is None:
        return []
    if not log.newest:
        return [f"  {log.name} has no change of it either"]
    lines = [f"  {log.name} has {log.num_changes} changes of it:"]
    lines += [f"    {c.ordinal}: {c.op}  {c.source_file or ''} at {c.source_offset}" for c in log.newest]
    if log.ends_deleted:
        return [*lines, "  the row came and went within one batch, of which only the outcome is written"]
    return [
        *lines,
        "  they are not applied (yet), or were refused: look with nevermore status and nevermore quarantine",
    ]


def _verdict(report: "KeyReport", log: "KeyLog | None" = None) -> str:
    if report.seen_in is None:
        return "never seen" if log is None or not log.newest else "came and went" if log.ends_deleted else "not applied"
    return "alive" if report.num_alive else "gone"


def _lines(report: "KeyReport") -> list[str]:
    if report.snapshot is None:
        return [f"{report.key}: never seen, the table has no snapshot"]
    asked = f"snapshot {report.snapshot.snapshot_id}"
    if report.seen_in is None:
        return [f"{report.key}: never seen, no row of {asked} or of the snapshots before it has this key"]
    if report.seen_in == report.snapshot:
        head = f"{report.key}: {_verdict(report)} in {asked}, {report.num_alive} of {len(report.rows)} rows are alive"
        return [head, *(f"  {_row(row)}" for row in report.rows)]
    head = f"{report.key}: gone, no file of {asked} has a row with this key"
    lines = [head, f"  last seen in snapshot {report.seen_in.snapshot_id}:"]
    lines += [f"    {_row(row)}" for row in report.rows]
    if report.removed_in is not None:
        removed = report.removed_in
        lines.append(f"  snapshot {removed.snapshot_id} ({removed.operation or 'unknown operation'}) removed the files")
    return lines


def _row(row: "RowFate") -> str:
    place = f"{row.file} row {row.position}, data sequence number {row.sequence_number}"
    if row.deleted_by is None:
        return f"alive  {place}"
    by = row.deleted_by
    on = f" on ({', '.join(by.columns)})" if by.columns else ""
    return f"dead   {place}\n           by {by.kind}{on} {by.path}, sequence number {by.sequence_number}, of {by.scope}"


def _document(report: "KeyReport", key: dict[str, str | None], log: "KeyLog | None") -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "key": key,
        "verdict": _verdict(report, log),
        "snapshot_id": report.snapshot and report.snapshot.snapshot_id,
        "seen_in_snapshot_id": report.seen_in and report.seen_in.snapshot_id,
        "removed_in_snapshot_id": report.removed_in and report.removed_in.snapshot_id,
        "rows": [asdict(row) | {"alive": row.is_alive} for row in report.rows],
        "logged_changes": None if log is None else [asdict(change) for change in log.newest],
    }
