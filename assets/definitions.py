"""Dagster definitions of a project: its change logs and mirrors as assets, with all jobs, schedules and sensors."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from assets.jobs import (
    check_job,
    check_schedule,
    compact_job,
    compact_schedule,
    ingest_job,
    ingest_schedule,
    jobs_by_time,
    publish_schedules,
    retention_job,
    retention_schedule,
)
from assets.project import CHANGE_LOG_GROUP, MIRROR_GROUP, Project, change_log_key, mirror_key, table_pool
from assets.published import partitions_of, publish_after_ingest, publish_job, published_asset
from checks.asset_checks import debt_asset_check, mirror_asset_checks
from pipelines.config.project import Config, change_log_name, load, quarantine_name
from pipelines.iceberg.catalog import find_table, open_catalog
from pipelines.ingest.feed_run import apply_logs, run_once, sources
from pipelines.ingest.report import IngestReport, TableReport
from pipelines.ingest.table_patterns import expanded
from scan_core import open_table

_OPERATIONS = {"r": "snapshot", "c": "insert", "u": "update", "d": "delete", "t": "truncate"}


def require_success(report: IngestReport) -> None:
    """Fail the step if a table failed; what other tables have committed stays.

    Raises:
        dagster.Failure: with the error of every failed table.
    """
    failed = [table for table in report.tables if table.error is not None]
    if failed:
        raise dg.Failure(
            "; ".join(f"{table.table}: {table.error}" for table in failed),
            metadata={table.table: str(table.error) for table in failed},
        )


def change_log_metadata(config: Config, report: TableReport) -> dict[str, Any]:
    """Events by operation, the number in quarantine, and the state of the log."""
    values: dict[str, Any] = {
        "status": report.status,
        "events": report.events.total(),
        "quarantined": report.quarantined,
        "commits": report.log_commits,
        "snapshot id": str(report.log_snapshot_id),
        "position": str(report.position),
    }
    for operation, count in sorted(report.events.items()):
        values[f"events: {_OPERATIONS.get(operation, operation)}"] = count
    table = find_table(open_catalog(config), change_log_name(report.table))
    snapshot = None if table is None else open_table(table).metadata.current_snapshot
    if snapshot is not None:
        values["dagster/row_count"] = int(snapshot.summary.get("total-records", 0))
        values["bytes in log"] = int(snapshot.summary.get("total-files-size", 0))
    return values


def mirror_metadata(config: Config, report: TableReport) -> dict[str, Any]:
    """What was written, and what the mirror contains now."""
    values: dict[str, Any] = {
        "status": report.status,
        "rows written": report.data_rows,
        "data files written": report.data_files,
        "delete files written": report.delete_files,
        "deleted keys written": report.delete_rows,
        "removals that found no row": report.missed_removals,
        "bytes written": report.written_bytes,
        "commits": report.mirror_commits,
        "snapshot id": str(report.snapshot_id),
    }
    if report.indexes is not None:
        values |= report.indexes.as_metadata()
    if report.conversion is not None:
        values |= report.conversion.as_metadata()
    table = find_table(open_catalog(config), report.table)
    if table is not None:
        opened = open_table(table)
        scan = opened.scan()
        columns = [
            dg.TableColumn(f.name, str(f.type), f.doc, dg.TableColumnConstraints(nullable=not f.required))
            for f in opened.schema.fields
        ]
        values["dagster/row_count"] = scan.count()
        values["dagster/column_schema"] = dg.TableSchema(columns)
        values["rows removed by deletes"] = (
            scan.metrics.rows_removed_by_equality_deletes + scan.metrics.rows_removed_by_position_deletes
        )
        values["bytes read to count"] = scan.metrics.bytes_read
    return values


def change_log_assets(tables: Sequence[str], config: Config) -> dg.AssetsDefinition:
    """The change logs of the tables of one source. Each run appends everything new, in order, and nothing twice."""
    names = {change_log_key(table): table for table in tables}
    source = config.tables[tables[0]].source

    @dg.multi_asset(
        name="change_logs_of_" + "_and_".join(key.path[-1] for key in names),
        specs=[
            dg.AssetSpec(
                key,
                group_name=CHANGE_LOG_GROUP,
                kinds={"iceberg"},
                description=f"Every decoded change of {table}, append-only, from {source.title}.",
                metadata={"source": source.title, "quarantine": quarantine_name(table)},
                skippable=True,
            )
            for key, table in names.items()
        ],
        can_subset=True,
        pool=table_pool(tables[0]),
    )
    def change_logs(context: dg.AssetExecutionContext, project: Project) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg] # the value is None
        selected = [table for key, table in names.items() if key in context.selected_asset_keys]
        current = project.config()
        report = run_once(current, lambda done: context.log.info("%s: committed", done.table), selected, log_only=True)
        for table in report.tables:
            if table.error is None:
                metadata = change_log_metadata(current, table)
                yield dg.MaterializeResult(asset_key=change_log_key(table.table), metadata=metadata)
        require_success(report)

    return change_logs


def mirror_asset(table: str, config: Config) -> dg.AssetsDefinition:
    """The mirror of one table. Each run applies the changes in its change log that the mirror does not have yet."""
    settings = config.tables[table]
    key = ", ".join(settings.key) or ("the whole row" if settings.identity == "full" else "stated by the feed")

    @dg.asset(
        key=mirror_key(table),
        deps=[change_log_key(table)],
        group_name=MIRROR_GROUP,
        kinds={"iceberg"},
        pool=table_pool(table),
        description=f"The rows of {table} as its change log leaves them. Key: {key}.",
    )
    def mirror(context: dg.AssetExecutionContext, project: Project) -> dg.MaterializeResult:  # type: ignore[type-arg] # the value is None
        current = project.config()
        report = apply_logs(current, tables=[table])
        require_success(report)
        (found,) = report.tables
        context.log.info(
            "%s: %s, %s rows written, %s deleted keys", table, found.status, found.data_rows, found.delete_rows
        )
        return dg.MaterializeResult(metadata=mirror_metadata(current, found))

    return mirror


CONFIG_VARIABLE = "NEVERMORE_CONFIG"
SPARK_VARIABLE = "NEVERMORE_SPARK_MASTER"
CANDIDATES = (Path("nevermore.yaml"), Path("demo/nevermore.yaml"))


def project_definitions(config: Config) -> dg.Definitions:
    """Assets, checks, jobs and schedules of one project, with the tables found so far for its patterns."""
    if config.patterns:
        config = expanded(config, open_catalog(config)).model_copy(update={"patterns": {}})
    refresh = publish_job(config)
    assets = [
        *(change_log_assets(tables, config) for tables in sources(config)),
        *(mirror_asset(table, config) for table in config.tables),
        *(published_asset(name, config, partitions_of(name, config.published)) for name in config.published),
    ]
    mirror_checks = [
        check
        for table in config.tables
        for check in (mirror_asset_checks(table, mirror_key(table), config), debt_asset_check(table, mirror_key(table)))
    ]
    check_all = check_job(mirror_checks)
    compact_all = compact_job([*config.tables])
    return dg.Definitions(
        assets=assets,
        asset_checks=mirror_checks,
        jobs=[
            *(ingest_job, check_all, compact_all, retention_job),
            *jobs_by_time(config.published),
            *([refresh] if refresh else []),
        ],
        schedules=[
            ingest_schedule(config.ingest_schedule),
            check_schedule(check_all),
            compact_schedule(compact_all),
            retention_schedule(config.retention_schedule),
            *publish_schedules(config.published),
        ],
        sensors=[publish_after_ingest(refresh)] if refresh else [],
        executor=dg.in_process_executor,  # one Spark session per run, not one per step
        resources={"project": Project(config_path=str(config.path), spark_master=os.environ.get(SPARK_VARIABLE))},
    )


def find_config() -> Path | None:
    """The nevermore.yaml to load; None if there is none."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    return next((path for path in CANDIDATES if path.is_file()), None)


def load_definitions() -> dg.Definitions:
    """The definitions of the project, or a single asset that explains how to get a config.

    Raises:
        ConfigError: the config is invalid, or NEVERMORE_CONFIG names no file.
    """
    path = find_config()
    if path is not None:
        return project_definitions(load(path))
    message = (
        f"No nevermore.yaml in {Path.cwd()}. Run `nevermore init` (or `nevermore demo`) there, or set {CONFIG_VARIABLE}"
        " to a config file, then reload this code location."
    )
    dg.get_dagster_logger().warning(message)
    return dg.Definitions(assets=[dg.AssetSpec("no_config_found", description=message, group_name="start_here")])


defs = load_definitions()
