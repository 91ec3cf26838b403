"""Partitions that a query's lineage does not name do not change: random queries over random changes, run by DuckDB.

DuckDB runs both the query, before and after, and the queries of the lineage over the changed rows: what is compared is
the reasoning, not a dialect.
"""

import random
from collections import Counter
from collections.abc import Sequence

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore.pipelines.publish.partition_lineage import OF_CHANGED, Reach, reaches
from nevermore.scan_core.sql.query import qualified, traceable
from tests.differential.published_queries import KINDS, SCHEMAS, TABLES, Queries, Row, changed_rows, states

quick = settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
thorough = settings(quick, max_examples=4_000, derandomize=False, print_blob=True)

DUCKDB = {"long": "BIGINT", "timestamp": "TIMESTAMP", "date": "DATE", "string": "VARCHAR"}


def check(seed: int, kinds: Sequence[str] = KINDS) -> Counter[str]:
    chance = random.Random(seed)
    sql = Queries(chance, kinds).relation(chance.choice([1, 2, 2, 3]))
    tree = qualified(sql, SCHEMAS)
    if tree is None:
        return Counter(["unknown"])
    flat = traceable(tree)
    assert not isinstance(flat, str), (flat, sql)
    found = reaches(flat, ["day"])
    with duckdb.connect() as connection:
        connection.execute("set threads = 1")
        changed_tables = set()
        for name, before, after in states(chance):
            columns = ", ".join(f"{c} {DUCKDB[t]}" for c, t in TABLES[name].items())
            changed = changed_rows(before, after)
            if changed:
                changed_tables.add(name)
            for suffix, rows in (("", after), (OF_CHANGED, changed), ("_before", before)):
                connection.execute(f"create table {name}{suffix} ({columns})")
                if rows:
                    connection.execute(f"insert into {name}{suffix} values {', '.join(map(_literals, rows))}")
        query = tree.sql(dialect="duckdb")
        now = _by_day(connection, query)
        for name in TABLES:
            connection.execute(f"alter table {name} rename to {name}_after; alter table {name}_before rename to {name}")
        before_days = _by_day(connection, query)
        for name in TABLES:
            connection.execute(f"alter table {name} rename to {name}_gone; alter table {name}_after rename to {name}")
        touched = [reach for reach in found if reach.table in changed_tables]
        if any(reach.values is None for reach in touched):
            return Counter(["unknown"])
        named = {row[0] for reach in touched for row in connection.execute(_sql(reach)).fetchall()}
    differing = {day for day in now.keys() | before_days.keys() if now.get(day) != before_days.get(day)}
    assert differing <= named, (sql, differing - named, [_sql(reach) for reach in touched])
    everything = now.keys() | before_days.keys()
    return Counter(["known", "fewer" if everything - named else "all"])


def _literals(row: Row) -> str:
    return "(" + ", ".join("null" if v is None else f"'{v}'" if isinstance(v, str) else str(v) for v in row) + ")"


def _sql(reach: Reach) -> str:
    assert reach.values is not None
    return str(reach.values.sql(dialect="duckdb"))


def _by_day(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[object, Counter[Row]]:
    days: dict[object, Counter[Row]] = {}
    for row in connection.execute(sql).fetchall():
        days.setdefault(row[0], Counter())[row] += 1
    return days


@quick
@given(st.integers(0, 2**40))
def test_partitions_that_the_lineage_does_not_name_do_not_change(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@thorough
@given(st.integers(0, 2**40))
def test_partitions_that_the_lineage_does_not_name_do_not_change_in_many_queries(seed: int) -> None:
    check(seed)


@pytest.mark.slow
def test_the_lineage_names_fewer_partitions_than_there_are_for_many_queries() -> None:
    found: Counter[str] = sum((check(seed) for seed in range(30)), Counter())
    assert found["known"] > found["unknown"] / 2
    assert found["fewer"] > 5
