"""Random chains of joins in Spark over random tables with deletes: the rows are DuckDB's, whatever is filtered before.

Kinds of joins, types and numbers of keys, both readers, limits of what is collected and dimensions that are scans or
views are drawn; filters by keys may only ever remove rows without partner.
"""

import math
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from nevermore import scan_core
from nevermore.checks.reference.sql_columns import open_connection
from nevermore.scan_core import Scan
from nevermore.scan_core.spark import pushdown, reads_of_sql, sql
from tests.differential.test_semi_joins_against_duckdb import POOLS, draw_rows, draw_table, small_limits
from tests.support.iceberg_json import Column
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = [*SPARK_TEST, pytest.mark.slow, pytest.mark.timeout(7200)]

KINDS = {
    "inner": "JOIN", "left_semi": "SEMI JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN",
    "left_anti": "ANTI JOIN",
}  # fmt: skip
NAMES = [name for name in POOLS if name != "tm"]
"""Spark has no time."""
WIDER = {"i": (pa.int64(), pa.decimal128(12, 2)), "l": (pa.decimal128(21, 1),), "dec": (pa.decimal128(9, 3),)}
"""Types in which a dimension may hold the keys of a column."""


@dataclass(frozen=True)
class Step:
    """One join: a dimension with columns `k0`, ... and `v`, each with the step's number before it."""

    kind: str
    pairs: dict[str, str]
    rows: pa.Table
    side: "Scan | DataFrame"
    predicate: str | None


def draw_step(draw: Callable[..., Any], number: int, folder: Path, spark: SparkSession) -> Step:
    """A dimension of few rows: a table of ours with a predicate, or a DataFrame."""
    names = draw(
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=draw(st.sampled_from([1, 1, 1, 2, 3])), unique=True)
    )
    keys = [f"d{number}k{i}" for i in range(len(names))]
    rows = draw_rows(draw, draw(st.sampled_from([0, 3, 6, 10]))).select([*names, "id"])
    rows = rows.rename_columns([*keys, f"d{number}v"])
    kind = draw(st.sampled_from(list(KINDS)))
    if draw(st.booleans()):
        columns = [Column(i, k, POOLS[n][0]) for i, (k, n) in enumerate(zip(keys, names, strict=True), 1)]
        table = TableBuilder(folder / f"d{number}", [*columns, Column(len(keys) + 1, f"d{number}v", "long")])
        table.commit(*(table.data(part) for part in (rows.slice(0, 4), rows.slice(4)) if part.num_rows))
        predicate = f"d{number}v < {draw(st.integers(0, 8))}" if draw(st.booleans()) else None
        scan = scan_core.open_table(table.metadata_path).scan()
        return Step(kind, dict(zip(names, keys, strict=True)), rows, scan, predicate)
    for i, name in enumerate(names):
        if name in WIDER and draw(st.booleans()):
            rows = rows.set_column(i, keys[i], rows.column(i).cast(draw(st.sampled_from(WIDER[name]))))
    given = as_spark_has_it(rows)
    return Step(kind, dict(zip(names, keys, strict=True)), rows, spark.createDataFrame(given), None)


def as_spark_has_it(rows: pa.Table) -> pa.Table:
    """UUIDs as text, bytes of any length, times with zone in UTC."""
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.type in {pa.uuid(), pa.binary(16)}:
            texts = [
                None if v is None else str(v if isinstance(v, UUID) else UUID(bytes=v)) for v in column.to_pylist()
            ]
            columns.append(pa.array(texts, pa.string()))
        elif pa.types.is_fixed_size_binary(field.type):
            columns.append(column.cast(pa.binary()))
        else:
            columns.append(column)
    return pa.table(columns, names=rows.column_names)


def chain(names: list[str], steps: list[Step]) -> str:
    """The joins as a query over `facts`, `d0`, ... which both engines understand."""
    text, names = "SELECT * FROM facts", list(names)
    for number, step in enumerate(steps):
        where = f" WHERE {step.predicate}" if step.predicate else ""
        on = " AND ".join(f"p.{a} = d.{b}" for a, b in step.pairs.items())
        if step.kind not in {"left_semi", "left_anti"}:
            names += step.rows.column_names
        dimension = f"(SELECT * FROM d{number}{where})" if where else f"d{number}"
        text = f"SELECT {', '.join(names)} FROM ({text}) p {KINDS[step.kind]} {dimension} d ON {on}"
    return text


def by_duckdb(facts: pa.Table, steps: list[Step], text: str) -> Counter[tuple[Any, ...]]:
    """The rows of the chain."""
    with open_connection() as connection:
        connection.register("facts", as_spark_has_it(facts))
        for number, step in enumerate(steps):
            connection.register(f"d{number}", as_spark_has_it(step.rows))
        return rendered(connection.sql(text).to_arrow_table())


def rendered(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows with one NaN, one zero, and instants in UTC."""
    columns = []
    for column in rows.columns:
        kind = column.type
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us", "UTC" if kind.tz else None)).cast(pa.int64())  # noqa: PLW2901
        values = column.to_pylist()
        if pa.types.is_floating(kind):
            values = ["nan" if v is not None and math.isnan(v) else v for v in values]
        columns.append([bytes(v) if isinstance(v, bytearray) else v for v in values])
    return Counter(zip(*columns, strict=True))


def check(draw: Callable[..., Any], spark: SparkSession) -> Counter[str]:
    """One table, one chain of joins."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if draw(st.booleans()):
            small_limits(stack)
        table, rows = draw_table(draw, folder)
        steps = [draw_step(draw, number, folder, spark) for number in range(draw(st.sampled_from([1, 1, 2, 2, 3])))]
        facts = rows.select(["id", *NAMES])
        scan = scan_core.open_table(table.metadata_path).scan().select("id", *NAMES)
        if draw(st.booleans()):
            limit = draw(st.integers(0, 20))
            facts = facts.filter(pa.array([v < limit for v in facts["id"].to_pylist()], pa.bool_()))
            scan = scan.where(f"id < {limit}")
        reader = draw(st.sampled_from(["auto", "python"]))
        stack.enter_context(patch.object(pushdown, "MAX_KEYS", draw(st.sampled_from([pushdown.MAX_KEYS, 2]))))
        tables = {"facts": scan}
        for number, step in enumerate(steps):
            if isinstance(step.side, DataFrame):
                step.side.createOrReplaceTempView(f"d{number}")
            else:
                tables[f"d{number}"] = step.side
        text = chain(facts.column_names, steps)
        found = sql(spark, text, tables, reader=reader)
        story = [(s.kind, s.pairs, s.predicate, s.rows.to_pylist()) for s in steps]
        assert rendered(found.toArrow()) == by_duckdb(facts, steps, text), (story, reader)
        filtered = sum(bool(read.joins) for read in reads_of_sql(found).values())
        return Counter({"chains": 1, "filtered": filtered, **Counter(step.kind for step in steps)})


@settings(max_examples=1000, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_chains_of_joins_over_many_tables_are_those_of_duckdb(data: st.DataObject, ansi_spark: SparkSession) -> None:
    check(data.draw, ansi_spark)
