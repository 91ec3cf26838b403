"""Detects the layout of an event file from its first bytes."""

from enum import Enum

import numpy as np

from nevermore.pipelines.jsonscan import object_kernels
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_objects
from nevermore.pipelines.jsonscan.spans import Documents
from nevermore.pipelines.sources.file_options import Layout

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
    data = np.frombuffer(text, np.uint8)
    spans = np.zeros((2, 2), np.int64)
    found, _ = object_kernels.split_documents(data, 0, len(data), spans, np.empty(kernels.MAX_DEPTH, np.uint8), False)
    if not found:
        is_pretty = first_line.endswith(_OPEN_LINE)
        if not newline:
            return Undecided.UNFINISHED_LINE
        return Undecided.UNFINISHED_DOCUMENT if is_pretty else Layout.LINES
    return _layout_of_objects(text, [text[start:end] for start, end in spans[:found]])


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
_NESTED = (kernels.OBJECT, kernels.ARRAY)


def _role(document: bytes) -> _Role:
    view = np.frombuffer(document, np.uint8)
    whole = Documents(view, np.zeros(1, np.int32), np.full(1, len(view), np.int32))
    names = ("op", "schema", "payload", *_PARTS_OF_EVENT, *_ADDED_TO_ROWS)
    parts = scan_objects(whole, names, learn=False)
    if parts.status[0] == kernels.TOO_DEEP:
        return _Role.EVENT  # decoding rejects it; as a key it would be lost silently
    if not parts.is_object[0]:
        return _Role.EITHER
    schema = parts.column("schema").documents(kernels.OBJECT)
    if schema.present[0]:
        found = scan_objects(schema, ("name",), learn=False)
        text = document[found.start[0, 0] : found.end[0, 0]] if found.kind[0, 0] == kernels.STRING else b""
        if text.endswith(b".Key"):
            return _Role.KEY
        if text.endswith((b".Value", b".Envelope")):
            return _Role.EVENT
    payload = parts.column("payload").documents(kernels.OBJECT)
    if payload.present[0]:
        parts = scan_objects(payload, names, learn=False)
    kind = dict(zip(names, parts.kind[:, 0], strict=False))
    has_images = kind["op"] == kernels.STRING and kernels.MISSING not in {kind["before"], kind["after"]}
    is_event = has_images or any(kind[name] in _NESTED for name in _PARTS_OF_EVENT)
    is_event |= any(kind[name] != kernels.MISSING for name in _ADDED_TO_ROWS)
    return _Role.EVENT if is_event else _Role.EITHER


def leading_document(text: bytes) -> int:
    """Position after the document at the beginning of a text; 0 if there is none."""
    spans = np.zeros((2, 2), np.int64)
    stack = np.empty(kernels.MAX_DEPTH, np.uint8)
    view = np.frombuffer(text, np.uint8)
    found, _ = object_kernels.split_documents(view, 0, len(view), spans, stack, False)
    return int(spans[0, 1]) if found else 0


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
