"""Read an Iceberg table with deletes in pandas, Polars and DuckDB: python read.py FOLDER."""

import sys

import duckdb
import polars as pl

from nevermore import scan_core
from nevermore.scan_core.polars import scan_iceberg

place = sys.argv[1]
scan = scan_core.open_table(place).scan()
print(scan.count(), "rows;", scan.metrics.rows_removed_by_equality_deletes, "removed by equality deletes")

print(scan.where("id > 0").limit(5).to_pandas())

print(scan_iceberg(place).filter(pl.col("id") > 0).select("id").head(5).collect())

connection = duckdb.connect()
scan.to_duckdb("rows", connection)
print(connection.sql("select count(*) from rows").fetchall())
