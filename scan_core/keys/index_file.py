"""Delete indexes as flat files that processes map read-only: shared by the workers of a host, or larger than memory.

A file is a fixed prefix with a checksum of all that follows, a header in JSON, and the arrays at aligned offsets, so that
opening costs no copy. Nothing in it is code. Which folders may hold such files is decided in `io/private_files.py`.
"""

import base64
import hashlib
import json
import math
import mmap
import struct
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.io.private_files import PrivateFolder, UnsafeFileError, held_folder
from nevermore.scan_core.keys.columns import BytesColumn, DictionaryColumn, FixedColumn
from nevermore.scan_core.keys.hash import HashSeed
from nevermore.scan_core.keys.lookup import DenseIndex, FactoredIndex, HashedIndex
from nevermore.scan_core.keys.summary import KeySummary
from nevermore.scan_core.keys.table import HashTable
from nevermore.scan_core.native.compiled import stored_kernels

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
