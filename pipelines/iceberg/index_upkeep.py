"""Keeps the indexes of a table up to date after its commits, as its config says.

A failure is reported and never stops the caller: the rows are committed, and scans do without an index.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nevermore.pipelines.config.tables import IndexConfig, TableConfig
from nevermore.pipelines.errors import ConfigError, describe
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes, indexed_fields
from nevermore.pipelines.iceberg.parquet_output import can_have_bloom_filter
from nevermore.pipelines.wording import counted
from nevermore.scan_core import ScanError, ScanOptions, StructType, Table
from nevermore.scan_core.parts import INDEX_SUFFIX, is_indexable, late_filters

if TYPE_CHECKING:
    from pyiceberg.table import Table as CatalogTable

_log = logging.getLogger(__name__)
_COUNTED = ("added-records", "added-equality-deletes", "added-position-deletes")


@dataclass(slots=True)
class IndexUpdate:
    """What was done for the indexes of a table. Mutable while it runs.

    Attributes:
        chosen: columns that `bitmap: auto` has chosen.
        built: new bitmap indexes, one for each column and data file.
        skipped: columns of data files that cannot have one.
        waiting_rows: rows and deletes that wait for the next update.
        every_rows: number of rows and deletes at which it comes.
        seconds: time taken.
        warnings: why an index could not be updated.
    """

    chosen: tuple[str, ...] = ()
    built: int = 0
    skipped: int = 0
    waiting_rows: int = 0
    every_rows: int = 1
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def lines(self) -> Iterator[str]:
        """What was done, as text; warnings are separate."""
        if self.built or self.skipped:
            chosen = f" of {', '.join(self.chosen)}" if self.chosen else ""
            skipped = f" ({self.skipped:,} impossible)" if self.skipped else ""
            yield (
                f"indexes updated in {self.seconds:.1f} s: {counted(self.built, 'bitmap index')}{chosen} built{skipped}"
            )
        if self.waiting_rows:
            yield (
                f"{self.waiting_rows:,} rows and deletes are not in the indexes yet; they are updated after "
                f"{self.every_rows:,} (every_rows)"
            )

    def as_metadata(self) -> dict[str, str | int]:
        """For the metadata of a materialization."""
        text = "; ".join((*self.lines, *self.warnings))
        return {"indexes": text or "up to date", "index warnings": len(self.warnings)}

    def add(self, later: "IndexUpdate") -> None:
        """Continue with a later update of the same table."""
        self.chosen = later.chosen or self.chosen
        self.built += later.built
        self.seconds += later.seconds
        self.skipped, self.waiting_rows, self.every_rows = later.skipped, later.waiting_rows, later.every_rows
        self.warnings = (*self.warnings, *(w for w in later.warnings if w not in self.warnings))


def keep_indexes(handle: "CatalogTable", config: IndexConfig | None, options: ScanOptions) -> IndexUpdate | None:
    """Update the indexes of a table if enough was committed since the last update; None if the config has none.

    Args:
        handle: the table.
        config: its indexes.
        options: limits for reading the new files.
    """
    if config is None:
        return None
    began = time.monotonic()
    update = IndexUpdate(every_rows=config.every_rows)
    try:
        target = CatalogTarget(handle)
        table = target.load()
        update.warnings += tuple(_unusable_bloom_columns(table, config))
        if not config.bitmap:
            return update
        waiting = _rows_since_update(table)
        if waiting is not None and waiting < config.every_rows:
            update.waiting_rows = waiting
            return update
        _update(target, table, config, options, update)
    except Exception as error:  # noqa: BLE001 - the rows are committed, whatever happens to their indexes
        update.warnings += (describe(error),)
        _log.warning("indexes were not updated", exc_info=error)
    update.seconds = time.monotonic() - began
    return update


def keep_mirror_indexes(table: "CatalogTable", config: TableConfig) -> IndexUpdate | None:
    """The same for a mirror, with the memory that its config allows; None if no index is kept."""
    return keep_indexes(table, config.index, ScanOptions(memory_limit_bytes=config.memory_limit_bytes))


def _update(
    target: CatalogTarget, table: Table, config: IndexConfig, options: ScanOptions, update: IndexUpdate
) -> None:
    columns = []
    if config.bitmap == "auto":
        update.chosen = observed_columns(table)
    for name in update.chosen if config.bitmap == "auto" else config.bitmap:
        try:
            indexed_fields(table.metadata.schema, [name], case_sensitive=options.case_sensitive)
        except (ConfigError, ScanError) as error:  # the other columns still get theirs
            update.warnings += (f"index.bitmap: {error}",)
        else:
            columns.append(name)
    if columns:
        bitmaps = build_indexes(target, columns, max_values=config.max_values, options=options)
        update.built, update.skipped = bitmaps.built, len(bitmaps.skipped)


_MAX_CHOSEN = 8
"""An index takes a small part of a column's size, but also reads the column of every new file."""
_MIN_REMOVED_SHARE = 0.25


def observed_columns(table: Table) -> tuple[str, ...]:
    """The columns that can have a bitmap index and whose filters removed most rows by value, at most 8.

    Of observations on this host only; columns with too many values in a file are left out when that file is indexed.
    """
    schema = table.metadata.schema
    names: list[str] = []
    for found in late_filters(table.location):
        if found.removed < _MIN_REMOVED_SHARE * found.rows or len(names) == _MAX_CHOSEN:
            continue
        try:
            path = schema.path(found.field_id)
        except (ScanError, KeyError):
            continue  # dropped since
        if is_indexable(path[-1].type) and all(isinstance(f.type, StructType) for f in path[:-1]):
            names.append(".".join(f.name for f in path))
    return tuple(names)


def _unusable_bloom_columns(table: Table, config: IndexConfig) -> Iterator[str]:
    for name in config.bloom:
        column = next((f for f in table.metadata.schema.fields if f.name == name), None)
        if column is None:
            names = ", ".join(table.metadata.schema.names)
            yield f"index.bloom: the table has no column {name!r}; it has {names}"
        elif not can_have_bloom_filter(column):
            yield f"index.bloom: column {name!r} of type {column.type} cannot have a Bloom filter"


def _rows_since_update(table: Table) -> int | None:
    """Rows and deletes committed after the last snapshot with an index; None if that is not known."""
    metadata = table.metadata
    if metadata.current_snapshot_id is None:
        return 0
    indexed = {
        entry.get("snapshot-id")
        for entry in metadata.statistics
        if str(entry.get("statistics-path")).endswith(INDEX_SUFFIX)
    }
    total = 0
    for snapshot in metadata.ancestors(metadata.current_snapshot_id):
        if snapshot.snapshot_id in indexed:
            return total
        counts = [snapshot.summary.get(name, "0") for name in _COUNTED]
        if not all(text.isdecimal() for text in counts):
            return None
        total += sum(map(int, counts))
    return total if snapshot.parent_id is None else None
