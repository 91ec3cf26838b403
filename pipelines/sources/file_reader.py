"""One event file in pieces: which kind and compression it has, from where to go on, and what it is known by."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.changes.change_batch import REJECTED_SCHEMA, Rejected
from pipelines.errors import SourceError
from pipelines.sources import file_rows
from pipelines.sources.file_chunks import Chunks
from pipelines.sources.file_documents import Piece
from pipelines.sources.file_listing import ListedFile, open_file
from pipelines.sources.file_options import FileOptions
from pipelines.sources.file_piece import FilePiece, end_of
from pipelines.sources.file_position import ReadFile
from pipelines.sources.text_reader import read_text

QUIET_SECONDS = 60
"""A file that was not written to for so long is memory-mapped: truncating a mapped file kills its readers."""
MAPPED_BYTES = 4 * 1024**2

_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_MAGIC_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}
_MAGIC_SUFFIXES = {b"PAR1": ".parquet", b"Obj\x01": ".avro"}


def read_file(file: ListedFile, known: ReadFile, options: FileOptions, filesystem: Any = None) -> Iterator[FilePiece]:
    """The events of a file after those that are read already.

    Raises:
        SourceError: it cannot be read, or is too large for its layout.
    """
    suffix, compression = _suffixes(file.name)
    asked = options
    # What is left of a file that nobody writes to any more is all there will be.
    if not options.report_incomplete and (known.waiting or is_quiet(file)):
        options = replace(options, report_incomplete=True)
    try:
        with _open(file, compression, filesystem) as stream:
            content = stream
            if compression is None:
                suffix, compression = _known_by_magic(stream, suffix)
                content = stream if compression is None else pa.CompressedInputStream(stream, compression)
            if suffix in file_rows.READERS:
                asked.check_for_columns(suffix.removeprefix(".").capitalize())
                yield from _read_rows(content, known, suffix, options, file.size)
            else:
                chunks = Chunks(content, seekable=compression is None)
                yield from read_text(chunks, known, options, suffix)
    except (OSError, pa.ArrowInvalid, SourceError) as error:
        shown = "" if file.path in str(error) else f"cannot read {file.path}: "
        raise SourceError(f"{shown}{error}") from error


def unreadable_rest(known: ReadFile, reason: str) -> FilePiece:
    """What is left of a file as one rejected event, behind which the file is done."""
    columns = [[known.name], [known.lines + 1], [reason], [None], [None]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, REJECTED_SCHEMA, strict=True)]
    end = end_of(replace(known, waiting=False))
    return replace(end, rejected=Rejected(pa.table(arrays, schema=REJECTED_SCHEMA)))


def is_quiet(file: ListedFile) -> bool:
    """Whether a file was not written to for so long that its end is no unfinished one."""
    return time.time_ns() - file.arrived_ns > QUIET_SECONDS * 1_000_000_000


def _known_by_magic(stream: Any, suffix: str) -> tuple[str, str | None]:
    """(suffix that tells the kind of file, compression) by the first bytes, which names may hide or deny."""
    head: bytes = stream.read(4)
    stream.seek(0)
    compression = next((c for magic, c in _MAGIC_COMPRESSIONS.items() if head.startswith(magic)), None)
    return next((s for magic, s in _MAGIC_SUFFIXES.items() if head.startswith(magic)), suffix), compression


def _read_rows(content: Any, known: ReadFile, suffix: str, options: FileOptions, size: int) -> Iterator[FilePiece]:
    seen = 0
    known = replace(known, waiting=False)
    for table in file_rows.READERS[suffix](content, options):
        first, seen = seen, seen + table.num_rows
        if seen <= known.lines:
            continue
        fresh = table.slice(max(known.lines - first, 0))
        numbers = np.arange(seen - fresh.num_rows + 1, seen + 1, dtype=np.int64)
        before, known = known, replace(known, lines=seen, read_bytes=size)
        piece = Piece(pa.nulls(fresh.num_rows, pa.binary()), None, numbers, size, seen)
        yield FilePiece(piece, fresh, before, known)
    yield end_of(known)


def _suffixes(name: str) -> tuple[str, str | None]:
    """(suffix that tells the kind of file, compression) of a name."""
    lower = name.lower()
    compression = next((_COMPRESSIONS[s] for s in _COMPRESSIONS if lower.endswith(s)), None)
    if compression is not None:
        lower = lower.rsplit(".", 1)[0]
    return "." + lower.rsplit(".", 1)[-1] if "." in lower else "", compression


def _open(file: ListedFile, compression: str | None, filesystem: Any) -> Any:
    local = "://" not in file.path
    if compression is None and local and file.size > MAPPED_BYTES and is_quiet(file):
        return pa.memory_map(file.path)
    stream = open_file(file, filesystem)
    return stream if compression is None else pa.CompressedInputStream(stream, compression)
