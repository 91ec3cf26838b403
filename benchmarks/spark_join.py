"""A join of 204,000 items with their inventory in Spark: through our join, as plain DataFrames of ours, by Iceberg Java.

The experiment of `runtime_filter.py`, all in one session of Spark 4.1; plain Parquet files beside them where nothing is
deleted. Every call plans, collects the build side and indexes it anew.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.interop_session import ICEBERG, cpu_seconds, is_inside, run_inside
from benchmarks.race import Answer, Goal, race, report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 5
SHARES = (1.0, 0.1, 0.001)
CASES = (("clustered", False), ("clustered", True), ("random", False), ("skewed", False))
"""Order of the inventory, and whether a million of its rows are deleted."""


def ways(spark: "SparkSession", layout: str, share: float, *, deletes: bool) -> "dict[str, Callable[[], DataFrame]]":
    """The join as each of the candidates makes it."""
    import scan_core
    from benchmarks.peers import raw_files
    from benchmarks.shapes import DATA
    from benchmarks.star_tables import ITEMS, inventory, items
    from scan_core.distribute.spark import dataframe, join

    last = round(ITEMS * share)
    facts = str(inventory(layout, deletes=deletes).metadata_location).removeprefix("file://")
    dimension = str(items().metadata_location).removeprefix("file://")
    on = {"inv_item_sk": "i_item_sk"}

    def scans() -> tuple[Any, Any]:
        fact = scan_core.open_table(facts).scan().select("inv_item_sk", "inv_quantity")
        return fact, scan_core.open_table(dimension).scan().select("i_item_sk").where(f"i_item_sk <= {last}")

    def filtered() -> "DataFrame":
        fact, item = scans()
        return join(fact, item, on=on, spark=spark)

    def plain() -> "DataFrame":
        fact, item = scans()
        left, right = dataframe(spark, fact), dataframe(spark, item)
        return left.join(right, left["inv_item_sk"] == right["i_item_sk"])

    def of_frames(read: "Callable[[str, str], DataFrame]") -> "DataFrame":
        left, right = read(facts, layout), read(dimension, "item")
        return left.join(right.filter(f"i_item_sk <= {last}"), left["inv_item_sk"] == right["i_item_sk"])

    found: dict[str, Callable[[], DataFrame]] = {
        "join": filtered,
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


def measure(shares: Sequence[float], rounds: int) -> None:
    """Race every case."""
    from scan_core.distribute.spark_session import spark_session

    config = {"spark.jars.packages": ICEBERG, "spark.driver.memory": "4g"}
    spark = spark_session("spark_join", master="local[2]", config=config)
    try:
        for layout, deletes in CASES:
            for share in shares:
                runs = {name: partial(ask, make) for name, make in ways(spark, layout, share, deletes=deletes).items()}
                title = f"Spark join: {layout}, selectivity {share}{', 1 M deletes' if deletes else ''}"
                goals = [Goal("join", "plain join", 1.02 if share == 1.0 else None), Goal("join", "iceberg_java")]
                report(title, race(runs, rounds), "join", goals)
    finally:
        spark.stop()


if __name__ == "__main__":
    if not is_inside():
        run_inside("benchmarks.spark_join")
        raise SystemExit(0)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    measure(arguments.shares, arguments.rounds)
