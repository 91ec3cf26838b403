"""Partitions of published tables in Dagster's terms: stretches of time from the config's `start` to now, or values."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import dagster as dg

from pipelines.config import PublishedConfig
from pipelines.published.partition import FORMATS, Unit

DEFAULT_START = "2024-01-01"
"""First day offered where no published table says `start`; earlier partitions still exist in the tables."""
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
