"""Batches of raw events as sources return them, and the reasons for rejecting events."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.decode import arrow_columns, json_columns
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.feed import ORDER
from nevermore.pipelines.decode.json_columns import TEXT_KINDS, json_text
from nevermore.pipelines.decode.value_types import Encoding, ValueType, describe, with_infinite_dates
from nevermore.pipelines.errors import LostEventsError
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.spans import SpanColumn
from nevermore.scan_core import Mask
from nevermore.scan_core.io import cached_property

OPS: tuple[str, ...] = ("r", "c", "u", "d", "t")
"""Read (snapshot), create, update, delete, truncate, by Debezium's letters."""

TIMESTAMP = pa.timestamp("us", "UTC")

PROVENANCE = (
    ("unchanged", pa.list_(pa.string())),
    ("source_file", pa.string()),
    ("source_offset", pa.int64()),
    ("source_ts", TIMESTAMP),
    ("ingested_at", TIMESTAMP),
    ("schema_version", pa.int32()),
)
"""Columns of a change other than its rows: columns that were not sent, its position, when it was made and read.

Columns not sent are those of the new row; where the whole old row is the key, those that the old row lacks.
"""

REJECTED_SCHEMA = pa.schema(
    {
        "source_file": pa.string(),
        "source_offset": pa.int64(),
        "reason": pa.string(),
        "raw": pa.binary(),
        "table_name": pa.string(),
    }
)
KEY_FIELDS = (pa.field("key", pa.string()), pa.field("ingested_at", TIMESTAMP))
"""Whose change an event is, and when it was read."""


def change_schema(row_type: pa.StructType, key: Sequence[str], *, is_ordered: bool = False) -> pa.Schema:
    """Build the change schema of a table whose rows have `row_type` and whose identity is `key`.

    `is_ordered` adds the place of each change in the configured order.

    Raises:
        KeyError: a key column is not in `row_type`.
    """
    names = {f.name for f in row_type}
    if missing := [name for name in key if name not in names]:
        raise KeyError(f"key column {', '.join(missing)} is not among the columns {', '.join(sorted(names))}")
    key_type = pa.struct([row_type.field(name) for name in key])
    return pa.schema(
        [
            ("op", pa.string()),
            ("key", key_type),
            ("before", row_type),
            ("after", row_type),
            *PROVENANCE,
            *([(ORDER, pa.string())] if is_ordered else []),
        ]
    )


@dataclass(frozen=True)
class ChangeBatch:
    """Changes of one table in application order.

    Attributes:
        table: rows of `change_schema(row_type, key)`.
        row_type: columns of `before` and `after`; a column without any value so far has type null.
        key: names of the key columns, in the order of the key struct.
        sent: columns of the feed that the events have, including those that the table leaves out.
        dropped: columns that the source dropped before the last of these changes, which have no values in them from before that; None
            where no event states all columns.
    """

    table: pa.Table
    row_type: pa.StructType
    key: tuple[str, ...]
    sent: frozenset[str] = frozenset()
    dropped: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if not self.table.schema.equals(
            change_schema(self.row_type, self.key, is_ordered=ORDER in self.table.column_names)
        ):
            raise TypeError(f"not the change schema of {self.row_type}: {self.table.schema}")

    @property
    def num_rows(self) -> int:
        """Number of changes."""
        return int(self.table.num_rows)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Number of changes per operation, without those that do not occur."""
        return count_ops(self.table.column("op"))

    def tables(self) -> Iterator[pa.Table]:
        """All changes: one table."""
        yield self.table

    def in_row_type(self, row_type: pa.StructType) -> "ChangeBatch":
        """The same changes in a row type that has all their columns, in the same or wider types."""
        return ChangeBatch(in_row_type(self.table, row_type, self.key), row_type, self.key)

    @classmethod
    def empty(cls, row_type: pa.StructType, key: Sequence[str]) -> "ChangeBatch":
        """A batch without changes."""
        return cls(pa.Table.from_batches([], schema=change_schema(row_type, key)), row_type, tuple(key))


def in_row_type(changes: pa.Table, row_type: pa.StructType, key: Sequence[str]) -> pa.Table:
    """The same columns of changes in a row type that has all columns of their rows, in the same or wider types."""
    names = changes.column_names
    whole = change_schema(row_type, key, is_ordered=ORDER in names)
    schema = pa.schema([whole.field(name) for name in names])
    if changes.schema.equals(schema):
        return changes
    return pa.Table.from_arrays([with_members(changes.column(f.name), f.type) for f in schema], schema=schema)


OTHER_KEY, NO_PROMOTION = "the key columns change from ", ", which no promotion covers"
"""Parts of reasons for events of a table that has become another one."""
SEND_AGAIN = "have the source send the whole row again: a snapshot of Debezium; `resync --from-source` for databases read directly"
"""What to do where the value of an unchanged column is gone."""


def key_texts(keys: pa.StructArray) -> pa.Array:
    """The values of keys as text, the same whatever wider type a column gets later."""
    parts = []
    for kind, column in zip(keys.type, keys.flatten(), strict=True):
        if pa.types.is_binary(column.type) or pa.types.is_fixed_size_binary(column.type):
            text = pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.string())
        else:
            text = column.cast(pa.string())
        parts.append(pc.binary_join_element_wise(f"{kind.name} = ", pc.fill_null(text, "NULL"), ""))
    return pc.binary_join_element_wise(*parts, ", ")


@dataclass(frozen=True)
class Rejected:
    """Events that could not be decoded or applied, with the reason and their bytes (`REJECTED_SCHEMA`).

    Where it is known whose row is not what it should be, they also have `KEY_FIELDS`.
    """

    table: pa.Table

    def with_keys(self, keys: pa.Array, ingested_at: pa.Array) -> "Rejected":
        """The events with the key of each, NULL if it is unknown or has a later change that was read with it."""
        table = self.table
        for kind, column in zip(KEY_FIELDS, (keys, ingested_at), strict=True):
            table = table.append_column(kind, column)
        return Rejected(table)

    @property
    def num_rows(self) -> int:
        """Number of rejected events."""
        return int(self.table.num_rows)

    @property
    def other_shape(self) -> str | None:
        """Why an event does not fit what the table was: another key, or a column of another type; None if there is none."""
        reasons = self.table.column("reason")
        found = reasons.filter(pc.match_substring_regex(reasons, f"^{OTHER_KEY}|{NO_PROMOTION}"))
        return str(found[0]) if len(found) else None

    @classmethod
    def of(cls, count: int, *columns: Any) -> "Rejected":
        """Build `count` rejected events from the columns of `REJECTED_SCHEMA`; a column is an array, or one value for all events."""
        arrays = [
            column if isinstance(column, pa.Array) else pa.array([column] * count, kind.type)
            for column, kind in zip(columns, REJECTED_SCHEMA, strict=True)
        ]
        return cls(pa.table(arrays, schema=REJECTED_SCHEMA))

    @classmethod
    def none(cls) -> "Rejected":
        """No rejected event."""
        return cls(_no_rejected())

    @classmethod
    def concat(cls, parts: Iterable["Rejected"]) -> "Rejected":
        """Concatenate the events of `parts`, in order."""
        tables = [part.table for part in parts if part.num_rows]
        return cls(pa.concat_tables(tables, promote_options="default")) if tables else cls.none()


def with_members(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Add missing members as NULL to a struct column, and widen members."""
    if column.type == wanted:
        return column
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    given = {f.name: member for f, member in zip(array.type, array.flatten(), strict=True)}
    members = [given[f.name].cast(f.type) if f.name in given else pa.nulls(len(array), f.type) for f in wanted]
    return pa.StructArray.from_arrays(members, fields=list(wanted), mask=array.is_null())


@cache
def _no_rejected() -> pa.Table:
    """Shared, because sources return one per file."""
    return REJECTED_SCHEMA.empty_table()


def count_ops(ops: pa.ChunkedArray) -> dict[str, int]:
    """Number of changes per operation in the order of `OPS`, without those that do not occur."""
    counted = {entry["values"]: entry["counts"] for entry in pc.value_counts(ops).to_pylist()}
    return {op: counted[op] for op in OPS if op in counted}


@dataclass(frozen=True, slots=True)
class Complete:
    """The number of leading events that depend on no later ones.

    Attributes:
        num_events: that number; the remaining events are the beginning of a group.
        of_transactions: a group is a transaction, which is applied as a whole but may be decoded in parts. Other groups
            are decoded together.
        may_end: whether the remaining events may be a whole group, so that they are applied at the end of the input.
    """

    num_events: int
    of_transactions: bool = False
    may_end: bool = False


CompleteEvents = Callable[[pa.BinaryArray | pa.Table], Complete | None]
"""Determines how many documents or rows are complete; None where events never belong together."""


class BatchEnd(Enum):
    """Where a batch ends relative to the transactions of its source."""

    ANYWHERE = "the source does not mark transactions"
    TRANSACTION = "at the end of a transaction"
    WITHIN_TRANSACTION = "within a transaction that is larger than a batch and continues in the next one"


_COLUMNS = ("source_file", "source_offset", "documents", "keys", "rows", "message")


@dataclass(frozen=True)
class RawEvents:
    """A batch of raw events in source order.

    Either `documents` is set (JSON texts, one event each, surrounding white space allowed) or `rows` is (Parquet, CSV,
    Avro: already columns). The arrays have one entry per event.

    Attributes:
        source_file: file name or topic-partition; dictionary-encoded strings.
        source_offset: line (from 1), row or offset in it.
        documents: binary; NULL is a message without a value (tombstone).
        keys: message keys as binary documents, or None where the source has none.
        schema_ids: id of the schema in a registry that each document names, and each key; None where the source has none.
        rows: columns by name.
        message: columns of the messages that tables have in addition; None where there are none.
        tables: descriptions of the tables of a database, to which documents refer by number; None for other sources.
        is_load: whether documents are rows that were selected from the only one of these tables.
        ingested_at: when the batch was read.
        skipped: number of lines skipped on purpose, by reason (blank, comment).
        rejected: input that could not even be split into events; it has no entry in the arrays.
    """

    source_file: pa.DictionaryArray
    source_offset: pa.Int64Array
    documents: pa.BinaryArray | None = None
    keys: pa.BinaryArray | None = None
    schema_ids: tuple[pa.Int64Array, pa.Int64Array] | None = None
    rows: pa.Table | None = None
    message: pa.Table | None = None
    tables: tuple[Any, ...] | None = None
    is_load: bool = False
    ingested_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    skipped: dict[str, int] = field(default_factory=dict)
    rejected: Rejected = field(default_factory=Rejected.none)

    def __post_init__(self) -> None:
        columns = (*(getattr(self, name) for name in _COLUMNS), *(self.schema_ids or ()))
        counts = {len(column) for column in columns if column is not None}
        if counts - {self.num_events}:
            raise lost_events(f"columns of a batch have {sorted({*counts, self.num_events})} events")

    @property
    def num_read(self) -> int:
        """Number of events, including rejected ones."""
        return self.num_events + self.rejected.num_rows

    @property
    def num_events(self) -> int:
        """Number of events."""
        return len(self.source_offset)

    def slice(self, first: int, count: int) -> "RawEvents":
        """Some events that follow each other, without copying them."""
        return self._part(lambda column: column.slice(first, count))

    def take(self, rows: pa.Array) -> "RawEvents":
        """The events at these positions, in that order."""
        return self._part(lambda column: column.take(rows))

    def _part(self, part: Callable[[Any], Any]) -> "RawEvents":
        columns = {name: part(column) for name in _COLUMNS if (column := getattr(self, name)) is not None}
        ids = None if self.schema_ids is None else (part(self.schema_ids[0]), part(self.schema_ids[1]))
        return replace(self, **columns, schema_ids=ids, skipped={}, rejected=Rejected.none())


@dataclass(frozen=True)
class SourceBatch:
    """Events of files or topics, and the position after them.

    Attributes:
        raw: the events.
        position_after: position of the source once they are applied, which can be written as JSON text.
        end: if within a transaction, the events may be decoded, but are applied only together with the batch that ends
            it; if no batch ends it, nothing of the transaction is applied, and it is read again.
        continues: whether they continue the transaction of the previous batch; if not, the beginning of that is dropped.
    """

    raw: RawEvents
    position_after: Any
    end: BatchEnd = BatchEnd.ANYWHERE
    continues: bool = False


def lost_events(what: str) -> LostEventsError:
    """An error about events that a reader or decoder of ours would lose, or double."""
    return LostEventsError(f"{what}. This is a fault of Nevermore: nothing was written of them")


def one_text(text: str, count: int) -> pa.DictionaryArray:
    """The same text so many times."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def from_documents(
    documents: "list[bytes | None] | pa.Array", source_file: str = "", *, keys: list[bytes | None] | None = None
) -> RawEvents:
    """Make raw events from documents in memory, with offsets from 1."""
    values = documents if isinstance(documents, pa.Array) else pa.array(documents, pa.binary())
    count = len(values)
    return RawEvents(
        source_file=one_text(source_file, count),
        source_offset=pa.array(np.arange(1, count + 1)),
        documents=values,
        keys=None if keys is None else pa.array(keys, pa.binary()),
    )


Reasons = str | pa.StringArray

MAX_SHOWN = 60
"""Maximum of characters shown of a value: the event itself is in quarantine, too."""
DATE_STYLE_HINT = (
    "; if the server's DateStyle is not ISO, configure it: "
    "options: {date_style: 'SQL, DMY'} of wal2json, or encodings: {column: sql-dmy}"
)
OUTSIDE = " within the years 1 to 9999; to keep such rows, set infinite_dates: null or clamp (clamp in a key)"
UNDECIDED = (
    " whose encoding is known: no schema states whether text is a number or base64 of its digits; add "
    "encodings: {{{0}: base64}} or {{{0}: plain}} next to types"
)
UNTYPED = " has no element that shows the type of the column; add types: {{{0}.element: string}} or another type"
UNFIT_MEMBER = (
    ": a member has a value of another type than in other events, or a list whose elements show none; add types: "
    "{{{0}.MEMBER: ...}} or {{{0}.MEMBER.element: ...}}"
)
_DATE_IN_A_STYLE = r"'(\d\d[-/.]\d\d[-/.]\d{4}|[A-Z][a-z]{2} (\d\d [A-Z][a-z]{2}|[A-Z][a-z]{2} \d\d) )"
_KIND_NAMES = ("missing", "null", "false", "true", "integer", "number", "text", "text", "object", "list")


def of_values(name: str, column: SpanColumn | pa.Array, bad: Mask, wanted: ValueType) -> pa.StringArray:
    """Explain why the `bad` values of a column do not fit its type, one text per event; NULL for the others."""
    rows = np.flatnonzero(bad)
    some = column.take(rows) if isinstance(column, SpanColumn) else column.take(pa.array(rows))
    values = shown(some)
    verdict = UNTYPED.format(name) if pa.types.is_null(wanted.arrow) else f" is no {describe(wanted.arrow)}"
    texts = _joined(f"column {name}: ", values, verdict)
    if wanted.into is not None:
        was, now = describe(wanted.into), describe(wanted.arrow)
        was, now = (was, now) if was != now else (str(wanted.into), str(wanted.arrow))
        texts = _joined(f"column {name} changes from {was} to {now}{NO_PROMOTION}: ", values, "")
    elif isinstance(some, SpanColumn):
        values = pc.binary_join_element_wise(pa.array(_KIND_NAMES).take(pa.array(some.kind)), values, " ")
        texts = _joined(f"column {name}: ", values, verdict)
        if wanted.inferred and pa.types.is_struct(wanted.arrow):
            is_object = pa.array(some.of_kind(kernels.OBJECT))
            texts = pc.if_else(is_object, _joined("", texts, UNFIT_MEMBER.format(name)), texts)
        if pa.types.is_decimal(wanted.arrow) and wanted.encoding is Encoding.NATURAL:
            is_text = pa.array(some.of_kind(*TEXT_KINDS))
            texts = pc.if_else(is_text, _joined("", texts, UNDECIDED.format(name)), texts)
        if pa.types.is_date(wanted.arrow) or pa.types.is_timestamp(wanted.arrow):
            in_style = pc.match_substring_regex(texts, _DATE_IN_A_STYLE)
            texts = pc.if_else(in_style, _joined("", texts, DATE_STYLE_HINT), texts)
    read = json_columns.decode if isinstance(some, SpanColumn) else arrow_columns.decode
    is_outside = pa.array(read(some, wanted)[1] & ~read(some, with_infinite_dates(wanted, "null"))[1])
    return per_event(pc.if_else(is_outside, _joined("", texts, OUTSIDE), texts), bad)


def with_value(reason: str, values: SpanColumn | pa.Array, bad: Mask) -> pa.StringArray:
    """Append the value of each event that is `bad` to a reason; NULL for the others."""
    rows = np.flatnonzero(bad)
    some = values.take(rows) if isinstance(values, SpanColumn) else values.take(pa.array(rows))
    missing = some.is_null() if isinstance(some, pa.Array) else pa.array(~some.has_value)
    texts = pc.if_else(missing, f"{reason}: there is none", _joined(f"{reason}: ", shown(some), ""))
    return per_event(texts, bad)


def shown(values: SpanColumn | pa.Array) -> pa.StringArray:
    """Values as shown to people: in quotes, and no longer than MAX_SHOWN. Text that is no Unicode is shown as it was written."""
    is_text, remark = True, ""
    if isinstance(values, SpanColumn):
        texts, halves = json_text(values)
        if halves.any():
            kind = np.where(halves, np.int8(kernels.STRING), values.kind)
            texts = pc.if_else(
                pa.array(halves), json_text(SpanColumn(values.data, values.start, values.end, kind))[0], texts
            )
            remark = pc.if_else(pa.array(halves), " (half of a surrogate pair)", "")
    else:
        is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        nested = pa.types.is_nested(values.type) or pa.types.is_binary(values.type)
        texts = pa.array(map(_shown_nested, values), pa.string()) if nested else cast_each(values, pa.string())[0]
        if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):  # NumPy writes every year
            texts = pc.if_else(pc.is_valid(values), pc.coalesce(texts, pa.array(np.asarray(values).astype(str))), texts)
    texts = pc.fill_null(texts, "")
    cut = pc.utf8_slice_codeunits(texts, 0, MAX_SHOWN)
    ends = pc.if_else(pc.greater(pc.utf8_length(texts), MAX_SHOWN), "...", "")
    cut = pc.replace_substring_regex(pc.binary_join_element_wise(cut, ends, ""), r"\s", " ")
    return pc.binary_join_element_wise("'", cut, "'", remark, "") if is_text else cut


def _shown_nested(value: pa.Scalar) -> str:
    try:
        return str(value)
    except OverflowError:  # Python has no dates of other years
        return "a date"


def per_event(texts: pa.StringArray, bad: Mask) -> pa.StringArray:
    """Expand one text per `bad` event to one entry per event."""
    places = np.cumsum(bad) - 1
    return texts.take(pa.array(places, mask=~bad))


def _joined(before: str, values: pa.StringArray, after: str) -> pa.StringArray:
    return pc.binary_join_element_wise(before, values, after, "")
