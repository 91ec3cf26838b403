"""What every format decodes to before tables, types and keys are decided: one entry per change, images still spans."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.changes.change_batch import REJECTED_SCHEMA, Rejected
from pipelines.formats.image_sources import ImageSource
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.raw_rows import documents_of
from pipelines.formats.reasons import Reasons
from pipelines.formats.span_text import text
from pipelines.formats.value_type import ValueType
from pipelines.sources.raw_events import RawEvents

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

MAX_RAW_BYTES = 1024 * 1024
"""Of a rejected event at most this much is kept: quarantine is read by people."""


@dataclass(frozen=True)
class Declared:
    """What a feed declares about the rows of some changes.

    Attributes:
        types: by source column.
        key: names of the key columns, empty if the feed does not tell.
    """

    types: Mapping[str, ValueType] = field(default_factory=dict)
    key: tuple[str, ...] = ()

    def completed(self, others: "Iterable[Declared]") -> "Declared":
        """The same with what only others declare of the same table, the first of them that do.

        Theirs may be another version of the table: an int that is borrowed takes longs, too.
        """
        types, key = dict(self.types), self.key
        for other in others:
            borrowed = {name: replace(t, widens=t.arrow == pa.int32()) for name, t in other.types.items()}
            types = {**borrowed, **types}
            key = key or other.key
        return Declared(types, key)


Placed = tuple[pa.StringArray, pa.StringArray | None]
"""A place per change, NULL where it has none, and why those have none; None if all have one."""


@dataclass(frozen=True)
class Refusal:
    """Raw events that a format cannot make sense of, and why: one reason for all, or one each."""

    rows: Rows
    reason: Reasons


def each_once(refusals: Iterable[Refusal]) -> list[Refusal]:
    """The same without repeats: an event that is refused for several reasons is refused for the first."""
    result: list[Refusal] = []
    seen: Rows = np.zeros(0, np.int64)
    for refusal in refusals:
        fresh = ~np.isin(refusal.rows, seen)
        rows, reason = refusal.rows[fresh], refusal.reason
        if len(rows):
            result.append(Refusal(rows, reason if isinstance(reason, str) else reason.filter(pa.array(fresh))))
            seen = np.union1d(seen, rows)
    return result


@dataclass(frozen=True)
class Events:
    """The changes of one batch of raw events.

    All arrays have one entry per change; `raw` tells from which raw event it came (Canal puts several in one).

    Attributes:
        op: ASCII codes of the letters of `change_batch.OPS`.
        table_of: index into `tables`.
        tables: names in the feed, `[db.][schema.]table`; "" where the feed has none.
        declared_of: index into `declared`.
        after: the new row.
        before: the old row, as far as known.
        key: the message key.
        sparse_updates: a column that an update's `after` lacks was not sent (wal2json), rather than being NULL.
        order: places by path, for `order_by` (`event_order.py`), and why events have none; raises KeyError for a path the
            format does not have.
        refusals: raw events that are no change and should have been one.
        skipped: number of raw events that rightly are no change, by reason.
        places: per change its place in the order that config asks for, as text; None where the feed's own order counts.
    """

    raw: Rows
    op: NDArray[np.uint8]
    table_of: NDArray[np.int32]
    tables: tuple[str, ...]
    source_ts: pa.Array
    after: ImageSource
    before: ImageSource
    key: ImageSource
    declared_of: NDArray[np.int32]
    declared: tuple[Declared, ...]
    order: Callable[[str], Placed]
    sparse_updates: bool = False
    refusals: tuple[Refusal, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    places: pa.StringArray | None = None

    def __len__(self) -> int:
        return len(self.op)


def without_refused(events: Events) -> Events:
    """The same without changes of raw events that are refused: an event is applied or refused as a whole, never both.

    Members in front of the place where a document breaks off are found all the same, and look like a change.
    """
    refused = [refusal.rows for refusal in events.refusals]
    if not refused:
        return events
    return replace(events, op=np.where(np.isin(events.raw, np.concatenate(refused)), np.uint8(0), events.op))


def letters(column: SpanColumn) -> NDArray[np.uint8]:
    """The single character of each string of one character, 0 where it is none."""
    single = (column.kind == 6) & (column.end - column.start == 1)
    return (
        np.where(single, column.data[np.where(single, column.start, 0)], np.uint8(0))
        if len(column.data)
        else (np.zeros(len(column), np.uint8))
    )


def strings(column: SpanColumn) -> pa.StringArray:
    """The strings of a column, NULL where it has none."""
    return text(column, column.of_kind(6, 7))[0]


def table_names(parts: "list[pa.StringArray]") -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """(index per change, distinct names) of `part.part...`, leaving out parts that are NULL or empty."""
    encoded = [part.fill_null("").dictionary_encode() for part in parts]
    code = np.zeros(len(parts[0]), np.int64)
    for part in encoded:
        if len(part.dictionary) > 1:
            code = code * len(part.dictionary) + np.asarray(part.indices)
    index, first = distinct(code)
    names = [".".join(text for part in encoded if (text := part[int(at)].as_py())) for at in first]
    return index.astype(np.int32), tuple(names) or ("",)


def distinct(code: NDArray[Any]) -> tuple[Rows, Rows]:
    """(dense code per entry, first entry of each) in order of appearance."""
    if len(code) == 0 or (code == code[0]).all():
        return np.zeros(len(code), np.int64), np.zeros(min(len(code), 1), np.int64)
    encoded = pa.array(code).dictionary_encode()
    index = np.asarray(encoded.indices).astype(np.int64)
    first = np.zeros(len(encoded.dictionary), np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]
    return index, first


def distinct_columns(mask: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """The same for the columns of a matrix of truths."""
    if not mask.size:
        return np.zeros(mask.shape[1], np.int64), np.zeros(min(mask.shape[1], 1), np.int64)
    packed = np.ascontiguousarray(np.packbits(mask, axis=0).T)
    width = packed.shape[1]
    texts = pa.Array.from_buffers(pa.binary(width), len(packed), [None, pa.py_buffer(packed)])
    encoded = texts.dictionary_encode()
    return distinct(np.asarray(encoded.indices))


def milliseconds(values: NDArray[np.int64], valid: Mask) -> pa.Array:
    """Timestamps from milliseconds since the epoch; NULL where not positive (snapshots write 0) or absurd."""
    usable = valid & (values > 0) & (values < 253_402_300_800_000)
    return (
        pa.array(np.where(usable, values, 0) * 1000, mask=~usable)
        .view(pa.timestamp("us"))
        .cast(pa.timestamp("us", "UTC"), safe=False)
    )


def reject(raw: RawEvents, rows: Rows, reason: str | pa.Array, table_name: str | None = None) -> Rejected:
    """The raw events at `rows` as rejected, for one reason or one each."""
    count = len(rows)
    if count == 0:
        return Rejected.none()
    places = pa.array(rows)
    reasons = pa.array([reason] * count, pa.string()) if isinstance(reason, str) else reason
    return Rejected(
        pa.table(
            [
                raw.source_file.take(places).cast(pa.string()),
                raw.source_offset.take(places),
                reasons,
                _raw_bytes(raw, places),
                pa.array([table_name] * count, pa.string()),
            ],
            schema=REJECTED_SCHEMA,
        )
    )


def _raw_bytes(raw: RawEvents, places: pa.Array) -> pa.Array:
    if raw.rows is not None:
        return documents_of(raw.rows.take(places))
    if raw.documents is None:
        return pa.nulls(len(places), pa.binary())
    documents = pc.binary_slice(raw.documents.take(places), 0, MAX_RAW_BYTES)
    if raw.keys is None:
        return documents
    return pc.coalesce(documents, pc.binary_slice(raw.keys.take(places), 0, MAX_RAW_BYTES))
