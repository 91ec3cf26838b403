"""`nevermore sql`: a query over the tables of a config; mistakes are one message."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from nevermore.pipelines.config.project import Config, parse
from tests.pipelines.publish.daily_orders import apply

Run = Callable[..., tuple[int, str, str]]

CONFIG = """
tables:
  shop.customers: {source: {type: files, path: none}, key: [id]}
  shop.orders: {source: {type: files, path: none}, key: [id]}
published:
  shop.daily: {sql: "select id from shop.orders"}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "nevermore.yaml"
    path.write_text(CONFIG)
    settings: Config = parse(CONFIG, path)
    rows = pa.table({"id": pa.array(range(10), pa.int64()), "city": ["Oslo", "Moss"] * 5})
    apply(settings, "shop.customers", rows, deleted=[])
    apply(settings, "shop.customers", rows.slice(0, 0), deleted=[4])
    return path


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_query_over_mirrors_prints_rows_and_how_they_are_read(run: Run, config: Path) -> None:
    text = "select id, city from shop.customers where city = 'Oslo' and id > 1 order by id"
    code, output, errors = run("sql", text, "--config", config, "--json")
    assert (code, errors) == (0, "")
    assert [json.loads(line)["id"] for line in output.splitlines()] == [2, 6, 8]
    assert len(run("sql", text, "--config", config, "--json", "--limit", "2")[1].splitlines()) == 2
    short = "select count(*) as n from Customers"
    assert run("sql", short, "--config", config, "--format", "csv")[1].split() == ["n", "9"]
    assert run("sql", short.replace("Customers", "SHOP.`Customers`"), "--config", config, "--format", "csv")[0] == 0
    explained = run("sql", text, "--config", config, "--explain")[1]
    assert "where: `city` = 'Oslo' and `id` > 1" in explained
    reads = json.loads(run("sql", text, "--config", config, "--explain", "--json")[1])["reads"]
    assert reads["shop.customers"]["where"] == "`city` = 'Oslo' and `id` > 1"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_sub_query_as_a_column_below_a_union_is_planned(run: Run, config: Path) -> None:
    computed = "select id, (select max(b.id) from shop.customers b where b.id = a.id) as v from shop.customers a"
    text = f"""
        with u as (select * from ({computed} union all select id, id from shop.customers) w)
        select w.* from u w left join shop.customers o on o.id = w.id where o.id > 7 order by w.id
    """
    code, output, errors = run("sql", text, "--config", config, "--format", "csv")
    assert (code, errors) == (0, "")
    assert output.split() == ["id,v", "8,8", "8,8", "9,9", "9,9"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from shop.custmers", "no table shop.custmers; did you mean shop.customers?"),
        ("select * from SHOP.Custmers", "no table SHOP.Custmers; did you mean shop.customers?"),
        ("drop table shop.customers", "sql must be one query"),
        ("select 1; select 2", "sql must be one query"),
        ("select id from shop.customers where id =", "something is missing here. Line 1, Col: "),
        (
            "select id from nowhere.at_all",
            "no table nowhere.at_all; the config has shop.customers, shop.daily, shop.orders\n",
        ),
    ],
)
def test_mistakes_are_told_before_spark_starts(run: Run, config: Path, query: str, message: str) -> None:
    code, _, errors = run("sql", query, "--config", config)
    assert (code, "Traceback" in errors) == (2, False)
    assert message in errors


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select nothing from shop.customers", "the query failed: [UNRESOLVED_COLUMN"),
        ("select id from shop.orders", "table shop.orders does not exist yet: nevermore ingest creates it"),
        ("select id from shop.daily", "table shop.daily does not exist yet: nevermore publish creates it"),
        ("select cast(city as int) as n from shop.customers", "the query failed: "),
    ],
)
def test_what_spark_refuses_is_one_message(run: Run, config: Path, query: str, message: str) -> None:
    code, _, errors = run("sql", query, "--config", config)
    assert (code, "Traceback" in errors) == (2, False)
    assert message in errors
