"""One column's index in one data file: its directory, and the bitmaps of single values, read when they are needed.

Both are remembered by the process, within its bound of bytes. What is damaged is refused here; who asked goes on
without index.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scan_core.bitmap_index.bitmaps import decode_bitmap
from scan_core.bitmap_index.layout import Directory, decode_directory
from scan_core.errors import MalformedTableError
from scan_core.file_io import fingerprint, read_bytes
from scan_core.manifest_cache import cached
from scan_core.metrics import ScanMetrics
from scan_core.rows.positions import RowPositions, mark_rows, positions_in_mask
from scan_core.schema import PrimitiveType
from scan_core.schema_json import parse_type
from scan_core.split import BitmapIndexBlob, FileIOConfig

_GAP_BYTES = 64 * 1024
"""Bitmaps no further apart are read together: a request costs more than these bytes."""
_MOST_RUN_BYTES = 8 * 1024**2
"""Of bitmaps that are read together."""
_ENTRY_BYTES = 200
"""What Python objects around an entry hold."""
_MOST_BITMAPS = 3
"""More are united once: looking at each of them for every row group costs more."""
_MOST_UNITED_ROWS = 1 << 26
"""Of a file: a union takes a byte for each of its rows while it is made."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnIndex:
    """An index whose directory is known."""

    blob: BitmapIndexBlob
    directory: Directory
    io: FileIOConfig

    @property
    def source(self) -> str:
        """File and blob, for messages."""
        return _source(self.blob)

    def bitmaps(self, entries: Sequence[int], metrics: ScanMetrics) -> tuple[RowPositions, ...]:
        """The rows of directory entries, ascending: a bitmap each, or one for all where they are many.

        Raises:
            MalformedTableError: a bitmap is damaged, or holds other rows than the directory says.
            MissingFileError: the index file is gone.
        """
        wanted = tuple(e for e in entries if self.directory.cardinalities[e])
        if not wanted:
            return ()

        def load() -> tuple[tuple[RowPositions, ...], int]:
            if len(wanted) <= _MOST_BITMAPS or self.directory.num_rows > _MOST_UNITED_ROWS:
                found = tuple(self._read(wanted, metrics))
            else:
                found = (self._united(wanted, metrics),)
            return found, sum(p.num_bytes + _ENTRY_BYTES for p in found)

        return cached((*_key(self.blob, self.io), wanted), load)

    def _united(self, entries: Sequence[int], metrics: ScanMetrics) -> RowPositions:
        mask = np.zeros(self.directory.num_rows, np.bool_)
        for positions in self._read(entries, metrics):
            mark_rows(positions, 0, mask)
        return positions_in_mask(mask)

    def _read(self, entries: Sequence[int], metrics: ScanMetrics) -> Iterator[RowPositions]:
        directory = self.directory
        for run in _runs(directory, entries):
            begin, end = directory.begin(run[0]), int(directory.ends[run[-1]])
            data = memoryview(read_bytes(self.blob.path, self.io, self.blob.offset + begin, end - begin))
            metrics.bitmap_bytes_read += len(data)
            metrics.bitmaps_read += len(run)
            for entry in run:
                part = bytes(data[directory.begin(entry) - begin : int(directory.ends[entry]) - begin])
                if zlib.crc32(part) != directory.checksums[entry]:
                    raise MalformedTableError(f"{self.source}: CRC-32 of bitmap {entry} does not match")
                cardinality = int(directory.cardinalities[entry])
                yield decode_bitmap(part, cardinality, directory.num_rows, self.source)


def open_column_index(blob: BitmapIndexBlob, record_count: int, io: FileIOConfig, metrics: ScanMetrics) -> ColumnIndex:
    """The index in a blob, its directory read and checked.

    Raises:
        MalformedTableError: damaged, or of a file with another number of rows.
        MissingFileError: the index file is gone.
    """

    def load() -> tuple[Directory, int]:
        column_type = parse_type(blob.column_type)
        if not isinstance(column_type, PrimitiveType):
            raise MalformedTableError(f"{_source(blob)}: values of type {column_type}")
        data = read_bytes(blob.path, io, blob.offset, min(blob.directory_bytes, blob.length))
        metrics.bitmap_bytes_read += len(data)
        return decode_directory(data, column_type, blob.length, _source(blob)), 2 * len(data) + _ENTRY_BYTES

    directory = cached((*_key(blob, io), "directory"), load)
    if directory.num_rows != record_count:
        raise MalformedTableError(
            f"{_source(blob)}: is of a file of {directory.num_rows} rows, but this one has {record_count}"
        )
    if not blob.is_list and int(directory.cardinalities[:-1].sum()) != record_count:
        raise MalformedTableError(f"{_source(blob)}: the rows of all values are not those of the file")
    return ColumnIndex(blob, directory, io)


def _runs(directory: Directory, entries: Sequence[int]) -> list[list[int]]:
    """Entries whose bitmaps are read at once."""
    runs: list[list[int]] = []
    for entry in entries:
        end = int(directory.ends[entry])
        is_near = runs and directory.begin(entry) - int(directory.ends[runs[-1][-1]]) <= _GAP_BYTES
        if is_near and end - directory.begin(runs[-1][0]) <= _MOST_RUN_BYTES:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _key(blob: BitmapIndexBlob, io: FileIOConfig) -> tuple[object, ...]:
    return "bitmap index", fingerprint(blob.path, io), tuple(sorted(io.properties.items())), blob.offset, blob.length


def _source(blob: BitmapIndexBlob) -> str:
    return f"{blob.path}: bitmap index at {blob.offset}"
