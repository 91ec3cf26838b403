"""Runs in an environment of the peers: one engine answers queries, one a line, in a process of its own.

Start it as `python -m benchmarks.peer ENGINE`. A request is a JSON object {"sql": text with {table}, "metadata": an Iceberg metadata
file or null, "files": a folder of raw Parquet files or null}; the reply {"answer": rows, "seconds": float, "cpu": float} (0 for
Spark, whose Java runs elsewhere) or
{"error": text}. With `files` the engine reads raw Parquet, deleted rows too.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[list[Any]]
Ask = Callable[[str, "str | None", "str | None"], Rows]
Request = dict[str, Any]
Reply = Callable[[Request], dict[str, Any]]


def rows_of(table: Any) -> Rows:
    """The rows of an Arrow table; of many columns only their number, as fetching Python objects is not the engine's work."""
    return [[table.num_rows]] if table.num_columns > 4 else [list(row.values()) for row in table.to_pylist()]


def duckdb() -> Ask:
    import duckdb
    import duckdb_extension_avro
    import duckdb_extension_iceberg

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for package in (duckdb_extension_avro, duckdb_extension_iceberg):
        (extension,) = Path(package.__file__).parent.rglob("*.duckdb_extension")
        connection.execute(f"load '{extension}'")

    def ask(sql: str, metadata: str | None, files: str | None) -> Rows:
        table = f"iceberg_scan('{metadata}')" if metadata else f"read_parquet('{files}/*.parquet')"
        return rows_of(connection.execute(sql.format(table=table)).to_arrow_table())

    return ask


def clickhouse() -> Ask:
    import pyarrow as pa
    from chdb.session import Session

    session = Session()

    def ask(sql: str, metadata: str | None, files: str | None) -> Rows:
        folder = Path(metadata).parent.parent if metadata else None
        table = f"icebergLocal('{folder}')" if folder else f"file('{files}/*.parquet', Parquet)"
        reply = session.query(sql.format(table=table), "Arrow").bytes()
        return rows_of(pa.ipc.open_file(pa.py_buffer(reply)).read_all())

    return ask


def sail() -> Ask:
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer(port=0)
    server.start(background=True)
    address, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://{address}:{port}").getOrCreate()

    def ask(sql: str, metadata: str | None, files: str | None) -> Rows:
        if not server.running:  # also keeps the server from being collected
            raise RuntimeError("the Sail server has stopped")
        folder = str(Path(metadata).parent.parent) if metadata else None
        frame = spark.read.format("iceberg").load(folder) if folder else spark.read.parquet(str(files))
        frame.createOrReplaceTempView("peer")
        return rows_of(spark.sql(sql.format(table="peer")).toArrow())

    return ask


def polars() -> Ask:
    import polars as pl

    def ask(sql: str, metadata: str | None, files: str | None) -> Rows:
        frame = pl.scan_iceberg(metadata) if metadata else pl.scan_parquet(f"{files}/*.parquet")
        context = pl.SQLContext(frames={"peer": frame}, eager=False)
        return rows_of(context.execute(sql.format(table="peer")).collect().to_arrow())

    return ask


def pyiceberg() -> Ask:
    import duckdb
    from pyiceberg.table import StaticTable

    def ask(sql: str, metadata: str | None, files: str | None) -> Rows:
        assert metadata, f"PyIceberg reads tables, not the files in {files}"
        peer = StaticTable.from_metadata(metadata).scan().to_arrow()
        connection = duckdb.connect()
        connection.register("peer", peer)
        return rows_of(connection.execute(sql.format(table="peer")).to_arrow_table())

    return ask


def daft() -> Ask:
    import daft
    from pyiceberg.table import StaticTable

    def ask(sql: str, metadata: str | None, files: str | None) -> Rows:
        frame = (
            daft.read_iceberg(StaticTable.from_metadata(metadata))
            if metadata
            else daft.read_parquet(f"{files}/*.parquet")
        )
        return rows_of(daft.sql(sql.format(table="peer"), peer=frame).to_arrow())

    return ask


def datafusion() -> Ask:
    import pyarrow as pa
    from datafusion import SessionContext

    context = SessionContext()

    def ask(sql: str, metadata: str | None, files: str | None) -> Rows:
        if metadata:
            raise ValueError("DataFusion alone reads no Iceberg")
        context.deregister_table("peer")
        context.register_parquet("peer", str(files))
        return rows_of(pa.Table.from_batches(context.sql(sql.format(table="peer")).collect()))

    return ask


def spark() -> Ask:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0")
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )

    def ask(sql: str, metadata: str | None, files: str | None) -> Rows:
        frame = spark.read.format("iceberg").load(metadata) if metadata else spark.read.parquet(str(files))
        frame.createOrReplaceTempView("peer")
        return rows_of(spark.sql(sql.format(table="peer")).toArrow())

    return ask


ENGINES: dict[str, Callable[[], Ask]] = {
    "clickhouse": clickhouse,
    "daft": daft,
    "datafusion": datafusion,
    "duckdb": duckdb,
    "polars": polars,
    "pyiceberg": pyiceberg,
    "sail": sail,
    "spark": spark,
}


def timed(ask: Callable[[Request], Rows], *, is_all_here: bool = True) -> Reply:
    """What replies to a request with its answer and what that took; the CPU time is 0 unless all work `is_all_here`."""

    def reply(request: Request) -> dict[str, Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        answer = ask(request)
        taken = time.process_time() - cpu if is_all_here else 0
        return {"answer": answer, "seconds": time.perf_counter() - wall, "cpu": taken}

    return reply


def serve(engine: str, start: Callable[[], Reply]) -> None:
    """Start an engine and reply to requests, one a line, until standard input ends; what it raises is a reply, too."""
    replies = sys.stdout
    sys.stdout = sys.stderr
    reply = start()
    print(json.dumps({"ready": engine}), file=replies, flush=True)
    for line in sys.stdin:
        try:
            found = reply(json.loads(line))
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is its answer
            found = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(found, default=str), file=replies, flush=True)


def main(engine: str) -> None:
    """Serve one engine."""

    def start() -> Reply:
        ask = ENGINES[engine]()
        return timed(lambda r: ask(r["sql"], r["metadata"], r["files"]), is_all_here=engine != "spark")

    serve(engine, start)


if __name__ == "__main__":
    main(sys.argv[1])
