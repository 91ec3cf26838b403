"""Row images made as complete as a feed allows: columns it did not send, from the old row or the message key."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats.image import Image

Mask = NDArray[np.bool_]


def with_sparse_updates(
    after: Image, row_type: pa.StructType, updates: Mask, dropped: Mapping[str, Mask] | None = None
) -> Image:
    """Columns that an update lacks were not sent, unless they are `dropped`: whole old rows lack them as well."""
    unavailable = dict(after.unavailable)
    missing = dict(after.missing)
    for i in range(row_type.num_fields):
        name = row_type.field(i).name
        lacking = updates & after.present & (missing.get(name, np.False_) if name in after.columns else np.True_)
        if dropped is not None and name in dropped:
            lacking &= ~dropped[name]
        if lacking.any():
            unavailable[name] = unavailable.get(name, np.False_) | lacking
            missing[name] = missing.get(name, after.present) & ~lacking
    return replace(after, unavailable=unavailable, missing=missing)


def lacking_columns(before: Image, removes: Mask, names: Iterable[str]) -> dict[str, Mask]:
    """Per column, the removals whose old row does not have it: the source has dropped it, or had not added it yet."""
    lacking = {}
    for name in names:
        mask = removes & before.present & (before.missing.get(name, np.False_) if name in before.columns else np.True_)
        if mask.any():
            lacking[name] = mask
    return lacking


def whole_rows(after: Image, before: Image, row_type: pa.StructType) -> tuple[Image, Image]:
    """Rows that are their own key, from before a column was there: it is NULL in them.

    An old row beside a new one that has the column may be a part only: it stays as it is.
    """
    columns = {row_type.field(i).name: row_type.field(i).type for i in range(row_type.num_fields)}
    filled = []
    for image, beside in ((after, None), (before, after)):
        missing = {}
        for name in columns:
            lacking = ~image.has(name) if name not in image.columns else image.missing.get(name, np.False_)
            partial = lacking & image.present & (np.False_ if beside is None else beside.has(name))
            if np.any(partial):
                missing[name] = partial
        nothing = {n: pa.nulls(len(image), t) for n, t in columns.items() if n not in image.columns}
        filled.append(replace(image, columns={**image.columns, **nothing}, missing=missing))
    return filled[0], filled[1]


def filled_from_key(after: Image, message_key: Image, key: Sequence[str], written: Mask) -> Image:
    """Key columns that the row lacks, from the message key."""
    columns, missing = dict(after.columns), dict(after.missing)
    for name in key:
        lacking = written & after.present & ~after.has(name) & message_key.has(name)
        lacking &= ~after.wrong[name][0] if name in after.wrong else np.True_
        if lacking.any():
            given = message_key.columns[name]
            columns[name] = pc.if_else(pa.array(lacking), given, columns.get(name, pa.nulls(len(lacking), given.type)))
            missing[name] = missing.get(name, after.present) & ~lacking
    return replace(after, columns=columns, missing=missing)


def filled_from_before(after: Image, before: Image) -> Image:
    """Columns that were not sent but stand in the old row (REPLICA IDENTITY FULL).

    What is not sent is never NULL, as NULL is not stored apart: an old row that says so holds the key alone.
    """
    columns, unavailable = dict(after.columns), {}
    for name, mask in after.unavailable.items():
        given = before.columns.get(name)
        known = mask & before.has(name)
        if given is not None and known.any():
            known &= np.asarray(given.is_valid())
            columns[name] = pc.if_else(pa.array(known), given, columns.get(name, pa.nulls(len(known), given.type)))
        if (mask & ~known).any():
            unavailable[name] = mask & ~known
    return replace(after, columns=columns, unavailable=unavailable)


def names_of(marked: Mapping[str, Mask], chosen: Mask) -> pa.ListArray:
    """Per chosen change, the names of the columns that are marked for it."""
    count = len(chosen)
    names = [name for name, mask in marked.items() if (mask & chosen).any()]
    if not names:
        return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))
    marks = np.stack([marked[name] & chosen for name in names], axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(marks.sum(axis=1), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(names).take(pa.array(np.nonzero(marks)[1])))
