"""`nevermore why`: why the rows of a key are alive or gone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.table_argument import AS_OF, CONFIG, REF, RELOCATE, SNAPSHOT, TABLE, open_named_table
from pipelines.errors import ConfigError

if TYPE_CHECKING:
    from scan_core.why import KeyReport, RowFate


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
    from pipelines.commands.scan_request import build_scan
    from scan_core.why import key_report

    values = parse_key(",".join(key))
    scan = build_scan(
        open_named_table(table, relocate, config), columns=None, where=None, snapshot=snapshot, as_of=as_of, ref=ref
    )
    report = key_report(scan, values)
    if as_json:
        import orjson

        typer.echo(orjson.dumps(_document(report, values)))
    else:
        typer.echo("\n".join(_lines(report)))


def parse_key(text: str) -> dict[str, str | None]:
    """`id=5,name=x` as a mapping.

    Raises:
        ConfigError: a part without `=`, or a column named twice.
    """
    from pipelines.commands.scan_request import split_names

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


def _verdict(report: "KeyReport") -> str:
    if report.seen_in is None:
        return "never seen"
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


def _document(report: "KeyReport", key: dict[str, str | None]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "key": key,
        "verdict": _verdict(report),
        "snapshot_id": report.snapshot and report.snapshot.snapshot_id,
        "seen_in_snapshot_id": report.seen_in and report.seen_in.snapshot_id,
        "removed_in_snapshot_id": report.removed_in and report.removed_in.snapshot_id,
        "rows": [asdict(row) | {"alive": row.is_alive} for row in report.rows],
    }
