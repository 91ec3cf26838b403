"""Jobs: which assets run together, by the names that schedules, the CLI and people use."""

from typing import Any

import dagster as dg

from assets.keys import CHANGE_LOG_GROUP, MIRROR_GROUP, PUBLISHED_GROUP

INGEST_JOB = "ingest_job"
DAILY_JOB = "daily_job"

ingest_job = dg.define_asset_job(
    INGEST_JOB,
    selection=dg.AssetSelection.groups(CHANGE_LOG_GROUP, MIRROR_GROUP),
    executor_def=dg.in_process_executor,
    description="Apply everything new to change logs and mirrors, then check the mirrors.",
)


def daily_job(days: dg.DailyPartitionsDefinition) -> Any:  # Dagster does not export the type of a job to be resolved
    """The job that re-makes business days of every published table.

    In one process, so that all of its tables share one Spark session.
    """
    return dg.define_asset_job(
        DAILY_JOB,
        selection=dg.AssetSelection.groups(PUBLISHED_GROUP),
        partitions_def=days,
        executor_def=dg.in_process_executor,
        description="Re-make business days of the published tables from the mirrors.",
    )
