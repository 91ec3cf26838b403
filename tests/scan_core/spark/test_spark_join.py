"""Joins of a scan in Spark: the rows of plain Spark in every kind, the fact read where it can have partners, no more."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from nevermore import scan_core
from nevermore.scan_core import LateKeys, Scan
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.spark.frames import dataframe, reports_of
from nevermore.scan_core.spark.joins import BuildLimits, explain_join, join
from tests.support.iceberg_json import Column
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = SPARK_TEST

FILES, ROWS = 4, 50
KINDS = ["inner", "left_semi", "left", "right", "full", "left_anti"]


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


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """In any order."""
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.parametrize("reader", ["python", pytest.param("auto", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "how", [k if k in {"inner", "left"} else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_every_kind_gives_the_rows_of_plain_spark(
    spark: SparkSession, fact: Scan, items: Scan, how: str, reader: str
) -> None:
    red = items.where("colour = 'red'")
    plain = dataframe(spark, fact, "python").join(dataframe(spark, red, "python"), "item", how)
    expected = rows(plain)
    assert expected
    assert rows(join(fact, red, on="item", how=how, spark=spark, reader=reader)) == expected  # type: ignore[arg-type]
    collected = join(fact, dataframe(spark, red), on=["item"], how=how, reader=reader)  # type: ignore[arg-type]
    assert rows(collected) == expected


@pytest.mark.slow
@pytest.mark.parametrize("how", KINDS)
def test_kinds_agree_where_columns_have_other_names_and_the_fact_has_a_predicate(
    spark: SparkSession, fact: Scan, items: Scan, how: str
) -> None:
    sales = fact.where("item < 20 and qty > 1")
    frame, other = dataframe(spark, sales, "python"), dataframe(spark, items, "python").withColumnRenamed("item", "no")
    expected = rows(frame.join(other, frame["item"] == other["no"], how))
    assert rows(join(sales, other, on={"item": "no"}, how=how)) == expected
    again = dataframe(spark, items, "python")
    same = join(sales, items, on={"item": "item"}, how=how, spark=spark)
    assert len(rows(same)) == len(rows(frame.join(again, frame["item"] == again["item"], how)))


def test_fact_files_without_partner_are_not_read(spark: SparkSession, fact: Scan, items: Scan, tmp_path: Path) -> None:
    red = items.where("colour = 'red'").select("item")
    keyed = fact.prefilter("item", red)
    frame = dataframe(spark, keyed, "python", metrics_dir=tmp_path)
    assert frame.count() > 0
    metrics = reports_of(frame).total()
    assert metrics.data_files_pruned_by_runtime_filters == FILES - 1
    joined = join(fact, items.where("colour = 'red'"), on="item", spark=spark)
    assert "fact filtered by 10 collected keys of item" in explain_join(joined)
    assert "native reader, dead rows found by" in explain_join(joined)
    assert f"{FILES - 1} of {FILES} data files are left out in planning" in explain_join(joined)
    assert "expected to keep" in explain_join(joined)
    cut = join(fact, items.where("colour = 'red'"), on="item", spark=spark, limits=BuildLimits(max_rows=1))
    assert "ranges that statistics of the dimension give for item" in explain_join(cut)


@pytest.mark.slow
def test_limit_reached_means_no_filter_and_all_rows(spark: SparkSession, fact: Scan, items: Scan) -> None:
    expected = rows(dataframe(spark, fact, "python").join(dataframe(spark, items, "python"), "item"))
    for limits in (BuildLimits(max_rows=10), BuildLimits(max_bytes=64)):
        for dimension in (items, dataframe(spark, items)):
            found = join(fact, dimension, on="item", spark=spark, limits=limits)
            assert rows(found) == expected
            # statistics of the scan, which are asked before the limits, say that it has all keys
            reason = "according to statistics, the dimension may contain" if dimension is items else "the dimension"
            assert f"no filter by keys: {reason}" in explain_join(found)


@pytest.mark.slow
def test_joins_chain_and_all_of_their_keys_filter_the_fact(spark: SparkSession, fact: Scan, items: Scan) -> None:
    shops = spark.createDataFrame([("s1", "north"), ("s2", "south"), ("s9", None)], "shop string, region string")
    days = spark.createDataFrame([(1, "a"), (2, "b")], "qty int, day string")
    red = items.where("colour = 'red'")
    plain = dataframe(spark, fact, "python")
    for hows in (("inner", "inner", "left_semi"), ("left", "inner", "right"), ("right", "left_semi", "full")):
        expected = plain.join(dataframe(spark, red, "python"), "item", hows[0])
        expected = expected.join(shops, "shop", hows[1]).join(days, "qty", hows[2])
        found = join(fact, red, on="item", how=hows[0], spark=spark)
        found = join(join(found, shops, on="shop", how=hows[1]), days, on="qty", how=hows[2])
        assert rows(found) == rows(expected), hows
    assert explain_join(found).count("fact filtered by") == 2


@pytest.mark.slow
@pytest.mark.parametrize("first", ["right", "full"])
def test_keys_that_come_from_an_outer_dimension_are_not_those_of_the_fact(
    spark: SparkSession, fact: Scan, items: Scan, first: str
) -> None:
    sales, plain = fact.where("item < 20"), dataframe(spark, items, "python")
    blue = plain.where("item > 140").select("item")
    for how in ("inner", "left", "left_semi", "left_anti"):
        expected = dataframe(spark, sales, "python").join(blue, "item", first).join(plain, "item", how)
        found = join(join(sales, blue, on="item", how=first), items, on="item", how=how)
        assert rows(found) == rows(expected), how


@pytest.mark.slow
def test_keys_that_spark_casts_are_no_filter(spark: SparkSession, fact: Scan) -> None:
    texts = spark.createDataFrame([("1",), ("2",), (" 4 ",)], "item string")
    found = join(fact, texts, on="item")
    assert rows(found) == rows(dataframe(spark, fact, "python").join(texts, "item"))
    assert "Spark casts the keys" in explain_join(found)
    doubles = spark.createDataFrame([(1.0,), (2.5,)], "item double")
    assert rows(join(fact, doubles, on="item")) == rows(dataframe(spark, fact, "python").join(doubles, "item"))


@pytest.mark.slow
def test_wider_narrower_and_decimal_keys_filter_exactly(spark: SparkSession, fact: Scan) -> None:
    for kind in ("bigint", "decimal(10,2)", "smallint"):
        keys = spark.createDataFrame([(1,), (2,), (None,), (90,)], "item int").select(f.col("item").cast(kind))
        found = join(fact, keys, on="item", how="left_semi")
        assert rows(found) == rows(dataframe(spark, fact, "python").join(keys, "item", "left_semi")), kind
        assert "fact filtered by 4 collected keys" in explain_join(found)


def test_a_column_of_several_filters_is_told_once(spark: SparkSession, fact: Scan) -> None:
    few = spark.createDataFrame([(1,), (2,)], "item int")
    told = explain_join(join(join(fact, few, on="item"), few, on="item", reader="native"))
    assert "with conditions on item\n" in told


def test_mistakes_are_told(spark: SparkSession, fact: Scan, items: Scan) -> None:
    with pytest.raises(OptionError, match="the fact has no column 'itm'"):
        join(fact, items, on={"itm": "item"}, spark=spark)
    with pytest.raises(OptionError, match="the dimension has no column 'nr'"):
        join(fact, items, on={"item": "nr"}, spark=spark)
    with pytest.raises(OptionError, match="did you mean 'inner'"):
        join(fact, items, on="item", how="iner", spark=spark)
    with pytest.raises(OptionError, match="at least one column"):
        join(fact, items, on=[], spark=spark)
    with pytest.raises(OptionError, match="crossJoin"):
        join(fact, items, on="item", how="cross", spark=spark)
    with pytest.raises(OptionError, match="only a DataFrame that join"):
        explain_join(dataframe(spark, items))


def test_semi_join_of_a_scan_is_exact_in_spark(spark: SparkSession, fact: Scan, items: Scan) -> None:
    keyed = fact.semi_join("item", items.where("colour = 'red'").select("item")).select("sale")
    expected = sorted(keyed.to_table()["sale"].to_pylist())
    assert sorted(row["sale"] for row in dataframe(spark, keyed).collect()) == expected


def test_keys_that_arrive_late_help_the_tasks_of_later_stages(spark: SparkSession, fact: Scan, tmp_path: Path) -> None:
    late = LateKeys(tmp_path / "keys")
    frame = dataframe(spark, fact.prefilter("item", late), "python", metrics_dir=tmp_path / "reports")
    everything = frame.count()
    late.fill([5, 6])
    few = frame.count()
    assert 0 < few < everything
    assert {row["item"] for row in frame.filter("item in (5, 6)").collect()} == {5, 6}
    assert reports_of(frame).of_last_stage().row_groups_pruned_by_runtime_filters == FILES - 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["left", "left_anti", "full"])
def test_dimension_with_a_condition_is_not_read_in_python_where_it_filters_nothing(
    spark: SparkSession, fact: Scan, items: Scan, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    red = items.where("colour = 'red'")
    found = join(fact, red, on="item", how=how, spark=spark)
    found.explain()
    assert "BatchScan" not in capsys.readouterr().out, "a Python source"
    assert rows(found) == rows(dataframe(spark, fact, "python").join(dataframe(spark, red, "python"), "item", how))
    cut = join(fact, red, on="item", how=how, spark=spark, limits=BuildLimits(max_rows=1))
    assert rows(cut) == rows(found)


@pytest.mark.slow
def test_tasks_switch_a_filter_off_that_excludes_too_little(spark: SparkSession, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "even", [Column(1, "k", "long")])
    numbers = [2 * i for i in range(300_000)]
    for _ in range(5):
        builder.commit(builder.data({"k": numbers[::-1]}, row_group_size=100_000))
    even = scan_core.open_table(builder.metadata_path).scan()
    keys = spark.createDataFrame([(k,) for k in numbers[5_000:]], "k bigint")  # half of all numbers, as bounds tell it
    joined = join(even, keys, on="k", how="left_semi", reader="python")
    assert "rows (as long as it pays)" in explain_join(joined)
    assert joined.count() == 5 * 295_000
    assert "0 times a filter" not in explain_join(joined)
    assert "was switched off" in explain_join(joined)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["inner", "left_semi", "right"])
def test_a_join_reads_a_fact_with_late_keys_of_the_caller_through_both(
    spark: SparkSession, fact: Scan, items: Scan, how: str, tmp_path: Path
) -> None:
    late = LateKeys(tmp_path / "keys")
    joined = join(fact.prefilter("item", late), items, on="item", how=how, spark=spark, reader="python")
    plain = dataframe(spark, fact, "python").join(dataframe(spark, items, "python"), "item", how)
    assert rows(joined) == rows(plain)
    late.fill([5, 6, 7, 90])
    assert rows(joined.filter("item in (5, 6, 90)")) == rows(plain.filter("item in (5, 6, 90)"))
    late.fill([5, 90])
    assert rows(joined.filter("item in (5, 90)")) == rows(plain.filter("item in (5, 90)"))
    with_partner = {row[0] for row in rows(joined)} if how != "right" else {5, 90}
    assert {5, 90} <= with_partner <= {row[0] for row in rows(plain)}


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["python", "native"])
@pytest.mark.parametrize("name", ["b`t", "`", "a.b", "*", 'q"q', " a"])
def test_columns_of_any_name_can_be_the_key(spark: SparkSession, tmp_path: Path, name: str, reader: str) -> None:
    def table(folder: str, key: str, numbers: range) -> Scan:
        builder = TableBuilder(tmp_path / folder, [Column(1, key, "long"), Column(2, f"{folder}_text", "string")])
        builder.commit(builder.data({key: list(numbers), f"{folder}_text": [f"{folder}{n}" for n in numbers]}))
        builder.commit(builder.data({key: [n + 100 for n in numbers], f"{folder}_text": ["-"] * len(numbers)}))
        return scan_core.open_table(builder.metadata_path).scan()

    sales, goods = table("sales", name, range(20)), table("goods", name, range(5, 8))
    others = table("others", f"{name}2", range(5, 8))
    limits = BuildLimits()
    for dimension, on in ((goods, name), (others, {name: f"{name}2"}), (dataframe(spark, goods), name)):
        joined = join(sales, dimension, on=on, spark=spark, reader=reader, limits=limits)  # type: ignore[arg-type]
        text = [row for row in rows(joined.select("sales_text")) if row != ("-",)]
        assert text == [("sales5",), ("sales6",), ("sales7",)]
