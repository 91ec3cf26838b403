"""The changes of a small table as rows."""

from typing import Any

from nevermore import scan_core
from nevermore.scan_core import Scan
from nevermore.scan_core.diff import Changes
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


def scan_of(table: TableBuilder) -> Scan:
    return scan_core.open_table(table.metadata_path).scan()


def rows_of(changes: Changes) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in changes.to_table().to_pylist()), key=repr)


def changes_of(table: TableBuilder, start: int | None, end: int | None = None, **options: Any) -> list[tuple[Any, ...]]:
    changes = scan_of(table).changes(start, end, **options)
    found = rows_of(changes)
    alone = [("delete", *r) for r in rows_of(changes.deletes)] + [("insert", *r) for r in rows_of(changes.inserts)]
    assert sorted(alone, key=repr) == found
    assert changes.count() == len(found)
    return found


def rows(**names: int) -> dict[str, list[Any]]:
    return {"id": list(names.values()), "name": list(names)}
