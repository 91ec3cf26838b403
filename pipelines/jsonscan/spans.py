"""JSON documents and their members as spans: begin, end and kind per row over shared bytes.

Nothing is copied. Members are found in `members.py` and decoded in `decode/`.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nevermore.pipelines.jsonscan import row_kernels
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
        return Documents(self.data, self.start[rows], self.end[rows])


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
class Ready:
    """Values of a column that are already decoded (`decode/image.py`).

    Attributes:
        what: TEXT, INTEGER or DOUBLE of `row_kernels`.
        kinds: kinds of the decoded values, which are all that the column has.
        bits: bits of integers or doubles, 0 where there is none.
        offsets: offsets of each row's text.
        text: text of all rows.
        bad: mask of values of another kind, and of those that the fast path cannot decode.
    """

    what: int
    kinds: tuple[int, ...]
    bits: NDArray[np.uint64]
    offsets: Places
    text: Bytes
    bad: Mask

    @property
    def integers(self) -> NDArray[np.int64]:
        """The bits as integers."""
        return self.bits.view(np.int64)

    @property
    def doubles(self) -> NDArray[np.float64]:
        """The bits as doubles."""
        return self.bits.view(np.float64)


@dataclass(frozen=True)
class SpanColumn:
    """One member of many objects: `kind` is a kind of `json_kernels`; strings exclude their quotes.

    `ready` holds its values if they are already decoded, `counts` the number of rows of each kind if known.
    """

    data: Bytes
    start: Places
    end: Places
    kind: Kinds
    ready: Ready | None = None
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
class Numbers:
    """Numbers among the members, computed while they were found (`value_kernels.value_at`).

    Attributes:
        bits: [column, row] bits of an integer or a double, depending on its kind; 0 where there is no number.
        odd: [column, row] numbers whose bits are not certain.
    """

    bits: NDArray[np.uint64]
    odd: Mask

    @classmethod
    def zeros(cls, columns: int, count: int) -> "Numbers":
        """Numbers before anything is known."""
        return cls(np.zeros((columns, count), np.uint64), np.zeros((columns, count), np.bool_))

    def of_columns(self, columns: slice | Mask) -> "Numbers":
        """The numbers of these columns."""
        return Numbers(self.bits[columns], self.odd[columns])


@dataclass(frozen=True)
class Members:
    """The members of one object per row.

    Attributes:
        status: per row, OK or why there is no object.
        names: names of the columns, unescaped.
        numbers: numbers among the values, where known; rows without a number may have stale ones.
    """

    data: Bytes
    names: tuple[str, ...]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    kind: NDArray[np.int8]
    status: Kinds
    numbers: Numbers | None = None

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
        counts = np.zeros((len(self.names), kernels.ARRAY + 1), np.int64)
        row_kernels.count_kinds(self.kind, counts)
        return counts

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.names)}

    def without_names(self, names: Collection[str]) -> "Members":
        """The same objects without these members."""
        keep = np.array([name not in names for name in self.names], np.bool_)
        if keep.all():
            return self
        kept = tuple(name for name in self.names if name not in names)
        numbers = None if self.numbers is None else self.numbers.of_columns(keep)
        spans = (self.start[keep], self.end[keep], self.kind[keep])
        return Members(self.data, kept, *spans, self.status, numbers)

    def of_names(self, names: Collection[str]) -> Mask:
        """Rows whose objects have only members with these names."""
        others = np.array([name not in names for name in self.names], np.bool_)
        mask: Mask = self.is_object & ~(self.kind[others] != kernels.MISSING).any(axis=0)
        return mask

    def take(self, rows: NDArray[np.int64]) -> "Members":
        """The objects of these rows; columns that none of them has are left out."""
        kind = self.kind[:, rows]
        used = (kind != kernels.MISSING).any(axis=1)
        names = tuple(name for name, keep in zip(self.names, used, strict=True) if keep)
        numbers = None
        if self.numbers is not None:
            numbers = Numbers(self.numbers.bits[:, rows], self.numbers.odd[:, rows]).of_columns(used)
        spans = (self.start[:, rows][used], self.end[:, rows][used], kind[used])
        return Members(self.data, names, *spans, self.status[rows], numbers)


@dataclass(frozen=True)
class Nested:
    """Documents scanned together with some of their members.

    Attributes:
        top: members of the documents.
        rows: members of the row images, in the requested order.
        origin: members of the object that describes the origin.
    """

    top: Members
    rows: tuple[Members, ...]
    origin: Members


@dataclass(frozen=True)
class Elements:
    """The elements of one array per row: a span column of all elements, and the offset of each row's first one."""

    values: SpanColumn
    offsets: NDArray[np.int32]
    status: Kinds
