"""Builds bitmap indexes of a table's columns and commits them as statistics.

A statistics file has one blob for each data file and column. Existing blobs are never rebuilt: they stay where they are, or
are copied where their file is small or replaced.
"""

import struct
import uuid
from array import array as typed_array
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from nevermore.pipelines.config.tables import DEFAULT_MAX_VALUES
from nevermore.pipelines.errors import CommitConflictError, CommitNotWrittenError, ConfigError, SourceError
from nevermore.pipelines.iceberg.commit import MAIN, commit, retry_conflicts
from nevermore.pipelines.iceberg.loaded_table import metadata_location, storage_of
from nevermore.pipelines.iceberg.metadata_swap import Update
from nevermore.pipelines.iceberg.storage import Storage, writing
from nevermore.scan_core import (
    DataFile,
    FileScanTask,
    ListType,
    MalformedTableError,
    MissingFileError,
    NestedField,
    PrimitiveType,
    Rows,
    ScanContext,
    ScanOptions,
    Schema,
    Snapshot,
    StructType,
    Table,
    UnsupportedError,
    arrow_type,
    open_table,
)
from nevermore.scan_core.io import FileIOConfig, exists, read_bytes
from nevermore.scan_core.parts import (
    BLOB_TYPE,
    COLUMN_TYPE,
    DATA_FILE,
    DIRECTORY_BYTES,
    FILE_BYTES,
    INDEX_SUFFIX,
    IS_LIST,
    MAGIC,
    RECORD_COUNT,
    PuffinBlob,
    cached_footer,
    column_batches,
    describes,
    encode_directory,
    footer_bytes,
    is_indexable,
    read_footer,
    statistics_paths,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table as CatalogTable


class CatalogTarget:
    """A table of a catalog, whose statistics entries can be changed."""

    def __init__(self, table: "CatalogTable") -> None:
        self._table = table
        self.storage = storage_of(table)

    @property
    def folder(self) -> str:
        """The catalog's folder for the table's metadata."""
        return metadata_location(self._table)

    def load(self) -> Table:
        """The table as the catalog has it now."""
        self._table.refresh()
        return open_table(self._table)

    def set_statistics(self, base: Table, entry: Mapping[str, Any], superseded: Collection[str] = ()) -> None:
        """Make `entry` the statistics entry of its snapshot, replacing that of `base`, and drop entries for these files.

        No requirement of the specification covers statistics, so they are compared first.

        Raises:
            CommitConflictError: the table has changed since `base`.
        """
        if self.load().metadata.statistics != base.metadata.statistics:
            raise CommitConflictError(f"another writer changed the statistics of {'.'.join(self._table.name())}")
        try:
            required = {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": base.metadata.current_snapshot_id}
            commit(self._table, [required], new_statistics(base, entry, superseded))
        except CommitConflictError:
            now = entry_of(self.load(), entry["snapshot-id"])
            if now is None or now["statistics-path"] != entry["statistics-path"]:
                raise  # otherwise a proxy repeated a request that had succeeded


def new_statistics(base: Table, entry: Mapping[str, Any], superseded: Collection[str]) -> list[Update]:
    """The updates that replace the statistics entry of a snapshot, and drop entries for some files."""
    others = (s for s in base.metadata.statistics if s["snapshot-id"] != entry["snapshot-id"])
    dropped = [other["snapshot-id"] for other in others if other.get("statistics-path") in superseded]
    updates: list[Update] = [{"action": "remove-statistics", "snapshot-id": number} for number in dropped]
    return [*updates, {"action": "set-statistics", "snapshot-id": entry["snapshot-id"], "statistics": entry}]


def entry_of(table: Table, snapshot_id: int) -> Mapping[str, Any] | None:
    """The statistics entry of a snapshot."""
    return next((s for s in table.metadata.statistics if s.get("snapshot-id") == snapshot_id), None)


def indexed_fields(schema: Schema, columns: Sequence[str], *, case_sensitive: bool) -> dict[str, NestedField]:
    """Look up the columns to index by name.

    Raises:
        ConfigError: a column's type cannot be indexed, or no column was given.
    """
    if not columns:
        raise ConfigError("choose the columns to index with --columns")
    found: dict[str, NestedField] = {}
    for name in columns:
        column = schema.find(name, case_sensitive=case_sensitive)
        path = schema.path(column.field_id)
        if not all(isinstance(f.type, StructType) for f in path[:-1]):
            raise ConfigError(f"column {name!r} is inside a list or map: index the list itself")
        if not is_indexable(column.type):
            raise ConfigError(
                f"column {name!r} of type {column.type} cannot have a bitmap index; columns of primitive types can, and "
                "lists of them, except for floating-point numbers"
            )
        found[name] = column
    return found


def value_type_of(column: NestedField) -> PrimitiveType:
    """The type of the values that get bitmaps: for lists, that of their elements."""
    found = column.type.element.type if isinstance(column.type, ListType) else column.type
    assert isinstance(found, PrimitiveType)  # noqa: S101 - checked before anything was read
    return found


_COPIED_BYTES = 8 * 1024**2
"""Bytes read at a time when a blob is copied."""


class PuffinWriter:
    """A new Puffin file. It is removed unless `close` has completed it."""

    def __init__(self, path: str, storage: Storage) -> None:
        self.path = path
        self.blobs: list[PuffinBlob] = []
        self.size_bytes = 0
        self.footer_size_bytes = 0
        self._storage = storage
        try:
            self._sink = storage.open_output(path)
            self._write(MAGIC)
        except BaseException:
            storage.remove([path])
            raise

    def write_blob(self, described: PuffinBlob, parts: Iterable[bytes]) -> None:
        """Append a blob; `described` is completed by its offset and length."""
        begin = self.size_bytes
        for part in parts:
            self._write(part)
        self.blobs.append(replace(described, offset=begin, length=self.size_bytes - begin))

    def copy_blob(self, blob: PuffinBlob, path: str, io: FileIOConfig) -> None:
        """Append a blob of another Puffin file unchanged."""
        stop = blob.offset + blob.length
        begins = range(blob.offset, stop, _COPIED_BYTES)
        self.write_blob(blob, (read_bytes(path, io, at, min(_COPIED_BYTES, stop - at)) for at in begins))

    def close(self, properties: Mapping[str, str]) -> None:
        """Write the footer."""
        footer = footer_bytes(self.blobs, properties)
        self._write(footer)
        with writing(self.path):
            self._sink.close()
        self.footer_size_bytes = len(footer)

    def _write(self, data: bytes) -> None:
        with writing(self.path):
            self._sink.write(data)
        self.size_bytes += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.footer_size_bytes:  # `close` has not completed it
            try:
                self._sink.close()
            finally:
                self._storage.remove([self.path])


NO_INDEX_TYPE = "nevermore-no-bitmap-index-v1"
"""Type of an empty blob which states that a column cannot have an index in a data file."""
_MAX_VALUES, _MEMORY_LIMIT, _REASON = "max-values", "memory-limit-bytes", "reason"
_OF_COLUMNS = BLOB_TYPE, NO_INDEX_TYPE
_ALWAYS_COPIED_BYTES = 1024**2
"""Indexes of smaller files are always copied into a new one: a scan reads the footer of each file."""
Place = tuple[str, int]
"""Path of a data file and id of a column."""


@dataclass(slots=True)
class KnownBlobs:
    """Existing blobs, by data file and column, and those of other engines in the statistics file.

    Attributes:
        indexes: our indexes.
        unsuitable: records that a column cannot have an index in a file, so that it is not read again.
        others: other blobs of the statistics file that is replaced.
        own_path: the statistics file that is replaced.
        removable: our statistics files that may go once nothing of these is in them.
    """

    indexes: dict[Place, tuple[str, PuffinBlob]] = field(default_factory=dict)
    unsuitable: dict[Place, tuple[str, PuffinBlob]] = field(default_factory=dict)
    others: list[tuple[str, PuffinBlob]] = field(default_factory=list)
    own_path: str | None = None
    removable: set[str] = field(default_factory=set)

    def superseded(self, copied: Container[str | None]) -> list[str]:
        """Our statistics files that a new one makes unnecessary, which takes the place of one and has copies of some."""
        used = {path for path, _ in (*self.indexes.values(), *self.unsuitable.values()) if path not in copied}
        own = {path for path in (self.own_path,) if path is not None and path.endswith(INDEX_SUFFIX)}
        return sorted(self.removable - used | own)


def find_known(
    table: Table,
    snapshot: Snapshot,
    tasks: Sequence[FileScanTask],
    leftover: Sequence[str],
    *,
    io: FileIOConfig,
    limits: tuple[int, int],
) -> KnownBlobs:
    """Find the blobs that need not be built.

    Args:
        table: the loaded table.
        snapshot: the snapshot to index.
        tasks: its data files.
        leftover: statistics files of earlier attempts that no metadata names.
        io: FileIO of the table.
        limits: for the values of a column in a file, and for the memory of their bitmaps.
    """
    entry = entry_of(table, snapshot.snapshot_id)
    known = KnownBlobs(own_path=None if entry is None else str(entry.get("statistics-path")))
    data_files = {task.data_file.path: task.data_file for task in tasks}
    older = {s.snapshot_id for s in table.metadata.ancestors(snapshot.snapshot_id)}
    newer = {
        e.get("statistics-path")
        for e in table.metadata.statistics
        if e["snapshot-id"] in table.metadata.snapshots.keys() - older
    }
    for path in (*leftover, *statistics_paths(table.metadata, snapshot)):
        try:
            blobs = cached_footer(path, io).blobs
        except (MalformedTableError, MissingFileError):
            continue  # damaged or missing, so it is rebuilt
        # data files that are unknown here may be those of a newer snapshot
        if all(
            b.type in _OF_COLUMNS and (path not in newer or b.properties.get(DATA_FILE) in data_files) for b in blobs
        ):
            known.removable.add(path)
        for blob in blobs:
            data_file = data_files.get(blob.properties.get(DATA_FILE, ""))
            if data_file is None or len(blob.fields) != 1:
                continue
            if blob.type == BLOB_TYPE and describes(blob, data_file):
                known.indexes.setdefault((data_file.path, blob.fields[0]), (path, blob))
            elif blob.type == NO_INDEX_TYPE and _is_still_unsuitable(blob, data_file, limits):
                known.unsuitable.setdefault((data_file.path, blob.fields[0]), (path, blob))
    for place in known.indexes.keys() & known.unsuitable.keys():
        del known.unsuitable[place]  # built later, with larger limits
    known.removable -= {*leftover}
    if known.own_path is not None and exists(known.own_path, io):
        known.others = [(known.own_path, blob) for blob in _foreign_blobs(known.own_path, io)]
    return known


def _is_still_unsuitable(blob: PuffinBlob, data_file: DataFile, limits: tuple[int, int]) -> bool:
    """Whether a file would be refused again: it is the same, and no limit is larger than it was."""
    stated = (data_file.path, str(data_file.record_count), str(data_file.file_size_bytes))
    properties = blob.properties
    before = [properties.get(name, "") for name in (_MAX_VALUES, _MEMORY_LIMIT)]
    return tuple(properties.get(name) for name in (DATA_FILE, RECORD_COUNT, FILE_BYTES)) == stated and all(
        text.isdecimal() and int(text[:19]) >= now for text, now in zip(before, limits, strict=True)
    )


DELETION_VECTOR = "deletion-vector-v1"


def _foreign_blobs(path: str, io: FileIOConfig) -> list[PuffinBlob]:
    """The blobs of other engines in a statistics file; none in a damaged file of ours.

    Raises:
        MalformedTableError: the file is another engine's and cannot be carried over.
    """
    try:
        footer = read_footer(path, io)
    except MalformedTableError:
        if path.endswith(INDEX_SUFFIX):
            return []
        raise
    # Manifests tell where deletion vectors are, and PyIceberg would take any other blob in such a file for one.
    return [blob for blob in footer.blobs if blob.type not in {*_OF_COLUMNS, DELETION_VECTOR}]


MAX_VALUE_BYTES = 16 * 1024**2
"""Maximum total size of the distinct values."""
MAX_ROWS = 2**32
"""Maximum rows of one file, since bitmaps number them with 32 bits."""


class UnsuitableColumnError(Exception):
    """A column cannot have a bitmap index in this file; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class EncodedIndex:
    """The bytes of an index: its directory, then the bitmaps in the same order."""

    directory: bytes
    bitmaps: Sequence[bytes]
    num_values: int

    @property
    def num_bytes(self) -> int:
        """Size of the blob."""
        return len(self.directory) + sum(map(len, self.bitmaps))


_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


class BitmapIndexBuilder:
    """Collects the rows of every value.

    Args:
        value_type: type of the column, or of the elements of its lists.
        is_list: whether rows have lists of values.
        max_values: limit for distinct values; a file with more gets no index.
        memory_limit_bytes: limit for the bitmaps.
    """

    def __init__(self, value_type: PrimitiveType, *, is_list: bool, max_values: int, memory_limit_bytes: int) -> None:
        self._type = value_type
        self._is_list = is_list
        self._max_values = max_values
        self._memory_limit_bytes = memory_limit_bytes
        stored = arrow_type(value_type)
        # equality of floating-point numbers is not that of their bytes, by which values are distinguished here
        self._stored = _BITS.get(stored, stored)
        self._values: pa.Array = pa.array([], self._stored)
        self._bitmaps: list[BitMap] = []
        self._nulls, self._null_elements = BitMap(), BitMap()

    def add(self, column: pa.Array, rows: Rows) -> None:
        """Add the values of some rows, in the type of the table, which may be dictionary-encoded.

        Raises:
            UnsuitableColumnError: too many values, or too many bytes of them or of bitmaps.
        """
        if len(rows) and int(rows[-1]) >= MAX_ROWS:
            raise UnsuitableColumnError(f"more than {MAX_ROWS} rows")
        if not self._is_list:
            self._add_values(column, rows, self._nulls)
            return
        self._nulls |= _bitmap(rows[np.asarray(pc.is_null(column))])
        elements, parents = pc.list_flatten(column), np.asarray(pc.list_parent_indices(column))
        self._add_values(elements, rows[parents], self._null_elements)

    def finish(self, num_rows: int) -> EncodedIndex:
        """Build the index of a file of `num_rows` rows, all of which were added."""
        ascending = self._values.view(arrow_type(self._type))
        order = np.asarray(pc.array_sort_indices(ascending)) if len(self._values) else np.zeros(0, np.int64)
        values = ascending.take(pa.array(order))
        bitmaps = [*(self._bitmaps[i] for i in order), self._nulls, self._null_elements]
        stored = []
        for bitmap in bitmaps:
            bitmap.run_optimize()
            data = struct.pack("<QI", 1, 0) + bitmap.serialize() if len(bitmap) else b""
            stored.append((len(bitmap), data))
        directory = encode_directory(values, self._type, stored, num_rows)
        return EncodedIndex(directory, [data for _, data in stored], len(values))

    def _add_values(self, column: pa.Array, rows: Rows, nulls: BitMap) -> None:
        if not isinstance(column, pa.DictionaryArray):
            column = (column.view(self._stored) if pa.types.is_floating(column.type) else column).dictionary_encode()
        encoded = column
        if encoded.dictionary.null_count:
            encoded = encoded.dictionary_decode().dictionary_encode()
        indices = encoded.indices
        if indices.null_count:
            null = np.asarray(indices.is_null())
            nulls |= _bitmap(rows[null])
            rows, indices = rows[~null], indices.drop_null()
        if len(indices) == 0:
            return
        codes = np.asarray(indices)
        used = np.flatnonzero(np.bincount(codes, minlength=len(encoded.dictionary)))
        entry_of_code = np.zeros(len(encoded.dictionary), np.int32)
        entry_of_code[used] = self._entries(encoded.dictionary.take(pa.array(used)))
        entries = entry_of_code[codes].astype(np.uint16 if len(self._values) <= 1 << 16 else np.int32)
        order = np.argsort(entries, kind="stable")
        ordered, sorted_rows = entries[order], rows[order]
        begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(ordered)], strict=True):
            self._bitmaps[ordered[begin]] |= _bitmap(sorted_rows[begin:end])
        # A bitmap takes at most two bytes a row, plus some 200 bytes.
        if 2 * (int(rows[-1]) + 1) + 200 * len(self._bitmaps) > self._memory_limit_bytes:
            raise UnsuitableColumnError(f"bitmaps would hold more than {self._memory_limit_bytes} bytes")

    def _entries(self, values: pa.Array) -> npt.NDArray[np.int32]:
        """The indices of distinct values; new values are added."""
        if pa.types.is_floating(values.type):
            values = values.view(self._stored)
        if values.type != self._values.type:
            values = values.cast(self._values.type)
        new = values.filter(pc.invert(pc.is_in(values, value_set=self._values))).unique()
        if len(new):
            if len(self._values) + len(new) > self._max_values:
                raise UnsuitableColumnError(f"more than {self._max_values} distinct values")
            self._values = pa.concat_arrays([self._values, new])
            if self._values.nbytes > MAX_VALUE_BYTES:
                raise UnsuitableColumnError(f"distinct values of more than {MAX_VALUE_BYTES} bytes")
            self._bitmaps.extend(BitMap() for _ in range(len(new)))
        found: npt.NDArray[np.int32] = np.asarray(pc.index_in(values, value_set=self._values))
        return found


def _bitmap(rows: Rows) -> BitMap:
    """A bitmap of rows below 2**32, which may repeat."""
    return BitMap(typed_array("I", rows.astype(np.uint32).tobytes()))


def statistics_entry(writer: PuffinWriter, snapshot: Snapshot, listed: Sequence[PuffinBlob]) -> dict[str, Any]:
    """The entry of table metadata for a completed Puffin file; `listed` are its blobs that other engines read."""
    blobs = [
        {
            "type": blob.type,
            "snapshot-id": blob.snapshot_id,
            "sequence-number": blob.sequence_number,
            "fields": list(blob.fields),
            **({"properties": dict(blob.properties)} if blob.properties else {}),
        }
        for blob in listed
    ]
    return {
        "snapshot-id": snapshot.snapshot_id,
        "statistics-path": writer.path,
        "file-size-in-bytes": writer.size_bytes,
        "file-footer-size-in-bytes": writer.footer_size_bytes,
        "blob-metadata": blobs,
    }


@dataclass(frozen=True, slots=True)
class Skipped:
    """A column that has no index in one data file, and the reason."""

    data_file: str
    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class IndexReport:
    """Report of a run. `path` is None if there was nothing to do."""

    snapshot_id: int
    columns: tuple[str, ...]
    data_files: int
    path: str | None
    built: int
    kept: int
    skipped: tuple[Skipped, ...]
    size_bytes: int


def build_indexes(
    target: CatalogTarget,
    columns: Sequence[str],
    *,
    snapshot_id: int | None = None,
    max_values: int = DEFAULT_MAX_VALUES,
    options: ScanOptions | None = None,
) -> IndexReport:
    """Build the missing bitmap indexes on columns in the data files of a snapshot.

    Args:
        target: the table.
        columns: names; members of structs as `struct.member`.
        snapshot_id: None is the current snapshot.
        max_values: limit for the distinct values of a column in a file; a file with more gets no index.
        options: limits; the memory limit applies to one column of one file.

    Raises:
        ConfigError: a column's type cannot be indexed, or no column was given.
        SourceError: the table has no snapshot.
        CommitConflictError: other writers kept changing the statistics.
    """
    chosen = options or ScanOptions()
    # A later attempt may copy from the files of earlier ones, so none is removed before the end. After any other error they
    # stay: the commit may have happened.
    leftover: list[str] = []
    try:
        report = retry_conflicts(lambda: _Run(target, columns, snapshot_id, max_values, chosen).run(leftover))
    except (CommitConflictError, CommitNotWrittenError):
        target.storage.remove(leftover)
        raise
    target.storage.remove(path for path in leftover if path != report.path)
    return report


class _Run:
    """One attempt, on the table as it is now."""

    def __init__(
        self,
        target: CatalogTarget,
        columns: Sequence[str],
        snapshot_id: int | None,
        max_values: int,
        options: ScanOptions,
    ) -> None:
        self._target = target
        self._table: Table = target.load()
        scan = self._table.scan().with_options(replace(options, parallelism=1))
        scan = scan if snapshot_id is None else scan.as_of_snapshot(snapshot_id)
        if scan.snapshot is None:
            raise SourceError(f"{self._table.location} has no snapshot to index")
        self._snapshot: Snapshot = scan.snapshot
        self._fields = indexed_fields(self._table.metadata.schema, columns, case_sensitive=options.case_sensitive)
        plan = scan.select().plan()
        self._context: ScanContext = plan.context
        self._tasks = [task.with_deletes() for task in plan.tasks]
        self._max_values = max_values
        self._skipped: list[Skipped] = []

    def run(self, leftover: list[str]) -> IndexReport:
        """Write the missing indexes to a file and register it; `leftover` are the files of earlier attempts."""
        io, limits = self._context.io, (self._max_values, self._context.options.memory_limit_bytes)
        known = find_known(self._table, self._snapshot, self._tasks, leftover, io=io, limits=limits)
        missing = []
        for task in self._tasks:
            for name, column in self._fields.items():
                place = task.data_file.path, column.field_id
                if place in known.unsuitable:
                    reason = known.unsuitable[place][1].properties.get(_REASON, "")
                    self._skipped.append(Skipped(task.data_file.path, name, reason))
                elif place not in known.indexes:
                    missing.append((task, name, column))
        path = f"{self._target.folder}/{uuid.uuid4()}{INDEX_SUFFIX}"
        with PuffinWriter(path, self._target.storage) as writer:
            for source, blob in known.others:
                writer.copy_blob(blob, source, io)
            num_built = sum(self._write(writer, task, name, column) for task, name, column in missing)
            has_news = len(writer.blobs) > len(known.others)
            copied = self._copied_files(known, leftover, writer.size_bytes if has_news else 0)
            if not has_news and copied <= {known.own_path}:
                return self._report(None, 0, len(known.indexes), 0)
            for source, blob in (*known.indexes.values(), *known.unsuitable.values()):
                if source in copied:
                    writer.copy_blob(blob, source, io)
            writer.close({"created-by": "nevermore"})
        leftover.append(path)
        entry = statistics_entry(writer, self._snapshot, [blob for _, blob in known.others])
        superseded = known.superseded(copied)
        self._target.set_statistics(self._table, entry, superseded)
        self._target.storage.remove(superseded)
        return self._report(path, num_built, len(known.indexes), writer.size_bytes)

    def _copied_files(self, known: KnownBlobs, leftover: Sequence[str], new_bytes: int) -> set[str | None]:
        """The files whose indexes are copied into the new one: those that it replaces, and all that are not larger.

        So that few files remain, and each index is copied a few times only (a log-structured merge).
        """
        sizes: Counter[str] = Counter()
        for path, blob in (*known.indexes.values(), *known.unsuitable.values()):
            sizes[path] += blob.length
        metadata = self._table.metadata
        unnamed = {
            str(s.get("statistics-path")) for s in metadata.statistics if s["snapshot-id"] not in metadata.snapshots
        }
        copied = {path for path in sizes if path == known.own_path or path in leftover or path in unnamed}
        if not new_bytes and not copied:
            return set()
        size = new_bytes + sum(sizes[path] for path in copied)
        for path in sorted(sizes.keys() - copied, key=sizes.__getitem__):
            if sizes[path] <= max(size, _ALWAYS_COPIED_BYTES):
                copied.add(path)
                size += sizes[path]
        return {*copied}

    def _write(self, writer: PuffinWriter, task: FileScanTask, name: str, column: NestedField) -> bool:
        """Append the index of a column in a data file, or the reason why there is none; whether there is one."""
        data_file = task.data_file
        try:
            encoded = self._encode(task, column)
        except UnsupportedError as error:
            self._skipped.append(Skipped(data_file.path, name, str(error)))
            return False
        except UnsuitableColumnError as error:
            self._skipped.append(Skipped(data_file.path, name, str(error)))
            properties = {
                _MAX_VALUES: str(self._max_values),
                _MEMORY_LIMIT: str(self._context.options.memory_limit_bytes),
                _REASON: str(error),
            }
            writer.write_blob(self._described(NO_INDEX_TYPE, data_file, column, properties), [])
            return False
        properties = {
            COLUMN_TYPE: str(value_type_of(column)),
            DIRECTORY_BYTES: str(len(encoded.directory)),
            "distinct-values": str(encoded.num_values),
            **({IS_LIST: "true"} if isinstance(column.type, ListType) else {}),
        }
        described = self._described(BLOB_TYPE, data_file, column, properties)
        writer.write_blob(described, [encoded.directory, *encoded.bitmaps])
        return True

    def _encode(self, task: FileScanTask, column: NestedField) -> EncodedIndex:
        value_type = value_type_of(column)
        builder = BitmapIndexBuilder(
            value_type,
            is_list=isinstance(column.type, ListType),
            max_values=self._max_values,
            memory_limit_bytes=self._context.options.memory_limit_bytes,
        )
        batches = column_batches(task, column, self._context)
        if batches is None:
            raise UnsuitableColumnError("the file does not have the column")
        num_rows, stated = 0, task.data_file.record_count
        for array, rows in batches:
            builder.add(array, rows)
            num_rows += len(rows)
        if num_rows != stated:
            raise UnsuitableColumnError(f"the file has {num_rows} rows, but its manifest states {stated}")
        return builder.finish(num_rows)

    def _described(self, kind: str, data_file: DataFile, column: NestedField, properties: dict[str, str]) -> PuffinBlob:
        file = {
            DATA_FILE: data_file.path,
            RECORD_COUNT: str(data_file.record_count),
            FILE_BYTES: str(data_file.file_size_bytes),
        }
        snapshot = self._snapshot
        fields = (column.field_id,)
        return PuffinBlob(kind, fields, snapshot.snapshot_id, snapshot.sequence_number, 0, 0, None, file | properties)

    def _report(self, path: str | None, built: int, kept: int, size_bytes: int) -> IndexReport:
        names = tuple(self._fields)
        skipped = tuple(self._skipped)
        return IndexReport(self._snapshot.snapshot_id, names, len(self._tasks), path, built, kept, skipped, size_bytes)
