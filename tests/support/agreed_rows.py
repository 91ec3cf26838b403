"""The rows of a test table, on which the engine, with and without its optimisations, and the reference agree."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.scan_core import Scan, ScanOptions
from tests.support.table_builder import TableBuilder

Rows = list[tuple[Any, ...]]


def rows_of(table: TableBuilder | Path, relocate: Mapping[str, str] | None = None) -> Rows:
    """The rows as tuples, sorted, which are the same however they are found and counted, and as the reference has them."""
    path = table.metadata_path if isinstance(table, TableBuilder) else table
    scan = scan_core.open_table(path, relocate=relocate).scan()
    found = scanned_rows(scan)
    assert scanned_rows(scan.with_options(ScanOptions.without_optimisations())) == found
    assert scan.count() == len(found)
    assert _sorted(live_rows(path, relocate=relocate)) == found
    return found


def scanned_rows(scan: Scan) -> Rows:
    """The rows of a scan as tuples, sorted."""
    return _sorted(scan.to_table())


def _sorted(rows: pa.Table) -> Rows:
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=repr)
