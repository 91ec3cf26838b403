"""How documents lie in an event file, as its first bytes tell: lines, arrays, pretty-printed objects, keys beside values."""

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from pipelines.formats import document_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.formats.documents import Documents
from pipelines.formats.json_scan import scan_objects

SNIFFED_BYTES = 256 * 1024
"""Of the beginning of a file: enough to tell its layout."""
SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ENVELOPE = ("op", "before", "after", "payload")


class Layout(Enum):
    """How documents lie in a file."""

    LINES = "lines"
    KEYED_LINES = "keyed-lines"
    """A key, a separator (a TAB, unless told otherwise) and a value; nothing in place of the value is a tombstone."""
    DOCUMENTS = "documents"
    """Objects one after the other, over several lines each."""
    KEYED_DOCUMENTS = "keyed-documents"
    """The same, keys and values in turn."""
    ARRAY = "array"
    FRAMED = "framed"
    """Each message behind its length in four bytes, the most significant first, as `kcat -f '%R%s'` writes; -1 is NULL."""
    CSV = "csv"
    PSQL = "psql"
    """Output of psql: lines that hold an object, others are decoration."""


def sniff_layout(head: bytes) -> Layout:
    """The layout of a file that begins with these bytes, its comment block already cut off."""
    text = head.lstrip(SPACE)
    first_line, _, rest = text.partition(b"\n")
    first_line = first_line.strip()
    if text.startswith(b"["):
        # Behind a whole array no object can follow in it: these are lines, one of which is an array.
        return Layout.LINES if first_line.endswith(b"]") and rest.startswith(b"{") else Layout.ARRAY
    if not text.startswith(b"{") or _second_line_is_document(text):
        return Layout.LINES
    data = np.frombuffer(text, np.uint8)
    spans = np.zeros((2, 2), np.int64)
    found, _ = document_kernels.split_documents(data, 0, len(data), spans, np.empty(kernels.MAX_DEPTH, np.uint8), False)
    if not found:
        return Layout.DOCUMENTS if first_line.endswith((b"{", b"[", b",", b":")) else Layout.LINES
    first = text[: spans[0, 1]]
    if b"\n" in first:
        return Layout.KEYED_DOCUMENTS if found == 2 and _is_key_and_value(data, spans) else Layout.DOCUMENTS
    if text[spans[0, 1] :].lstrip(b" ").startswith(b"{"):
        return Layout.DOCUMENTS
    return Layout.KEYED_LINES if text[spans[0, 1] : spans[0, 1] + 1] == b"\t" else Layout.LINES


def is_unfinished_start(head: bytes) -> bool:
    """Whether these first bytes of a file are the beginning of one document, so that they tell no layout yet."""
    text = head.lstrip(SPACE)
    if not text.startswith(b"{"):
        return False
    line, newline, _ = text.partition(b"\n")
    if newline and (_second_line_is_document(text) or not line.rstrip().endswith((b"{", b"[", b",", b":"))):
        return False
    return not leading_document(text)


def _second_line_is_document(text: bytes) -> bool:
    """Whether an object fills the second line while the first is broken; within an object that is pretty no such is."""
    first, _, rest = text.partition(b"\n")
    second = rest.partition(b"\n")[0].rstrip()
    if not second.startswith(b"{") or leading_document(second) != len(second) or leading_document(first):
        return False
    inside = first.rstrip().endswith((b":", b"[", b","))
    return not (inside and leading_document(text))


def leading_document(text: bytes) -> int:
    """Where the document ends that a text begins with; 0 if it does not."""
    spans = np.zeros((2, 2), np.int64)
    stack = np.empty(kernels.MAX_DEPTH, np.uint8)
    view = np.frombuffer(text, np.uint8)
    found, _ = document_kernels.split_documents(view, 0, len(view), spans, stack, False)
    return int(spans[0, 1]) if found else 0


def _is_key_and_value(data: NDArray[np.uint8], spans: NDArray[np.int64]) -> bool:
    both = scan_objects(
        Documents(data, spans[:, 0].astype(np.int32), spans[:, 1].astype(np.int32)), _ENVELOPE, learn=False
    )
    is_event = (both.kind != kernels.MISSING).any(axis=0)
    return bool(both.is_object.all() and not is_event[0] and is_event[1])


def comment_length(head: bytes) -> tuple[int, int]:
    """(bytes, lines) of a byte-order mark, a leading `/* ... */` block and the blank lines around it."""
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
