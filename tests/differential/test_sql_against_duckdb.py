"""Random queries of `nevermore sql` beside the same queries over tables of DuckDB, to which nothing is pushed."""

import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from nevermore import open_project
from nevermore.pipelines.cli.arguments import build_scan
from nevermore.pipelines.cli.sql_commands import _Session
from nevermore.pipelines.ingest.project import Project

NUMBERS = [0.0, -0.0, 1.5, 0.1, -7.0, 1e300, math.inf, -math.inf, math.nan, None]
TEXTS = ["", "a", "ab", "a_", "a%b", "a'b", "A", "é", "\U0010ffff", "b\\c", None]
WHOLE = [0, 1, 2, 3, 7, -1, None]
ROWS = 400
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.int32()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("m", pa.decimal128(9, 2)),
    ]
)


def table(step: int) -> pa.Table:
    def of(values: list[Any], stride: int) -> list[Any]:
        return [values[n * stride // step % len(values)] for n in range(ROWS // step)]

    numbers = of(NUMBERS, 3)
    narrow = [0.1 if n == 1e300 else n for n in of(NUMBERS, 7)]
    columns = [range(ROWS // step), of(WHOLE, 2), numbers, narrow, of(TEXTS, 5), of(WHOLE, 11), of(WHOLE, 13)]
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(map(list, columns), SCHEMA, strict=True)], SCHEMA
    )


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[_Session, duckdb.DuckDBPyConnection]]:
    monkeypatch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("sql")
    entry = "{source: {type: python}, key: [id], partition_by: [k]}"
    (folder / "nevermore.yaml").write_text(f"tables: {{t.a: {entry}, t.b: {entry}}}")
    project = open_project(folder)
    with duckdb.connect() as plain:
        plain.execute("create schema t")
        for name, step in (("t.a", 1), ("t.b", 8)):
            rows = table(step)
            project.upsert(name, rows)
            project.delete(name, rows.slice(5, 9).select(["id"]))
            kept = pa.concat_tables([rows.slice(0, 5), rows.slice(14)])
            plain.register("given", kept)
            plain.execute(f"create table {name} as from given")
        names = project.sql_names
        monkeypatch.setattr(Project, "sql_names", names)  # asked before every query
        yield _Session(project, partial(build_scan)), plain
        monkeypatch.undo()


def literal(column: str) -> st.SearchStrategy[str]:
    if column == "s":
        return st.sampled_from([text for text in TEXTS if text is not None]).map(
            lambda text: "'" + text.replace("'", "''") + "'"
        )
    if column in "xf":
        return st.sampled_from(["0.0", "-0.0", "1.5", "0.1", "'nan'::double", "'infinity'::double", "1e300", "1"])
    if column == "d":
        return st.sampled_from(["date '1970-01-02'", "date '1970-01-04'"])
    return st.sampled_from(["0", "1", "2", "7", "1.5", "NULL"])


@st.composite
def conditions(draw: st.DrawFn, alias: str, depth: int = 2) -> str:
    """A condition on the columns of a table."""
    if depth and draw(st.booleans()):
        parts = draw(st.lists(conditions(alias, depth - 1), min_size=2, max_size=3))
        return f"({draw(st.sampled_from([' and ', ' or '])).join(parts)})"
    if depth and draw(st.integers(0, 4)) == 0:
        return f"not ({draw(conditions(alias, depth - 1))})"
    column = draw(st.sampled_from(["id", "k", "x", "f", "s", "d", "m"]))
    name, value = f"{alias}.{column}", literal(column)
    shapes = ["compare", "null", "in", "between", "distinct"] + ["like", "function"] * (column == "s")
    match draw(st.sampled_from(shapes)):
        case "compare":
            return f"{name} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {draw(value)}"
        case "null":
            return f"{name} is {draw(st.sampled_from(['', 'not ']))}null"
        case "in":
            return f"{name} {draw(st.sampled_from(['', 'not ']))}in ({', '.join(draw(st.lists(value, min_size=1, max_size=3)))})"
        case "between":
            return f"{name} between {draw(value)} and {draw(value)}"
        case "distinct":
            return f"{name} is {draw(st.sampled_from(['', 'not ']))}distinct from {draw(value)}"
        case "like":
            pattern = draw(st.sampled_from(["a%", "a_%", "%b", "a''b%", "é%", "", "%", "A%", "a"]))
            return f"{name} {draw(st.sampled_from(['like', 'not like', 'ilike']))} '{pattern}'"
        case _:
            return draw(
                st.sampled_from(
                    [
                        f"{name} like 'a\\_%' escape '\\'",
                        f"starts_with({name}, 'a')",
                        f"length({name}) > 1",
                        f"{name} ^@ 'a'",
                    ]
                )
            )


JOINS = ["join", "left join", "right join", "full join", "semi join", "anti join"]
KEYS = ["a.id = b.id", "a.k = b.k", "a.x = b.x", "a.s = b.s", "a.k = b.k and a.x > b.x"]


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A query over both tables."""
    on_a, also_a, on_b = draw(conditions("a")), draw(conditions("a")), draw(conditions("b"))
    kind = draw(st.sampled_from(["where", "join", "in", "cte", "union", "exists", "group", "self"]))
    if kind == "where":
        return f"select * from t.a where {on_a}"
    if kind == "join":
        join, key = draw(st.sampled_from(JOINS)), draw(st.sampled_from(KEYS))
        more, columns = draw(st.sampled_from(["", f" and {on_b}", f" and {also_a}"])), "a.*"
        sides = [on_a] if join in {"semi join", "anti join"} else [on_a, on_b, "b.k is null", "true"]
        return f"select {columns} from t.a {join} t.b on {key}{more} where {draw(st.sampled_from(sides))}"
    if kind == "in":
        column = draw(st.sampled_from(["id", "k", "x", "s"]))
        no = draw(st.sampled_from(["", "not "]))
        return f"select * from t.a where a.{column} {no}in (select b.{column} from t.b where {on_b}) and {on_a}"
    if kind == "exists":
        return f"select * from t.a where not exists (from t.b where a.k = b.k and {on_b}) or {on_a}"
    if kind == "cte":
        return (
            f"with c as (select * from t.a where {also_a}) select a.id, b.id from c a join c b on a.k = b.k "
            f"where {on_a} and a.id <= b.id"
        )
    if kind == "union":
        how = draw(st.sampled_from(["union all", "except", "intersect"]))
        return f"select id, s from t.a where {on_a} {how} select id, s from t.a where {also_a}"
    if kind == "group":
        return f"select k, count(*) n, max(x), min(s) from t.a where {on_a} group by k having count(*) > 1"
    return f"select a.id, b.id from t.a a left join t.a b on a.id = b.k and {on_b} where {on_a}"


def rows_of(rows: pa.Table) -> Counter[str]:
    return Counter(map(repr, zip(*(column.to_pylist() for column in rows.columns), strict=True)))


def asked(engines: tuple[_Session, duckdb.DuckDBPyConnection], query: str, limit: int | None) -> None:
    session, plain = engines
    expected = rows_of(plain.sql(query).to_arrow_table())
    found = session.rows(query, limit)
    assert found is not None
    rows = rows_of(pa.Table.from_batches(list(found.to_batches()), found.arrow_schema))
    if limit is None:
        assert rows == expected, query
    else:
        assert rows.total() == min(limit, expected.total()), query
        assert rows <= expected, query


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(query=queries(), limit=st.sampled_from([None, None, None, 0, 1, 5]))
@example(query="select * from t.a where x > 1.5 and s like 'a%'", limit=None)
@example(query="select * from t.a where x >= 0.0 and s like 'a_%'", limit=None)
@example(query="select s from t.a where f > 0.1 and s like 'a''%' and x between -0.0 and 1.5", limit=None)
@example(query="select * from t.a where s like 'é%' or x > 1.5", limit=None)
@example(query="select a.id from t.a a join t.a b using (id) where a.s like 'a%'", limit=None)
@example(query="select * from t.a where s || 'x' = ') and prefix(s, ' or s like 'a''b%'", limit=3)
def test_random_queries(engines: tuple[_Session, duckdb.DuckDBPyConnection], query: str, limit: int | None) -> None:
    asked(engines, query, limit)


@pytest.mark.each(6)
@pytest.mark.parametrize("join", JOINS)
def test_conditions_beside_joins(engines: tuple[_Session, duckdb.DuckDBPyConnection], join: str) -> None:
    for key, extra in zip(KEYS, ["", " and b.x > 0.5", " and a.s like 'a%'", "", " and b.s is null"], strict=True):
        for where in ("a.x >= 0.0", "a.s not like 'a%'"):
            asked(engines, f"select a.* from t.a {join} t.b on {key}{extra} where {where}", None)
