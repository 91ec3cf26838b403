"""Which partitions changed rows are part of: the queries of a plan, run by Spark over the rows that came and went.

Imports pyspark.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from pipelines.published.changed_rows import TIMES, changed_rows
from pipelines.published.partition import PublishedPartition
from pipelines.published.query import PublishedQuery
from pipelines.published.query_tree import DIALECT
from pipelines.published.refresh_plan import MakeReached
from pipelines.published.slice_queries import OF_CHANGED
from scan_core.schema import Type, arrow_type


@dataclass(frozen=True, slots=True)
class Reached:
    """What changes reach.

    Attributes:
        by_table: values of the Iceberg partition field, by the table that changed.
        changed_rows: rows that came or went, in the columns that the query needs.
    """

    by_table: Mapping[str, frozenset[Any]]
    changed_rows: Mapping[str, int]

    @property
    def values(self) -> frozenset[Any]:
        """All of them."""
        return frozenset(value for values in self.by_table.values() for value in values)


def reached_partitions(
    spark: SparkSession,
    query: PublishedQuery,
    plan: MakeReached,
    views: Mapping[str, str],
    *,
    partition: PublishedPartition,
    kind: Type,
    spark_type: str,
) -> Reached:
    """The partitions that the changes of a plan can have reached.

    Args:
        spark: where views are.
        query: of the published table.
        plan: with changes.
        views: of the mirrors as they are now, by table.
        partition: by what the result is partitioned.
        kind: Iceberg type of its column.
        spark_type: the same in Spark's words.

    Raises:
        PySparkException: a query failed.
    """
    by_table: dict[str, frozenset[Any]] = {}
    num_changed: dict[str, int] = {}
    names = {view: views[table] for table, view in query.view_names.items()}
    for table, changes in plan.changes.items():
        rows = changed_rows(spark, changes)
        num_changed[table] = 0
        if rows is None:
            continue
        view = query.view_names[table]
        with _view_of(rows) as (changed, num_changed[table]):
            if not num_changed[table]:
                continue
            found = [
                spark.sql(
                    f"select distinct cast(k0 as {spark_type}) as k0 from "
                    f"({trace_text(reach.values, {**names, view + OF_CHANGED: changed})})"
                )
                for reach in plan.reaches
                if reach.table == view and reach.values is not None
            ]
            values: set[Any] = set()
            for frame in found:
                column = frame.toArrow().column("k0").combine_chunks()
                values |= partition.physical_values(_cast(column, arrow_type(kind)), kind)
            by_table[table] = frozenset(values)
    return Reached(by_table, num_changed)


@contextmanager
def _view_of(rows: DataFrame) -> Iterator[tuple[str, int]]:
    """A view of changed rows, which are read once, and how many there are."""
    name = f"nevermore_{uuid4().hex[:12]}"
    kept = rows.persist()
    try:
        (total,) = kept.agg(f.sum(TIMES)).collect()
        kept.drop(TIMES).createTempView(name)
        yield name, int(total[0] or 0)
    finally:
        rows.sparkSession.catalog.dropTempView(name)
        kept.unpersist()


def trace_text(query: exp.Select | None, names: Mapping[str, str]) -> str:
    """The text of a query of a `Reach`, with its tables called otherwise."""
    if query is None:
        raise ValueError("no query")
    copy = query.copy()
    for table in copy.find_all(exp.Table):
        if table.name in names:
            table.set("this", exp.to_identifier(names[table.name]))
    return str(copy.sql(dialect=DIALECT, identify=True))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
