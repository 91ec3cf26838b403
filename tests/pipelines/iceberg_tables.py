"""A catalog in a folder and tables in it, for tests of the writing side."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.scan_core.model.schema import NestedField, parse_type


def catalog_in(folder: Path) -> Any:
    """An SQLite catalog with its warehouse in `folder`."""
    return open_catalog(parse("tables: {}", folder / "nevermore.yaml"))


def new_table(catalog: Any, columns: dict[str, str], *partition_by: tuple[str, str], name: str = "shop.t") -> Any:
    """An empty table; `columns` gives Iceberg types by name, ids from 1."""
    fields = [NestedField(i, n, parse_type(t)) for i, (n, t) in enumerate(columns.items(), start=1)]
    return create_table(catalog, name, fields, partition_by=partition_by)


def reloaded(catalog: Any, name: str = "shop.t") -> Any:
    """The table as the catalog has it now."""
    table = find_table(catalog, name)
    assert table is not None
    return table


def rows_of(table: Any, order: str = "id") -> list[dict[str, Any]]:
    """The live rows, as the reference finds them in the table's own files, ordered by a column."""
    found: pa.Table = live_rows(table.metadata_location.removeprefix("file://"))
    return found.sort_by(order).to_pylist() if order in found.column_names else found.to_pylist()
