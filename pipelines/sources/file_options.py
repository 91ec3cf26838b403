"""The options for reading event files, and the detection of a file's layout from its first bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import numpy as np

from pipelines.decode.feed import options_of
from pipelines.errors import ConfigError
from pipelines.jsonscan import document_kernels
from pipelines.jsonscan import value_kernels as kernels
from pipelines.jsonscan.members import scan_objects
from pipelines.jsonscan.spans import Documents

SNIFFED_BYTES = 256 * 1024
"""Number of leading bytes that are enough to detect the layout of a file."""
SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Layout(Enum):
    """How documents are arranged in a file."""

    LINES = "lines"
    KEYED_LINES = "keyed-lines"
    """A key, a separator (by default a TAB) and a value; without a value it is a tombstone."""
    DOCUMENTS = "documents"
    """Consecutive objects, each of several lines."""
    KEYED_DOCUMENTS = "keyed-documents"
    """The same with alternating keys and values."""
    ARRAY = "array"
    FRAMED = "framed"
    """Each message after its length in four bytes, most significant first, as `kcat -f '%R%s'` writes; -1 is NULL."""
    CSV = "csv"
    PSQL = "psql"
    """Output of psql: lines that contain an object; others are decoration."""


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
    found, _ = document_kernels.split_documents(data, 0, len(data), spans, np.empty(kernels.MAX_DEPTH, np.uint8), False)
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
    found, _ = document_kernels.split_documents(view, 0, len(view), spans, stack, False)
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


DEFAULT_BATCH_ROWS = 250_000
"""Large enough to make the cost per batch negligible; small enough for a narrow batch to fit the caches of a small machine."""
DEFAULT_BATCH_BYTES = 32 * 1024**2
EVENT_SHARE = 4
"""A single event or block may use this fraction of the memory limit: its bytes, their decoded form and a copy must fit."""
_BATCHES_OF_EVENT = 8
"""A batch may use a thirty-second of the memory limit, a single event a quarter."""
_MIN_EVENT_BYTES = 16 * 1024**2
"""Ordinary events are read regardless of the limit."""
MAX_BATCH_BYTES = 512 * 1024**2
"""Positions in a batch are 32-bit numbers, even if one of its events is large."""
_MAX_EVENT_BYTES = 1024**3

_LINES = (Layout.LINES, Layout.KEYED_LINES, Layout.PSQL)
_LAYOUTS_WITH: Mapping[str, tuple[Layout, ...]] = {
    **dict.fromkeys(("delimiter", "header", "columns", "null_value"), (Layout.CSV,)),
    **dict.fromkeys(("first_line", "last_line"), _LINES),
    "comments": (*_LINES, Layout.DOCUMENTS, Layout.KEYED_DOCUMENTS, Layout.ARRAY),
    "key_separator": (Layout.KEYED_LINES,),
}
"""The layouts to which an option applies, for options that do not apply to all layouts."""

_OF_ALL_FILES = frozenset({"batch_rows", "batch_bytes", "unreadable"})
"""Options that also apply to Parquet and Avro files, which have neither lines nor documents."""

STOP, QUARANTINE = "stop", "quarantine"


@dataclass(frozen=True)
class FileOptions:
    """Options for reading files.

    Attributes:
        layout: name of a `file_documents.Layout`; None detects it from each file's first bytes.
        batch_rows: maximum number of events in a batch.
        batch_bytes: maximum size of a batch in bytes.
        comments: prefixes of lines to skip, in addition to a leading `/* */` block.
        first_line: first line to read.
        last_line: last line to read; 0 is the end of the file.
        delimiter: delimiter of CSV; None means a tab in .tsv files, else the one in the first line, by default a comma.
        header: whether the first line of CSV has the column names.
        columns: names of the columns of CSV without a header.
        null_value: text that means NULL in CSV; an empty unquoted value always does.
        key_separator: separator of key and value in keyed lines; None is a tab.
        report_incomplete: return an unfinished last line immediately (it is rejected, and read again after it has
            grown); otherwise wait until the file is quiet.
        unreadable: `stop` at a file that cannot be read, so that none is applied before an earlier one; or `quarantine`
            the rest of it and continue. A file that replaces it is read as a late file.
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
        self._check_lines()
        if self.batch_bytes > MAX_BATCH_BYTES:
            raise ConfigError(f"batch_bytes must be at most {MAX_BATCH_BYTES}, not {self.batch_bytes}")
        if self.unreadable not in {STOP, QUARANTINE}:
            raise ConfigError(f"unreadable must be stop or quarantine, not {self.unreadable!r}")
        if self.delimiter is not None and len(self.delimiter.encode()) != 1:
            raise ConfigError(f"delimiter must be a single character, not {self.delimiter!r}")
        if self.key_separator is not None and (not self.key_separator or "\n" in self.key_separator):
            raise ConfigError(
                f"key_separator must be one or more characters other than newlines, not {self.key_separator!r}"
            )
        if self.layout is not None:
            try:
                layout = Layout(self.layout)
            except ValueError as error:
                valid = ", ".join(layout.value for layout in Layout)
                raise ConfigError(f"unknown layout {self.layout!r}; valid layouts are {valid}") from error
            self.check_for(layout)
        elif self.key_separator is not None:
            raise ConfigError("key_separator requires layout: keyed-lines; no other layout has keys on its lines")

    def _check_lines(self) -> None:
        if self.first_line < 1 or self.last_line < 0 or 0 < self.last_line < self.first_line:
            raise ConfigError(
                f"first_line {self.first_line} and last_line {self.last_line} leave no line: the first line is 1, and "
                "last_line is 0 for the end of the file, or not before first_line"
            )
        if "" in self.comments:
            raise ConfigError("comments has an empty prefix, with which every line begins; remove it")

    @property
    def max_event_bytes(self) -> int:
        """Maximum size of a single event, line or block of a file; larger ones are refused."""
        return min(max(_BATCHES_OF_EVENT * self.batch_bytes, _MIN_EVENT_BYTES), _MAX_EVENT_BYTES)

    @property
    def separator(self) -> bytes:
        """Separator of key and value in keyed lines."""
        return b"\t" if self.key_separator is None else self.key_separator.encode()

    def check_for(self, layout: Layout) -> None:
        """Refuse options that do not apply to files of a layout.

        Raises:
            ConfigError: names the first of them.
        """
        for option in fields(self):
            layouts = _LAYOUTS_WITH.get(option.name)
            given = getattr(self, option.name)
            if layouts is None or layout in layouts or given == option.default:
                continue
            hint = "; key_separator separates keys from values" if option.name == "delimiter" else ""
            wanted = " or ".join(known.value for known in layouts)
            raise ConfigError(
                f"{option.name} {given!r} has no effect for files whose layout is {layout.value}, only for {wanted}{hint}"
            )

    def check_for_columns(self, kind: str) -> None:
        """Refuse options that do not apply to columnar files of this kind.

        Raises:
            ConfigError: names the first of them.
        """
        for option in fields(self):
            given = getattr(self, option.name)
            if option.name not in _OF_ALL_FILES and given != option.default:
                raise ConfigError(f"{option.name} {given!r} has no effect for {kind} files, only for text")

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple["FileOptions", dict[str, Any]]:
        """Split options into those for files and those for the format."""
        names = {f.name for f in fields(cls)}
        own = {name: value for name, value in options.items() if name in names}
        if isinstance(own.get("comments"), str):
            own["comments"] = (own["comments"],)
        return options_of(cls, own), {name: value for name, value in options.items() if name not in names}
