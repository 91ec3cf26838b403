"""The member names of a feed, learned while its documents are scanned, as the kernels compare them."""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import SourceError
from pipelines.formats.documents import Bytes, Places

_PADDING = 8
"""Bytes behind the names: kernels compare eight at a time."""

_MAX_ODD_NAMES = 100
_SEARCHED_BYTES = 1024 * 1024
"""At once: what is made while looking for escapes stays in the processor's cache."""
_ESCAPED_NAME = r'\\u[0-9A-Fa-f]{4}(?:[^"\\]|\\.)*"\s*:'
_STRING = re.compile(rb'"((?:[^"\\\n]|\\.)*)"(\s*:)?', re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_$.@-]+")
"""Names that need no escape in any spelling: all that formats give a meaning to are such."""


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
            continue  # no JSON: decoding refuses its event
        if _PLAIN.fullmatch(name):
            plain[b'"' + raw + b'"'] = b'"' + name.encode() + b'"'
    if len(plain) > _MAX_ODD_NAMES:
        raise SourceError(f"more than {_MAX_ODD_NAMES} names of members are written with escapes that they do not need")
    for raw, replacement in plain.items():
        documents = pc.replace_substring(documents, raw, replacement)
    return documents


def _has_escapes(documents: pa.BinaryArray) -> bool:
    data = documents.buffers()[2]
    view = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    for first in range(0, len(view), _SEARCHED_BYTES):
        part = view[first : first + _SEARCHED_BYTES + 1]
        if ((part[:-1] == ord("\\")) & (part[1:] == ord("u"))).any():
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
        """Columns."""
        return len(self._columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns, unescaped."""
        return tuple(self._columns)

    def learn(self, raw: bytes) -> bool:
        """Know `raw` from now on; False if it is no text or one too many."""
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
        """Know the names of a whole object at once, where it is one: the next unknown name costs another call."""
        for name in value if isinstance(value, dict) else ():
            if name not in self._columns and len(self._columns) < self._limit and name.isprintable():
                self._add(json.dumps(name, ensure_ascii=False).encode()[1:-1], name)

    def _add(self, raw: bytes, name: str) -> None:
        self._raw.append(raw)
        self._slots.append(self._columns.setdefault(name, len(self._columns)))

    def tables(self) -> tuple[Bytes, Places, Places]:
        """For a kernel: raw names joined, their offsets, the column of each."""
        lengths = np.array([0, *(len(raw) for raw in self._raw)], np.int32)
        joined = np.frombuffer(b"".join([*self._raw, bytes(_PADDING)]), np.uint8)
        return joined, np.cumsum(lengths, dtype=np.int32), np.array(self._slots, np.int32)


def _spellings(name: str) -> list[bytes]:
    """The ways in which serializers write a name: as it is, in ASCII with small or large digits, with escaped slashes.

    Names that are learned are known in every spelling that occurs; those that are looked for only in these.
    """
    plain = json.dumps(name, ensure_ascii=False).encode("utf-8", "surrogatepass")[1:-1]
    if name.isalnum() and name.isascii():
        return [plain]
    escaped = json.dumps(name)[1:-1].encode()
    large = re.sub(rb"\\u[0-9a-f]{4}", lambda found: b"\\u" + found[0][2:].upper(), escaped)
    spelled = (plain, escaped, large)
    return list(dict.fromkeys((*spelled, *(raw.replace(b"/", b"\\/") for raw in spelled))))
