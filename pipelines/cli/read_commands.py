"""The commands that read rows: `nevermore scan`, `changes`, `explain` and `why`."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nevermore.pipelines.cli.arguments import (
    AsJson,
    AsOf,
    Columns,
    Format,
    Limit,
    Metrics,
    Null,
    OptionalConfig,
    Output,
    Ref,
    Relocate,
    ScanSettings,
    SnapshotId,
    TableName,
    Where,
    build_scan,
    config_of,
    log_progress,
    open_named_table,
    parse_scan_options,
    split_names,
)
from nevermore.pipelines.cli.row_output import write_rows
from nevermore.pipelines.cli.terminal import print_result, write_page
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.wording import counted

if TYPE_CHECKING:
    from nevermore.pipelines.changes.change_log import KeyLog
    from nevermore.pipelines.config.project import Config
    from nevermore.scan_core import KeyReport, RowFate, ScanMetrics


def scan(
    table: TableName,
    relocate: Relocate = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    ref: Ref = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    sample: Annotated[
        float | None,
        typer.Option(
            "--sample",
            metavar="FRACTION",
            help="Return a random fraction of the rows, such as 0.01.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Random seed of --sample: the same seed returns the same rows.")
    ] = 0,
    output_format: Format = None,
    output: Output = None,
    null: Null = None,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of rows.")] = False,
    metrics: Metrics = False,
    scan_option: ScanSettings = None,
    config: OptionalConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON lines, a count as an object.")] = False,
) -> None:
    """Print the rows of a table, without deleted rows.

    Example: `nevermore scan warehouse/shop/orders --where "amount > 100" --columns id,amount --format jsonl`
    """
    request = build_scan(
        open_named_table(table, relocate, config, scan_option),
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
        raise ConfigError("--count prints a single number and cannot be combined with --output or --format")
    if count:
        number = request.count()
        print_result({"count": number}, [str(number)], as_json=as_json)
    else:
        write_rows(request, output_format, output, null=null, as_json=as_json)
    if metrics:
        _print_metrics(request.metrics)


def changes(
    table: TableName,
    start: Annotated[
        int | None,
        typer.Option("--from", metavar="ID", help="Start after this snapshot; default: before the first one."),
    ] = None,
    end: Annotated[
        int | None,
        typer.Option("--to", metavar="ID", help="End with this snapshot; default: the current one."),
    ] = None,
    relocate: Relocate = None,
    ref: Ref = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    trust_rewrites: Annotated[
        bool,
        typer.Option("--trust-rewrites", help="Assume that compactions changed no rows, instead of comparing them."),
    ] = False,
    output_format: Format = None,
    output: Output = None,
    null: Null = None,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of deleted and inserted rows.")] = False,
    metrics: Metrics = False,
    scan_option: ScanSettings = None,
    config: OptionalConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON lines, counts as an object.")] = False,
) -> None:
    """Print the rows that changed between two snapshots; an update is a delete and an insert.

    Each row has a column `_change_type`. Rows that a compaction moved, or that were inserted and deleted in between, are not
    printed.

    Example: `nevermore changes warehouse/shop/orders --from 4012 --to 4377 --format jsonl`
    """
    if end is not None and ref is not None:
        raise ConfigError("--to and --ref are mutually exclusive; give one of them")
    scan = build_scan(
        open_named_table(table, relocate, config, scan_option),
        columns=columns,
        where=where,
        snapshot=end,
        ref=ref,
        limit=limit,
    )
    request = scan.changes(start, trust_rewrites=trust_rewrites)
    if count:
        counts: Counter[str] = Counter()
        for batch in request.to_batches():
            counts.update({str(c["values"]): c["counts"] for c in batch.column(0).value_counts().to_pylist()})
        deletes, inserts = counts["delete"], counts["insert"]
        print_result({"deletes": deletes, "inserts": inserts}, [f"-{deletes} +{inserts}"], as_json=as_json)
    else:
        write_rows(request, output_format, output, null=null, as_json=as_json)
    if metrics:
        _print_metrics(request.metrics)


def _print_metrics(metrics: "ScanMetrics") -> None:
    import orjson

    typer.echo(orjson.dumps(metrics.as_dict(), option=orjson.OPT_INDENT_2), err=True)


def explain(
    table: TableName,
    relocate: Relocate = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    ref: Ref = None,
    columns: Columns = None,
    where: Where = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            help="For a published table: explain how this partition is built. Repeatable.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            "--output",
            "-o",
            metavar="FILE",
            help="Draw the plan in this HTML file instead.",
        ),
    ] = None,
    scan_option: ScanSettings = None,
    config: OptionalConfig = None,
    as_json: AsJson = False,
) -> None:
    """Print a plan without running it, or draw it (`--html`).

    For most tables this is the plan of a scan: pruned files and partitions, applicable deletes and how they are matched.
    For a table under `published` in the config, it is what the next `publish` would build and why, and how it would read
    each mirror (conditions, join keys, files, reader). Give an option such as `--where` or `--html`, or a path instead of the
    name, to see the plan of a scan of such a table.
    """
    of_scan = {
        "--relocate": relocate,
        "--snapshot": snapshot,
        "--as-of": as_of,
        "--ref": ref,
        "--columns": columns,
        "--where": where,
        "--html": html,
    }
    given = [option for option, value in of_scan.items() if value is not None]
    settings = config_of(table, config)
    if settings is not None and table in settings.published and not given:
        settings = settings.with_scan(parse_scan_options(scan_option))
        _explain_publication(settings, table, partition or (), as_json=as_json)
        return
    if partition:
        what = f"together with {given[0]}" if given else f"for {table}, which is not under `published` in the config"
        raise ConfigError(f"--partition explains how a published table is built; it cannot be used {what}")
    request = build_scan(
        open_named_table(table, relocate, config, scan_option),
        columns=columns,
        where=where,
        snapshot=snapshot,
        as_of=as_of,
        ref=ref,
    )
    if html is not None:
        write_page(html, request.plan().to_html(), as_json=as_json)
        return
    text = request.explain()
    print_result({"explain": text, "metrics": request.plan().metrics.as_dict()}, [text], as_json=as_json)


def _explain_publication(settings: "Config", name: str, partitions: Sequence[str], *, as_json: bool) -> None:
    from nevermore.pipelines.cli.terminal import describe_publication
    from nevermore.pipelines.publish.refresh import publish

    if not as_json:
        log_progress()
    report = publish(settings, name, partitions=partitions, is_dry=True)
    lines = [describe_publication(report, with_reasons=True)]
    documents = {"explain": report.as_dict()}
    if report.is_unchanged:
        everything = publish(settings, name, is_full=True, is_dry=True)
        lines.append(describe_publication(everything, with_reasons=True))
        documents["full"] = everything.as_dict()
    print_result(documents, lines, as_json=as_json)


def why(
    table: TableName,
    key: Annotated[
        list[str],
        typer.Option(
            "--key",
            metavar="COLUMN=VALUE[,...]",
            help="Key to look up; `null` is NULL, `'null'` is text. Put parts with commas in double quotes. Repeatable.",
        ),
    ],
    relocate: Relocate = None,
    snapshot: SnapshotId = None,
    as_of: AsOf = None,
    ref: Ref = None,
    scan_option: ScanSettings = None,
    config: OptionalConfig = None,
    as_json: AsJson = False,
) -> None:
    """Explain which rows of a key are alive or deleted, and which delete file removed each.

    Example: `nevermore why warehouse/shop/orders --key id=5`
    """
    from nevermore.scan_core import key_report

    values = parse_key(",".join(key))
    scan = build_scan(open_named_table(table, relocate, config, scan_option), snapshot=snapshot, as_of=as_of, ref=ref)
    report = key_report(scan, values)
    log = _key_log(table, config, values) if report.seen_in is None else None
    print_result(_document(report, values, log), [*_lines(report), *_log_lines(log)], as_json=as_json)


def parse_key(text: str) -> dict[str, str | None]:
    """Parse `id=5,name=x` into a mapping.

    Raises:
        ConfigError: a part without `=`, or a repeated column.
    """
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
    """What the change log contains about the key; None for tables that are not mirrors of the config."""
    from nevermore import scan_core
    from nevermore.pipelines.changes.change_log import key_log
    from nevermore.pipelines.config.project import change_log_name
    from nevermore.pipelines.iceberg.catalog import find_table, open_to_look

    settings, log_name = config_of(name, config), change_log_name(name)
    catalog = None if settings is None else open_to_look(settings)
    found = None if catalog is None else find_table(catalog, log_name)
    return None if found is None else key_log(log_name, scan_core.open_table(found), key)


def _log_lines(log: "KeyLog | None") -> list[str]:
    if log is None:
        return []
    if not log.newest:
        return [f"  {log.name} has no changes for this key either"]
    lines = [f"  {log.name} has {counted(log.num_changes, 'change')} for this key:"]
    lines += [f"    {c.ordinal}: {c.op}  {c.source_file or ''} at {c.source_offset}" for c in log.newest]
    if log.ends_deleted:
        return [*lines, "  the row was inserted and deleted within one batch, so it was never written to the mirror"]
    return [*lines, "  not applied yet, or rejected: see nevermore status and nevermore quarantine"]


def _verdict(report: "KeyReport", log: "KeyLog | None" = None) -> str:
    if report.seen_in is None:
        return "never seen" if log is None or not log.newest else "came and went" if log.ends_deleted else "not applied"
    return "alive" if report.num_alive else "gone"


def _lines(report: "KeyReport") -> list[str]:
    if report.snapshot is None:
        return [f"{report.key}: never seen: the table has no snapshot"]
    asked = f"snapshot {report.snapshot.snapshot_id}"
    if report.seen_in is None:
        return [f"{report.key}: never seen: no row of {asked} or of earlier snapshots has this key"]
    if report.seen_in == report.snapshot:
        head = f"{report.key}: {_verdict(report)} in {asked}, {report.num_alive} of {len(report.rows)} rows are alive"
        return [head, *(f"  {_row(row)}" for row in report.rows)]
    head = f"{report.key}: gone: no file of {asked} has a row with this key"
    lines = [head, f"  last seen in snapshot {report.seen_in.snapshot_id}:"]
    lines += [f"    {_row(row)}" for row in report.rows]
    if report.removed_in is not None:
        removed = report.removed_in
        lines.append(f"  snapshot {removed.snapshot_id} ({removed.operation or 'unknown operation'}) removed the files")
    return lines


def _row(row: "RowFate") -> str:
    place = f"{row.file} row {row.position}, data sequence number {row.sequence_number}"
    if (made := row.written_in) is not None:
        at = datetime.fromtimestamp(made.timestamp_ms / 1000, UTC)
        place += f" ({made.operation or 'snapshot'} of {at:%Y-%m-%d %H:%M:%S} UTC, snapshot {made.snapshot_id})"
    if row.deleted_by is None:
        return f"alive  {place}"
    by = row.deleted_by
    on = f" on ({', '.join(by.columns)})" if by.columns else ""
    return f"dead   {place}\n           by {by.kind}{on} {by.path}, sequence number {by.sequence_number}, of {by.scope}"


def _document(report: "KeyReport", key: dict[str, str | None], log: "KeyLog | None") -> dict[str, Any]:
    from dataclasses import asdict, replace

    return {
        "key": key,
        "verdict": _verdict(report, log),
        "snapshot_id": report.snapshot and report.snapshot.snapshot_id,
        "seen_in_snapshot_id": report.seen_in and report.seen_in.snapshot_id,
        "removed_in_snapshot_id": report.removed_in and report.removed_in.snapshot_id,
        "rows": [
            asdict(replace(row, written_in=None))
            | {"alive": row.is_alive, "written_in": row.written_in and row.written_in.snapshot_id}
            for row in report.rows
        ],
        "logged_changes": None if log is None else [asdict(change) for change in log.newest],
    }
