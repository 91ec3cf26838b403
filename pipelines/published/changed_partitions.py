"""Which partitions changed rows are part of: the queries of a plan, run by Spark over the rows that came and went.

Imports pyspark.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession
from sqlglot import exp

from pipelines.published.partition import PublishedPartition
from pipelines.published.query import PublishedQuery
from pipelines.published.query_tree import DIALECT
from pipelines.published.refresh_plan import MakeReached
from pipelines.published.slice_queries import OF_CHANGED
from scan_core.changes.request import CHANGE_TYPE, Changes
from scan_core.distribute.spark_batches import conform
from scan_core.distribute.spark_types import arrow_schema_of, spark_schema
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
    changed_rows: dict[str, int] = {}
    names = {view: views[table] for table, view in query.view_names.items()}
    for table, changes in plan.changes.items():
        rows = _rows(changes)
        changed_rows[table] = rows.num_rows
        if not rows.num_rows:
            continue
        view = query.view_names[table]
        with _view_of(spark, rows, changes) as changed:
            found = [
                spark.sql(
                    f"select distinct cast(k0 as {spark_type}) as k0 from "
                    f"({_renamed(reach.values, {**names, view + OF_CHANGED: changed})})"
                )
                for reach in plan.reaches
                if reach.table == view and reach.values is not None
            ]
            values: set[Any] = set()
            for frame in found:
                column = frame.toArrow().column("k0").combine_chunks()
                values |= partition.physical_values(_cast(column, arrow_type(kind)), kind)
            by_table[table] = frozenset(values)
    return Reached(by_table, changed_rows)


def _rows(changes: Changes) -> pa.Table:
    """Rows that came or went, as Spark takes them."""
    target = arrow_schema_of(spark_schema(changes.context.projection))
    batches = [conform(batch.drop_columns([CHANGE_TYPE]), target) for batch in changes.to_batches()]
    return pa.Table.from_batches(batches, target)


@contextmanager
def _view_of(spark: SparkSession, rows: pa.Table, changes: Changes) -> Iterator[str]:
    name = f"nevermore_{uuid4().hex[:12]}"
    spark.createDataFrame(rows, schema=spark_schema(changes.context.projection)).createTempView(name)
    try:
        yield name
    finally:
        spark.catalog.dropTempView(name)


def _renamed(query: exp.Select | None, names: Mapping[str, str]) -> str:
    """The text of a query with its tables called otherwise."""
    if query is None:
        raise ValueError("no query")
    copy = query.copy()
    for table in copy.find_all(exp.Table):
        if table.name in names:
            table.set("this", exp.to_identifier(names[table.name]))
    return str(copy.sql(dialect=DIALECT, identify=True))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
