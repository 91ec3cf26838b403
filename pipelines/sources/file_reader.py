"""One event file in pieces: which layout and compression it has, from where to go on, and what it is known by."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_batch import REJECTED_SCHEMA, Rejected
from pipelines.errors import ConfigError, SourceError
from pipelines.formats import document_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.sources import file_rows
from pipelines.sources.csv_file import Records, dialect_of, read_records
from pipelines.sources.file_chunks import MAX_LINE_BYTES, Chunks, after_last_newline
from pipelines.sources.file_documents import (
    Layout,
    Piece,
    comment_length,
    is_unfinished_start,
    sniff_layout,
    split_documents,
    split_frames,
    split_lines,
)
from pipelines.sources.file_listing import ListedFile, open_file
from pipelines.sources.file_options import FileOptions
from pipelines.sources.file_position import ReadFile

SNIFFED_BYTES = 256 * 1024
QUIET_SECONDS = 60
"""A file that was not written to for so long is memory-mapped: truncating a mapped file kills its readers."""
MAPPED_BYTES = 4 * 1024**2

_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_MAGIC_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}
_MAGIC_SUFFIXES = {b"PAR1": ".parquet", b"Obj\x01": ".avro"}
_TEXT_TABLES = (".csv", ".tsv")
_NO_DOCUMENTS, _NO_LINES = pa.array([], pa.binary()), np.zeros(0, np.int64)
_LINE_LAYOUTS = (Layout.LINES, Layout.KEYED_LINES, Layout.PSQL)


@dataclass(frozen=True)
class FilePiece:
    """Events of a part of a file, or columns of some of its rows, and how far the file is read after them.

    Attributes:
        piece: documents; `rows` is set instead for Parquet, CSV and Avro.
        before: the file as far as read before this piece.
        after: the same after it; `finished` says whether that was all.
        rejected: records that are none.
    """

    piece: Piece
    rows: pa.Table | None
    before: ReadFile
    after: ReadFile
    rejected: Rejected = field(default_factory=Rejected.none)


def read_file(file: ListedFile, known: ReadFile, options: FileOptions, filesystem: Any = None) -> Iterator[FilePiece]:
    """The events of a file after those that are read already.

    Raises:
        SourceError: it cannot be read, or is too large for its layout.
    """
    suffix, compression = _suffixes(file.name)
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
                yield from _read_rows(content, known, suffix, options, file.size)
            else:
                chunks = Chunks(content, seekable=compression is None)
                yield from _read_text(chunks, known, options, suffix)
    except (OSError, pa.ArrowInvalid, SourceError) as error:
        shown = "" if file.path in str(error) else f"cannot read {file.path}: "
        raise SourceError(f"{shown}{error}") from error


def unreadable_rest(known: ReadFile, reason: str) -> FilePiece:
    """What is left of a file as one rejected event, behind which the file is done."""
    columns = [[known.name], [known.lines + 1], [reason], [None], [None]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, REJECTED_SCHEMA, strict=True)]
    end = _end(replace(known, waiting=False))
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
    yield _end(known)


def _read_csv(chunks: Chunks, head: bytes, known: ReadFile, options: FileOptions, suffix: str) -> Iterator[FilePiece]:
    waits = chunks.seekable and not options.report_incomplete
    dialect = dialect_of(head, suffix, options, is_all=len(head) < SNIFFED_BYTES and not waits)
    if dialect is None:
        if len(head) >= SNIFFED_BYTES:
            raise SourceError(f"no CSV: no record ends within {SNIFFED_BYTES} bytes")
        yield _end(replace(known, waiting=bool(head.strip()) and waits))
        return
    # Without a byte position (a position of before there were any) records are counted again and left out.
    applied = known.lines if known.layout != Layout.CSV.value else 0
    if known.layout != Layout.CSV.value or known.read_bytes == 0:
        known = replace(known, read_bytes=dialect.first_byte, lines=0, layout=Layout.CSV.value)
    chunks.skip_exactly(known.read_bytes)
    wanted = options.batch_bytes
    while True:
        data, is_last = chunks.some(wanted)
        is_all = is_last and not waits
        part = read_records(data, dialect, known.lines + 1, options.batch_rows, is_all=is_all)
        chunks.give_back(data, part.num_bytes)
        if part.num_bytes:
            before, known = (
                known,
                replace(known, read_bytes=known.read_bytes + part.num_bytes, lines=known.lines + part.count),
            )
            yield _csv_piece(part, before, known, applied)
        if is_last and part.num_bytes in {data.size, 0}:
            break
        wanted = options.batch_bytes if part.num_bytes else 2 * wanted
        if wanted > MAX_LINE_BYTES:
            raise SourceError(f"a CSV record of more than {MAX_LINE_BYTES} bytes behind record {known.lines}: a quote?")
    yield _end(replace(known, waiting=bool(data.size - part.num_bytes)))


def _csv_piece(part: Records, before: ReadFile, after: ReadFile, applied: int) -> FilePiece:
    rows, numbers, rejected = part.rows, part.numbers, part.rejected.table
    if applied >= before.lines + 1:
        keep = numbers > applied
        rows, numbers = rows.filter(pa.array(keep)), numbers[keep]
        rejected = rejected.filter(pc.greater(rejected.column("source_offset"), applied))
    names = pa.array([after.name] * rejected.num_rows, pa.string())
    rejected = rejected.set_column(0, rejected.schema.field(0), names)
    piece = Piece(pa.nulls(rows.num_rows, pa.binary()), None, numbers, after.read_bytes, after.lines)
    if applied > before.lines:
        before = replace(_behind(before, applied), layout="")
    return FilePiece(piece, rows, before, after, Rejected(rejected))


def _behind(file: ReadFile, applied: int) -> ReadFile:
    """The file, read at least so many lines far: where their bytes end is not known."""
    return file if file.lines >= applied else replace(file, lines=applied, read_bytes=0)


def _read_text(chunks: Chunks, known: ReadFile, options: FileOptions, suffix: str) -> Iterator[FilePiece]:
    head = chunks.peek(SNIFFED_BYTES)
    if _is_csv(head, known, options, suffix):
        yield from _read_csv(chunks, head, known, options, suffix)
        return
    comment_bytes, comment_lines = comment_length(head)
    layout = Layout(known.layout) if known.layout else _layout(head[comment_bytes:], options)
    if layout is None and (options.report_incomplete or not chunks.seekable):
        layout = Layout.LINES
    if layout is None:
        yield _end(replace(known, waiting=True))
        return
    if layout is Layout.FRAMED:
        yield from _read_frames(chunks, known, options)
        return
    if layout in _LINE_LAYOUTS:
        yield from _read_lines(chunks, known, layout, options, (comment_bytes, comment_lines))
    else:
        yield from _read_documents(chunks, known, layout, options, comment_bytes)


def _read_lines(
    chunks: Chunks, known: ReadFile, layout: Layout, options: FileOptions, comment: tuple[int, int]
) -> Iterator[FilePiece]:
    # Lines without a byte position are known from the change log: they are counted again and left out.
    applied = known.lines if known.read_bytes == 0 else 0
    begin, lines = comment if known.read_bytes == 0 else (known.read_bytes, known.lines)
    known = replace(known, read_bytes=chunks.skip(begin), lines=lines, layout=layout.value, waiting=False)
    while True:
        data, is_last = chunks.lines(options.batch_bytes)
        pending = is_last and chunks.seekable and _is_unfinished(data, layout)
        whole = after_last_newline(data) if pending else data.size
        if whole:
            piece = split_lines(data.slice(0, whole), known.lines + 1, layout, options.batch_rows)
            before, known = known, replace(known, read_bytes=known.read_bytes + piece.read_bytes, lines=piece.lines)
            yield FilePiece(_chosen(piece, options, applied), None, _behind(before, applied), known)
            if piece.read_bytes < whole:
                chunks.give_back(data, piece.read_bytes)
                continue
        if pending and options.report_incomplete:
            rest = split_lines(data.slice(whole), known.lines + 1, layout, 1)
            yield FilePiece(_chosen(rest, options, applied), None, known, known)
        if pending and not options.report_incomplete:
            known = replace(known, waiting=True)
        if is_last or 0 < options.last_line <= known.lines:
            break
    yield _end(known)


def _is_csv(head: bytes, known: ReadFile, options: FileOptions, suffix: str) -> bool:
    """Whether a text holds CSV; dumps of `key TAB value` lines may be called .tsv too."""
    if known.layout or options.layout is not None:
        return Layout.CSV.value in {known.layout, options.layout}
    return suffix in _TEXT_TABLES and head.lstrip()[:1] not in {b"{", b"["}


def _read_frames(chunks: Chunks, known: ReadFile, options: FileOptions) -> Iterator[FilePiece]:
    chunks.skip_exactly(known.read_bytes)
    known = replace(known, layout=Layout.FRAMED.value, waiting=False)
    wanted = options.batch_bytes
    while True:
        data, is_last = chunks.some(wanted)
        piece, is_cut = split_frames(data, known.lines + 1, options.batch_rows)
        if len(piece.offsets):
            before, known = known, replace(known, read_bytes=known.read_bytes + piece.read_bytes, lines=piece.lines)
            yield FilePiece(piece, None, before, known)
        if is_last and (is_cut or piece.read_bytes == data.size):
            break
        # A message may be larger than what is read at once.
        wanted = options.batch_bytes if len(piece.offsets) else 2 * wanted
        if wanted > MAX_LINE_BYTES:
            raise SourceError(f"a message of more than {MAX_LINE_BYTES} bytes: the file is not framed")
        chunks.give_back(data, piece.read_bytes)
    if is_cut and options.report_incomplete:
        raise SourceError(f"the file ends within message {known.lines + 1}")
    yield _end(replace(known, waiting=is_cut))


def _read_documents(
    chunks: Chunks, known: ReadFile, layout: Layout, options: FileOptions, skipped_bytes: int
) -> Iterator[FilePiece]:
    data = chunks.whole().slice(skipped_bytes)
    if options.comments:
        data = _blanked(data, options.comments)
    piece = split_documents(data, layout, known.lines)
    pending = len(piece.documents) and chunks.seekable and not _is_complete(piece.documents[-1].as_py())
    lines = piece.lines - 1 if pending else piece.lines
    known = replace(known, layout=layout.value if lines else "", waiting=False)
    if pending and not options.report_incomplete:
        count = len(piece.documents) - 1
        keys = None if piece.keys is None else piece.keys.slice(0, count)
        piece = replace(piece, documents=piece.documents.slice(0, count), keys=keys, offsets=piece.offsets[:count])
    for first in range(0, len(piece.offsets), options.batch_rows):
        part = _part(piece, first, options.batch_rows)
        read = min(int(part.offsets[-1]), lines)
        before, known = known, replace(known, lines=max(read, known.lines), read_bytes=known.size)
        yield FilePiece(part, None, before, known)
    waiting = bool(pending) and not options.report_incomplete
    yield _end(replace(known, lines=max(lines, known.lines), read_bytes=known.size if lines else 0, waiting=waiting))


def _part(piece: Piece, first: int, count: int) -> Piece:
    keys = None if piece.keys is None else piece.keys.slice(first, count)
    offsets = piece.offsets[first : first + count]
    return replace(piece, documents=piece.documents.slice(first, count), keys=keys, offsets=offsets)


def _end(known: ReadFile) -> FilePiece:
    nothing = Piece(_NO_DOCUMENTS, None, _NO_LINES, known.read_bytes, known.lines)
    return FilePiece(nothing, None, known, replace(known, finished=True))


def _chosen(piece: Piece, options: FileOptions, applied: int) -> Piece:
    """The lines that the options ask for, after the `applied` first ones."""
    keep = (piece.offsets >= max(options.first_line, applied + 1)) & (
        (piece.offsets <= options.last_line) | (options.last_line == 0)
    )
    skipped = dict(piece.skipped)
    for prefix in options.comments:
        is_comment = np.asarray(pc.starts_with(piece.documents, prefix)) if len(keep) else keep
        if (is_comment & keep).any():
            skipped["comment"] = skipped.get("comment", 0) + int((is_comment & keep).sum())
            keep &= ~is_comment
    if keep.all():
        return piece if skipped == piece.skipped else replace(piece, skipped=skipped)
    mask = pa.array(keep)
    keys = None if piece.keys is None else piece.keys.filter(mask)
    return replace(
        piece, documents=piece.documents.filter(mask), keys=keys, offsets=piece.offsets[keep], skipped=skipped
    )


def _layout(head: bytes, options: FileOptions) -> Layout | None:
    """The layout that the options or the first bytes tell; None if these are the beginning of one document."""
    if options.layout is not None:
        try:
            return Layout(options.layout)
        except ValueError as error:
            valid = ", ".join(layout.value for layout in Layout)
            raise ConfigError(f"unknown layout {options.layout!r}; valid are {valid}") from error
    for prefix in options.comments:
        head = b"\n".join(line for line in head.split(b"\n") if not line.lstrip().startswith(prefix.encode()))
    # Without an end in sight the bytes tell enough: no document is so long that its layout matters.
    return sniff_layout(head) if len(head) >= SNIFFED_BYTES // 2 or not is_unfinished_start(head) else None


def _blanked(data: pa.Buffer, prefixes: tuple[str, ...]) -> pa.Buffer:
    wanted = tuple(prefix.encode() for prefix in prefixes)
    lines = data.to_pybytes().split(b"\n")
    return pa.py_buffer(b"\n".join(b"" if line.lstrip().startswith(wanted) else line for line in lines))


def _is_unfinished(data: pa.Buffer, layout: Layout) -> bool:
    """Whether the last line may still grow: it has no newline and is no complete event."""
    rest = data.slice(after_last_newline(data)).to_pybytes()
    if not rest.strip():
        return False
    if layout is Layout.KEYED_LINES:
        _, tab, rest = rest.partition(b"\t")
        return not tab or not _is_complete(rest)
    return not _is_complete(rest)


def _is_complete(document: bytes | None) -> bool:
    if document is None:
        return True
    data = np.frombuffer(document, np.uint8)
    spans = np.zeros((2, 2), np.int64)
    stack = np.empty(kernels.MAX_DEPTH, np.uint8)
    found, reached = document_kernels.split_documents(data, 0, len(data), spans, stack, False)
    return bool(found == 1 and reached == len(data))


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
