"""Random filters on random tables: the kernels against DuckDB, on the part of the language both mean alike."""

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.expr.nodes import BoundPredicate
from tests.support.evaluation import evaluate
from tests.support.random_predicates import AS_WRITTEN, SCHEMA, Sql, predicates, tables

_SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(AS_WRITTEN)
    return connection


def in_duckdb(connection: duckdb.DuckDBPyConnection, table: pa.Table, condition: str) -> list[bool]:
    connection.register("t", table)
    rows = connection.execute(f"select coalesce(({condition}), false) from t").fetchall()
    connection.unregister("t")
    return [row[0] for row in rows]


def alive(predicate: BoundPredicate, table: pa.Table, *, encode: bool = False) -> list[bool]:
    batch = table.combine_chunks()
    columns = {f.field_id: batch.column(f.name).chunk(0) for f in SCHEMA.fields}
    if encode:
        columns = {i: a.dictionary_encode() if pa.types.is_string(a.type) else a for i, a in columns.items()}
    result = np.ones(table.num_rows, dtype=np.bool_)
    for conjunct in predicate.conjuncts:
        result &= evaluate(conjunct, columns, table.num_rows)
    return result.tolist()


@pytest.mark.parametrize("encode", [False, True], ids=["plain", "dictionaries"])
@settings(_SETTINGS, max_examples=60)
@given(table=tables(), condition=predicates(4))
def test_filter_keeps_the_rows_duckdb_keeps(
    connection: duckdb.DuckDBPyConnection, table: pa.Table, condition: Sql, *, encode: bool
) -> None:
    predicate = bind(condition.spark, SCHEMA)
    assert alive(predicate, table, encode=encode) == in_duckdb(connection, table, condition.duck), predicate.conjuncts


@pytest.mark.slow
@settings(_SETTINGS, max_examples=8000)
@given(table=tables(), condition=predicates(6), encode=st.booleans())
def test_filter_keeps_the_rows_duckdb_keeps_in_many_cases(
    connection: duckdb.DuckDBPyConnection, table: pa.Table, condition: Sql, *, encode: bool
) -> None:
    predicate = bind(condition.spark, SCHEMA)
    assert alive(predicate, table, encode=encode) == in_duckdb(connection, table, condition.duck), predicate.conjuncts
