"""Business days as Dagster partitions: what a published table is re-made by."""

from collections.abc import Iterable
from datetime import date

import dagster as dg

from pipelines.config import PublishedConfig

DEFAULT_START = "2024-01-01"
"""First day offered where no published table says `start`; earlier days still exist in the tables."""


def business_days(published: Iterable[PublishedConfig]) -> dg.DailyPartitionsDefinition:
    """Days from the earliest `start` to today, in UTC.

    One definition for all published tables: assets of one job must share it, and a day before a table's own start is
    merely empty.
    """
    starts = [date.fromisoformat(entry.start) for entry in published if entry.start]
    start = min(starts).isoformat() if starts else DEFAULT_START
    return dg.DailyPartitionsDefinition(start_date=start, end_offset=1, timezone="UTC")
