"""From the changes of a feed to one change batch per table: types, keys, unchanged columns, order, rejections.

The same for every format; what a format knows about its events is in `Events`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.changes.change_batch import ChangeBatch, Rejected
from pipelines.formats.change_table import change_table
from pipelines.formats.column_types import resolve_types, widened
from pipelines.formats.completion import (
    filled_from_before,
    filled_from_key,
    lacking_columns,
    names_of,
    whole_rows,
    with_sparse_updates,
)
from pipelines.formats.events import Declared, Events, distinct, reject
from pipelines.formats.feed import TableFeed
from pipelines.formats.identity import CREATE, DELETE, READ, TRUNCATE, UPDATE, choose_key, old_keys
from pipelines.formats.image import Columns, Image, typed
from pipelines.formats.inference import InferenceOptions
from pipelines.formats.rejections import Rejections, reject_images
from pipelines.formats.table_parts import Part, merge_parts
from pipelines.formats.value_type import ValueType, encodings_of, with_plain_decimals
from pipelines.formats.variants import divert
from pipelines.sources.raw_events import RawEvents

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


CUT = "digits below a microsecond"
"""What times of nanoseconds lose: columns hold microseconds. `types: {column: long}` keeps the number as it is."""
EMPTY = "truncate of a table without rows"
"""Before any row of a table has come nobody knows its key, and there is nothing to remove."""


@dataclass(frozen=True)
class Reading:
    """How values are read.

    Attributes:
        inference: of undeclared columns.
        placeholders: of values that were not sent.
        by_rows: decode what is usual in one pass over the rows (`row_parsing.py`).
        may_be_base64: decimals as text may be base64: which they are must be known.
    """

    inference: InferenceOptions
    placeholders: tuple[bytes, ...] = ()
    by_rows: bool = True
    may_be_base64: bool = False


@dataclass(frozen=True)
class Assembled:
    """The changes of one table; those that are rejected; what was cut or left out, by reason; how values are written."""

    changes: ChangeBatch
    rejected: Rejected
    told: Counter[str]
    encodings: Mapping[str, str]


def assemble(events: Events, rows: Rows, feed: TableFeed, raw: RawEvents, reading: Reading) -> Assembled:
    """The changes of one table at `rows`, in order.

    Raises:
        ConfigError: `types` names what the feed does not have.
    """
    declared_of = events.declared_of[rows]
    part_of, first_places = distinct(declared_of)
    declared = [events.declared[code] for code in declared_of[first_places]]
    parts: list[Part] = []
    rejected: list[Rejected] = []
    told: Counter[str] = Counter()
    for number, own in enumerate(declared):
        places = np.flatnonzero(part_of == number)
        # Events of a feed that declares only some are of the same types; what came before tells better than what follows.
        complete = own.completed([*declared[:number][::-1], *declared[number + 1 :]])
        part, refused = _assemble_part(
            events, rows[places], places, complete, feed=_after(feed, parts), raw=raw, reading=reading
        )
        rejected.append(refused)
        parts += [] if part is None else [part]
        told[EMPTY] += len(places) if part is None and not refused.num_rows else 0
    told[CUT] = sum(part.num_cut for part in parts)
    batch, conflicts = merge_parts(parts, feed, raw)
    encodings = _after(feed, parts).known_encodings
    return Assembled(batch, Rejected.concat([*rejected, *conflicts]), +told, encodings)


def _after(feed: TableFeed, parts: Sequence[Part]) -> TableFeed:
    """The feed as it is after these parts: with their columns, as if they had been in a batch of their own."""
    known = dict(feed.known_types)
    for part in parts:
        for column in part.row_type:
            wider = widened(known.get(column.name, pa.null()), column.type)
            known[column.name] = known[column.name] if wider is None else wider
    key = parts[0].key if parts else feed.known_key
    encodings = dict(feed.known_encodings)
    for part in parts:
        encodings |= part.encodings
    return replace(
        feed,
        known_key=key,
        known_encodings=encodings,
        known_types={name: arrow for name, arrow in known.items() if not pa.types.is_null(arrow)},
    )


def _column_types(
    images: Sequence[Columns], feed: TableFeed, declared: Declared, reading: Reading, *, keys: Collection[str]
) -> dict[str, ValueType]:
    """Of the rows after and before the change, and of columns that only the message's key has."""
    types = resolve_types(images[:2], feed, declared.types, reading.inference, reading.placeholders, keys=keys)
    for name, of_key in resolve_types(images[2:], feed, declared.types, reading.inference, (), keys=keys).items():
        types.setdefault(name, of_key)
    return types if reading.may_be_base64 else {name: with_plain_decimals(t) for name, t in types.items()}


def _assemble_part(
    events: Events,
    rows: Rows,
    places: Rows,
    declared: Declared,
    *,
    feed: TableFeed,
    raw: RawEvents,
    reading: Reading,
) -> tuple[Part | None, Rejected]:
    op = events.op[rows]
    images = [image.take(rows) for image in (events.after, events.before, events.key)]
    sent = frozenset(name for image in images for name in image.names)
    told = feed.key or (*map(feed.target_name, declared.key or images[2].names),) or feed.known_key
    likely = () if feed.identity_full else told
    types = _column_types(images, feed, declared, reading, keys=likely)
    encodings = encodings_of(types) if reading.may_be_base64 else {}
    found = [typed(i, types, reading.placeholders, by_rows=reading.by_rows) for i in images]
    if feed.on_conflict == "new_column":
        found[:2], types = divert(
            images[:2],
            found[:2],
            types,
            feed=feed,
            declared=declared.types,
            inference=reading.inference,
            key={*declared.key, *images[2].names},
        )
    after, before, message_key = (image.renamed(feed.rename) for image in found)
    row_type = _row_type(feed, types, (after, before, message_key))
    key = choose_key(feed, declared.key, message_key, row_type)
    if not key and (op == TRUNCATE).all():
        return None, Rejected.none()
    if not key:
        reason = "no key: the feed names none, declare it in the config (key: [...])"
        return None, reject(raw, events.raw[rows], reason, feed.name)
    lacking: dict[str, Mask] | None = None
    if feed.identity_full:
        columns = dict.fromkeys((*(f.name for f in row_type), *feed.known_types))
        lacking = lacking_columns(before, (op == UPDATE) | (op == DELETE), columns)
        nothing = np.logical_and.reduce([lacking.get(name, np.zeros(len(op), np.bool_)) for name in columns])
        after, before = whole_rows(after, before, row_type)
    row_type = _with_columns(row_type, [*key, *(feed.known_types if events.sparse_updates else ())], feed)
    rejections = Rejections(len(rows))
    written = (op == CREATE) | (op == READ) | (op == UPDATE)
    reject_images(rejections, after, (before, message_key), written)
    after, before, message_key = (_in_types(image, row_type) for image in (after, before, message_key))
    if events.sparse_updates:
        after = with_sparse_updates(after, row_type, op == UPDATE, lacking)
    after = filled_from_before(filled_from_key(after, message_key, key, written), before)
    if lacking is not None:
        rejections.add(nothing, "the old row has no column of the table, so it tells no row apart")
        partial = np.any([~before.has(name) for name in key], axis=0)
        rejections.add((op == UPDATE) & partial, "an update without the whole old row, which identity: full needs")
    keys = old_keys(op, after, before, message_key, key=key, row_type=row_type, rejections=rejections)
    if rejections.any() and not feed.identity_full:
        row_type = _of_accepted(row_type, (after, before), ~rejections.mask, {*key, *feed.known_types})
    unsent = names_of(after.unavailable, written) if lacking is None else names_of(lacking, ~(op == TRUNCATE))
    table = change_table(
        events, rows, raw, row_type, key, parts=(keys, before, after, unsent), schema_version=feed.schema_version
    )
    if not rejections.any():
        return Part(table, row_type, key, places, events.raw[rows], after.num_cut, sent, encodings), Rejected.none()
    bad, good = rejections.mask, ~rejections.mask
    refused = reject(raw, events.raw[rows[bad]], rejections.reasons(), feed.name)
    kept = table.filter(pa.array(good))
    return Part(kept, row_type, key, places[good], events.raw[rows[good]], after.num_cut, sent, encodings), refused


def _row_type(feed: TableFeed, types: dict[str, ValueType], images: tuple[Image, ...]) -> pa.StructType:
    """The columns in feed order, in the types that their arrays really have (an int may have been widened)."""
    members: dict[str, pa.DataType] = {}
    for name in dict.fromkeys(feed.target_name(name) for name in types):
        arrow = pa.null()
        for image in images:
            if name in image.columns:
                found = image.columns[name].type
                arrow = widened(arrow, found) or arrow
        members[name] = arrow
    return pa.struct([pa.field(name, arrow) for name, arrow in members.items()])


def _of_accepted(
    row_type: pa.StructType, images: tuple[Image, ...], accepted: Mask, kept: Collection[str]
) -> pa.StructType:
    """The columns without those that only refused changes have."""
    names = {
        name
        for image in images
        for name in image.columns
        if (image.present & accepted & ~image.missing.get(name, np.False_)).any()
    }
    fields = [row_type.field(i) for i in range(row_type.num_fields)]
    return pa.struct([f for f in fields if f.name in names or f.name in kept])


def _with_columns(row_type: pa.StructType, wanted: Sequence[str], feed: TableFeed) -> pa.StructType:
    have = [row_type.field(i) for i in range(row_type.num_fields)]
    names = {f.name for f in have}
    return pa.struct(
        [*have, *(pa.field(n, feed.known_types.get(n, pa.null())) for n in dict.fromkeys(wanted) if n not in names)]
    )


def _in_types(image: Image, row_type: pa.StructType) -> Image:
    """The image with its columns in the types of the rows."""
    columns = {
        name: array if array.type == row_type.field(name).type else array.cast(row_type.field(name).type)
        for name, array in image.columns.items()
    }
    return replace(image, columns=columns)
