"""The job that brings tables up to date after mirrors: incremental ones by what changed, unpartitioned ones as a whole.

It runs outside of the partitions that backfills make, and reports the partitions that it made on their assets.
"""

import re
from collections.abc import Iterator

import dagster as dg

from assets.jobs import PUBLISH_JOB, ingest_job
from assets.keys import published_key, table_pool
from assets.partitions import partitions_of
from assets.published_reports import failure_of, partition_metadata, refresh_metadata
from assets.resources import Project
from checks.asset_checks import leave_run_failed
from checks.publish_checks import ProjectAuditor
from pipelines.catalog import find_table, open_catalog
from pipelines.config import Config
from pipelines.published.audit import CheckFailedError
from pipelines.published.entries import published_entry
from pipelines.published.refresh import publish
from pipelines.published.refresh_report import PublishReport
from scan_core.table import open_table

SENSOR = "publish_after_ingest"


def refreshed_tables(config: Config) -> list[str]:
    """The tables that the job makes: those for which a run without partition means something."""
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
        executor_def=dg.in_process_executor,
        description="Bring incremental and unpartitioned published tables up to date with their mirrors.",
    )
    def refresh_all() -> None:
        for step in steps:
            step()

    return refresh_all


def publish_after_ingest(job: dg.JobDefinition) -> dg.SensorDefinition:
    """Starts the job when mirrors have been brought up to date and their checks have passed."""

    @dg.run_status_sensor(
        name=SENSOR,
        run_status=dg.DagsterRunStatus.SUCCESS,
        monitored_jobs=[ingest_job],
        request_job=job,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Publish what changed, after each ingest that succeeded.",
    )
    def after_ingest(context: dg.RunStatusSensorContext) -> dg.RunRequest:
        return dg.RunRequest(run_key=context.dagster_run.run_id)

    return after_ingest


def _refresh_op(name: str) -> dg.OpDefinition:
    @dg.op(
        name="publish_" + re.sub(r"\W", "_", name),
        pool=table_pool(name),
        out=dg.Out(dg.Nothing),
        description=f"Bring {name} up to date.",
    )
    def refresh(context: dg.OpExecutionContext, project: Project) -> None:
        config = project.config()
        try:
            report = publish(config, name, master=project.spark_master, auditor=ProjectAuditor())
        except CheckFailedError as error:
            leave_run_failed(context)
            raise failure_of(error) from error
        context.log.info("%s: %s", name, report.reason)
        if not report.is_unchanged:
            for event in _materializations(config, report, context.instance):
                context.log_event(event)

    return refresh


def _materializations(
    config: Config, report: PublishReport, instance: dg.DagsterInstance
) -> Iterator[dg.AssetMaterialization]:
    """One per partition that was made; of a table without partitions, one."""
    key, metadata = published_key(report.name), refresh_metadata(report)
    partitions = partitions_of(report.name, config.published)
    if partitions is None:
        yield dg.AssetMaterialization(key, metadata=metadata)
        return
    made = list(report.partitions) if report.partitions is not None else _existing(config, report.name)
    if isinstance(partitions, dg.DynamicPartitionsDefinition) and partitions.name is not None:
        instance.add_dynamic_partitions(partitions.name, made)
    known = set(partitions.get_partition_keys(dynamic_partitions_store=instance))
    for partition in made:
        if partition in known:
            own = {**metadata, **partition_metadata(report, partition)}
            yield dg.AssetMaterialization(key, partition=partition, metadata=own)


def _existing(config: Config, name: str) -> list[str]:
    """Keys of the partitions that hold rows."""
    table = find_table(open_catalog(config), name)
    partition = published_entry(config, name).partitioning
    if table is None or partition is None:
        return []
    opened = open_table(table)
    kind = opened.schema.find(partition.column).type
    values = {task.data_file.partition[0] for task in opened.scan().plan().tasks}
    return sorted(partition.key_of(value, kind) for value in values)
