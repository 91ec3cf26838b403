"""Small tables to fall into traps with."""

from collections.abc import Callable
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]
KEY, NAME = COLUMNS[:1], COLUMNS[1:]
FORMATS = ["parquet", "orc", "avro"]

every_format = pytest.mark.parametrize("file_format", FORMATS)
Build = Callable[..., TableBuilder]


def scan_of(table: TableBuilder, **options: Any) -> Scan:
    return scan_core.open_table(table.metadata_path).scan().with_options(ScanOptions.of(**options))


def three_rows(table: TableBuilder, **options: Any) -> Any:
    return table.data({"id": [1, 2, None], "name": ["a", None, "c"]}, **options)
