"""Dagster definitions of a project: its change logs and mirrors as assets, with all jobs, schedules and sensors."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

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
from assets.labels import labels
from assets.materialized import change_log_metadata, mirror_metadata
from assets.project import Project, change_log_key, mirror_key, table_pool
from assets.published import partitions_of, publish_after_ingest, publish_job, published_asset
from checks.asset_checks import debt_asset_check, mirror_asset_checks
from pipelines.config.project import Config, change_log_name, load, quarantine_name
from pipelines.iceberg.catalog import open_catalog
from pipelines.ingest.feed_run import apply_logs, run_once, sources
from pipelines.ingest.report import IngestReport
from pipelines.ingest.table_patterns import expanded


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


def change_log_assets(tables: Sequence[str], config: Config) -> dg.AssetsDefinition:
    """The change logs of the tables of one source. Each run appends everything new, in order, and nothing twice."""
    names = {change_log_key(table): table for table in tables}
    source = config.tables[tables[0]].source

    @dg.multi_asset(
        name="change_logs_of_" + "_and_".join(key.path[-1] for key in names),
        specs=[
            dg.AssetSpec(
                key,
                skippable=True,
                **labels(
                    config,
                    table,
                    "change_log",
                    change_log_name(table),
                    f"Every decoded change of {table}, append-only, from {source.title}.",
                ),
            ).merge_attributes(metadata={"source": source.title, "quarantine": quarantine_name(table)})
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

    def mirror(context: dg.AssetExecutionContext, project: Project) -> dg.MaterializeResult:  # type: ignore[type-arg] # the value is None
        current = project.config()
        report = apply_logs(current, tables=[table])
        require_success(report)
        (found,) = report.tables
        context.log.info(
            "%s: %s, %s rows written, %s deleted keys", table, found.status, found.data_rows, found.delete_rows
        )
        return dg.MaterializeResult(metadata=mirror_metadata(current, found))

    what = f"The rows of {table} as its change log leaves them. Key: {key}."
    made: dg.AssetsDefinition = dg.asset(
        key=mirror_key(table),
        deps=[change_log_key(table)],
        pool=table_pool(table),
        **labels(config, table, "mirror", table, what),
    )(mirror)
    return made


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
