"""The commands for operators: `nevermore adopt`, `index`, `quarantine`, `recover`, `replay` and `resync`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipelines.cli.arguments import CONFIG, DEFAULT_CONFIG, PROJECT_CONFIG, TABLE, changeable_table
from pipelines.cli.terminal import counted, print_json
from pipelines.errors import ConfigError

if TYPE_CHECKING:
    from pipelines.maintain.bitmap_indexes import IndexReport


def adopt(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A mirror of the config.", show_default=False)],
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    skip_log: Annotated[
        bool, typer.Option("--skip-log", help="The rows hold all that the change log has by now.")
    ] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Bring a table of format version 1 to version 2.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as an object.")] = False,
) -> None:
    """Make a table that Spark, Flink or PyIceberg wrote a mirror; its rows stay, its change log is applied to them.

    Refused, with nothing changed: a key that is not unique, another partitioning than the config's, format version 3.
    """
    from pipelines.config.project import load
    from pipelines.iceberg.recovery import open_existing
    from pipelines.maintain.adoption import adopt as make_mirror

    settings = load(config)
    settings.table(table)
    done = make_mirror(open_existing(settings), settings, table, skip_log=skip_log, upgrade_format=upgrade)
    if as_json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps(asdict(done)))
        return
    key = f"key ({', '.join(done.key)})" if done.key else "no key"
    typer.echo(
        f"{table}: {done.num_rows:,} rows, {key}, changes after {done.applied_ordinal:,} will be applied; "
        f"snapshot {done.snapshot_id}"
    )


_MOST_LISTED = 20
DEFAULT_MOST_VALUES = 10_000


def index(
    table: Annotated[str, TABLE],
    columns: Annotated[
        str, typer.Option("--columns", metavar="A,B", help="Columns to index; `struct.member` names a member.")
    ],
    snapshot: Annotated[
        int | None, typer.Option("--snapshot", metavar="ID", help="Index this snapshot.", show_default=False)
    ] = None,
    most_values: Annotated[
        int, typer.Option("--most-values", min=1, help="Leave out files with more distinct values of a column.")
    ] = DEFAULT_MOST_VALUES,
    config: Annotated[Path | None, CONFIG] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as an object.")] = False,
) -> None:
    """Write bitmap indexes: filters on these columns then find rows without reading the columns.

    Files that have an index keep it, so run it again after new data. Other engines ignore indexes.

    Example: `nevermore index shop.orders --columns status,country`
    """
    from pipelines.cli.arguments import split_names
    from pipelines.maintain.bitmap_indexes import build_indexes, statistics_target

    target = statistics_target(changeable_table(table, config))
    report = build_indexes(target, split_names(columns), snapshot_id=snapshot, most_values=most_values)
    if as_json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps(asdict(report)))
    else:
        typer.echo("\n".join(_lines(report)))


def _lines(report: "IndexReport") -> list[str]:
    head = f"snapshot {report.snapshot_id}: {report.data_files} data files, columns {', '.join(report.columns)}"
    counts = f"  {report.built} indexes built, {report.kept} kept, {len(report.skipped)} left out"
    where = "nothing to register" if report.path is None else f"{report.size_bytes:,} bytes in {report.path}"
    lines = [head, f"{counts}; {where}"]
    lines += [f"  left out: {s.column} of {s.data_file}: {s.reason}" for s in report.skipped[:_MOST_LISTED]]
    if len(report.skipped) > _MOST_LISTED:
        lines.append(f"  and {len(report.skipped) - _MOST_LISTED} more; --json lists all")
    return lines


def quarantine(
    verb: Annotated[Literal["list", "show", "replay"], typer.Argument(help="What to do.", show_default=False)],
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="A mirror of the config; `list` takes all.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most events to show.")] = 20,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> None:
    """List quarantines with their reasons, show the events of one, or try them again.

    `replay` applies what can be decoded now, takes it out of quarantine, and ends with 3 if something stays.
    """
    from pipelines.config.project import load
    from pipelines.iceberg.catalog import has_catalog
    from pipelines.iceberg.recovery import open_existing
    from pipelines.ingest.table_patterns import expanded

    given = load(config)
    if table is not None:
        given.table(table)
    if verb == "list" and not has_catalog(given):
        _list(None, [table] if table is not None else list(given.tables), as_json=as_json)
        return
    catalog = open_existing(given)
    settings = expanded(given, catalog)
    if table is not None:
        settings.table(table)
    elif verb != "list":
        raise ConfigError(f"nevermore quarantine {verb} needs a table: {', '.join(settings.tables)}")
    if verb == "list":
        _list(catalog, [table] if table is not None else list(settings.tables), as_json=as_json)
    elif verb == "show":
        _show(catalog, str(table), limit, as_json=as_json)
    else:
        _replay(catalog, settings, str(table), as_json=as_json)


def _list(catalog: Any, tables: list[str], *, as_json: bool) -> None:
    from pipelines.changes.quarantine import reasons

    found = [(name, {} if catalog is None else reasons(catalog, name)) for name in tables]
    if as_json:
        print_json([{"table": n, "events": sum(r.values()), "reasons": r} for n, r in found])
        return
    for name, counts in found:
        typer.echo(f"{name}: {counted(sum(counts.values()), 'event')}")
        for reason, count in counts.items():
            typer.echo(f"  {count:,} x {reason}")


def _show(catalog: Any, table: str, limit: int, *, as_json: bool) -> None:
    from pipelines.changes.quarantine import held_events
    from pipelines.decode.events import shown

    events = held_events(catalog, table, limit)
    if as_json:
        print_json([e | {"raw": shown(e["raw"]).decode(errors="replace")} for e in events])
        return
    for event in events:
        typer.echo(f"{event['source_file']}:{event['source_offset']} {event['reason']}")
        typer.echo(f"  {shown(event['raw']).decode(errors='replace').rstrip()}")


def _replay(catalog: Any, settings: Any, table: str, *, as_json: bool) -> None:
    from dataclasses import asdict

    from pipelines.ingest.quarantine_replay import replay_quarantine

    done = replay_quarantine(catalog, settings, table)
    if as_json:
        print_json(asdict(done))
    else:
        typer.echo(
            f"{table}: {done.applied:,} applied, {done.known:,} were applied before, {done.superseded:,} stay because "
            f"their key has changed since, {done.rejected:,} stay rejected"
        )
    raise typer.Exit(3 if done.superseded or done.rejected else 0)


def recover(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Tables of the warehouse; all if none is named.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False,
) -> None:
    """Make the catalog name the newest whole metadata of each table in the warehouse, after a loss, a move or a copy.

    Mirrors, change logs, quarantines and published tables are found by their folders. Tables of a project that was moved
    or copied get metadata with the paths of the new place. Run it while nothing else writes.
    """
    from pipelines.config.project import load
    from pipelines.iceberg.catalog import open_catalog
    from pipelines.iceberg.recovery import recover as bring_back

    settings = load(config)
    done = bring_back(settings, open_catalog(settings), tables or (), is_dry=dry_run)
    if as_json:
        import orjson

        typer.echo(orjson.dumps([asdict(table) for table in done]))
        return
    if not done:
        typer.echo(f"the warehouse {settings.catalog.warehouse} has no table")
    for table in done:
        would = "would be " if dry_run and table.action != "unchanged" else ""
        state = "empty" if table.snapshot_id is None else f"snapshot {table.snapshot_id}"
        typer.echo(f"{table.table}: {would}{table.action}, {state}, {Path(table.metadata).name}")
        for reason in table.passed_over:
            typer.echo(f"{table.table}: passed over {reason}", err=True)


def replay(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A mirror of the config.", show_default=False)],
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="ORDINAL|TIME", help="First change, or when it arrived.", show_default=False),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="ORDINAL|TIME", help="Last change, or when it arrived.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All changes, instead of a range.")] = False,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as an object.")] = False,
) -> None:
    """Apply a range of the change log once more: its keys end as the log says, with all that came later.

    Example: `nevermore replay shop.products --from 1200 --to 1300`
    """
    from pipelines.config.project import load
    from pipelines.errors import ConfigError
    from pipelines.iceberg.recovery import open_existing
    from pipelines.ingest.table_patterns import expanded
    from pipelines.maintain.replay import replay as apply_again

    settings = load(config)
    settings.table(table)
    if everything == (start is not None or end is not None):
        raise ConfigError(
            "--all and --from or --to are mutually exclusive; give one of them"
            if everything
            else f"nevermore replay {table} needs a range: --from and --to, one of them, or --all for the whole change log"
        )
    catalog = open_existing(settings)
    done = apply_again(catalog, expanded(settings, catalog), table, start, end)
    if as_json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps(asdict(done)))
    else:
        typer.echo(
            f"{table}: changes {done.first:,} to {done.last:,}, {done.num_changes:,} applied in {done.commits} "
            f"commit{'' if done.commits == 1 else 's'}, snapshot {done.snapshot_id}"
        )
        if done.quarantined:
            typer.echo(f"{table}: {counted(done.quarantined, 'event')} went to quarantine", err=True)
    raise typer.Exit(3 if done.quarantined else 0)


def resync(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A mirror of the config.", show_default=False)],
    snapshot_source: Annotated[
        list[str] | None,
        typer.Option(
            "--snapshot-source", metavar="PATH", help="Files of a full load, or a pattern.", show_default=False
        ),
    ] = None,
    snapshot_format: Annotated[
        str | None,
        typer.Option(
            "--snapshot-format", metavar="FORMAT", help="Theirs, if not that of the feed.", show_default=False
        ),
    ] = None,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="What was done, as an object.")] = False,
) -> None:
    """Make a mirror anew from its change log; readers see the old rows or the new ones, nothing between.

    With `--snapshot-source` the rows of a full load go into the log first: they take the place of all rows, and keys that
    the load lacks are gone. A table that was adopted is made anew only so: its log does not have the rows that it began with.
    """
    from pipelines.config.project import load
    from pipelines.iceberg.recovery import open_existing
    from pipelines.ingest.table_patterns import expanded
    from pipelines.maintain.replay import resync as make_anew
    from pipelines.maintain.replay import resync_from

    settings = load(config)
    settings.table(table)
    catalog = open_existing(settings)
    current = expanded(settings, catalog)
    if snapshot_source:
        paths = tuple(p if "://" in p else str(Path(p).absolute()) for p in snapshot_source)
        done = resync_from(catalog, current, table, paths, snapshot_format)
    else:
        done = make_anew(catalog, current, table)
    if as_json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps(asdict(done)))
    else:
        typer.echo(
            f"{table}: {counted(done.num_rows, 'row')} from {counted(done.num_changes, 'change')}, snapshot {done.snapshot_id}"
        )
        if done.quarantined:
            typer.echo(f"{table}: {counted(done.quarantined, 'event')} went to quarantine", err=True)
    raise typer.Exit(3 if done.quarantined else 0)
