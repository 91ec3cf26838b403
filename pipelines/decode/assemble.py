"""Assembles the events of a feed into one change batch per table.

Completes row images, chooses types and keys, and collects rejected events. The formats produce the events; nothing
is written here.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.batches import (
    NO_PROMOTION,
    OTHER_KEY,
    SEND_AGAIN,
    TIMESTAMP,
    ChangeBatch,
    RawEvents,
    Reasons,
    Rejected,
    change_schema,
    in_row_type,
    key_texts,
)
from nevermore.pipelines.decode.column_types import InferenceOptions, divert, resolve_types, widened
from nevermore.pipelines.decode.events import TWICE, Declared, Events, changes_in_source, distinct, reject
from nevermore.pipelines.decode.feed import TableFeed
from nevermore.pipelines.decode.image import Columns, Image, typed
from nevermore.pipelines.decode.value_types import ValueType, describe, encodings_of, with_plain_decimals
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.jsonscan.spans import is_whole
from nevermore.scan_core import Mask, Rows


class Rejections:
    """Changes that are rejected, each with the first reason found."""

    def __init__(self, count: int) -> None:
        self.mask: Mask = np.zeros(count, np.bool_)
        self._reason_of = np.zeros(count, np.int32)
        self._reasons: list[Reasons] = []

    def add(self, mask: Mask, reason: Reasons) -> None:
        """Reject the changes of `mask` that are not rejected yet."""
        fresh = mask & ~self.mask
        if fresh.any():
            self._reason_of[fresh] = len(self._reasons)
            self._reasons.append(reason)
            self.mask = self.mask | fresh

    def any(self) -> bool:
        """Whether any change is rejected."""
        return bool(self._reasons)

    def reasons(self) -> pa.StringArray:
        """One reason per rejected change, in order."""
        found = pa.nulls(len(self.mask), pa.string())
        for number, reason in enumerate(self._reasons):
            found = pc.if_else(pa.array(self.mask & (self._reason_of == number)), reason, found)
        return found.filter(pa.array(self.mask))


def reject_images(rejections: Rejections, after: Image, others: Iterable[Image], written: Mask) -> None:
    """Reject changes whose images are invalid, and those that write a row with a value that does not fit."""
    for image in (after, *others):
        if image.repeated is not None:
            rejections.add(image.repeated, TWICE)
    rejections.add(written & ~after.present, "event without a row: no after")
    for mask, reason in after.wrong.values():
        rejections.add(written & mask, reason)


READ, CREATE, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "rcudt")
WRITES = (READ, CREATE, UPDATE)
"""Operations with a new row."""


def choose_key(
    feed: TableFeed, declared: Sequence[str], message_key: Image, row_type: pa.StructType
) -> tuple[str, ...]:
    """Choose the key columns by target name.

    In this order: configured, all columns, declared by the feed, those of the message key, those that are logged
    already.
    """
    if feed.identity_full:
        # A truncate by itself has no columns.
        return tuple(f.name for f in row_type) or tuple(feed.known_types)
    if feed.key:
        return feed.key
    names = tuple(feed.target_name(name) for name in declared) or tuple(message_key.columns)
    return names or feed.known_key


def old_keys(
    op: NDArray[np.uint8],
    after: Image,
    before: Image,
    message_key: Image,
    *,
    key: Sequence[str],
    row_type: pa.StructType,
    rejections: Rejections,
) -> list[pa.Array]:
    """The key columns of the row before each change; NULL for truncates. Adds changes without a key to `rejections`."""
    written = np.isin(op, WRITES)
    changes_old = (op == UPDATE) | (op == DELETE)
    # A wrong value matters only where it decides which row goes: `before` of updates and deletes, the message key of deletes.
    for name in key:
        if name in before.wrong:
            rejections.add(changes_old & before.wrong[name][0], before.wrong[name][1])
        if name in message_key.wrong:
            rejections.add((op == DELETE) & message_key.wrong[name][0], message_key.wrong[name][1])
    for name in key:
        rejections.add(written & ~after.has(name), f"event without key column {name}{_meant(name, after)}")
    # An update whose `before` lacks the key did not change it, as sources send the old key of those that do. A delete has
    # no new row: `before`, else the message key, must identify its row.
    from_before = changes_old & _has_all(before, key)
    from_message = (op == DELETE) & ~from_before & _has_all(message_key, key)
    lost = (op == DELETE) & ~from_before & ~from_message
    missing = next((name for name in key if before.present.any() and name not in before.columns), None)
    reason = "delete with neither before nor message key" if missing is None else "delete of a row without its key"
    hint = "" if missing is None else _meant(missing, before)
    rejections.add(lost, f"{reason}: no value for {', '.join(key)}{hint}")
    columns = []
    for name in key:
        arrow = row_type.field(name).type
        nothing = pa.nulls(len(op), arrow)
        column = after.columns.get(name, nothing)
        if (op == DELETE).any() or (op == TRUNCATE).any():
            column = pc.if_else(pa.array(written), column, pa.scalar(None, arrow))
        if from_before.any():
            column = pc.if_else(pa.array(from_before), before.columns[name], column)
        if from_message.any():
            column = pc.if_else(pa.array(from_message), message_key.columns[name], column)
        columns.append(column)
    return columns


def _meant(name: str, image: Image) -> str:
    """A hint to the column that a key may mean, which events do not have."""
    if name in image.unavailable:
        return f", as its value did not change; {SEND_AGAIN}"
    spellings = {column.lower(): column for column in image.columns}
    near = [] if name in image.columns else get_close_matches(name.lower(), spellings, n=1)
    return f"; events have no such column, did you mean {spellings[near[0]]}?" if near else ""


def _reject_nulls(
    rejections: Rejections,
    keys: Iterable[tuple[str, pa.Array]],
    after: Image,
    primary: Collection[str],
    op: NDArray[np.uint8],
) -> None:
    """Reject changes without a value in a primary key, which has one in the source: several of its rows would become one."""
    written = np.isin(op, WRITES)
    for name, old in keys:
        if name in primary:
            lacking = (op != TRUNCATE) & np.asarray(old.is_null())
            if name in after.columns:
                lacking |= written & np.asarray(after.columns[name].is_null())
            reason = f"column {name} of the primary key has no value; dates of MySQL without a month or day (0000-00-00) have none"
            rejections.add(lacking, reason)


def _has_all(image: Image, key: Sequence[str]) -> Mask:
    mask = image.present
    for name in key:
        mask = mask & image.has(name)
    return mask


def _with_moves(
    op: NDArray[np.uint8], after: Image, before: Image, key: Sequence[str], changes: Callable[[], Rows]
) -> tuple[NDArray[np.uint8], Image, Rows]:
    """(operations, old rows, the change that each old row is of) where a delete and an insert without all values are one change of a key.

    Debezium writes both for an update of a key, at the same place of the source's log. Only the old row has the values
    that the insert lacks. Where a log has one place for a whole transaction, the last delete before the insert counts.
    """
    places = np.arange(len(op))
    unsent = (op == CREATE) & np.logical_or.reduce([np.zeros(len(op), np.bool_), *after.unavailable.values()])
    deletes = (op == DELETE) & _has_all(before, key)
    if not unsent.any() or not deletes.any():
        return op, before, places
    change, source = changes(), places.copy()
    for step in (1, -1):  # with several partitions, the delete may also come after the insert
        order = np.lexsort((places * step, change))
        order = order[(unsent | deletes)[order] & (change[order] >= 0)]
        last = np.maximum.accumulate(np.where(deletes[order], np.arange(len(order)), -1))
        inserts = order[(last >= 0) & unsent[order]]
        found = order[last[(last >= 0) & unsent[order]]]
        found, first = np.unique(found[same := change[found] == change[inserts]], return_index=True)
        inserts = inserts[same][first]
        source[inserts], unsent[inserts], deletes[found] = found, False, False
    return np.where(source == places, op, np.uint8(UPDATE)), before.take(source), source


def with_sparse_updates(
    after: Image, row_type: pa.StructType, updates: Mask, dropped: Mapping[str, Mask] | None = None
) -> Image:
    """Mark columns that an update lacks as not sent, unless they are `dropped`: whole old rows lack these as well."""
    unavailable = dict(after.unavailable)
    missing = dict(after.missing)
    for name in (f.name for f in row_type):
        lacking = updates & after.lacks(name)
        if dropped is not None and name in dropped:
            lacking &= ~dropped[name]
        if lacking.any():
            unavailable[name] = unavailable.get(name, np.False_) | lacking
            missing[name] = missing.get(name, after.present) & ~lacking
    return replace(after, unavailable=unavailable, missing=missing)


def lacking_columns(before: Image, removes: Mask, names: Iterable[str]) -> dict[str, Mask]:
    """Per column, the removals whose old row lacks it: the source has dropped it, or had not added it yet."""
    lacking = {}
    for name in names:
        mask = removes & before.lacks(name)
        if mask.any():
            lacking[name] = mask
    return lacking


def whole_rows(after: Image, before: Image, row_type: pa.StructType) -> tuple[Image, Image]:
    """Old rows from before a column was added, where the whole row is the key: the column is NULL in them.

    Where the new row of a change has the column, its old row may be partial and stays as it is.
    """
    columns = {f.name: f.type for f in row_type}
    filled = []
    for image, other in ((after, None), (before, after)):
        missing = {}
        for name in columns:
            partial = image.lacks(name) & (np.False_ if other is None else other.has(name))
            if np.any(partial):
                missing[name] = partial
        nothing = {n: pa.nulls(len(image), t) for n, t in columns.items() if n not in image.columns}
        filled.append(replace(image, columns={**image.columns, **nothing}, missing=missing))
    return filled[0], filled[1]


def filled_from_key(after: Image, message_key: Image, key: Sequence[str], written: Mask) -> Image:
    """Take key columns that the row lacks from the message key."""
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
    """Take columns that were not sent from the old row (REPLICA IDENTITY FULL).

    A column that was not sent is never NULL, as NULL is not stored separately: an old row with NULL holds only the key.
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
    """Per chosen change, the names of the columns marked for it."""
    count = len(chosen)
    names = [name for name, mask in marked.items() if (mask & chosen).any()]
    if not names:
        return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))
    marks = np.stack([marked[name] & chosen for name in names], axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(marks.sum(axis=1), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(names).take(pa.array(np.nonzero(marks)[1])))


def change_table(
    events: Events,
    rows: Rows,
    raw: RawEvents,
    row_type: pa.StructType,
    key: tuple[str, ...],
    *,
    parts: tuple[list[pa.Array], Image, Image, pa.ListArray],
    op: NDArray[np.uint8],
    schema_version: int,
) -> pa.Table:
    """Build the table of the changes at `rows`; `parts` are their keys, old rows, new rows and unchanged columns."""
    keys, before, after, unchanged = parts
    count = len(rows)
    file, offset, source_ts = raw.source_file, raw.source_offset, events.source_ts
    # Taking all rows would copy columns for nothing, and most feeds have one table.
    if not is_whole(events.raw[rows], raw.num_events):
        raw_rows = pa.array(events.raw[rows])
        file, offset = file.take(raw_rows), offset.take(raw_rows)
    if not is_whole(rows, len(events)):
        source_ts = source_ts.take(pa.array(rows))
    written = np.isin(op, WRITES)
    letters, first = distinct(op)
    schema = change_schema(row_type, key, is_ordered=events.places is not None)
    columns = [
        pa.array([chr(c) for c in op[first]], pa.string()).take(pa.array(letters)),
        _struct(keys, schema.field("key").type, op != TRUNCATE),
        _row_struct(before, row_type, before.present),
        _row_struct(after, row_type, after.present & written),
        unchanged,
        file.cast(pa.string()),
        offset,
        source_ts,
        pa.repeat(pa.scalar(raw.ingested_at, TIMESTAMP), count),
        pa.repeat(pa.scalar(schema_version, pa.int32()), count),
        *([] if events.places is None else [events.places.take(pa.array(rows))]),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _row_struct(image: Image, row_type: pa.StructType, valid: Mask) -> pa.StructArray:
    if not valid.any():
        return pa.nulls(len(valid), row_type)
    return _struct([image.columns.get(f.name, pa.nulls(len(valid), f.type)) for f in row_type], row_type, valid)


def _struct(arrays: list[pa.Array], arrow: pa.StructType, valid: Mask) -> pa.StructArray:
    return pa.StructArray.from_arrays(arrays, fields=list(arrow), mask=None if valid.all() else pa.array(~valid))


@dataclass(frozen=True)
class Part:
    """Changes of one table with the same declarations.

    `places` are their ranks in application order, `sent` the columns that they have in the feed, `encodings` how the
    values of these are written.
    """

    table: pa.Table
    row_type: pa.StructType
    key: tuple[str, ...]
    places: Rows
    raw_rows: Rows
    num_cut: int = 0
    sent: frozenset[str] = frozenset()
    encodings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_moved: int = 0

    def without(self, columns: Collection[str]) -> "Part":
        """The same changes without some columns of their rows."""
        row_type = pa.struct([f for f in self.row_type if f.name not in columns])
        return replace(self, row_type=row_type, table=in_row_type(self.table, row_type, self.key))


def merge_parts(parts: list[Part], feed: TableFeed, raw: RawEvents) -> tuple[ChangeBatch, list[Rejected]]:
    """Merge all parts into one batch in application order; a part that contradicts an earlier one is rejected."""
    if not parts:
        key = feed.key or ("key",)
        row_type = pa.struct(
            [pa.field(n, feed.known_types.get(n, pa.null())) for n in {**feed.known_types, **dict.fromkeys(key)}]
        )
        return ChangeBatch.empty(row_type, key), []
    if len(parts) == 1:
        return ChangeBatch(parts[0].table, parts[0].row_type, parts[0].key, parts[0].sent), []
    kept: list[Part] = []
    conflicts: list[Rejected] = []
    row_type = pa.struct([])
    for part in parts:
        reason = _conflict(row_type, part, kept, key_may_change=feed.identity_full)
        if reason is None:
            row_type = widened(row_type, part.row_type)
            kept.append(part)
        else:
            conflicts.append(reject(raw, part.raw_rows, reason, feed.name))
    # with `identity: full` all columns are the key, also those that came or went in between
    key = tuple(dict.fromkeys(name for part in kept for name in part.key)) if feed.identity_full else kept[0].key
    table = pa.concat_tables([in_row_type(part.table, row_type, key) for part in kept]).combine_chunks()
    order = np.argsort(np.concatenate([part.places for part in kept]), kind="stable")
    sent = frozenset[str]().union(*(part.sent for part in kept))
    return ChangeBatch(table.take(pa.array(order)), row_type, key, sent), conflicts


def _conflict(row_type: pa.StructType, part: Part, kept: list[Part], *, key_may_change: bool) -> str | None:
    if kept and not key_may_change and set(part.key) != set(kept[0].key):
        was, now = ", ".join(kept[0].key), ", ".join(part.key)
        return f"{OTHER_KEY}({was}) to ({now}); a renamed key cannot be distinguished from another key: set the key in the config"
    for field in part.row_type:
        at = row_type.get_field_index(field.name)
        if at >= 0 and widened(row_type.field(at).type, field.type) is None:
            was = row_type.field(at).type
            return f"column {field.name} changes from {describe(was)} to {describe(field.type)}{NO_PROMOTION}"
    return None


CUT = "digits below a microsecond"
"""Loss of nanosecond times: columns hold microseconds. `types: {column: long}` keeps the number as it is."""
MOVED = "key-change delete"
EMPTY = "truncate of a table without rows"
"""As long as a table has had no rows, its key is unknown, and there is nothing to remove."""


@dataclass(frozen=True)
class Reading:
    """Options for reading values.

    Attributes:
        inference: how types of undeclared columns are inferred.
        placeholder: stands for values that were not sent; empty if nothing does.
        may_be_base64: decimals in text may be base64, so their encoding must be known.
    """

    inference: InferenceOptions
    placeholder: bytes = b""
    may_be_base64: bool = False


@dataclass(frozen=True)
class Assembled:
    """Changes of one table, rejected ones, counts of truncated or skipped ones by reason, encodings of values."""

    changes: ChangeBatch
    rejected: Rejected
    counts: Counter[str]
    encodings: Mapping[str, str]


def assemble(
    events: Events, rows: Rows, feed: TableFeed, raw: RawEvents, reading: Reading, *, is_empty_load: bool = False
) -> Assembled:
    """Assemble the changes of one table at `rows`, in order.

    An empty load has no rows, but describes the table: the columns of one that has none so far are those of the changes.

    Raises:
        ConfigError: `types` names a column that the feed does not have.
    """
    declared_of = events.declared_of[rows]
    parts: list[Part] = []
    rejected: list[Rejected] = []
    counts: Counter[str] = Counter()
    groups = _declared_so_far(events.declared, declared_of, splits=bool(feed.drops_columns))
    if is_empty_load and not feed.known_key:
        groups = [(rows, events.declared[0], [])]
    dropped: frozenset[str] | None = None
    ages, reached = np.arange(len(rows)), -1
    if feed.drops_columns == "time":  # partitions of a topic have no common order
        ages = np.asarray(events.source_ts.cast(pa.int64()).fill_null(0))[rows]
    for places, own, others in groups:
        so_far = _after(feed, parts)
        if feed.drops_columns and own.is_whole:
            stated = {*map(feed.target_name, own.types), *so_far.known_key}
            stated |= {*(() if raw.message is None else raw.message.column_names)}
            # with `on_conflict: new_column`, `price__string` holds values of `price`
            lacking = {name for name in so_far.known_types if stated.isdisjoint((name, name.rpartition("__")[0]))}
            gone = lacking if ages[places].min() > reached else set()
            feed = replace(feed, known_types={n: t for n, t in so_far.known_types.items() if n not in gone})
            parts = [part.without(gone) for part in parts]
            dropped = (dropped or frozenset()) | gone
            so_far = _after(feed, parts)
        reached = max(reached, ages[places].max(initial=-1))
        complete = own.completed(_of_table(other, so_far) for other in others)
        part, refused = _assemble_part(events, rows[places], places, complete, feed=so_far, raw=raw, reading=reading)
        rejected.append(refused)
        parts += [] if part is None else [part]
        counts[EMPTY] += len(places) if part is None and not refused.num_rows else 0
    counts[CUT] = sum(part.num_cut for part in parts)
    counts[MOVED] = sum(part.num_moved for part in parts)
    batch, conflicts = merge_parts(parts, feed, raw)
    encodings = _after(feed, parts).known_encodings
    return Assembled(replace(batch, dropped=dropped), Rejected.concat([*rejected, *conflicts]), +counts, encodings)


def _declared_so_far(
    declared: Sequence[Declared], declared_of: NDArray[np.int32], *, splits: bool
) -> list[tuple[Rows, Declared, list[Declared]]]:
    """Split changes by their declarations: (places of changes, declaration, what may complete it), by first occurrence.

    A change that declares less than others takes the rest from earlier ones, the latest of them first; never from later
    ones, which may be in another batch. So a group is split where a more complete declaration begins, or any other with `splits`.
    """
    kind_of, first_places = distinct(declared_of)
    own = [declared[code] for code in declared_of[first_places]]
    result: list[tuple[Rows, Declared, list[Declared]]] = []
    for number, kind in enumerate(own):
        places = np.flatnonzero(kind_of == number)
        others = [
            other for other in range(len(own)) if other != number and (splits or kind.completed([own[other]]) != kind)
        ]
        borders = np.searchsorted(places, first_places[others])
        for begin, end in zip([0, *borders], [*borders, len(places)], strict=True):
            if begin < end:
                before = [other for other in others if first_places[other] < places[begin]]
                result.append((places[begin:end], kind, [own[other] for other in before[::-1]]))
    return sorted(result, key=lambda part: int(part[0][0]))


def _of_table(declared: Declared, feed: TableFeed) -> Declared:
    """What does not contradict the types that the table has: in an earlier batch, they would be all that is left of it."""
    known = {name: feed.known_types.get(feed.target_name(name)) for name in declared.types}
    return replace(declared, types={name: t for name, t in declared.types.items() if known[name] in {None, t.arrow}})


def _after(feed: TableFeed, parts: Sequence[Part]) -> TableFeed:
    """The feed after these parts, with their columns, as if they had been in an earlier batch."""
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
    """Types of the rows before and after the change, and of columns that only the message's key has."""
    types = resolve_types(images[:2], feed, declared.types, reading.inference, reading.placeholder, keys=keys)
    for name, of_key in resolve_types(images[2:], feed, declared.types, reading.inference, b"", keys=keys).items():
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
    stated = feed.key or (*map(feed.target_name, declared.key or images[2].names),) or feed.known_key
    # Keys are never doubles, which types must know before the key is chosen. With `identity: full` every column is a key,
    # and doubles are allowed in it, as the whole row is compared.
    likely = () if feed.identity_full else stated
    types = _column_types(images, feed, declared, reading, keys=likely)
    encodings = encodings_of(types) if reading.may_be_base64 else {}
    found = [typed(i, types, reading.placeholder) for i in images]
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
    after = with_message_columns(after, raw, events.raw[rows])
    added = [] if raw.message is None else raw.message.column_names
    row_type = _row_type([*map(feed.target_name, types), *added], (after, before, message_key))
    key = choose_key(feed, declared.key, message_key, row_type)
    # Truncates need no key: of a table that has none yet, there are no rows to remove. Without rows, nothing would tell the
    # types of columns that nothing declares.
    is_unknown = not len(op) and any(pa.types.is_null(column.type) for column in row_type)
    if is_unknown or (not key and (op == TRUNCATE).all()):
        return None, Rejected.none()
    if not key:
        reason = "no key: the feed declares none; set it in the config (key: [...])"
        return None, reject(raw, events.raw[rows], reason, feed.name)
    op, before, old_of = _with_moves(op, after, before, key, lambda: changes_in_source(events, rows))
    lacking: dict[str, Mask] | None = None
    if feed.identity_full:
        columns = dict.fromkeys((*(f.name for f in row_type), *feed.known_types))
        lacking = lacking_columns(before, (op == UPDATE) | (op == DELETE), columns)
        nothing = np.logical_and.reduce([lacking.get(name, np.zeros(len(op), np.bool_)) for name in columns])
        after, before = whole_rows(after, before, row_type)
    # Columns of the key must exist even if this batch lacks them, and so must all columns that sparse updates leave out.
    row_type = _with_columns(row_type, [*key, *(feed.known_types if events.sparse_updates else ())], feed)
    rejections = Rejections(len(rows))
    written = np.isin(op, WRITES)
    reject_images(rejections, after, (before, message_key), written)
    after, before, message_key = (_in_types(image, row_type) for image in (after, before, message_key))
    if events.sparse_updates:
        after = with_sparse_updates(after, row_type, op == UPDATE, lacking)
    # The message key identifies the row as it is now; `before` has the key that the row had.
    after = filled_from_before(filled_from_key(after, message_key, key, written), before)
    if lacking is not None:
        rejections.add(nothing, "the old row has no column of the table, so it does not identify a row")
        partial = np.any([~before.has(name) for name in key], axis=0)
        rejections.add((op == UPDATE) & partial, "an update without the whole old row, which identity: full needs")
    keys = old_keys(op, after, before, message_key, key=key, row_type=row_type, rejections=rejections)
    if not feed.identity_full:
        _reject_nulls(rejections, zip(key, keys, strict=True), after, {*map(feed.target_name, declared.key)}, op)
    # A column that only rejected events have must not be added to the table. With `identity: full` it is a part of the key.
    if rejections.any() and not feed.identity_full:
        row_type = _of_accepted(row_type, (after, before), ~rejections.mask, {*key, *feed.known_types})
    unsent = names_of(after.unavailable, written) if lacking is None else names_of(lacking, ~(op == TRUNCATE))
    table = change_table(
        *(events, rows, raw, row_type, key),
        parts=(keys, before, after, unsent),
        op=op,
        schema_version=feed.schema_version,
    )
    # The delete of a row that moves is no change by itself, unless the insert is rejected.
    every = np.arange(len(op))
    moved = np.isin(every, old_of[(old_of != every) & ~rejections.mask])
    part = Part(
        table, row_type, key, places, events.raw[rows], after.num_cut, sent, encodings, num_moved=int(moved.sum())
    )
    return _accepted(part, rejections, moved, raw, feed)


def _accepted(
    part: Part, rejections: Rejections, moved: Mask, raw: RawEvents, feed: TableFeed
) -> tuple[Part, Rejected]:
    """(the changes without rejected ones and without deletes of rows that move, the rejected ones)."""
    bad, good = rejections.mask & ~moved, ~rejections.mask & ~moved
    if good.all():
        return part, Rejected.none()
    reasons = rejections.reasons().filter(pa.array(~moved[rejections.mask]))
    refused = reject(raw, part.raw_rows[bad], reasons, feed.name)
    ingested_at = pa.repeat(pa.scalar(raw.ingested_at, TIMESTAMP), refused.num_rows)
    refused = refused.with_keys(_stale_keys(part.table.column("key").combine_chunks(), bad), ingested_at)
    kept = part.table.filter(pa.array(good))
    return replace(part, table=kept, places=part.places[good], raw_rows=part.raw_rows[good]), refused


def _stale_keys(key: pa.StructArray, bad: Mask) -> pa.StringArray:
    """The key of each rejected change; NULL where it has none, or a later change that is not rejected."""
    known = np.logical_and.reduce([np.asarray(column.is_valid()) for column in key.flatten()])
    texts = pc.if_else(pa.array(known), key_texts(key), None)
    codes = np.asarray(pc.fill_null(texts, "").dictionary_encode().indices)
    last = np.full(codes.max(initial=0) + 1, -1)
    np.maximum.at(last, codes[~bad], np.flatnonzero(~bad))
    is_last = np.arange(len(codes)) > last[codes]
    return pc.if_else(pa.array(is_last), texts, None).filter(pa.array(bad))


def with_message_columns(after: Image, raw: RawEvents, rows: Rows) -> Image:
    """New rows with the columns of the messages at `rows` that wrote them.

    Raises:
        ConfigError: the feed has a column of the same name.
    """
    if raw.message is None:
        return after
    if both := sorted(set(after.columns) & set(raw.message.column_names)):
        raise ConfigError(f"message_columns: {both[0]} is a column of the feed; choose another name")
    chosen = raw.message.take(pa.array(rows)).combine_chunks()
    added = {name: pa.concat_arrays(chosen.column(name).chunks) for name in chosen.column_names}
    return replace(after, columns={**after.columns, **added})


def _row_type(names: Iterable[str], images: tuple[Image, ...]) -> pa.StructType:
    """The columns in feed order, with the types that their arrays actually have (an int may have been widened)."""
    members: dict[str, pa.DataType] = {}
    for name in dict.fromkeys(names):
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
    """The columns without those that only rejected changes have."""
    names = {
        name for image in images for name in image.columns if (image.present & accepted & ~image.lacks(name)).any()
    }
    return pa.struct([f for f in row_type if f.name in names or f.name in kept])


def _with_columns(row_type: pa.StructType, wanted: Sequence[str], feed: TableFeed) -> pa.StructType:
    have = list(row_type)
    names = {f.name for f in have}
    return pa.struct(
        [*have, *(pa.field(n, feed.known_types.get(n, pa.null())) for n in dict.fromkeys(wanted) if n not in names)]
    )


def _in_types(image: Image, row_type: pa.StructType) -> Image:
    """The image with its columns converted to the types of the rows."""
    columns = {
        name: array if array.type == row_type.field(name).type else array.cast(row_type.field(name).type)
        for name, array in image.columns.items()
    }
    return replace(image, columns=columns)
