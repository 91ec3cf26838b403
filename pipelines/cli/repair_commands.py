"""The commands for operators: `nevermore adopt`, `index`, `quarantine`, `recover`, `replay` and `resync`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nevermore.pipelines.cli.arguments import (
    AsJson,
    MirrorName,
    OptionalConfig,
    ProjectConfig,
    TableName,
    configured_index,
    load,
    open_existing,
    open_for_change,
    split_names,
    table_argument,
)
from nevermore.pipelines.cli.terminal import print_json, print_result
from nevermore.pipelines.config import DEFAULT_CONFIG
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.wording import counted

if TYPE_CHECKING:
    from nevermore.pipelines.config.project import Config
    from nevermore.pipelines.iceberg.bitmap_indexes import IndexReport
    from nevermore.pipelines.iceberg.catalog import Catalog

_MAX_LISTED = 20


def adopt(
    table: MirrorName,
    config: ProjectConfig = DEFAULT_CONFIG,
    skip_log: Annotated[
        bool,
        typer.Option(
            "--skip-log", help="Do not apply the changes that are in the change log now; the table contains them."
        ),
    ] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Upgrade a table of format version 1 to version 2.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a table written by Spark, Flink or PyIceberg into a mirror. Its rows stay, and its change log is applied to them.

    Refused, without changing anything, if the key is not unique, the partitioning differs from the config, or the table
    has a later format version than the config says.
    """
    from nevermore.pipelines.maintain.adoption import adopt as make_mirror

    settings = load(config)
    settings.table(table)
    done = make_mirror(open_existing(settings), settings, table, skip_log=skip_log, upgrade_format=upgrade)
    key = f"key ({', '.join(done.key)})" if done.key else "no key"
    line = (
        f"{table}: {counted(done.num_rows, 'row')}, {key}, changes after {done.applied_ordinal:,} will be applied; "
        f"snapshot {done.snapshot_id}"
    )
    print_result(done, [line], as_json=as_json)


def index(
    table: TableName,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="A,B",
            help="Columns to give bitmap indexes; `struct.member` for a member of a struct.",
        ),
    ] = None,
    snapshot: Annotated[int | None, typer.Option("--snapshot", metavar="ID", help="Index this snapshot.")] = None,
    max_values: Annotated[
        int | None,
        typer.Option(
            "--max-values",
            min=1,
            help="Skip files in which a column has more distinct values than this; default: 10000.",
        ),
    ] = None,
    config: OptionalConfig = None,
    as_json: AsJson = False,
) -> None:
    """Write bitmap indexes of columns: filters on these columns find rows without reading the columns.

    What is already indexed is kept, so run it again after new data. Other engines ignore the indexes. Without `--columns`
    it updates the indexes that the config has for the table under `index`.

    Example: `nevermore index shop.orders --columns status,country`
    """
    from nevermore.pipelines.config.tables import DEFAULT_MAX_VALUES
    from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
    from nevermore.pipelines.iceberg.index_upkeep import observed_columns

    target = CatalogTarget(open_for_change(table, config))
    names = None if columns is None else split_names(columns)
    if names is None:
        kept = configured_index(table, config)
        if kept is None:
            raise ConfigError("nothing to index: choose --columns A,B, or add an index section to the table's config")
        names = [*(observed_columns(target.load()) if kept.bitmap == "auto" else kept.bitmap)]
        max_values = max_values or kept.max_values
        if not names:
            line = f"{table}: nothing to update: no filter removed many rows by value so far, and no other bitmap index is kept"
            print_result({}, [line], as_json=as_json)
            return
    report = build_indexes(target, names, snapshot_id=snapshot, max_values=max_values or DEFAULT_MAX_VALUES)
    print_result(report, _index_lines(report), as_json=as_json)


def _index_lines(report: "IndexReport") -> Iterator[str]:
    files = counted(report.data_files, "data file")
    yield f"snapshot {report.snapshot_id}: {files}, columns {', '.join(report.columns)}"
    where = "nothing to register" if report.path is None else f"{report.size_bytes:,} bytes in {report.path}"
    yield f"  {counted(report.built, 'index')} built, {report.kept} kept, {len(report.skipped)} skipped; {where}"
    for skipped in report.skipped[:_MAX_LISTED]:
        yield f"  skipped: {skipped.column} of {skipped.data_file}: {skipped.reason}"
    if len(report.skipped) > _MAX_LISTED:
        yield f"  and {len(report.skipped) - _MAX_LISTED} more; --json lists all"


def quarantine(
    verb: Annotated[Literal["list", "show", "replay"], typer.Argument(help="Action.")] = "list",
    table: Annotated[str | None, table_argument("[TABLE]", "A mirror of the config; optional for `list`.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of events to show.")] = 20,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """List the quarantined events of each mirror by reason, show those of one mirror, or try to apply them again.

    `replay` removes the events that it can apply now from the quarantine; its exit code is 3 if some remain.
    """
    from nevermore.pipelines.iceberg.catalog import expanded, open_to_look

    settings = load(config)
    if table is not None:
        settings.table(table)
    if verb != "list":
        catalog: Catalog | None = open_existing(settings)
    else:
        catalog = open_to_look(settings)
    settings = expanded(settings, catalog)
    if table is not None:
        settings.table(table)
    if catalog is None or verb == "list":
        _list(catalog, [table] if table is not None else list(settings.tables), as_json=as_json)
    elif table is None:
        raise ConfigError(f"nevermore quarantine {verb} needs a table: {', '.join(settings.tables)}")
    elif verb == "show":
        _show(catalog, table, limit, as_json=as_json)
    else:
        _replay(catalog, settings, table, as_json=as_json)


def _list(catalog: "Catalog | None", tables: list[str], *, as_json: bool) -> None:
    from nevermore.pipelines.changes.quarantine import reasons

    found = [(name, {} if catalog is None else reasons(catalog, name)) for name in tables]
    if as_json:
        print_json([{"table": n, "events": sum(r.values()), "reasons": r} for n, r in found])
        return
    for name, counts in found:
        typer.echo(f"{name}: {counted(sum(counts.values()), 'event')}")
        for reason, count in counts.items():
            typer.echo(f"  {count:,} x {reason}")


def _show(catalog: "Catalog", table: str, limit: int, *, as_json: bool) -> None:
    from nevermore.pipelines.changes.quarantine import held_events
    from nevermore.pipelines.decode.events import shown

    events = [e | {"raw": shown(e["raw"]).decode(errors="replace")} for e in held_events(catalog, table, limit)]
    lines = (f"{e['source_file']}:{e['source_offset']} {e['reason']}\n  {e['raw'].rstrip()}" for e in events)
    print_result(events, lines, as_json=as_json)


def _replay(catalog: "Catalog", settings: "Config", table: str, *, as_json: bool) -> None:
    from nevermore.pipelines.ingest.quarantine_replay import replay_quarantine

    done = replay_quarantine(catalog, settings, table)
    line = (
        f"{table}: {done.applied:,} applied, {done.known:,} had been applied before, {done.superseded:,} remain because "
        f"their key has changed since, {done.rejected:,} remain rejected"
    )
    print_result(done, [line], as_json=as_json)
    raise typer.Exit(3 if done.superseded or done.rejected else 0)


def recover(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Tables of the warehouse; default: all."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, without changing anything.")
    ] = False,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Repair the catalog after a loss, move or copy, so that it points to the newest complete metadata of each table.

    Finds mirrors, change logs, quarantines and published tables by their folders in the warehouse. Tables of a project
    that was moved or copied get metadata with the new paths. Run it while nothing else writes.
    """
    from nevermore.pipelines.iceberg.catalog import open_catalog
    from nevermore.pipelines.iceberg.recovery import recover as repair

    settings = load(config)
    copy = settings.model_copy(update={"tables_elsewhere": "allow"})
    done = repair(settings, open_catalog(copy), tables or (), is_dry=dry_run)
    if as_json:
        print_json(done)
        return
    if not done:
        typer.echo(f"the warehouse {settings.catalog.warehouse} has no tables")
    for table in done:
        would = "would be " if dry_run and table.action != "unchanged" else ""
        state = "empty" if table.snapshot_id is None else f"snapshot {table.snapshot_id}"
        typer.echo(f"{table.table}: {would}{table.action}, {state}, {Path(table.metadata).name}")
        for reason in table.passed_over:
            typer.echo(f"{table.table}: skipped {reason}", err=True)


def replay(
    table: MirrorName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ORDINAL|TIME",
            help="First change: its ordinal, or its time of ingestion.",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="ORDINAL|TIME",
            help="Last change: its ordinal, or its time of ingestion.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Replay the whole change log instead of a range.")] = False,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Apply a range of the change log again. Afterwards the rows of its keys match the whole log.

    Example: `nevermore replay shop.products --from 1200 --to 1300`
    """
    from nevermore.pipelines.maintain.replay import replay as apply_again

    settings = load(config)
    settings.table(table)
    if everything == (start is not None or end is not None):
        raise ConfigError(
            "--all and --from or --to are mutually exclusive; give one of them"
            if everything
            else f"nevermore replay {table} needs a range: --from and --to, one of them, or --all for the whole change log"
        )
    catalog, settings = _open(settings)
    done = apply_again(catalog, settings, table, start, end)
    line = (
        f"{table}: changes {done.first:,} to {done.last:,}, {done.num_changes:,} applied in one commit, "
        f"snapshot {done.snapshot_id}"
    )
    print_result(done, [line], as_json=as_json)
    raise typer.Exit(_code_with_quarantined(table, done.quarantined, as_json=as_json))


def resync(
    tables: Annotated[list[str] | None, table_argument("[TABLE]...", "Mirrors of the config.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Rebuild all mirrors of the config.")] = False,
    snapshot_source: Annotated[
        list[str] | None,
        typer.Option(
            "--snapshot-source",
            metavar="PATH",
            help="File or pattern of a full load of the source table. Repeatable.",
        ),
    ] = None,
    from_source: Annotated[
        bool,
        typer.Option("--from-source", help="Load the table of a database, or read its topics, again from the start."),
    ] = False,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar="17,20..30",
            help="Load only rows of a database with these integers in the first column of the key, as changes.",
        ),
    ] = None,
    snapshot_format: Annotated[
        str | None,
        typer.Option(
            "--snapshot-format",
            metavar="FORMAT",
            help="Format of the full load; default: that of the feed.",
        ),
    ] = None,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Rebuild mirrors from their change logs, each in one commit: readers see either the old rows or the new ones.

    With `--snapshot-source`, the rows of a full load are added to the log first. They replace all rows: keys missing from
    the load are removed. An adopted table can only be rebuilt this way, since its log lacks the rows it started with.

    With `--from-source`, the table of a database is loaded again, for example after its replication slot was lost. Topics of Kafka
    are read again from their oldest messages, which must contain every row, as those of a compacted topic do. With `--keys`, only
    rows with these keys are loaded, and applied as changes: other rows stay as they are.
    Exit code 1: a table failed, others were rebuilt.

    Example: `nevermore resync shop.orders shop.items --from-source`
    """
    from nevermore.pipelines.errors import PipelineError, describe
    from nevermore.pipelines.maintain.replay import resync as rebuild
    from nevermore.pipelines.maintain.replay import resync_from, resync_from_source, resync_keys
    from nevermore.scan_core import ScanError

    settings = load(config)
    for name in tables or ():
        settings.table(name)
    if everything == bool(tables):
        raise ConfigError("name the tables to rebuild, or give --all for all of them, not both")
    if from_source + bool(snapshot_source or snapshot_format) + bool(keys) > 1:
        raise ConfigError("--from-source, --snapshot-source and --keys are mutually exclusive; give one of them")
    if (snapshot_source or keys) and len(tables or ()) != 1:
        raise ConfigError("--snapshot-source and --keys are for rows of a single table; specify which")
    catalog, settings = _open(settings)
    chosen, codes = tables or list(settings.tables), {0}
    for table in chosen:
        try:
            if snapshot_source:
                paths = tuple(p if "://" in p else str(Path(p).absolute()) for p in snapshot_source)
                done = resync_from(catalog, settings, table, paths, snapshot_format)
            elif keys:
                done = resync_keys(catalog, settings, table, keys)
            else:
                done = (resync_from_source if from_source else rebuild)(catalog, settings, table)
        except (PipelineError, ScanError, OSError) as error:
            if len(chosen) == 1:
                raise
            typer.echo(f"error: {table}: {describe(error).removeprefix(f'{table}: ')}", err=True)
            codes.add(1)
            continue
        counts = f"{counted(done.num_rows, 'row')} from {counted(done.num_changes, 'change')}"
        snapshot = "no snapshot" if done.snapshot_id is None else f"snapshot {done.snapshot_id}"
        indexes = () if done.indexes is None else (*done.indexes.lines, *done.indexes.warnings)
        lines = [f"{table}: {line}" for line in (f"{counts}, {snapshot}", *indexes)]
        print_result(done, lines, as_json=as_json)
        codes.add(_code_with_quarantined(table, done.quarantined, as_json=as_json))
    raise typer.Exit(1 if 1 in codes else max(codes))


def _open(settings: "Config") -> "tuple[Catalog, Config]":
    """(catalog, config including the tables found by patterns) for a command that changes existing tables."""
    from nevermore.pipelines.iceberg.catalog import expanded

    catalog = open_existing(settings)
    return catalog, expanded(settings, catalog)


def _code_with_quarantined(table: str, quarantined: int, *, as_json: bool) -> int:
    if quarantined and not as_json:
        typer.echo(f"{table}: {counted(quarantined, 'event')} went to quarantine", err=True)
    return 3 if quarantined else 0
