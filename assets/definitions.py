"""Dagster definitions of a project: its change logs and mirrors as assets, with all jobs, schedules and sensors."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import dagster as dg
from pydantic import Field

from nevermore.assets.jobs import (
    CHECK_JOB,
    INGEST_JOB,
    check_job,
    compact_job,
    executor_of,
    jobs_by_time,
    publish_schedules,
    retention_job,
    retry,
    retry_if_transient,
    schedule,
)
from nevermore.assets.metadata import UNCHANGED, change_log_metadata, labels, mirror_metadata, news_of
from nevermore.assets.project import (
    NevermoreResource,
    change_log_key,
    mirror_key,
    own_key,
    published_key,
    rows_key,
    table_pool,
)
from nevermore.assets.published import partitions_of, publish_after_ingest, publish_job, published_asset
from nevermore.assets.sensors import alert_sensors, new_events_sensor, outside_sensor
from nevermore.checks.asset_checks import fail, mirror_asset_checks, published_asset_checks, source_asset_checks
from nevermore.pipelines.config.document import CONFIG_VARIABLE, find_config
from nevermore.pipelines.config.project import Config, change_log_name, load, quarantine_name
from nevermore.pipelines.errors import ConfigError, PipelineError
from nevermore.pipelines.iceberg.catalog import expanded
from nevermore.pipelines.iceberg.checked_catalog import open_existing
from nevermore.pipelines.ingest.feed_run import apply_logs, run_once, sources
from nevermore.pipelines.ingest.report import IngestReport
from nevermore.pipelines.maintain.replay import replay


def require_success(context: dg.OpExecutionContext, report: IngestReport) -> None:
    """Fail the step if a table failed, or try it again if all the errors may pass; what was committed stays.

    Raises:
        StepFailedError: with the error of every failed table.
        dagster.RetryRequested: all of them are transient.
    """
    for table in report.tables:
        if table.is_yielded:
            context.log.warning("%s: skipped: %s", table.table, table.error)
    failed = [table for table in report.tables if table.error is not None and not table.is_yielded]
    if not failed:
        return
    message = "; ".join(f"{table.table}: {table.error}" for table in failed)
    if all(table.may_retry for table in failed):
        retry(context, PipelineError(message))
    fail(context, message)


def change_log_assets(tables: Sequence[str], config: Config) -> dg.AssetsDefinition:
    """The change logs of the tables of one source. Each run appends everything new, in order, and nothing twice."""
    names = {change_log_key(table): table for table in tables}
    source, own = config.tables[tables[0]].source, own_key(config, tables[0])
    specs = [
        dg.AssetSpec(
            key,
            deps=filter(None, [own]),
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
    ]
    if own:  # whose runs write the logs
        return dg.AssetsDefinition(specs=specs)

    @dg.multi_asset(
        name="change_logs_of_" + "_and_".join(key.path[-1] for key in names),
        specs=specs,
        can_subset=True,
        pool=table_pool(tables[0]),
    )
    def change_logs(context: dg.AssetExecutionContext, project: NevermoreResource) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg] # the value is None
        selected = [table for key, table in names.items() if key in context.selected_asset_keys]
        current = project.config()
        step = context.op_execution_context

        with retry_if_transient(step):
            report = run_once(
                current, lambda done: context.log.info("%s: committed", done.table), selected, log_only=True
            )
        for warning in report.warnings:
            context.log.warning(warning)
        for table in report.tables:
            if table.error is None or table.is_yielded:
                key = change_log_key(table.table)
                version = news_of(current, change_log_name(table.table), key, context.instance)
                metadata = UNCHANGED if version is None else change_log_metadata(current, table)
                yield dg.MaterializeResult(asset_key=key, metadata=metadata, data_version=version)
        require_success(step, report)

    return change_logs


class ReplayRequest(dg.Config):
    """What the Launchpad accepts for a mirror: a range of its change log to apply again, as `nevermore replay` does.

    Attributes:
        replay_from: first change: its ordinal, or its time of ingestion.
        replay_to: last change, likewise.
    """

    replay_from: str | None = Field(default=None, description="First change: its ordinal, or its time of ingestion.")
    replay_to: str | None = Field(default=None, description="Last change: its ordinal, or its time of ingestion.")


def mirror_asset(table: str, config: Config) -> dg.AssetsDefinition:
    """The mirror of one table. Each run applies the changes in its change log that the mirror does not have yet."""
    settings = config.tables[table]
    key = ", ".join(settings.key) or ("the whole row" if settings.identity == "full" else "stated by the feed")

    def mirror(
        context: dg.AssetExecutionContext, project: NevermoreResource, config: ReplayRequest
    ) -> dg.MaterializeResult:  # type: ignore[type-arg] # the value is None
        current = project.config()
        step = context.op_execution_context
        with retry_if_transient(step):
            report = apply_logs(current, tables=[table])
        require_success(step, report)
        (found,) = report.tables
        replayed = {}
        if {config.replay_from, config.replay_to} != {None}:  # a range without a start or an end is one, too
            with retry_if_transient(step):
                done = replay(open_existing(current), current, table, config.replay_from, config.replay_to)
            found.snapshot_id = done.snapshot_id
            replayed = {"replayed changes": done.num_changes, "replayed": f"changes {done.first:,} to {done.last:,}"}
        version = news_of(current, table, mirror_key(table), context.instance)
        metadata = UNCHANGED if version is None else mirror_metadata(current, found) | replayed
        return dg.MaterializeResult(metadata=metadata, data_version=version)

    what = f"The rows of {table} as its change log leaves them. Key: {key}."
    made: dg.AssetsDefinition = dg.asset(
        key=mirror_key(table),
        deps=[change_log_key(table)],
        pool=table_pool(table),
        **labels(config, table, "mirror", table, what),
    )(mirror)
    return made


SPARK_VARIABLE = "NEVERMORE_SPARK_MASTER"


def project_definitions(config: Config, *, spark_master: str | None = None) -> dg.Definitions:
    """Assets, checks, jobs and schedules of one project, with the tables found so far for its patterns."""
    config = expanded(config).model_copy(update={"patterns": {}})
    refresh = publish_job(config)
    filled = [
        *(change_log_assets(tables, config) for tables in sources(config)),
        *(mirror_asset(table, config) for table in config.tables if not own_key(config, table)),
    ]
    assets = [
        *filled,
        *(published_asset(name, config, partitions_of(name, config.published)) for name in config.published),
    ]
    mirror_checks = [mirror_asset_checks(table, rows_key(config, table), config) for table in config.tables]
    made = (published_asset_checks(name, published_key(name), config) for name in config.published)
    all_checks = [*mirror_checks, *filter(None, made)]
    check_all = check_job(all_checks, CHECK_JOB, "their change logs and files")
    of_source = [*chain(*(source_asset_checks(table, mirror_key(table), config) for table in config.tables))]
    compare = [check_job(of_source, "source_check_job", "the databases that they are read from")] if of_source else []
    ingest = dg.define_asset_job(
        INGEST_JOB,
        selection=dg.AssetSelection.assets(*(made for made in filled if made.is_executable))
        - dg.AssetSelection.checks(*of_source),
        description="Append new events to the change logs, apply them to the mirrors, then check the mirrors.",
    )
    compact_all = compact_job([*config.tables])
    return dg.Definitions(
        assets=assets,
        asset_checks=[*all_checks, *of_source],
        jobs=[
            *(ingest, check_all, compact_all, retention_job),
            *compare,
            *jobs_by_time(config.published),
            *([refresh] if refresh else []),
        ],
        schedules=[
            schedule("ingest_schedule", ingest, "*/5 * * * *", "Apply new events.", config.ingest_schedule),
            schedule("check_schedule", check_all, "0 4 * * *", "Compare all rows of all mirrors."),
            *(
                schedule("source_check_schedule", job, "0 3 * * 0", "Compare all rows with their databases.")
                for job in compare
            ),
            schedule("compact_schedule", compact_all, "30 * * * *", "Compact mirrors of which scans have become slow."),
            schedule(
                "retention_schedule",
                retention_job,
                "0 5 * * *",
                "Expire old snapshots and delete orphan files.",
                config.retention_schedule,
            ),
            *publish_schedules(config.published),
        ],
        sensors=[
            new_events_sensor(config.ingest_sensor),
            outside_sensor(),
            *([publish_after_ingest(refresh, config)] if refresh else []),
            *(alert_sensors() if config.alerts else []),
        ],
        executor=executor_of(config),
        resources={
            "project": NevermoreResource(
                config_path=str(config.path), spark_master=spark_master or os.environ.get(SPARK_VARIABLE)
            )
        },
    )


class ConfigFileError(ConfigError, dg.DagsterError):
    """An error in a config file. As an error of Dagster it is shown alone; others are shown as the cause of a general one."""


def load_project(path: Path, *, spark_master: str | None = None) -> dg.Definitions:
    """The definitions of the project of a config file.

    Raises:
        ConfigFileError: the file is missing or invalid: its name, the line, and what is wrong.
    """
    try:
        return project_definitions(load(path), spark_master=spark_master)
    except ConfigError as error:
        raise ConfigFileError(str(error)) from None


def load_definitions() -> dg.Definitions:
    """The definitions of the project, or a single asset that explains how to get a config.

    Raises:
        ConfigError: the config is invalid, or NEVERMORE_CONFIG names no file.
    """
    path = find_config()
    if path is not None:
        return load_project(path)
    message = (
        f"No nevermore.yaml in {Path.cwd()}. Run `nevermore init` (or `nevermore demo`) there, or set {CONFIG_VARIABLE}"
        " to a config file, then reload this code location."
    )
    dg.get_dagster_logger().warning(message)
    return dg.Definitions(assets=[dg.AssetSpec("no_config_found", description=message, group_name="start_here")])


defs = dg.definitions(load_definitions)
"""What a code location of this module loads, and nothing else does: an import reads no config."""
