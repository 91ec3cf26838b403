"""Reading the keys of equality-delete files: only the key columns, by field id, in the table's current types.

Delete files may hold more columns, in any order, under any names; they are ignored (rules 8b and 10). A file that
lacks a key column is refused, never read as NULL (rule 11).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pyarrow as pa

from scan_core.deletes.delete_keys import DeleteKeys
from scan_core.errors import MalformedTableError, MemoryLimitError, UnsupportedError
from scan_core.metrics import ScanMetrics
from scan_core.options import ScanOptions
from scan_core.read.conversion import ConversionContext, Convert, compile_conversion, is_identity
from scan_core.read.file_reader import FileReader, RowGroup, field_id_of
from scan_core.read.memory_budget import MemoryBudget
from scan_core.read.name_mapping import apply_name_mapping
from scan_core.read.open_file import open_file
from scan_core.rows.algebra import from_ranges
from scan_core.rows.selection import All
from scan_core.schema import NestedField, StructType, arrow_type
from scan_core.snapshot import DeleteFile
from scan_core.split import EqualityDeleteGroup, ScanContext

_MOST_PARTS, _LEAST_ROWS_PER_PART = 10_000, 64
"""More parts of fewer rows would take hours: no keys or paths are that long."""
_FILES_PER_THREAD = 8
"""Fewer small files than this are read faster by one thread than handed to two."""


def key_fields(key_ids: Sequence[int], context: ScanContext, path: str) -> tuple[NestedField, ...]:
    """The key fields as the newest schema that has them defines them (rules 13 and 14).

    Raises:
        MalformedTableError: no ids, an id that no schema of the table has, or one inside a list or map (rule 11).
    """
    if not key_ids:
        raise MalformedTableError(f"{path}: equality deletes without equality_ids")
    found = []
    for field_id in key_ids:
        field_path = context.field_paths.get(field_id)
        if field_path is None:
            raise MalformedTableError(f"{path}: equality_ids name field {field_id}, which no schema of the table has")
        if any(not isinstance(f.type, StructType) for f in field_path[:-1]):
            raise MalformedTableError(f"{path}: equality_ids name field {field_id}, which lies inside a list or map")
        if pa.types.is_nested(arrow_type(field_path[-1].type)):
            raise MalformedTableError(
                f"{path}: equality_ids name field {field_id} of type {field_path[-1].type}; keys must be primitive"
            )
        found.append(field_path[-1])
    return tuple(found)


def load_keys(group: EqualityDeleteGroup, context: ScanContext, metrics: ScanMetrics) -> list[DeleteKeys]:
    """The keys of every file of the group, one entry per file and row group.

    Raises:
        MalformedTableError: rule 11, or a file that cannot be read; names the file.
        MissingFileError: a delete file is gone.
    """
    threads = min(context.options.parallelism, -(-len(group.files) // _FILES_PER_THREAD))
    if threads <= 1:
        return _load_files(group.files, group.key_ids, context, metrics)
    edges = [len(group.files) * i // threads for i in range(threads + 1)]
    counts = [ScanMetrics() for _ in range(threads)]
    with ThreadPoolExecutor(threads, thread_name_prefix="delete-loader") as pool:
        jobs = [
            pool.submit(_load_files, group.files[begin:end], group.key_ids, context, count)
            for (begin, end), count in zip(pairwise(edges), counts, strict=True)
        ]
        loaded = [keys for job in jobs for keys in job.result()]
    for count in counts:
        metrics.add(count)
    return loaded


def iterate_keys(group: EqualityDeleteGroup, context: ScanContext, metrics: ScanMetrics) -> Iterator[DeleteKeys]:
    """The keys of the group one row group at a time, ascending by sequence number."""
    columns = _KeyColumns(key_fields(group.key_ids, context, group.files[0].path), context)
    for file in sorted(group.files, key=lambda f: f.data_sequence_number):
        yield from _file_keys(file, columns, context, metrics)


def _load_files(
    files: Sequence[DeleteFile], key_ids: Sequence[int], context: ScanContext, metrics: ScanMetrics
) -> list[DeleteKeys]:
    columns = _KeyColumns(key_fields(key_ids, context, files[0].path), context)
    return [keys for file in files for keys in _file_keys(file, columns, context, metrics)]


def _file_keys(
    file: DeleteFile, columns: "_KeyColumns", context: ScanContext, metrics: ScanMetrics
) -> Iterator[DeleteKeys]:
    """The keys of one delete file, by row group, key columns in the order of the key fields."""
    if file.is_encrypted:
        raise UnsupportedError(f"{file.path}: encrypted delete files are not supported")
    whole = context.options.read_small_files_whole
    reader = open_file(file.path, file.format, context.io, file.file_size_bytes, whole=whole)
    metrics.delete_files_opened += 1
    metrics.delete_bytes_read += file.file_size_bytes
    try:
        sources = columns.of(reader, file.path)
        indices = sorted({index for index, _ in sources})
        for group in reader.row_groups:
            for found in _keys_in_parts(reader, group, indices, context.options, file.path):
                arrays = dict(zip(indices, found, strict=True))
                metrics.delete_rows_loaded += len(found[0])
                yield DeleteKeys(file.data_sequence_number, tuple(get(arrays[index]) for index, get in sources))
    finally:
        reader.close()


def read_in_parts(
    reader: FileReader, group: RowGroup, indices: Sequence[int], options: ScanOptions, path: str
) -> Iterator[list[pa.Array]]:
    """Columns of a row group of a delete file, in parts where they would be too large at once.

    Raises:
        MemoryLimitError: a single row or page is too large, or there would be very many parts of a few rows.
    """
    rows = range(group.num_rows)
    windows = reader.windows(group, indices, rows, MemoryBudget(options).limits)
    if windows is None:
        yield reader.read(group, indices, All(group.num_rows))
        return
    if len(windows) > _MOST_PARTS and group.num_rows < _LEAST_ROWS_PER_PART * len(windows):
        raise MemoryLimitError(
            f"{path}: row group {group.index}: its {group.num_rows} rows of deletes are so wide that {len(windows)} parts would "
            "have to be read; raise memory_limit_bytes"
        )
    for window in windows:
        yield reader.read(group, indices, from_ranges([(window.start, window.stop)], group.num_rows), window)


def _keys_in_parts(
    reader: FileReader, group: RowGroup, indices: Sequence[int], options: ScanOptions, path: str
) -> Iterator[list[pa.Array]]:
    """The key columns of a row group, which are kept."""
    # a limit below what any page may take is for indexes that are built in parts, not for the keys of one row group
    most_bytes = max(options.memory_limit_bytes, MemoryBudget(options).limits.most_bytes)
    num_bytes = 0
    for found in read_in_parts(reader, group, indices, options, path):
        num_bytes += sum(array.nbytes for array in found)
        if len(found[0]) < group.num_rows and num_bytes > most_bytes:
            raise MemoryLimitError(
                f"{path}: the keys of row group {group.index} become more than {most_bytes} bytes; raise memory_limit_bytes"
            )
        yield found


class _KeyColumns:
    """Where files hold the key fields: found once for files of one schema, if their values pass unchanged."""

    def __init__(self, fields: Sequence[NestedField], context: ScanContext) -> None:
        self._fields = fields
        self._name_mapping = context.name_mapping
        self._schema: pa.Schema | None = None
        self._sources: list[tuple[int, Convert]] = []

    def of(self, reader: FileReader, path: str) -> list[tuple[int, Convert]]:
        """The top-level column of each key field, and how its values become keys.

        Raises:
            MalformedTableError: a key field is not there, or not of a type that can be one.
        """
        schema = reader.arrow_schema
        if schema is self._schema:  # files of one schema share it: see `file_columns.py`
            return self._sources
        named = schema
        if not reader.has_field_ids and self._name_mapping:
            named = apply_name_mapping(schema, self._name_mapping)
        sources = [_key_source(named, field, path) for field in self._fields]
        if all(is_identity(convert) for _, convert in sources):  # others name the file when they fail
            self._schema, self._sources = schema, sources
        return sources


def _key_source(schema: pa.Schema, field: NestedField, path: str) -> tuple[int, Convert]:
    """The top-level column that holds a key field, and how its values become keys; a NULL parent makes it NULL."""
    steps = _locate(list(schema), field.field_id, path)
    if steps is None:
        raise MalformedTableError(f"{path}: equality_ids name field {field.field_id} ({field.name}), which it lacks")
    file_field = schema.field(steps[0])
    for step in steps[1:]:
        file_field = file_field.type.field(step)

    def missing(member: NestedField) -> pa.Scalar:
        raise MalformedTableError(f"{path}: lacks the member {member.name!r} of a key")

    convert = compile_conversion(file_field, field, ConversionContext(path, missing))

    if len(steps) == 1:
        return steps[0], convert

    def values(array: pa.Array) -> pa.Array:
        for step in steps[1:]:
            array = array.flatten()[step]
        return convert(array)

    return steps[0], values


def _locate(fields: Sequence[pa.Field], field_id: int, path: str) -> list[int] | None:
    """Steps down to the field with this id through structs; refused inside lists and maps."""
    for index, field in enumerate(fields):
        if field_id_of(field) == field_id:
            return [index]
        if not pa.types.is_nested(field.type):
            continue
        children = [field.type.field(i) for i in range(field.type.num_fields)]
        if (below := _locate(children, field_id, path)) is None:
            continue
        if not pa.types.is_struct(field.type):
            raise MalformedTableError(f"{path}: key field {field_id} lies inside the {field.type} {field.name!r}")
        return [index, *below]
    return None
