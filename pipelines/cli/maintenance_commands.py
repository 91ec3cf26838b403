"""The commands that maintain tables: `nevermore debt`, `compact`, `convert`, `expire`, `orphans`, `erase` and `rollback`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nevermore.pipelines.cli.arguments import (
    AsJson,
    EntryName,
    EntryNames,
    MirrorName,
    MirrorNames,
    OptionalConfig,
    ProjectConfig,
    TableName,
    TableNames,
    known_config,
    load,
    open_existing,
    open_for_change,
    split_names,
)
from nevermore.pipelines.cli.terminal import byte_progress, print_json, print_result, progress
from nevermore.pipelines.config import DEFAULT_CONFIG, Engine
from nevermore.pipelines.errors import ConfigError

if TYPE_CHECKING:
    from nevermore.pipelines.config.project import Config
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable
    from nevermore.pipelines.iceberg.index_upkeep import IndexUpdate
    from nevermore.pipelines.maintain.orphans import Orphans
    from nevermore.pipelines.maintain.retention import Expiry


def compact(
    tables: TableNames,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="A,B",
            help="Rewrite all files with rows sorted by these columns, or with zorder(A,B) along a curve that treats all of them alike.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Rewrite all files, whether it pays or not.")] = False,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="Rewrite only data files that may contain matching rows."),
    ] = None,
    target_size: Annotated[
        str | None,
        typer.Option(
            "--target-size",
            metavar="SIZE",
            help="Size of new files, such as 128MiB; default: that of the config or table, else 256MiB.",
        ),
    ] = None,
    manifests: Annotated[
        bool, typer.Option("--manifests", help="Rewrite manifests, sorted by partition, and no data files.")
    ] = False,
    engine: Annotated[
        Engine | None,
        typer.Option(
            "--engine",
            help="Where to rewrite: local in this process, spark in Spark tasks, auto in Spark tasks if a table is large; default: `compact_engine` of the config.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be rewritten; change nothing.")] = False,
    config: OptionalConfig = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite small data files and files with many dead rows, and drop delete files that nothing needs any more.

    Files are rewritten if scans lose more than 5 % of their time to them. No row changes, so incremental publications
    have nothing to do. It can run beside ingests, publications and readers: deletes that arrive meanwhile apply to the new
    files, and large tables are committed in parts. Old files stay for readers of older snapshots.

    Examples: `nevermore compact shop.orders`, `nevermore compact shop.orders --sort customer_id --where "day >= '2026-01-01'"`
    """
    from nevermore.pipelines.changes.row_order import Order
    from nevermore.pipelines.maintain.compact import CompactSettings
    from nevermore.pipelines.maintain.compact import compact as rewrite
    from nevermore.pipelines.maintain.manifest_order import arrange_manifests

    if manifests and (everything or (sort, where, target_size, engine) != (None,) * 4):
        raise ConfigError(
            "--manifests rewrites no data files: leave out --sort, --all, --where, --target-size and --engine"
        )
    settings = known_config(tables, config)
    asked: dict[str, Any] = {
        "order": None if sort is None else Order.parse(sort, split_names),
        "rewrite_all": everything or sort is not None,
        "where": where,
        "target_file_bytes": None if target_size is None else _size(target_size),
        "is_dry": dry_run,
        "engine": engine,
    }
    done: list[Any] = []
    for name in tables:
        table = open_for_change(name, config)
        if manifests:
            arranged = arrange_manifests(table, is_dry=dry_run)
            done.append(arranged)
            if not as_json:
                print_result(None, arranged.lines, as_json=False)
            continue
        with byte_progress(f"Compacting {name}") as show:
            report = rewrite(table, CompactSettings.of(table, settings, **asked), show)
        if report.commits and (indexes := _keep_indexes(name, table, settings)) is not None:
            report.indexes = (*indexes.lines, *indexes.warnings)
        done.append(report)
        if not as_json:
            print_result(None, report.lines, as_json=False)
    if as_json:
        print_json(done)


def _keep_indexes(name: str, table: "CatalogTable", settings: "Config | None") -> "IndexUpdate | None":
    from nevermore.pipelines.iceberg.index_upkeep import keep_indexes, keep_mirror_indexes

    if settings is None:
        return None
    if (mirror := settings.tables.get(name)) is not None:
        return keep_mirror_indexes(table, mirror)
    published = settings.published.get(name)
    return None if published is None else keep_indexes(table, published.index, settings.scan_options)


def _size(text: str) -> int:
    from pydantic import TypeAdapter, ValidationError

    from nevermore.pipelines.config.values import Bytes

    try:
        return int(TypeAdapter(Bytes).validate_python(text))
    except ValidationError as error:
        raise ConfigError(f"--target-size: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def debt(
    tables: MirrorNames = None,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show how much time scans of mirrors lose to small files and deletes, and what `compact` and `expire` would do about it.

    Reads the key columns of files to which deletes may apply; changes nothing. Seconds are estimates for one core.

    Example: `nevermore debt shop.orders --json`
    """
    from nevermore.pipelines.maintain.debt import debts_of_all

    settings = load(config)
    with progress("Looking at files and deletes", hidden=as_json):
        found = list(debts_of_all(open_existing(settings), settings, tables))
    if as_json:
        print_json([one.as_dict() for one in found])
    elif not found:
        typer.echo("no mirror of the config exists yet")
    for one in [] if as_json else found:
        typer.echo("\n".join(one.lines))


def convert(
    table: TableName,
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="Upgrade a table of format version 2 to version 3 first, for deletion vectors."),
    ] = False,
    config: OptionalConfig = None,
    as_json: AsJson = False,
) -> None:
    """Replace a table's equality deletes by the positions of the deleted rows, so that every engine reads it fast.

    A table of format version 2 gets position-delete files, one of version 3 deletion vectors. No row changes, and data files
    stay as they are. It works on tables of any writer, also while others write: their newer deletes wait for the next
    conversion. If it is interrupted, run it again. For a mirror, `deletes: converted` in the config does this after each run.

    Example: `nevermore convert shop.orders`
    """
    from nevermore.pipelines.iceberg.commit import upgrade as upgrade_table
    from nevermore.pipelines.iceberg.conversion import convert as convert_deletes

    opened = open_for_change(table, config)
    if upgrade and opened.format_version < 3:
        upgrade_table(opened, 3)
    report = convert_deletes(opened)
    print_result(report, [f"{table}: {line}" for line in report.lines], as_json=as_json)


def expire(
    tables: EntryNames = None,
    keep_snapshots: Annotated[
        int | None,
        typer.Option("--keep-snapshots", help="Keep this many snapshots at any age."),
    ] = None,
    keep_for: Annotated[
        str | None,
        typer.Option(
            "--keep-for",
            metavar="TIME",
            help="Keep what was current within this time: 90s, 12h, 5d.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would expire; change nothing.")] = False,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Expire old snapshots of mirrors, their change logs and quarantines, and of published tables, and delete their files.

    Branches, tags, a minimum number of snapshots, everything younger than an age, and what the pipelines still need stay:
    positions, changes that are not applied yet, and snapshots from which published tables are updated. The current rows never
    change. Defaults are those of `maintenance` in the config. Exit code 1: a table failed, others were processed.

    Example: `nevermore expire shop.orders --keep-for 2d --dry-run`
    """
    from nevermore.pipelines.config.tables import RetentionConfig
    from nevermore.pipelines.maintain.retention import expire_all, overriding

    settings = load(config)
    overrides = overriding({"keep_snapshots": keep_snapshots, "keep_for": keep_for}, RetentionConfig)
    catalog = open_existing(settings)
    with progress("Looking for old snapshots", hidden=as_json) as show:
        found = list(expire_all(catalog, settings, tables, overrides=overrides, is_dry=dry_run, show=show))
    _finish(found, as_json=as_json)


def orphans(
    tables: EntryNames = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Minimum age, such as 12h or 3d; default: `orphan_age` of the config. Files of commits in progress are orphans until they are committed.",
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete/--dry-run", help="Delete the files, or only report them.")] = False,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Find files in the folders of tables that nothing names, such as those of killed runs; `--delete` deletes them.

    Files stay if a snapshot, branch or tag reaches them, or a metadata version that was current within the age, or if they belong
    to running publications or to other tables. Exit code 1: a table failed, others were processed.

    Example: `nevermore orphans --older-than 7d --delete`
    """
    from nevermore.pipelines.config.tables import RetentionConfig
    from nevermore.pipelines.maintain.orphans import orphans_of_all
    from nevermore.pipelines.maintain.retention import overriding

    settings = load(config)
    overrides = overriding({"orphan_age": older_than}, RetentionConfig)
    catalog = open_existing(settings)
    with progress("Listing files", hidden=as_json) as show:
        found = list(orphans_of_all(catalog, settings, tables, overrides=overrides, delete=delete, show=show))
    _finish(found, as_json=as_json)


def erase(
    table: EntryName,
    where: Annotated[str, typer.Option("--where", metavar="SQL", help="A condition on columns of the table.")],
    delete: Annotated[
        bool, typer.Option("--delete/--dry-run", help="Erase the rows, or only report where they are.")
    ] = False,
    publish: Annotated[
        bool,
        typer.Option("--publish/--no-publish", help="Publish the tables that read the mirror again, without the rows."),
    ] = True,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Erase rows for good, as the right to be forgotten demands: from all snapshots, and from everything made of them.

    Every key that ever had a matching row is erased with all its rows: in the mirror, its change log, its quarantine, its
    indexes, and in tables published from it, which are published again. Older snapshots expire. At the end all remaining files
    are searched, and the report names what still has the rows, such as tags. Files of the source are not touched; they are listed.
    Exit code 1: something still has the rows. If it is interrupted, run it again.

    Example: `nevermore erase shop.customers --where "id = 4711" --delete`
    """
    from nevermore.pipelines.maintain.erase import erase as erase_rows

    settings = load(config)

    def publish_again(name: str) -> object:
        from nevermore.pipelines.publish.refresh import publish as publish_table

        return publish_table(settings, name, is_full=True)

    with progress("Looking for the rows", hidden=as_json) as show:
        done = erase_rows(
            open_existing(settings),
            settings,
            table,
            where,
            is_dry=not delete,
            publish=publish_again if publish else None,
            show=show,
        )
    print_result(done.as_dict(), done.lines, as_json=as_json)
    raise typer.Exit(int(delete and not done.is_complete))


def rollback(
    table: MirrorName,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="SNAPSHOT", help="Snapshot, as `nevermore snapshots` lists them."),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="TIME",
            help="The last snapshot committed before this time: ISO 8601 (UTC unless it has an offset).",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be undone; change nothing.")] = False,
    config: ProjectConfig = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Roll a mirror back to an earlier snapshot, such as the last one before another tool damaged it.

    The change log and the position in the source stay as they are, and the next ingest applies the later changes of the log again.
    Refused if it could not. Published tables follow when they are published next.

    Example: `nevermore rollback shop.orders --before 2026-01-02T08:00 --dry-run`
    """
    from nevermore.pipelines.cli.arguments import parse_time
    from nevermore.pipelines.iceberg.catalog import expanded
    from nevermore.pipelines.maintain.rollback import roll_back

    if (to is None) == (before is None):
        raise ConfigError("specify where to roll back to: either --to SNAPSHOT or --before TIME")
    settings = load(config)
    catalog = open_existing(settings)
    until = None if before is None else parse_time(before, "--before")
    done = roll_back(catalog, expanded(settings, catalog), table, snapshot_id=to, before=until, is_dry=dry_run)
    if as_json:
        print_json(done)
    else:
        typer.echo("\n".join(done.lines))


def _finish(found: "Sequence[Expiry | Orphans]", *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("no table of the config exists yet")
    else:
        for one in found:
            for line in one.lines:
                typer.echo(line, err=one.error is not None)
    raise typer.Exit(int(any(one.error is not None for one in found)))
