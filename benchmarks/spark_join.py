"""A join of 204,000 items with their inventory in Spark: by our `sql`, as plain DataFrames of ours, by Iceberg Java.

The experiment of `runtime_filter.py`, all in one session of Spark 4.1; plain Parquet files beside them where nothing is
deleted. Every call plans, collects the build side and indexes it anew. The other way round, the inventory has the
condition and the items are looked up; a star joins it with rare items and a few days.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.interop_session import ICEBERG, cpu_seconds, is_inside, run_inside
from benchmarks.race import Answer, Goal, race, report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 5
SHARES = (1.0, 0.1, 0.001)
CASES = (("clustered", False), ("clustered", True), ("half_clustered", False), ("random", False), ("skewed", False))
"""Order of the inventory, and whether a million of its rows are deleted."""
Shape = Literal["small build", "large build", "star"]
"""Which side has the condition: the items, the inventory, or items and days."""
_RARE = "i_item_sk between 100001 and 100100"
_DAYS = tuple(range(2_450_815, 2_450_820))


def ways(
    spark: "SparkSession", layout: str, share: float, *, deletes: bool, shape: Shape = "small build"
) -> "dict[str, Callable[[], DataFrame]]":
    """The join as each of the candidates makes it."""
    from benchmarks.peers import raw_files
    from benchmarks.shapes import DATA
    from benchmarks.star_tables import ITEMS, inventory, items
    from nevermore import scan_core
    from nevermore.scan_core.spark import dataframe, sql

    last = round(ITEMS * share)
    of_items = {"small build": f"i_item_sk <= {last}", "star": _RARE}.get(shape)
    of_facts = f"inv_item_sk <= {last}" if shape == "large build" else None
    columns = ["inv_item_sk", "inv_quantity", *(["inv_date_sk"] if shape == "star" else [])]
    facts = str(inventory(layout, deletes=deletes).metadata_location).removeprefix("file://")
    dimension = str(items().metadata_location).removeprefix("file://")
    days = spark.createDataFrame([(day,) for day in _DAYS], "inv_date_sk int") if shape == "star" else None

    def scans() -> tuple[Any, Any]:
        fact = scan_core.open_table(facts).scan().select(*columns)
        item = scan_core.open_table(dimension).scan().select("i_item_sk")
        return fact if of_facts is None else fact.where(of_facts), item if of_items is None else item.where(of_items)

    def filtered() -> "DataFrame":
        fact, item = scans()
        text = "select f.* from facts f join items i on f.inv_item_sk = i.i_item_sk"
        if days is not None:
            days.createOrReplaceTempView("few_days")
            text += " join few_days d on d.inv_date_sk = f.inv_date_sk"
        where = [condition for condition in (of_facts, of_items) if condition is not None]
        text += f" where {' and '.join(where)}" if where else ""
        tables = {"facts": fact.table, "items": item.table}
        return sql(spark, text, tables)

    def joined_by_spark(left: "DataFrame", right: "DataFrame") -> "DataFrame":
        joined = left.join(right, left["inv_item_sk"] == right["i_item_sk"])
        return joined if days is None else joined.join(days, "inv_date_sk")

    def plain() -> "DataFrame":
        fact, item = scans()
        return joined_by_spark(dataframe(spark, fact), dataframe(spark, item))

    def of_frames(read: "Callable[[str, str], DataFrame]") -> "DataFrame":
        left, right = read(facts, layout), read(dimension, "item")
        return joined_by_spark(left.filter(of_facts or "true"), right.filter(of_items or "true"))

    found: dict[str, Callable[[], DataFrame]] = {
        "sql": filtered,
        "plain join": plain,
        "iceberg_java": lambda: of_frames(lambda metadata, _: spark.read.format("iceberg").load(metadata)),
    }
    if not deletes:
        raw_files(inventory(layout), DATA / f"raw_star_{layout}")
        raw_files(items(), DATA / "raw_star_item")
        found["parquet"] = lambda: of_frames(lambda _, name: spark.read.parquet(str(DATA / f"raw_star_{name}")))
    return found


def ask(make: "Callable[[], DataFrame]") -> Answer:
    """Join, count and add up."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    row = make().selectExpr("count(*)", "sum(inv_quantity)").collect()[0]
    return Answer([int(v or 0) for v in row], time.perf_counter() - wall, cpu_seconds() - cpu)


def measure(cases: Sequence[str], shares: Sequence[float], rounds: int) -> None:
    """Race every case."""
    from nevermore.scan_core.spark.session import spark_session

    config = {"spark.jars.packages": ICEBERG, "spark.driver.memory": "4g"}
    spark = spark_session("spark_join", master="local[2]", config=config)
    try:
        for layout, deletes in CASES:
            if layout in cases:
                for share in shares:
                    _race(spark, layout, share, rounds, deletes=deletes)
        for share in (min(shares), max(shares)):
            _race(spark, "clustered", share, rounds, shape="large build")
        if "skewed" in cases:
            _race(spark, "skewed", 1.0, rounds, shape="star")
    finally:
        spark.stop()


def _race(
    spark: "SparkSession",
    layout: str,
    share: float,
    rounds: int,
    *,
    deletes: bool = False,
    shape: Shape = "small build",
) -> None:
    found = ways(spark, layout, share, deletes=deletes, shape=shape)
    runs = {name: partial(ask, make) for name, make in found.items()}
    what = {"small build": "", "large build": "large build side, ", "star": "star of two joins, "}[shape]
    part = "rare items" if shape == "star" else f"selectivity {share}"
    title = f"Spark join: {what}{layout}, {part}{', 1 M deletes' if deletes else ''}"
    goals = [
        Goal("sql", "plain join", 1.02 if share == 1.0 and shape == "small build" else None),
        Goal("sql", "iceberg_java"),
    ]
    report(title, race(runs, rounds), "sql", goals)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES))
    parser.add_argument("--layouts", nargs="*", default=list(dict.fromkeys(layout for layout, _ in CASES)))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if not is_inside():
        run_inside("benchmarks.spark_join")
        raise SystemExit(0)
    measure(arguments.layouts, arguments.shares, arguments.rounds)
