from datetime import date
from typing import Any

import pytest

from nevermore.pipelines.config.published import PublishedPartition
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.publish.query import PublishedQuery, parse_query
from nevermore.scan_core.model.schema import NestedField, PrimitiveType, Schema
from nevermore.scan_core.spark import parse_sql

_SCHEMAS = {
    "shop.orders": Schema(
        0,
        (
            NestedField(1, "id", PrimitiveType("long")),
            NestedField(2, "customer_id", PrimitiveType("long")),
            NestedField(3, "ordered_at", PrimitiveType("timestamptz")),
            NestedField(4, "local_time", PrimitiveType("timestamp")),
            NestedField(5, "due", PrimitiveType("date")),
            NestedField(6, "Note", PrimitiveType("string")),
        ),
    ),
    "shop.customers": Schema(
        0, (NestedField(1, "id", PrimitiveType("long")), NestedField(2, "city", PrimitiveType("string")))
    ),
}
_DAY = date(2026, 1, 31)
_DAY_OF_ORDERED_AT = (
    "`ordered_at` >= timestamp '2026-01-31 00:00:00+00:00' and `ordered_at` < timestamp '2026-02-01 00:00:00+00:00'"
)


_BY_DAY = PublishedPartition.parse("day")
_DAYS = (_DAY - date(1970, 1, 1)).days


def _query(sql: str) -> PublishedQuery:
    return parse_query("shop.daily", sql, "day", _SCHEMAS, {"least": 1})


def _conditions(sql: str, partition: str = "day", *values: Any) -> dict[str, str]:
    by = PublishedPartition.parse(partition)
    found = _query(sql).conditions(_SCHEMAS, by, set(values or (_DAYS,)))
    return {table: condition.sql for table, condition in found.items()}


def test_tables_become_views_and_nothing_else_of_the_text_changes() -> None:
    sql = "select 'é shop.orders', o.id, shop.customers.city -- shop.orders\nfrom shop.orders o, `shop`.`customers`"
    assert _query(sql).over_views({"shop.orders": "v1", "shop.customers": "v2"}) == (
        "select 'é shop.orders', o.id, customers.city -- shop.orders\nfrom v1 o, v2 AS `customers`"
    )


def test_tables_are_found_in_subqueries_unions_and_ctes_but_ctes_are_no_tables() -> None:
    query = _query(
        "with orders as (select * from shop.orders) select id from orders union select id from (select id from shop.customers)"
    )
    assert query.tables == ("shop.customers", "shop.orders")


SPELLINGS = {
    "table": ("select id from shop.CUSTOMERS", "select id from v AS `CUSTOMERS`"),
    "schema": ("select id from SHOP.customers", "select id from v AS `customers`"),
    "backquoted": ("select id from `Shop`.`Customers`", "select id from v AS `Customers`"),
    "alias": ("select C.id from Shop.Customers c where c.ID > 1", "select C.id from v c where c.ID > 1"),
    "column": ("select SHOP.customers.ID from shop.Customers", "select customers.ID from v AS `Customers`"),
    "common table expression": (
        "with A as (select * from Shop.customers) select a.id from a join shop.customers B on b.ID = A.Id",
        "with A as (select * from v AS `customers`) select a.id from a join v B on b.ID = A.Id",
    ),
}
"""Queries over `shop.customers`, and their text over the view `v`."""


@pytest.mark.parametrize("case", SPELLINGS)
def test_tables_are_found_in_any_letter_case(case: str) -> None:
    sql, over_view = SPELLINGS[case]
    query = _query(sql)
    assert query.tables == ("shop.customers",)
    assert query.over_views({"shop.customers": "v"}) == over_view
    assert query.columns(_SCHEMAS)["shop.customers"][0] == "id"
    assert query.in_full(_SCHEMAS) is not None


@pytest.mark.parametrize("case", SPELLINGS)
def test_names_are_compared_with_case_where_spark_is_told_so(case: str) -> None:
    with pytest.raises(ConfigError, match=r"no table (?i:shop\.customers); did you mean shop\.customers\?"):
        parse_query("shop.daily", SPELLINGS[case][0], None, _SCHEMAS, case_sensitive=True)
    exact = parse_query("shop.daily", "select ID from shop.customers", None, _SCHEMAS, case_sensitive=True)
    assert exact.columns(_SCHEMAS) == {"shop.customers": ("id", "city")}
    assert exact.in_full(_SCHEMAS) is None


def test_a_name_that_means_several_tables_is_refused_and_an_exact_one_is_not() -> None:
    known = ["shop.t", "shop.T", "Shop.u"]
    assert parse_query("shop.daily", "select * from shop.T, SHOP.U", None, known).tables == ("Shop.u", "shop.T")
    with pytest.raises(ConfigError, match=r"published shop\.daily: SHOP\.t may mean shop\.T or shop\.t, which differ"):
        parse_query("shop.daily", "select * from SHOP.t", None, known)


def test_a_published_table_is_named_as_such_in_any_letter_case() -> None:
    with pytest.raises(ConfigError, match=r"no table SHOP\.daily; it is published itself"):
        parse_query("shop.daily", "select * from SHOP.daily", None, _SCHEMAS, published=["shop.Daily"])


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select * from o where id in (with o as (select 1 as id) select id from o)", ("o",)),
        ("with o as (select * from o where id = 1) select * from o", ("o",)),
        ("with a as (select * from b), b as (select * from a) select * from a, B", ("b",)),
        ("select * from (with x as (select 1 as id) select * from x) y join x on x.id = y.id", ("x",)),
        ("with X as (with y as (select * from o) select * from y) select * from x, y", ("o", "y")),
        ("with recursive r as (select 1 as id union all select id + 1 from R where id < 9) select * from r", ()),
        ("select 1 union (with u as (select 2 as id) select id from u) union select id from u", ("u",)),
    ],
)
def test_a_common_table_expression_hides_a_table_only_where_its_name_is_seen(sql: str, tables: tuple[str, ...]) -> None:
    assert parse_sql(sql).tables == tables


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select * from shop.order", r"no table shop\.order; did you mean shop\.orders\?"),
        ("select * from other", "no table other"),
        ("select 1; select 2", "one query"),
        ("drop table shop.orders", "one query"),
        ("select from where", "published shop.daily"),
    ],
)
def test_a_query_that_cannot_run_is_refused_with_the_name_of_the_published_table(sql: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _query(sql)


@pytest.mark.parametrize(
    ("sql", "orders", "customers"),
    [
        ("select count(*) from shop.orders", ("id",), None),
        ("select NOTE from shop.orders where due is null", ("due", "Note"), None),
        ("select o.* from shop.orders o", _SCHEMAS["shop.orders"].names, None),
        (
            "with a as (select id, city from shop.customers) select o.id from shop.orders o join a on a.id = customer_id",
            ("id", "customer_id"),
            ("id", "city"),  # the text still names it
        ),
        (
            "select city from shop.customers c where exists (select 1 from shop.orders o where o.customer_id = c.id)",
            ("customer_id",),
            ("id", "city"),
        ),
        (
            "select city from shop.customers c where exists (select * from shop.orders o where o.customer_id = c.id)",
            ("customer_id",),
            ("id", "city"),
        ),
        (
            """select city from shop.customers c where not exists (select o.* from shop.orders o where due is null
            and (exists (select * from shop.customers d where d.id = o.customer_id) or o.id = c.id))""",
            ("id", "customer_id", "due"),
            ("id", "city"),
        ),
        (
            "select city from shop.customers c where exists (select Note, o.* from shop.orders o where o.id = c.id)",
            _SCHEMAS["shop.orders"].names,  # the text names one of them
            ("id", "city"),
        ),
        ("select 1 as n where exists (select * from shop.orders)", ("id",), None),
        (
            "select city from shop.customers where id in (select id from (select * from shop.orders) where due is null)",
            ("id", "due"),
            ("id", "city"),
        ),
        (
            """with o as (select * from shop.orders where note = 'x'), c as (select *, upper(city) as u from shop.customers)
            select o.id, u, max(due) as due from o left join c on c.id = o.customer_id group by 1, 2""",
            ("id", "customer_id", "Note", "due"),
            ("id", "city"),
        ),
        (
            """with o as (select *, row_number() over (partition by customer_id order by due) as n from shop.orders)
            select id from o where n = 1""",
            ("id", "customer_id", "due"),
            None,
        ),
        (
            "with o as (select * from shop.orders), u as (select *, upper(note) as n from o) select id from o",
            ("id", "Note"),
            None,
        ),
        ("select unknown_column from shop.orders", _SCHEMAS["shop.orders"].names, None),
    ],
)
def test_only_needed_columns_are_read_and_all_of_them_in_doubt(
    sql: str, orders: tuple[str, ...], customers: tuple[str, ...] | None
) -> None:
    columns = _query(sql).columns(_SCHEMAS)
    assert set(columns["shop.orders"]) == set(orders)
    assert columns.get("shop.customers") == customers


@pytest.mark.parametrize(
    "sql",
    [
        "select id, to_json(struct(*)) as row from shop.orders",
        "select id, hash(o.*) as h from shop.orders o",
        "select count(distinct *) as n from shop.orders",
        "select count(o.*) as n from shop.orders o",
        "select * except (note, due) from shop.orders",
        "select id from (select * from shop.orders union all select * from shop.orders)",
        "select id from (select * from shop.orders order by 4 limit 3)",
        "select id from (select distinct * from shop.orders)",
        "select id from (select * from shop.orders) natural join (select * from shop.customers)",
        "select id from (select *, id from shop.orders)",
        "select a from (select * from shop.orders) as o (a, b, c, d, e, f)",
        "select a from (select * from shop.orders where id > 3 limit 5) as o (a, id, c, d, e, f) where id = 3",
        "with o (a, b, c, d, e, f) as (select * from shop.orders) select a from o",
        "with o (a, b, c, d, e, f) as (select * from shop.orders), p as (select * from o) select a from p",
        "select id from ((select * from shop.orders) order by 4 limit 3)",
        "with o as ((select * from shop.orders) sort by 4 limit 3) select id from o",
        "select id from (select * from shop.orders order by :least limit 3)",
        "select * from shop.orders lateral view explode(array(1)) e order by 1",
        "select o.* from (select * from shop.orders a join shop.orders b on a.id = b.customer_id) o order by 2",
        "select count(*, 1) as n from shop.orders",
        "select count(1, *) as n from (select * from shop.orders)",
        "select 1 as n where exists (select distinct * from shop.orders offset 1)",
        "select 1 as n where exists (select * from shop.orders order by 4 limit 1)",
        "select 1 as n where exists (select * from shop.orders sort by 4 limit 1)",
        "select 1 as n where exists (select o.* from shop.orders o sort by :least)",
        "select id from (select * from shop.orders group by all)",
        "select id from (select * from shop.orders order by all limit 3)",
        "select o.* from (select * from shop.orders) o",
        "with o as (select * from shop.orders) select * from o where id in (select id from o where due is null)",
        "select * from shop.orders pivot (max(due) for note in ('a', 'b'))",
        "with o as (select struct(*) as row from shop.orders) select row.id from o",
        "select b from shop.orders as o (a, b, c, d, e, f)",
        "select id from shop.orders where identifier('due') is null",
    ],
)
def test_all_columns_are_read_where_the_sql_takes_some_without_their_names(sql: str) -> None:
    assert _query(sql).columns(_SCHEMAS)["shop.orders"] == _SCHEMAS["shop.orders"].names


def test_columns_that_have_other_names_in_the_sql_narrow_no_scan() -> None:
    sql = "select due as day from shop.orders as o (id, customer_id, ordered_at, due, local_time, note)"
    assert _query(sql).conditions(_SCHEMAS, _BY_DAY, {_DAYS}) == {}


@pytest.mark.parametrize(
    "sql",
    [
        "select cast(ordered_at as date) as day, count(*) as n from shop.orders group by 1",
        "select to_date(ordered_at) day from shop.orders where Note = 'x'",
        "select date(o.ordered_at) as day, sum(o.id) from shop.orders o group by date(o.ordered_at)",
        "select date(o.ordered_at) as DAY, city, count(*) from shop.orders o left join shop.customers c on c.id = o.id group by day, city",
    ],
)
def test_a_day_of_a_time_becomes_a_range_of_that_time(sql: str) -> None:
    assert _conditions(sql) == {"shop.orders": _DAY_OF_ORDERED_AT}


def test_a_date_column_and_a_time_without_zone_become_conditions_of_their_type() -> None:
    assert _conditions("select due as day from shop.orders") == {"shop.orders": "`due` = date '2026-01-31'"}
    assert _conditions("select cast(local_time as date) as day from shop.orders") == {
        "shop.orders": "`local_time` >= timestamp '2026-01-31 00:00:00' and `local_time` < timestamp '2026-02-01 00:00:00'"
    }


@pytest.mark.parametrize(
    "sql",
    [
        "with a as (select due as day from shop.orders) select day from a",
        "select due as day, rand() as r, my_function(id) as f from shop.orders where ordered_at < now()",
        "select day from (select due as day, Note from shop.orders where id > 3) x where Note is not null",
        "select due as day from shop.orders union all select due from shop.orders",
        "select due as day, row_number() over (partition by due order by id) as n from shop.orders",
        "select o.due as day, c.city from shop.customers c join shop.orders o on c.id = o.customer_id",
        "select o.due as day from shop.customers c right join shop.orders o on true",
        "select due as day from shop.orders where id in (select id from shop.customers)",
        "select a.due as day from shop.orders a join shop.orders b on a.due = b.due and a.id < b.id",
        "select a.due as day from shop.orders a left join (select due, count(*) as n from shop.orders group by due) b on a.due = b.due",
        "select cast(:partition as date) as day, id from shop.orders where due = :partition",
        "select cast(:partition as date) as day, count(*) from shop.orders where due >= :partition_start and due < :partition_end limit 3",
    ],
)
def test_conditions_go_through_ctes_unions_joins_windows_and_parameters(sql: str) -> None:
    assert _conditions(sql) == {"shop.orders": "`due` = date '2026-01-31'"}


@pytest.mark.parametrize(
    ("sql", "partition", "values", "condition"),
    [
        ("select trunc(due, 'MM') as day from shop.orders", "day", [20_454], "`due` >= date '2026-01-01' and `due` < date '2026-02-02'"),
        ("select date_trunc('hour', local_time) as day from shop.orders", "hour(day)", [490_896], "`local_time` >= timestamp '2026-01-01 00:00:00' and `local_time` < timestamp '2026-01-01 01:00:00'"),
        ("select due as day from shop.orders", "month(day)", [672], "`due` >= date '2026-01-01' and `due` < date '2026-02-01'"),
        ("select due as day from shop.orders", "month(day)", [672, 674], "(`due` >= date '2026-01-01' and `due` < date '2026-02-01') or (`due` >= date '2026-03-01' and `due` < date '2026-04-01')"),
        ("select due as day from shop.orders", "day", [20_454, 20_455], "`due` >= date '2026-01-01' and `due` < date '2026-01-03'"),
        ("select cast(from_utc_timestamp(ordered_at, 'Europe/Oslo') as date) as day from shop.orders", "day", [20_454], "`ordered_at` >= timestamp '2025-12-31 00:00:00+00:00' and `ordered_at` < timestamp '2026-01-03 00:00:00+00:00'"),
        ("select note as day from shop.orders", "value(day)", ["it's", "b"], "`Note` in ('b', 'it''s')"),
    ],
)  # fmt: skip
def test_partitions_of_other_kinds_become_ranges_that_hold_all_their_rows(
    sql: str, partition: str, values: list[Any], condition: str
) -> None:
    found = _conditions(sql, partition, *values)["shop.orders"]
    assert found.replace("\\'", "''") == condition


def test_only_conditions_that_leave_nothing_else_count_as_exact() -> None:
    def exact(sql: str) -> bool:
        return _query(sql).conditions(_SCHEMAS, _BY_DAY, {_DAYS})["shop.orders"].is_exact

    assert exact("select cast(ordered_at as date) as day, id from shop.orders")
    assert not exact("select trunc(due, 'MM') as day, id from shop.orders")


@pytest.mark.parametrize(
    "sql",
    [
        "select to_date(Note, 'yyyy') as day from shop.orders",
        "select cast(Note as date) as day from shop.orders",
        "select max(cast(ordered_at as date)) as day from shop.orders",
        "select max(due) as day, id from shop.orders group by id",
        "select due as day, row_number() over (order by id) from shop.orders",
        "select due as day from shop.orders limit 5",
        "select due as day from shop.orders full join shop.customers on true",
        "select o.due as day from shop.customers c left join shop.orders o on o.id = c.id",
        "select due as day from shop.orders union all select due from (select due from shop.orders limit 3)",
        "select due as day, count(*) from shop.orders group by rollup (due)",
        "select due as day from shop.orders tablesample (10 percent)",
        "select due + 1 as day from shop.orders",
        "select date_add(due, cast(rand() * 2 as int)) as day from shop.orders",
        "with recursive a as (select due as day from shop.orders union all select day from a) select day from a",
    ],
)
def test_in_any_other_shape_no_condition_is_derived(sql: str) -> None:
    assert _conditions(sql) == {}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select due as day from shop.orders where due = :partitoin", r"no parameter :partitoin; did you mean :partition\?"),
        ("select due as day from shop.orders where id > ?", "parameters have names: write :partition"),
        ("select due as day from shop.orders where due = '{{ partition }}' and", r"written :partition, not \{\{ partition \}\}"),
    ],
)  # fmt: skip
def test_a_parameter_that_does_not_exist_is_refused(sql: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _query(sql)


def test_a_table_without_partitions_has_no_parameter_of_that_name() -> None:
    with pytest.raises(ConfigError, match=":partition has no meaning, because the table has no partition"):
        parse_query("shop.all", "select id from shop.orders where due = :partition", None, _SCHEMAS)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select due as day, rand() as r from shop.orders", "rand() gives no certain answer"),
        ("select due as day from shop.orders where ordered_at < now()", "now() gives no certain answer"),
        ("select due as day, my_function(id) as r from shop.orders", "my_function() gives no certain answer"),
        ("select due as day, row_number() over (order by id) as n from shop.orders", "a window goes beyond the partition"),
        ("select due as day from shop.orders limit 5", "a limit"),
        ("select count(*) as day from shop.orders", "computed from several rows"),
        ("select due as day, x.n from shop.orders cross join (select count(*) as n from shop.customers) x", "joined without an equality"),
        ("select due as day, (select max(id) from shop.customers) as m from shop.orders", "not tied to the partition"),
    ],
)  # fmt: skip
def test_changes_that_cannot_be_traced_have_a_reason(sql: str, reason: str) -> None:
    unknown = [reach.reason for reach in _query(sql).reaches(_SCHEMAS, _BY_DAY) if reach.values is None]
    assert unknown
    assert reason in unknown[0]


def test_a_chain_of_joins_is_followed_from_the_changed_table_to_the_partition() -> None:
    sql = (
        "select o.due as day, count(*) as n from shop.orders o join shop.customers c on c.id = o.customer_id "
        "left join shop.customers d on d.id = c.id group by o.due"
    )
    values = [reach.values for reach in _query(sql).reaches(_SCHEMAS, _BY_DAY)]
    assert [value.sql() for value in values if value is not None][2] == (
        "SELECT DISTINCT o.due AS k0 FROM nevermore_t1 AS o JOIN (SELECT DISTINCT c.id AS k0 FROM nevermore_t0 AS c JOIN "
        "(SELECT DISTINCT d.id AS k0 FROM nevermore_t0_changed AS d) AS _keys ON c.id = _keys.k0) AS _keys "
        "ON o.customer_id = _keys.k0"
    )


@pytest.mark.parametrize(
    ("join", "table"),
    [
        ("join shop.customers c on c.id = b.customer_id", "b"),
        ("left join shop.customers c on c.id = a.customer_id", "a"),
        ("where exists (select 1 from shop.customers c where c.id = b.customer_id)", "b"),
    ],
)
def test_what_meets_one_side_of_a_full_join_reaches_the_days_of_that_side(join: str, table: str) -> None:
    sides = "shop.orders a full join shop.orders b on a.due = b.due"
    found = _query(f"select coalesce(a.due, b.due) as day, a.id from {sides} {join}").reaches(_SCHEMAS, _BY_DAY)
    days = [str(reach.values.sql()) for reach in found if reach.values is not None]
    assert [day.removeprefix("SELECT DISTINCT ").split(" AS ")[0] for day in days] == ["a.due", "b.due", f"{table}.due"]
    for other in ("right", "full"):
        third = f"{other} join shop.customers c on c.id = b.customer_id"
        found = _query(f"select coalesce(a.due, b.due) as day from {sides} {third}").reaches(_SCHEMAS, _BY_DAY)
        assert {reach.values for reach in found} == {None}


def test_scan_is_not_narrowed_to_a_day_without_an_end() -> None:
    last = (date(9999, 12, 31) - date(1970, 1, 1)).days
    assert _conditions("select day, id from shop.orders", "day", last) == {}
