"""Runs in an environment of the peers: one engine merges a batch of changes into an Iceberg table, by key.

Start it as `python merge_peer.py ENGINE BASE CHANGES FOLDER ROUNDS`, ENGINE being `spark` (Iceberg Java, `MERGE INTO`) or `dlt`
(`merge` with strategy `upsert`, table format Iceberg). BASE and CHANGES are Parquet files with columns id and name. Prints
a JSON list with wall and CPU seconds of each round, the first of which, in a table of its own, does not count.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
TICKS = os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def timed(run: Callable[[], object], pids: list[int]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), sum(map(process_seconds, pids))
    run()
    return {"seconds": time.perf_counter() - wall, "cpu": sum(map(process_seconds, pids)) - cpu}


def spark(base: str, changes: str, folder: str, rounds: int, mode: str) -> list[dict[str, float]]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.jars.packages", RUNTIME)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.catalog.peer", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.peer.type", "hadoop")
        .config("spark.sql.catalog.peer.warehouse", folder)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    pids = [os.getpid(), session.sparkContext._gateway.proc.pid]  # noqa: SLF001 - the JVM does the work
    taken = []
    for number in range(rounds + 1):
        table = f"peer.db.t{number}"
        session.sql(
            f"CREATE TABLE {table} (id bigint, name string) USING iceberg TBLPROPERTIES ('write.merge.mode'='{mode}')"
        )
        session.read.parquet(base).writeTo(table).append()
        session.read.parquet(changes).createOrReplaceTempView("changes")
        merge = (
            f"MERGE INTO {table} t USING changes s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        taken.append(timed(lambda text=merge: session.sql(text).collect(), pids))
    session.stop()
    return taken


def dlt(base: str, changes: str, folder: str, rounds: int) -> list[dict[str, float]]:
    import dlt as tool
    import pyarrow.parquet as pq

    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    taken = []
    for number in range(rounds + 1):
        place = f"{folder}/{number}"
        pipeline = tool.pipeline(
            f"merge_{number}",
            pipelines_dir=f"{place}/state",
            destination=tool.destinations.filesystem(f"file://{place}/lake"),
            dataset_name="peer",
        )

        def load(path: str, disposition: object, pipeline: object = pipeline) -> None:
            rows = tool.resource(
                lambda: iter([pq.read_table(path)]),
                name="t",
                primary_key="id",
                write_disposition=disposition,
                table_format="iceberg",
            )
            pipeline.run(rows, loader_file_format="parquet")  # type: ignore[attr-defined] # a dlt pipeline

        load(base, "append")
        merge = {"disposition": "merge", "strategy": "upsert"}
        taken.append(timed(lambda load=load, merge=merge: load(changes, merge), [os.getpid()]))
    return taken


def main() -> None:
    engine, base, changes, folder, rounds = sys.argv[1:6]
    if engine == "dlt":
        taken = dlt(base, changes, folder, int(rounds))
    else:
        taken = spark(base, changes, folder, int(rounds), engine.removeprefix("spark-"))
    print("\n" + json.dumps(taken[1:]))


if __name__ == "__main__":
    main()
