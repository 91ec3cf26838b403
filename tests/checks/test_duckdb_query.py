"""SQL that has other rows in DuckDB than in Spark is not asked of DuckDB; its like that means the same is."""

import pyarrow as pa
import pytest

from nevermore.checks.published_equality import NotComparableError, duckdb_sql
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.publish.query import parse_query
from nevermore.scan_core.model.schema import Schema

COLUMNS = pa.schema(
    {
        "i": pa.int32(), "s": pa.string(), "f": pa.float32(), "d": pa.float64(), "m": pa.decimal128(10, 2),
        "w": pa.decimal128(38, 18), "at": pa.timestamp("us", "UTC"),
    }
)  # fmt: skip


def in_duckdb(sql: str) -> str:
    query = parse_query("p", sql, None, ["shop.t"])
    tree = query.in_full({"shop.t": Schema(0, tuple(iceberg_fields(COLUMNS)))})
    assert tree is not None
    return duckdb_sql(tree, {})


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select upper(s) as x from shop.t", "upper"),
        ("select lower(s) as x from shop.t", "lower"),
        ("select i from shop.t where f > 0.1", "of doubles in Spark"),
        ("select i from shop.t where f in (0.1, 2)", "of doubles in Spark"),
        ("select i from shop.t where f between 0.1 and 1", "of doubles in Spark"),
        ("select f + 0.1 as x from shop.t", "of doubles in Spark"),
        ("select f / f as x from shop.t", "of doubles in Spark"),
        ("select coalesce(f, 0.1) as x from shop.t", "of doubles in Spark"),
        ("select case when i > 1 then f else 0.1 end as x from shop.t", "of doubles in Spark"),
        (r"select i from shop.t where s like '100\\%'", "backslash"),
        ("select i from shop.t where s like s", "backslash"),
        ("select s || d as x from shop.t", "other text"),
        ("select sum(m / 3) as x from shop.t", "double in DuckDB"),
        ("select sum(i / 3.0) as x from shop.t", "double in DuckDB"),
        ("select i from shop.t where m / 3 > 1", "double in DuckDB"),
        ("select i from shop.t group by i having avg(m) > 3", "double in DuckDB"),
        ("select x * 1000 as y from (select avg(m) as x from shop.t) a", "double in DuckDB"),
        ("select sum(w * i) as x from shop.t", "another scale"),
        ("select i from shop.t where at < '2026-01-01 23:00:00+01:00'", "time zone"),
    ],
)
def test_what_differs_is_refused_with_a_reason(sql: str, reason: str) -> None:
    with pytest.raises(NotComparableError, match=reason):
        in_duckdb(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "select i, avg(m) as x, m / 3 as y from shop.t group by i, m",
        "select sum(m * i) * 2 - 0.5 as x, count(*) * 1.5 as y, avg(m) over (partition by i) as z from shop.t group by m, i",
        "select i from shop.t where s like 'a%' and at >= '2026-01-01' and at < '2026-01-01 10:00' and at <> '2026-01-01T10:00:00.5'",
        "select sum(f) as x, avg(f) as y, min(f) as z, f + f as u, case when i > 1 then f end as v from shop.t group by f, i",
        "select s || i as x, coalesce(d, 0.5) as y, i / 2 as z, sum(i / 2) as a, sum(d / 2.5) as b, sum(m * d) as c from shop.t where m > 0.1 group by 1, 2, 3",
    ],
)  # fmt: skip
def test_what_means_the_same_is_asked(sql: str) -> None:
    assert in_duckdb(sql).startswith("SELECT")
