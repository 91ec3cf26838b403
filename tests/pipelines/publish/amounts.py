"""A catalog with one published table of amounts by day and id, whose rows are written where the commit is made."""

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from nevermore.pipelines.config.project import parse
from nevermore.pipelines.config.published import PublishedPartition
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import FileLayout, RollingWriter
from nevermore.pipelines.publish.publish_commit import (
    PARTITIONS,
    Mode,
    Publication,
    Published,
    PublishedTarget,
    StagedSnapshot,
)
from nevermore.pipelines.publish.state import SOURCES, appended, partitions_json, remembered
from nevermore.scan_core import ContentFile, open_table

NAME = "shop.published"
KEYS = 5
FIRST, SECOND, THIRD = (dt.date(2026, 1, day) for day in (1, 2, 3))
COLUMNS = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("amount", pa.int64())])
LAYOUT = FileLayout(
    target_file_bytes=2**20, row_group_bytes=2**20, row_group_rows=1_000, page_rows=100, compression="zstd"
)


class Project:
    """A catalog with one published table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = parse("tables: {shop.orders: {source: {path: none}, key: [id]}}", folder / "nevermore.yaml")
        self.catalog = open_catalog(config)

    def publish(
        self,
        mode: Mode,
        day: dt.date,
        rows: Mapping[int, int],
        *,
        state: str = "1",
        key: tuple[str, ...] = ("id",),
        audit: Callable[[StagedSnapshot], None] | None = None,
        run: str = "run",
        column: str = "amount",
        properties: Mapping[str, str] | None = None,
    ) -> Published | None:
        """Publish amounts by id as a day's rows, made from a state of the mirrors; None for a repeated append."""
        columns = pa.schema([*list(COLUMNS)[:2], (column, pa.int64())])
        done = appended(self.table, state)
        if mode == "append" and (done.is_all or day.isoformat() in done.keys):
            return None
        target = PublishedTarget(
            self.catalog, NAME, iceberg_fields(columns), PublishedPartition.parse("day"), mode, key, properties or {}
        )
        table = pa.table([[day] * len(rows), list(rows), list(rows.values())], schema=columns)
        publication = Publication(
            target,
            {(day - dt.date(1970, 1, 1)).days},
            lambda table: appended(table, state) == done,
            remembered(state, [day.isoformat()]) if mode == "append" else {},
            audit,
        )
        told = {SOURCES: state, PARTITIONS: partitions_json([day.isoformat()])}

        def write(delta: RowDelta) -> list[ContentFile]:
            with RollingWriter(delta.target, delta.default_spec, LAYOUT, run) as writer:
                writer.write(table.to_batches())
            return list(writer.files)

        return publication.commit(write, told)

    def must_publish(self, mode: Mode, day: dt.date, rows: Mapping[int, int], **options: Any) -> Published:
        published = self.publish(mode, day, rows, **options)
        assert published is not None
        return published

    @property
    def table(self) -> Any:
        return find_table(self.catalog, NAME)

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        rows = open_table(self.table).scan().to_table().to_pylist()
        return sorted((row["day"].day, row["id"], row["amount"]) for row in rows)
