"""The bytes of one file of a table held against the checksums in it: each byte is read, in pieces of bounded size.

Which files there are, and what manifests say of them, is asked elsewhere (`checks/damage.py`). Nothing is taken from a cache.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from sys import maxsize
from typing import assert_never
from zlib import crc32

import numpy as np

from nevermore.scan_core.bitmaps.column_index import (
    BLOB_TYPE,
    COLUMN_TYPE,
    DIRECTORY_BYTES,
    ColumnIndex,
    PuffinBlob,
    locate_index,
    read_directory,
    read_footer,
)
from nevermore.scan_core.deletes.filter import check_vector_frame
from nevermore.scan_core.files.avro import MAX_BLOCK_BYTES
from nevermore.scan_core.files.parquet.decoded_size import page_walk
from nevermore.scan_core.files.parquet.file_layout import read_layout
from nevermore.scan_core.files.parquet.footer import DICTIONARY_PAGE, MAGIC, Chunk
from nevermore.scan_core.io.files import open_source, read_bytes
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.io.remote import ByteSource
from nevermore.scan_core.metadata.avro_container import (
    MAX_EXPANSION,
    decompress,
    find_blocks,
    read_file_header,
)
from nevermore.scan_core.model.errors import MalformedTableError, ScanError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.snapshot import FileFormat

_PIECE_BYTES = 4 * 1024**2
"""Read and held at a time."""
_DELETION_VECTOR = "deletion-vector-v1"
_ZSTD_CHECKSUM_FLAG = 0x04
_BROKEN = (ValueError, LookupError, ArithmeticError, TypeError, OSError)
"""What decoders and disks raise."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with a file.

    Attributes:
        file: path as metadata writes it.
        place: part of the file: offset, column and page as far as they are known; "" for the file as a whole.
        problem: what was expected and what was found.
    """

    file: str
    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.place + ': ' if self.place else ''}{self.problem}"


@dataclass(frozen=True, slots=True)
class VerifiedBytes:
    """The result of verifying the bytes of one file.

    Attributes:
        damage: description of the damage.
        unprotected: parts that no checksum covers, so that a changed bit in them may go unseen; empty if there are none.
    """

    damage: tuple[Damage, ...] = ()
    unprotected: tuple[str, ...] = ()


def verify_bytes(path: str, file_format: FileFormat, io: FileIOConfig) -> VerifiedBytes:
    """Read every byte of a data, delete, manifest, manifest list or Puffin file and compare its checksums.

    Rows are not decoded; the headers, lengths and counts around them are checked from the first byte to the last.
    """
    match file_format:
        case FileFormat.PARQUET:
            verify = _parquet
        case FileFormat.AVRO:
            verify = _avro
        case FileFormat.PUFFIN:
            verify = _puffin
        case FileFormat.ORC:
            verify = _orc
        case _:
            assert_never(file_format)
    damage: list[Damage] = []
    unprotected: set[str] = set()
    try:
        for found in verify(path, io):
            if isinstance(found, Damage):
                damage.append(found)
            else:
                unprotected.add(found)
    except (ScanError, *_BROKEN) as error:
        damage.append(Damage(path, "", _reason(path, error)))
    return VerifiedBytes(tuple(damage), tuple(sorted(unprotected)))


def _reason(path: str, error: BaseException) -> str:
    """The text of an error without the path, which stands in front of it already."""
    return (str(error) or type(error).__name__).removeprefix(f"{path}: ")


class _Pieces:
    """A file read from front to back, or a part of it, a piece at a time."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._size = source.size()
        self._begin = 0
        self._data = b""

    def read_at(self, length: int, offset: int) -> memoryview:
        """Up to so many bytes, fewer than a piece."""
        end = min(offset + length, self._size)
        if offset < self._begin or end > self._begin + len(self._data):
            self._begin = offset
            self._data = self._source.read_at(min(max(_PIECE_BYTES, length), self._size - offset), offset)
        return memoryview(self._data)[offset - self._begin : max(end - self._begin, 0)]

    def checksum(self, offset: int, length: int) -> int:
        """The CRC-32 of a range of any length."""
        found = 0
        for at in range(offset, offset + length, _PIECE_BYTES):
            found = crc32(self.read_at(min(_PIECE_BYTES, offset + length - at), at), found)
        return found


def _parquet(path: str, io: FileIOConfig) -> Iterator[Damage | str]:
    with closing(open_source(path, io)) as source:
        pieces = _Pieces(source)
        if bytes(pieces.read_at(len(MAGIC), 0)) != MAGIC:
            yield Damage(path, "byte 0", f"{bytes(pieces.read_at(len(MAGIC), 0))!r} instead of {MAGIC!r}")
        footer = read_layout(source, path).footer
        yield "footer, page headers, page index, Bloom filters"
        for number, group in enumerate(footer.row_groups):
            for leaf, chunk in enumerate(group.chunks):
                place = f"row group {number}, column {'.'.join(footer.leaves[leaf].path)!r}"
                yield from _pages(path, place, pieces, chunk)


def _pages(path: str, place: str, pieces: _Pieces, chunk: Chunk) -> Iterator[Damage | str]:
    """The pages of a column chunk, one behind the other: each header says where the next page begins."""
    num_values, number, end = 0, -1, chunk.start + chunk.num_bytes
    try:  # to the last byte, whatever the footer states of its values
        for number, page in enumerate(page_walk(pieces.read_at, replace(chunk, num_values=maxsize))):
            where = f"{place}, page {number} at byte {page.offset}"
            if page.body + page.stored_bytes > end:
                yield Damage(path, where, "it ends outside of its column chunk")
                return
            if (stated := page.checksum) is None:
                yield "pages"
            elif not isinstance(stated, int) or pieces.checksum(page.body, page.stored_bytes) != stated & 0xFFFFFFFF:
                problem = f"the CRC-32 of its {page.stored_bytes:,} bytes is not the {_hex(stated)} of its header"
                yield Damage(path, where, problem)
            num_values += page.num_values if page.kind != DICTIONARY_PAGE else 0
    except ValueError as error:
        yield Damage(path, f"{place}, page {number + 1}", str(error))
        return
    if num_values != chunk.num_values:
        yield Damage(path, place, f"expected {chunk.num_values:,} values by the footer, its pages state {num_values:,}")


def _hex(checksum: object) -> str:
    return f"{checksum & 0xFFFFFFFF:08x}" if isinstance(checksum, int) else repr(checksum)


def _avro(path: str, io: FileIOConfig) -> Iterator[Damage | str]:
    with closing(open_source(path, io)) as source:
        size = source.size()
        file = source.for_arrow()
        header = read_file_header(file, size)
        codec = header.codec
        if codec not in MAX_EXPANSION:
            yield Damage(path, "header", f"codec {codec!r} is not known")
            return
        yield "header"
        for block in find_blocks(file.read_at, header, size):
            payload = file.read_at(block.num_bytes, block.offset)
            try:
                decompress(payload, codec, MAX_BLOCK_BYTES)
            except ValueError as error:
                yield Damage(path, f"block at byte {block.offset}", str(error))
            if not _block_is_protected(codec, payload):
                yield f"blocks (codec {codec})"


def _block_is_protected(codec: str, payload: bytes) -> bool:
    """Whether a block carries a checksum of its bytes."""
    if codec == "zstandard":
        return len(payload) > 4 and bool(payload[4] & _ZSTD_CHECKSUM_FLAG)
    return codec in {"snappy", "bzip2", "xz"}


def _orc(path: str, io: FileIOConfig) -> Iterator[Damage | str]:
    with closing(open_source(path, io)) as source:
        pieces = _Pieces(source)
        for at in range(0, source.size(), _PIECE_BYTES):  # a disk may refuse to give some of them
            pieces.read_at(_PIECE_BYTES, at)
        if bytes(pieces.read_at(3, 0)) != b"ORC":
            yield Damage(path, "byte 0", f"{bytes(pieces.read_at(3, 0))!r} instead of b'ORC'")
        yield "everything (ORC has no checksums)"


def _puffin(path: str, io: FileIOConfig) -> Iterator[Damage | str]:
    footer = read_footer(path, io)
    if not footer.is_checked:
        yield "footer"
    for blob in footer.blobs:
        where = f"blob {blob.type} at byte {blob.offset}"
        try:
            if blob.type == BLOB_TYPE:
                _check_bitmaps(blob, path, io)
            elif blob.type == _DELETION_VECTOR and blob.compression is None:
                source = f"{path}: deletion vector at {blob.offset}"
                check_vector_frame(read_bytes(path, io, blob.offset, blob.length), source)
            elif blob.length:
                for at in range(blob.offset, blob.offset + blob.length, _PIECE_BYTES):
                    read_bytes(path, io, at, min(_PIECE_BYTES, blob.offset + blob.length - at))
                yield f"blobs of type {blob.type}"
        except (ScanError, *_BROKEN) as error:
            yield Damage(path, where, _reason(path, error))


def _check_bitmaps(blob: PuffinBlob, path: str, io: FileIOConfig) -> None:
    """Directory and bitmaps of a bitmap index."""
    if not (blob.fields and COLUMN_TYPE in blob.properties and blob.properties.get(DIRECTORY_BYTES, "").isdecimal()):
        raise MalformedTableError(
            f"{path}: bitmap index at {blob.offset}: it states no column, no type of values, or no size of the directory"
        )
    place = locate_index(blob, path)
    directory = read_directory(place, io)
    entries = np.flatnonzero(np.diff(directory.ends, prepend=directory.num_bytes)).tolist()
    for _ in ColumnIndex(place, directory, io).read(entries, ScanMetrics()):
        pass
