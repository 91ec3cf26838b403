"""Scans of a small table with deletes."""

from pathlib import Path
from typing import Any

from nevermore import scan_core
from nevermore.scan_core import (
    Scan,
    ScanOptions,
)
from tests.support.iceberg_json import Column
from tests.support.table_builder import BuiltFile, TableBuilder

COLUMNS = (Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "qty", "int"))


def rows_of(scan: Scan) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in scan.to_table().to_pylist()), key=repr)


def scan_of(table: TableBuilder, **options: Any) -> Scan:
    return scan_core.open_table(table.metadata_path).scan().with_options(ScanOptions.of(**options))


def rows(ids: range | list[int]) -> dict[str, list[Any]]:
    return {"id": list(ids), "name": [f"n{i % 3}" for i in ids], "qty": [i % 5 for i in ids]}


def with_deletes(path: Path, **options: Any) -> tuple[TableBuilder, BuiltFile]:
    """Rows 0..9; 2 dies by position, 4 and 5 by key, 5 is written again."""
    table = TableBuilder(path, COLUMNS, **options)
    first = table.data(rows(range(10)))
    table.commit(first)
    table.commit(table.position_delete([(first, 2)]))
    table.commit(table.data(rows([5])), table.equality_delete({"id": [4, 5]}, ids=[1]))
    return table, first


def many_row_groups(path: Path) -> TableBuilder:
    table = TableBuilder(path, COLUMNS)
    first = table.data(rows(range(4000)), row_group_size=500, write_page_index=True, data_page_size=256)
    table.commit(first)
    table.commit(
        table.equality_delete({"id": list(range(0, 4000, 3))}, ids=[1]),
        table.equality_delete({"name": ["n1"], "qty": [2]}, ids=[2, 3]),
        table.position_delete([(first, p) for p in range(700, 2100)]),
    )
    return table
