"""Joins by `sql`: the rows of plain Spark in every kind, the fact read where it can have partners, no more."""

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from nevermore import scan_core
from nevermore.scan_core import Scan
from nevermore.scan_core.spark import dataframe, explain_sql, pushdown, reads_of_sql, sql
from tests.support.iceberg_json import Column
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = SPARK_TEST

FILES, ROWS = 4, 50
KINDS = ["inner", "left semi", "left", "right", "full", "left anti"]
_FILTER_THE_FACT = {"inner", "left semi", "right"}


@pytest.fixture(scope="module")
def fact(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    """200 sales of items 0 to 99 in order, so that each file holds a quarter; some deleted, some without item."""
    columns = [
        Column(1, "sale", "long"),
        Column(2, "item", "int"),
        Column(3, "shop", "string"),
        Column(4, "qty", "int"),
    ]
    builder = TableBuilder(tmp_path_factory.mktemp("fact") / "t", columns)
    for number in range(FILES):
        sales = range(number * ROWS, (number + 1) * ROWS)
        rows = {
            "sale": list(sales),
            "item": [None if s % 17 == 0 else s // 2 for s in sales],
            "shop": [f"s{s % 5}" for s in sales],
            "qty": [s % 7 for s in sales],
        }
        builder.commit(builder.data(rows))
    builder.commit(builder.equality_delete({"item": [3, 60, 61, None]}, ids=[2]))
    return scan_core.open_table(builder.metadata_path).scan()


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    """Items 0 to 149 in two files, with a colour; one without number."""
    columns = [Column(1, "item", "long"), Column(2, "colour", "string")]
    builder = TableBuilder(tmp_path_factory.mktemp("items") / "t", columns)
    for first, last in ((0, 60), (60, 150)):
        numbers = [*range(first, last), None]
        colours = ["red" if (i or 0) < 8 else "blue" for i in numbers]
        builder.commit(builder.data({"item": numbers, "colour": colours}))
    return scan_core.open_table(builder.metadata_path).scan()


def rows(frame: DataFrame) -> Counter[str]:
    """As Arrow has them, which knows every date and has NaN equal to itself."""
    return Counter(map(repr, frame.toArrow().to_pylist()))


def plain(spark: SparkSession, text: str, scans: Mapping[str, Scan]) -> Counter[str]:
    """The rows of the query by Spark over all rows."""
    for name, scan in scans.items():
        dataframe(spark, scan, "python").createOrReplaceTempView(name)
    return rows(spark.sql(text))


@pytest.mark.each(12)
@pytest.mark.parametrize("reader", ["auto", "python"])
@pytest.mark.parametrize("how", KINDS)
def test_every_kind_gives_the_rows_of_plain_spark_and_filters_what_it_may(
    ansi_spark: SparkSession, fact: Scan, items: Scan, how: str, reader: Any
) -> None:
    text = f"select * from sales s {how} join (select * from items where colour = 'red') i on i.item = s.item"
    found = sql(ansi_spark, text, {"sales": fact, "items": items}, reader=reader)
    assert rows(found) == plain(ansi_spark, text, {"sales": fact, "items": items})
    read = reads_of_sql(found)["sales"]
    assert bool(read.joins) is (how in _FILTER_THE_FACT)
    assert read.metrics.data_files_planned == (1 if how in _FILTER_THE_FACT else FILES)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["MAX_KEYS", "MAX_KEY_BYTES"])
def test_too_many_keys_leave_the_ranges_of_statistics(
    ansi_spark: SparkSession, fact: Scan, items: Scan, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(pushdown, limit, 5)
    text = "select s.sale from sales s join items i on i.item = s.item where i.colour = 'red'"
    found = sql(ansi_spark, text, {"sales": fact, "items": items})
    assert rows(found) == plain(ansi_spark, text, {"sales": fact, "items": items})
    read = reads_of_sql(found)["sales"]
    assert "more than 5" in str(read.left)
    assert "ranges of item that statistics give" in explain_sql(found)


@pytest.mark.slow
def test_keys_of_all_dimensions_filter_the_fact(ansi_spark: SparkSession, fact: Scan, items: Scan) -> None:
    text = """
        select s.sale, i.colour from sales s join items i on i.item = s.item
        where s.qty in (select item from j where item < 3) and i.colour = 'red'
    """
    scans = {"sales": fact, "items": items, "j": items}
    found = sql(ansi_spark, text, scans)
    assert rows(found) == plain(ansi_spark, text, scans)
    assert len(reads_of_sql(found)["sales"].joins) == 2


@pytest.mark.each(4)
@pytest.mark.parametrize("kind", ["string", "double", "decimal(10,2)", "smallint"])
def test_keys_of_a_view_are_compared_as_spark_does(ansi_spark: SparkSession, fact: Scan, kind: str) -> None:
    ansi_spark.sql(f"select cast(id as {kind}) as item from range(1, 90, 7)").createOrReplaceTempView("given")
    text = "select s.sale from sales s join given g on g.item = s.item where g.item > 1"
    assert rows(sql(ansi_spark, text, {"sales": fact})) == plain(ansi_spark, text, {"sales": fact})


VALUES: dict[str, tuple[str, list[Any]]] = {
    "flag": ("boolean", [True, False]),
    "wide": ("long", [-(2**63), 2**63 - 1]),
    "single": ("float", [-0.0, float("nan")]),
    "double": ("double", [float("nan"), float("-inf")]),
    "amount": ("decimal(9, 3)", [Decimal("-999999.999"), Decimal("0.100")]),
    "large": ("decimal(38, 10)", [Decimal("9" * 28 + ".0000000001"), Decimal(0)]),
    "day": ("date", [dt.date(1500, 2, 28), dt.date(9999, 12, 31)]),
    "at": ("timestamp", [dt.datetime(1500, 2, 28, 1, 2, 3, 4), dt.datetime(2024, 3, 31, 2, 30)]),  # noqa: DTZ001
    "instant": (
        "timestamptz",
        [dt.datetime(1500, 2, 28, tzinfo=dt.UTC), dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)],
    ),
    "name": ("string", ["", "ÿ\0z"]),
    "uuid": ("uuid", [b"\xff" * 16, bytes(16)]),
    "raw": ("binary", [b"", b"\0\xff"]),
    "fixed": ("fixed[3]", [b"abc", b"\0\0\0"]),
}


@pytest.mark.slow
def test_keys_of_every_type_and_of_none(ansi_spark: SparkSession, tmp_path: Path) -> None:
    columns = [Column(1, "k", "int"), *(Column(i, n, t) for i, (n, (t, _)) in enumerate(VALUES.items(), 2))]
    builder = TableBuilder(tmp_path / "t", columns)
    data: dict[str, list[Any]] = {"k": [*range(6), *range(6), None]}
    data |= {name: [one, other, None] * 4 + [one] for name, (_, (one, other)) in VALUES.items()}
    builder.commit(builder.data(data))
    builder.commit(builder.equality_delete({"k": [2]}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan()
    scans = {"t": scan, "u": scan}
    for name in VALUES:
        text = f"select t.* from t left semi join u on u.{name} = t.{name} and u.k < {{}}"
        assert rows(sql(ansi_spark, text.format(1), scans)) == plain(ansi_spark, text.format(1), scans) != {}, name
        assert not rows(sql(ansi_spark, text.format(-100), scans)), name


def test_semi_join_of_a_scan_is_exact_in_spark(spark: SparkSession, fact: Scan, items: Scan) -> None:
    keyed = fact.semi_join("item", items.where("colour = 'red'").select("item")).select("sale")
    expected = sorted(keyed.to_table()["sale"].to_pylist())
    assert sorted(row["sale"] for row in dataframe(spark, keyed).collect()) == expected


@pytest.mark.each(4)
@pytest.mark.parametrize("reader", ["python", "native"])
@pytest.mark.parametrize("name", ["b`t", "`", "a.b", "*", 'q"q', " a"])
def test_columns_of_any_name_can_be_the_key(ansi_spark: SparkSession, tmp_path: Path, name: str, reader: Any) -> None:
    def table(folder: str, key: str, numbers: range) -> Scan:
        builder = TableBuilder(tmp_path / folder, [Column(1, key, "long"), Column(2, f"{folder}_text", "string")])
        builder.commit(builder.data({key: list(numbers), f"{folder}_text": [f"{folder}{n}" for n in numbers]}))
        return scan_core.open_table(builder.metadata_path).scan()

    scans = {"sales": table("sales", name, range(20)), "goods": table("goods", name, range(5, 8))}
    quoted = "`" + name.replace("`", "``") + "`"
    text = f"select sales_text from sales s join goods g on g.{quoted} = s.{quoted} where g.{quoted} > 5 order by 1"
    found = sql(ansi_spark, text, scans, reader=reader)
    assert [row[0] for row in found.collect()] == ["sales6", "sales7"]
