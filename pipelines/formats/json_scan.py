"""Scanning documents for their members: the Python side of the kernels."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.formats import document_kernels, event_kernels, object_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.formats.documents import Bytes, Documents, Mask
from pipelines.formats.json_spans import Elements, Kinds, Members, Nested, Numbers, SpanColumn
from pipelines.formats.member_names import MemberNames

MAX_COLUMNS = 2_000
"""A feed with more distinct member names has data in its names; the events with still more are rejected."""
LEAST_CELLS = 2**22
"""Columns x rows that are always granted; beyond, a batch may have as many as bytes (a member takes at least 5)."""


def scan_objects(documents: Documents, names: Sequence[str] = (), *, learn: bool = True) -> Members:
    """The members of each document that is an object.

    Args:
        documents: one per row.
        names: members to look for, in their usual order.
        learn: also find members with other names; their columns follow those of `names`.
    """
    count = len(documents)
    known = MemberNames(names, _column_limit(documents, len(names)))
    capacity = max(len(names) + (16 if learn else 0), 1)
    start = np.empty((capacity, count), np.int32)
    end = np.empty((capacity, count), np.int32)
    kind = np.zeros((capacity, count), np.int8)
    numbers = Numbers.zeros(capacity, count)
    status = np.full(count, kernels.ABSENT, np.int8)
    row = 0
    while row < count:
        row, name_start, name_end = object_kernels.scan_members(
            documents.data,
            documents.start,
            documents.end,
            row,
            *known.tables(),
            learn,
            start,
            end,
            kind,
            numbers.bits,
            numbers.odd,
            status,
            _scratch(),
        )
        if row < count:
            if known.learn(documents.data[name_start:name_end].tobytes()):
                known.learn_members(_loaded(documents, row))
            else:
                status[row] = kernels.TOO_MANY
                row += 1
        if len(known) > capacity:  # by any number: all names of an object are learned at once
            capacity = max(len(known), 2 * capacity)
            start, end, kind = (_grown(array, capacity) for array in (start, end, kind))
            numbers = Numbers(_grown(numbers.bits, capacity), _grown(numbers.odd, capacity))
    used = len(known)
    found = numbers.of_columns(slice(used))
    return Members(documents.data, known.names, start[:used], end[:used], kind[:used], status, found)


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
    known = MemberNames((), _column_limit(documents))
    top, inner = MemberNames(names, len(names)), MemberNames(origin[1], len(origin[1]))
    capacity = 16
    fixed = len(names) + len(origin[1])
    while True:
        columns = fixed + capacity * len(row_images)
        start, end = np.empty((columns, count), np.int32), np.empty((columns, count), np.int32)
        kind, status = np.zeros((columns, count), np.int8), np.full(count, kernels.ABSENT, np.int8)
        numbers = Numbers.zeros(columns, count)
        bases = np.zeros(len(names), np.int32)
        bases[names.index(origin[0])] = len(names)
        for number, name in enumerate(row_images):
            bases[names.index(name)] = fixed + capacity * number
        row = 0
        while row < count and len(known) <= capacity:
            row, name_start, name_end = event_kernels.scan_nested(
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
                numbers.bits,
                numbers.odd,
                status,
                _scratch(),
            )
            if row < count:
                if not known.learn(documents.data[name_start:name_end].tobytes()):
                    return None
                event = _loaded(documents, row)
                for name in row_images if isinstance(event, dict) else ():
                    known.learn_members(event.get(name))
        if len(known) <= capacity:
            break
        capacity = max(len(known), 2 * capacity)
    data = documents.data

    def part(first: int, own: tuple[str, ...], state: Kinds) -> Members:
        of = slice(first, first + len(own))
        return Members(data, own, start[of], end[of], kind[of], state, numbers.of_columns(of) if first else None)

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


def scan_arrays(documents: Documents) -> Elements:
    """The elements of each document that is an array; other rows have none."""
    count = len(documents)
    lengths = np.zeros(count, np.int32)
    status = np.full(count, kernels.ABSENT, np.int8)
    offsets = np.zeros(count + 1, np.int32)
    nothing = np.zeros(0, np.int32)
    document_kernels.scan_elements(
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
    document_kernels.scan_elements(
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


def first_member_is(documents: Documents, *names: str) -> Mask:
    """Rows whose document is an object that begins with a member of one of these names."""
    found = np.zeros(len(documents), np.bool_)
    joined, offsets, _ = MemberNames(names, len(names)).tables()
    object_kernels.begin_with(documents.data, documents.start, documents.end, joined, offsets, found)
    return found


def _loaded(documents: Documents, row: int) -> Any:
    """One document, None if it is broken: what stands in it is told by the kernels."""
    try:
        return json.loads(documents.data[documents.start[row] : documents.end[row]].tobytes())
    except (ValueError, RecursionError):
        return None


def _scratch() -> Bytes:
    return np.empty(kernels.MAX_DEPTH, np.uint8)


def _grown(array: NDArray[Any], capacity: int) -> NDArray[Any]:
    """The array with zeros behind its columns, so that it has `capacity` of them."""
    grown = np.zeros((capacity, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
