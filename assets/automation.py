"""What starts runs by itself: schedules. RUNNING by default only where the config names a time."""

from collections.abc import Iterator, Mapping
from datetime import UTC, timedelta

import dagster as dg

from assets.jobs import DAILY_JOB, ingest_job
from assets.keys import published_key
from pipelines.config import PublishedConfig

INGEST_CRON = "*/5 * * * *"
DAILY_CRON = "0 2 * * *"
"""Two hours after midnight, for events that arrive late."""

ingest_schedule = dg.ScheduleDefinition(
    name="ingest_schedule",
    job=ingest_job,
    cron_schedule=INGEST_CRON,
    description="Apply what is new every five minutes.",
)


def publish_schedules(published: Mapping[str, PublishedConfig]) -> Iterator[dg.ScheduleDefinition]:
    """One schedule per time of day that published tables ask for; each makes yesterday."""
    by_cron: dict[str, list[str]] = {}
    for name, entry in published.items():
        by_cron.setdefault(entry.schedule or DAILY_CRON, []).append(name)
    for number, (cron, names) in enumerate(by_cron.items()):
        asked = any(published[name].schedule for name in names)
        yield _publish_schedule(
            "daily_schedule" if number == 0 else f"daily_schedule_{number + 1}", cron, names, asked=asked
        )


def _publish_schedule(name: str, cron: str, tables: list[str], *, asked: bool) -> dg.ScheduleDefinition:
    keys = [published_key(table) for table in tables]

    @dg.schedule(
        name=name,
        job_name=DAILY_JOB,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if asked else dg.DefaultScheduleStatus.STOPPED,
        description=f"Make yesterday of {', '.join(tables)}.",
    )
    def publish_yesterday(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        yesterday = (context.scheduled_execution_time.astimezone(UTC) - timedelta(days=1)).date().isoformat()
        return dg.RunRequest(run_key=f"{name}-{yesterday}", partition_key=yesterday, asset_selection=keys)

    return publish_yesterday
