"""Partitions of a result as conditions on the rows of a table that they are made of: what a scan may leave out.

A condition keeps every row that matters and may keep others. Where none is certain there is none, and all is read.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlglot import exp

from pipelines.published.partition import Period, PublishedPartition
from pipelines.published.query_tree import DIALECT
from scan_core.schema import NestedField, PrimitiveType, Schema

MOST_RANGES = 20
"""Beyond so many stretches of time, or values, one that covers them all is quicker to judge."""
_ZONE_MARGIN = timedelta(days=1)
"""No time zone is further from UTC, whatever its rules were at the time."""
_DAY = timedelta(days=1)
_NEXT: dict[str, timedelta] = {
    "YEAR": timedelta(days=366),
    "QUARTER": timedelta(days=92),
    "MONTH": timedelta(days=31),
    "WEEK": timedelta(days=7),
    "DAY": _DAY,
    "HOUR": timedelta(hours=1),
    "MINUTE": timedelta(minutes=1),
    "SECOND": timedelta(seconds=1),
}
_UNITS = {"YYYY": "YEAR", "YY": "YEAR", "MON": "MONTH", "MM": "MONTH", "DD": "DAY", "Q": "QUARTER"}
_FIRST, _LAST = datetime(1, 1, 8, tzinfo=UTC), datetime(9998, 12, 1, tzinfo=UTC)
"""Beyond, a margin has no date."""


@dataclass(frozen=True, slots=True)
class ScanCondition:
    """What rows must fulfil to matter, in the language of scans. `is_exact`: those that do are all of the partitions."""

    sql: str
    is_exact: bool = False


def scan_condition(
    expression: exp.Expression, schema: Schema, partition: PublishedPartition, values: Collection[Any]
) -> ScanCondition | None:
    """The condition on rows of a table whose partition is told by `expression`, for some partitions.

    Args:
        expression: over columns of the table alone; its value is that of the partition column.
        schema: of the table.
        partition: how the result is partitioned.
        values: of the Iceberg partition field.
    """
    column = expression.find(exp.Column)
    field = None if column is None else _field(schema, column)
    if field is None or not isinstance(field.type, PrimitiveType) or None in values or not values:
        return None
    name = "`" + field.name.replace("`", "``") + "`"
    if not partition.is_time:
        return _of_values(name, field.type, values) if isinstance(expression, exp.Column) else None
    is_day = _is_day_of_column(expression)
    periods = partition.periods(values)
    found = []
    for period in _few(periods):
        if not _FIRST < period.start <= period.end < _LAST:
            return None
        widened = _before(expression, period)
        if widened is None:
            return None
        text = _range(name, field.type.name, widened)
        if text is None:
            return None
        found.append(text)
    is_column = isinstance(expression, exp.Column) and len(periods) <= MOST_RANGES
    exact = is_column or (is_day and partition.transform == "identity" and len(values) == 1)
    return ScanCondition(found[0] if len(found) == 1 else " or ".join(f"({text})" for text in found), exact)


def _field(schema: Schema, column: exp.Column) -> NestedField | None:
    found = [f for f in schema.fields if f.name.lower() == column.name.lower()]
    return found[0] if len(found) == 1 and isinstance(column.this, exp.Identifier) else None


def _few(periods: Sequence[Period]) -> Sequence[Period]:
    return periods if len(periods) <= MOST_RANGES else [Period(periods[0].start, periods[-1].end)]


def _is_day_of_column(expression: exp.Expression) -> bool:
    if _is_cast_to_date(expression):
        expression = expression.this
    return isinstance(expression, exp.Column)


def _is_cast_to_date(expression: exp.Expression) -> bool:
    if expression.args.get("format"):
        return False
    return isinstance(expression, exp.TsOrDsToDate) or (isinstance(expression, exp.Cast) and expression.is_type("date"))


def _before(expression: exp.Expression, period: Period) -> Period | None:
    """The times of the innermost column for which the expression can lie in the period."""
    match expression:
        case exp.Column():
            return period
        case exp.Paren():
            return _before(expression.this, period)
        case _ if _is_cast_to_date(expression):
            return _before(expression.this, Period(_floor(period.start), _ceiling(period.end, "DAY")))
        case exp.Cast() if expression.is_type("timestamp", "timestampntz", "timestamptz", "timestampltz"):
            return _before(expression.this, period)
        case exp.TimestampTrunc() | exp.DateTrunc():
            named = expression.args.get("unit")
            unit = "" if named is None else str(named.name).upper()
            unit = _UNITS.get(unit, unit)
            if unit not in _NEXT:
                return None
            return _before(expression.this, Period(period.start, _ceiling(period.end, unit)))
        case exp.AtTimeZone() | exp.FromTimeZone():
            return _before(expression.this, Period(period.start - _ZONE_MARGIN, period.end + _ZONE_MARGIN))
        case _:
            return None


def _floor(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _ceiling(moment: datetime, unit: str) -> datetime:
    """No earlier than the first start of a unit that is not before the moment."""
    starts = {
        "DAY": moment == _floor(moment),
        "HOUR": (moment.minute, moment.second, moment.microsecond) == (0, 0, 0),
        "MONTH": moment == _floor(moment) and moment.day == 1,
        "YEAR": moment == _floor(moment) and (moment.month, moment.day) == (1, 1),
    }
    return moment if starts.get(unit, False) else moment + _NEXT[unit]


def _range(name: str, kind: str, period: Period) -> str | None:
    match kind:
        case "date":
            start, end = period.start.date(), _ceiling(period.end, "DAY").date()
            if end - start == _DAY:
                return f"{name} = date '{start}'"
            return f"{name} >= date '{start}' and {name} < date '{end}'"
        case "timestamp" | "timestamptz":
            zone = "+00:00" if kind == "timestamptz" else ""
            start_text, end_text = (
                moment.replace(tzinfo=None).isoformat(sep=" ") + zone for moment in (period.start, period.end)
            )
            return f"{name} >= timestamp '{start_text}' and {name} < timestamp '{end_text}'"
        case _:
            return None


def _of_values(name: str, kind: PrimitiveType, values: Collection[Any]) -> ScanCondition | None:
    if len(values) > MOST_RANGES or kind.name not in {"int", "long", "string", "boolean"}:
        return None
    literals = []
    for value in sorted(values):
        literal = exp.convert(value) if not isinstance(value, str) else exp.Literal.string(value)
        if isinstance(value, str) and "\\" in value:
            return None
        literals.append(literal.sql(dialect=DIALECT))
    return ScanCondition(f"{name} in ({', '.join(literals)})", is_exact=True)
