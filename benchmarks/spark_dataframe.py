"""DataFrames over a table with 1 M deleted rows: ours, native and python, beside Iceberg Java and plain Parquet.

All in one session of Spark 4.1, the newest that Iceberg Java has a runtime for, so this runs in the environment that
`make interop` makes. Our delete bits and indexes are built anew in every call. CPU time is that of the Java process
and its Python workers.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.interop_session import ICEBERG, cpu_seconds, is_inside, run_inside
from benchmarks.race import Answer, Goal, race, report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 5
SHAPE = "dense_ints"

QUERIES = {
    "count": "select count(*) from t",
    "aggregate": "select sum(v0), sum(v1), max(i0), max(s0) from t",
    "needle": "select * from t where s1 = 'city-77' and v0 < 20",
    "all columns": None,
}
MAX_OF_PARQUET = {"aggregate": 1.3, "all columns": 1.1}
FASTER_THAN_JAVA = {"count": 7.0, "aggregate": 4.0, "needle": 4.0, "all columns": 1.8}


def candidates(spark: "SparkSession", metadata: str, files: str) -> "dict[str, Callable[[str], DataFrame]]":
    """For each way to read: the DataFrame over the table, given a query's name."""
    from nevermore import scan_core
    from nevermore.scan_core.deletes.indexes import DELETE_CACHE
    from nevermore.scan_core.spark import native as native_reader
    from nevermore.scan_core.spark.frames import dataframe

    def native(_: str) -> "DataFrame":
        native_reader.forget()
        DELETE_CACHE.clear()
        return dataframe(spark, scan_core.open_table(metadata).scan(), reader="native")

    def python(name: str) -> "DataFrame":
        scan = scan_core.open_table(metadata).scan()
        match name:
            case "count":
                scan = scan.select("flag")
            case "aggregate":
                scan = scan.select("v0", "v1", "i0", "s0")
            case "needle":
                scan = scan.where("s1 = 'city-77' and v0 < 20")
        return dataframe(spark, scan, reader="python")

    return {
        "native": native,
        "python": python,
        "parquet": lambda _: spark.read.parquet(files),
        "iceberg_java": lambda _: spark.read.format("iceberg").load(metadata),
    }


def ask(spark: "SparkSession", read: "Callable[[str], DataFrame]", name: str) -> Answer:
    """Run one query over a new DataFrame; all columns are read to the end and dropped."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    frame = read(name)
    if QUERIES[name] is None:
        frame.write.format("noop").mode("overwrite").save()
        answer: Any = None
    else:
        frame.createOrReplaceTempView("t")
        rows = spark.sql(QUERIES[name]).collect()
        answer = sorted(map(str, rows)) if name == "needle" else [list(row) for row in rows]
    return Answer(answer, time.perf_counter() - wall, cpu_seconds() - cpu)


def measure(rounds: int, names: list[str]) -> None:
    """Race every query."""
    from benchmarks.peers import raw_files
    from benchmarks.shapes import DATA, build
    from nevermore.scan_core.spark.session import spark_session

    table = build(SHAPE)
    metadata = str(table.metadata_location).removeprefix("file://")
    files = raw_files(table, DATA / f"raw_{SHAPE}")
    spark = spark_session(
        "spark_dataframe",
        master="local[2]",
        config={"spark.jars.packages": ICEBERG, "spark.driver.memory": "4g"},
    )
    try:
        ways = candidates(spark, metadata, files)
        for name in names:
            runs = {way: partial(ask, spark, read, name) for way, read in ways.items()}
            # parquet reads deleted rows too, so its answers differ
            living = {way: runs[way]().value for way in runs if way != "parquet"}
            if len({str(_rounded(value)) for value in living.values()}) > 1:
                raise SystemExit(f"{name}: the answers differ: {living}")
            timings = race(runs, rounds, same=False)
            goals = [Goal(ours, "iceberg_java", 1 / FASTER_THAN_JAVA[name]) for ours in ("native", "python")]
            goals += [Goal("native", "parquet", MAX_OF_PARQUET.get(name)), Goal("python", "parquet")]
            report(f"Spark DataFrame: {name}", timings, "native", goals)
    finally:
        spark.stop()


def _rounded(value: Any) -> Any:
    from benchmarks.race import rounded

    return rounded(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("queries", nargs="*", default=list(QUERIES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if not is_inside():
        run_inside("benchmarks.spark_dataframe")
        raise SystemExit(0)
    measure(arguments.rounds, arguments.queries)
