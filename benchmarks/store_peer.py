"""Runs in an environment of the peers: one engine reads raw Parquet files of an object store, one query a request.

Start it as `python store_peer.py ENGINE`. A request is a JSON object {"sql": text with {table}, "files": keys in the bucket,
"bucket": its name, "endpoint": URL of the server}; the reply {"answer": rows, "seconds": float, "cpu": float} or {"error": text}.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEY, SECRET, REGION = "reader", "no-secret", "us-east-1"
Rows = list[list[Any]]
Ask = Callable[[dict[str, Any]], Rows]


def rows_of(table: Any) -> Rows:
    """The rows of an Arrow table; of many columns only their number, as fetching Python objects is not the engine's work."""
    return [[table.num_rows]] if table.num_columns > 4 else [list(row.values()) for row in table.to_pylist()]


def urls(request: dict[str, Any]) -> list[str]:
    return [f"s3://{request['bucket']}/{file}" for file in request["files"]]


def duckdb() -> Ask:
    import duckdb
    import duckdb_extension_httpfs

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    (extension,) = Path(duckdb_extension_httpfs.__file__).parent.rglob("*.duckdb_extension")
    connection.execute(f"load '{extension}'")
    connection.execute("set enable_external_file_cache = false")  # every query begins with nothing, as ours does

    def ask(request: dict[str, Any]) -> Rows:
        place = request["endpoint"].removeprefix("http://")
        connection.execute(
            f"create or replace secret (type s3, key_id '{KEY}', secret '{SECRET}', region '{REGION}', "
            f"endpoint '{place}', use_ssl false, url_style 'path')"
        )
        sql = request["sql"].format(table=f"read_parquet({urls(request)})")
        return rows_of(connection.execute(sql).to_arrow_table())

    return ask


def clickhouse() -> Ask:
    import pyarrow as pa
    from chdb.session import Session

    session = Session()

    def ask(request: dict[str, Any]) -> Rows:
        names = ",".join(file.removesuffix(".parquet") for file in request["files"])
        url = f"{request['endpoint']}/{request['bucket']}/{{{names}}}.parquet"
        sql = request["sql"].format(table=f"s3('{url}', '{KEY}', '{SECRET}', 'Parquet')")
        return rows_of(pa.ipc.open_file(pa.py_buffer(session.query(sql, "Arrow").bytes())).read_all())

    return ask


def polars() -> Ask:
    import polars as pl

    def ask(request: dict[str, Any]) -> Rows:
        options = {
            "aws_endpoint_url": request["endpoint"],
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_region": REGION,
            "aws_allow_http": "true",
        }
        frame = pl.scan_parquet(urls(request), storage_options=options)
        context = pl.SQLContext(frames={"peer": frame}, eager=False)
        return rows_of(context.execute(request["sql"].format(table="peer")).collect().to_arrow())

    return ask


def datafusion() -> Ask:
    import pyarrow as pa
    from datafusion import SessionContext
    from datafusion.object_store import AmazonS3

    def ask(request: dict[str, Any]) -> Rows:
        context = SessionContext()  # which would remember the files' footers
        store = AmazonS3(
            request["bucket"],
            region=REGION,
            access_key_id=KEY,
            secret_access_key=SECRET,
            endpoint=request["endpoint"],
            allow_http=True,
        )
        context.register_object_store("s3://", store, request["bucket"])
        for number, url in enumerate(urls(request)):
            context.register_parquet(f"part{number}", url)
        parts = " union all ".join(f"select * from part{number}" for number in range(len(request["files"])))
        context.sql(f"create view peer as {parts}")
        return rows_of(pa.Table.from_batches(context.sql(request["sql"].format(table="peer")).collect()))

    return ask


ENGINES = {"clickhouse": clickhouse, "datafusion": datafusion, "duckdb": duckdb, "polars": polars}


def main(engine: str) -> None:
    """Answer until standard input ends."""
    replies = sys.stdout
    sys.stdout = sys.stderr
    ask = ENGINES[engine]()
    print(json.dumps({"ready": engine}), file=replies, flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            reply: dict[str, Any] = {"answer": ask(json.loads(line))}
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is its answer
            reply = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        reply |= {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(reply, default=str), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
