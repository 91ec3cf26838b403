"""The commands `check`, `publish` and `verify`, which compare tables with the reference and with checksums."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nevermore.pipelines.cli.arguments import (
    AsJson,
    EntryNames,
    Master,
    MirrorNames,
    OptionalConfig,
    ProjectConfig,
    Relocate,
    Remote,
    ScanSettings,
    TableNames,
    catalog_state,
    load,
    log_progress,
    open_existing,
    open_named_table,
    parse_scan_options,
    table_argument,
)
from nevermore.pipelines.cli.terminal import byte_progress, describe_publication, print_json, progress
from nevermore.pipelines.config import DEFAULT_CONFIG
from nevermore.pipelines.wording import counted

if TYPE_CHECKING:
    from nevermore.checks.damage import Verification
    from nevermore.pipelines.config.project import AlertsConfig, Config
    from nevermore.pipelines.publish.audit import CheckResult


def check(
    tables: EntryNames = None,
    full: Annotated[
        bool, typer.Option("--full", help="Check all rows against all expectations, also those that met them before.")
    ] = False,
    changed: Annotated[
        bool,
        typer.Option(
            "--changed",
            help="Of mirrors, compare only keys that changed since the last snapshot that passed, and all rows once a day.",
        ),
    ] = False,
    source: Annotated[
        bool,
        typer.Option(
            "--source", help="Compare mirrors with the databases that they are read from, and with nothing else."
        ),
    ] = False,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            metavar="KEY",
            help="Compare only this partition of a published table with DuckDB, or FIRST..LAST; may be repeated.",
        ),
    ] = None,
    alert: Annotated[
        bool,
        typer.Option("--alert", help="Post an alert for each failed check to the webhook of `alerts` in the config."),
    ] = False,
    scan_option: ScanSettings = None,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per check.")] = False,
) -> None:
    """Check mirrors against their change logs and files, and published tables against DuckDB and their files.

    Also runs the checks that the config adds: expectations, freshness, volume. Exit code 0 if every check passes or only
    warns, 1 if one fails.
    """
    from nevermore.pipelines.errors import ConfigError, SourceError
    from nevermore.pipelines.iceberg.catalog import check_catalog, expanded, find_table, open_catalog

    if full + changed + source + bool(partition) > 1:
        raise typer.BadParameter("--full, --changed, --source and --partition exclude each other")
    given = load(config).with_scan(parse_scan_options(scan_option))
    if alert and given.alerts is None:
        raise ConfigError(f"--alert: {given.path} has no alerts; add alerts: {{webhook: ...}}")
    alerts = given.alerts if alert else None
    check_catalog(given)
    catalog = open_catalog(given)
    settings = expanded(given, catalog)
    names = _chosen(settings, tables, only_mirrors=source, are_parts=bool(partition))
    for name in tables or ():
        if find_table(catalog, name) is None:
            raise SourceError(f"there is no table {name} to check yet: ingest or publish it first")
    passed = True
    for name in names:
        if source:
            from nevermore.checks.source_equality import mirror_equals_source

            # lazy: the comparison runs while its result is printed, where its errors are caught
            results: Iterable[CheckResult] = map(mirror_equals_source, [settings], [name])
        elif name in settings.published:
            # with DuckDB and a SQL parser: only if needed
            from nevermore.checks.published_equality import check_published

            results = check_published(settings, name, full=full, partitions=partition or ())
        else:
            from nevermore.checks.mirror_checks import all_checks_of, run_changed_checks, run_checks

            if not as_json and find_table(catalog, name) is None:
                typer.echo(f"nothing  {name}: it does not exist yet, so there is nothing to compare")
                continue
            results = (
                run_changed_checks(settings, name)
                if changed
                else run_checks(settings, name, all_checks_of(settings, name), full=full)
            )
        passed &= _tell(name, results, alerts, as_json=as_json)
    raise typer.Exit(0 if passed else 1)


def _tell(name: str, results: "Iterable[CheckResult]", alerts: "AlertsConfig | None", *, as_json: bool) -> bool:
    """Print the results for a table; whether none of them blocks."""
    import orjson

    from nevermore.checks.reference.sql_columns import TemporaryFolderError

    passed = True
    try:
        for result in results:
            passed &= not result.blocks
            _post_alert(alerts, name, result)
            if as_json:
                typer.echo(orjson.dumps({**result.as_dict(), "table": name}, default=str))  # keys may be of any type
                continue
            failed = "FAILED" if result.blocks else "WARNING"
            outcome = ("passed" if result.compared else "nothing") if result.passed else failed
            typer.echo(f"{outcome}  {name}  {result.name}  {result.counts()}")
            for line in result.lines():
                typer.echo(f"        {line}")
    except TemporaryFolderError as error:  # checks of other tables may need none
        passed = False
        typer.echo(f"error: {name}: {error}", err=True)
    return passed


def _post_alert(alerts: "AlertsConfig | None", name: str, result: "CheckResult") -> None:
    from nevermore.pipelines.errors import PipelineError
    from nevermore.pipelines.watch import post, shown

    if alerts is None or result.passed:
        return
    text = shown(alerts.webhook, f"{name}: check {result.name} failed: {result.summary()}")
    event = "check_failed" if result.blocks else "check_warned"
    try:
        post(alerts.webhook, {"text": text, "event": event, "table": name, "check": result.name})
    except PipelineError as error:  # the checks that follow are not less important
        typer.echo(f"warning: {error}", err=True)


def publish(
    names: Annotated[
        list[str] | None,
        table_argument(
            "[NAME]...",
            "Tables under `published` in the config; by default all except those in append mode with partitions.",
        ),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            "--day",
            help="Build this partition even if nothing changed: 2026-01-31, 2026-01-31T13, 2026-01, 2026, a value, or FIRST..LAST. Repeatable.",
            show_default=False,
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Build all partitions, even if nothing changed.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", "--dry-run", help="Show what would be built and why, without building it.")
    ] = False,
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="Check neither the mirrors nor the new rows; the snapshot records this."),
    ] = False,
    scan_option: ScanSettings = None,
    config: ProjectConfig = DEFAULT_CONFIG,
    master: Master = None,
    remote: Remote = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per table.")] = False,
) -> None:
    """Bring published tables up to date, each in one snapshot. Incremental tables rebuild only the partitions that changed.

    The mirrors that are read must have passed their checks: missing results are computed first, and if a check fails,
    nothing is published.
    """
    from nevermore.checks.published_equality import ProjectAuditor
    from nevermore.pipelines.errors import ConfigError
    from nevermore.pipelines.iceberg.catalog import check_catalog, expanded
    from nevermore.pipelines.publish.query import (
        left_out_without_asking,
        made_without_asking,
        published_query,
        requested_partitions,
    )
    from nevermore.pipelines.publish.refresh import publish as make

    settings = expanded(load(config).with_scan(parse_scan_options(scan_option)))
    chosen = names or made_without_asking(settings)
    if not chosen:
        asked = f"--partition or a name: rows are added to {', '.join(settings.published)} when asked for"
        raise ConfigError(asked if settings.published else f"{config} publishes nothing; add an entry under published")
    if partition and len(chosen) > 1:
        raise ConfigError("--partition applies to a single table; specify which")
    for name in chosen:
        published_query(settings, name)  # report every mistake before Spark starts
        requested_partitions(settings, name, partition or (), is_full=full)
    check_catalog(settings)
    if not as_json:
        log_progress()
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
            typer.echo(describe_publication(report, with_reasons=explain))
    for name, reason in ({} if names else left_out_without_asking(settings)).items():
        left_out = {"name": name, "made": "nothing", "left_out": True, "reason": reason}
        if as_json:
            print_json(left_out)
        else:
            typer.echo(f"{name}: left out, {reason}")


def _chosen(
    settings: "Config", tables: list[str] | None, *, only_mirrors: bool = False, are_parts: bool = False
) -> list[str]:
    """The tables that a command is about: all by default. Refuses others, and partitions of anything but one published table."""
    for name in tables or ():
        if name not in settings.published:
            settings.table(name)
    names = list(dict.fromkeys(tables or (*settings.tables, *(() if only_mirrors else settings.published))))
    if are_parts and (tables != names[:1] or names[0] not in settings.published):
        raise typer.BadParameter("--partition: give the published table whose partitions are to be compared, just one")
    return names


def report(
    tables: EntryNames = None,
    output: Annotated[Path, typer.Option("--output", "--html", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page about tables: lineage, snapshots, changes, debt, quarantine and the last checks.

    The page needs no network, and shows the results that `nevermore check` has kept.

    Example: `nevermore report shop.orders -o orders.html`
    """
    from nevermore.checks.report import report_page
    from nevermore.pipelines.cli.terminal import write_page
    from nevermore.pipelines.iceberg.catalog import check_catalog, expanded, open_catalog

    given = load(config)
    check_catalog(given)
    catalog = open_catalog(given)
    settings = expanded(given, catalog)
    names = _chosen(settings, tables)
    with progress("Reporting", hidden=as_json) as show:
        text = report_page(settings, catalog, names, show)
    write_page(output, text, as_json=as_json)


def docs(
    tables: EntryNames = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="The folder to write; default: `data_docs` of the config.",
            show_default=False,
        ),
    ] = None,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Write Data Docs: pages of Great Expectations with the expectations of tables, and the values that did not meet them.

    The pages show the results that `nevermore check` and publications have kept, and load nothing from elsewhere. They contain
    values of rows: treat them like the data.

    Example: `nevermore docs --output data_docs`
    """
    from nevermore.checks.data_docs import INDEX, build_docs
    from nevermore.pipelines.cli.terminal import print_result
    from nevermore.pipelines.errors import ConfigError
    from nevermore.pipelines.iceberg.catalog import check_catalog, expanded

    given = load(config)
    check_catalog(given)
    settings = expanded(given)
    names = _chosen(settings, tables)
    folder = output or settings.docs.folder_of(settings.path)
    if folder.is_file():
        raise ConfigError(f"{folder} is a file: specify the folder to write with --output")
    found = build_docs(settings, names, folder)
    lines = [
        f"{one.table}: not checked yet; nevermore check {one.table}"
        if one.page is None
        else f"{one.table}: {counted(one.expectations, 'expectation')}, {'passed' if one.passed else 'failed'}"
        for one in found
    ]
    print_result(
        {"path": str(folder / INDEX), "tables": [asdict(one) for one in found]},
        [*(lines or ["no table of the config has expectations"]), f"Wrote {folder / INDEX}"],
        as_json=as_json,
    )


def verify(
    tables: TableNames,
    all_snapshots: Annotated[
        bool, typer.Option("--all-snapshots", help="Verify the files of all snapshots, not only of the current one.")
    ] = False,
    relocate: Relocate = None,
    config: OptionalConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per table.")] = False,
) -> None:
    """Read every file of tables, and report damaged ones.

    Checksums are compared where a file has them, every column is decoded, and sizes, numbers of rows, bounds and
    counts are compared with manifests and metadata. Exit code 0 if nothing is damaged, 1 otherwise.

    Example: `nevermore verify shop.orders shop.customers`
    """
    is_damaged = False
    for name in tables:
        found = _verify(name, relocate, config, all_snapshots=all_snapshots)
        is_damaged |= bool(found.damage)
        if as_json:
            print_json({"table": name, **asdict(found), "not_compared": sorted(found.not_compared)})
        else:
            _print(name, found)
    raise typer.Exit(1 if is_damaged else 0)


def _verify(name: str, relocate: list[str] | None, config: Path | None, *, all_snapshots: bool) -> "Verification":
    from nevermore.checks.damage import Registered, Verification, verify_table
    from nevermore.scan_core import Damage, MalformedTableError

    try:
        table = open_named_table(name, relocate, config)
    except MalformedTableError as error:  # damaged metadata is a result, not a mistake of the user
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


def _print(name: str, found: "Verification") -> None:
    for damage in found.damage:
        typer.echo(f"DAMAGED  {damage}")
    for text in sorted(found.not_compared):
        typer.echo(f"not compared: {text}")
    for (kind, parts), number in Counter((file.kind, file.parts) for file in found.unprotected).items():
        typer.echo(f"no checksum: {counted(number, kind).replace('metadatas', 'metadata')}: {', '.join(parts)}")
    files = ", ".join(counted(number, kind) for kind, number in found.files.items()) or "no file could be read"
    result = f"{counted(len(found.damage), 'fault')} found" if found.damage else "no damage found"
    typer.echo(f"{name}: {result} in {files.replace('metadatas', 'metadata')}, {found.bytes:,} bytes")


def trim_log(
    tables: MirrorNames = None,
    keep_log: Annotated[
        str | None,
        typer.Option(
            "--keep-log",
            metavar="TIME",
            help="Keep all changes that were ingested within this time: 12h, 30d. Default: `keep_log` of the config.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be replaced; change nothing.")] = False,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Replace old changes of change logs by the last change of each key, with its ordinal and its position in the source.

    Before the commit, DuckDB compares the rows that the old and the new log lead to. Checks, replay, resync and erase work as
    before; changes that the mirror or one of its snapshots may need stay. The old files go when the snapshots of the log expire.
    Exit code 1: a log failed, others were processed.

    Example: `nevermore trim-log shop.orders --keep-log 30d --dry-run`
    """
    from nevermore.checks.equality import difference_of_base
    from nevermore.pipelines.config.tables import MaintenanceConfig
    from nevermore.pipelines.errors import ConfigError
    from nevermore.pipelines.maintain.log_base import trim_logs
    from nevermore.pipelines.maintain.retention import overriding

    settings = load(config)
    keep = overriding({"keep_log": keep_log}, MaintenanceConfig).keep_log
    entries = (*settings.tables.values(), *settings.patterns.values())
    if keep is None and all(entry.maintenance.keep_log is None for entry in entries):
        raise ConfigError(
            f"{config.name} does not say how long changes are kept: give --keep-log, or set maintenance: {{keep_log: 30d}}"
        )
    with progress("Looking for old changes", hidden=as_json) as show:
        catalog = open_existing(settings)
        found = list(
            trim_logs(catalog, settings, difference_of_base, tables, keep_seconds=keep, is_dry=dry_run, show=show)
        )
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("no change log of the config exists yet")
    for one in [] if as_json else found:
        for line in one.lines:
            typer.echo(line, err=one.error is not None)
    raise typer.Exit(int(any(one.error is not None for one in found)))
