"""Where row images come from, unread until it is known which changes belong to one table.

A feed of many tables has many columns: scanning all events for all of them would need (columns x events) of memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.formats import json_kernels as kernels
from pipelines.formats.documents import Documents, no_documents
from pipelines.formats.image import ArrowMembers, Columns
from pipelines.formats.json_scan import scan_objects
from pipelines.formats.json_spans import Members, SpanColumn

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


class ImageSource(Protocol):
    """Row images of the changes of a batch."""

    def take(self, rows: Rows) -> Columns:
        """The images of these changes, with the columns that any of them has."""
        ...


@dataclass(frozen=True)
class ObjectImages:
    """JSON objects; members in `without` are none of the row."""

    documents: Documents
    without: frozenset[str] = frozenset()

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        return scan_objects(taken(self.documents, rows)).without_names(self.without)


@dataclass(frozen=True)
class ScannedImages:
    """Objects whose members are known already."""

    members: Members

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        return self.members if is_whole(rows, len(self.members)) else self.members.take(rows)


@dataclass(frozen=True)
class OverlaidImages:
    """The old row as the new one with the former values of what changed laid over it (Canal, Maxwell).

    Attributes:
        rows: whole rows.
        changed: objects of former values; a change without one is the whole row itself.
    """

    rows: Documents
    changed: Documents

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        base = scan_objects(taken(self.rows, rows))
        over = scan_objects(taken(self.changed, rows), base.names)
        count = len(over.names)
        start, end, kind = over.start.copy(), over.end.copy(), over.kind.copy()
        known = len(base.names)
        keep = np.zeros((count, len(rows)), np.bool_)
        keep[:known] = kind[:known] == kernels.MISSING
        start[:known] = np.where(keep[:known], base.start, start[:known])
        end[:known] = np.where(keep[:known], base.end, end[:known])
        kind[:known] = np.where(keep[:known], base.kind, kind[:known])
        status = np.where(over.status == kernels.REPEATED, over.status, base.status)
        return Members(over.data, over.names, start, end, kind, status)


@dataclass(frozen=True)
class CellImages:
    """Rows as cells: one entry per column and change, in the order of the changes (wal2json).

    Attributes:
        offsets: where the cells of each change begin.
        names: column name of each cell.
        values: value of each cell.
        present: changes that have the image at all.
    """

    offsets: NDArray[np.int64]
    names: pa.StringArray
    values: SpanColumn
    present: Mask

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        offsets, cells = taken_cells(self.offsets, rows)
        change = np.repeat(np.arange(len(rows)), np.diff(offsets))
        encoded = self.names.take(pa.array(cells)).dictionary_encode()
        code = np.asarray(encoded.indices)
        shape = (len(encoded.dictionary), len(rows))
        start, end, kind = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.int8)
        start[code, change] = self.values.start[cells]
        end[code, change] = self.values.end[cells]
        kind[code, change] = self.values.kind[cells]
        status = np.where(self.present[rows], kernels.OK, kernels.ABSENT).astype(np.int8)
        given = change[self.values.kind[cells] != kernels.MISSING]
        repeated = np.bincount(given, minlength=len(rows)) > (kind != kernels.MISSING).sum(axis=0)
        status[repeated & self.present[rows]] = kernels.REPEATED
        return Members(self.values.data, tuple(encoded.dictionary.to_pylist()), start, end, kind, status)


@dataclass(frozen=True)
class PrefixedImages:
    """The members of objects whose names begin with a prefix, without it; or (`inside` false) all the others.

    A member counts as prefixed only if the object also has one of the bare name: `BI_id` beside `id`.
    """

    documents: Documents
    prefix: str
    inside: bool

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        members = scan_objects(taken(self.documents, rows))
        names = set(members.names)
        prefixed = [n for n in members.names if n.startswith(self.prefix) and n.removeprefix(self.prefix) in names]
        if not prefixed:
            return members if not self.inside else members.without_names(names).where(np.zeros(len(members), np.bool_))
        kind = members.kind.copy()
        for name in prefixed:
            bare, own = members.column(name.removeprefix(self.prefix)), members.names.index(name)
            # Each object tells by itself, whatever others have.
            kind[own, (bare.kind != kernels.MISSING) != self.inside] = kernels.MISSING
        image = replace(members, kind=kind)
        if not self.inside:
            return image.without_names(
                [n for n in prefixed if not (kind[members.names.index(n)] != kernels.MISSING).any()]
            )
        image = image.without_names(names - set(prefixed))
        has_any = (image.kind != kernels.MISSING).any(axis=0)
        image = replace(image, names=tuple(name.removeprefix(self.prefix) for name in image.names))
        return image.where(members.is_object & has_any)


@dataclass(frozen=True)
class EitherImages:
    """The first of two images that a change has. Both lie in the same bytes."""

    first: ImageSource
    second: ImageSource

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        first, second = self.first.take(rows), self.second.take(rows)
        if not isinstance(first, Members) or not isinstance(second, Members):
            raise TypeError("images of either kind must both be spans")
        # A first image that is ambiguous is the one meant: the second does not stand in for it.
        which = first.is_object | (first.status == kernels.REPEATED)
        if not (second.is_object | (second.status == kernels.REPEATED)).any():
            return first
        if not which.any():
            return second
        names = tuple(dict.fromkeys([*first.names, *second.names]))
        columns = [(first.column(name), second.column(name)) for name in names]
        return Members(
            second.data,
            names,
            np.stack([np.where(which, a.start, b.start) for a, b in columns]),
            np.stack([np.where(which, a.end, b.end) for a, b in columns]),
            np.stack([np.where(which, a.kind, b.kind) for a, b in columns]),
            np.where(which, first.status, second.status),
        )


@dataclass(frozen=True)
class TableImages:
    """Rows that are columns already."""

    columns: Mapping[str, pa.Array]
    present: Mask

    def take(self, rows: Rows) -> ArrowMembers:
        """See `ImageSource`."""
        places = pa.array(rows)
        whole = is_whole(rows, len(self.present))
        columns = {n: c if whole else c.take(places) for n, c in self.columns.items()}
        return ArrowMembers(columns, self.present[rows])


@dataclass(frozen=True)
class StackedImages:
    """Rows in columns of several schemas; changes that are taken together are of one of them.

    Attributes:
        parts: rows of each schema.
        part_of: the part of each change.
        place_of: its row there.
    """

    parts: tuple[ArrowMembers, ...]
    part_of: NDArray[np.int32]
    place_of: Rows

    def take(self, rows: Rows) -> ArrowMembers:
        """See `ImageSource`."""
        if not len(rows):
            return ArrowMembers({}, np.zeros(0, np.bool_))
        (part,) = np.unique(self.part_of[rows])
        places, image = self.place_of[rows], self.parts[int(part)]
        return image if is_whole(places, len(image)) else image.take(places)


@dataclass(frozen=True)
class Nothing:
    """An image that no change has."""

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        return scan_objects(no_documents(len(rows)))


def taken_cells(offsets: Rows, rows: Rows) -> tuple[Rows, Rows]:
    """(where the cells of each of these rows begin among those taken, which cells they are)."""
    lengths = np.diff(offsets)[rows]
    begins = np.r_[0, np.cumsum(lengths)]
    return begins, np.repeat(offsets[:-1][rows] - begins[:-1], lengths) + np.arange(int(begins[-1]))


def taken(documents: Documents, rows: Rows) -> Documents:
    """The documents of these rows, without a copy if these are all of them."""
    return documents if is_whole(rows, len(documents)) else documents.take(rows)


def is_whole(rows: Rows, count: int) -> bool:
    """Whether the rows are all of `count`, in order: nothing needs to be copied then."""
    return len(rows) == count and bool((rows == np.arange(count)).all())
