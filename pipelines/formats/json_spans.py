"""Where the members of a batch of JSON documents lie: the Python side of the scanning kernels.

A span column is one member of many objects: begin, end and kind per row over shared bytes. Nothing is copied or
decoded here; that is `json_columns.py`.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.formats import json_kernels as kernels

MAX_COLUMNS = 2_000
"""A feed with more distinct member names has data in its names; the events with still more are rejected."""
LEAST_CELLS = 2**22
"""Columns x rows that are always granted; beyond, a batch may have as many as bytes (a member takes at least 5)."""

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
Kinds = NDArray[np.int8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Documents:
    """Texts by begin and end in shared bytes; a begin of -1 means there is none."""

    data: Bytes
    start: Places
    end: Places

    def __len__(self) -> int:
        return len(self.start)

    @property
    def present(self) -> Mask:
        """Rows that have a document."""
        present: Mask = self.start >= 0
        return present

    def where(self, mask: Mask) -> "Documents":
        """The same rows, without documents where `mask` is false."""
        return Documents(self.data, np.where(mask, self.start, np.int32(-1)), self.end)

    def take(self, rows: NDArray[np.int64]) -> "Documents":
        """The documents of these rows."""
        return Documents(self.data, self.start[rows], self.end[rows])


def no_documents(count: int) -> Documents:
    """`count` rows without a document."""
    return Documents(np.zeros(0, np.uint8), np.full(count, -1, np.int32), np.zeros(count, np.int32))


def from_binary(array: pa.Array) -> Documents:
    """The documents of a binary or string array, without a copy; NULL has none."""
    if len(array) == 0:
        return no_documents(0)
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    start, end = offsets[:-1], offsets[1:]
    if array.null_count:
        start = np.where(np.asarray(array.is_valid()), start, np.int32(-1))
    return Documents(data, start, end)


@dataclass(frozen=True)
class SpanColumn:
    """One member of many objects: `kind` is one of the kinds of `json_kernels`; strings are without their quotes."""

    data: Bytes
    start: Places
    end: Places
    kind: Kinds

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def has_value(self) -> Mask:
        """Rows where the member is given and not null."""
        mask: Mask = self.kind > kernels.NULL
        return mask

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Number of rows of each kind."""
        return np.bincount(self.kind, minlength=kernels.ARRAY + 1)

    def of_kind(self, *kinds: int) -> Mask:
        """Rows of one of these kinds."""
        mask = np.zeros(kernels.ARRAY + 1, np.bool_)
        mask[list(kinds)] = True
        return mask[self.kind]

    def documents(self, *kinds: int) -> Documents:
        """The values of these kinds (any but null when none is named) as documents of their own."""
        wanted = self.of_kind(*kinds) if kinds else self.has_value
        quote = self.of_kind(kernels.STRING, kernels.ESCAPED).astype(np.int32)
        return Documents(self.data, np.where(wanted, self.start - quote, np.int32(-1)), self.end + quote)

    def without(self, mask: Mask) -> "SpanColumn":
        """The column with null in these rows."""
        return SpanColumn(self.data, self.start, self.end, np.where(mask, np.int8(kernels.NULL), self.kind))

    def take(self, rows: NDArray[np.int64]) -> "SpanColumn":
        """The values of these rows."""
        return SpanColumn(self.data, self.start[rows], self.end[rows], self.kind[rows])


@dataclass(frozen=True)
class Members:
    """The members of one object per row.

    Attributes:
        status: per row, OK or why there is no object.
        names: of the columns, unescaped.
    """

    data: Bytes
    names: tuple[str, ...]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    kind: NDArray[np.int8]
    status: Kinds

    def __len__(self) -> int:
        return len(self.status)

    @property
    def is_object(self) -> Mask:
        """Rows that hold an object."""
        mask: Mask = self.status == kernels.OK
        return mask

    def where(self, mask: Mask) -> "Members":
        """The same objects, with none where `mask` is false."""
        kind = np.where(mask, self.kind, np.int8(kernels.MISSING))
        return replace(self, kind=kind, status=np.where(mask, self.status, np.int8(kernels.ABSENT)))

    def column(self, name: str) -> SpanColumn:
        """The member `name`, missing in every row if no row has it."""
        if name not in self.names:
            count = len(self.status)
            zeros = np.zeros(count, np.int32)
            return SpanColumn(self.data, zeros, zeros, np.zeros(count, np.int8))
        at = self.names.index(name)
        return SpanColumn(self.data, self.start[at], self.end[at], self.kind[at])

    def without_names(self, names: Collection[str]) -> "Members":
        """The same objects without these members."""
        keep = np.array([name not in names for name in self.names], np.bool_)
        if keep.all():
            return self
        kept = tuple(name for name in self.names if name not in names)
        return replace(self, names=kept, start=self.start[keep], end=self.end[keep], kind=self.kind[keep])

    def of_names(self, names: Collection[str]) -> Mask:
        """Rows whose object has members of these names only."""
        others = np.array([name not in names for name in self.names], np.bool_)
        mask: Mask = self.is_object & ~(self.kind[others] != kernels.MISSING).any(axis=0)
        return mask

    def take(self, rows: NDArray[np.int64]) -> "Members":
        """The objects of these rows; columns that none of them has are left out."""
        kind = self.kind[:, rows]
        used = (kind != kernels.MISSING).any(axis=1)
        names = tuple(name for name, keep in zip(self.names, used, strict=True) if keep)
        return Members(
            self.data, names, self.start[:, rows][used], self.end[:, rows][used], kind[used], self.status[rows]
        )


def scan_objects(documents: Documents, names: Sequence[str] = (), *, learn: bool = True) -> Members:
    """The members of each document that is an object.

    Args:
        documents: one per row.
        names: members to look for, in their usual order.
        learn: also find members with other names; their columns follow those of `names`.
    """
    count = len(documents)
    known = _Names(names, _column_limit(documents, len(names)))
    capacity = max(len(names) + (16 if learn else 0), 1)
    start = np.empty((capacity, count), np.int32)
    end = np.empty((capacity, count), np.int32)
    kind = np.zeros((capacity, count), np.int8)
    status = np.full(count, kernels.ABSENT, np.int8)
    row = 0
    while row < count:
        row, name_start, name_end = kernels.scan_members(
            documents.data,
            documents.start,
            documents.end,
            row,
            *known.tables(),
            learn,
            start,
            end,
            kind,
            status,
            _scratch(),
        )
        if row < count and not known.learn(documents.data[name_start:name_end].tobytes()):
            status[row] = kernels.TOO_MANY
            row += 1
        if len(known) > capacity:
            start, end, kind = _grown(start), _grown(end), _grown(kind)
            capacity = len(start)
    used = len(known)
    return Members(documents.data, known.names, start[:used], end[:used], kind[:used], status)


@dataclass(frozen=True)
class Nested:
    """Documents scanned together with some of their members.

    Attributes:
        top: members of the documents.
        rows: members of the row images, in the order asked for.
        origin: members of the object that describes the origin.
    """

    top: Members
    rows: tuple[Members, ...]
    origin: Members


def scan_nested(
    documents: Documents,
    names: Sequence[str],
    row_images: Sequence[str],
    origin: tuple[str, Sequence[str]],
) -> Nested | None:
    """Documents and their row images (members with names to be learned) and origin, in one pass.

    None if the images have so many distinct members that their columns would take more memory than the bytes.
    """
    count = len(documents)
    known = _Names((), _column_limit(documents))
    top, inner = _Names(names, len(names)), _Names(origin[1], len(origin[1]))
    capacity = 16
    fixed = len(names) + len(origin[1])
    while True:
        columns = fixed + capacity * len(row_images)
        start, end = np.empty((columns, count), np.int32), np.empty((columns, count), np.int32)
        kind, status = np.zeros((columns, count), np.int8), np.full(count, kernels.ABSENT, np.int8)
        bases = np.zeros(len(names), np.int32)
        bases[names.index(origin[0])] = len(names)
        for number, name in enumerate(row_images):
            bases[names.index(name)] = fixed + capacity * number
        row = 0
        while row < count and len(known) <= capacity:
            row, name_start, name_end = kernels.scan_nested(
                documents.data,
                documents.start,
                documents.end,
                row,
                *top.tables(),
                bases,
                *known.tables(),
                len(names),
                *inner.tables(),
                start,
                end,
                kind,
                status,
                _scratch(),
            )
            if row < count and not known.learn(documents.data[name_start:name_end].tobytes()):
                return None
        if len(known) <= capacity:
            break
        capacity *= 2
    data = documents.data

    def part(first: int, own: tuple[str, ...], state: Kinds) -> Members:
        last = first + len(own)
        return Members(data, own, start[first:last], end[first:last], kind[first:last], state)

    whole = part(0, top.names, status)
    return Nested(
        whole,
        tuple(part(int(bases[names.index(n)]), known.names, _object_status(whole, n)) for n in row_images),
        part(len(names), inner.names, _object_status(whole, origin[0])),
    )


def _object_status(whole: Members, name: str) -> Kinds:
    found = whole.is_object & (whole.column(name).kind == kernels.OBJECT)
    return np.where(found, np.int8(kernels.OK), np.int8(kernels.ABSENT))


def _column_limit(documents: Documents, at_least: int = 0) -> int:
    cells = max(LEAST_CELLS, len(documents.data))
    return min(MAX_COLUMNS, max(cells // max(len(documents), 1), at_least))


@dataclass(frozen=True)
class Elements:
    """The elements of one array per row: a span column of all elements, and where each row's begin (offsets)."""

    values: SpanColumn
    offsets: NDArray[np.int32]
    status: Kinds


def scan_arrays(documents: Documents) -> Elements:
    """The elements of each document that is an array; other rows have none."""
    count = len(documents)
    lengths = np.zeros(count, np.int32)
    status = np.full(count, kernels.ABSENT, np.int8)
    offsets = np.zeros(count + 1, np.int32)
    nothing = np.zeros(0, np.int32)
    kernels.scan_elements(
        documents.data,
        documents.start,
        documents.end,
        lengths,
        offsets,
        nothing,
        nothing,
        np.zeros(0, np.int8),
        status,
        False,
        _scratch(),
    )
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    values = SpanColumn(documents.data, np.zeros(total, np.int32), np.zeros(total, np.int32), np.zeros(total, np.int8))
    broken = status != kernels.OK
    usable = documents.where(~broken)
    scratch = np.full(count, kernels.ABSENT, np.int8)
    kernels.scan_elements(
        usable.data,
        usable.start,
        usable.end,
        lengths,
        offsets,
        values.start,
        values.end,
        values.kind,
        scratch,
        True,
        _scratch(),
    )
    return Elements(values, offsets, status)


class _Names:
    """The member names known so far: raw bytes in a joined table for the kernel, and the column of each."""

    def __init__(self, names: Sequence[str], limit: int) -> None:
        self._limit = limit
        self._columns: dict[str, int] = {}
        self._raw: list[bytes] = []
        self._slots: list[int] = []
        for name in names:
            self._columns.setdefault(name, len(self._columns))
            self._add(json.dumps(name, ensure_ascii=False).encode("utf-8", "surrogatepass")[1:-1], name)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def names(self) -> tuple[str, ...]:
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

    def _add(self, raw: bytes, name: str) -> None:
        self._raw.append(raw)
        self._slots.append(self._columns.setdefault(name, len(self._columns)))

    def tables(self) -> tuple[Bytes, Places, Places]:
        lengths = np.array([0, *(len(raw) for raw in self._raw)], np.int32)
        joined = np.frombuffer(b"".join(self._raw) or b"\0", np.uint8)
        return joined, np.cumsum(lengths, dtype=np.int32), np.array(self._slots, np.int32)


def first_member_is(documents: Documents, *names: str) -> Mask:
    """Rows whose document is an object that begins with a member of one of these names."""
    found = np.zeros(len(documents), np.bool_)
    joined, offsets, _ = _Names(names, len(names)).tables()
    kernels.begin_with(documents.data, documents.start, documents.end, joined, offsets, found)
    return found


def _scratch() -> Bytes:
    return np.empty(kernels.MAX_DEPTH, np.uint8)


def _grown(array: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([array, np.zeros_like(array)])
