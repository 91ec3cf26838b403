"""The events of a text in pieces, from where reading stopped: lines, framed messages, documents, CSV."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.changes.change_batch import Rejected
from pipelines.errors import SourceError
from pipelines.formats import document_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.sources.csv_reader import read_csv
from pipelines.sources.file_chunks import Chunks, after_last_newline
from pipelines.sources.file_documents import (
    Piece,
    leading_blank_lines,
    split_documents,
    split_frames,
    split_keys,
    split_lines,
)
from pipelines.sources.file_layout import SNIFFED_BYTES, Layout, comment_length, is_unfinished_start, sniff_layout
from pipelines.sources.file_options import FileOptions
from pipelines.sources.file_piece import FilePiece, behind, end_of
from pipelines.sources.file_position import ReadFile

_TEXT_TABLES = (".csv", ".tsv")
_LINE_LAYOUTS = (Layout.LINES, Layout.KEYED_LINES, Layout.PSQL)


def read_text(chunks: Chunks, known: ReadFile, options: FileOptions, suffix: str) -> Iterator[FilePiece]:
    """The events behind those that are read already."""
    head = chunks.peek(SNIFFED_BYTES)
    if _is_csv(head, known, options, suffix):
        options.check_for(Layout.CSV)
        yield from read_csv(chunks, head, known, options, suffix)
        return
    comment_bytes, comment_lines = comment_length(head)
    layout = Layout(known.layout) if known.layout else _layout(head[comment_bytes:], options)
    if layout is not None:
        options.check_for(layout)
    if layout is None and (options.report_incomplete or not chunks.seekable):
        layout = Layout.LINES
    if layout is None:
        yield end_of(replace(known, waiting=True))
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
        data, is_last = chunks.lines(options.batch_bytes, options.most_event_bytes)
        pending = is_last and chunks.seekable and _is_unfinished(data, layout, options.separator)
        # white space behind the last newline may be half of one: its other half would be a line
        is_blank = is_last and chunks.seekable and not data.slice(after_last_newline(data)).to_pybytes().strip()
        whole = after_last_newline(data) if pending or is_blank else data.size
        begin = 0
        while begin < whole and not 0 < options.last_line <= known.lines:
            rest = data.slice(begin, whole - begin)
            piece = leading_blank_lines(rest, known.lines + 1)
            if piece is None or options.first_line > 1 or options.last_line:
                piece = split_lines(rest, known.lines + 1, layout, options.batch_rows, options.separator)
            begin += piece.read_bytes
            before, known = known, replace(known, read_bytes=known.read_bytes + piece.read_bytes, lines=piece.lines)
            yield _lines_piece(_chosen(piece, options, applied), behind(before, applied), behind(known, applied))
        if pending and options.report_incomplete:
            rest = split_lines(data.slice(whole), known.lines + 1, layout, 1, options.separator)
            yield _lines_piece(_chosen(rest, options, applied), known, known)
        if pending and not options.report_incomplete:
            known = replace(known, waiting=True)
        if is_last or 0 < options.last_line <= known.lines:
            break
    yield end_of(known)


def _lines_piece(piece: Piece, before: ReadFile, after: ReadFile) -> FilePiece:
    return FilePiece(piece, None, before, after, _of_file(piece.rejected, after.name))


def _of_file(rejected: Rejected, name: str) -> Rejected:
    names = pa.array([name] * rejected.num_rows, pa.string())
    return Rejected(rejected.table.set_column(0, rejected.table.schema.field(0), names))


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
        if wanted > options.most_event_bytes:
            raise SourceError(
                f"a message of more than {options.most_event_bytes} bytes: raise memory_limit_bytes, if the file is framed"
            )
        chunks.give_back(data, piece.read_bytes)
    if is_cut and options.report_incomplete:
        raise SourceError(f"the file ends within message {known.lines + 1}")
    yield end_of(replace(known, waiting=is_cut))


def _read_documents(
    chunks: Chunks, known: ReadFile, layout: Layout, options: FileOptions, skipped_bytes: int
) -> Iterator[FilePiece]:
    data = chunks.whole(options.most_event_bytes).slice(skipped_bytes)
    if options.comments:
        data = _blanked(data, options.comments)
    piece = split_documents(data, layout, known.lines)
    pending, lines = chunks.seekable and piece.may_grow, piece.lines
    if layout is not Layout.KEYED_DOCUMENTS:
        pending = bool(len(piece.documents)) and chunks.seekable and not _is_complete(piece.documents[-1].as_py())
        lines -= pending
    known = replace(known, layout=layout.value if lines else "", waiting=False)
    if pending and not options.report_incomplete:
        count = len(piece.documents) - (piece.lines - lines)
        keys = None if piece.keys is None else piece.keys.slice(0, count)
        piece = replace(piece, documents=piece.documents.slice(0, count), keys=keys, offsets=piece.offsets[:count])
        piece = replace(piece, rejected=Rejected.none())
    for first in range(0, len(piece.offsets), options.batch_rows):
        part = _part(piece, first, options.batch_rows)
        read = min(int(part.offsets[-1]), lines)
        before, known = known, replace(known, lines=max(read, known.lines), read_bytes=known.size)
        yield FilePiece(part, None, before, known)
    waiting = pending and not options.report_incomplete
    read_bytes = known.size if lines else 0
    end = end_of(replace(known, lines=max(lines, known.lines), read_bytes=read_bytes, waiting=waiting))
    yield replace(end, rejected=_of_file(piece.rejected, known.name))


def _part(piece: Piece, first: int, count: int) -> Piece:
    keys = None if piece.keys is None else piece.keys.slice(first, count)
    offsets = piece.offsets[first : first + count]
    return replace(piece, documents=piece.documents.slice(first, count), keys=keys, offsets=offsets)


def _chosen(piece: Piece, options: FileOptions, applied: int) -> Piece:
    """The lines that the options ask for, after the `applied` first ones."""

    def is_asked_for(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        last = (numbers <= options.last_line) | (options.last_line == 0)
        result: NDArray[np.bool_] = (numbers >= max(options.first_line, applied + 1)) & last
        return result

    keep = is_asked_for(piece.offsets)
    if piece.rejected.num_rows:
        lines = np.asarray(piece.rejected.table.column("source_offset"))
        raw = piece.rejected.table.column("raw").combine_chunks()
        comments = np.any(
            [np.zeros(len(lines), np.bool_), *(np.asarray(pc.starts_with(raw, p)) for p in options.comments)], axis=0
        )
        asked = is_asked_for(lines)
        told = dict(piece.skipped)
        if (comments & asked).any():
            told["comment"] = told.get("comment", 0) + int((comments & asked).sum())
        piece = replace(
            piece, rejected=Rejected(piece.rejected.table.filter(pa.array(asked & ~comments))), skipped=told
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
        return Layout(options.layout)
    for prefix in options.comments:
        head = b"\n".join(line for line in head.split(b"\n") if not line.lstrip().startswith(prefix.encode()))
    # Without an end in sight the bytes tell enough: no document is so long that its layout matters.
    return sniff_layout(head) if len(head) >= SNIFFED_BYTES // 2 or not is_unfinished_start(head) else None


def _blanked(data: pa.Buffer, prefixes: tuple[str, ...]) -> pa.Buffer:
    wanted = tuple(prefix.encode() for prefix in prefixes)
    lines = data.to_pybytes().split(b"\n")
    return pa.py_buffer(b"\n".join(b"" if line.lstrip().startswith(wanted) else line for line in lines))


def _is_unfinished(data: pa.Buffer, layout: Layout, separator: bytes) -> bool:
    """Whether the last line may still grow: it has no newline and is no complete event."""
    rest = data.slice(after_last_newline(data)).to_pybytes()
    if not rest.strip():
        return False
    if layout is Layout.KEYED_LINES:
        values, _, none = split_keys(pa.array([rest], pa.binary()), separator)
        # Without a newline a value may still come behind the separator.
        return bool(none[0]) or not values[0].is_valid or not _is_complete(values[0].as_py())
    return not _is_complete(rest)


def _is_complete(document: bytes | None) -> bool:
    if document is None:
        return True
    data = np.frombuffer(document, np.uint8)
    spans = np.zeros((2, 2), np.int64)
    stack = np.empty(kernels.MAX_DEPTH, np.uint8)
    found, reached = document_kernels.split_documents(data, 0, len(data), spans, stack, False)
    return bool(found == 1 and reached == len(data))
