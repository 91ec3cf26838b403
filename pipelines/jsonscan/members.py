"""Finds the members of many JSON documents by name.

These functions call the kernels and remember the member names of a feed while they scan. Which members a format
needs is decided in `formats/`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.errors import SourceError, WideBatchError
from nevermore.pipelines.jsonscan import object_kernels
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.spans import (
    Bytes,
    Documents,
    Elements,
    Members,
    Places,
    SpanColumn,
)
from nevermore.scan_core import Mask

_PADDING = 8
"""Bytes after the names: kernels compare eight at a time."""

_MAX_ODD_NAMES = 100
_SEARCHED_BYTES = 1024 * 1024
"""Rows searched for escapes at once: intermediate arrays stay in the processor's cache."""
_ESCAPED_NAME = r'\\u[0-9A-Fa-f]{4}(?:[^"\\]|\\.)*"\s*:'
_STRING = re.compile(rb'"((?:[^"\\\n]|\\.)*)"(\s*:)?', re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_$.@-]+")
"""Characters that need no escape in any spelling; all names with a meaning in formats consist of them."""


def with_plain_names(documents: pa.BinaryArray) -> pa.BinaryArray:
    r"""The documents with names as `"\u006fp"` written as `"op"`: kernels know names by their bytes.

    Both mean the same wherever a string stands, so that nothing else changes.

    Raises:
        SourceError: very many names are written so, which no serializer does.
    """
    if not _has_escapes(documents):
        return documents
    suspects = documents.filter(pc.fill_null(pc.match_substring_regex(documents, _ESCAPED_NAME), False))
    if not len(suspects):
        return documents
    found = {s[1] for s in _STRING.finditer(b"\n".join(suspects.to_pylist())) if s[2] and b"\\u" in s[1]}
    plain: dict[bytes, bytes] = {}
    for raw in found:
        try:
            name = json.loads(b'"' + raw + b'"')
        except (ValueError, UnicodeError):
            continue  # not JSON: decoding rejects its event
        if _PLAIN.fullmatch(name):
            plain[b'"' + raw + b'"'] = b'"' + name.encode() + b'"'
    if len(plain) > _MAX_ODD_NAMES:
        raise SourceError(f"more than {_MAX_ODD_NAMES} member names are written with unnecessary escapes")
    for raw, replacement in plain.items():
        documents = pc.replace_substring(documents, raw, replacement)
    return documents


def _has_escapes(documents: pa.BinaryArray) -> bool:
    data = documents.buffers()[2]
    view = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    for first in range(0, len(view), _SEARCHED_BYTES):
        is_backslash = view[first : first + _SEARCHED_BYTES] == ord("\\")
        # most events have none: one comparison per byte costs an eleventh of searching pairs
        if not is_backslash.any():
            continue
        after = np.flatnonzero(is_backslash) + first + 1
        if (view[after[after < len(view)]] == ord("u")).any():
            return True
    return False


class MemberNames:
    """The member names known so far: raw bytes in a joined table for the kernel, and the column of each."""

    def __init__(self, names: Sequence[str], limit: int) -> None:
        self._limit = limit
        self._columns: dict[str, int] = {}
        self._raw: list[bytes] = []
        self._slots: list[int] = []
        for name in names:
            self._columns.setdefault(name, len(self._columns))
            for raw in _spellings(name):
                self._add(raw, name)

    def __len__(self) -> int:
        """Number of columns."""
        return len(self._columns)

    @property
    def is_full(self) -> bool:
        """Whether no further column can be added."""
        return len(self._columns) >= self._limit

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, unescaped."""
        return tuple(self._columns)

    def learn(self, raw: bytes) -> bool:
        """Add the name `raw`; False if it is not text or exceeds the limit."""
        try:
            name = json.loads(b'"' + raw + b'"')
            name.encode()
        except (ValueError, UnicodeError):
            return False
        if name not in self._columns and len(self._columns) >= self._limit:
            return False
        self._add(raw, name)
        return True

    def learn_members(self, value: Any) -> None:
        """Learn all names of an object at once, because each unknown name costs another call."""
        for name in value if isinstance(value, dict) else ():
            if name not in self._columns and len(self._columns) < self._limit and name.isprintable():
                self._add(json.dumps(name, ensure_ascii=False).encode()[1:-1], name)

    def _add(self, raw: bytes, name: str) -> None:
        self._raw.append(raw)
        self._slots.append(self._columns.setdefault(name, len(self._columns)))

    def tables(self) -> tuple[Bytes, Places, Places]:
        """Arguments of a kernel: raw names joined, their offsets, the column of each."""
        lengths = np.array([0, *(len(raw) for raw in self._raw)], np.int32)
        joined = np.frombuffer(b"".join([*self._raw, bytes(_PADDING)]), np.uint8)
        return joined, np.cumsum(lengths, dtype=np.int32), np.array(self._slots, np.int32)


def _spellings(name: str) -> list[bytes]:
    """The spellings of a name by serializers: plain, in ASCII with lower- or upper-case digits, with escaped slashes.

    Learned names are known in every spelling that occurs; names that are looked for only in these.
    """
    plain = json.dumps(name, ensure_ascii=False).encode("utf-8", "surrogatepass")[1:-1]
    if name.isalnum() and name.isascii():
        return [plain]
    escaped = json.dumps(name)[1:-1].encode()
    large = re.sub(rb"\\u[0-9a-f]{4}", lambda found: b"\\u" + found[0][2:].upper(), escaped)
    spelled = (plain, escaped, large)
    return list(dict.fromkeys((*spelled, *(raw.replace(b"/", b"\\/") for raw in spelled))))


MAX_COLUMNS = 4_096
"""As many as a table of MySQL may have: a feed with more distinct member names has data in its names. Events with more are
rejected, and a table that would get more stops.
"""
MIN_CELLS = 2**22
"""Columns x rows that are always allowed; beyond it, a batch may have one per byte (a member takes at least 5)."""


def scan_objects(
    documents: Documents,
    names: Sequence[str] = (),
    *,
    learn: bool = True,
    max_depth: int = kernels.MAX_DEPTH,
    enough: int | None = None,
) -> Members:
    """Find the members of each document that is an object.

    Args:
        documents: one per row.
        names: members to look for, in their usual order.
        learn: also find members with other names; their columns follow those of `names`.
        max_depth: levels of objects and arrays that a document may have.
        enough: end when there are so many columns, and leave out the rows that follow.

    Raises:
        WideBatchError: the members have so many names that the columns would take far more memory than the documents.
    """
    count, limit = len(documents), _column_limit(documents, len(names))
    known = MemberNames(names, limit)
    capacity = max(len(names) + (16 if learn else 0), 1)
    start = np.empty((capacity, count), np.int32)
    end = np.empty((capacity, count), np.int32)
    kind = np.zeros((capacity, count), np.int8)
    status = np.full(count, kernels.ABSENT, np.int8)
    spans, stack = (documents.data, documents.start, documents.end), np.empty(max_depth, np.uint8)
    row = 0
    while row < count and (enough is None or len(known) < enough):
        row, name_start, name_end = object_kernels.scan_members(
            *spans, row, *known.tables(), learn, start, end, kind, status, stack
        )
        if row < count:
            if known.learn(documents.data[name_start:name_end].tobytes()):
                known.learn_members(_loaded(documents, row))
            elif known.is_full and limit < MAX_COLUMNS:
                raise WideBatchError(
                    f"more than {limit:,} member names in {count:,} objects, which take far more memory as columns than their bytes"
                )
            else:
                status[row] = kernels.TOO_MANY
                row += 1
        if len(known) > capacity:  # in any number: all names of an object are learned at once
            capacity = max(len(known), 2 * capacity)
            start, end, kind = (_grown(array, capacity) for array in (start, end, kind))
    used = len(known)
    return Members(documents.data, known.names, start[:used], end[:used], kind[:used], status)


def max_cells(data: Bytes) -> int:
    """Columns x rows that objects in these bytes may have."""
    return max(MIN_CELLS, len(data))


def _column_limit(documents: Documents, at_least: int = 0) -> int:
    return min(MAX_COLUMNS, max(max_cells(documents.data) // max(len(documents), 1), at_least))


def scan_arrays(documents: Documents) -> Elements:
    """Find the elements of each document that is an array; other rows have none."""
    return _scan_elements(documents, "[")


def scan_pairs(documents: Documents) -> Elements:
    """Find the names and values of each document that is an object, in turn; other rows have none.

    There may be any number of names, and an object may give a name twice.
    """
    return _scan_elements(documents, "{")


def _scan_elements(documents: Documents, opening: str) -> Elements:
    count, first = len(documents), ord(opening)
    lengths = np.zeros(count, np.int32)
    status = np.full(count, kernels.ABSENT, np.int8)
    offsets = np.zeros(count + 1, np.int32)
    nothing, no_kinds = np.zeros(0, np.int32), np.zeros(0, np.int8)
    stack = np.empty(kernels.MAX_DEPTH, np.uint8)
    spans = (documents.data, documents.start, documents.end)
    object_kernels.scan_elements(*spans, first, lengths, offsets, nothing, nothing, no_kinds, status, False, stack)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    values = SpanColumn(documents.data, np.zeros(total, np.int32), np.zeros(total, np.int32), np.zeros(total, np.int8))
    usable = documents.where(status == kernels.OK)
    object_kernels.scan_elements(
        usable.data, usable.start, usable.end, first, lengths, offsets,
        values.start, values.end, values.kind, np.full(count, kernels.ABSENT, np.int8), True, stack,
    )  # fmt: skip
    return Elements(values, offsets, status)


def first_member_is(documents: Documents, *names: str) -> Mask:
    """Rows whose document is an object whose first member has one of these names."""
    found = np.zeros(len(documents), np.bool_)
    joined, offsets, _ = MemberNames(names, len(names)).tables()
    object_kernels.begin_with(documents.data, documents.start, documents.end, joined, offsets, found)
    return found


def _loaded(documents: Documents, row: int) -> Any:
    """Parse one document, None if it is broken: the kernels report the error."""
    try:
        return json.loads(documents.data[documents.start[row] : documents.end[row]].tobytes(), parse_int=len)
    except (ValueError, RecursionError):
        return None


def object_of(document: bytes) -> Mapping[str, Any]:
    """The members of a JSON object, empty for other documents; whole numbers are some number.

    They may have more digits than Python reads, and what an event is does not depend on their values.
    """
    with suppress(ValueError, RecursionError):
        found = json.loads(document.decode(errors="replace"), strict=False, parse_int=len)
        if isinstance(found, dict):
            return found
    return {}


def _grown(array: NDArray[Any], capacity: int) -> NDArray[Any]:
    """The array with zeros appended to its columns up to `capacity`."""
    grown = np.zeros((capacity, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
