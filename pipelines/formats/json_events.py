"""What all JSON formats share: broken documents, tombstones, and places by path to order events."""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.formats import json_kernels as kernels
from pipelines.formats.documents import Documents
from pipelines.formats.event_order import of_json
from pipelines.formats.events import Placed, Refusal
from pipelines.formats.json_scan import scan_objects
from pipelines.formats.json_spans import Members, SpanColumn
from pipelines.formats.reasons import with_value

Mask = NDArray[np.bool_]

TWICE = "an object gives a member twice"
_STATUS_REASONS: Mapping[int, str] = {
    kernels.BROKEN: "not JSON",
    kernels.NOT_CONTAINER: "JSON, but no object",
    kernels.TOO_MANY: "too many distinct member names",
    kernels.REPEATED: TWICE,
}


def refusal(mask: Mask, reason: str, values: SpanColumn | pa.Array | None = None) -> tuple[Refusal, ...]:
    """The refusal of these events; nothing if there are none. `values`, one per event, are shown behind the reason."""
    if not mask.any():
        return ()
    reasons = reason if values is None else with_value(reason, values, mask).filter(pa.array(mask))
    return (Refusal(np.flatnonzero(mask), reasons),)


def broken_documents(members: Members) -> tuple[Refusal, ...]:
    """The refusals of documents that are no JSON object."""
    if members.is_object.all():
        return ()
    return tuple(r for status, reason in _STATUS_REASONS.items() for r in refusal(members.status == status, reason))


def blank(members: Members) -> Mask:
    """Documents of nothing but white space: lines between events."""
    mask: Mask = members.status == kernels.EMPTY
    return mask


def tombstones(members: Members) -> Mask:
    """Events without a value: no document, or null."""
    mask: Mask = (members.status == kernels.ABSENT) | (members.status == kernels.IS_NULL)
    return mask


def counted(*masks: tuple[str, Mask]) -> dict[str, int]:
    """Number of events per reason, only those that occur."""
    return {reason: int(mask.sum()) for reason, mask in masks if mask.any()}


def paths_of(documents: Documents, rows: NDArray[np.int64] | None = None) -> Callable[[str], Placed]:
    """A function that gives the places by the values at a dotted path of the documents.

    Log sequence numbers such as `0/24EE3C8` order as the numbers that they are. `rows` gives the document of each
    change where a document holds several.
    """

    def placed(path: str) -> Placed:
        steps = path.removeprefix("payload.").split(".")
        inner = documents
        for step in steps[:-1]:
            inner = scan_objects(inner, (step,), learn=False).column(step).documents(kernels.OBJECT)
        column = scan_objects(inner, steps[-1:], learn=False).column(steps[-1])
        # NULL tells that there is such a path: events of a snapshot may have no place in the log.
        if not column.has_value.any() and not column.of_kind(kernels.NULL).any():
            raise KeyError(path)
        return of_json(path, column if rows is None else column.take(rows))

    return placed
