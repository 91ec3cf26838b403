"""Indexes of dead rows for tests: on tables of `TableBuilder`, whose history goes on afterwards."""

from collections.abc import Collection, Mapping
from typing import Any

from nevermore import scan_core
from nevermore.pipelines.iceberg.bitmap_indexes import with_statistics
from nevermore.pipelines.iceberg.dead_row_index import DeadRowReport, index_dead_rows
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.scan_core import ScanOptions, Table
from tests.support.table_builder import TableBuilder


class BuilderTarget:
    """A built table whose statistics entries can be changed."""

    def __init__(self, builder: TableBuilder) -> None:
        self._builder = builder
        self.storage = Storage()

    @property
    def folder(self) -> str:
        return str(self._builder.metadata_path.parent)

    def load(self) -> Table:
        return scan_core.open_table(str(self._builder.metadata_path))

    def set_statistics(self, base: Table, entry: Mapping[str, Any], superseded: Collection[str] = ()) -> None:
        path = base.metadata_path
        self._builder.edit(lambda document: document.update(with_statistics(document, entry, path, superseded)))


def index_built(builder: TableBuilder, options: ScanOptions | None = None) -> DeadRowReport:
    """Index the dead rows of a built table's current snapshot."""
    return index_dead_rows(BuilderTarget(builder), options=options)
