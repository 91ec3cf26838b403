"""JSON documents and their members as spans: begin, end and kind per row over shared bytes.

Nothing is copied. Members are found in `members.py` and decoded in `decode/`.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.scan_core import Mask
from nevermore.scan_core.io import cached_property

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]


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
        return self if is_whole(rows, len(self)) else Documents(self.data, self.start[rows], self.end[rows])


def is_whole(rows: NDArray[np.int64], count: int) -> bool:
    """Whether the rows are all of `count`, in order, so that nothing needs to be copied."""
    return len(rows) == count and bool((rows == np.arange(count)).all())


def no_documents(count: int) -> Documents:
    """Make `count` rows without a document."""
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


Kinds = NDArray[np.int8]


@dataclass(frozen=True)
class SpanColumn:
    """One member of many objects: `kind` is a kind of `json_kernels`; strings exclude their quotes.

    `counts` is the number of rows of each kind if known.
    """

    data: Bytes
    start: Places
    end: Places
    kind: Kinds
    counts: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def has_value(self) -> Mask:
        """Rows where the member exists and is not null."""
        mask: Mask = self.kind > kernels.NULL
        return mask

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Number of rows of each kind."""
        return np.bincount(self.kind, minlength=kernels.ARRAY + 1) if self.counts is None else self.counts

    def of_kind(self, *kinds: int) -> Mask:
        """Rows of one of these kinds."""
        mask: Mask = np.zeros(len(self.kind), np.bool_)
        for kind in kinds:
            if self.counts is None or self.counts[kind]:
                mask |= self.kind == kind
        return mask

    def documents(self, *kinds: int) -> Documents:
        """The values of these kinds (any but null by default) as separate documents."""
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
        names: names of the columns, unescaped.
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
        """The same objects, removed where `mask` is false."""
        kind = np.where(mask, self.kind, np.int8(kernels.MISSING))
        return replace(self, kind=kind, status=np.where(mask, self.status, np.int8(kernels.ABSENT)))

    def column(self, name: str) -> SpanColumn:
        """The member `name`, missing in every row if no row has it."""
        if name not in self._places:
            count = len(self.status)
            zeros = np.zeros(count, np.int32)
            return SpanColumn(self.data, zeros, zeros, np.zeros(count, np.int8))
        at = self._places[name]
        return SpanColumn(self.data, self.start[at], self.end[at], self.kind[at], counts=self.kinds[at])

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Number of rows of each kind: [column, kind]."""
        counts = [np.bincount(kind, minlength=kernels.ARRAY + 1) for kind in self.kind]
        return np.array(counts, np.int64).reshape(-1, kernels.ARRAY + 1)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.names)}

    def without_names(self, names: Collection[str]) -> "Members":
        """The same objects without these members."""
        keep = np.array([name not in names for name in self.names], np.bool_)
        if keep.all():
            return self
        kept = tuple(name for name in self.names if name not in names)
        spans = (self.start[keep], self.end[keep], self.kind[keep])
        return Members(self.data, kept, *spans, self.status)

    def of_names(self, names: Collection[str]) -> Mask:
        """Rows whose objects have only members with these names."""
        others = np.array([name not in names for name in self.names], np.bool_)
        mask: Mask = self.is_object & ~(self.kind[others] != kernels.MISSING).any(axis=0)
        return mask

    def take(self, rows: NDArray[np.int64]) -> "Members":
        """The objects of these rows; of some of them, columns that none has are left out."""
        if is_whole(rows, len(self)):
            return self
        kind = self.kind[:, rows]
        used = (kind != kernels.MISSING).any(axis=1)
        names = tuple(name for name, keep in zip(self.names, used, strict=True) if keep)
        spans = (self.start[:, rows][used], self.end[:, rows][used], kind[used])
        return Members(self.data, names, *spans, self.status[rows])


@dataclass(frozen=True)
class Elements:
    """The elements of one array per row: a span column of all elements, and the offset of each row's first one."""

    values: SpanColumn
    offsets: NDArray[np.int32]
    status: Kinds
