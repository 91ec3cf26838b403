"""`sql`: what a query asks of its tables reaches their scans, Spark gives the rest, and the report tells which is which."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.scan_core import OptionError, Scan
from nevermore.scan_core.spark import TableRead, dataframe, explain_sql, reads_of_sql, sql
from tests.support.iceberg_json import Column
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = SPARK_TEST

FILES, ROWS = 8, 40


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Scan]:
    """320 orders in 8 files, of which every tenth is deleted, and 16 customers in one."""
    folder = tmp_path_factory.mktemp("sql")
    members = [Column(4, "city", "string").json(), Column(5, "zip", "long").json()]
    at = {"type": "struct", "fields": members}
    orders = TableBuilder(
        folder / "orders",
        [Column(1, "id", "long"), Column(2, "customer", "long"), Column(3, "place", at), Column(6, "Name", "string")],
    )
    for n in range(FILES):
        ids = list(range(n * ROWS, (n + 1) * ROWS))
        orders.commit(
            orders.data({
                "id": ids, "customer": [i // 20 for i in ids], "Name": [f"n{i // 100}" for i in ids],
                "place": [{"city": "ab"[i % 2], "zip": n} for i in ids],
            })
        )  # fmt: skip
    orders.commit(orders.equality_delete({"id": list(range(0, FILES * ROWS, 10))}, ids=[1]))
    customers = TableBuilder(folder / "customers", [Column(1, "id", "long"), Column(2, "city", "string")])
    customers.commit(customers.data({"id": list(range(16)), "city": [f"c{i // 2}" for i in range(16)]}))
    return {
        "shop.orders": scan_core.open_table(orders.metadata_path).scan(),
        "shop.customers": scan_core.open_table(customers.metadata_path).scan(),
    }


def live(text: str) -> list[int]:
    return [i for i in range(FILES * ROWS) if i % 10 and eval(text, {"i": i})]  # noqa: S307 - of the tests below


# the manifests have no bounds of members
@pytest.mark.each(3)
@pytest.mark.parametrize(
    ("condition", "expected", "where", "files"),
    [
        ("id = 41", "i == 41", "`id` = 41", 1),
        ("id in (41, 281)", "i in (41, 281)", "`id` IN (41, 281)", 2),
        ("id between 35 and 45", "35 <= i <= 45", "`id` BETWEEN 35 AND 45", 2),
        ("place.zip = 2", "i // 40 == 2", "`place`.zip = 2", 8),
        ("o.place.zip >= 6 and place.city = 'a'", "i // 40 >= 6 and i % 2 == 0", "`place`.zip >= 6 and `place`.city = 'a'", 8),
        ("name like 'n0%'", "i < 100", "`Name` LIKE 'n0%'", 3),
        ("upper(name) = 'N3'", "i >= 300", "UPPER(`Name`) = 'N3'", 8),
        ("customer = (select max(id) from shop.customers where city = 'c2')", "i // 20 == 5", None, 8),
        ("exists (select 1 from shop.customers c where c.id = o.customer and c.id > 13)", "i // 20 > 13", "`customer` > 13", 1),
    ],
)  # fmt: skip
def test_conditions_reach_the_scan(
    ansi_spark: SparkSession, scans: Mapping[str, Scan], condition: str, expected: str, where: str | None, files: int
) -> None:
    frame = sql(ansi_spark, f"select id from shop.orders o where {condition} order by id", scans)
    read = reads_of_sql(frame)["shop.orders"]
    assert read.where == where
    assert [row.id for row in frame.collect()] == live(expected)
    assert planned(reads_of_sql(frame)["shop.orders"]) == (files, FILES - files)


@pytest.mark.each(2)
@pytest.mark.parametrize(
    "query",
    [
        "select ID from SHOP.customers where City = 'c2'",
        "select shop.Customers.id from `Shop`.`CUSTOMERS` where customers.city = 'c2'",
        "select C.id from shop.customers c where c.city = 'c2' and exists (select 1 from Shop.Orders d where D.customer = c.id)",
        "with A as (select * from shop.CUSTOMERS where city = 'c2') select a.id from a",
    ],
)
def test_names_are_read_in_any_letter_case(ansi_spark: SparkSession, scans: Mapping[str, Scan], query: str) -> None:
    frame = sql(ansi_spark, query, scans)
    assert reads_of_sql(frame)["shop.customers"].where in {"`city` = 'c2'", "`city` = 'c2' and `id` BETWEEN 0 AND 15"}
    assert sorted(row[0] for row in frame.collect()) == [4, 5]


def test_a_session_that_compares_case_is_given_no_conditions(
    ansi_spark: SparkSession, scans: Mapping[str, Scan]
) -> None:
    ansi_spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = sql(ansi_spark, "select id from shop.customers where id > 14", scans)
        assert "caseSensitive" in str(reads_of_sql(frame)["shop.customers"].left)
        assert [row[0] for row in frame.collect()] == [15]
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            sql(ansi_spark, "select id from Shop.customers where id > 14", scans)
        with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
            sql(ansi_spark, "select ID from shop.customers", scans)
    finally:
        ansi_spark.conf.unset("spark.sql.caseSensitive")


def planned(read: TableRead) -> tuple[int, int]:
    return read.metrics.data_files_planned, read.metrics.data_files_pruned


def test_keys_of_a_join_reach_the_other_scan(ansi_spark: SparkSession, scans: Mapping[str, Scan]) -> None:
    text = "select o.id from shop.orders o join shop.customers c on c.id = o.customer where c.city = 'c3' order by 1"
    frame = sql(ansi_spark, text, scans)
    assert [row.id for row in frame.collect()] == live("i // 40 == 3")
    reads = reads_of_sql(frame)
    assert reads["shop.customers"].where == "`city` = 'c3'"
    assert reads["shop.orders"].columns == ("id", "customer")
    assert reads["shop.orders"].joins
    assert planned(reads["shop.orders"]) == (1, FILES - 1)
    explained = explain_sql(frame)
    assert "customer among id of shop.customers: 2 rows of keys" in explained
    assert "data files: 1 of 8" in explained


def test_conditions_that_spark_alone_applies_are_named_with_the_reason(
    ansi_spark: SparkSession, scans: Mapping[str, Scan]
) -> None:
    frame = sql(
        ansi_spark,
        "select id from shop.orders where soundex(name) = 'N000' and id < 5 and cast(name as int) = 1",
        scans,
    )
    read = reads_of_sql(frame)["shop.orders"]
    assert read.where == "`id` < 5"
    assert any("soundex" in reason.lower() for reason in read.left.values())
    assert any("it can fail" in reason for reason in read.left.values())


def test_views_of_the_session_and_parameters_may_be_used(ansi_spark: SparkSession, scans: Mapping[str, Scan]) -> None:
    ansi_spark.range(38, 43).createOrReplaceTempView("wanted")
    text = "select '{x}' as x, count(*) as n from SHOP.Orders o join wanted w on w.id = o.id where w.id > :least"
    frame = sql(ansi_spark, text, scans, args={"least": 39})
    assert [(row.x, row.n) for row in frame.collect()] == [("{x}", 2)]
    assert reads_of_sql(frame)["shop.orders"].where == "`id` > 39"
    assert [tuple(row) for row in sql(ansi_spark, "select * from range(2)", scans).collect()] == [(0,), (1,)]
    both = sql(ansi_spark, "select count(*) as n from shop.orders o, range(3) r where o.id = r.id", scans)
    assert both.collect()[0].n == 2
    assert "range" in reads_of_sql(both)["shop.orders"].left["all conditions"]


def test_in_a_session_where_conditions_mean_something_else_none_is_pushed(
    ansi_spark: SparkSession, scans: Mapping[str, Scan]
) -> None:
    ansi_spark.conf.set("spark.sql.session.timeZone", "Europe/Oslo")
    frame = sql(ansi_spark, "select id from shop.orders where id = 41", scans)
    read = reads_of_sql(frame)["shop.orders"]
    assert (read.where, read.columns) == (None, ("id",))
    assert "time zone" in read.left["all conditions"]
    assert [row.id for row in frame.collect()] == [41]


def test_a_scan_with_a_limit_keeps_the_rows_of_its_limit(ansi_spark: SparkSession, scans: Mapping[str, Scan]) -> None:
    few = {"o": scans["shop.orders"].limit(7)}
    assert sql(ansi_spark, "select count(*) as n from o where id >= 0", few).collect()[0].n == 7
    assert "limit" in reads_of_sql(sql(ansi_spark, "select id from o where id > 9", few))["o"].left["all conditions"]


def test_an_older_snapshot_is_read_as_it_was(ansi_spark: SparkSession, scans: Mapping[str, Scan]) -> None:
    table = scans["shop.orders"].table
    first = table.scan().as_of_snapshot(next(iter(table.metadata.snapshots)))
    frame = sql(ansi_spark, "select count(*) as n from o where id >= 35", {"o": first})
    assert frame.collect()[0].n == 5


def test_a_result_may_be_used_often_and_after_others(ansi_spark: SparkSession, scans: Mapping[str, Scan]) -> None:
    first = sql(ansi_spark, "select id from shop.orders where id < 10", scans)
    second = sql(ansi_spark, "select id from shop.orders where id > 310", scans)
    assert [first.count(), second.count(), first.union(second).count(), first.count()] == [9, 9, 18, 9]
    assert first.join(first.withColumnRenamed("id", "other"), first.id > 3).count() == 54


@pytest.mark.parametrize(
    ("text", "tables", "message"),
    [
        ("delete from o", {}, "one query"),
        ("select from where", {}, "where|WHERE|Expected|Invalid"),
        ("select 1; select 2", {}, "one query"),
        ("select * from o", {"o": 3}, "table 'o' is a scan, a table or a path, not int"),
        (7, {}, "the query is text in Spark's SQL, not int"),
        ("select 1", ["o"], "tables maps the names of the query"),
    ],
)
def test_wrong_arguments_are_refused_in_one_message(
    spark: SparkSession, text: str, tables: Mapping[str, Scan], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        sql(spark, text, tables)


def test_only_results_of_sql_have_reads(spark: SparkSession, scans: Mapping[str, Scan], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="only a DataFrame that sql"):
        reads_of_sql(dataframe(spark, scans["shop.customers"]))
    with pytest.raises(scan_core.ScanError):
        sql(spark, "select * from o", {"o": tmp_path / "none"})


@pytest.mark.slow
def test_reader_is_chosen_by_the_share_of_rows_that_fulfil_the_conditions(
    ansi_spark: SparkSession, tmp_path: Path
) -> None:
    columns = [Column(1, "id", "long"), Column(2, "part", "long"), Column(3, "name", "string")]
    table = TableBuilder(tmp_path, columns)
    for n in range(2):
        ids = range(n * 110_000, (n + 1) * 110_000)
        data = {"id": [*ids], "part": [i * 37 % 100 for i in ids], "name": [f"n{i % 3}" for i in ids]}
        table.commit(table.data(data))
    table.commit(table.equality_delete({"id": [*range(0, 220_000, 10)]}, ids=[1]))
    scan = scan_core.open_table(table.metadata_path).scan()
    for condition, is_native, files in (("part < 90", True, 2), ("part < 9", False, 2), ("id >= 110000", True, 1)):
        expected = scan.where(condition).count()
        text = f"select count(*) as n from t where {condition}"
        for reader in ("auto", "python", "native"):
            frame = sql(ansi_spark, text, {"t": scan}, reader=reader)
            assert frame.collect()[0].n == expected, (condition, reader)
            read = reads_of_sql(frame)["t"]
            assert read.where is not None
            assert planned(read) == (files, 2 - files)
            assert read.reader.startswith(
                "native" if reader == "native" or (reader == "auto" and is_native) else "python"
            )
    # conditions of a scan that is given are not in the query: its rows are bits
    frame = sql(ansi_spark, "select count(*) as n from t where part < 95", {"t": scan.where("part < 90")})
    assert frame.collect()[0].n == scan.where("part < 90").count()
    assert reads_of_sql(frame)["t"].reader.startswith("native")
    limited = sql(ansi_spark, "select count(*) as n from t where part < 95", {"t": scan.limit(1000)})
    assert limited.collect()[0].n <= 1000
