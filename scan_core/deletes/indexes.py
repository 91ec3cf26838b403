"""Indexes of equality-delete groups: built from delete files, or taken from the cache or from another process's file.

Keys that another delete set or a semi join makes unnecessary are left out before an index is built. A row with another
key than those of the join is not in the result whether it is deleted or not, so only filters that the result depends on
narrow deletes, and only by key columns (SEMANTICS rule 8b).
"""

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary, ref

import numpy as np
import pyarrow as pa

from nevermore.scan_core.columns.conversion import ConversionContext, Convert, compile_conversion, is_identity
from nevermore.scan_core.columns.file_reader import FileReader, MemoryBudget, RowGroup, apply_name_mapping, field_id_of
from nevermore.scan_core.files import open_file
from nevermore.scan_core.io.cache import BoundedCache, SharedBuilds
from nevermore.scan_core.io.files import fingerprint
from nevermore.scan_core.io.location import FileIOConfig, relocate
from nevermore.scan_core.keys.equality_index import (
    EqualityIndex,
    FlatIndex,
    build_bytes,
    build_index,
    build_index_streamed,
    covers_all,
    find_deleted,
    needs_streaming,
    shared_index,
)
from nevermore.scan_core.keys.lookup import DeleteKeys
from nevermore.scan_core.model.errors import MalformedTableError, MemoryLimitError, UnsupportedError
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.running import awaited, check_running, current
from nevermore.scan_core.model.schema import NestedField, StructType, arrow_type
from nevermore.scan_core.model.snapshot import DeleteFile
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.verdicts import Match
from nevermore.scan_core.rows.buffers import Mask, boolean_array
from nevermore.scan_core.rows.selection import All, RowSelection, from_ranges, refine, selected_count
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, ScanContext

if TYPE_CHECKING:
    from nevermore.scan_core.joins.key_set import KeyLookup


_MAX_PARTS, _MIN_ROWS_PER_PART = 10_000, 64
"""More parts of fewer rows would take hours: no keys or paths are that long."""
_FILES_PER_THREAD = 8
"""Fewer small files than this are read faster by one thread than handed to two."""
_REQUESTS = 16
"""Delete files that are loaded at a time from an object store."""
_LOADING_SHARE = 8
"""Of the memory limit, for what is being loaded."""


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


Narrowing: TypeAlias = "Cover | DeleteNarrowing"
"""What makes keys of a delete set unnecessary, as some of its key columns show.

The columns that it needs are read first, and others only for the keys that are left.
"""


def load_keys(
    group: EqualityDeleteGroup, context: ScanContext, metrics: ScanMetrics, narrowings: Sequence[Narrowing] = ()
) -> list[DeleteKeys]:
    """The keys of every file of the group that are needed, one entry per file and row group.

    Raises:
        MalformedTableError: rule 11, or a file that cannot be read; names the file.
        MissingFileError: a delete file is gone.
    """
    threads = _loading_threads(group.files, context)
    if threads <= 1:
        return list(_keys_of_files(group.files, group.key_ids, context, metrics, narrowings))
    edges = [len(group.files) * i // threads for i in range(threads + 1)]
    counts = [ScanMetrics() for _ in range(threads)]

    running = current()

    def load(begin: int, end: int, count: ScanMetrics) -> list[DeleteKeys]:
        with nullcontext() if running is None else running.at_work():
            return list(_keys_of_files(group.files[begin:end], group.key_ids, context, count, narrowings))

    with ThreadPoolExecutor(threads, thread_name_prefix="delete-loader") as pool:
        jobs = [pool.submit(load, *ends, count) for ends, count in zip(pairwise(edges), counts, strict=True)]
        loaded = [keys for job in jobs for keys in awaited(job)]
    for count in counts:
        metrics.add(count)
    return loaded


def _loading_threads(files: Sequence[DeleteFile], context: ScanContext) -> int:
    """How many delete files to load at a time: on an object store, where each costs round trips, as many as memory allows."""
    options = context.options
    if relocate(files[0].path, context.io).is_local:
        return min(options.parallelism, -(-len(files) // _FILES_PER_THREAD))
    largest = build_bytes(max(f.record_count for f in files), max(f.file_size_bytes for f in files))
    fitting = options.memory_limit_bytes // _LOADING_SHARE // max(largest, 1)
    return min(len(files), max(options.parallelism, min(fitting, _REQUESTS)))


def _keys_of_files(
    files: Sequence[DeleteFile],
    key_ids: Sequence[int],
    context: ScanContext,
    metrics: ScanMetrics,
    narrowings: Sequence[Narrowing],
) -> Iterator[DeleteKeys]:
    columns = _KeyColumns(key_fields(key_ids, context, files[0].path), context)
    for file in files:
        check_running()
        yield from _file_keys(file, columns, context, metrics, narrowings)


def _file_keys(
    file: DeleteFile,
    columns: "_KeyColumns",
    context: ScanContext,
    metrics: ScanMetrics,
    narrowings: Sequence[Narrowing],
) -> Iterator[DeleteKeys]:
    """The keys of one delete file, by row group, key columns in the order of the key fields."""
    if file.is_encrypted:
        raise UnsupportedError(f"{file.path}: encrypted delete files are not supported")
    reader = open_file(file.path, file.format, context.io, whole=True)
    metrics.delete_files_opened += 1
    metrics.delete_bytes_read += file.file_size_bytes
    try:
        sources = columns.of(reader, file.path)
        indices = sorted({index for index, _ in sources})
        for group in reader.row_groups:
            if (
                narrowings
                and reader.windows(group, indices, range(group.num_rows), MemoryBudget(context.options).limits) is None
            ):
                yield _needed_keys(reader, group, sources, file.data_sequence_number, narrowings, metrics=metrics)
                continue
            for found in _keys_in_parts(reader, group, indices, context.options, file.path):
                arrays = dict(zip(indices, found, strict=True))
                metrics.delete_rows_loaded += len(found[0])
                keys = DeleteKeys(file.data_sequence_number, tuple(get(arrays[index]) for index, get in sources))
                yield needed_keys(keys, narrowings, metrics)
    finally:
        reader.close()


def needed_keys(keys: DeleteKeys, narrowings: Sequence[Narrowing], metrics: ScanMetrics) -> DeleteKeys:
    """Drop the keys of one delete file that are not needed."""
    for narrowing in narrowings:
        keep = narrowing.keeps([keys.columns[p] for p in narrowing.places], keys.sequence_number)
        if not keep.all():
            metrics.delete_keys_left_out += len(keep) - int(np.count_nonzero(keep))
            kept = boolean_array(keep)
            keys = DeleteKeys(keys.sequence_number, tuple(column.filter(kept) for column in keys.columns))
    return keys


def _needed_keys(
    reader: FileReader,
    group: RowGroup,
    sources: Sequence[tuple[int, Convert]],
    sequence_number: int,
    narrowings: Sequence[Narrowing],
    *,
    metrics: ScanMetrics,
) -> DeleteKeys:
    """The keys of one row group that are needed; nothing else of it is read."""
    selection: RowSelection = All(group.num_rows)
    read: dict[int, pa.Array] = {}

    def load(places: Iterable[int]) -> list[pa.Array]:
        absent = sorted({sources[p][0] for p in places} - read.keys())
        read.update(zip(absent, reader.read(group, absent, selection), strict=True))
        return [sources[p][1](read[sources[p][0]]) for p in places]

    def statistics(place: int) -> ColumnStatistics | None:
        index, convert = sources[place]
        return reader.statistics(group, index) if is_identity(convert) else None

    for narrowing in narrowings:
        num_rows = selected_count(selection)
        if not narrowing.may_keep([statistics(p) for p in narrowing.places], sequence_number):
            keep = np.zeros(num_rows, np.bool_)
        else:
            keep = narrowing.keeps(load(narrowing.places), sequence_number)
        if keep.all():
            continue
        metrics.delete_keys_left_out += num_rows - int(np.count_nonzero(keep))
        selection, kept = refine(selection, keep), boolean_array(keep)
        read = {index: array.filter(kept) for index, array in read.items()}
        if not keep.any():
            break
    metrics.delete_rows_loaded += group.num_rows if read else 0
    return DeleteKeys(sequence_number, tuple(load(range(len(sources)))))


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
    if len(windows) > _MAX_PARTS and group.num_rows < _MIN_ROWS_PER_PART * len(windows):
        raise MemoryLimitError(
            f"{path}: row group {group.index}: its {group.num_rows} rows of deletes are so wide that {len(windows)} parts would "
            "have to be read; raise memory_limit_bytes"
        )
    for window in windows:
        yield reader.read(group, indices, from_ranges([(window.start, window.stop)], group.num_rows), window)


def _keys_in_parts(
    reader: FileReader, group: RowGroup, indices: Sequence[int], options: ScanOptions, path: str
) -> Iterator[list[pa.Array]]:
    """The key columns of a row group, in parts; the caller keeps all of them."""
    # a limit below what any page may take is for indexes that are built in parts, not for the keys of one row group
    max_bytes = max(options.memory_limit_bytes, MemoryBudget(options).limits.max_bytes)
    num_bytes = 0
    for found in read_in_parts(reader, group, indices, options, path):
        num_bytes += sum(array.nbytes for array in found)
        if len(found[0]) < group.num_rows and num_bytes > max_bytes:
            raise MemoryLimitError(
                f"{path}: the keys of row group {group.index} become more than {max_bytes} bytes; raise memory_limit_bytes"
            )
        yield found


class _KeyColumns:
    """Where files hold the key fields: found once for files of one schema, if their values pass unchanged."""

    def __init__(self, fields: tuple[NestedField, ...], context: ScanContext) -> None:
        self._fields = fields
        self._name_mapping = context.name_mapping

    def of(self, reader: FileReader, path: str) -> list[tuple[int, Convert]]:
        """The top-level column of each key field, and how its values become keys.

        Raises:
            MalformedTableError: a key field is not there, or not of a type that can be one.
        """
        schema = reader.arrow_schema
        if not reader.has_field_ids and self._name_mapping:
            named = apply_name_mapping(schema, self._name_mapping)
            return [_key_source(named, field, path) for field in self._fields]
        known = _KEY_SOURCES.find((id(schema), self._fields))
        if known is not None:
            return known[1]
        sources = [_key_source(schema, field, path) for field in self._fields]
        if all(is_identity(convert) for _, convert in sources):  # others name the file when they fail
            _KEY_SOURCES.put((id(schema), self._fields), (schema, sources), _REMEMBERED_GROUPS)
        return sources


_REMEMBERED_GROUPS = 256
_KEY_SOURCES: BoundedCache[Hashable, tuple[pa.Schema, list[tuple[int, Convert]]]] = BoundedCache()
"""By `id()` of a schema, which files share (see `files/parquet/file_layout.py`) and the cache keeps alive."""
os.register_at_fork(after_in_child=_KEY_SOURCES.forget_threads)


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


@dataclass(frozen=True, slots=True)
class Cover:
    """The index of a group whose key columns are some of those of another, and whose scope holds the other's.

    Keys that it deletes with the same or a higher sequence number are not needed.
    """

    places: tuple[int, ...]
    index: EqualityIndex

    def may_keep(self, statistics: Sequence[ColumnStatistics | None], sequence_number: int) -> bool:
        """False only if no key of a delete file is needed: where it deletes every value between the bounds of its only column."""
        return len(statistics) != 1 or not covers_all(self.index, statistics[0], self._threshold(sequence_number))

    def keeps(self, columns: Sequence[pa.Array], sequence_number: int) -> Mask:
        """The keys that it does not delete."""
        return ~find_deleted(self.index, columns, self._threshold(sequence_number))

    def _threshold(self, sequence_number: int) -> int:
        return bisect_left(self.index.sequence_numbers, sequence_number)


T = TypeVar("T")


class DeleteCache:
    """A least-recently-used cache of what states its `num_bytes` and can be referenced weakly; each caller states the number of bytes it may hold."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: BoundedCache[Hashable, Any] = BoundedCache(lambda entry: entry.num_bytes)
        self._alive: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._building: SharedBuilds[Hashable, Any] = SharedBuilds()
        self._held: dict[int, Any] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the entries kept."""
        return self._kept.size

    def get_or_build(self, key: Hashable, build: Callable[[], T], limit_bytes: int, metrics: ScanMetrics) -> T:
        """The entry of `key`; if it is missing, exactly one thread builds it and the others wait.

        An error of `build` is raised to everybody who waits, and not remembered.
        """

        def find() -> "T | None":  # evaluated in each call otherwise, in 15 us
            with self._lock:
                found = self._alive.get(key)
                if found is not None:
                    self._keep(key, found, limit_bytes)
                return found

        def build_and_keep() -> T:
            built = build()
            with self._lock:
                self._alive[key] = built
                self._keep(key, built, limit_bytes)
            return built

        entry: T
        entry, is_new = self._building.get(key, find, build_and_keep)
        metrics.delete_index_hits += not is_new
        return entry

    def hold(self, entry: Any, owner: object) -> None:
        """Keep the few entries that were used last for as long as their owners live, such as groups of a scan that goes on.

        However little is to be cached, the next file of the scan needs them again.
        """
        key, held = id(owner), self._held
        held.pop(key, None)
        held[key] = entry, ref(owner, lambda _: held.pop(key, None))
        for other in list(held)[:-_MAX_HELD]:
            held.pop(other, None)

    def holds(self, key: Hashable) -> bool:
        """Whether an entry is there, and need not be built."""
        with self._lock:
            return key in self._alive

    def clear(self) -> None:
        """Remove every entry."""
        with self._lock:
            self._held.clear()
            self._kept.clear()
            self._alive.clear()

    def forget_threads(self) -> None:
        """Reset the lock and pending builds in a forked process, which does not have the threads that held them."""
        self._lock = threading.Lock()
        self._kept.forget_threads()
        self._building.forget_threads()

    def _keep(self, key: Hashable, entry: Any, limit_bytes: int) -> None:
        if limit_bytes > 0:
            self._kept.get(key, lambda: entry, limit_bytes)


_MAX_HELD = 4
"""More sets of keys than the deletes of a file have."""
DELETE_CACHE = DeleteCache()
"""The cache of this process."""
os.register_at_fork(after_in_child=DELETE_CACHE.forget_threads)


def equality_index(group: EqualityDeleteGroup, context: ScanContext, metrics: ScanMetrics) -> EqualityIndex:
    """The index of a group, from the cache of this process if it is there.

    Raises:
        MalformedTableError: a delete file that breaks a rule; names file and field.
        MissingFileError: a delete file is gone.
    """
    source = _KeySource(group, context, metrics)
    limit = context.options.delete_cache_bytes
    index = DELETE_CACHE.get_or_build(source.cache_key, source.build_or_map, limit, metrics)
    DELETE_CACHE.hold(index, group)
    return index


class _KeySource:
    """The delete files of a group, and how an index is made from them."""

    def __init__(
        self,
        group: EqualityDeleteGroup,
        context: ScanContext,
        metrics: ScanMetrics,
    ) -> None:
        self._group = group
        self._context = context
        self._metrics = metrics
        self._kinds = tuple(arrow_type(f.type) for f in key_fields(group.key_ids, context, group.files[0].path))
        self._narrowing = self._narrowed_by() if context.runtime_filters else None

    @property
    def cache_key(self) -> Hashable:
        """Everything the index depends on: files, key types (rule 14), how files are found and read, covering groups."""
        covers = tuple(_KeySource(g, self._context, self._metrics).cache_key for g in self._covering)
        kinds = tuple(map(str, self._kinds))
        files = _group_key(self._group, self._context.io)
        narrowed = () if self._narrowing is None else (self._narrowing.digest,)
        return "equality", self._group.key_ids, kinds, files, repr(self._context.name_mapping), covers, *narrowed

    def _narrowed_by(self) -> "DeleteNarrowing | None":
        """The semi join that leaves few of the keys, unless an index of all of them is there already."""
        found = narrowing_of(self._group, self._kinds, self._context)
        if found is None:
            return None
        plain = _KeySource(self._group, replace(self._context, runtime_filters=()), self._metrics)
        return None if DELETE_CACHE.holds(plain.cache_key) else found

    @property
    def _covering(self) -> tuple[EqualityDeleteGroup, ...]:
        return self._group.covered_by if self._context.options.switches.prune_deletes else ()

    def build_or_map(self) -> EqualityIndex:
        """Build the index, or map what another process of this host has built."""
        options, files = self._context.options, self._group.files
        expected = build_bytes(sum(f.record_count for f in files), sum(f.file_size_bytes for f in files))
        if needs_streaming(expected, options.memory_limit_bytes):
            self._metrics.delete_indexes_built += 1
            numbers = tuple(sorted({f.data_sequence_number for f in files}))
            return build_index_streamed(self._iterate, self._kinds, numbers, expected, options.memory_limit_bytes)
        if options.index_folder is None:
            return self._build_whole()
        return shared_index(options.index_folder, self.cache_key, self._build_whole)

    def _build_whole(self) -> FlatIndex:
        self._metrics.delete_indexes_built += 1
        keys = load_keys(self._group, self._context, self._metrics, self._narrowings())
        return build_index(keys, self._kinds, self._context.options.memory_limit_bytes)

    def _iterate(self) -> Iterator[DeleteKeys]:
        """The keys that are needed, one row group at a time, ascending by sequence number."""
        files = sorted(self._group.files, key=lambda f: f.data_sequence_number)
        return _keys_of_files(files, self._group.key_ids, self._context, self._metrics, self._narrowings())

    def _narrowings(self) -> list[Narrowing]:
        """The semi join, which leaves few keys, before the other delete sets."""
        return [
            *([] if self._narrowing is None else [self._narrowing]),
            *(
                Cover(
                    tuple(self._group.key_ids.index(i) for i in covering.key_ids),
                    equality_index(covering, self._context, self._metrics),
                )
                for covering in self._covering
            ),
        ]


def file_key(file: DeleteFile, io: FileIOConfig) -> Hashable:
    """A key that identifies the content of a delete file."""
    return (
        fingerprint(file.path, io),
        file.file_size_bytes,
        file.data_sequence_number,
        file.content_offset,
        file.content_size_bytes,
        io.relocate,
        tuple(sorted(io.properties.items())),
    )


def _group_key(group: EqualityDeleteGroup, io: FileIOConfig) -> Hashable:
    """A key that identifies the content of all files of a group, so that a thousand tasks do not look at a thousand files each."""
    known: tuple[FileIOConfig, Hashable] | None = vars(group).get(
        "_content_key"
    )  # goes with the group, when the scan ends
    if known is None or known[0] != io:
        key = tuple(sorted((file_key(file, io) for file in group.files), key=repr))
        known = vars(group)["_content_key"] = io, key
    return known[1]


_MIN_RATIO = 8
"""Delete keys per key of the join: with fewer, an index that later scans find in the cache is worth more."""


@dataclass(frozen=True, slots=True, eq=False)
class DeleteNarrowing:
    """Keys of a join, with the positions of their columns among the key columns of a delete set."""

    lookup: "KeyLookup"
    places: tuple[int, ...]

    @property
    def digest(self) -> str:
        """Identifies this narrowing in the cache key of an index."""
        return f"{self.lookup.keys.digest} {self.places}"

    def may_keep(self, statistics: Sequence[ColumnStatistics | None], sequence_number: int) -> bool:
        """False where no key of the join lies between the bounds."""
        del sequence_number
        by_id = {field.field_id: found for field, found in zip(self.lookup.keys.fields, statistics, strict=True)}
        return self.lookup.match(by_id.get) is not Match.NEVER

    def keeps(self, columns: Sequence[pa.Array], sequence_number: int) -> Mask:
        """The delete keys that rows of the result may have."""
        del sequence_number
        return self.lookup.contains(columns)


def narrowing_of(
    group: EqualityDeleteGroup, kinds: Sequence[pa.DataType], context: ScanContext
) -> DeleteNarrowing | None:
    """The first semi join that leaves few keys of a delete set; None if none does.

    Args:
        group: the delete set.
        kinds: of its key columns, as they are loaded.
        context: of the scan.
    """
    if not context.options.switches.use_runtime_filters or not context.options.switches.prune_deletes:
        return None
    if not context.runtime_filters:
        return None
    from nevermore.scan_core.joins.key_set import KeySet  # loaded on demand: scans without a join start sooner

    rows = sum(file.record_count for file in group.files)
    for filter_ in context.runtime_filters:
        keys = filter_.keys if filter_.is_exact else None
        if not isinstance(keys, KeySet) or keys.num_keys * _MIN_RATIO > rows:
            continue
        if not all(f.field_id in group.key_ids for f in filter_.fields):
            continue
        places = tuple(group.key_ids.index(f.field_id) for f in filter_.fields)
        if all(kinds[p] == column.type for p, column in zip(places, keys.columns, strict=True)):
            return DeleteNarrowing(keys.lookup(context.options), places)
    return None
