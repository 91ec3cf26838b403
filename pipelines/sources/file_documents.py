"""From the bytes of an event file to documents: lines, arrays, pretty-printed objects, `key TAB value` lines.

Blank lines are left out; whatever else is no JSON stays a document, which the decoder rejects with its bytes. Which layout
a file has is told by `file_layout.py`.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.errors import SourceError
from pipelines.formats import document_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.sources.file_layout import SPACE, Layout, leading_document

Bytes = NDArray[np.uint8]
Spans = NDArray[np.int64]

NEWLINE, TAB = 0x0A, 0x09
_BLANK_LINES = ((b"\n", np.uint8), (b"\r\n", np.uint16))
_MANY_LINES = 4_096


@dataclass(frozen=True)
class Piece:
    """Documents of one part of a file.

    Attributes:
        documents: of each event; NULL for a tombstone.
        keys: of each event, or None where the layout has none.
        offsets: line or number of each, from 1.
        read_bytes: of the file up to the end of the last event.
        lines: read up to there.
        skipped: lines left out, by reason.
    """

    documents: pa.BinaryArray
    keys: pa.BinaryArray | None
    offsets: NDArray[np.int64]
    read_bytes: int
    lines: int
    skipped: dict[str, int] = field(default_factory=dict)


def leading_blank_lines(data: pa.Buffer, first_line: int) -> Piece | None:
    """The blank lines at the beginning, if they are very many: no line of theirs is looked at by itself."""
    for blank, kind in _BLANK_LINES:
        count = data.size // len(blank)
        view = np.frombuffer(data, kind, count)
        if (
            count <= _MANY_LINES
            or not (view[:_MANY_LINES] == view[0]).all()
            or bytes(data.slice(0, len(blank))) != blank
        ):
            continue
        other = np.flatnonzero(view != view[0])
        found = int(other[0]) if len(other) else count
        no_events = np.zeros(0, np.int64)
        skipped = {"blank line": found}
        documents = pa.array([], pa.binary())
        return Piece(documents, None, no_events, found * len(blank), first_line - 1 + found, skipped)
    return None


def split_lines(data: pa.Buffer, first_line: int, layout: Layout, max_lines: int) -> Piece:
    """The events of the first `max_lines` whole lines; `first_line` is the number of the first."""
    view = np.frombuffer(data, np.uint8)
    ends = np.empty(min(max_lines, len(view)), np.int32)
    ends = ends[: document_kernels.find_newlines(view, np.frombuffer(data, np.uint64, len(view) // 8), ends)]
    if len(ends) < max_lines and len(view) and (not len(ends) or ends[-1] != len(view)):
        ends = np.append(ends, np.int32(len(view)))
    view = view[: ends[-1]] if len(ends) else view[:0]
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    count = len(ends)
    lines = np.arange(first_line, first_line + count, dtype=np.int64)
    documents = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])
    lengths = np.diff(offsets)
    blank = (lengths <= 2) & (view[ends - 1] == NEWLINE) & ((lengths == 1) | (view[ends - lengths] == 0x0D))
    skipped = {"blank line": int(blank.sum())} if blank.any() else {}
    keys = None
    keep = ~blank
    if layout is Layout.PSQL:
        first = _first_characters(view, offsets)
        skipped["psql output"] = int((~blank & (first != 0x7B)).sum())
        keep = first == 0x7B
    if not keep.all():
        documents, lines = documents.filter(pa.array(keep)), lines[keep]
    if layout is Layout.KEYED_LINES:
        documents, keys = split_keys(documents)
    return Piece(documents, keys, lines, len(view), first_line - 1 + count, skipped)


def split_keys(lines: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """(values, keys) of `key TAB value` lines; a line without a TAB, or nothing behind it, is a key whose value is NULL."""
    _, offsets_buffer, data = lines.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    view = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    tabs = np.flatnonzero(view == TAB)
    if not len(tabs):
        return pa.nulls(len(lines), pa.binary()), lines
    # A JSON string holds no bare TAB, so the first one of a line ends its key.
    first = np.searchsorted(tabs, offsets[:-1])
    tab = tabs[np.minimum(first, len(tabs) - 1)]
    keyed = (first < len(tabs)) & (tab >= offsets[:-1]) & (tab < offsets[1:])
    key_end = np.where(keyed, tab, offsets[1:]).astype(np.int32)
    keys = _from_spans(data, offsets[:-1], key_end)
    value_start = np.where(keyed, key_end + 1, offsets[1:]).astype(np.int32)
    values = _from_spans(data, value_start, offsets[1:])
    # Some consumers write nothing in place of a value that is null.
    nothing = offsets[1:] - value_start <= len(b"\r\n")
    nothing &= np.isin(view[np.minimum(value_start, len(view) - 1)], (NEWLINE, 0x0D)) | (value_start == offsets[1:])
    return _null_where(values, ~keyed | nothing), keys


def split_frames(data: pa.Buffer, first: int, max_frames: int) -> tuple[Piece, bool]:
    """The first messages behind their lengths, and whether the bytes end within one; `first` is the number of the first.

    Raises:
        SourceError: a length that no message has.
    """
    view = np.frombuffer(data, np.uint8)
    spans = np.empty((max_frames, 2), np.int64)
    found, reached, valid = document_kernels.split_frames(view, spans)
    if not valid:
        raise SourceError(f"message {first + found} has a length that no message has: the file is not framed")
    spans = spans[:found]
    given = spans[:, 1] >= 0
    documents = _from_spans(
        data, spans[:, 0].astype(np.int32), np.where(given, spans[:, 1], spans[:, 0]).astype(np.int32)
    )
    numbers = np.arange(first, first + found, dtype=np.int64)
    piece = Piece(_null_where(documents, ~given), None, numbers, int(reached), first - 1 + int(found))
    return piece, bool(found < max_frames and reached < len(view))


def split_documents(data: pa.Buffer, layout: Layout, already: int) -> Piece:
    """The events of a whole file of documents, without the first `already` of them.

    A document that is broken or unfinished stays one document, up to the next line that begins a whole one; in an array
    it takes the rest of the file with it.
    """
    view = np.frombuffer(data, np.uint8)
    start, end = 0, len(view)
    if layout is Layout.ARRAY:
        stripped = bytes(view).rstrip(SPACE)
        start = bytes(view[:64]).find(b"[") + 1
        end = len(stripped) - 1 if stripped.endswith(b"]") else len(stripped)
    spans = _document_spans(view, start, end, separated=layout is Layout.ARRAY)
    begins, ends = spans[:, 0].astype(np.int32), spans[:, 1].astype(np.int32)
    keys = None
    if layout is Layout.KEYED_DOCUMENTS:
        keys = _from_spans(data, begins[0::2][: len(begins) // 2], ends[0::2][: len(ends) // 2])
        begins, ends = begins[1::2], ends[1::2]
    documents = _from_spans(data, begins, ends)
    count = len(documents)
    numbers = np.arange(1, count + 1, dtype=np.int64)
    if keys is not None:
        keys = keys.slice(already)
    return Piece(documents.slice(already), keys, numbers[already:], len(view), max(count, already))


def _document_spans(view: Bytes, start: int, end: int, *, separated: bool) -> Spans:
    parts: list[Spans] = []
    stack = np.empty(kernels.MAX_DEPTH, np.uint8)
    block = np.zeros((4096, 2), np.int64)
    position = start
    while True:
        found, position = document_kernels.split_documents(view, position, end, block, stack, separated)
        parts.append(block[:found].copy())
        if found == len(block):
            continue
        after = end if separated or position >= end else _next_line_with_document(view, position, end)
        if after == end:
            break
        parts.append(np.array([[position, after]], np.int64))
        position = after
    if position < end:
        parts.append(np.array([[position, end]], np.int64))
    return np.concatenate(parts)


def _next_line_with_document(view: Bytes, start: int, end: int) -> int:
    """Where the next line begins that a document fills or begins, behind one that is broken; `end` if there is none."""
    text = view[start:end].tobytes()
    at = text.find(b"\n{")
    while at >= 0:
        if leading_document(text[at + 1 :]):
            return start + at + 1
        at = text.find(b"\n{", at + 1)
    return end


def _first_characters(view: Bytes, offsets: NDArray[np.int32]) -> Bytes:
    """The first character of each line that is no blank."""
    solid = np.flatnonzero((view != 0x20) & (view != TAB) & (view != 0x0D) & (view != NEWLINE))
    at = np.searchsorted(solid, offsets[:-1])
    place = solid[np.minimum(at, len(solid) - 1)] if len(solid) else np.zeros(len(at), np.int64)
    inside = (at < len(solid)) & (place < offsets[1:])
    return np.where(inside, view[place] if len(view) else np.uint8(0), np.uint8(0))


def _from_spans(data: pa.Buffer, begins: NDArray[np.int32], ends: NDArray[np.int32]) -> pa.BinaryArray:
    """A binary array of spans that need not touch: the bytes between them are cut out."""
    view = np.frombuffer(data, np.uint8)
    lengths = ends - begins
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    marks = np.zeros(len(view) + 1, np.int8)
    np.add.at(marks, begins, 1)
    np.add.at(marks, ends, -1)
    kept = view[np.cumsum(marks[:-1], dtype=np.int8).astype(np.bool_)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(kept)])


def _null_where(values: pa.BinaryArray, mask: NDArray[np.bool_]) -> pa.BinaryArray:
    if not mask.any():
        return values
    _, offsets, data = values.buffers()
    bitmap = pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(values), [bitmap, offsets, data])
