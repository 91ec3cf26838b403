"""The options for reading event files, and the layout of a file as its first bytes show it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import ConfigError
from pipelines.jsonscan import document_kernels
from pipelines.jsonscan import value_kernels as kernels
from pipelines.jsonscan.members import scan_objects
from pipelines.jsonscan.spans import Documents

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


DEFAULT_BATCH_ROWS = 250_000
"""Per-batch costs vanish, and the columns of a narrow batch still fit the caches of a small machine."""
DEFAULT_BATCH_BYTES = 64 * 1024**2
EVENT_SHARE = 4
"""Of the memory limit for a single event or block of a file: its bytes, what is made of them, their copy."""
_BATCHES_OF_EVENT = 4
"""A batch may take a sixteenth of the limit, and a single event a quarter."""
_LEAST_EVENT_BYTES = 16 * 1024**2
"""Ordinary events are read whatever the limit."""
MAX_BATCH_BYTES = 512 * 1024**2
"""Places in a batch are numbers of 32 bits, also where a large event is among those of a batch."""
_MOST_EVENT_BYTES = 1024**3

_LINES = (Layout.LINES, Layout.KEYED_LINES, Layout.PSQL)
_LAYOUTS_WITH: Mapping[str, tuple[Layout, ...]] = {
    **dict.fromkeys(("delimiter", "header", "columns", "null_value"), (Layout.CSV,)),
    **dict.fromkeys(("first_line", "last_line"), _LINES),
    "comments": (*_LINES, Layout.DOCUMENTS, Layout.KEYED_DOCUMENTS, Layout.ARRAY),
    "key_separator": (Layout.KEYED_LINES,),
}
"""Layouts that an option means something for, of those that do not for all."""

_OF_ALL_FILES = frozenset({"batch_rows", "batch_bytes", "unreadable"})
"""Options that mean something for files of columns, too: Parquet and Avro have neither lines nor documents."""

STOP, QUARANTINE = "stop", "quarantine"


@dataclass(frozen=True)
class FileOptions:
    """How files are read.

    Attributes:
        layout: name of a `file_documents.Layout`; None looks at each file's first bytes.
        batch_rows: most events of a batch.
        batch_bytes: most bytes of a batch.
        comments: prefixes of lines to leave out, beside a leading `/* */` block.
        first_line: line to begin with.
        last_line: line to end with; 0 is the last one.
        delimiter: of CSV; None takes a tab in .tsv files, else what stands in the first line, a comma if in doubt.
        header: whether the first line of CSV names the columns.
        columns: names of the columns of CSV without a header.
        null_value: text that means NULL in CSV; an empty unquoted value always does.
        key_separator: what stands between key and value of keyed lines; None is a tab.
        report_incomplete: hand an unfinished last line on as it is at once (it is rejected, and read again once it has
            grown); otherwise leave it until the file is quiet.
        unreadable: `stop` at a file that cannot be read, so that none is applied before an earlier one; or `quarantine`
            what is left of it and go on. Replaced by a good one, it is read as a late file.
    """

    layout: str | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    batch_bytes: int = DEFAULT_BATCH_BYTES
    comments: tuple[str, ...] = ()
    first_line: int = 1
    last_line: int = 0
    delimiter: str | None = None
    header: bool = True
    columns: tuple[str, ...] = ()
    null_value: str | None = None
    key_separator: str | None = None
    report_incomplete: bool = False
    unreadable: str = STOP

    def __post_init__(self) -> None:
        if self.batch_rows < 1 or self.batch_bytes < 1024:
            raise ConfigError("batch_rows must be at least 1 and batch_bytes at least 1024")
        if self.batch_bytes > MAX_BATCH_BYTES:
            raise ConfigError(f"batch_bytes must be at most {MAX_BATCH_BYTES}, not {self.batch_bytes}")
        if self.unreadable not in {STOP, QUARANTINE}:
            raise ConfigError(f"unreadable must be stop or quarantine, not {self.unreadable!r}")
        if self.delimiter is not None and len(self.delimiter.encode()) != 1:
            raise ConfigError(f"delimiter must be a single character, not {self.delimiter!r}")
        if self.key_separator is not None and (not self.key_separator or "\n" in self.key_separator):
            raise ConfigError(f"key_separator must be one or more characters of a line, not {self.key_separator!r}")
        if self.layout is not None:
            try:
                layout = Layout(self.layout)
            except ValueError as error:
                valid = ", ".join(layout.value for layout in Layout)
                raise ConfigError(f"unknown layout {self.layout!r}; valid are {valid}") from error
            self.check_for(layout)
        elif self.key_separator is not None:
            raise ConfigError("key_separator needs layout: keyed-lines; no other lines have keys")

    @property
    def most_event_bytes(self) -> int:
        """Of a single event, line, or block of a file; larger ones are refused."""
        return min(max(_BATCHES_OF_EVENT * self.batch_bytes, _LEAST_EVENT_BYTES), _MOST_EVENT_BYTES)

    @property
    def separator(self) -> bytes:
        """Between key and value of keyed lines."""
        return b"\t" if self.key_separator is None else self.key_separator.encode()

    def check_for(self, layout: Layout) -> None:
        """Refuse options that mean nothing for files of a layout.

        Raises:
            ConfigError: names the first of them.
        """
        for option in fields(self):
            layouts = _LAYOUTS_WITH.get(option.name)
            given = getattr(self, option.name)
            if layouts is None or layout in layouts or given == option.default:
                continue
            hint = "; key_separator is what parts keys from values" if option.name == "delimiter" else ""
            wanted = " or ".join(known.value for known in layouts)
            raise ConfigError(
                f"{option.name} {given!r} means nothing for files whose layout is {layout.value}, only for {wanted}{hint}"
            )

    def check_for_columns(self, kind: str) -> None:
        """Refuse options that mean nothing for files of columns; `kind` names them.

        Raises:
            ConfigError: names the first of them.
        """
        for option in fields(self):
            given = getattr(self, option.name)
            if option.name not in _OF_ALL_FILES and given != option.default:
                raise ConfigError(f"{option.name} {given!r} means nothing for {kind} files, only for text")

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple["FileOptions", dict[str, Any]]:
        """The options of the source, and those left for the format."""
        names = {f.name for f in fields(cls)}
        own: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in options.items() if name in names
        }
        if isinstance(own.get("comments"), str):
            own["comments"] = (own["comments"],)
        return cls(**own), {name: value for name, value in options.items() if name not in names}
