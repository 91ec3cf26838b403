"""The deletes of one data file as its reader applies them: a selection by position, then filters by key.

Positions come from position-delete files, or from a deletion vector in a Puffin file. Which of them apply to a data file was
decided by the planner (rules 2, 4 and 6); whether a row of a position-delete file names the data file is decided here (rule 7).
"""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import FileReader, field_id_of, refusing_malformed
from nevermore.scan_core.deletes.indexes import DELETE_CACHE, equality_index, file_key, read_in_parts
from nevermore.scan_core.files import open_file
from nevermore.scan_core.io.files import read_bytes, refuse_moved
from nevermore.scan_core.io.location import FileIOConfig, PathMatch, relocate, same_file
from nevermore.scan_core.keys.columns import BytesColumn
from nevermore.scan_core.keys.equality_index import EqualityIndex, covers_rest, find_deleted, fixed_value, threshold_of
from nevermore.scan_core.keys.lookup import SIGN_BIT, DenseIndex, FactoredIndex, HashedIndex, KeySummary
from nevermore.scan_core.model.errors import MalformedTableError, MemoryLimitError, UnsupportedError
from nevermore.scan_core.model.options import DEFAULT_MEMORY_LIMIT_BYTES, ScanMetrics, ScanOptions
from nevermore.scan_core.model.snapshot import DataFile, DeleteFile
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.verdicts import Match
from nevermore.scan_core.rows.selection import (
    All,
    RoaringPositions,
    RowPositions,
    RowSelection,
    SortedPositions,
    decode_roaring,
    intersect,
    sorted_positions,
    surviving,
)
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, FileScanTask, ScanContext

FILE_PATH_ID = 2147483546
POSITION_ID = 2147483545

_DV_MAGIC = b"\xd1\xd3\x39\x64"
_DV_FRAME_BYTES = 12
"""Length, magic and checksum around the bitmap."""
_MIN_VECTOR_BYTES = 64 * 1024
"""Allowed in every vector: some writers store empty bitmaps between others."""
_MAX_BYTES_PER_POSITION = 8_224
"""One alone in a bit set of 65,536, with what stands around it."""
_VECTOR_SHARE = 4
"""A single vector may take the memory limit divided by this: its bytes, the bitmap made of them, and rows as flags."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PositionDeleteFile:
    """The rows of one position-delete file: deleted positions by the data file's path as written there."""

    by_path: Mapping[str, SortedPositions]
    spellings: Mapping[str, tuple[str, ...]]
    """Paths as written, by their path after relocation: candidates for one file under other spellings (rule 7)."""
    by_name: Mapping[str, tuple[str, ...]]
    """Paths as written, by the name of the file: candidates for one where it lay before the table was moved."""

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return sum(p.num_bytes + 2 * len(path) for path, p in self.by_path.items())


def read_deletion_vector(
    delete_file: DeleteFile,
    io: FileIOConfig,
    metrics: ScanMetrics,
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
) -> RoaringPositions:
    """The positions in a `deletion-vector-v1` blob.

    Raises:
        MemoryLimitError: the blob is larger than a part of the limit, and is not read.
        MalformedTableError: offset or size missing or outside of the file, wrong length, magic, checksum or count.
    """
    offset, size = delete_file.content_offset, delete_file.content_size_bytes
    if offset is None or size is None:
        raise MalformedTableError(
            f"{delete_file.path}: deletion vector without content_offset or content_size_in_bytes"
        )
    source = f"{delete_file.path}: deletion vector at {offset}"
    if size > _MIN_VECTOR_BYTES + _MAX_BYTES_PER_POSITION * delete_file.record_count:
        raise MalformedTableError(
            f"{source}: {size} bytes (content_size_in_bytes) are more than {delete_file.record_count} positions "
            "(record_count) can take"
        )
    most = max(memory_limit_bytes // _VECTOR_SHARE, _MIN_VECTOR_BYTES)
    if size > most:
        raise MemoryLimitError(f"{source}: {size} bytes, and at most {most} are read; raise memory_limit_bytes")
    blob = read_bytes(delete_file.path, io, offset, size)
    metrics.delete_files_opened += 1
    metrics.delete_bytes_read += size
    check_vector_frame(blob, source)
    positions = decode_roaring(blob[8:-4], source)
    if (count := len(positions.bitmap)) != delete_file.record_count:
        raise MalformedTableError(f"{source}: {count} positions, but its record_count is {delete_file.record_count}")
    metrics.delete_rows_loaded += count
    return positions


def check_vector_frame(blob: bytes, source: str) -> None:
    """Length, magic and checksum around the bitmap of a `deletion-vector-v1` blob.

    Raises:
        MalformedTableError: one is wrong; `source` names file and blob.
    """
    size = len(blob)
    if size < _DV_FRAME_BYTES:
        raise MalformedTableError(f"{source}: {size} bytes cannot hold one")
    length, checksum = struct.unpack_from(">I", blob)[0], struct.unpack_from(">I", blob, size - 4)[0]
    if length != size - 8:
        raise MalformedTableError(f"{source}: states a length of {length} in a blob of {size} bytes")
    if blob[4:8] != _DV_MAGIC:
        raise MalformedTableError(f"{source}: magic is {blob[4:8].hex()}, not {_DV_MAGIC.hex()}")
    if zlib.crc32(memoryview(blob)[4:-4]) != checksum:
        raise MalformedTableError(f"{source}: CRC-32 does not match")


def read_position_deletes(
    delete_file: DeleteFile, io: FileIOConfig, metrics: ScanMetrics, options: ScanOptions
) -> PositionDeleteFile:
    """All rows of a position-delete file in Parquet, ORC or Avro, read in parts where they would be too large.

    Raises:
        MalformedTableError: no `file_path` or `pos` column by their reserved ids, NULL or negative values.
        MemoryLimitError: the positions alone are more than `options.memory_limit_bytes`.
    """
    if delete_file.is_encrypted:
        raise UnsupportedError(f"{delete_file.path}: encrypted delete files are not supported")
    reader = open_file(delete_file.path, delete_file.format, io)
    metrics.delete_files_opened += 1
    metrics.delete_bytes_read += delete_file.file_size_bytes
    try:
        by_path = _positions_by_path(reader, delete_file.path, metrics, options)
    finally:
        reader.close()
    spellings: dict[str, list[str]] = {}
    by_name: dict[str, list[str]] = {}
    for path in by_path:
        spellings.setdefault(relocate(path, io).path, []).append(path)
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    return PositionDeleteFile(
        {path: union_of(found) for path, found in by_path.items()},
        {path: tuple(written) for path, written in spellings.items()},
        {name: tuple(written) for name, written in by_name.items()},
    )


def _positions_by_path(
    reader: FileReader, file: str, metrics: ScanMetrics, options: ScanOptions
) -> dict[str, list[SortedPositions]]:
    indices = _columns(reader.arrow_schema, file)
    by_path: dict[str, list[SortedPositions]] = {}
    num_bytes = 0
    for group in reader.row_groups:
        for paths, positions in read_in_parts(reader, group, indices, options, file):
            if paths.null_count or positions.null_count:
                raise MalformedTableError(f"{file}: NULL in file_path or pos of a position delete")
            metrics.delete_rows_loaded += len(paths)
            with refusing_malformed(file, "file_path"):
                by_file = _split_by_path(paths, positions)
            for path, values in by_file:
                if len(values) and int(values.min()) < 0:
                    raise MalformedTableError(f"{file}: negative position {int(values.min())} of {path:.1000}")
                found = sorted_positions(values)
                num_bytes += found.num_bytes + (0 if path in by_path else len(path))
                by_path.setdefault(path, []).append(found)
            if num_bytes > options.memory_limit_bytes:
                raise MemoryLimitError(
                    f"{file}: its position deletes take more than {options.memory_limit_bytes} bytes; raise "
                    "memory_limit_bytes"
                )
    return by_path


def positions_in(
    loaded: PositionDeleteFile, delete_file: DeleteFile, data_file: DataFile, io: FileIOConfig, metrics: ScanMetrics
) -> SortedPositions | None:
    """Deleted positions of the data file; None if the delete file has none for it.

    Raises:
        MalformedTableError: `referenced_data_file` is set and the rows name other files, or rows name the data file where
            it lay before the table was moved.
    """
    found: list[SortedPositions] = []
    for path in loaded.spellings.get(relocate(data_file.path, io).path, ()):
        match same_file(path, data_file.path, io):
            case PathMatch.EXACT:
                found.append(loaded.by_path[path])
            case PathMatch.RELOCATED:
                metrics.relocated_position_matches += 1
                found.append(loaded.by_path[path])
            case PathMatch.NONE:
                pass
    if not found:
        for path in loaded.by_name.get(data_file.path.rpartition("/")[2], ()):
            refuse_moved(path, data_file.path, io, delete_file.path)
    if delete_file.referenced_data_file is not None and len(found) < len(loaded.by_path):
        raise MalformedTableError(
            f"{delete_file.path}: states referenced_data_file {delete_file.referenced_data_file}, but holds rows of "
            f"other files than {data_file.path}"
        )
    return union_of(found) if found else None


def union_of(found: Sequence[SortedPositions]) -> SortedPositions:
    """The positions in any of these, at least one."""
    return found[0] if len(found) == 1 else sorted_positions(np.concatenate([p.values for p in found]))


def _columns(schema: pa.Schema, path: str) -> tuple[int, int]:
    by_id = {field_id_of(field): index for index, field in enumerate(schema)}
    by_name = {field.name: index for index, field in enumerate(schema) if field_id_of(field) is None}
    found = []
    for field_id, name in ((FILE_PATH_ID, "file_path"), (POSITION_ID, "pos")):
        index = by_id.get(field_id, by_name.get(name))
        if index is None:
            raise MalformedTableError(f"{path}: position deletes without the column {name} (id {field_id})")
        found.append(index)
    kinds = [schema.field(i).type for i in found]
    textual = pt.is_string(kinds[0]) or pt.is_large_string(kinds[0])
    if not textual or not pt.is_signed_integer(kinds[1]):
        raise MalformedTableError(f"{path}: position deletes of types {kinds[0]} and {kinds[1]}, not string and long")
    return found[0], found[1]


def _split_by_path(paths: pa.Array, positions: pa.Array) -> list[tuple[str, np.ndarray]]:
    """Positions of each distinct path; the specification sorts rows by path, so most are one run."""
    if not len(paths):
        return []
    encoded = paths if pt.is_dictionary(paths.type) else paths.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    values = positions.cast(pa.int64()).to_numpy()
    names = encoded.dictionary.cast(pa.string()).to_pylist()
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        codes, values = codes[order], values[order]
    firsts = np.concatenate([[0], np.flatnonzero(codes[1:] != codes[:-1]) + 1])
    return [(names[codes[f]], part) for f, part in zip(firsts, np.split(values, firsts[1:]), strict=True)]


MAX_VALUES = 256
"""Maximum number of values: looking up more in a Bloom filter takes longer than probing a row group."""
_MAX_STORED = 4_096
_MAX_SLOTS = 1 << 20


def _of_table(index: DenseIndex, lower: int, upper: int, threshold: int) -> list[Any] | None:
    begin, end = max(lower - index.lower, 0), min(upper - index.lower + 1, len(index.ranks) - 1)
    if end - begin > _MAX_SLOTS:
        return None
    places = np.flatnonzero(index.ranks[begin : max(end, begin)] > threshold)
    return (places + (index.lower + begin)).tolist() if len(places) <= MAX_VALUES else None


def _of_summary(summary: KeySummary, lower: int, upper: int) -> list[Any] | None:
    if summary.buckets is None or summary.shift:
        return None  # a bucket stands for several keys
    low, high = lower + SIGN_BIT - summary.base, upper + SIGN_BIT - summary.base
    if high < 0:
        return []
    begin = np.searchsorted(summary.buckets, np.uint64(max(low, 0)))
    end = np.searchsorted(summary.buckets, np.uint64(high), side="right")
    if end - begin > MAX_VALUES:
        return None
    return [int(bucket) + summary.base - SIGN_BIT for bucket in summary.buckets[begin:end].tolist()]


def _of_strings(column: BytesColumn, kind: pa.DataType, lower: Any, upper: Any) -> list[Any] | None:
    if column.num_rows > _MAX_STORED:
        return None
    if not pt.is_string(kind) and not pt.is_binary(kind):
        return None
    stored = {bytes(column.data[begin:end]) for begin, end in pairwise(column.offsets.tolist())}
    try:
        values: set[Any] = {v.decode() for v in stored} if pt.is_string(kind) else stored
    except UnicodeDecodeError:
        return None
    known = [v for v in values if (lower is None or v >= lower) and (upper is None or v <= upper)]
    return known if len(known) <= MAX_VALUES else None


@dataclass(frozen=True, slots=True)
class EqualityFilter:
    """The equality deletes of one key set and scope, for one data file."""

    key_ids: tuple[int, ...]
    index: EqualityIndex
    threshold: int

    def keep(self, keys: Sequence[pa.Array | None]) -> npt.NDArray[np.bool_]:
        """True for rows that stay.

        Args:
            keys: one array per key id, in the table's current types, of one length; dictionary arrays are allowed. None
                for columns of which `is_proven` is true.
        """
        if not any(key is not None and len(key) for key in keys):
            return np.ones(0, np.bool_)
        return ~find_deleted(self.index, keys, self.threshold)

    def may_touch(self, statistics_of: Callable[[int], ColumnStatistics | None]) -> Match:
        """NEVER: no row within these statistics is deleted; ALWAYS: all are; MAYBE: rows must be probed.

        Args:
            statistics_of: statistics of a key column by field id, with bounds in the table's current types.
        """
        known = [statistics_of(field_id) for field_id in self.key_ids]
        if not all(s.meets(k) for s, k in zip(self.index.summaries, known, strict=True)):
            return Match.NEVER
        return Match.ALWAYS if covers_rest(self.index, known, self.threshold) else Match.MAYBE

    def is_proven(self, column: int, statistics: ColumnStatistics | None) -> bool:
        """Whether all keys have one value in a key column, and rows with these statistics have no other."""
        if not isinstance(self.index, FactoredIndex):
            return False
        value = dict(self.index.constants).get(column)
        return value is not None and fixed_value(statistics) == value

    def few_values(self, column: int, statistics: ColumnStatistics | None) -> list[Any] | None:
        """All values of a key column within the bounds of a row group; None if unknown, too many, or NULL among them.

        Args:
            column: which of the key columns.
            statistics: of the column in the row group, in the table's type.
        """
        index, summary = self.index, self.index.summaries[column]
        if statistics is None or (summary.has_null and statistics.null_count != 0):
            return None
        place: int | None = column
        if isinstance(index, FactoredIndex):
            constants = dict(index.constants)
            place = None if column in constants else column - sum(c < column for c in constants)
            index = index.rest
        lower, upper, kind = statistics.lower, statistics.upper, summary.kind
        is_number = pt.is_integer(kind) or pt.is_temporal(kind)
        if isinstance(lower, int) and isinstance(upper, int) and is_number:
            if isinstance(index, DenseIndex) and place is not None:
                return _of_table(index, lower, upper, self.threshold)
            return _of_summary(summary, lower, upper)
        if place is None or not isinstance(index, HashedIndex) or not index.columns:
            return None
        if isinstance(found := index.columns[place], BytesColumn):
            return _of_strings(found, kind, lower, upper)
        return None


@dataclass(frozen=True, slots=True)
class DeleteFilter:
    """All deletes of one task: a row is dead if any of the positions or keys removes it."""

    positions: tuple[RowPositions, ...]
    equality: tuple[EqualityFilter, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no row can be deleted."""
        return not self.positions and not self.equality

    def position_selection(self, first_row: int, num_rows: int) -> RowSelection:
        """Rows [first_row, first_row + num_rows) of the file that no position delete removes, numbered from 0."""
        selection: RowSelection = All(num_rows)
        for positions in self.positions:
            selection = intersect(selection, surviving(positions, first_row, num_rows))
        return selection


def open_delete_filter(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> DeleteFilter:
    """Load the deletes of the task's delete files, or take keys that are loaded with those of other tasks.

    Raises:
        MalformedTableError: a delete file that breaks a rule; names file and field.
        MissingFileError: a delete file is gone.
    """
    if (vector := task.deletion_vector) is not None:
        by_position: tuple[RowPositions, ...] = (_vector(vector, context, metrics),)
    else:
        by_position = _listed_positions(task, task.position_deletes, context, metrics)
    return DeleteFilter(by_position, _equality_filters(task, task.equality_deletes, context, metrics))


def _equality_filters(
    task: FileScanTask,
    groups: Sequence[EqualityDeleteGroup],
    context: ScanContext,
    metrics: ScanMetrics,
) -> tuple[EqualityFilter, ...]:
    sequence_number = task.data_file.data_sequence_number
    return tuple(
        EqualityFilter(group.key_ids, index, threshold_of(index, sequence_number))
        for group in groups
        if group.max_sequence_number > sequence_number
        for index in (equality_index(group, context, metrics),)
    )


def _vector(vector: DeleteFile, context: ScanContext, metrics: ScanMetrics) -> RowPositions:
    io, options = context.io, context.options
    return DELETE_CACHE.get_or_build(
        ("vector", file_key(vector, io)),
        lambda: read_deletion_vector(vector, io, metrics, options.memory_limit_bytes),
        options.delete_cache_bytes,
        metrics,
    )


def _listed_positions(
    task: FileScanTask, files: Sequence[DeleteFile], context: ScanContext, metrics: ScanMetrics
) -> tuple[RowPositions, ...]:
    """Positions in position-delete files, as one; none if no file names the data file."""
    io, options = context.io, context.options
    parts = []
    for file in files:
        loaded = DELETE_CACHE.get_or_build(
            ("positions", file_key(file, io)),
            partial(read_position_deletes, file, io, metrics, options),
            options.delete_cache_bytes,
            metrics,
        )
        part = positions_in(loaded, file, task.data_file, io, metrics)
        if part is not None:
            parts.append(part)
    return (union_of(parts),) if parts else ()
