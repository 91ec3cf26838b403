"""Published tables as assets: partitions, metadata, checks of new rows, and the job that updates them after an ingest."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from pydantic import Field

from nevermore.assets.jobs import PUBLISH_JOB, TRIGGER, retry_if_transient
from nevermore.assets.metadata import (
    UNCHANGED,
    known_version,
    labels,
    news_of,
    partition_metadata,
    preview_features,
    published_columns,
    refresh_metadata,
    version_of,
)
from nevermore.assets.project import NevermoreResource, published_key, rows_key, table_pool
from nevermore.checks.asset_checks import fail, row_check_results
from nevermore.checks.manifest_facts import NAME as MANIFESTS
from nevermore.checks.published_equality import COMPLETE
from nevermore.checks.published_equality import NAME as EQUALS_DUCKDB
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.published import FORMATS, PublishedConfig, Unit
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.publish.audit import CheckFailedError
from nevermore.pipelines.publish.query import out_of_range, tables_read
from nevermore.pipelines.publish.refresh_report import PublishReport
from nevermore.pipelines.publish.state import changed_partitions

DEFAULT_START = "2024-01-01"
"""First day offered if no published table has a `start`; tables may still have earlier partitions."""
_CRONS: Mapping[Unit, str] = {"year": "0 0 1 1 *", "month": "0 0 1 * *", "day": "0 0 * * *", "hour": "0 * * * *"}


def partitions_by_time(unit: Unit, published: Iterable[PublishedConfig]) -> dg.TimeWindowPartitionsDefinition:
    """Hours, days, months or years from the earliest `start` of such tables to now, in UTC.

    One definition for all tables of a unit: assets of one job must share it, and a partition before a table's own start
    is merely empty.
    """
    starts = [
        datetime.strptime(entry.start, FORMATS[unit]).replace(tzinfo=UTC)
        for entry in published
        if entry.start and entry.partitioning is not None and entry.partitioning.unit == unit
    ]
    start = min(starts, default=datetime.fromisoformat(DEFAULT_START).replace(tzinfo=UTC))
    text = start.strftime(FORMATS[unit])
    if unit == "day":
        return dg.DailyPartitionsDefinition(start_date=text, end_offset=1, timezone="UTC")
    return dg.TimeWindowPartitionsDefinition(
        cron_schedule=_CRONS[unit], start=text, fmt=FORMATS[unit], end_offset=1, timezone="UTC"
    )


def partitions_of(name: str, published: Mapping[str, PublishedConfig]) -> dg.PartitionsDefinition | None:
    """The partitions of one published table: by time, the `values` of the config, or those that runs have found."""
    partition = published[name].partitioning
    if partition is None:
        return None
    if partition.is_time:
        return partitions_by_time(partition.unit, published.values())
    if published[name].values:
        return dg.StaticPartitionsDefinition(list(published[name].values))
    return dg.DynamicPartitionsDefinition(name="published_" + re.sub(r"\W", "_", name))


ROW_CHECKS = {
    COMPLETE: "The staged snapshot has all rows that the tasks wrote; in replaced partitions it has no others.",
    MANIFESTS: "Partition values, bounds and counts in the manifests match the staged files.",
    EQUALS_DUCKDB: "The rows equal those that DuckDB computes from the mirrors, if it can.",
}
"""By name, the checks of staged rows, which no reader sees yet."""


def row_checks_of(entry: PublishedConfig) -> dict[str, str]:
    """The checks of the staged rows of one table, with their descriptions; without those that are off."""
    is_off = entry.checks.published_equals_duckdb == "off"
    return {name: text for name, text in ROW_CHECKS.items() if not (is_off and name == EQUALS_DUCKDB)}


DAYS_PER_RUN = 31
"""Partitions of a backfill in one run: a month shares one Spark session; the runs of a year can be retried one by one."""


def published_asset(name: str, config: Config, partitions: dg.PartitionsDefinition | None) -> dg.AssetsDefinition:
    """The asset of one published table.

    Its checks run in the same step, on staged rows. A failed check leaves the table as it was and fails the run; a separate
    asset check on the last asset of a run would leave a backfill green.
    """
    key = published_key(name)
    entry = config.published[name]
    unit = entry.partition
    how = "Made from mirrors as a whole." if unit is None else f"Rebuilt by {unit} from mirrors."
    with preview_features():
        checks = [
            dg.AssetCheckSpec(check, asset=key, description=text, partitions_def=partitions)
            for check, text in row_checks_of(entry).items()
        ]

    def published(
        context: dg.AssetExecutionContext, project: NevermoreResource
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult | dg.AssetCheckEvaluation | dg.Output[None]]:  # type: ignore[type-arg] # the value is None
        step = context.op_execution_context
        requested = list(context.partition_keys) if partitions is not None else []
        # tables of a job share their partitions, so some may lie before the start of this table
        strange = out_of_range(project.config(), name, requested)
        for reason in strange.values():
            context.log.warning(reason)
        keys = [key for key in requested if key not in strange]
        if requested and not keys:
            metadata: dict[str, Any] = {"partitions": "none: outside of the table's range"}
            yield dg.MaterializeResult(metadata=metadata, data_version=version_of(project.config(), name))
            yield from row_check_results(step, checks)
            return
        try:
            with retry_if_transient(step):
                report = _publish(project, name, keys)
        except CheckFailedError as error:
            if any(verdict.table == name for verdict in error.verdicts):
                yield from row_check_results(step, checks, error.verdicts, keys)
            fail(step, str(error))
        columns = published_columns(project.config(), name)
        for partition in keys:
            metadata = partition_metadata(report, partition) | columns
            context.add_asset_metadata(metadata, asset_key=key, partition_key=partition)
        version: dg.DataVersion | None = dg.DataVersion(str(report.snapshot_id))
        metadata = {}
        if not keys:
            version = news_of(project.config(), name, key, context.instance)
            metadata = UNCHANGED if version is None else refresh_metadata(report) | columns
        yield dg.MaterializeResult(metadata=metadata, data_version=version)
        yield from row_check_results(step, checks, report.checks, keys)

    with preview_features():
        policy = dg.BackfillPolicy.multi_run(max_partitions_per_run=DAYS_PER_RUN)
        made: dg.AssetsDefinition = dg.asset(
            key=key,
            deps=[rows_key(config, table) for table in _mirrors(config, name)],
            partitions_def=partitions,
            backfill_policy=None if partitions is None else policy,
            check_specs=checks,
            pool=table_pool(name),
            **labels(
                config,
                name,
                "published",
                name,
                f"{how}\n\n```sql\n{entry.sql.strip() or f'-- every version of the rows of {entry.history}'}\n```",
            ),
        )(published)
    return made


def _publish(
    project: NevermoreResource,
    name: str,
    partitions: Sequence[str] = (),
    *,
    is_full: bool = False,
    is_dry: bool = False,
) -> PublishReport:
    """Publish with all checks. Imports Spark, which definitions do not need."""
    from nevermore.checks.published_equality import ProjectAuditor
    from nevermore.pipelines.publish.refresh import publish

    return publish(
        project.config(),
        name,
        partitions=partitions,
        is_full=is_full,
        is_dry=is_dry,
        master=project.spark_master,
        auditor=ProjectAuditor(),
    )


def _mirrors(config: Config, name: str) -> Sequence[str]:
    """The mirrors that its SQL reads; none if the SQL is wrong, so that the other assets still load and its runs report it."""
    try:
        return tables_read(config, name)
    except ConfigError as error:
        dg.get_dagster_logger().warning(f"{name} cannot be made: {error}")
        return ()


SENSOR = "publish_after_ingest"


def refreshed_tables(config: Config) -> list[str]:
    """The tables that the job updates: those that can be published without naming partitions."""
    return [
        name
        for name, entry in config.published.items()
        if entry.mode == "replace" and (entry.incremental or entry.partition is None)
    ]


def publish_job(config: Config) -> dg.JobDefinition | None:
    """One step per table; None without such tables."""
    steps = [_refresh_op(name) for name in refreshed_tables(config)]
    if not steps:
        return None

    @dg.job(
        name=PUBLISH_JOB,
        description="Bring incremental and unpartitioned published tables up to date with their mirrors.",
    )
    def refresh_all() -> None:
        for step in steps:
            step()

    return refresh_all


def publish_after_ingest(job: dg.JobDefinition, config: Config) -> dg.SensorDefinition:
    """Starts the job after each successful run that updated mirrors, that is, after their checks have passed.

    Automation conditions would decide by partition, and a mirror has none: they would make the last partition or all of
    them, where the job makes those that the changed rows can reach.
    """
    mirrors = {rows_key(config, table) for table in config.tables}

    @dg.run_status_sensor(
        name=SENSOR,
        run_status=dg.DagsterRunStatus.SUCCESS,
        request_job=job,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Publish what changed, after each successful run that updated mirrors.",
    )
    def after_ingest(context: dg.RunStatusSensorContext) -> dg.RunRequest | dg.SkipReason:
        run = context.dagster_run
        made = context.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        if mirrors.isdisjoint(entry.get_dagster_event().asset_key for entry in made):
            return dg.SkipReason(f"{run.job_name} updated no mirror")
        return dg.RunRequest(run_key=run.run_id, tags={TRIGGER: SENSOR, "nevermore/ingest_run": run.run_id})

    return after_ingest


class PublishRequest(dg.Config):
    """What the Launchpad accepts for a step of the job.

    Attributes:
        partitions: make these regardless of changes: keys, or `FIRST..LAST`.
        full: make all partitions, regardless of changes.
        dry_run: report what would be made, and why, and make nothing.
    """

    partitions: list[str] = Field(default=[], description="Make these regardless of changes: keys, or FIRST..LAST.")
    full: bool = Field(default=False, description="Make all partitions, regardless of changes.")
    dry_run: bool = Field(default=False, description="Report what would be made, and why, and make nothing.")


def _refresh_op(name: str) -> dg.OpDefinition:
    @dg.op(
        name="publish_" + re.sub(r"\W", "_", name),
        pool=table_pool(name),
        out=dg.Out(dg.Nothing),
        description=f"Bring {name} up to date.",
    )
    def refresh(context: dg.OpExecutionContext, project: NevermoreResource, config: PublishRequest) -> None:
        current = project.config()
        try:
            with retry_if_transient(context):
                report = _publish(project, name, config.partitions, is_full=config.full, is_dry=config.dry_run)
        except CheckFailedError as error:
            fail(context, str(error))
        context.log.info("%s: %s", name, report.reason)
        if report.is_dry:
            context.add_output_metadata(refresh_metadata(report))
            return
        for event in unseen_materializations(current, name, context.instance, report):
            context.log_event(event)

    return refresh


def unseen_materializations(
    config: Config, name: str, instance: dg.DagsterInstance, report: PublishReport | None = None
) -> Iterator[dg.AssetMaterialization]:
    """What Dagster has not seen of a published table: the partitions that changed, by whomever, or the whole table.

    Args:
        config: the project.
        name: the published table.
        instance: knows the snapshot of the newest materialization.
        report: of the run that has just built partitions, if one has.
    """
    key, partitions = published_key(name), partitions_of(name, config.published)
    version = news_of(config, name, key, instance)
    if version is None:
        return
    made: Iterable[str | None] = [None]
    if partitions is not None:
        found = {
            *(report.partitions or () if report else ()),
            *changed_partitions(config, name, known_version(instance, key)),
        }
        if isinstance(partitions, dg.DynamicPartitionsDefinition) and partitions.name is not None:
            instance.add_dynamic_partitions(partitions.name, sorted(found))
        made = sorted(found.intersection(partitions.get_partition_keys(dynamic_partitions_store=instance)))
    columns = published_columns(config, name) | {"snapshot id": version.value}
    for partition in made:
        values = partition_metadata(report, partition) if report else {}
        tags = {DATA_VERSION_TAG: version.value}
        yield dg.AssetMaterialization(key, partition=partition, metadata=values | columns, tags=tags)
