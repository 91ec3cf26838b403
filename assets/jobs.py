"""Jobs: which assets run together, by the names that schedules, the CLI and people use."""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.keys import CHANGE_LOG_GROUP, MIRROR_GROUP, published_key
from pipelines.config import PublishedConfig
from pipelines.published.partition import Unit

INGEST_JOB = "ingest_job"
DAILY_JOB = "daily_job"
PUBLISH_JOB = "publish_job"
CHECK_JOB = "check_job"
JOBS_BY_UNIT: Mapping[Unit, str] = {
    "hour": "hourly_job",
    "day": DAILY_JOB,
    "month": "monthly_job",
    "year": "yearly_job",
}
"""Assets of one job share their partitions: one job per unit of time."""

ingest_job = dg.define_asset_job(
    INGEST_JOB,
    selection=dg.AssetSelection.groups(CHANGE_LOG_GROUP, MIRROR_GROUP),
    description="Apply everything new to change logs and mirrors, then check the mirrors.",
)


def check_job(checks: Sequence[dg.AssetChecksDefinition]) -> UnresolvedAssetJobDefinition:
    """All checks of all mirrors, over all of their rows."""
    return dg.define_asset_job(
        CHECK_JOB,
        selection=dg.AssetSelection.checks(*checks),
        description="Compare all rows of all mirrors with their change logs and files.",
    )


def jobs_by_time(published: Mapping[str, PublishedConfig]) -> Iterator[UnresolvedAssetJobDefinition]:
    """A job for each unit of time by which published tables are partitioned, over all tables of that unit."""
    for unit, job in JOBS_BY_UNIT.items():
        names = tables_by(unit, published)
        if names:
            yield dg.define_asset_job(
                job,
                selection=dg.AssetSelection.assets(*(published_key(name) for name in names)),
                description=f"Re-make partitions by {unit} of the published tables from the mirrors, in one Spark session.",
            )


def tables_by(unit: Unit, published: Mapping[str, PublishedConfig]) -> list[str]:
    """Published tables that are partitioned by a unit of time."""
    return [n for n, entry in published.items() if entry.partitioning is not None and entry.partitioning.unit == unit]
