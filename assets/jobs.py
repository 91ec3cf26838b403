"""Jobs: which assets run together, by the names that schedules, the CLI and people use."""

import dagster as dg

from assets.keys import CHANGE_LOG_GROUP, MIRROR_GROUP, PUBLISHED_GROUP

INGEST_JOB = "ingest_job"
DAILY_JOB = "daily_job"

ingest_job = dg.define_asset_job(
    INGEST_JOB,
    selection=dg.AssetSelection.groups(CHANGE_LOG_GROUP, MIRROR_GROUP),
    description="Apply everything new to change logs and mirrors, then check the mirrors.",
)

daily_job = dg.define_asset_job(
    DAILY_JOB,
    selection=dg.AssetSelection.groups(PUBLISHED_GROUP),
    description="Re-make business days of the published tables from the mirrors, in one Spark session.",
)
"""Only where something is published: a job without assets does not resolve."""
