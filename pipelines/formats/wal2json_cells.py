"""Columns of wal2json events as cells, name, type and value of each: lists of objects, or three lists side by side."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats import json_kernels as kernels
from pipelines.formats.events import strings
from pipelines.formats.image_sources import CellImages, taken_cells
from pipelines.formats.json_scan import scan_arrays, scan_objects
from pipelines.formats.json_spans import Elements, Members, SpanColumn

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """Name, type and value per column of each event; `given`: the event has the list at all."""

    offsets: NDArray[np.int64]
    names: pa.StringArray
    types: pa.StringArray
    values: SpanColumn
    given: Mask
    uneven: Mask

    def images(self, present: Mask) -> CellImages:
        """The cells as row images of the events that are `present` and have the list."""
        return CellImages(self.offsets, self.names, self.values, present & self.given)

    def followed_by(self, other: "Cells") -> "Cells":
        """The cells of these events, then those of others; all lie in the same bytes."""
        values = SpanColumn(
            other.values.data,
            np.concatenate([self.values.start, other.values.start]),
            np.concatenate([self.values.end, other.values.end]),
            np.concatenate([self.values.kind, other.values.kind]),
        )
        return Cells(
            np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]]),
            pa.concat_arrays([self.names, other.names]),
            pa.concat_arrays([self.types, other.types]),
            values,
            np.concatenate([self.given, other.given]),
            np.concatenate([self.uneven, other.uneven]),
        )

    def take(self, rows: NDArray[np.int64]) -> "Cells":
        """The cells of these events."""
        offsets, cells = taken_cells(self.offsets, rows)
        places = pa.array(cells)
        names, types, values = self.names.take(places), self.types.take(places), self.values.take(cells)
        return Cells(offsets, names, types, values, self.given[rows], self.uneven[rows])

    def signatures(self) -> pa.Array:
        """Per event a text of all names and types."""
        texts = pc.binary_join_element_wise(self.names, self.types.fill_null(""), "\x1f", null_handling="replace")
        lists = pa.ListArray.from_arrays(pa.array(self.offsets.astype(np.int32)), texts)
        return pc.binary_join(lists, "\x1e")


def cells_of(lists: SpanColumn) -> Cells:
    """Cells of lists of {name, type, value}."""
    elements = scan_arrays(lists.documents(kernels.ARRAY))
    cells = scan_objects(elements.values.documents(kernels.OBJECT), ("name", "type", "value"), learn=False)
    return Cells(
        elements.offsets.astype(np.int64),
        strings(cells.column("name")).fill_null(""),
        strings(cells.column("type")),
        cells.column("value"),
        lists.of_kind(kernels.ARRAY),
        np.zeros(len(lists), np.bool_),
    )


def parallel(events: Members, names: str, types: str, values: str | None) -> Cells:
    """Cells of three parallel lists."""
    lists: list[Elements] = [
        scan_arrays(events.column(name).documents(kernels.ARRAY)) for name in (names, types, values or names)
    ]
    lengths = [np.diff(part.offsets) for part in lists]
    uneven = (lengths[0] != lengths[1]) | (lengths[0] != lengths[2])
    if uneven.any():
        # One event whose lists differ must not shift the cells of the others.
        even = [
            scan_arrays(events.column(n).documents(kernels.ARRAY).where(~uneven))
            for n in (names, types, values or names)
        ]
        lists = even
    return Cells(
        lists[0].offsets.astype(np.int64),
        strings(lists[0].values).fill_null(""),
        strings(lists[1].values),
        lists[2].values,
        events.column(names).of_kind(kernels.ARRAY),
        uneven,
    )
