"""Which queries are nothing but columns of one mirror."""

import pytest

from pipelines.direct_copy import copied_columns
from pipelines.published_query import parse_query

COLUMNS = ("day", "id", "amount")


def copied(sql: str, *result: str) -> list[str | None] | None:
    return copied_columns(parse_query("shop.daily", sql, "day", ["shop.orders", "shop.items"]), COLUMNS, result)


@pytest.mark.parametrize(
    ("sql", "result", "expected"),
    [
        ("select day, id from shop.orders", ["day", "id"], [None, "id"]),
        ("select ID as number, o.amount, o.Day as day from shop.orders o", ["number", "amount", "day"], ["id", "amount", None]),
        ("select *, id as twice from shop.orders", [*COLUMNS, "twice"], [None, "id", "amount", "id"]),
        ("select cast(day as date) as day, id from shop.orders", ["day", "id"], [None, "id"]),
    ],
)  # fmt: skip
def test_selected_and_renamed_columns_are_copied(sql: str, result: list[str], expected: list[str | None]) -> None:
    assert copied(sql, *result) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "select day, id + 1 as id from shop.orders",
        "select day, cast(id as int) as id from shop.orders",
        "select distinct day, id from shop.orders",
        "select day, id from shop.orders where amount > 5",
        "select day, id from shop.orders order by id",
        "select day, id from shop.orders limit 3",
        "select day, id from shop.orders offset 3",
        "select day, max(id) as id from shop.orders group by day",
        "select day, id from shop.orders qualify row_number() over (partition by day order by id) = 1",
        "select o.day, o.id from shop.orders o join shop.orders p on o.id = p.id",
        "select o.day, o.id from shop.orders o, shop.items",
        "select day, id from shop.orders lateral view explode(array(1, 2)) as id",
        "select day, id from shop.orders tablesample (10 percent)",
        "select day, id from (select * from shop.orders)",
        "with o as (select * from shop.orders) select day, id from o",
        "select day, id from shop.orders union all select day, id from shop.orders",
        "select * except (amount) from shop.orders",
        "select day, (select max(id) from shop.items) as id from shop.orders",
        "select day, explode(array(id)) as id from shop.orders",
        "select day, id from shop.orders distribute by id",
    ],
)
def test_any_other_query_is_left_to_spark(sql: str) -> None:
    assert copied(sql, "day", "id") is None


def test_columns_that_differ_only_in_case_are_left_to_spark() -> None:
    query = parse_query("shop.daily", "select day, id from shop.orders", "day", ["shop.orders"])
    assert copied_columns(query, ("day", "id", "ID"), ("day", "id")) is None


def test_columns_that_spark_finds_otherwise_are_left_to_spark() -> None:
    assert copied("select * from shop.orders", "day", "id") is None
