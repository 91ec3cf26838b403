"""The index of one equality-delete group: key -> rank of the highest sequence number that deletes it (SEMANTICS rule 18).

The form is chosen here: dense for close integers, hashed otherwise (`lookup.py`), partitioned by hash ranges in mapped files where
the keys do not fit into memory.

Also the flat files that processes map read-only, shared by the workers of a host: a fixed prefix with a checksum of all that
follows, a header in JSON, and the arrays at aligned offsets, so that opening costs no copy. Nothing in a file is code. Which folders
may hold such files is decided in `io/private_files.py`.
"""

import base64
import hashlib
import json
import math
import mmap
import secrets
import struct
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.io.private_files import PrivateFolder, UnsafeFileError, held_folder, spill_folder
from nevermore.scan_core.keys.columns import (
    BytesColumn,
    DictionaryColumn,
    FixedColumn,
    HashSeed,
    Words,
    hash_rows,
    is_integer_like,
    key_column,
    null_flags,
    rotate,
    values_and_codes,
)
from nevermore.scan_core.keys.lookup import (
    SIGN_BIT,
    DeleteKeys,
    DenseIndex,
    FactoredIndex,
    HashedIndex,
    HashTable,
    KeySummary,
    build_dense,
    build_dense_streamed,
    build_hashed,
    common_value,
    may_contain,
    merge_summaries,
    random_seed,
    rank_of,
)
from nevermore.scan_core.model.errors import ScanError
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.native.compiled import stored_kernels
from nevermore.scan_core.rows.buffers import Mask

MAX_FOLDER_BYTES = 4 * 1024**3
"""Of all index files together; the oldest are removed beyond it (processes that map them keep them)."""

_MAGIC = b"NVRMIDX6"
_PREFIX = struct.Struct("<8sQQI")
"""Magic, size of the file, size of the header, CRC-32 of everything behind the prefix."""
_ALIGNMENT = 64
_DTYPES = {np.dtype(name).str for name in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8")}

Array = npt.NDArray[Any]
FlatIndex = DenseIndex | HashedIndex | FactoredIndex
_CLASSES: Mapping[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (
        DenseIndex,
        HashedIndex,
        FactoredIndex,
        HashTable,
        HashSeed,
        KeySummary,
        FixedColumn,
        BytesColumn,
        DictionaryColumn,
    )
}
"""What an index is made of: nothing else is built from a file."""


class DamagedIndexError(ValueError):
    """A file that `write_index` did not write, or not completely."""


@dataclass(frozen=True, slots=True, eq=False)
class MappedIndex:
    """An index whose arrays lie in a mapped file."""

    mapping: mmap.mmap
    index: FlatIndex

    def release(self) -> None:
        """Free the memory of pages that were read; they are read again when needed."""
        self.mapping.madvise(mmap.MADV_DONTNEED)


def map_index(file: BinaryIO, *, is_verified: bool = False) -> MappedIndex:
    """Map an open file; `is_verified` where this process has just written it and need not verify the checksum.

    Raises:
        DamagedIndexError: it is incomplete or damaged.
    """
    try:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise DamagedIndexError("an empty index file") from error
    if len(mapping) < _PREFIX.size:
        raise DamagedIndexError("an index file is truncated")
    magic, size, header_bytes, checksum = _PREFIX.unpack_from(mapping)
    body = _PREFIX.size + header_bytes
    if magic != _MAGIC or size != len(mapping) or body > size:
        raise DamagedIndexError("not a complete index file")
    view = memoryview(mapping)
    if not is_verified and zlib.crc32(view[_PREFIX.size :]) != checksum:
        raise DamagedIndexError("the checksum of an index file does not match")
    document = json.loads(bytes(view[_PREFIX.size : body]))
    return MappedIndex(mapping, _Reader(view[body:], document["arrays"]).value(document["index"]))


def write_index(index: FlatIndex, folder: PrivateFolder, name: str) -> None:
    """Write a file that `map_index` opens; it appears complete or not at all.

    Raises:
        OSError: it cannot be written.
    """
    writer = _Writer()
    header = json.dumps({"index": writer.document(index), "arrays": writer.places}).encode()
    # places count from the end of the header, whose length is known only now
    header = header.ljust(_aligned(_PREFIX.size + len(header)) - _PREFIX.size)
    with folder.replace(name) as file:
        size, checksum = _PREFIX.size, 0
        file.write(bytes(size))
        for part in chain([header], writer.parts()):
            file.write(part)
            size, checksum = size + len(part), zlib.crc32(part, checksum)
        file.seek(0)
        file.write(_PREFIX.pack(_MAGIC, size, len(header), checksum))


def shared_index(folder: str, key: Hashable, build: Callable[[], FlatIndex]) -> FlatIndex:
    """The index of `key`, built by exactly one process of the host and mapped by all.

    Raises:
        UnsafeFileError: the folder belongs to another user or is writable by others.
        OSError: the file cannot be written.
    """
    root = held_folder(Path(folder))
    # a process without compiled kernels builds other tables
    digest = hashlib.sha256(repr((key, stored_kernels() is not None)).encode()).hexdigest()
    name = f"{digest}.index"
    if (found := _open(root, name)) is not None:
        return found
    with root.locked(f"{digest}.lock"):
        if (found := _open(root, name)) is not None:
            return found
        built = build()
        write_index(built, root, name)
        _remove_oldest(root)
    return _open(root, name) or built


def _open(folder: PrivateFolder, name: str) -> FlatIndex | None:
    try:
        with folder.read(name) as file:
            found = map_index(file)
        folder.touch(name)
    except (FileNotFoundError, UnsafeFileError, DamagedIndexError):
        return None
    return found.index


def _remove_oldest(folder: PrivateFolder) -> None:
    names = (name for name in folder.names() if name.endswith(".index"))
    files = sorted(((name, folder.status(name)) for name in names), key=lambda f: -f[1].st_mtime)
    total = 0
    for name, status in files:
        total += status.st_size
        if total > MAX_FOLDER_BYTES:
            folder.remove(name)
            folder.remove(f"{name.removesuffix('.index')}.lock")


class _Writer:
    """The document of an index, with numbers of arrays in place of the arrays."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.places: list[tuple[str, tuple[int, ...], int]] = []
        self._end = 0

    def document(self, value: Any) -> Any:
        """A value as JSON: data classes by their names and fields."""
        match value:
            case None | int():
                return value
            case tuple():
                return [self.document(part) for part in value]
            case np.ndarray():
                return {"array": self._add(value)}
            case pa.DataType():
                return {"type": base64.b64encode(pa.schema([("", value)]).serialize()).decode()}
            case _:
                parts = {field.name: self.document(getattr(value, field.name)) for field in fields(value)}
                return {"class": type(value).__name__, "fields": parts}

    def _add(self, array: Array) -> int:
        array = np.ascontiguousarray(array)
        self.places.append((array.dtype.str, array.shape, self._end))
        self.arrays.append(array)
        self._end = _aligned(self._end + array.nbytes)
        return len(self.arrays) - 1

    def parts(self) -> Iterator[bytes | memoryview]:
        """The bytes of the arrays, with the padding between them."""
        for array in self.arrays:
            yield array.reshape(-1).view(np.uint8).data
            yield bytes(-array.nbytes % _ALIGNMENT)


class _Reader:
    """The inverse of `_Writer`; arrays are views of the file."""

    def __init__(self, body: memoryview, places: list[tuple[str, list[int], int]]) -> None:
        self._arrays = [self._view(body, *place) for place in places]

    @staticmethod
    def _view(body: memoryview, dtype: str, shape: list[int], offset: int) -> Array:
        if dtype not in _DTYPES:
            raise DamagedIndexError(f"an index file holds an array of {dtype}")
        return np.frombuffer(body, np.dtype(dtype), math.prod(shape), offset).reshape(shape)

    def value(self, document: Any) -> Any:
        match document:
            case list():
                return tuple(map(self.value, document))
            case {"array": number}:
                return self._arrays[number]
            case {"type": text}:
                return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type
            case {"class": name, "fields": parts} if name in _CLASSES:
                return _CLASSES[name](**{key: self.value(part) for key, part in parts.items()})
            case dict():
                raise DamagedIndexError("an index file holds what this version does not know")
            case _:
                return document


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


MAX_PARTITION_BITS = 8
"""256 spill files are open at a time."""
_SEQUENCE_NUMBER = b"sequence-number"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PartitionedIndex:
    """Partition p holds the keys whose hash begins with the bits of p."""

    sequence_numbers: tuple[int, ...]
    seed: HashSeed
    shift: int
    parts: tuple[MappedIndex, ...]
    filters: tuple[Words, ...]
    has_bijective_hash: bool
    null_rank: int
    num_keys: int
    summaries: tuple[KeySummary, ...]

    @property
    def num_bytes(self) -> int:
        """Memory held between probes."""
        return sum(s.num_bytes for s in self.summaries) + sum(f.nbytes for f in self.filters)

    def deleted(self, keys: Sequence[pa.Array], threshold: int) -> Mask:
        """Rows whose key has a rank above the threshold."""
        columns = [key_column(array) for array in keys]
        hashes = hash_rows(columns, self.seed)
        partition = (hashes >> np.uint64(self.shift)).astype(np.uint16)
        hashes = rotate(hashes, 64 - self.shift)
        dead = np.zeros(len(hashes), np.bool_)
        for number, (part, bits) in enumerate(zip(self.parts, self.filters, strict=True)):
            index = _hashed(part)
            own = hashes if index.seed == self.seed else hash_rows(columns, index.seed)
            among = np.flatnonzero(partition == number)
            if len(bits):
                among = among[may_contain(bits, own[among], index.table.levels[0, 1])]
            if len(among):
                dead[among] = index.deleted_hashes(own[among], columns, threshold, among)
                part.release()
        if self.has_bijective_hash and (nulls := null_flags(columns[0])) is not None:
            dead[nulls] = self.null_rank > threshold
        return dead


def build_partitioned(
    keys: Iterable[DeleteKeys],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    partitions: int,
) -> PartitionedIndex:
    """An index over keys that are read one file after the other, ascending by sequence number.

    Args:
        keys: by file; each is dropped before the next is asked for.
        key_types: of the key columns.
        sequence_numbers: all of the group, ascending.
        partitions: how many; rounded up to a power of two.

    Raises:
        OSError: no space for the spill files.
    """
    bits = min(max((partitions - 1).bit_length(), 1), MAX_PARTITION_BITS)
    seed, shift = random_seed(), 64 - bits
    parts: list[MappedIndex] = []
    own, name = spill_folder(), f"deletes-{secrets.token_hex(8)}"
    folder = own.folder(name)
    try:
        with _Spill(folder, key_types, seed, shift) as spill:
            for part in keys:
                spill.add(part)
        for number in range(1 << bits):
            index = _build_part(spill.read(number), key_types, sequence_numbers, seed, bits)
            write_index(index, folder, f"{number}.index")
            with folder.read(f"{number}.index") as file:
                parts.append(map_index(file, is_verified=True))  # the mapping outlives the file's name
    finally:
        folder.close()
        own.remove_folder(name)
    num_keys = sum(_hashed(p).num_keys for p in parts)
    summaries = zip(*(_hashed(p).summaries for p in parts), strict=True)
    merged = tuple(merge_summaries(of_column) for of_column in summaries)
    filters = tuple(_hashed(p).table.first_bits.copy() for p in parts)
    for mapped in parts:
        mapped.release()
    is_bijective = not _hashed(parts[0]).columns
    null_rank = max(_hashed(p).null_rank for p in parts)
    return PartitionedIndex(
        sequence_numbers, seed, shift, tuple(parts), filters, is_bijective, null_rank, num_keys, merged
    )


def _hashed(part: MappedIndex) -> HashedIndex:
    assert isinstance(part.index, HashedIndex)  # noqa: S101 - partitions are built as such
    return part.index


def _build_part(
    keys: Iterator[DeleteKeys],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    seed: HashSeed,
    rotation: int,
) -> HashedIndex:
    held = list(keys)
    try:
        return build_hashed(held, key_types, sequence_numbers, seed=seed, rotation=rotation)
    except ScanError:  # two keys of one hash: this partition gets a seed of its own
        return build_hashed(held, key_types, sequence_numbers)


class _Spill:
    """Keys by partition in Arrow stream files."""

    def __init__(self, folder: PrivateFolder, key_types: Sequence[pa.DataType], seed: HashSeed, shift: int) -> None:
        self._schema = pa.schema([pa.field(str(i), kind) for i, kind in enumerate(key_types)])
        self._seed = seed
        self._shift = shift
        self._folder = folder
        self._num_partitions = 1 << (64 - shift)
        self._files: list[BinaryIO] = []
        self._writers: list[Any] = []

    def __enter__(self) -> Self:
        self._files = [self._folder.create(f"{number}.keys") for number in range(self._num_partitions)]
        self._writers = [pa.ipc.new_stream(file, self._schema) for file in self._files]
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        for file in self._files:
            file.close()

    def add(self, part: DeleteKeys) -> None:
        """Append the keys of a file to their partitions."""
        if not part.num_rows:
            return
        plain = [a.dictionary_decode() if pa.types.is_dictionary(a.type) else a for a in part.columns]
        hashes = hash_rows([key_column(a) for a in plain], self._seed)
        partition = (hashes >> np.uint64(self._shift)).astype(np.uint16)
        order = pa.array(np.argsort(partition, kind="stable"))
        batch = pa.RecordBatch.from_arrays([a.take(order) for a in plain], schema=self._schema)
        metadata = {_SEQUENCE_NUMBER: str(part.sequence_number).encode()}
        ends = np.cumsum(np.bincount(partition, minlength=len(self._writers))).tolist()
        begin = 0
        for writer, end in zip(self._writers, ends, strict=True):
            if end > begin:
                writer.write_batch(batch.slice(begin, end - begin), custom_metadata=metadata)
            begin = end

    def read(self, number: int) -> Iterator[DeleteKeys]:
        """The keys of a partition, in the order in which they were added."""
        with self._folder.read(f"{number}.keys") as file, pa.ipc.open_stream(file) as reader:
            while True:
                try:
                    batch, metadata = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    return
                yield DeleteKeys(int(metadata[_SEQUENCE_NUMBER]), tuple(batch.columns))


EqualityIndex = FlatIndex | PartitionedIndex

_BUILD_BYTES_PER_KEY = 64
"""Peak memory per key while a hash table is built, column values not included."""
_DENSE_SHARE = 4
"""A dense table may take this part of the memory limit."""
_BUILD_SHARE = 2
"""Loading and building may take this part; beyond it keys go through spill files."""
_PARTITION_SHARE = 8
"""One partition may take this part while it is built."""
_MIN_PARTITION_BYTES = 4 * 1024**2
"""Smaller partitions save no memory worth their files."""


def threshold_of(index: EqualityIndex, data_sequence_number: int) -> int:
    """Ranks above it delete rows of a data file with this sequence number."""
    return rank_of(data_sequence_number, index.sequence_numbers)


def covers_all(index: EqualityIndex, statistics: ColumnStatistics | None, threshold: int) -> bool:
    """Whether every value within the statistics is a key of a rank above the threshold; only a dense table can prove it."""
    if not isinstance(index, DenseIndex) or statistics is None or statistics.null_count != 0:
        return False
    lower, upper = statistics.lower, statistics.upper
    return isinstance(lower, int) and isinstance(upper, int) and index.covers(lower, upper, threshold)


def covers_rest(index: EqualityIndex, known: Sequence[ColumnStatistics | None], threshold: int) -> bool:
    """Whether `covers_all` holds for keys of several columns, of which only one has values that differ."""
    if not isinstance(index, FactoredIndex):
        return len(known) == 1 and covers_all(index, known[0], threshold)
    others = [s for place, s in enumerate(known) if place not in dict(index.constants)]
    is_fixed = all(fixed_value(known[place]) == value for place, value in index.constants)
    return is_fixed and len(others) == 1 and covers_all(index.rest, others[0], threshold)


def fixed_value(statistics: ColumnStatistics | None) -> int | None:
    """The only value of an integer column, if its statistics prove that every row has it."""
    if statistics is None or statistics.null_count != 0 or not isinstance(statistics.lower, int):
        return None
    return statistics.lower if statistics.lower == statistics.upper else None


def find_deleted(index: EqualityIndex, keys: Sequence[pa.Array | None], threshold: int) -> Mask:
    """Which rows are dead; of a single dictionary-encoded key every distinct value is looked up once.

    A key column is None where all its rows are known to have the constant of a `FactoredIndex`.
    """
    if isinstance(index, FactoredIndex):
        constants = dict(index.constants)
        others = [key for place, key in enumerate(keys) if place not in constants]
        dead: Mask = find_deleted(index.rest, others, threshold)
        for place, value in constants.items():
            if (key := keys[place]) is not None:
                dead &= index.has_constant(key, value)
        return dead
    return _find_deleted(index, [key for key in keys if key is not None], threshold)


def _find_deleted(
    index: DenseIndex | HashedIndex | PartitionedIndex,
    keys: Sequence[pa.Array],
    threshold: int,
) -> Mask:
    if len(keys) > 1 or not pa.types.is_dictionary(keys[0].type):
        return index.deleted(keys, threshold)
    array = keys[0]
    if len(array.dictionary) > len(array):
        return index.deleted([array.dictionary_decode()], threshold)
    values, codes = values_and_codes(array)
    dead: Mask = index.deleted([values], threshold)[codes]
    return dead


def build_index(parts: Sequence[DeleteKeys], key_types: Sequence[pa.DataType], memory_limit_bytes: int) -> FlatIndex:
    """The index over the keys of all delete files of a group, which fit into memory.

    Args:
        parts: keys by file, in any order.
        key_types: of the key columns, in the table's current types.
        memory_limit_bytes: of the scan; caps a dense table.
    """
    sequence_numbers = tuple(sorted({p.sequence_number for p in parts}))
    parts = sorted((p for p in parts if p.num_rows), key=lambda p: p.sequence_number)
    if len(key_types) > 1 and (factored := _factored(parts, key_types, sequence_numbers, memory_limit_bytes)):
        return factored
    return _build(parts, key_types, sequence_numbers, memory_limit_bytes)


def _build(
    parts: Sequence[DeleteKeys],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    memory_limit_bytes: int,
) -> DenseIndex | HashedIndex:
    if len(key_types) == 1 and is_integer_like(key_types[0]):
        dense = build_dense(parts, key_types[0], sequence_numbers, memory_limit_bytes // _DENSE_SHARE)
        if dense is not None:
            return dense
    return build_hashed(parts, key_types, sequence_numbers)


def _factored(
    parts: Sequence[DeleteKeys],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    memory_limit_bytes: int,
) -> FactoredIndex | None:
    """The index without the columns that have one value in all keys; None if there is no such column.

    One column is always left. Of 500 keys of (id, partition) a table over the ids is built in a tenth of the time of a
    hash table over both, and data files whose statistics prove the partition need not decode it.
    """
    if not parts:
        return None
    found = {
        place: value
        for place, kind in enumerate(key_types)
        if is_integer_like(kind) and (value := common_value([p.columns[place] for p in parts])) is not None
    }
    constants = tuple(found.items())[: len(key_types) - 1]
    if not constants:
        return None
    others = [place for place in range(len(key_types)) if place not in dict(constants)]
    reduced = [DeleteKeys(p.sequence_number, tuple(p.columns[i] for i in others)) for p in parts]
    kinds = [key_types[i] for i in others]
    rest = _build(reduced, kinds, sequence_numbers, memory_limit_bytes)
    summaries = dict(zip(others, rest.summaries, strict=True)) | {
        place: KeySummary(key_types[place], False, value + SIGN_BIT, 0, np.zeros(1, np.uint64))
        for place, value in constants
    }
    return FactoredIndex(constants, rest, tuple(summaries[place] for place in range(len(key_types))))


def build_bytes(num_keys: int, stored_bytes: int) -> int:
    """What loading and indexing so many keys from files of so many bytes is expected to hold at its peak."""
    return num_keys * _BUILD_BYTES_PER_KEY + 4 * stored_bytes


def needs_streaming(expected_bytes: int, memory_limit_bytes: int) -> bool:
    """Whether the keys should be read file by file instead of held together."""
    return expected_bytes > memory_limit_bytes // _BUILD_SHARE


def build_index_streamed(
    read: Callable[[], Iterable[DeleteKeys]],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    expected_bytes: int,
    memory_limit_bytes: int,
) -> EqualityIndex:
    """The index over keys that do not fit into memory together.

    Args:
        read: reads the files again, one by one, ascending by sequence number.
        key_types: of the key columns, in the table's current types.
        sequence_numbers: of all files, ascending.
        expected_bytes: of `build_bytes`.
        memory_limit_bytes: of the scan.

    Raises:
        OSError: no space for spill files.
    """
    if len(key_types) == 1 and is_integer_like(key_types[0]):
        dense = build_dense_streamed(read(), key_types[0], sequence_numbers, memory_limit_bytes // _DENSE_SHARE)
        if dense is not None:
            return dense
    partitions = -(-expected_bytes // max(memory_limit_bytes // _PARTITION_SHARE, _MIN_PARTITION_BYTES))
    return build_partitioned(read(), key_types, sequence_numbers, partitions)
