"""Every kind of rows that programs hand over."""

from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

KINDS: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "reader": pa.Table.to_reader,
    "batch": lambda table: table.to_batches()[0],
    "pandas": pa.Table.to_pandas,
    "polars": pl.from_arrow,
    "duckdb": duckdb.from_arrow,
    "dicts": pa.Table.to_pylist,
}
