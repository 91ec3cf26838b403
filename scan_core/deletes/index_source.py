"""Where the index of an equality-delete group comes from: the cache, a file of another process, or its delete files.

Which form it takes is decided by `equality.py`; what a cached one depends on is stated here.
"""

import os
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from scan_core.bounded_cache import BoundedCache
from scan_core.deletes.cache import DELETE_CACHE
from scan_core.deletes.delete_keys import DeleteKeys
from scan_core.deletes.equality import (
    EqualityIndex,
    build_bytes,
    build_index,
    build_index_streamed,
    needs_streaming,
)
from scan_core.deletes.index_file import FlatIndex, shared_index
from scan_core.deletes.loader import iterate_keys, key_fields, load_keys
from scan_core.deletes.simplify import Cover, without_covered
from scan_core.file_io import fingerprint
from scan_core.metrics import ScanMetrics
from scan_core.native.compiled import may_use_numba
from scan_core.schema import arrow_type
from scan_core.snapshot import DeleteFile
from scan_core.split import EqualityDeleteGroup, FileIOConfig, ScanContext

if TYPE_CHECKING:
    from scan_core.runtime_filter.delete_narrowing import DeleteNarrowing

_REMEMBERED_GROUPS = 256


def equality_index(group: EqualityDeleteGroup, context: ScanContext, metrics: ScanMetrics) -> EqualityIndex:
    """The index of a group, from the cache of this process if it is there.

    Raises:
        MalformedTableError: a delete file that breaks a rule; names file and field.
        MissingFileError: a delete file is gone.
    """
    source = _KeySource(group, context, metrics)
    index: EqualityIndex = DELETE_CACHE.get_or_build(
        source.cache_key, source.build_or_map, context.options.delete_cache_bytes, metrics
    )
    return index


class _KeySource:
    """The delete files of a group, and how an index is made from them."""

    def __init__(self, group: EqualityDeleteGroup, context: ScanContext, metrics: ScanMetrics) -> None:
        self._group = group
        self._context = context
        self._metrics = metrics
        self._kinds = tuple(arrow_type(f.type) for f in key_fields(group.key_ids, context, group.files[0].path))
        self._use_numba = may_use_numba(context.options)
        self._narrowing = None if not context.runtime_filters else self._narrowed_by()

    @property
    def cache_key(self) -> Hashable:
        """What the index depends on: files, key types (rule 14), how files are found and read, covering groups."""
        covers = tuple(_KeySource(g, self._context, self._metrics).cache_key for g in self._covering)
        kinds = tuple(map(str, self._kinds))
        files = _group_key(self._group, self._context.io)
        narrowed = () if self._narrowing is None else (self._narrowing.digest,)
        return "equality", self._group.key_ids, kinds, files, repr(self._context.name_mapping), covers, *narrowed

    def _narrowed_by(self) -> "DeleteNarrowing | None":
        """The semi join that leaves few of the keys, unless an index of all of them is there already."""
        from scan_core.runtime_filter.delete_narrowing import narrowing_of

        found = narrowing_of(self._group, self._kinds, self._context, use_numba=self._use_numba)
        if found is None:
            return None
        plain = _KeySource(self._group, replace(self._context, runtime_filters=()), self._metrics)
        return None if DELETE_CACHE.holds(plain.cache_key) else found

    @property
    def _covering(self) -> tuple[EqualityDeleteGroup, ...]:
        return self._group.covered_by if self._context.options.prune_deletes else ()

    def build_or_map(self) -> EqualityIndex:
        """Build the index, or map what another process of this host has built."""
        options, files = self._context.options, self._group.files
        expected = build_bytes(sum(f.record_count for f in files), sum(f.file_size_bytes for f in files))
        if needs_streaming(expected, options.memory_limit_bytes):
            self._metrics.delete_indexes_built += 1
            numbers = tuple(sorted({f.data_sequence_number for f in files}))
            return build_index_streamed(
                self._iterate, self._kinds, numbers, expected, options.memory_limit_bytes, use_numba=self._use_numba
            )
        if options.index_folder is None:
            return self._build_whole()
        index: EqualityIndex = shared_index(options.index_folder, self.cache_key, self._build_whole)
        return index

    def _build_whole(self) -> FlatIndex:
        self._metrics.delete_indexes_built += 1
        keys = list(self._uncovered(load_keys(self._group, self._context, self._metrics)))
        return build_index(keys, self._kinds, self._context.options.memory_limit_bytes, use_numba=self._use_numba)

    def _iterate(self) -> Iterator[DeleteKeys]:
        return self._uncovered(iterate_keys(self._group, self._context, self._metrics))

    def _uncovered(self, keys: Iterable[DeleteKeys]) -> Iterator[DeleteKeys]:
        if self._narrowing is not None:
            keys = self._narrowing.keys_left(keys, self._metrics)
        if not self._covering:
            return iter(keys)
        covers = [Cover(g.key_ids, equality_index(g, self._context, self._metrics)) for g in self._covering]
        return without_covered(keys, self._group.key_ids, covers, use_numba=self._use_numba)


def file_key(file: DeleteFile, io: FileIOConfig) -> Hashable:
    """What tells the content of a delete file from that of any other."""
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
    """A key that differs for files of other content, so that a thousand tasks do not look at a thousand files each."""
    known = _GROUP_KEYS.find(id(group))
    if known is not None and known[1] == io:
        return known[2]
    key = tuple(sorted((file_key(file, io) for file in group.files), key=repr))
    _GROUP_KEYS.put(id(group), (group, io, key), _REMEMBERED_GROUPS)
    return key


_GROUP_KEYS: BoundedCache[int, tuple[EqualityDeleteGroup, FileIOConfig, Hashable]] = BoundedCache()
"""By identity: a group that is remembered lives on, so no other can have its."""
os.register_at_fork(after_in_child=_GROUP_KEYS.forget_threads)
