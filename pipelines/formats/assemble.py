"""From the changes of a feed to one change batch per table: types, keys, unchanged columns, order, rejections.

The same for every format; what a format knows about its events is in `Events`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.change_batch import TIMESTAMP, ChangeBatch, Rejected, change_schema
from pipelines.errors import ConfigError
from pipelines.formats.column_types import resolve_types, widened
from pipelines.formats.events import Events, distinct, reject
from pipelines.formats.feed import POSITION, TableFeed
from pipelines.formats.identity import CREATE, READ, TRUNCATE, UPDATE, Rejections, choose_key, old_keys
from pipelines.formats.image import Image, typed
from pipelines.formats.image_sources import is_whole
from pipelines.formats.inference import InferenceOptions
from pipelines.formats.value_type import ValueType, describe
from pipelines.sources.raw_events import RawEvents

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Reading:
    """How values are read: inference of undeclared columns, and the placeholders of values that were not sent."""

    inference: InferenceOptions
    placeholders: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class _Part:
    """Changes of one table for which the feed declares the same; `places` are their ranks in application order."""

    table: pa.Table
    row_type: pa.StructType
    key: tuple[str, ...]
    places: Rows
    raw_rows: Rows


def assemble(
    events: Events, rows: Rows, feed: TableFeed, raw: RawEvents, reading: Reading
) -> tuple[ChangeBatch, Rejected]:
    """The changes at `rows` as the change batch of one table, and those of them that are rejected.

    Raises:
        ConfigError: `order_by` or `types` name what the feed does not have.
    """
    ordered = rows if feed.order_by == POSITION else rows[_order(events, rows, feed.order_by)]
    declared_of = events.declared_of[ordered]
    part_of, first_places = distinct(declared_of)
    parts: list[_Part] = []
    rejected: list[Rejected] = []
    for number in range(len(first_places)):
        places = np.flatnonzero(part_of == number)
        part, refused = _assemble_part(events, ordered[places], places, feed=feed, raw=raw, reading=reading)
        rejected.append(refused)
        parts += [] if part is None else [part]
    batch, conflicts = _merge(parts, feed, raw)
    return batch, Rejected.concat([*rejected, *conflicts])


def _order(events: Events, rows: Rows, order_by: Sequence[str]) -> Rows:
    """A stable order of `rows` by values of the events; those without a value (snapshots) come first."""
    columns = {}
    for number, path in enumerate(order_by):
        try:
            columns[str(number)] = events.order(path).take(pa.array(rows))
        except KeyError as error:
            raise ConfigError(f"order_by: events of this format have no {path}") from error
    sort_keys = [(name, "ascending", "at_start") for name in columns]
    return np.asarray(pc.sort_indices(pa.table(columns), sort_keys=sort_keys)).astype(np.int64)


def _assemble_part(
    events: Events, rows: Rows, places: Rows, *, feed: TableFeed, raw: RawEvents, reading: Reading
) -> tuple[_Part | None, Rejected]:
    op = events.op[rows]
    declared = events.declared[events.declared_of[rows[0]]]
    images = [image.take(rows) for image in (events.after, events.before, events.key)]
    types = resolve_types(images[:2], feed, declared.types, reading.inference, reading.placeholders)
    for name, of_key in resolve_types(images[2:], feed, declared.types, reading.inference, ()).items():
        types.setdefault(name, of_key)
    after, before, message_key = (typed(i, types, reading.placeholders).renamed(feed.rename) for i in images)
    row_type = _row_type(feed, types, (after, before, message_key))
    key = choose_key(feed, declared.key, message_key, row_type)
    if not key:
        reason = "no key: the feed names none, declare it in the config (key: [...])"
        return None, reject(raw, events.raw[rows], reason, feed.name)
    row_type = _with_columns(row_type, [*key, *(feed.known_types if events.sparse_updates else ())], feed)
    rejections = Rejections(len(rows))
    written = (op == CREATE) | (op == READ) | (op == UPDATE)
    rejections.add(written & ~after.present, "event without a row: no after")
    for mask, reason in after.wrong.values():
        rejections.add(written & mask, reason)
    after, before, message_key = (_in_types(image, row_type) for image in (after, before, message_key))
    if events.sparse_updates:
        after = _sparse(after, row_type, op == UPDATE)
    after = _filled_from(_filled_from_key(after, message_key, key, written), before)
    keys = old_keys(op, after, before, message_key, key=key, row_type=row_type, rejections=rejections)
    unchanged = _unchanged(after, written)
    table = _change_table(
        events, rows, raw, row_type, key, parts=(keys, before, after, unchanged), schema_version=feed.schema_version
    )
    if not rejections.any():
        return _Part(table, row_type, key, places, events.raw[rows]), Rejected.none()
    bad, good = rejections.mask, ~rejections.mask
    refused = reject(raw, events.raw[rows[bad]], rejections.reasons(), feed.name)
    return _Part(table.filter(pa.array(good)), row_type, key, places[good], events.raw[rows[good]]), refused


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


def _sparse(after: Image, row_type: pa.StructType, updates: Mask) -> Image:
    """Columns that an update lacks were not sent."""
    unavailable = dict(after.unavailable)
    missing = dict(after.missing)
    for i in range(row_type.num_fields):
        name = row_type.field(i).name
        lacking = updates & after.present & (missing.get(name, np.False_) if name in after.columns else np.True_)
        if lacking.any():
            unavailable[name] = unavailable.get(name, np.False_) | lacking
            missing[name] = missing.get(name, after.present) & ~lacking
    return replace(after, unavailable=unavailable, missing=missing)


def _filled_from_key(after: Image, message_key: Image, key: Sequence[str], written: Mask) -> Image:
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


def _filled_from(after: Image, before: Image) -> Image:
    """Columns that were not sent but stand in the old row (REPLICA IDENTITY FULL)."""
    columns, unavailable = dict(after.columns), {}
    for name, mask in after.unavailable.items():
        known = mask & before.has(name)
        if known.any():
            given = before.columns[name]
            columns[name] = pc.if_else(pa.array(known), given, columns.get(name, pa.nulls(len(known), given.type)))
        if (mask & ~known).any():
            unavailable[name] = mask & ~known
    return replace(after, columns=columns, unavailable=unavailable)


def _unchanged(after: Image, written: Mask) -> pa.ListArray:
    """Per change, the names of the columns that were not sent."""
    count = len(after)
    names = [name for name, mask in after.unavailable.items() if (mask & written).any()]
    if not names:
        return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))
    marks = np.stack([after.unavailable[name] & written for name in names], axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(marks.sum(axis=1), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(names).take(pa.array(np.nonzero(marks)[1])))


def _change_table(
    events: Events,
    rows: Rows,
    raw: RawEvents,
    row_type: pa.StructType,
    key: tuple[str, ...],
    *,
    parts: tuple[list[pa.Array], Image, Image, pa.ListArray],
    schema_version: int,
) -> pa.Table:
    keys, before, after, unchanged = parts
    op = events.op[rows]
    count = len(rows)
    file, offset, source_ts = raw.source_file, raw.source_offset, events.source_ts
    if not is_whole(events.raw[rows], raw.num_events):
        raw_rows = pa.array(events.raw[rows])
        file, offset = file.take(raw_rows), offset.take(raw_rows)
    if not is_whole(rows, len(events)):
        source_ts = source_ts.take(pa.array(rows))
    written = (op == CREATE) | (op == READ) | (op == UPDATE)
    letters, first = distinct(op)
    schema = change_schema(row_type, key)
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
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _row_struct(image: Image, row_type: pa.StructType, valid: Mask) -> pa.StructArray:
    if not valid.any():
        return pa.nulls(len(valid), row_type)
    fields = [row_type.field(i) for i in range(row_type.num_fields)]
    return _struct([image.columns.get(f.name, pa.nulls(len(valid), f.type)) for f in fields], row_type, valid)


def _struct(arrays: list[pa.Array], arrow: pa.StructType, valid: Mask) -> pa.StructArray:
    fields = [arrow.field(i) for i in range(arrow.num_fields)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=None if valid.all() else pa.array(~valid))


def _merge(parts: list[_Part], feed: TableFeed, raw: RawEvents) -> tuple[ChangeBatch, list[Rejected]]:
    """One batch of all parts in application order; a part that contradicts an earlier one is rejected."""
    if not parts:
        key = feed.key or ("key",)
        row_type = pa.struct(
            [pa.field(n, feed.known_types.get(n, pa.null())) for n in {**feed.known_types, **dict.fromkeys(key)}]
        )
        return ChangeBatch.empty(row_type, key), []
    if len(parts) == 1:
        return ChangeBatch(parts[0].table, parts[0].row_type, parts[0].key), []
    kept: list[_Part] = []
    conflicts: list[Rejected] = []
    row_type = pa.struct([])
    for part in parts:
        reason = _conflict(row_type, part, kept)
        if reason is None:
            row_type = _united(row_type, part.row_type)
            kept.append(part)
        else:
            conflicts.append(reject(raw, part.raw_rows, reason, feed.name))
    key = kept[0].key
    schema = change_schema(row_type, key)
    table = pa.concat_tables([_conformed(part.table, schema) for part in kept]).combine_chunks()
    order = np.argsort(np.concatenate([part.places for part in kept]), kind="stable")
    return ChangeBatch(table.take(pa.array(order)), row_type, key), conflicts


def _conflict(row_type: pa.StructType, part: _Part, kept: list[_Part]) -> str | None:
    if kept and set(part.key) != set(kept[0].key):
        was, now = ", ".join(kept[0].key), ", ".join(part.key)
        return f"the key columns change from ({was}) to ({now}); a rename cannot be told from another key: name the key in the config"
    for i in range(part.row_type.num_fields):
        field = part.row_type.field(i)
        at = row_type.get_field_index(field.name)
        if at >= 0 and widened(row_type.field(at).type, field.type) is None:
            was = row_type.field(at).type
            return (
                f"column {field.name} changes from {describe(was)} to {describe(field.type)}, which no promotion covers"
            )
    return None


def _united(first: pa.StructType, second: pa.StructType) -> pa.StructType:
    members = {first.field(i).name: first.field(i).type for i in range(first.num_fields)}
    for i in range(second.num_fields):
        field = second.field(i)
        members[field.name] = widened(members.get(field.name, pa.null()), field.type) or field.type
    return pa.struct([pa.field(name, arrow) for name, arrow in members.items()])


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        column = table.column(field.name).combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column
        if field.name in ("key", "before", "after") and column.type != field.type:
            members = {column.type.field(i).name: member for i, member in enumerate(column.flatten())}
            arrays = [
                members[f.name].cast(f.type) if f.name in members else pa.nulls(len(column), f.type)
                for f in (field.type.field(i) for i in range(field.type.num_fields))
            ]
            fields = [field.type.field(i) for i in range(field.type.num_fields)]
            column = pa.StructArray.from_arrays(arrays, fields=fields, mask=column.is_null())
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)
