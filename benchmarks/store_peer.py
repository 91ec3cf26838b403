"""Runs in an environment of the peers: one engine reads raw Parquet files of an object store, one query a request.

Start it as `python -m benchmarks.store_peer ENGINE`. A request is a JSON object {"sql": text with {table}, "files": keys in the bucket,
"bucket": its name, "endpoint": URL of the server}; the reply {"answer": rows, "seconds": float, "cpu": float} or {"error": text}.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peer import Request, Rows, rows_of, serve, timed

KEY, SECRET, REGION = "reader", "no-secret", "us-east-1"


def urls(request: Request) -> list[str]:
    return [f"s3://{request['bucket']}/{file}" for file in request["files"]]


def duckdb() -> Callable[[Request], Rows]:
    import duckdb
    import duckdb_extension_httpfs

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    (extension,) = Path(duckdb_extension_httpfs.__file__).parent.rglob("*.duckdb_extension")
    connection.execute(f"load '{extension}'")
    connection.execute("set enable_external_file_cache = false")  # every query begins with nothing, as ours does

    def ask(request: Request) -> Rows:
        place = request["endpoint"].removeprefix("http://")
        connection.execute(
            f"create or replace secret (type s3, key_id '{KEY}', secret '{SECRET}', region '{REGION}', "
            f"endpoint '{place}', use_ssl false, url_style 'path')"
        )
        sql = request["sql"].format(table=f"read_parquet({urls(request)})")
        return rows_of(connection.execute(sql).to_arrow_table())

    return ask


def clickhouse() -> Callable[[Request], Rows]:
    import pyarrow as pa
    from chdb.session import Session

    session = Session()

    def ask(request: Request) -> Rows:
        names = ",".join(file.removesuffix(".parquet") for file in request["files"])
        url = f"{request['endpoint']}/{request['bucket']}/{{{names}}}.parquet"
        sql = request["sql"].format(table=f"s3('{url}', '{KEY}', '{SECRET}', 'Parquet')")
        return rows_of(pa.ipc.open_file(pa.py_buffer(session.query(sql, "Arrow").bytes())).read_all())

    return ask


def polars() -> Callable[[Request], Rows]:
    import polars as pl

    def ask(request: Request) -> Rows:
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


def datafusion() -> Callable[[Request], Rows]:
    import pyarrow as pa
    from datafusion import SessionContext
    from datafusion.object_store import AmazonS3

    def ask(request: Request) -> Rows:
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


if __name__ == "__main__":
    serve(sys.argv[1], lambda: timed(ENGINES[sys.argv[1]]()))
