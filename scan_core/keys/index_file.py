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
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.io.private_files import PrivateFolder, UnsafeFileError, held_folder
from scan_core.keys.columns import BytesColumn, DictionaryColumn, FixedColumn, KeyColumn
from scan_core.keys.hash import HashSeed
from scan_core.keys.lookup import DenseIndex, HashedIndex
from scan_core.keys.summary import KeySummary
from scan_core.keys.table import HashTable

MAX_FOLDER_BYTES = 4 * 1024**3
"""Of all index files together; the oldest are removed beyond it (processes that map them keep them)."""

_MAGIC = b"NVRMIDX2"
_PREFIX = struct.Struct("<8sQQI")
"""Magic, size of the file, size of the header, CRC-32 of everything behind the prefix."""
_ALIGNMENT = 64
_DTYPES = {np.dtype(name).str for name in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8")}

Array = npt.NDArray[Any]
FlatIndex = DenseIndex | HashedIndex


class DamagedIndexError(ValueError):
    """A file that is not what `write_index` has written."""


class MappedIndex:
    """An index whose arrays lie in a mapped file."""

    def __init__(self, file: BinaryIO, *, is_verified: bool = False) -> None:
        """Map an open file; `is_verified` where this process has just written it, so that its checksum tells nothing.

        Raises:
            DamagedIndexError: it is not whole.
        """
        try:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise DamagedIndexError("an empty index file") from error
        if len(self._map) < _PREFIX.size:
            raise DamagedIndexError("an index file was cut")
        magic, size, header_bytes, checksum = _PREFIX.unpack_from(self._map)
        begin = _PREFIX.size
        if magic != _MAGIC or size != len(self._map) or begin + header_bytes > size:
            raise DamagedIndexError("not a whole index file")
        view = memoryview(self._map)
        if not is_verified and zlib.crc32(view[begin:]) != checksum:
            raise DamagedIndexError("an index file has another checksum than it states")
        body = begin + header_bytes
        document = json.loads(bytes(view[begin:body]))
        self.index: FlatIndex = _Reader(view[body:], document["arrays"]).index(document["index"])

    def release(self) -> None:
        """Give the memory of pages that were touched back; they are read again when needed."""
        self._map.madvise(mmap.MADV_DONTNEED)


def write_index(index: FlatIndex, folder: PrivateFolder, name: str) -> None:
    """Write a file that `MappedIndex` opens; it appears at once, whole.

    Raises:
        OSError: it cannot be written.
    """
    writer = _Writer()
    header = json.dumps({"index": writer.index(index), "arrays": writer.places}).encode()
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
        UnsafeFileError: the folder belongs to somebody else or others may write to it.
        OSError: the file cannot be written.
    """
    root = held_folder(Path(folder))
    digest = hashlib.sha256(repr(key).encode()).hexdigest()
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
            found = MappedIndex(file)
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

    def index(self, index: FlatIndex) -> dict[str, Any]:
        document: dict[str, Any] = {
            "sequence_numbers": index.sequence_numbers,
            "null_rank": index.null_rank,
            "ranks": self._array(index.ranks),
            "summaries": [self._summary(s) for s in index.summaries],
        }
        if isinstance(index, DenseIndex):
            return {"form": "dense", "lower": index.lower, **document}
        table = index.table
        return {
            "form": "hashed",
            "seed": (index.seed.root, index.seed.first),
            "table": [self._array(a) for a in (table.hashes, table.bits, table.counts, table.levels)],
            "columns": [self._column(c) for c in index.columns],
            "rows": self._array(index.rows),
            **document,
        }

    def _array(self, array: Array) -> int:
        array = np.ascontiguousarray(array)
        self.places.append((array.dtype.str, array.shape, self._end))
        self.arrays.append(array)
        self._end = _aligned(self._end + array.nbytes)
        return len(self.arrays) - 1

    def _maybe(self, array: Array | None) -> int | None:
        return None if array is None else self._array(array)

    def _summary(self, summary: KeySummary) -> dict[str, Any]:
        return {
            "kind": base64.b64encode(pa.schema([("", summary.kind)]).serialize()).decode(),
            "has_null": summary.has_null,
            "base": summary.base,
            "shift": summary.shift,
            "buckets": self._maybe(summary.buckets),
        }

    def _column(self, column: KeyColumn) -> dict[str, Any]:
        match column:
            case FixedColumn():
                words = [self._array(w) for w in column.words]
                return {"words": words, "valid": self._maybe(column.valid), "num_rows": column.num_rows}
            case BytesColumn():
                return {
                    "offsets": self._array(column.offsets),
                    "data": self._array(column.data),
                    "valid": self._maybe(column.valid),
                    "num_rows": column.num_rows,
                    "has_slack": column.has_slack,
                }
            case DictionaryColumn():
                codes, values = self._array(column.codes), self._column(column.values)
                return {"codes": codes, "values": values, "num_rows": column.num_rows}

    def parts(self) -> Iterator[bytes | memoryview]:
        """The bytes of the arrays, with what lies between them."""
        for array in self.arrays:
            yield array.reshape(-1).view(np.uint8).data
            yield bytes(-array.nbytes % _ALIGNMENT)


class _Reader:
    """The inverse: arrays are views of the file."""

    def __init__(self, body: memoryview, places: list[tuple[str, list[int], int]]) -> None:
        self._arrays = [self._view(body, *place) for place in places]

    @staticmethod
    def _view(body: memoryview, dtype: str, shape: list[int], offset: int) -> Array:
        if dtype not in _DTYPES:
            raise DamagedIndexError(f"an index file holds an array of {dtype}")
        return np.frombuffer(body, np.dtype(dtype), math.prod(shape), offset).reshape(shape)

    def index(self, document: Mapping[str, Any]) -> FlatIndex:
        numbers, null_rank = tuple(document["sequence_numbers"]), document["null_rank"]
        ranks, summaries = self._arrays[document["ranks"]], tuple(map(self._summary, document["summaries"]))
        if document["form"] == "dense":
            return DenseIndex(numbers, document["lower"], ranks, null_rank, summaries)
        seed, table = HashSeed(*document["seed"]), HashTable(*(self._arrays[n] for n in document["table"]))
        columns, rows = tuple(map(self._column, document["columns"])), self._arrays[document["rows"]]
        return HashedIndex(numbers, seed, table, columns, rows, ranks, null_rank, summaries)

    def _maybe(self, number: int | None) -> Array | None:
        return None if number is None else self._arrays[number]

    def _summary(self, document: Mapping[str, Any]) -> KeySummary:
        kind = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["kind"]))).field(0).type
        buckets = self._maybe(document["buckets"])
        return KeySummary(kind, document["has_null"], document["base"], document["shift"], buckets)

    def _column(self, document: Mapping[str, Any]) -> KeyColumn:
        if "codes" in document:
            values = self._column(document["values"])
            assert not isinstance(values, DictionaryColumn)  # noqa: S101 - values are plain columns
            return DictionaryColumn(self._arrays[document["codes"]], values, document["num_rows"])
        valid, num_rows = self._maybe(document["valid"]), document["num_rows"]
        if "words" in document:
            return FixedColumn(tuple(self._arrays[n] for n in document["words"]), valid, num_rows)
        offsets, data = self._arrays[document["offsets"]], self._arrays[document["data"]]
        return BytesColumn(offsets, data, valid, num_rows, document["has_slack"])


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
