"""Writes Arrow tables to Parquet data files and delete files.

Either all rows of a commit are written at once, or rows that arrive over time into files of a target size. The layout of a
file is defined in `parquet_output.py`.
"""

import struct
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from nevermore.pipelines.decode.batches import one_text
from nevermore.pipelines.errors import SchemaConflictError
from nevermore.pipelines.iceberg.file_metrics import nan_counts, parquet_metrics
from nevermore.pipelines.iceberg.parquet_output import (
    FileLayout,
    ParquetOutput,
    WriterOptions,
    bloom_filter_capacity,
    bloom_filters,
    delta_encoding,
    dictionary_columns,
)
from nevermore.pipelines.iceberg.row_shape import (
    PartitionedRows,
    check_order,
    conform,
    in_order,
    split_by_partition,
)
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.workers import ahead, num_threads
from nevermore.scan_core import (
    ContentFile,
    DataFile,
    DeleteContent,
    DeleteFile,
    FileFormat,
    ListType,
    MapType,
    NestedField,
    PartitionSpec,
    PrimitiveType,
    Schema,
    StructType,
)
from nevermore.scan_core.metadata import FILE_PATH_ID, POSITION_ID

__all__ = [
    "FileLayout",
    "RollingWriter",
    "WriteTarget",
    "WriterOptions",
    "check_key",
    "write_deletes",
    "write_positions",
    "write_rows",
]
PARALLEL_FILE_BYTES = 32 * 1024**2
"""Arrow bytes from which on rows become several files, so that several threads encode them."""
_ILLEGAL_KEYS = "float", "double"


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Location and layout of written files."""

    schema: Schema
    data_location: str
    storage: Storage
    options: WriterOptions = field(default_factory=WriterOptions)


def check_key(schema: Schema, key: Sequence[str]) -> tuple[int, ...]:
    """Field ids of the key columns, sorted.

    Raises:
        SchemaConflictError: a column does not exist, or its type cannot identify a row (rule 25).
    """
    ids = []
    for name in key:
        if name not in schema.names:
            raise SchemaConflictError(f"key column {name!r} is not in the table; it has {', '.join(schema.names)}")
        column = schema.find(name)
        match column.type:
            case PrimitiveType(kind) if kind not in _ILLEGAL_KEYS:
                ids.append(column.field_id)
            case PrimitiveType() | ListType() | MapType() | StructType():
                raise SchemaConflictError(
                    f"key column {name!r} has type {column.type}: float, double, struct, list and map cannot be keys; "
                    "choose another key or cast the column"
                )
    return tuple(sorted(ids))


def write_rows(
    rows: pa.Table, target: WriteTarget, spec: PartitionSpec, *, key_ids: Sequence[int] = ()
) -> list[ContentFile]:
    """Write `rows` to data files, by partition of `spec`. Columns are found by name; missing ones are NULL.

    Files of one call are encoded at the same time, if the run has threads; then many rows become one file per thread.
    """
    if rows.num_rows == 0:
        return []
    table = conform(rows, target.schema)
    return list(
        ahead(
            partial(_write_data_file, piece, part, target, spec, frozenset(key_ids))
            for part in split_by_partition(table, target.schema, spec)
            for piece in _pieces(_sorted(part.rows, target), target.options)
        )
    )


def write_deletes(
    keys: pa.Table, target: WriteTarget, spec: PartitionSpec, key_ids: Sequence[int], *, prefix: str = ""
) -> list[ContentFile]:
    """Write equality-delete files of `keys`: the key columns, and the source columns of `spec` if it is partitioned.

    Under an unpartitioned spec the deletes apply to every file of the table (rule 4). File names begin with `prefix`.

    Raises:
        KeyError: `keys` lacks a key column, which would delete the rows that have NULL there.
    """
    if keys.num_rows == 0:
        return []
    key_schema = target.schema.select(tuple(sorted(key_ids)))
    if missing := [name for name in key_schema.names if name not in keys.column_names]:
        raise KeyError(
            f"keys of deletes lack the column {', '.join(missing)}; they have {', '.join(keys.column_names)}"
        )
    parts: Iterator[PartitionedRows]
    if spec.is_unpartitioned:
        parts = iter([PartitionedRows((None,) * len(spec.fields), "", conform(keys, key_schema))])
    else:
        sources = tuple(dict.fromkeys((*sorted(key_ids), *(f.source_id for f in spec.fields))))
        wide = conform(keys, target.schema.select(sources))
        parts = split_by_partition(wide, target.schema, spec)
    return [_write_delete_file(part, target, spec, key_schema, prefix) for part in parts]


def write_positions(file: DataFile, positions: npt.NDArray[np.int64], target: WriteTarget) -> DeleteFile:
    """Write a position-delete file of one data file.

    Args:
        file: the data file.
        positions: numbers of the deleted rows, ascending.
        target: location of the new file.
    """
    paths = one_text(file.path, len(positions))
    kinds = ((FILE_PATH_ID, "file_path", paths.type), (POSITION_ID, "pos", pa.int64()))
    schema = pa.schema(
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(i)}) for i, name, kind in kinds
    )
    rows = pa.table([paths, pa.array(positions)], schema)
    folder = file.path.rpartition("/")[0]
    below = folder.removeprefix(target.data_location).strip("/") if folder.startswith(target.data_location) else ""
    path = _file_path(target, below, "-deletes")
    options = {"use_dictionary": ["file_path"], "column_encoding": {"pos": "DELTA_BINARY_PACKED"}}
    footer, size = ParquetOutput(path, target.storage, schema, target.options, **options).write_whole(rows)
    # readers take equal, whole bounds of the path for "deletes rows of this file alone"
    lowest, highest = (struct.pack("<q", positions[i]) for i in (0, -1))
    counts = dict.fromkeys((FILE_PATH_ID, POSITION_ID), len(positions))
    return DeleteFile(
        path,
        FileFormat.PARQUET,
        file.spec_id,
        file.partition,
        footer.num_rows,
        size,
        value_counts=counts,
        null_value_counts=dict.fromkeys(counts, 0),
        lower_bounds={FILE_PATH_ID: file.path.encode(), POSITION_ID: lowest},
        upper_bounds={FILE_PATH_ID: file.path.encode(), POSITION_ID: highest},
        content=DeleteContent.POSITION,
        referenced_data_file=file.path,
    )


def describe_parquet(
    path: str,
    size: int,
    footer: pq.FileMetaData,
    *,
    target: WriteTarget,
    spec: PartitionSpec,
    partition: tuple[object, ...],
    nans: Mapping[int, int] | None = None,
    key_ids: frozenset[int] = frozenset(),
    is_of_deletes: bool = False,
) -> ContentFile:
    """The facts about a file with field ids that a commit needs; `key_ids` of delete files are equality ids."""
    kind = partial(DeleteFile, equality_ids=tuple(sorted(key_ids))) if is_of_deletes else DataFile
    metrics = parquet_metrics(footer, target.schema, nan_counts=nans, key_ids=key_ids)
    return kind(path, FileFormat.PARQUET, spec.spec_id, partition, footer.num_rows, size, sort_order_id=0, **metrics)


def _pieces(rows: pa.Table, options: WriterOptions) -> Iterator[pa.Table]:
    size = rows.nbytes
    per_row = max(1, size // max(1, rows.num_rows))
    step = max(1, min(options.file_bytes, max(PARALLEL_FILE_BYTES, -(-size // num_threads()))) // per_row)
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _write_data_file(
    rows: pa.Table, part: PartitionedRows, target: WriteTarget, spec: PartitionSpec, key_ids: frozenset[int]
) -> ContentFile:
    keys = key_ids if target.options.bloom_filters else ()
    indexed = [f for f in target.schema.fields if f.field_id in keys or f.name in target.options.bloom_columns]
    output = _data_file(rows, _file_path(target, part.folder, ""), target, target.options, indexed)
    footer, size = output.write_whole(rows)
    nans = nan_counts(rows, target.schema)
    return describe_parquet(
        output.path, size, footer, target=target, spec=spec, partition=part.values, nans=nans, key_ids=key_ids
    )


def _data_file(
    rows: pa.Table,
    path: str,
    target: WriteTarget,
    layout: WriterOptions | FileLayout,
    indexed: Sequence[NestedField],
) -> ParquetOutput:
    """A new data file that begins with these rows, with Bloom filters for some columns."""
    return ParquetOutput(
        path,
        target.storage,
        rows.schema,
        layout,
        use_dictionary=dictionary_columns(rows) if layout.sample_dictionaries else True,
        bloom_filter_options=bloom_filters(indexed, min(rows.num_rows, layout.row_group_rows)),
    )


def _write_delete_file(
    part: PartitionedRows, target: WriteTarget, spec: PartitionSpec, key_schema: Schema, prefix: str
) -> ContentFile:
    names = list(key_schema.names)
    keys = in_order(part.rows.select(names), names)
    path = _file_path(target, part.folder, "-eq-deletes", prefix and f"{prefix}-")
    encodings = {f.name: delta_encoding(f.type) for f in key_schema.fields}  # type: ignore[arg-type] # keys are primitive
    output = ParquetOutput(
        path,
        target.storage,
        keys.schema,
        target.options,
        use_dictionary=False,
        column_encoding={n: e for n, e in encodings.items() if e is not None} or None,
        bloom_filter_options=bloom_filters(
            key_schema.fields if target.options.bloom_filters else (),
            min(keys.num_rows, target.options.row_group_rows),
        ),
    )
    footer, size = output.write_whole(keys)
    return describe_parquet(
        path,
        size,
        footer,
        target=target,
        spec=spec,
        partition=part.values,
        key_ids=frozenset(f.field_id for f in key_schema.fields),
        is_of_deletes=True,
    )


def _sorted(rows: pa.Table, target: WriteTarget) -> pa.Table:
    names = target.options.sort_by
    check_order(rows, names, target.schema)
    return in_order(rows, names) if names else rows


def _file_path(target: WriteTarget, folder: str, suffix: str, prefix: str = "") -> str:
    parts = [target.data_location, folder, f"{prefix}{uuid.uuid4().hex}{suffix}.parquet"]
    return "/".join(p for p in parts if p)


MAX_OPEN_FILES = 32
"""Maximum of partitions that a task writes at a time; beyond it, the least recently used file is finished."""
CAPACITY_SLACK = 1.25
"""Rows of a row group above what the Bloom filters of a file are made for, with which they err about three times as often."""


@dataclass(slots=True)
class _OpenFile:
    """A data file that is not finished. Its Bloom filters are large enough for row groups of `capacity` rows."""

    partition: tuple[Any, ...]
    output: ParquetOutput
    capacity: int
    nans: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Held:
    """Rows of a partition that are collected for a row group."""

    parts: list[PartitionedRows] = field(default_factory=list)
    num_rows: int = 0
    num_bytes: int = 0

    def add(self, part: PartitionedRows) -> None:
        """Collect more rows."""
        self.parts.append(part)
        self.num_rows += part.rows.num_rows
        self.num_bytes += part.rows.nbytes

    def together(self) -> PartitionedRows:
        """All of them."""
        return replace(self.parts[0], rows=pa.concat_tables(part.rows for part in self.parts))


class RollingWriter:
    """Writes the data files of one task. It is a context manager: an exception inside removes all its files.

    Args:
        target: schema and location of the files.
        spec: partition spec of the files.
        layout: layout of the files.
        prefix: prefix of their names, which identifies the files of one run.
        key_ids: columns whose bounds are not truncated.
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
        self._held: dict[tuple[Any, ...], _Held] = {}
        self._num_rows = self._num_bytes = 0
        self._paths: list[str] = []
        self.files: list[ContentFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Finish the files, or remove them all if the task has failed."""
        if kind is not None:
            self._remove()
            return
        try:
            while self._held:
                self._write_largest()
            for file in tuple(self._open.values()):
                self._finish(file)
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        for file in self._open.values():
            file.output.abandon()
        self._target.storage.remove(self._paths)

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> None:
        """Write rows; columns are found by name, missing ones are NULL. Rows of a partition keep their order.

        Raises:
            SchemaConflictError: a value does not fit its column.
        """
        # Half a row group is divided by partition at a time, as what is held, the parts and their source are in memory together.
        for rows in self._pieces(batches, self._layout.row_group_rows // 2, self._layout.row_group_bytes // 2):
            table = conform(rows, self._target.schema)
            for part in split_by_partition(table, self._target.schema, self._spec):
                self._held.setdefault(part.values, _Held()).add(part)
                self._num_rows += part.rows.num_rows
                self._num_bytes += part.rows.nbytes
            while self._num_rows >= self._layout.row_group_rows or self._num_bytes >= self._layout.row_group_bytes:
                self._write_largest()

    @staticmethod
    def _pieces(batches: Iterable[pa.RecordBatch | pa.Table], num_rows: int, num_bytes: int) -> Iterator[pa.Table]:
        """Combine batches until they have so many rows or bytes."""
        held: list[pa.Table] = []
        held_bytes = held_rows = 0
        for batch in batches:
            rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            held.append(rows)
            held_bytes += rows.nbytes
            held_rows += rows.num_rows
            if held_bytes >= num_bytes or held_rows >= num_rows:
                yield pa.concat_tables(held)
                held, held_bytes, held_rows = [], 0, 0
        if held_rows:
            yield pa.concat_tables(held)

    def _write_largest(self) -> None:
        """Write the rows of the partition of which most are held, as few rows make small row groups."""
        held = self._held.pop(max(self._held, key=lambda key: self._held[key].num_bytes))
        self._num_rows -= held.num_rows
        self._num_bytes -= held.num_bytes
        part = held.together()
        file = self._open.pop(part.values, None)
        if file is not None and min(held.num_rows, self._layout.row_group_rows) > file.capacity:
            self._finish(file)
            file = None
        file = file or self._begin(part)
        self._open[part.values] = file  # the most recently used last
        file.output.write(part.rows)
        file.nans.update(nan_counts(part.rows, self._target.schema))
        if file.output.num_bytes >= self._layout.target_file_bytes:
            self._finish(file)

    def _begin(self, part: PartitionedRows) -> _OpenFile:
        if len(self._open) >= MAX_OPEN_FILES:
            self._finish(next(iter(self._open.values())))
        path = _file_path(self._target, part.folder, "", f"{self._prefix}-")
        self._paths.append(path)
        indexed = [self._target.schema.find(name) for name in self._layout.bloom_filters]
        output = _data_file(part.rows, path, self._target, self._layout, indexed)
        # The rows of the next ones vary a little, which a filter takes: more files would cost more than its errors.
        capacity = (
            int(CAPACITY_SLACK * bloom_filter_capacity(min(part.rows.num_rows, self._layout.row_group_rows)))
            if self._layout.bloom_filters
            else self._layout.row_group_rows
        )
        return _OpenFile(part.values, output, capacity)

    def _finish(self, file: _OpenFile) -> None:
        footer, size = file.output.finish()
        self._open.pop(file.partition, None)
        self.files.append(
            describe_parquet(
                file.output.path,
                size,
                footer,
                target=self._target,
                spec=self._spec,
                partition=file.partition,
                nans=file.nans,
                key_ids=self._key_ids,
            )
        )
