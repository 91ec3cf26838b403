"""SQL that is traced to partitions is a list of what is understood: everything else is made as a whole, with the reason."""

import pytest

from nevermore.pipelines.config.published import PublishedPartition
from nevermore.pipelines.publish.query import PublishedQuery, parse_query
from nevermore.scan_core.model.schema import ListType, NestedField, PrimitiveType, Schema, StructType

_LONG, _DATE, _TEXT = PrimitiveType("long"), PrimitiveType("date"), PrimitiveType("string")
_MOMENT, _TIME = PrimitiveType("timestamptz"), PrimitiveType("timestamp")
_META = StructType((NestedField(20, "id", _LONG), NestedField(21, "at", _MOMENT)))


def _schema(**columns: object) -> Schema:
    return Schema(0, tuple(NestedField(n, name, kind) for n, (name, kind) in enumerate(columns.items(), 1)))  # type: ignore[arg-type]


SCHEMAS = {
    "o": _schema(id=_LONG, cid=_LONG, day=_DATE, at=_MOMENT, local=_TIME, note=_TEXT),
    "l": _schema(oid=_LONG, qty=_LONG, day=_DATE, parts=ListType(NestedField(30, "element", _LONG))),
    "m": _schema(oid=_LONG, o=_META),
    "c": _schema(id=_LONG, city=_TEXT, rid=_LONG),
}
BY_DAY = PublishedPartition.parse("day")


def _query(sql: str, **parameters: object) -> PublishedQuery:
    return parse_query("shop.daily", sql, "day", SCHEMAS, parameters)


def _reasons(sql: str, **parameters: object) -> dict[str, str]:
    """By table, why its changes cannot be traced."""
    query = _query(sql, **parameters)
    names = {view: table for table, view in query.view_names.items()}
    return {names[r.table]: r.reason for r in query.reaches(SCHEMAS, BY_DAY) if r.values is None}


def _traced(sql: str, table: str) -> list[str]:
    query = _query(sql)
    view = query.view_names[table]
    return [str(r.values) for r in query.reaches(SCHEMAS, BY_DAY) if r.table == view]


@pytest.mark.parametrize("half", ["anti join", "left anti join", "ANTI  JOIN"])
def test_rows_that_an_anti_join_keeps_need_not_fulfil_its_condition(half: str) -> None:
    sql = f"select a.day, a.id from o a {half} c b on b.id = a.cid and a.id > 1"
    assert _reasons(sql) == {}
    assert _traced(sql, "o") == ["SELECT DISTINCT a.day AS k0 FROM nevermore_t1_changed AS a"]
    asked = f"select cast(:partition as date) as day, a.id from o a {half} c b on b.id = a.cid and a.day = :partition"
    assert _query(asked).conditions(SCHEMAS, BY_DAY, {20_454}) == {}


@pytest.mark.parametrize("half", ["semi join", "left semi join"])
def test_semi_joins_with_and_without_side_are_one(half: str) -> None:
    sql = f"select a.day, a.id from o a {half} c b on b.id = a.cid and b.rid > 1"
    assert _reasons(sql) == {}
    assert "b.rid > 1" in _traced(sql, "c")[0]


@pytest.mark.parametrize(
    "join",
    [
        "cross join c left join l b on b.oid = o.id and b.qty = c.id",
        "cross join c anti join l b on b.oid = o.id and b.qty = c.id",
        "cross join c full join l b on b.oid = o.id and b.qty = c.id",
    ],
)
def test_a_table_that_need_not_be_there_ties_nothing_to_another(join: str) -> None:
    assert "c" in _reasons(f"select o.day, o.id, c.city from o {join}")


@pytest.mark.parametrize(
    ("sql", "untied"),
    [
        ("select o.day, (select sum(l.qty) from l join o on o.id = l.oid) as n from o", {"l", "o"}),
        ("select o.day from o where not exists (select 1 from l join o on o.id = l.oid)", {"l", "o"}),
        ("select o.day from o where exists (select 1 from c o where o.id = o.rid)", {"c"}),
        ("select o.day from o where exists (select 1 from (select * from c) o join l on l.oid = o.id)", {"c", "l"}),
        ("with o2 as (select * from o) select o2.day from o2 where exists (select 1 from o2 join l on l.oid = o2.id)", {"l", "o"}),
        ("select o.day from o where exists (select 1 from l where l.oid = o.id)", set()),
        ("select l.day, t.x, c.city from l lateral view outer explode(parts) t as x join c on c.id = l.oid", set()),
        ("select l.day from l lateral view explode(parts) t as x where exists (select 1 from c t where t.id = l.oid)", set()),
        ("select l.day from l lateral view explode(parts) t as x join c on c.id = t.x", {"c"}),
        ("select o.day from o where exists (select 1 from l where oid = id)", set()),
        ("select day from o where id in (select oid from l where l.day = o.day)", set()),
    ],
)  # fmt: skip
def test_a_name_is_that_of_the_nearest_query_that_has_it(sql: str, untied: set[str]) -> None:
    assert _reasons(sql).keys() == untied


@pytest.mark.parametrize(
    "sql",
    [
        "select o.day from o where o.id in (select l.oid as cid from l where cid = 1)",
        "select o.day from o where exists (select qty + 1 as CID from l where oid = id and cid > 2)",
        "select o.day, (select max(qty) as cid from l where oid = id and (qty > 1 or cid = 2)) as v from o",
        "select o.day from o where exists (select 1 from (select city as note from c where note = 'x') t where t.note = o.note)",
    ],
)  # fmt: skip
def test_an_alias_is_no_column_of_its_own_where(sql: str) -> None:
    reasons = _reasons(sql)
    assert "o" in reasons
    assert all("names" in reason for reason in reasons.values())


@pytest.mark.parametrize(
    "sql",
    [
        "select day, coalesce(note, '') as note from o where note is not null",
        "select o.day from o where exists (select coalesce(l.qty, 0) as qty from l where qty > 1 and oid = o.id)",
        "select day, x as x from l lateral view explode(parts) t as x where x = 1",
        "select day, id + 1 as note, note as id from (select day, id, note from o) t where id = 1 and note = 'x'",
    ],
)
def test_a_column_of_a_source_may_have_the_name_of_an_alias(sql: str) -> None:
    assert _reasons(sql) == {}


def test_operators_that_sqlglot_groups_otherwise_need_parentheses() -> None:
    for condition in ("id | cid & 4 = 1", "id ^ cid | 1 = 1", "note || id + 1 = '12'"):
        (reason,) = _reasons(f"select day, id from o where {condition}").values()
        assert "without parentheses" in reason
    assert _reasons("select day, id from o where (id | cid) & 4 + 1 = 1 and note || 'a' || note = 'b'") == {}


def test_a_name_that_may_be_a_member_of_a_column_is_not_guessed() -> None:
    reasons = _reasons("select o.day from o where exists (select 1 from m where o.id = m.oid)")
    assert reasons.keys() == {"o", "m"}
    assert "names" in reasons["m"]


@pytest.mark.parametrize(
    "sql",
    [
        "select o.day from o left semi join c note on note.rid = o.cid",
        "select o.day from o left anti join c note on note.rid < o.cid",
        "select m.oid as day from m left semi join o on o.id = m.oid and o.cid = 1",
        "select city.day from o city where exists (select 1 from l where exists (select 1 from c where c.id = l.oid and city.cid = c.rid))",
    ],
)
def test_a_source_that_has_the_name_of_a_column_is_not_taken_for_that_column(sql: str) -> None:
    query = _query(sql)
    if query.in_full(SCHEMAS) is not None:
        assert "rid" in query.columns(SCHEMAS)["c"]
    else:
        assert query.columns(SCHEMAS) == {table: tuple(SCHEMAS[table].names) for table in query.tables}


def test_a_tree_that_was_changed_is_not_that_of_the_next_who_asks() -> None:
    query = _query("select day, id from o where id = 1")
    before = query.in_full(SCHEMAS)
    assert before is not None
    text = before.sql()
    before.set("where", None)
    flat = query.traceable(SCHEMAS)
    assert not isinstance(flat, str)
    traced = str(flat)
    flat.set("where", None)
    again = query.in_full(SCHEMAS)
    assert again is not None
    assert again.sql() == text
    assert str(query.traceable(SCHEMAS)) == traced


def test_a_name_that_spark_makes_of_an_expression_is_no_column_name() -> None:
    sql = "select o.day from o where exists (select 1 from (select date(day), oid from l) x where x.oid = o.id and day = o.day)"
    assert all("x.day" not in text for text in _traced(sql, "l"))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select day from o natural join c", "names"),
        ("select rid as day, x from c lateral view json_tuple(city, 'a') t as x", "json_tuple()"),
        ("select x as day from l lateral view explode(parts) t as x", "not come from columns of one table"),
        ("select o.day from o, lateral (select max(qty) as q from l where l.oid = o.id) b", "lateral"),
        ("select o.day from o join (c join l on l.oid = c.id) on c.id = o.cid", ""),
        ("select day from o tablesample (10 percent)", "sample"),
        ("select day, count(*) as n from o group by all", "all"),
        ("select day, sum(id) over w as n from o window w as (partition by day)", "windows"),
        ("from o |> select day, id", ""),
        ("select o.day, c.city from o right anti join c on c.id = o.cid", "RIGHT ANTI JOIN"),
        ("select day from o version as of 3", "names"),
        ("select * from l pivot (max(qty) for oid in (1, 2))", ""),
        ("select *, city from o left semi join c using (id)", ""),
        ("with recursive a as (select day from o union all select day from a) select day from a", "common table expression"),
        ("select x.y as day from (select id, day as y, at as y from o) x", "one name"),
        ("select day from (select day, id from o union all by name select id, day from o)", "by name"),
    ],
)  # fmt: skip
def test_a_shape_that_is_not_listed_is_not_traced(sql: str, reason: str) -> None:
    reasons = _reasons(sql)
    assert reasons
    assert all(reason in text for text in reasons.values()), reasons


@pytest.mark.parametrize(
    "sql",
    [
        "select day, date 'today' as d from o",
        "select day from o where at < timestamp 'now'",
        "select day from o where at < timestamp_ltz ' Yesterday UTC'",
        "select day from o where at < 'tomorrow'",
        "select day, cast('now' as timestamp) as t from o",
        "select day, cast(concat('no', 'w') as timestamp) as t from o",
        "select day, cast(concat('to', 'day') as date) as t from o",
        "select day, timestamp '12:30' as t from o",
        "select day, cast(note as timestamp) as t from o",
        "select day, to_timestamp(note) as t from o",
        "select day, hour(note) as h from o",
        "select day from o where at < note",
        "select day, coalesce(at, note) as t from o",
        "select day, case when id > 1 then at else '12:30' end as t from o",
        "select day from o where at in ('12:30', timestamp '2026-01-01 12:30:00')",
        "select day from o where at < :since",
        "select day, current_date as d from o",
        "select day, current_timestamp() as d from o",
        "select day, localtimestamp() as d from o",
        "select day, unix_timestamp() as d from o",
        "select day, rand() as r from o",
        "select day, current_user() as u from o",
        "select day, my_function(id) as m from o",
        "select day, any_new_function_of_spark(id) as m from o",
    ],
)
def test_what_may_give_another_answer_later_is_never_traced(sql: str) -> None:
    query = _query(sql, since="today")
    assert query.why_unrepeatable(SCHEMAS) is not None
    assert all(reach.values is None for reach in query.reaches(SCHEMAS, BY_DAY))


@pytest.mark.parametrize(
    "sql",
    [
        "select date(at) as day, hour(at) as h, date_trunc('hour', local) as t from o where at >= '2026-01-01'",
        "select day, date '2026-01-31' as d, timestamp '2026-01-31 12:30:00' as t, timestamp_ntz '2026-01-31' as n from o",
        "select day, timestamp '1970-01-01' as t from o where note <> '12:30'",
        "select day, cast(note as date) as d, cast(concat(note, '-01') as date) as e from o",
        "select day, to_timestamp(note, 'yyyy-MM-dd HH:mm:ss') as t, to_date(note, 'yyyy') as d from o",
        "select cast(from_utc_timestamp(at, 'Europe/Oslo') as date) as day from o",
        "select day, cast(at as date) = day as same, at - interval 1 day as before, datediff(day, date '2026-01-01') as n from o",
        "select day from o where at >= :since and at < timestamp '2027-01-01'",
        "select day, upper(note) as note, id * 2 + 1 as id, note like 'now%' as n from o where note rlike '[a-z]+'",
    ],
)
def test_dates_that_are_written_out_are_as_good_as_any_value(sql: str) -> None:
    sql = sql.replace("'now%'", "'a%'")
    assert _query(sql, since="2026-01-01").why_unrepeatable(SCHEMAS) is None
    assert _reasons(sql, since="2026-01-01") == {}


def test_an_expression_of_a_sub_query_stays_one_operand() -> None:
    sql = "select k - v as day, k from (select id as k, cid - id as v from o) s"
    assert _traced(sql, "o") == ["SELECT DISTINCT o.id - (o.cid - o.id) AS k0 FROM nevermore_t0_changed AS o"]
