"""Which Debezium events are envelopes, rows or control events (see `debezium_rules.py`), in JSON and in columns."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats import debezium_rules as rules
from pipelines.formats import json_kernels as kernels
from pipelines.formats.casting import cast_each
from pipelines.formats.documents import Documents
from pipelines.formats.events import distinct_columns
from pipelines.formats.json_scan import scan_objects
from pipelines.formats.json_spans import Members

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Layouts:
    """What each document is; those that are no object are nothing of all this."""

    enveloped: Mask
    row: Mask
    control: Mask
    odd: Mask


def layouts_of(documents: Documents, members: Members) -> Layouts:
    """What each document is, by its members; `members` are those that envelopes and rows are told by."""
    given = {name: members.column(name).kind != kernels.MISSING for name in ("before", "after", *rules.FLAGS)}
    # A row may have columns of its own that are called op and after.
    flagged = members.is_object & (given["__op"] | given["__deleted"])
    has_source = members.column("source").of_kind(kernels.OBJECT)
    enveloped = members.is_object & ~flagged & members.column("op").of_kind(kernels.STRING)
    enveloped &= given["before"] | given["after"] | has_source
    rest = np.flatnonzero(members.is_object & ~flagged & ~enveloped)
    row, control, odd = flagged, np.zeros_like(flagged), np.zeros_like(flagged)
    if len(rest):
        others = scan_objects(documents.take(rest))
        # Which members there are decides, so it is asked once per set of them.
        shape, first = distinct_columns(others.kind != kernels.MISSING)
        sets = [[n for n, kind in zip(others.names, others.kind[:, at], strict=True) if kind] for at in first]
        is_control, is_row = (np.array([rule(names) for names in sets]) for rule in (rules.is_control, rules.is_row))
        image = members.column("after").of_kind(kernels.OBJECT) | members.column("before").of_kind(kernels.OBJECT)
        control[rest] = is_control[shape]
        odd[rest] = ~is_control[shape] & (~is_row[shape] | image[rest])
        row = row.copy()
        row[rest] = ~control[rest] & ~odd[rest]
    return Layouts(enveloped, row, control, odd)


def is_envelope(columns: Mapping[str, pa.Array] | pa.Table) -> bool:
    """Whether these are the columns of Debezium's envelope."""
    names = columns.column_names if isinstance(columns, pa.Table) else columns
    if "op" not in names:
        return False
    return any(n in names and pa.types.is_struct(columns[n].type) for n in ("before", "after"))


def is_unwrapped(rows: pa.Table) -> bool:
    """Whether these are rows of ExtractNewRecordState: with its flag, or with the letters of its operations."""
    if "__deleted" in rows.column_names:
        return True
    if "__op" not in rows.column_names:
        return False
    letters = pc.unique(cast_each(rows.column("__op").combine_chunks(), pa.string())[0]).drop_null()
    return len(letters) > 0 and bool(pc.all(pc.is_in(letters, pa.array([*rules.LETTERS]))).as_py())
