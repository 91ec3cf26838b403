"""The partitions that a run makes: those asked for, those that changes reach, or all; and what the result looks like.

Imports pyspark, to ask which partitions changed rows are part of.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipelines.config import PublishedConfig
from pipelines.errors import ConfigError
from pipelines.published.changed_partitions import Reached, reached_partitions
from pipelines.published.entries import arguments
from pipelines.published.partition import FORMATS, PublishedPartition
from pipelines.published.partition_rows import partition_field, require_columns
from pipelines.published.query import PublishedQuery
from pipelines.published.refresh_plan import MakeAll, MakeReached, RefreshPlan
from pipelines.published.spark_failures import SPARK_FAILURES, spark_message
from pipelines.published.state import Base
from pipelines.published.writer import iceberg_columns
from scan_core.schema import NestedField, Type
from scan_core.table import open_table

ASKED_FOR = "asked for"
NEW = "new since the last run"
Why = Mapping[str, tuple[str, ...]]
"""By key of a partition, what made it necessary."""


@dataclass(frozen=True, slots=True)
class Work:
    """What to make.

    Attributes:
        values: of the Iceberg partition field; None for the whole table.
        reason: in one sentence.
        why: by key, as far as single partitions are known.
        changed_rows: of each mirror that changed.
        without: values of partitions that are left out of the whole table.
    """

    values: frozenset[Any] | None
    reason: str
    why: Why = field(default_factory=dict)
    changed_rows: Mapping[str, int] = field(default_factory=dict)
    without: frozenset[Any] = frozenset()


@dataclass(frozen=True, slots=True)
class ResultShape:
    """The columns of a result. `partition` is the column that partitions are made by; None for none."""

    columns: tuple[NestedField, ...]
    partition: NestedField | None
    spark_type: str = ""


def result_shape(entry: PublishedConfig, query: PublishedQuery, result: DataFrame) -> ResultShape:
    """The columns of a result, as the config wants them.

    Raises:
        ConfigError: one that the config names is missing, or of a type that cannot be.
    """
    by = entry.partitioning
    if by is None:
        found = ResultShape(iceberg_columns(query.name, result), None)
    else:
        column = partition_field(query.name, result, by)
        kind = result.schema[by.column].dataType.simpleString()
        found = ResultShape(iceberg_columns(query.name, result), column, kind)
    require_columns(query.name, result, (*entry.sort_by, *entry.options.bloom_filters, *entry.key))
    return found


def last_partition(entry: PublishedConfig, query: PublishedQuery) -> str | None:
    """The last partition there is by now, of SQL that asks for its partition; else None."""
    partition = entry.partitioning
    if partition is None or not partition.is_time or not query.depends_on_partition:
        return None
    return datetime.now(UTC).strftime(FORMATS[partition.unit])


def sample_arguments(entry: PublishedConfig, query: PublishedQuery) -> dict[str, Any]:
    """Values for the parameters when only the types of the result matter."""
    partition = entry.partitioning
    key = None
    if partition is not None and query.depends_on_partition:
        key = datetime.now(UTC).strftime(FORMATS[partition.unit]) if partition.is_time else ""
    return arguments(query, entry, key)


def work_without(
    work: Work, keys: Collection[str], entry: PublishedConfig, query: PublishedQuery, shape: ResultShape
) -> Work:
    """What is left to make where some partitions are made already."""
    partition = entry.partitioning
    if not keys or partition is None or shape.partition is None:
        return work
    kind = shape.partition.type
    done = frozenset(partition.physical(key, kind) for key in keys)
    why = {key: reasons for key, reasons in work.why.items() if partition.physical(key, kind) not in done}
    if work.values is not None:
        return replace(work, values=work.values - done, why=why)
    return replace(work, why=why, without=frozenset() if query.depends_on_partition else done)


class WorkFinder:
    """Finds the work of one run.

    Args:
        entry: of the config.
        query: its SQL.
        base: what the table holds.
        table: from the catalog; None if it does not exist.
    """

    def __init__(self, entry: PublishedConfig, query: PublishedQuery, base: Base, table: Any) -> None:
        self._entry = entry
        self._query = query
        self._base = base
        self._table = table

    def asked_for(self, keys: Sequence[str], shape: ResultShape) -> Work:
        """Partitions by their keys."""
        partition, kind = self._partition(shape)
        keys = [partition.canonical(key, kind) for key in keys]
        values = frozenset(partition.physical(key, kind) for key in keys)
        return Work(values, ASKED_FOR, dict.fromkeys(keys, (ASKED_FOR,)))

    def planned(self, spark: SparkSession, plan: RefreshPlan, shape: ResultShape, views: Mapping[str, str]) -> Work:
        """What a plan comes to; all, where Spark cannot tell what changed rows reach."""
        if isinstance(plan, MakeReached):
            partition, kind = self._partition(shape)
            try:
                reached = reached_partitions(
                    spark, self._query, plan, views, partition=partition, kind=kind, spark_type=shape.spark_type
                )
            except SPARK_FAILURES as error:
                plan = MakeAll(f"what changed rows reach cannot be told: {spark_message(error)}")
            else:
                return self._reached(plan, reached, shape)
        if shape.partition is None or not self._query.depends_on_partition:
            return Work(None, plan.reason)
        return Work(None, plan.reason, dict.fromkeys(self._offered(shape), ()))

    def _partition(self, shape: ResultShape) -> tuple[PublishedPartition, Type]:
        partition = self._entry.partitioning
        if partition is None or shape.partition is None:
            raise ConfigError(f"published {self._query.name} has no partitions")
        return partition, shape.partition.type

    def _reached(self, plan: MakeReached, reached: Reached, shape: ResultShape) -> Work:
        partition, kind = self._partition(shape)
        why = {partition.canonical(key, kind): [reason] for key, reason in plan.keys.items()}
        for table, values in reached.by_table.items():
            for value in values:
                why.setdefault(partition.key_of(value, kind), []).append(table)
        if self._query.depends_on_partition:
            offered = self._offered(shape)
            until = self._base.state.until if self._base.state is not None else None
            if partition.is_time and until is not None:
                for key in offered:
                    if partition.period(key).start > partition.period(until).start:
                        why.setdefault(key, []).append(NEW)
            why = {key: reasons for key, reasons in why.items() if key in offered}
        changed = [table for table, count in reached.changed_rows.items() if count]
        reason = f"changed: {', '.join(changed)}" if reached.values else "no change reaches a partition"
        if plan.keys and not reached.values:
            reason = "partitions were made alone since"
        told = {key: tuple(reasons) for key, reasons in sorted(why.items())}
        return Work(frozenset(partition.physical(key, kind) for key in why), reason, told, reached.changed_rows)

    def _offered(self, shape: ResultShape) -> list[str]:
        """The partitions there are, of SQL that is run for each of them: those configured, and those that exist."""
        partition, kind = self._partition(shape)
        found = [partition.canonical(value, kind) for value in self._entry.values]
        last = last_partition(self._entry, self._query)
        if last is not None:
            if self._entry.start is None:
                raise ConfigError(
                    f"published {self._query.name}: the SQL asks for its partition; say from which one on there are "
                    f"any, for example start: {last!r}"
                )
            if partition.period(self._entry.start).start > partition.period(last).start:
                raise ConfigError(
                    f"published {self._query.name}: start: {self._entry.start} lies in the future: the last {partition.unit} by now is {last}"
                )
            found = partition.keys(f"{self._entry.start}..{last}")
        if self._table is not None and self._base.snapshot_id is not None:
            tasks = open_table(self._table).scan().plan().tasks
            # files of a table without this partition have none: what does not fit is told when the table is written
            found += [partition.key_of(task.data_file.partition[0], kind) for task in tasks if task.data_file.partition]
        return list(dict.fromkeys(found))
