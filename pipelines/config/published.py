"""Sections of a published table: its SQL, partition, checks, and how its files are written.

A partition section says which rows a partition contains, and converts keys of partitions between text, column values, physical
values and ranges of time. Which partitions a change reaches is computed in `publish/partition_lineage.py`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, cast

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, field_validator, model_validator

from nevermore.pipelines.config.checks import PublishedChecksConfig
from nevermore.pipelines.config.tables import DEFAULT_TARGET_FILE_BYTES, AssetConfig, IndexConfig, RetentionConfig
from nevermore.pipelines.config.values import (
    Bytes,
    Cron,
    Day,
    Names,
    Section,
    placed,
)
from nevermore.pipelines.errors import ConfigError
from nevermore.scan_core import PrimitiveType, Type, arrow_type
from nevermore.scan_core.metadata import parse_transform

_LIKE_NULL = re.compile("'*null'*")
"""Text that must be quoted in a key, because `null` is the key of NULL."""


def _mode(value: Any) -> Any:
    """Also accept Spark's name of the mode."""
    return "replace" if value == "overwrite" else value


class PublishedOptions(Section):
    """How the files of a published table are written.

    Attributes:
        target_file_bytes: a task starts a new file when the current one reaches this size.
        compression: Parquet codec.
        bloom_filters: columns that get Bloom filters.
        distribution: `none`: the tasks that computed the rows write them; `rebalance`: rows are shuffled into files of even size; `range`: rows are also shuffled so that files do not overlap in `sort_by`.
        reader: `auto` chooses for each mirror, by expected cost, between Spark's own Parquet reader and tasks in Python; `python` always reads in Python.
    """

    target_file_bytes: Bytes = DEFAULT_TARGET_FILE_BYTES
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    bloom_filters: Names = ()
    distribution: Literal["none", "rebalance", "range"] = "none"
    reader: Literal["auto", "python"] = "auto"


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
_NUMBERED = {"year": "datetime64[Y]", "month": "datetime64[M]", "day": "datetime64[D]", "hour": "datetime64[h]"}
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
        return self._period(self._number(key))

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
        start, end = self._number(first), self._number(last)
        if end < start:
            raise ConfigError(f"{text!r}: the last {self.unit} is before the first")
        return [self._text(number) for number in range(start, end + 1)]

    def _number(self, key: str) -> int:
        """The number of the unit that a key represents, from 1970: what Iceberg's transform of this name gives."""
        try:
            moment = np.datetime64(datetime.strptime(key, FORMATS[self.unit]))  # noqa: DTZ007 - UTC
        except ValueError as error:
            raise ConfigError(f"{key!r} is not a valid {self.unit}; write it as {_EXAMPLES[self.unit]}") from error
        return int(moment.astype(_NUMBERED[self.unit]).astype(np.int64))

    def _text(self, number: int) -> str:
        # not strftime: its years before 1000 have fewer digits
        return self._start(number).isoformat()[: len(_EXAMPLES[self.unit])]

    # -- physical values, as stored in manifests -------------------------------------------------------------------

    def physical(self, key: str, kind: Type) -> Any:
        """The value of the Iceberg partition field for a key.

        Raises:
            ConfigError: no such key.
        """
        if key == NULL_KEY:
            return None
        if self.is_time:
            return self._number(key)
        return self.physical_values(values_of_key(key, kind), kind).pop()

    def physical_values(self, values: pa.Array, kind: Type) -> set[Any]:
        """The values of the Iceberg partition field for values of the column."""
        found = parse_transform(self.transform).apply(values, kind)
        if pa.types.is_date32(found.type):
            found = found.cast(pa.int32())
        elif pa.types.is_timestamp(found.type):
            found = found.cast(pa.int64())
        return set(found.to_pylist())

    def key_of(self, physical: Any, kind: Type) -> str:
        """The key of a value of the Iceberg partition field."""
        if physical is None:
            return NULL_KEY
        if self.is_time:
            return self._text(physical)
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

    def _start(self, number: int) -> datetime:
        found = np.int64(number).astype(_NUMBERED[self.unit]).astype("datetime64[s]").item()
        if not isinstance(found, datetime):
            raise ConfigError(
                f"{self}: {number} {self.unit}s from 1970 is outside the years 1 to 9999: exclude such rows in the SQL"
            )
        return found.replace(tzinfo=UTC)

    def _period(self, number: int) -> Period:
        start = self._start(number)
        try:
            return Period(start, self._start(number + 1))
        except ConfigError:
            return Period(start, _END_OF_TIME)

    def periods(self, physical: Iterable[Any]) -> list[Period]:
        """The periods of partitions in order, with adjacent ones merged; NULL has none."""
        joined: list[Period] = []
        for period in (self._period(value) for value in sorted(v for v in physical if v is not None)):
            if joined and joined[-1].end == period.start:
                joined[-1] = Period(joined[-1].start, period.end)
            else:
                joined.append(period)
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


class PublishedConfig(AssetConfig):
    """A published table, built from mirrors and rebuilt partition by partition.

    Attributes:
        description: what the table is, in Markdown; also the `comment` of the Iceberg table.
        owners: who is responsible: e-mail addresses, or teams as `team:data`.
        tags: names with values, or a list of names, by which assets can be selected.
        group: the group of its assets; by default the namespace of the table.
        freshness: maximum time between two updates; after it, Dagster shows the table as overdue.
        column_descriptions: what columns are, by their names, in Markdown; members of structs as `address.city`. Also the comments of the Iceberg columns.
        sql: a query over mirrors, by their names in this config, and over their change logs, such as `change_log.shop_orders`.
        history: a mirror whose rows are published in all their versions, instead of `sql`: see [history](history.md).
        valid_by: what `valid_from` and `valid_to` of a history are: when the source made the change, or when it was read (`ingest`).
        partition: how the table is partitioned and rebuilt: a date column of the result, or `hour(at)`, `month(day)`, `year(day)` or `value(city)` of a column; if omitted, the table is rebuilt as a whole.
        start: first partition, for backfills and for SQL that uses `:partition`.
        values: partitions of `value(...)` that Dagster offers, and for which SQL with `:partition` is run.
        parameters: values of `:name` in the SQL, in addition to `:partition`, `:partition_start` and `:partition_end`.
        incremental: whether `publish` rebuilds only the partitions that changes of the mirrors can affect: `true` refuses SQL for which this can never be determined, `auto` then rebuilds everything; `keys` rebuilds only the keys that changes can affect, where that is certain, and otherwise works as `auto`.
        consistent: whether mirrors of one database are read at one commit of the database, so that a join never shows a state that it did not have; `false` reads each as it is now.
        key: columns that identify a row of the result, for the checks, for `mode: upsert` and for `incremental: keys`.
        mode: what a run does with the existing rows of its partition: `replace` them, `append` to them once per state of the mirrors, or `upsert` by `key`.
        sort_by: columns by which the rows of each file are sorted.
        schedule: cron expression, in UTC, for when Dagster builds the most recent completed partition.
        properties: Iceberg table properties; set when the table is created, and by the next publication after a change here.
        index: indexes that are kept up to date.
        maintenance: how many old snapshots are kept.
        checks: what must hold in addition: [expectations and freshness](expectations.md).
        options: how files are written.
    """

    sql: str = ""
    history: str | None = None
    valid_by: Literal["source", "ingest"] = "source"
    partition: str | None = None
    start: Day | None = None
    values: Names = ()
    parameters: dict[str, bool | int | float | date | str] = Field(default_factory=dict)
    incremental: bool | Literal["auto", "keys"] = False
    consistent: bool = True
    key: Names = ()
    mode: Annotated[Literal["replace", "append", "upsert"], BeforeValidator(_mode)] = "replace"
    sort_by: Names = ()
    schedule: Cron | None = None
    index: IndexConfig | None = None
    maintenance: RetentionConfig = RetentionConfig()
    checks: PublishedChecksConfig = PublishedChecksConfig()
    options: PublishedOptions = PublishedOptions()

    @property
    def partitioning(self) -> PublishedPartition | None:
        """How the table is partitioned; None if it is not."""
        return None if self.partition is None else PublishedPartition.parse(self.partition)

    @field_validator("partition")
    @classmethod
    def _is_partition(cls, value: str | None) -> str | None:
        if value is not None:
            PublishedPartition.parse(value)
        return value

    @model_validator(mode="after")
    def _has_what_its_options_need(self) -> "PublishedConfig":
        if bool(self.sql) == bool(self.history):
            raise ValueError("either sql or history is required, and not both")
        if self.incremental and self.mode != "replace":
            raise ValueError(f"incremental tables always replace partitions; remove mode: {self.mode}")
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode: upsert requires the columns that identify a row: key: [...]")
        if self.incremental == "keys" and not self.key:
            raise ValueError("incremental: keys requires the columns by which rows are rebuilt: key: [...]")
        if self.options.distribution == "range" and not self.sort_by:
            raise ValueError("distribution: range requires the columns that define the ranges: sort_by: [...]")
        if self.index and self.index.bloom:
            raise placed(
                "choose the Bloom filters of a published table in options: bloom_filters: [...]", "index", "bloom"
            )
        return self

    @model_validator(mode="after")
    def _suits_its_partition(self) -> "PublishedConfig":
        partition = self.partitioning
        if self.values and (partition is None or partition.is_time):
            raise ValueError("values applies only to a table with partition: value(column)")
        if self.schedule and not (partition and partition.is_time):
            raise ValueError(
                "a schedule builds the last hour, day, month or year, so the table must be partitioned by time"
            )
        if taken := sorted(set(self.parameters) & {"partition", "partition_start", "partition_end"}):
            raise ValueError(f"parameters: {taken[0]} is reserved for the partition; choose another name")
        if self.start is not None:
            if partition is None:
                raise placed(
                    "start applies only to a table with a partition; add partition: ..., or remove it", "start"
                )
            if partition.is_time:
                partition.period(self.start)
        return self
