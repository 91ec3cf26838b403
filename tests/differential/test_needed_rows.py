"""A query gives the same rows over the rows that it needs alone: random queries over random rows, run by DuckDB.

DuckDB runs the query over the whole tables, and over each place cut down to its conditions and partners: what is
compared is the reasoning, not a dialect.
"""

import random
from collections import Counter
from collections.abc import Sequence

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from nevermore.scan_core.sql.needed_rows import TablePlace, needed_rows
from nevermore.scan_core.sql.query import qualified, traceable
from tests.differential.published_queries import KINDS, SCHEMAS, TABLES, Queries, Row, row_of

quick = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
thorough = settings(quick, max_examples=6_000, derandomize=False, print_blob=True)

DUCKDB = {"long": "BIGINT", "timestamp": "TIMESTAMP", "date": "DATE", "string": "VARCHAR"}
CONDITIONS = [
    "k = 2", "k is null", "v > 1 and k <> 3", "day = date '2026-01-02'", "day >= date '2026-01-03' or day is null",
    "k in (1, 3)", "coalesce(v, 1) = 1", "v between 1 and 2", "day is not null and v + k > 2",
]  # fmt: skip
COMPOUND = [
    "k = 2 and v = 1",
    "k = 1 or v = 2",
    "not k = 1 or v > 2",
    "k is null or v is null",
    "v in (1, 2) and k > 1",
]


def query_of(chance: random.Random, kinds: Sequence[str]) -> str:
    sql = Queries(chance, kinds).relation(chance.choice([0, 1, 1, 2, 3]))
    for _ in range(chance.choice([0, 1, 2, 2, 3])):
        sql = chance.choice([
            f"select day, k, v from ({sql}) w where {chance.choice(CONDITIONS)}",
            f"select day, k, v from (select day, k, v, {chance.choice(COMPOUND)} as f from ({sql}) w) w where not f",
            f"select day, k, v from (select day, k, v, v - k as d from ({sql}) w) w where 2 - d {chance.choice('<>=')} 2 and k = 1",
            f"select w.day, w.k, w.v from ({sql}) w join c on c.id = w.k where c.city = 'x'",
            f"select w.day, w.k, w.v from ({sql}) w join o on o.id = w.k and o.day = w.day where o.v = {chance.randint(1, 3)}",
            f"select w.day, w.k, w.v from ({sql}) w where w.k in (select rid from c where city = 'y')",
            f"select w.day, w.k, w.v from ({sql}) w where w.k = 1 and exists (select 1 from l where l.oid = w.k and l.n = 2)",
            f"select w.day, w.k, w.v from ({sql}) w where w.k = 1 and not exists (select 1 from l where l.oid = w.k)",
            f"select w.day, w.k, w.v from ({sql}) w where w.k not in (select oid from l where l.n = 2)",
            f"select w.day, w.k, (select count(*) from l where l.oid = w.k) as v from ({sql}) w where w.k = 2",
            f"select w.day, w.k, c.v from ({sql}) w left join c on c.id = w.k and c.city = 'x' where w.v = 2",
        ])  # fmt: skip
    return sql


def check(seed: int, kinds: Sequence[str] = KINDS) -> Counter[str]:
    chance = random.Random(seed)
    sql = query_of(chance, kinds)
    tree = qualified(sql, SCHEMAS)
    if tree is None:
        return Counter(unclear=1)
    flat = traceable(tree)
    assert not isinstance(flat, str), (flat, sql)
    places = needed_rows(flat)
    with duckdb.connect() as connection:
        connection.execute("set threads = 1")
        for name, columns in TABLES.items():
            connection.execute(f"create table {name} ({', '.join(f'{c} {DUCKDB[t]}' for c, t in columns.items())})")
            rows = [row_of(chance, columns) for _ in range(chance.randint(0, 12))]
            if rows:
                connection.execute(f"insert into {name} values {', '.join(map(_literals, rows))}")
        expected = Counter(connection.execute(flat.sql(dialect="duckdb")).fetchall())
        found = Counter(connection.execute(narrowed(flat, places).sql(dialect="duckdb")).fetchall())
    assert found == expected, (sql, [(p.table, [c.sql() for c in p.conditions], p.partners) for p in places])
    return Counter(
        conditions=any(place.conditions for place in places), partners=any(place.partners for place in places)
    )


def narrowed(tree: exp.Query, places: Sequence[TablePlace]) -> exp.Query:
    """The query over sub-queries that give the needed rows of each place alone."""
    result = tree.copy()
    for index, node in enumerate(list(result.find_all(exp.Table))):
        rows = rows_of(places, index, depth=2)
        node.replace(exp.Subquery(this=rows, alias=exp.TableAlias(this=exp.to_identifier(node.alias_or_name))))
    return result


def rows_of(places: Sequence[TablePlace], index: int, depth: int) -> exp.Select:
    place = places[index]
    rows = exp.select("*").from_(exp.to_table(place.table))
    for condition in place.conditions:
        rows = rows.where(condition.transform(lambda n: exp.column(n.name) if isinstance(n, exp.Column) else n))
    for partners in place.partners if depth else ():
        keys = rows_of(places, partners.keys.place, depth - 1)
        keys.set("expressions", [exp.column(name) for name in partners.keys.columns])
        columns = [exp.column(name) for name in partners.columns]
        asked = columns[0] if len(columns) == 1 else exp.Tuple(expressions=columns)
        rows = rows.where(exp.In(this=asked, query=exp.Subquery(this=keys)))
    return rows


def _literals(row: Row) -> str:
    return "(" + ", ".join("null" if v is None else f"'{v}'" if isinstance(v, str) else str(v) for v in row) + ")"


@pytest.mark.slow
@quick
@given(st.integers(0, 2**40))
def test_a_query_over_the_rows_that_it_needs_gives_the_same_rows(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@thorough
@given(st.integers(0, 2**40))
def test_many_queries_over_the_rows_that_they_need_give_the_same_rows(seed: int) -> None:
    check(seed)


@pytest.mark.slow
def test_most_queries_need_fewer_rows() -> None:
    found: Counter[str] = sum((check(seed) for seed in range(40)), Counter())
    assert found["conditions"] > 20
    assert found["partners"] > 15
    assert found["unclear"] < 3
