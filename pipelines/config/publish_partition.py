"""How a published table is partitioned, and which rows a partition contains.

Converts partition keys between text, column values, physical values and ranges of time. Which partitions a change
reaches is computed in `publish/partition_lineage.py`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, cast

import pyarrow as pa

from pipelines.errors import ConfigError
from scan_core import PrimitiveType, Type, arrow_type, parse_transform

_LIKE_NULL = re.compile("'*null'*")
"""Text that must be quoted in a key, because `null` is the key of NULL."""


def key_of_text(text: str) -> str:
    """The key of a text partition: the text itself, or `'null'` for the text null."""
    return f"'{text}'" if _LIKE_NULL.fullmatch(text) else text


def text_of_key(key: str) -> str:
    """The text that a key represents; the inverse of `key_of_text`."""
    return key[1:-1] if _LIKE_NULL.fullmatch(key) and key[0] == key[-1] == "'" else key


def values_of_key(key: str, kind: Type) -> pa.Array:
    """The value that a key represents, as an array of the column's type.

    Raises:
        ConfigError: the key is not a value of this type.
    """
    try:
        return pa.array([_typed(key, kind)], arrow_type(kind))
    except (ValueError, KeyError, InvalidOperation, OverflowError, pa.ArrowException) as error:
        raise ConfigError(f"{key!r} is not a {kind}, the type of the partition column") from error


def _typed(key: str, kind: Type) -> Any:
    match kind.name if isinstance(kind, PrimitiveType) else "":
        case "int" | "long":
            return int(key)
        case "boolean":
            return {"true": True, "false": False}[key.lower()]
        case "date":
            return date.fromisoformat(key)
        case "timestamp":
            return datetime.fromisoformat(key)
        case "timestamptz":
            moment = datetime.fromisoformat(key)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        case "decimal":
            return Decimal(key)
        case _:
            return text_of_key(key)


Unit = Literal["year", "month", "day", "hour", "value"]
NULL_KEY = "null"
"""The partition of rows whose partition column is NULL."""
FORMATS: dict[str, str] = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
"""Formats of keys by unit, also used by Dagster."""
_EXAMPLES = {"year": "2026", "month": "2026-01", "day": "2026-01-31", "hour": "2026-01-31T13"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)
_QUOTED = r"`(?:[^`]|``)+`"
_COLUMN = re.compile(rf"{_QUOTED}|[^()`]+")
_PLACE = re.compile(rf"(\w+)\(\s*({_QUOTED}|[^()`]+?)\s*\)")


@dataclass(frozen=True, slots=True)
class Period:
    """A range of time in UTC; the end is exclusive."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """How a published table is partitioned.

    Attributes:
        column: column of the result.
        unit: what a partition represents.
        transform: transform of the Iceberg partition field.
    """

    column: str
    unit: Unit
    transform: str

    @classmethod
    def parse(cls, text: str) -> "PublishedPartition":
        """From a config: `day` (a date column), `hour(ordered_at)`, `month(day)`, `year(day)`, `value(city)`.

        Any name may be quoted with backquotes; a backquote within it is doubled.

        Raises:
            ValueError: none of these.
        """
        text = text.strip()
        if _COLUMN.fullmatch(text):
            return cls(_unquoted(text), "day", "identity")
        match = _PLACE.fullmatch(text)
        unit = match[1].lower().rstrip("s") if match else ""
        if match is None or unit not in {*FORMATS, "value", "identity"}:
            raise ValueError(
                f"{text!r} is not a partition of a published table; write a date column, or year, month, day, hour or value "
                "of a column: hour(ordered_at)"
            )
        column = _unquoted(match[2])
        if unit in {"value", "identity"}:
            return cls(column, "value", "identity")
        return cls(column, cast("Unit", unit), unit)

    @property
    def is_time(self) -> bool:
        """Whether partitions are ranges of time."""
        return self.unit != "value"

    def __str__(self) -> str:
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"

    def fits(self, kind: Type) -> bool:
        """Whether a column of this type can be partitioned this way."""
        if not isinstance(kind, PrimitiveType):
            return False
        match self.unit:
            case "day" if self.transform == "identity":
                return kind.name == "date"
            case "value":
                return kind.name not in {"float", "double", "binary", "fixed"}
            case "hour":
                return kind.name in {"timestamp", "timestamptz"}
            case _:
                return kind.name in {"date", "timestamp", "timestamptz"}

    # -- keys ------------------------------------------------------------------------------------------------------

    def period(self, key: str) -> Period:
        """The time that a key represents.

        Raises:
            ConfigError: invalid key.
        """
        try:
            start = datetime.strptime(key, FORMATS[self.unit]).replace(tzinfo=UTC)
        except ValueError as error:
            raise ConfigError(f"{key!r} is not a valid {self.unit}; write it as {_EXAMPLES[self.unit]}") from error
        return Period(start, self._after(start))

    def keys(self, text: str) -> list[str]:
        """The keys of `2026-01-31`, or of `2026-01-01..2026-01-31` including both ends.

        Raises:
            ConfigError: invalid keys, or the last is before the first.
        """
        first, separator, last = text.partition("..")
        if self.is_time and separator and not (first and last):
            raise ConfigError(
                f"{text!r} lacks its first or last key; write {_EXAMPLES[self.unit]}..{_EXAMPLES[self.unit]}"
            )
        if not self.is_time or not separator or NULL_KEY in {first, last}:
            if self.is_time and text != NULL_KEY:
                self.period(text)
            return [text]
        start, end = self.period(first).start, self.period(last).start
        if end < start:
            raise ConfigError(f"{text!r}: the last {self.unit} is before the first")
        found = []
        while start <= end:
            found.append(self._text(start))
            start = self._after(start)
        return found

    def _text(self, start: datetime) -> str:
        # not strftime: its years before 1000 have fewer digits
        return start.isoformat()[: len(_EXAMPLES[self.unit])]

    def _after(self, start: datetime) -> datetime:
        """The start of the next partition, or the last representable moment."""
        try:
            match self.unit:
                case "hour":
                    return start + timedelta(hours=1)
                case "day":
                    return start + timedelta(days=1)
                case "month":
                    return (start.replace(day=1) + timedelta(days=32)).replace(day=1)
                case _:
                    return start.replace(year=start.year + 1)
        except (OverflowError, ValueError):
            return _END_OF_TIME

    # -- physical values, as stored in manifests -------------------------------------------------------------------

    def physical(self, key: str, kind: Type) -> Any:
        """The value of the Iceberg partition field for a key.

        Raises:
            ConfigError: no such key.
        """
        if key == NULL_KEY:
            return None
        if self.is_time:
            start = self.period(key).start
            match self.unit:
                case "hour":
                    return (start - _EPOCH) // timedelta(hours=1)
                case "day":
                    return (start - _EPOCH).days
                case "month":
                    return (start.year - 1970) * 12 + start.month - 1
                case _:
                    return start.year - 1970
        return self.physical_values(values_of_key(key, kind), kind).pop()

    def physical_values(self, values: pa.Array, kind: Type) -> set[Any]:
        """The values of the Iceberg partition field for values of the column."""
        found = parse_transform(self.transform).apply(values, kind)
        if pa.types.is_date32(found.type):
            found = found.cast(pa.int32())
        elif pa.types.is_timestamp(found.type):
            found = found.cast(pa.int64())
        elif pa.types.is_decimal(found.type):
            return {None if v is None else int(v.scaleb(found.type.scale)) for v in found.to_pylist()}
        return set(found.to_pylist())

    def key_of(self, physical: Any, kind: Type) -> str:
        """The key of a value of the Iceberg partition field."""
        if physical is None:
            return NULL_KEY
        if self.is_time:
            return self._text(self._start(physical))
        if isinstance(kind, PrimitiveType) and kind.name == "decimal":
            # scans return partition values as decimals, manifests do not
            return str(physical if isinstance(physical, Decimal) else Decimal(physical).scaleb(-kind.parameters[1]))
        if isinstance(kind, PrimitiveType) and kind.name == "date":
            return (_EPOCH.date() + timedelta(days=physical)).isoformat()
        if isinstance(kind, PrimitiveType) and kind.name in {"timestamp", "timestamptz"}:
            return (_EPOCH + timedelta(microseconds=physical)).replace(tzinfo=None).isoformat()
        return str(physical).lower() if isinstance(physical, bool) else key_of_text(str(physical))

    def canonical(self, key: str, kind: Type) -> str:
        """The canonical form of a key: `2026-1-31` and `2026-01-31` are the same partition.

        Raises:
            ConfigError: no such key.
        """
        return self.key_of(self.physical(key, kind), kind)

    def _start(self, physical: int) -> datetime:
        try:
            match self.unit:
                case "hour":
                    return _EPOCH + timedelta(hours=physical)
                case "day":
                    return _EPOCH + timedelta(days=physical)
                case "month":
                    return datetime(1970 + physical // 12, 1 + physical % 12, 1, tzinfo=UTC)
                case _:
                    return datetime(1970 + physical, 1, 1, tzinfo=UTC)
        except (OverflowError, ValueError) as error:
            raise ConfigError(
                f"{self}: {physical} {self.unit}s from 1970 is outside the years 1 to 9999: exclude such rows in the SQL"
            ) from error

    def periods(self, physical: Iterable[Any]) -> list[Period]:
        """The periods of partitions in order, with adjacent ones merged; NULL has none."""
        joined: list[Period] = []
        for value in sorted(v for v in physical if v is not None):
            start = self._start(value)
            if joined and joined[-1].end == start:
                joined[-1] = Period(joined[-1].start, self._after(start))
            else:
                joined.append(Period(start, self._after(start)))
        return joined

    def parameters(self, key: str) -> dict[str, Any]:
        """The values of `:partition`, `:partition_start` and `:partition_end` for a key: dates, times for hours, else text.

        The last possible partition, such as 9999-12-31, has no end.

        Raises:
            ConfigError: invalid key.
        """
        if not self.is_time or key == NULL_KEY:
            return {"partition": None if key == NULL_KEY else text_of_key(key)}
        period = self.period(key)
        start: date | datetime = period.start if self.unit == "hour" else period.start.date()
        end: date | datetime = period.end if self.unit == "hour" else period.end.date()
        bound = {"partition": start, "partition_start": start}
        return bound if period.end == _END_OF_TIME else {**bound, "partition_end": end}


def _unquoted(column: str) -> str:
    return column[1:-1].replace("``", "`") if column.startswith("`") else column
