"""Splits the bytes of event files into documents, and detects how these are laid out from the first bytes.

Handles lines, arrays, pretty-printed objects, and keys followed by values, and defines the pieces in which a file is
read. Documents are not interpreted here.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.batches import Rejected, lost_events
from nevermore.pipelines.decode.events import MAX_RAW_BYTES, strings
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.jsonscan import object_kernels
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import object_of, scan_objects
from nevermore.pipelines.jsonscan.spans import from_binary
from nevermore.pipelines.sources.file_options import Layout, otherwise
from nevermore.pipelines.sources.file_position import ReadFile
from nevermore.scan_core import Mask

SNIFFED_BYTES = 256 * 1024
"""Number of leading bytes that are enough to detect the layout of a file."""
SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Undecided(Enum):
    """Why the layout of a file cannot be determined from its first bytes; later bytes may decide."""

    NOTHING = "only white space"
    UNFINISHED_LINE = "the beginning of a line"
    UNFINISHED_DOCUMENT = "the beginning of a document of several lines"
    LINE_OR_KEY = "an object without a newline: either a row, or a key whose value follows"
    DOCUMENT_OR_KEY = (
        "its first object spans several lines and is not a change event: it may be a row, or the key of the next object"
    )
    LINE_OR_PART = "its second line is a complete object, but may be part of the first object"


def sniff_layout(head: bytes) -> Layout | Undecided:
    """Detect the layout of a file from its first bytes, without its comment block.

    The decision is final: when the file grows, more bytes never lead to another layout.
    """
    text = head.lstrip(SPACE)
    first_line, newline, rest = text.partition(b"\n")
    first_line = first_line.strip()
    if not text:
        return Undecided.NOTHING
    if text.startswith(b"["):
        # nothing can follow a complete array: if it is empty, it is one of several lines
        is_line = first_line.endswith(b"]") and rest.startswith(b"{")
        return Layout.LINES if is_line and not leading_document(first_line[1:].lstrip(SPACE)) else Layout.ARRAY
    if text.startswith(b"/*"):
        return Undecided.UNFINISHED_LINE
    if not text.startswith(b"{"):
        return Layout.LINES
    second = _second_line_is_document(text)
    if second is not False:
        return Layout.LINES if second else Undecided.LINE_OR_PART
    spans, _ = _first_documents(text)
    if not spans:
        is_pretty = first_line.endswith(_OPEN_LINE)
        if not newline:
            return Undecided.UNFINISHED_LINE
        return Undecided.UNFINISHED_DOCUMENT if is_pretty else Layout.LINES
    return _layout_of_objects(text, [text[start:end] for start, end in spans])


def _layout_of_objects(text: bytes, objects: list[bytes]) -> Layout | Undecided:
    """The layout of a text whose first one or two complete objects are these."""
    roles = [_role(document) for document in objects]
    if b"\n" in objects[0]:
        if roles[0] is _Role.EVENT:
            return Layout.DOCUMENTS
        is_pair = roles[0] is _Role.KEY or roles[1:] == [_Role.EVENT]
        return Layout.KEYED_DOCUMENTS if is_pair else Undecided.DOCUMENT_OR_KEY
    behind = text[len(objects[0]) :]
    if behind.lstrip(b" ").startswith(b"{"):
        return Layout.DOCUMENTS
    if not behind.strip(b" ") and roles[0] is not _Role.EVENT:
        return Undecided.LINE_OR_KEY
    return Layout.KEYED_LINES if behind[:1] == b"\t" and roles[0] is not _Role.EVENT else Layout.LINES


_OPEN_LINE = (b"{", b"[", b",", b":")
"""How the first line of a document of several lines ends."""


def _second_line_is_document(text: bytes) -> bool | None:
    """Whether the second line is an object while the first is incomplete; None if only later bytes can tell."""
    first, _, rest = text.partition(b"\n")
    second, _, others = rest.partition(b"\n")
    second = second.rstrip()
    if not second.startswith(b"{") or leading_document(second) != len(second) or leading_document(first):
        return False
    if not first.rstrip().endswith((b":", b"[", b",")):
        return True
    # within a document, objects are separated by commas
    others = others.lstrip(SPACE)
    return others.startswith(b"{") if others else None


class _Role(Enum):
    """What an object is, judging from its own members."""

    EVENT = "event"
    KEY = "key"
    EITHER = "either"


_PARTS_OF_EVENT = ("before", "after", "source", "change", "columns", "identity", "data", "metadata")
"""Members of change events in all formats that contain objects or arrays; the columns of a key contain neither."""
_ADDED_TO_ROWS = ("__op", "__deleted", "__table", "__lsn", "__source_ts_ms", "__ts_ms")
"""Members that Debezium's unwrapping transformation adds to rows."""


def _role(document: bytes) -> _Role:
    status = scan_objects(from_binary(pa.array([document])), learn=False).status[0]
    if status == kernels.TOO_DEEP:
        return _Role.EVENT  # decoding rejects it; as a key it would be lost silently
    if status != kernels.OK:
        return _Role.EITHER
    event = object_of(document)
    name = str(event["schema"].get("name")) if isinstance(event.get("schema"), dict) else ""
    if name.endswith(".Key"):
        return _Role.KEY
    payload = event.get("payload")
    event = payload if isinstance(payload, dict) else event
    is_event = isinstance(event.get("op"), str) and {"before", "after"} <= event.keys()
    is_event |= any(isinstance(event.get(part), dict | list) for part in _PARTS_OF_EVENT)
    is_event |= name.endswith((".Value", ".Envelope")) or not event.keys().isdisjoint(_ADDED_TO_ROWS)
    return _Role.EVENT if is_event else _Role.EITHER


def _first_documents(text: bytes) -> tuple[list[list[int]], int]:
    """(begins and ends of the first one or two complete documents of a text, where the search ended)."""
    view, spans = np.frombuffer(text, np.uint8), np.zeros((2, 2), np.int64)
    stack = np.empty(kernels.MAX_DEPTH, np.uint8)
    found, reached = object_kernels.split_documents(view, 0, len(view), spans, stack, False)
    return spans[:found].tolist(), int(reached)


def leading_document(text: bytes) -> int:
    """Position after the document at the beginning of a text; 0 if there is none."""
    spans, _ = _first_documents(text)
    return spans[0][1] if spans else 0


def is_complete(document: bytes) -> bool:
    """Whether a text is one document and nothing else."""
    spans, reached = _first_documents(document)
    return len(spans) == 1 and reached == len(document)


def comment_length(head: bytes) -> tuple[int, int]:
    """The size in bytes and lines of a byte-order mark, a leading `/* ... */` block and the blank lines around it."""
    at = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
    rest = head[at:].lstrip(SPACE)
    if not rest.startswith(b"/*"):
        return at, 0
    start = len(head) - len(rest)
    end = head.find(b"*/", start)
    if end < 0:
        return at, 0
    end = head.find(b"\n", end) + 1 or len(head)
    return end, head.count(b"\n", 0, end)


_SEARCHED_BYTES = 64 * 1024
"""Number of bytes searched at a time, from the end."""


def after_last_newline(data: pa.Buffer) -> int:
    """Position after the last newline; 0 if there is none."""
    end = int(data.size)
    while end > 0:
        start = max(end - _SEARCHED_BYTES, 0)
        found: int = data.slice(start, end - start).to_pybytes().rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class Chunks:
    """Reads a stream in runs of whole lines. Seekable streams seek back to the start of a cut line, others keep its bytes."""

    def __init__(self, stream: Any, *, seekable: bool, stop: int | None = None) -> None:
        """Of seekable streams, only the first `stop` bytes are read."""
        self._stream = stream
        self._stop = stop
        self.seekable = seekable
        self._carried = b""

    def peek(self, size: int) -> bytes:
        """Return the first bytes without consuming them."""
        head: bytes = self._stream.read(size)
        if self.seekable:
            self._stream.seek(0)
        else:
            self._carried = head
        return head

    def skip(self, size: int) -> int:
        """Continue after the first `size` bytes, and after a newline there, if the last line was read without it; return the offset."""
        if not self.seekable:
            self._skip_carried(size)
            return size
        self._stream.seek(max(size - 1, 0))
        border: bytes = self._stream.read(3)
        past = 0
        if size and border[:1] != b"\n":
            past = 1 if border[1:2] == b"\n" else 2 if border[1:3] == b"\r\n" else 0
        self._stream.seek(size + past)
        return size + past

    def skip_exactly(self, size: int) -> None:
        """Continue after the first `size` bytes."""
        if self.seekable:
            self._stream.seek(size)
        else:
            self._skip_carried(size)

    def read(self, size: int) -> tuple[pa.Buffer, bool]:
        """Return the next `size` bytes, and whether they are the last."""
        data = self._read(size)
        return data, data.size < size

    def _skip_carried(self, size: int) -> None:
        while size > len(self._carried):
            size -= len(self._carried)
            self._carried = self._stream.read(1024 * 1024)
            if not self._carried:
                return
        self._carried = self._carried[size:]

    def lines(self, size: int, max_bytes: int) -> tuple[pa.Buffer, bool]:
        """Return about `size` bytes of whole lines, and whether they are the last; the last line may lack its newline.

        Raises:
            SourceError: a line is longer than `max_bytes`.
        """
        wanted = size
        while True:
            data = self._read(wanted)
            if data.size < wanted:
                return data, True
            whole = after_last_newline(data)
            if whole:
                self.give_back(data, whole)
                return data.slice(0, whole), False
            if data.size >= max_bytes:
                raise SourceError(f"a line of more than {max_bytes} bytes; {otherwise(max_bytes, 'shorten it')}")
            self.give_back(data, 0)
            wanted = min(2 * wanted, max_bytes)

    def read_all(self, max_bytes: int) -> pa.Buffer:
        """Read all bytes, since arrays and pretty-printed documents are split in memory.

        Raises:
            SourceError: more than `max_bytes`.
        """
        data = self._read(max_bytes + 1)
        if data.size > max_bytes:
            raise SourceError(
                f"a file of documents of more than {max_bytes} bytes; {otherwise(max_bytes, 'write one event per line')}"
            )
        return data

    def _read(self, size: int) -> pa.Buffer:
        if self.seekable:
            left = size if self._stop is None else max(0, min(size, self._stop - self._stream.tell()))
            return self._stream.read_buffer(left)
        parts = [self._carried]
        have = len(self._carried)
        while have < size:
            part = self._stream.read(size - have)
            if not part:
                break
            parts.append(part)
            have += len(part)
        self._carried = b""
        return pa.py_buffer(b"".join(parts))

    def give_back(self, data: pa.Buffer, used: int) -> None:
        """Continue after the first `used` bytes of the last read."""
        if self.seekable:
            self._stream.seek(self._stream.tell() - (data.size - used))
        else:
            self._carried = data.slice(used).to_pybytes()


Bytes = NDArray[np.uint8]
Spans = NDArray[np.int64]


NEWLINE = 0x0A
DEFAULT_SEPARATOR = b"\t"
NO_KEYED_LINE = (
    "not a keyed line: it lacks a key, the separator {!r} after it, or both (options: {{key_separator: ...}})"
)
NO_VALUE = "a key without a value: the file ends after it"
NO_PAIRS = "a broken key or value: keys and values after it cannot be distinguished, so the file is read up to here"
PART_OF_EVENT = "neither an object nor the part of psql's output that surrounds rows"


@dataclass(frozen=True)
class Piece:
    """The documents in one part of a file.

    Attributes:
        documents: the document of each event; NULL for a tombstone.
        keys: the key of each event, or None if the layout has no keys.
        offsets: the line or number of each event, starting at 1.
        read_bytes: bytes of the file up to the end of the last event.
        lines: number of lines up to there.
        skipped: number of skipped lines by reason.
        rejected: lines, or the rest of the file, that are not events; without the name of the file.
        may_grow: whether the rejected part is at the end of the file, so that more bytes may complete it.
    """

    documents: pa.BinaryArray
    keys: pa.BinaryArray | None
    offsets: NDArray[np.int64]
    read_bytes: int
    lines: int
    skipped: dict[str, int] = field(default_factory=dict)
    rejected: Rejected = field(default_factory=Rejected.none)
    may_grow: bool = False

    def slice(self, first: int, count: int | None = None) -> "Piece":
        """Some events that follow each other, in the same part of the file."""
        keys = None if self.keys is None else self.keys.slice(first, count)
        documents, offsets = self.documents.slice(first, count), self.offsets[first:][:count]
        return replace(self, documents=documents, keys=keys, offsets=offsets)


def split_lines(
    data: pa.Buffer, first_line: int, layout: Layout, max_lines: int, separator: bytes = DEFAULT_SEPARATOR
) -> Piece:
    """Split the first `max_lines` complete lines into events; `first_line` is the number of the first.

    `separator` separates key and value where the layout has keys.
    """
    view = np.frombuffer(data, np.uint8)
    ends = _line_ends(view, max_lines)
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
    rejected = Rejected.none()
    if layout is Layout.PSQL:
        keep = np.asarray(pc.match_substring_regex(documents, rb"^[ \t\r\n]*\{"))
        # psql's output around rows has neither braces nor double quotes; parts of events do
        around = ~blank & ~keep & ~np.asarray(pc.match_substring_regex(documents, rb'[{}"]'))
        part = ~blank & ~keep & ~around
        skipped |= {"psql output": int(around.sum())} if around.any() else {}
        rejected = _refused(documents, lines, part, PART_OF_EVENT)
    if not keep.all():
        documents, lines = documents.filter(pa.array(keep)), lines[keep]
    if layout is Layout.KEYED_LINES:
        values, keys, none = split_keys(documents, separator)
        if none.any():
            none[none] = ~_are_keys(documents.filter(pa.array(none)))
        if none.any():
            rejected = _refused(documents, lines, none, NO_KEYED_LINE.format(separator.decode()))
            kept = pa.array(~none)
            values, keys, lines = values.filter(kept), keys.filter(kept), lines[~none]
        documents = values
    return Piece(documents, keys, lines, len(view), first_line - 1 + count, skipped, rejected)


def _line_ends(view: Bytes, most: int) -> NDArray[np.int32]:
    """The positions after the first newlines."""
    found, count, first = [np.zeros(0, np.int64)], 0, 0
    while count < most and first < len(view):
        found.append(np.flatnonzero(view[first : first + _SEARCHED_BYTES] == NEWLINE) + first + 1)
        count += len(found[-1])
        first += _SEARCHED_BYTES
    return np.concatenate(found)[:most].astype(np.int32)


def _refused(documents: pa.BinaryArray, lines: NDArray[np.int64], mask: Mask, reason: str) -> Rejected:
    """Reject lines that are not events; the caller adds the name of the file."""
    if not mask.any():
        return Rejected.none()
    raw = pc.binary_slice(documents.filter(pa.array(mask)), 0, MAX_RAW_BYTES)
    return Rejected.of(len(raw), None, pa.array(lines[mask]), reason, raw, None)


def of_file(rejected: Rejected, name: str) -> Rejected:
    """The rejected lines with the name of their file."""
    names = pa.array([name] * rejected.num_rows, pa.string())
    return Rejected(rejected.table.set_column(0, rejected.table.schema.field(0), names))


def split_keys(lines: pa.BinaryArray, separator: bytes) -> tuple[pa.BinaryArray, pa.BinaryArray, Mask]:
    """Split lines of a key, a separator and a value; return (values, keys, mask of other lines).

    A key with nothing after its separator has the value NULL: some consumers write nothing in its place. A line
    without the separator is one of the other lines.
    """
    count = len(lines)
    _, offsets_buffer, data = lines.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[lines.offset : lines.offset + count + 1]
    view = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    found, line_end = np.empty(count, np.int64), np.empty(count, np.int64)
    stack = np.empty(kernels.MAX_DEPTH, np.uint8)
    object_kernels.find_separators(view, offsets, np.frombuffer(separator, np.uint8), stack, found, line_end)
    keyed = found >= 0
    value_start = np.where(keyed, found + len(separator), line_end)
    nothing = value_start == line_end
    none = ~keyed | (nothing & (found == offsets[:-1]))
    keys = from_spans(data, offsets[:-1], np.where(keyed, found, offsets[1:]).astype(np.int32))
    values = from_spans(data, value_start.astype(np.int32), np.where(nothing, line_end, offsets[1:]).astype(np.int32))
    return _null_where(values, nothing), keys, none


def _are_keys(lines: pa.BinaryArray) -> Mask:
    """Mask of lines that are only the key of a tombstone, recognized by the name of a Connect key schema."""
    parts = scan_objects(from_binary(lines), ("schema", "payload"), learn=False)
    schema = scan_objects(parts.column("schema").documents(kernels.OBJECT), ("name",), learn=False)
    is_key = pc.ends_with(strings(schema.column("name")), ".Key")
    result: Mask = parts.is_object & parts.column("payload").has_value & np.asarray(pc.fill_null(is_key, False))
    return result


def split_frames(data: pa.Buffer, first: int, max_frames: int) -> tuple[Piece, bool]:
    """Split messages with length prefixes; also return whether the bytes end within one. `first` is the first number.

    Raises:
        SourceError: an impossible length.
    """
    view = np.frombuffer(data, np.uint8)
    spans = np.empty((max_frames, 2), np.int64)
    found, reached, valid = object_kernels.split_frames(view, spans)
    if not valid:
        raise SourceError(f"message {first + found} has an impossible length: the file is not framed")
    spans = spans[:found]
    given = spans[:, 1] >= 0
    if reached != 4 * found + (size := int((spans[given, 1] - spans[given, 0]).sum())):
        raise lost_events(
            f"{found} messages of {size} bytes after message {first - 1} take {reached} bytes of the file"
        )
    documents = from_spans(
        data, spans[:, 0].astype(np.int32), np.where(given, spans[:, 1], spans[:, 0]).astype(np.int32)
    )
    numbers = np.arange(first, first + found, dtype=np.int64)
    piece = Piece(_null_where(documents, ~given), None, numbers, int(reached), first - 1 + int(found))
    return piece, bool(found < max_frames and reached < len(view))


def split_documents(data: pa.Buffer, layout: Layout, already: int) -> Piece:
    """Split a whole file of documents into events, except the first `already`.

    A broken or unfinished document extends to the next line that begins a complete one; in an array
    it includes the rest of the file. Of alternating keys and values, complete pairs are read up to the first incomplete one; the
    rest is rejected as a whole, since a later pair might be a value and the key after it.
    """
    view = np.frombuffer(data, np.uint8)
    start, end = 0, len(view)
    if layout is Layout.ARRAY:
        stripped = bytes(view).rstrip(SPACE)
        start = bytes(view[:64]).find(b"[") + 1
        end = len(stripped) - 1 if stripped.endswith(b"]") else len(stripped)
    spans, num_whole = _document_spans(view, start, end, separated=layout is Layout.ARRAY)
    begins, ends = spans[:, 0].astype(np.int32), spans[:, 1].astype(np.int32)
    _require_every_brace(view, start, end, begins, ends)
    keys = None
    rejected, may_grow = Rejected.none(), False
    if layout is Layout.KEYED_DOCUMENTS:
        paired = num_whole - num_whole % 2
        if paired < len(spans):
            is_broken = num_whole < len(spans)
            rest = pa.array([data.slice(int(begins[paired])).to_pybytes()], pa.binary())
            number, one = np.array([paired // 2 + 1], np.int64), np.ones(1, np.bool_)
            rejected = _refused(rest, number, one, NO_PAIRS if is_broken else NO_VALUE)
            may_grow = num_whole >= len(spans) - 1
        begins, ends = begins[:paired], ends[:paired]
        keys = from_spans(data, begins[0::2], ends[0::2])
        begins, ends = begins[1::2], ends[1::2]
    documents = from_spans(data, begins, ends)
    numbers = np.arange(1, len(documents) + 1, dtype=np.int64)
    lines = max(len(documents), already)
    return Piece(documents, keys, numbers, len(view), lines, rejected=rejected, may_grow=may_grow).slice(already)


def _require_every_brace(view: Bytes, start: int, end: int, begins: NDArray[np.int32], ends: NDArray[np.int32]) -> None:
    """No object begins outside of the documents.

    Raises:
        LostEventsError: one does, so the documents are not all.
    """
    for first in range(start, end, _SEARCHED_BYTES):
        braces = first + np.flatnonzero(view[first : min(first + _SEARCHED_BYTES, end)] == ord("{"))
        inside = np.searchsorted(begins, braces, side="right") - 1
        is_lost = inside < 0
        is_lost[~is_lost] = braces[~is_lost] >= ends[inside[~is_lost]]
        if is_lost.any():
            raise lost_events(f"an object at byte {braces[is_lost][0]} is in no document")


def _document_spans(view: Bytes, start: int, end: int, *, separated: bool) -> tuple[Spans, int]:
    """The begin and end of each document, and the number of complete ones before the first incomplete one."""
    parts: list[Spans] = []
    num_whole: int | None = None
    stack = np.empty(kernels.MAX_DEPTH, np.uint8)
    block = np.zeros((4096, 2), np.int64)
    position = start
    while True:
        found, position = object_kernels.split_documents(view, position, end, block, stack, separated)
        parts.append(block[:found].copy())
        if found == len(block):
            continue
        if position < end and num_whole is None:
            num_whole = sum(map(len, parts))
        after = end if separated or position >= end else object_kernels.find_document_line(view, position, end, stack)
        if after == end:
            break
        parts.append(np.array([[position, after]], np.int64))
        position = after
    if position < end:
        parts.append(np.array([[position, end]], np.int64))
    spans = np.concatenate(parts)
    return spans, len(spans) if num_whole is None else num_whole


def from_spans(data: pa.Buffer, begins: NDArray[np.int32], ends: NDArray[np.int32]) -> pa.BinaryArray:
    """A binary array of spans that need not be adjacent; the bytes between them are removed."""
    view = np.frombuffer(data, np.uint8)
    lengths = ends - begins
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    marks = np.zeros(len(view) + 1, np.int8)
    np.add.at(marks, begins, 1)
    np.add.at(marks, ends, -1)
    kept = view[np.cumsum(marks[:-1], dtype=np.int8).astype(np.bool_)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(kept)])


def _null_where(values: pa.BinaryArray, mask: Mask) -> pa.BinaryArray:
    if not mask.any():
        return values
    _, offsets, data = values.buffers()
    bitmap = pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(values), [bitmap, offsets, data])


_NO_DOCUMENTS, _NO_LINES = pa.nulls(0, pa.binary()), np.zeros(0, np.int64)


@dataclass(frozen=True)
class FilePiece:
    """The events in part of a file, or columns of some of its rows, with the state of reading the file.

    Attributes:
        piece: documents; `rows` is set instead for Parquet, CSV and Avro.
        before: state of reading the file before this piece.
        after: the state after it; `finished` if this was the end of the file.
        rejected: invalid records.
    """

    piece: Piece
    rows: pa.Table | None
    before: ReadFile
    after: ReadFile
    rejected: Rejected = field(default_factory=Rejected.none)

    @property
    def nbytes(self) -> int:
        """Bytes of the documents or columns."""
        return int(self.piece.documents.nbytes if self.rows is None else self.rows.nbytes)


def end_of(known: ReadFile) -> FilePiece:
    """A piece without events that marks the file as completely read."""
    nothing = Piece(_NO_DOCUMENTS, None, _NO_LINES, known.read_bytes, known.lines)
    return FilePiece(nothing, None, known, replace(known, finished=True))


def advanced_to(file: ReadFile, applied: int) -> ReadFile:
    """The file with at least this many lines read; the byte position of their end is unknown."""
    return file if file.lines >= applied else replace(file, lines=applied, read_bytes=0)
