"""Manifests -> the data and delete files of a snapshot, with inheritance applied.

Entries of many manifests are decoded together if there is nothing unusual about them (`bulk_manifests.py`), else one by
one (`manifest_entries.py`). Decoded manifests, which never change, are kept in a bounded cache of the process.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from nevermore.scan_core.io import cache
from nevermore.scan_core.io.files import Fingerprint, fingerprint, read_twice, read_whole
from nevermore.scan_core.io.location import FileIOConfig, relocate
from nevermore.scan_core.metadata.avro_container import malformed_avro, parse_avro_schema, read_blocks, read_header
from nevermore.scan_core.metadata.avro_decoders import DAMAGE, Decoder, compile_record
from nevermore.scan_core.metadata.bulk_manifests import (
    MIN_RECORDS,
    Layout,
    ManifestFiles,
    Program,
    compile_columns,
    entry_columns,
    made_deletes,
)
from nevermore.scan_core.metadata.manifest_entries import (
    ENTRY_FIELDS,
    ENTRY_SLOTS,
    PARTITION_SLOT,
    Build,
    Inheritance,
    data_file_of,
    decode_entries,
    delete_file_of,
    partition_decoder,
    spec_of,
)
from nevermore.scan_core.metadata.manifest_list import ManifestFile
from nevermore.scan_core.model.schema import Type
from nevermore.scan_core.model.snapshot import DataFile, DeleteFile, PartitionSpec
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.native.compiled import stored_kernels

F = TypeVar("F", DataFile, DeleteFile)
_BYTES_PER_ENTRY = 600
"""What a decoded entry takes in addition to its bytes: a slotted object, a path, five lazy maps."""
_BATCH_BYTES = 4 * 1024**2
"""Manifests are read and decoded together up to this size, so that memory stays bounded and the cache can let go."""
_REQUESTS = 16
"""Remote manifests that are read at the same time: each costs a round trip, and most are small."""


@dataclass(frozen=True, slots=True, eq=False)
class _Decoders:
    """How entries of one schema are decoded: one by one, their partition, and many together where that is possible."""

    entry: Decoder
    partition: Decoder
    columns: Program | None


class _Read(NamedTuple):
    """A manifest in memory, decompressed."""

    manifest: ManifestFile
    identity: Fingerprint
    spec: PartitionSpec
    decoders: _Decoders
    blocks: Sequence[tuple[int, bytes]]
    num_entries: int
    num_bytes: int


def read_data_manifests(
    manifests: Sequence[ManifestFile], metadata: TableMetadata, io: FileIOConfig
) -> list[Sequence[DataFile]]:
    """The live data files of each data manifest.

    Raises:
        MissingFileError: there is no such file.
        MalformedTableError: one breaks the specification; names file and field.
    """
    return _Reader(metadata, io, data_file_of).read(manifests)


def read_delete_manifests(
    manifests: Sequence[ManifestFile], metadata: TableMetadata, io: FileIOConfig
) -> list[Sequence[DeleteFile]]:
    """The live delete files of each delete manifest; raises as `read_data_manifests` does."""
    return _Reader(metadata, io, delete_file_of).read(manifests)


class _Reader:
    """Reads manifests of one table and content, those together that are of one schema and spec."""

    def __init__(self, metadata: TableMetadata, io: FileIOConfig, build: Any) -> None:
        self._metadata = metadata
        self._io = io
        self._build: Build[Any] = build
        self._specs: dict[int | None, str] = {}
        self._known: dict[tuple[int, int], tuple[_Decoders, Mapping[str, bytes]]] = {}

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
        return self._build, manifest, self._specs[spec_id]

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
                decoders = _decoders(header.schema, spec, self._metadata.partition_types(spec.spec_id))
                known = self._known[id(header.metadata), spec.spec_id] = decoders, header.metadata
            blocks = list(read_blocks(data, header))
        except DAMAGE as error:
            raise malformed_avro(manifest.path, error) from error
        num_entries = num_bytes = 0
        for count, block in blocks:
            num_entries += count
            num_bytes += len(block)
        return _Read(manifest, identity, spec, known[0], blocks, num_entries, num_bytes)

    def _finish(self, batch: Sequence[tuple[int, _Read]], keys: Sequence[Any], found: list[Any]) -> None:
        """Decode manifests that were read, and cache the result."""
        alike: dict[tuple[int, int], list[tuple[int, _Read]]] = defaultdict(list)
        for index, read in batch:
            alike[id(read.decoders), read.spec.spec_id].append((index, read))
        for group in alike.values():
            decoded = self._together([read for _, read in group])
            for (index, read), files in zip(group, decoded or map(self._one_by_one, group), strict=True):
                size = read.num_bytes + _BYTES_PER_ENTRY * len(files)
                found[index] = files
                cache.put(keys[index], (files, read.identity), size)

    def _together(self, reads: Sequence[_Read]) -> list[Any] | None:
        """The files of each manifest, decoded together; None if there are few entries, an entry is unusual, or compiled code is not allowed."""
        decoders = reads[0].decoders
        if decoders.columns is None or sum(r.num_entries for r in reads) < MIN_RECORDS:
            return None
        kernels = stored_kernels()
        if kernels is None:
            return None
        blocks = [block for read in reads for block in read.blocks]
        owners = [(read.manifest, read.num_entries) for read in reads]
        try:
            layout = Layout(decoders.columns, decoders.partition, reads[0].spec)
            decoded = entry_columns(blocks, owners, layout, kernels)
        except DAMAGE:  # decoding one by one reports the problem
            return None
        if decoded is None:
            return None
        columns, counts = decoded
        made = made_deletes(columns)
        return [ManifestFiles(columns, first, last, made) for first, last in pairwise([0, *counts.cumsum().tolist()])]

    def _one_by_one(self, indexed: tuple[int, _Read]) -> tuple[Any, ...]:
        read = indexed[1]
        inheritance = Inheritance(read.manifest, read.spec)
        try:
            return tuple(decode_entries(read.blocks, read.decoders.entry, inheritance, self._build))
        except DAMAGE as error:
            raise malformed_avro(read.manifest.path, error) from error


@lru_cache(maxsize=256)
def _decoders(schema: bytes, spec: PartitionSpec, types: tuple[Type, ...]) -> _Decoders:
    document = parse_avro_schema(schema)
    partition = partition_decoder(document, spec, types)
    entry = compile_record(document, ENTRY_FIELDS, ENTRY_SLOTS, {PARTITION_SLOT: partition})
    return _Decoders(entry, partition, compile_columns(document, ENTRY_FIELDS, [PARTITION_SLOT]))
