"""Rows that arrive bit by bit, written into data files of a chosen size, one row group in memory at a time.

For tasks that do not know how many rows they will get. Files carry what those of `table_writer.py` carry: field ids,
page index, complete statistics. If anything fails on the way, what was written is removed.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from pipelines.tables.file_metrics import FileContent, WrittenFile, nan_counts, parquet_metrics
from pipelines.tables.parquet_output import ParquetOutput
from pipelines.tables.partitioning import PartitionedRows, split_by_partition
from pipelines.tables.row_shape import conform
from pipelines.tables.table_writer import WriteTarget
from scan_core.schema import PrimitiveType
from scan_core.snapshot import PartitionSpec

MOST_OPEN_FILES = 32
"""Partitions that a task writes at a time; the one that waited longest is finished first."""
_BLOOM_ERROR = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """How files are laid out.

    Attributes:
        target_file_bytes: a file that has reached this size is finished.
        row_group_bytes: Arrow bytes of the rows that are gathered for a row group.
        row_group_rows: most rows of a row group.
        page_rows: most rows of a page.
        compression: Parquet codec.
        bloom_filters: columns that get Bloom filters.
    """

    target_file_bytes: int
    row_group_bytes: int
    row_group_rows: int
    page_rows: int
    compression: str
    bloom_filters: tuple[str, ...] = ()


@dataclass(slots=True)
class _OpenFile:
    """A data file that may take more rows."""

    path: str
    partition: tuple[Any, ...]
    output: ParquetOutput
    num_rows: int = 0
    nans: Counter[int] = field(default_factory=Counter)


class RollingWriter:
    """Data files of one task. Use it as a context manager: leaving by an exception removes all its files.

    Args:
        target: schema and place of the files.
        spec: under which they are written.
        layout: of the files.
        prefix: of their names, by which all files of one run are known.
        key_ids: columns whose bounds are kept long.
    """

    def __init__(
        self, target: WriteTarget, spec: PartitionSpec, layout: FileLayout, prefix: str, key_ids: Sequence[int] = ()
    ) -> None:
        self._target = target
        self._spec = spec
        self._layout = layout
        self._prefix = prefix
        self._key_ids = frozenset(key_ids)
        self._open: dict[tuple[Any, ...], _OpenFile] = {}
        self._paths: list[str] = []
        self.files: list[WrittenFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the files, or remove them all if the task has failed."""
        if kind is None:
            for file in tuple(self._open.values()):
                self._finish(file)
            return
        for file in self._open.values():
            with suppress(OSError, pa.ArrowException):
                file.output.abandon()
        self._target.storage.remove(self._paths)

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> None:
        """Write rows; columns are found by name, missing ones are NULL.

        Raises:
            SchemaConflictError: a value that does not fit its column.
        """
        for rows in self._groups(batches):
            table = conform(rows, self._target.schema)
            for part in split_by_partition(table, self._target.schema, self._spec):
                self._add(part)

    def _groups(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
        """Batches gathered to row groups."""
        held: list[pa.Table] = []
        held_bytes = held_rows = 0
        for batch in batches:
            rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            held.append(rows)
            held_bytes += rows.nbytes
            held_rows += rows.num_rows
            if held_bytes >= self._layout.row_group_bytes or held_rows >= self._layout.row_group_rows:
                yield pa.concat_tables(held)
                held, held_bytes, held_rows = [], 0, 0
        if held_rows:
            yield pa.concat_tables(held)

    def _add(self, part: PartitionedRows) -> None:
        file = self._open.pop(part.values, None) or self._begin(part)
        self._open[part.values] = file  # the newest last
        file.output.write(part.rows, self._layout.row_group_rows)
        file.num_rows += part.rows.num_rows
        file.nans.update(nan_counts(part.rows, self._target.schema))
        if file.output.num_bytes >= self._layout.target_file_bytes:
            self._finish(file)

    def _begin(self, part: PartitionedRows) -> _OpenFile:
        if len(self._open) >= MOST_OPEN_FILES:
            self._finish(next(iter(self._open.values())))
        name = f"{self._prefix}-{uuid.uuid4().hex}.parquet"
        path = "/".join(p for p in (self._target.data_location, part.folder, name) if p)
        self._paths.append(path)
        output = ParquetOutput(
            self._target.storage.open_output(path),
            part.rows.schema,
            compression=self._layout.compression,
            use_dictionary=True,
            max_rows_per_page=self._layout.page_rows,
            bloom_filter_options=self._bloom_filters(min(part.rows.num_rows, self._layout.row_group_rows)),
        )
        return _OpenFile(path, part.values, output)

    def _bloom_filters(self, group_rows: int) -> dict[str, dict[str, float]] | None:
        """Per row group; Parquet has none of booleans."""
        boolean = PrimitiveType("boolean")
        chosen = [n for n in self._layout.bloom_filters if self._target.schema.find(n).type != boolean]
        return {name: {"ndv": group_rows, "fpp": _BLOOM_ERROR} for name in chosen} or None

    def _finish(self, file: _OpenFile) -> None:
        del self._open[file.partition]
        footer, size = file.output.finish()
        self.files.append(
            WrittenFile(
                path=file.path,
                content=FileContent.DATA,
                spec_id=self._spec.spec_id,
                partition=file.partition,
                record_count=file.num_rows,
                file_size_bytes=size,
                metrics=parquet_metrics(footer, self._target.schema, nan_counts=file.nans, key_ids=self._key_ids),
                sort_order_id=0,
            )
        )
