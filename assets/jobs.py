"""Jobs, and the schedules that start them.

A schedule runs by default only where the config names a time.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.project import CHANGE_LOGS, MIRRORS, Project, published_key, table_pool
from checks.asset_checks import fail
from checks.equality import difference_of_base
from pipelines.config.published import FORMATS, PublishedConfig, Unit
from pipelines.iceberg.checked_catalog import open_existing
from pipelines.maintain.compact import compact_mirror
from pipelines.maintain.log_base import MIN_SHARE, trim_logs
from pipelines.maintain.orphans import orphans_of_all
from pipelines.maintain.retention import expire_all

INGEST_JOB = "ingest_job"
DAILY_JOB = "daily_job"
PUBLISH_JOB = "publish_job"
CHECK_JOB = "check_job"
COMPACT_JOB = "compact_job"
RETENTION_JOB = "retention_job"
JOBS_BY_UNIT: Mapping[Unit, str] = {
    "hour": "hourly_job",
    "day": DAILY_JOB,
    "month": "monthly_job",
    "year": "yearly_job",
}
"""Assets of one job share their partitions, so there is one job per unit of time."""

ingest_job = dg.define_asset_job(
    INGEST_JOB,
    selection=dg.AssetSelection.key_prefixes(CHANGE_LOGS) | dg.AssetSelection.key_prefixes(MIRRORS),
    description="Append new events to the change logs, apply them to the mirrors, then check the mirrors.",
)


@dg.op(
    name="expire_snapshots_and_delete_orphans",
    description="Expire old snapshots of all tables, trim their change logs, and delete the files that nothing names.",
)
def maintain(context: dg.OpExecutionContext, project: Project) -> None:
    """Expire snapshots, trim change logs and delete orphan files of all tables of the config, as its `maintenance` says.

    Raises:
        StepFailedError: with the error of every table that failed; the others were processed.
    """
    config = project.config()
    catalog = open_existing(config)
    expired = list(expire_all(catalog, config, show=context.log.debug))
    trimmed = list(trim_logs(catalog, config, difference_of_base, min_share=MIN_SHARE, show=context.log.debug))
    removed = list(orphans_of_all(catalog, config, delete=True, show=context.log.debug))
    errors = [
        *((done.table, done.error) for done in expired),
        *((done.log, done.error) for done in trimmed),
        *((done.table, done.error) for done in removed),
    ]
    failed = {table: error for table, error in errors if error is not None}
    context.add_output_metadata(
        {
            "snapshots expired": sum(len(done.expired) for done in expired),
            "files deleted": sum(sum(done.files.values()) for done in expired),
            "bytes deleted": sum(done.deleted_bytes for done in expired),
            "changes replaced in logs": sum(done.replaced - done.base for done in trimmed if done.base is not None),
            "orphan files deleted": sum(len(done.files) for done in removed),
            "orphan bytes deleted": sum(done.orphan_bytes for done in removed),
        }
    )
    if failed:
        fail(context, "; ".join(f"{table}: {error}" for table, error in failed.items()))


@dg.job(name=RETENTION_JOB, description="Expire old snapshots of all tables and delete the files that nothing names.")
def retention_job() -> None:
    """Run `maintain`."""
    maintain()


def check_job(checks: Sequence[dg.AssetChecksDefinition]) -> UnresolvedAssetJobDefinition:
    """All checks of all mirrors, over all of their rows."""
    return dg.define_asset_job(
        CHECK_JOB,
        selection=dg.AssetSelection.checks(*checks),
        description="Compare all rows of all mirrors with their change logs and files.",
    )


def compact_job(tables: Sequence[str]) -> dg.JobDefinition:
    """Compacts the mirrors of which scans have become slow; each waits until nothing else writes it."""

    def compact_one(table: str) -> dg.OpDefinition:
        @dg.op(name="compact_" + re.sub(r"\W", "_", table), pool=table_pool(table), description=f"Compact {table}.")
        def compact_table(context: dg.OpExecutionContext, project: Project) -> None:
            report = compact_mirror(project.config(), table)
            for line in [f"{table}: nothing that may be compacted"] if report is None else report.lines:
                context.log.info(line)
            if report is not None:
                context.add_output_metadata(
                    report.as_dict() | {"snapshot_id": str(report.snapshot_id), "indexes": list(report.indexes)}
                )

        return compact_table

    @dg.job(name=COMPACT_JOB, description="Rewrite small files and files with many dead rows where scans are slow.")
    def compact_all() -> None:
        for table in tables:
            compact_one(table)()

    return compact_all


def jobs_by_time(published: Mapping[str, PublishedConfig]) -> Iterator[UnresolvedAssetJobDefinition]:
    """A job for each unit of time by which published tables are partitioned, over all tables of that unit."""
    for unit, job in JOBS_BY_UNIT.items():
        names = tables_by(unit, published)
        if names:
            yield dg.define_asset_job(
                job,
                selection=dg.AssetSelection.assets(*(published_key(name) for name in names)),
                description=f"Rebuild partitions of the tables published by {unit}, in one Spark session.",
            )


def tables_by(unit: Unit, published: Mapping[str, PublishedConfig]) -> list[str]:
    """Published tables that are partitioned by a unit of time."""
    return [n for n, entry in published.items() if entry.partitioning is not None and entry.partitioning.unit == unit]


DEFAULT_INGEST_CRON = "*/5 * * * *"
CHECK_CRON = "0 4 * * *"
COMPACT_CRON = "30 * * * *"
RETENTION_CRON = "0 5 * * *"
_CRONS: Mapping[Unit, str] = {"hour": "10 * * * *", "day": "0 2 * * *", "month": "0 3 1 * *", "year": "0 4 1 1 *"}
"""Some time after the end of a partition, because events arrive late: for days, two hours after midnight."""


def ingest_schedule(cron: str | None) -> dg.ScheduleDefinition:
    """Ingests at the times in the config; without any, every five minutes once the schedule is switched on."""
    return dg.ScheduleDefinition(
        name="ingest_schedule",
        job=ingest_job,
        cron_schedule=cron or DEFAULT_INGEST_CRON,
        execution_timezone="UTC",
        default_status=_status(is_running=cron is not None),
        description="Apply new events.",
    )


def check_schedule(job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Compares all rows every night; publications compare only changed keys."""
    return dg.ScheduleDefinition(
        name="check_schedule",
        job=job,
        cron_schedule=CHECK_CRON,
        execution_timezone="UTC",
        description="Compare all rows of all mirrors every night.",
    )


def compact_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Looks every hour which mirrors need a compaction, as `maintenance` in the config allows."""
    return dg.ScheduleDefinition(
        name="compact_schedule",
        job=job,
        cron_schedule=COMPACT_CRON,
        execution_timezone="UTC",
        description="Compact mirrors of which scans have become slow.",
    )


def retention_schedule(cron: str | None) -> dg.ScheduleDefinition:
    """Maintains all tables at the times in the config; without any, every night once the schedule is switched on."""
    return dg.ScheduleDefinition(
        name="retention_schedule",
        job=retention_job,
        cron_schedule=cron or RETENTION_CRON,
        execution_timezone="UTC",
        default_status=_status(is_running=cron is not None),
        description="Expire old snapshots and delete orphan files.",
    )


def publish_schedules(published: Mapping[str, PublishedConfig]) -> Iterator[dg.ScheduleDefinition]:
    """One schedule per unit and cron expression of the published tables; it builds the partition that ended last."""
    for unit, job in JOBS_BY_UNIT.items():
        by_cron: dict[str, list[str]] = {}
        for name in tables_by(unit, published):
            by_cron.setdefault(published[name].schedule or _CRONS[unit], []).append(name)
        for number, (cron, names) in enumerate(by_cron.items(), 1):
            schedule = job.removesuffix("_job") + ("_schedule" if number == 1 else f"_schedule_{number}")
            is_asked = any(published[name].schedule for name in names)
            yield _publish_schedule(schedule, unit, cron, names, _status(is_running=is_asked))


def _status(*, is_running: bool) -> dg.DefaultScheduleStatus:
    return dg.DefaultScheduleStatus.RUNNING if is_running else dg.DefaultScheduleStatus.STOPPED


def _publish_schedule(
    name: str, unit: Unit, cron: str, tables: list[str], status: dg.DefaultScheduleStatus
) -> dg.ScheduleDefinition:
    keys = [published_key(table) for table in tables]

    @dg.schedule(
        name=name,
        job_name=JOBS_BY_UNIT[unit],
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=status,
        description=f"Build the last completed {unit} of {', '.join(tables)}.",
    )
    def publish_last(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        last = last_key(unit, context.scheduled_execution_time.astimezone(UTC))
        return dg.RunRequest(run_key=f"{name}-{last}", partition_key=last, asset_selection=keys)

    return publish_last


def last_key(unit: Unit, moment: datetime) -> str:
    """Key of the last partition that is complete at a moment."""
    # an hour or a day before the moment, or before the first day of its month or year
    first = {"hour": moment, "day": moment, "month": moment.replace(day=1), "year": moment.replace(month=1, day=1)}
    before = first[unit] - timedelta(hours=1 if unit == "hour" else 24)
    return before.strftime(FORMATS[unit])
