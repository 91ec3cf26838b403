"""Runs in an environment of the peers: one engine merges batches of changes into Iceberg tables, by key, one a request.

Start it as `python -m benchmarks.merge_peer spark` (Iceberg Java, `MERGE INTO`) or `dlt` (`merge` with strategy `upsert`, table format
Iceberg). A request is a JSON object {"base": Parquet file, "changes": Parquet file, "folder": where the new table goes,
"mode": of Spark}, both files with columns id and name; the reply {"answer": [rows, sum of ids, changed rows], "seconds", "cpu"}
of the merge alone, or {"error": text}.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peer import serve

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
CHANGED = "changed"
TICKS = os.sysconf("SC_CLK_TCK")
Merge = Callable[[dict[str, str]], dict[str, Any]]


def process_seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def timed(run: Callable[[], object], pids: list[int]) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), sum(map(process_seconds, pids))
    run()
    return {"seconds": time.perf_counter() - wall, "cpu": sum(map(process_seconds, pids)) - cpu}


def spark() -> Merge:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.jars.packages", RUNTIME)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    pids = [os.getpid(), session.sparkContext._gateway.proc.pid]  # noqa: SLF001 - the JVM does the work

    def merge(request: dict[str, str]) -> dict[str, Any]:
        name = Path(request["folder"]).name.replace("-", "_")
        session.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        session.conf.set(f"spark.sql.catalog.{name}.type", "hadoop")
        session.conf.set(f"spark.sql.catalog.{name}.warehouse", request["folder"])
        table = f"{name}.db.t"
        properties = f"'format-version'='2', 'write.merge.mode'='{request['mode']}'"
        session.sql(f"CREATE TABLE {table} (id bigint, name string) USING iceberg TBLPROPERTIES ({properties})")
        session.read.parquet(request["base"]).writeTo(table).append()
        session.read.parquet(request["changes"]).createOrReplaceTempView("changes")
        text = (
            f"MERGE INTO {table} t USING changes s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        taken = timed(lambda: session.sql(text).collect(), pids)
        (row,) = session.sql(f"SELECT count(*), sum(id), count_if(name = '{CHANGED}') FROM {table}").collect()
        session.sql(f"DROP TABLE {table} PURGE")
        return {"answer": list(row), **taken}

    return merge


def dlt() -> Merge:
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    import dlt as tool
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from dlt.common.libs.pyiceberg import get_iceberg_tables

    def merge(request: dict[str, str]) -> dict[str, Any]:
        folder = request["folder"]
        pipeline = tool.pipeline(
            Path(folder).name,
            pipelines_dir=f"{folder}/state",
            destination=tool.destinations.filesystem(f"file://{folder}/lake"),
            dataset_name="peer",
        )

        def load(path: str, disposition: object) -> None:
            rows = tool.resource(
                lambda: iter([pq.read_table(path)]),
                name="t",
                primary_key="id",
                write_disposition=disposition,
                table_format="iceberg",
            )
            pipeline.run(rows, loader_file_format="parquet")

        load(request["base"], "append")
        upsert = {"disposition": "merge", "strategy": "upsert"}
        taken = timed(lambda: load(request["changes"], upsert), [os.getpid()])
        rows: pa.Table = get_iceberg_tables(pipeline, "t")["t"].scan().to_arrow()
        changed = pc.sum(pc.equal(rows.column("name"), CHANGED)).as_py()
        return {"answer": [rows.num_rows, pc.sum(rows.column("id")).as_py(), changed], **taken}

    return merge


ENGINES = {"spark": spark, "dlt": dlt}


if __name__ == "__main__":
    serve(sys.argv[1], ENGINES[sys.argv[1]])
