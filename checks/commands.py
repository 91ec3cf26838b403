"""The commands that prove tables: `check` against the reference, `verify` against checksums, `publish` before rows are seen."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.arguments import (
    CONFIG,
    DEFAULT_CONFIG,
    MASTER,
    PROJECT_CONFIG,
    RELOCATE,
    REMOTE,
    TABLE_HELP,
    catalog_state,
    open_named_table,
    tell_progress,
)
from pipelines.cli.terminal import byte_progress, counted, print_json

if TYPE_CHECKING:
    from checks.damage import Verification
    from pipelines.publish.refresh_report import PublishReport


def check(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Mirrors and published tables of the config; all of them if none is named.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per check.")] = False,
) -> None:
    """Compare mirrors with their change logs and files, and published tables with their SQL, in DuckDB, and with their files.

    Exit code 0 if every check passes, 1 if one fails.
    """
    from pipelines.config.project import load
    from pipelines.errors import SourceError
    from pipelines.iceberg.catalog import check_catalog, find_table, open_to_look
    from pipelines.ingest.table_patterns import expanded

    given = load(config)
    check_catalog(given)
    catalog = open_to_look(given)
    settings = expanded(given, catalog)
    for name in tables or ():
        if name not in settings.published:
            settings.table(name)
        if find_table(catalog, name) is None:
            raise SourceError(f"there is no table {name} to check yet: ingest or publish it first")
    failed = False
    for name in tables or (*settings.tables, *settings.published):
        if name in settings.published:
            from checks.published_equality import check_published  # with DuckDB and a SQL parser: only where needed

            results = check_published(settings, name)
        else:
            from checks.mirror_checks import checks_of, run_checks

            results = run_checks(settings, name, checks_of(settings, name))
        for result in results:
            failed |= not result.passed
            if as_json:
                import orjson

                document = {
                    "table": name,
                    "check": result.name,
                    "passed": result.passed,
                    "compared": result.compared,
                    "offending_keys": result.offending_keys,
                    "details": result.details,
                }
                typer.echo(orjson.dumps(document, default=str))
                continue
            compared = ", ".join(f"{count:,} {what}" for what, count in result.compared.items())
            typer.echo(
                f"{('passed' if result.compared else 'nothing') if result.passed else 'FAILED'}  {name}  {result.name}  {compared}"
            )
            for line in [*result.details, *(f"key {key}" for key in result.offending_keys)]:
                typer.echo(f"        {line}")
    raise typer.Exit(1 if failed else 0)


_MOST_SHOWN = 20
"""Partitions of which the reason is shown; --json has all."""


def publish(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Tables under `published` in the config; by default all but those to whose partitions rows are added.",
        ),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            "--day",
            help="Make this partition, whatever changed: 2026-01-31, 2026-01-31T13, 2026-01, 2026, a value, or FIRST..LAST. Repeatable.",
            show_default=False,
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Make all partitions, whatever changed.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", "--dry-run", help="Say what would be made and why, and make nothing.")
    ] = False,
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked", help="Ask for no check, neither of the mirrors nor of the rows; the snapshot says so."
        ),
    ] = False,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    master: Annotated[str | None, MASTER] = None,
    remote: Annotated[str | None, REMOTE] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per table.")] = False,
) -> None:
    """Bring published tables up to date: of incremental ones only the partitions that changed, in one snapshot each.

    What is read has passed its checks: those that are missing are run first, and a mirror that fails one is not published.
    """
    from checks.published_equality import ProjectAuditor
    from pipelines.config.project import load
    from pipelines.errors import ConfigError
    from pipelines.iceberg.catalog import check_catalog
    from pipelines.publish.query import (
        left_out_without_asking,
        made_without_asking,
        published_query,
        requested_partitions,
    )
    from pipelines.publish.refresh import publish as make

    settings = load(config)
    chosen = names or made_without_asking(settings)
    if not chosen and settings.published:
        raise ConfigError(f"--partition or a name: rows are added to {', '.join(settings.published)} when asked for")
    if not chosen:
        raise ConfigError(f"{config} publishes nothing; add an entry under published")
    if partition and len(chosen) > 1:
        raise ConfigError("--partition is of one table; name it")
    for name in chosen:
        published_query(settings, name)  # all mistakes are told before Spark starts
        requested_partitions(settings, name, partition or (), is_full=full)
    check_catalog(settings)
    if not as_json:
        tell_progress()
    for name in chosen:
        report = make(
            settings,
            name,
            partitions=partition or (),
            is_full=full,
            is_dry=explain,
            master=master,
            remote=remote,
            auditor=None if unchecked else ProjectAuditor(),
        )
        if as_json:
            print_json(report.as_dict())
        else:
            typer.echo(_told(report, with_reasons=explain))
    for name, reason in ({} if names else left_out_without_asking(settings)).items():
        left_out = {"name": name, "made": "nothing", "left_out": True, "reason": reason}
        if as_json:
            print_json(left_out)
        else:
            typer.echo(f"{name}: left out, {reason}")


def _told(report: "PublishReport", *, with_reasons: bool) -> str:
    if report.is_unchanged:
        return f"{report.name}: up to date, {report.reason}"
    what = "all partitions" if report.partitions is None else f"{len(report.partitions)} partitions"
    if report.partitions is not None and len(report.partitions) == 1:
        what = f"partition {report.partitions[0]}"
    if report.is_dry:
        told = f"{report.name}: would make {what} ({report.reason})"
    else:
        verb = {"replace": "made", "append": "appended", "upsert": "upserted"}[report.mode]
        deleted = f", {report.delete_rows:,} keys deleted first" if report.delete_rows else ""
        told = (
            f"{report.name}: {verb} {what} ({report.reason}): {report.rows:,} rows in {report.data_files} files{deleted}, "
            f"snapshot {report.snapshot_id}"
        )
    if not report.is_dry and report.is_unchecked:
        told += "; unchecked"
    if empty := report.empty_partitions:
        shown = ", ".join(empty[:_MOST_SHOWN]) + (
            f" and {len(empty) - _MOST_SHOWN} more" if len(empty) > _MOST_SHOWN else ""
        )
        told += f"\n  warning: the SQL gives no rows for {shown}: published empty, in place of what was there"
    changed = [f"  {table}: {count:,} rows came or went" for table, count in report.changed_rows.items()]
    if not with_reasons:
        return told
    reasons = [f"  {key}: {', '.join(why)}" for key, why in report.why.items() if why]
    more = [f"  and {len(reasons) - _MOST_SHOWN} more"] if len(reasons) > _MOST_SHOWN else []
    return "\n".join([told, *changed, *reasons[:_MOST_SHOWN], *more])


_MOST_LISTED = 5
"""Files without checksums named for one table; `--json` names all."""


def verify(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help=TABLE_HELP, show_default=False)],
    all_snapshots: Annotated[
        bool, typer.Option("--all-snapshots", help="The files of all snapshots, not of the current one alone.")
    ] = False,
    relocate: Annotated[list[str] | None, RELOCATE] = None,
    config: Annotated[Path | None, CONFIG] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per table.")] = False,
) -> None:
    """Read every byte of every file of tables, and tell which are damaged.

    Checksums are compared wherever a file has them, every column is decoded, and sizes, numbers of rows, bounds and
    counts are held against what manifests and metadata state. Exit code 0 if nothing is damaged, 1 if something is.

    Example: `nevermore verify shop.orders shop.customers`
    """
    is_damaged = False
    for name in tables:
        found = _verified(name, relocate, config, all_snapshots=all_snapshots)
        is_damaged |= bool(found.damage)
        if as_json:
            print_json({"table": name, **_document(found)})
        else:
            _print(name, found)
    raise typer.Exit(1 if is_damaged else 0)


def _verified(name: str, relocate: list[str] | None, config: Path | None, *, all_snapshots: bool) -> "Verification":
    from checks.damage import Registered, Verification, verify_table
    from scan_core import Damage, MalformedTableError

    try:
        table = open_named_table(name, relocate, config)
    except MalformedTableError as error:  # its metadata cannot be read: what is to be told, not a mistake of the user
        file, _, problem = str(error).partition(": ")
        return Verification(damage=[Damage(file, "", problem or str(error))])
    stated = catalog_state(name, config)
    with byte_progress(f"Verifying {name}") as show:
        return verify_table(
            table,
            all_snapshots=all_snapshots,
            registered=None if stated is None else Registered(*stated),
            show=show,
        )


def _document(found: "Verification") -> dict[str, Any]:
    return {
        "snapshot_ids": found.snapshot_ids,
        "files": found.num_files,
        "bytes": found.num_bytes,
        "damage": [asdict(damage) for damage in found.damage],
        "unprotected": [asdict(file) for file in found.unprotected],
        "not_compared": sorted(found.not_compared),
    }


def _print(name: str, found: "Verification") -> None:
    for damage in found.damage:
        typer.echo(f"DAMAGED  {damage}")
    for text in sorted(found.not_compared):
        typer.echo(f"not compared: {text}")
    for file in found.unprotected[:_MOST_LISTED]:
        typer.echo(f"no checksum: {file.file}: {', '.join(file.parts)}")
    if (more := len(found.unprotected) - _MOST_LISTED) > 0:
        typer.echo(f"no checksum: {counted(more, 'more file')}; --json lists them")
    files = ", ".join(counted(number, kind) for kind, number in found.num_files.items()) or "no file could be read"
    result = f"{counted(len(found.damage), 'fault')} found" if found.damage else "no damage found"
    typer.echo(f"{name}: {result} in {files.replace('metadatas', 'metadata')}, {found.num_bytes:,} bytes")
