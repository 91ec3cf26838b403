"""Manifests -> the data and delete files of a snapshot, with inheritance applied.

Entries of many manifests are decoded together (`bulk_manifests.py`). Decoded manifests, which never change, are kept in a
bounded cache of the process.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from nevermore.scan_core.io import cache
from nevermore.scan_core.io.files import Fingerprint, fingerprint, forget_metadata, read_twice, read_whole
from nevermore.scan_core.io.location import FileIOConfig, relocate
from nevermore.scan_core.metadata.avro_container import (
    DAMAGE,
    malformed_avro,
    parse_avro_schema,
    read_blocks,
    read_header,
)
from nevermore.scan_core.metadata.bulk_manifests import (
    Layout,
    ManifestFiles,
    entry_columns,
    entry_reader,
    partition_decoder,
    spec_of,
)
from nevermore.scan_core.metadata.manifest_list import ManifestFile
from nevermore.scan_core.model.schema import Type
from nevermore.scan_core.model.snapshot import DataFile, DeleteFile, PartitionSpec
from nevermore.scan_core.model.table_metadata import TableMetadata

_BYTES_PER_ENTRY = 600
"""What a decoded entry takes in addition to its bytes: a slotted object, a path, five lazy maps."""
_BYTES_PER_MANIFEST = 32 * 1024
"""What the columns of a manifest take, however few entries it has: 30 to 70 kB of small arrays and buffers, as measured."""
_BATCH_BYTES = 4 * 1024**2
"""Manifests are read and decoded together up to this size, so that memory stays bounded and the cache can let go."""
_REQUESTS = 16
"""Remote manifests that are read at the same time: each costs a round trip, and most are small."""


class _Read(NamedTuple):
    """A manifest in memory, decompressed."""

    manifest: ManifestFile
    identity: Fingerprint
    layout: Layout
    blocks: Sequence[tuple[int, bytes]]
    num_entries: int
    num_bytes: int


def read_data_manifests(
    manifests: Sequence[ManifestFile], metadata: TableMetadata, io: FileIOConfig
) -> list[ManifestFiles[DataFile]]:
    """The live data files of each data manifest.

    Raises:
        MissingFileError: there is no such file.
        MalformedTableError: one breaks the specification; names file and field.
    """
    return _Reader(metadata, io).read(manifests)


def read_delete_manifests(
    manifests: Sequence[ManifestFile], metadata: TableMetadata, io: FileIOConfig
) -> list[ManifestFiles[DeleteFile]]:
    """The live delete files of each delete manifest; raises as `read_data_manifests` does."""
    return _Reader(metadata, io).read(manifests)


class _Reader:
    """Reads manifests of one table and content, those together that are of one schema and spec."""

    def __init__(self, metadata: TableMetadata, io: FileIOConfig) -> None:
        self._metadata = metadata
        self._io = io
        self._specs: dict[int | None, str] = {}
        self._known: dict[tuple[int, int], tuple[Layout, Mapping[str, bytes]]] = {}

    def read(self, manifests: Sequence[ManifestFile]) -> list[Any]:
        """The files of each manifest, from the cache or from storage."""
        keys = [self._cache_key(m) for m in manifests]
        found = [self._kept(m, key) for m, key in zip(manifests, keys, strict=True)]
        wanted = [i for i, files in enumerate(found) if files is None]
        batch: list[tuple[int, _Read]] = []
        size = 0
        for index, (data, identity) in zip(wanted, self._bytes(manifests[i] for i in wanted), strict=True):
            received = iter([(data, identity)])
            batch.append((index, self._received(manifests[index], received)))
            size += batch[-1][1].num_bytes
            if size >= _BATCH_BYTES:
                self._finish(batch, keys, found)
                batch, size = [], 0
        self._finish(batch, keys, found)
        return found

    def _cache_key(self, manifest: ManifestFile) -> Any:
        """Inputs of a manifest's files besides its content: its entry in the list, and the specs that it may have."""
        spec_id = manifest.spec_id
        if spec_id not in self._specs:
            specs, types = self._metadata.specs, self._metadata.partition_types
            possible = specs if spec_id is None else {spec_id} & specs.keys()
            self._specs[spec_id] = repr([(specs[i], types(i)) for i in possible])
        return manifest, self._specs[spec_id]

    def _kept(self, manifest: ManifestFile, key: Any) -> Any:
        """The cached files of a manifest if the file has not changed since, else None."""
        kept = cache.get(key)
        return kept[0] if kept is not None and kept[1] == fingerprint(manifest.path, self._io) else None

    def _bytes(self, manifests: Iterable[ManifestFile]) -> Iterable[tuple[bytes, Fingerprint]]:
        paths = [m.path for m in manifests]
        if len(paths) <= 1 or relocate(paths[0], self._io).is_local:
            for path in paths:
                yield read_whole(path, self._io)
            return
        with ThreadPoolExecutor(min(_REQUESTS, len(paths)), "manifests") as pool:
            for begin in range(0, len(paths), _REQUESTS):
                yield from pool.map(lambda path: read_whole(path, self._io), paths[begin : begin + _REQUESTS])

    def _received(self, manifest: ManifestFile, received: Iterator[tuple[bytes, Fingerprint]]) -> _Read:
        """A manifest of bytes that were received, or that are asked for again if these were damaged."""
        path, io = manifest.path, self._io
        return read_twice(path, io, lambda: self._opened(manifest, *(next(received, None) or read_whole(path, io))))

    def _opened(self, manifest: ManifestFile, data: bytes, identity: Fingerprint) -> _Read:
        try:
            header = read_header(data)
            spec = spec_of(manifest, header, self._metadata)
            known = self._known.get((id(header.metadata), spec.spec_id))
            if known is None:
                layout = _layout(header.schema, spec, self._metadata.partition_types(spec.spec_id))
                known = self._known[id(header.metadata), spec.spec_id] = layout, header.metadata
            blocks = list(read_blocks(data, header))
        except DAMAGE as error:
            raise malformed_avro(manifest.path, error) from error
        num_entries = num_bytes = 0
        for count, block in blocks:
            num_entries += count
            num_bytes += len(block)
        return _Read(manifest, identity, known[0], blocks, num_entries, num_bytes)

    def _finish(self, batch: Sequence[tuple[int, _Read]], keys: Sequence[Any], found: list[Any]) -> None:
        """Decode manifests that were read, and cache the result."""
        alike: dict[tuple[int, int], list[tuple[int, _Read]]] = defaultdict(list)
        for index, read in batch:
            alike[id(read.layout), read.manifest.content].append((index, read))
        for group in alike.values():
            for (index, read), files in zip(group, _decoded([read for _, read in group]), strict=True):
                size = read.num_bytes + _BYTES_PER_ENTRY * len(files) + _BYTES_PER_MANIFEST
                found[index] = files
                cache.put(keys[index], (files, read.identity), size)


def _decoded(reads: Sequence[_Read]) -> list[Any]:
    """The files of each of some manifests of one layout and content."""
    blocks = [block for read in reads for block in read.blocks]
    try:
        columns, counts = entry_columns(blocks, [(r.manifest, r.num_entries) for r in reads], reads[0].layout)
    except DAMAGE as error:
        if len(reads) == 1:
            forget_metadata()  # it, or the list that names it, may have been damaged on the way
            raise malformed_avro(reads[0].manifest.path, error) from error
        return [files for read in reads for files in _decoded([read])]  # tells which one it is
    return [ManifestFiles(columns, first, last) for first, last in pairwise([0, *counts.cumsum().tolist()])]


@lru_cache(maxsize=256)
def _layout(schema: bytes, spec: PartitionSpec, types: tuple[Type, ...]) -> Layout:
    reader, partition = entry_reader(parse_avro_schema(schema))
    return Layout(reader, partition_decoder(partition, spec, types), spec)
