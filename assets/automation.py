"""What starts runs by itself: schedules. RUNNING by default only where the config names a time."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.jobs import JOBS_BY_UNIT, ingest_job, tables_by
from assets.keys import published_key
from pipelines.config import PublishedConfig
from pipelines.published.partition import FORMATS, Unit

DEFAULT_INGEST_CRON = "*/5 * * * *"
CHECK_CRON = "0 4 * * *"
_CRONS: Mapping[Unit, str] = {"hour": "10 * * * *", "day": "0 2 * * *", "month": "0 3 1 * *", "year": "0 4 1 1 *"}
"""Some time after the end of a partition, for events that arrive late: days two hours after midnight."""


def ingest_schedule(cron: str | None) -> dg.ScheduleDefinition:
    """When what is new is applied: as the config says, else every five minutes once somebody switches it on."""
    return dg.ScheduleDefinition(
        name="ingest_schedule",
        job=ingest_job,
        cron_schedule=cron or DEFAULT_INGEST_CRON,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED if cron is None else dg.DefaultScheduleStatus.RUNNING,
        description="Apply what is new.",
    )


def check_schedule(job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Every night: publications compare changed keys alone meanwhile."""
    return dg.ScheduleDefinition(
        name="check_schedule",
        job=job,
        cron_schedule=CHECK_CRON,
        execution_timezone="UTC",
        description="Compare all rows of all mirrors every night.",
    )


def publish_schedules(published: Mapping[str, PublishedConfig]) -> Iterator[dg.ScheduleDefinition]:
    """One schedule per unit and time that published tables ask for; each makes the partition that is over."""
    for unit, job in JOBS_BY_UNIT.items():
        by_cron: dict[str, list[str]] = {}
        for name in tables_by(unit, published):
            by_cron.setdefault(published[name].schedule or _CRONS[unit], []).append(name)
        for number, (cron, names) in enumerate(by_cron.items()):
            asked = any(published[name].schedule for name in names)
            schedule = job.removesuffix("_job") + "_schedule"
            yield _publish_schedule(
                schedule if number == 0 else f"{schedule}_{number + 1}", unit, cron, names, asked=asked
            )


def _publish_schedule(name: str, unit: Unit, cron: str, tables: list[str], *, asked: bool) -> dg.ScheduleDefinition:
    keys = [published_key(table) for table in tables]

    @dg.schedule(
        name=name,
        job_name=JOBS_BY_UNIT[unit],
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if asked else dg.DefaultScheduleStatus.STOPPED,
        description=f"Make the last {unit} that is over of {', '.join(tables)}.",
    )
    def publish_last(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        last = last_key(unit, context.scheduled_execution_time.astimezone(UTC))
        return dg.RunRequest(run_key=f"{name}-{last}", partition_key=last, asset_selection=keys)

    return publish_last


def last_key(unit: Unit, moment: datetime) -> str:
    """The partition that was over last at a moment."""
    match unit:
        case "hour":
            before = moment - timedelta(hours=1)
        case "day":
            before = moment - timedelta(days=1)
        case "month":
            before = moment.replace(day=1) - timedelta(days=1)
        case _:
            before = moment.replace(month=1, day=1) - timedelta(days=1)
    return before.strftime(FORMATS[unit])
