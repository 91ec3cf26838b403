"""Dates and times for Spark, as literals of its SQL. Imports pyspark.

Python's own reach the JVM through a calendar that is Julian before 1582, lacks ten days of that year, and takes no year
of fewer than four digits.
"""

from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f


def date_literal(day: date) -> Column:
    """A date."""
    return f.expr(f"date '{day.isoformat()}'")


def timestamp_literal(moment: datetime) -> Column:
    """A moment; one without a zone is in UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return f.expr(f"timestamp_ltz '{aware.astimezone(UTC).isoformat(sep=' ')}'")


def timestamp_ntz_literal(moment: datetime) -> Column:
    """A time of no zone: what the clock of `moment` shows."""
    return f.expr(f"timestamp_ntz '{moment.replace(tzinfo=None).isoformat(sep=' ')}'")


def bound(value: Any) -> Any:
    """A value of a parameter, as `spark.sql` takes it."""
    if isinstance(value, datetime):
        return timestamp_literal(value)
    return date_literal(value) if isinstance(value, date) else value
