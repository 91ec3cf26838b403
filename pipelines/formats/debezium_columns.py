"""Debezium events that come as columns: the envelope or the unwrapped row of Parquet files, Avro files and messages.

Events of one schema lie together in one `EventColumns`; how bytes become those is the business of the readers. The same
events as JSON are in `debezium.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats import debezium_rules as rules
from pipelines.formats.avro_types import types_of_file
from pipelines.formats.casting import cast_each
from pipelines.formats.debezium_layouts import is_envelope
from pipelines.formats.event_order import of_columns
from pipelines.formats.events import Declared, Events, Placed, Refusal, milliseconds, table_names
from pipelines.formats.image import ArrowMembers
from pipelines.formats.image_sources import Mask, Rows, StackedImages
from pipelines.formats.op_names import op_codes
from pipelines.formats.unwrapped_names import ADDED, ORIGIN_PREFIXES
from pipelines.formats.value_type import ValueType

_OPS = {letter: letter for letter in (*rules.LETTERS, chr(rules.MESSAGE))}


@dataclass(frozen=True)
class EventColumns:
    """Events of one schema.

    Attributes:
        raw: the raw event of each.
        columns: of the value by name; none at all for messages without a value that mean a delete.
        types: what the columns mean, where the schema tells.
        key: columns of the message key.
        key_types: what those mean.
    """

    raw: Rows
    columns: Mapping[str, pa.Array]
    types: Mapping[str, ValueType] = field(default_factory=dict)
    key: Mapping[str, pa.Array] = field(default_factory=dict)
    key_types: Mapping[str, ValueType] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    op: NDArray[np.uint8]
    names: list[pa.Array]
    source_ts: pa.Array
    after: ArrowMembers
    before: ArrowMembers
    types: Mapping[str, ValueType]
    skipped: Mapping[str, int]
    refused: Mask


def decode_columns(
    groups: Sequence[EventColumns], refusals: tuple[Refusal, ...] = (), skipped: Mapping[str, int] | None = None
) -> Events:
    """The changes of events in columns; `refusals` and `skipped` are of raw events that are in no group."""
    parts = [_envelope(g) if is_envelope(g.columns) else _flat(g) for g in groups]
    raw = np.concatenate([g.raw for g in groups]) if groups else np.zeros(0, np.int64)
    order = np.argsort(raw, kind="stable")
    counts = [len(g.raw) for g in groups]
    part_of = np.repeat(np.arange(len(groups), dtype=np.int32), counts)[order]
    place_of = np.concatenate([np.arange(n) for n in counts])[order] if groups else np.zeros(0, np.int64)
    places = pa.array(order)
    table_of, tables = table_names(
        [pa.concat_arrays([p.names[i] for p in parts]).take(places) for i in range(len(rules.PARTS))]
        if parts
        else [pa.array([], pa.string())]
    )
    counted = dict(skipped or {})
    for part in parts:
        for reason, count in part.skipped.items():
            counted[reason] = counted.get(reason, 0) + count
    refused = np.sort(np.concatenate([g.raw[p.refused] for g, p in zip(groups, parts, strict=True)])) if parts else raw
    keys = [ArrowMembers(g.key, np.full(len(g.raw), bool(g.key))) for g in groups]
    return Events(
        raw=raw[order],
        op=np.concatenate([p.op for p in parts])[order] if parts else np.zeros(0, np.uint8),
        table_of=table_of,
        tables=tables,
        source_ts=pa.concat_arrays([p.source_ts for p in parts]).take(places) if parts else milliseconds(raw, raw > 0),
        after=StackedImages(tuple(p.after for p in parts), part_of, place_of),
        before=StackedImages(tuple(p.before for p in parts), part_of, place_of),
        key=StackedImages(tuple(keys), part_of, place_of),
        declared_of=part_of,
        declared=tuple(
            Declared({**g.key_types, **p.types}, tuple(g.key_types)) for g, p in zip(groups, parts, strict=True)
        )
        or (Declared(),),
        order=_orders(groups, places),
        refusals=(*refusals, *((Refusal(refused, rules.NO_CHANGE),) if len(refused) else ())),
        skipped=counted,
    )


def decode_rows_of_file(rows: pa.Table) -> Events:
    """The changes of rows of a file; an Avro file's schema tells what its columns mean."""
    columns = {name: _single(rows.column(name)) for name in rows.column_names}
    return decode_columns([EventColumns(np.arange(rows.num_rows), columns, types_of_file(rows))])


def _envelope(group: EventColumns) -> _Part:
    count = len(group.raw)
    op, message, unknown = rules.of_envelope(op_codes(_text(group.columns["op"]), _OPS))
    source = group.columns.get("source")
    origin = _members(source) if source is not None and _is_struct(source.type) else {}
    of_event = _millis(group.columns.get("ts_ms"), count)
    images = {}
    types: dict[str, ValueType] = {}
    for name in ("before", "after"):
        column = group.columns.get(name)
        if column is None or not _is_struct(column.type):
            images[name] = ArrowMembers({}, np.zeros(count, np.bool_))
            continue
        images[name] = ArrowMembers(_members(column), np.asarray(column.is_valid()))
        if name in group.types:
            types |= dict(group.types[name].members)
    return _Part(
        op=op,
        names=[_text_or_null(origin.get(name), count) for name in rules.PARTS],
        source_ts=pc.coalesce(_millis(origin.get("ts_ms"), count), of_event),
        after=images["after"],
        before=images["before"],
        types=types,
        skipped={"logical decoding message": int(message.sum())} if message.any() else {},
        refused=unknown,
    )


def _flat(group: EventColumns) -> _Part:
    count = len(group.raw)
    columns = group.columns
    nothing = ArrowMembers({}, np.zeros(count, np.bool_))
    if not columns:
        deleted = np.full(count, rules.DELETE, np.uint8)
        times = pa.nulls(count, pa.timestamp("us", "UTC"))
        names = [pa.nulls(count, pa.string())] * len(rules.PARTS)
        return _Part(deleted, names, times, nothing, nothing, {}, {}, np.zeros(count, np.bool_))
    if not set(rules.FLAGS) & set(columns):
        is_control = rules.is_control(columns)
        has_image = any(name in columns and _is_struct(columns[name].type) for name in ("before", "after"))
        if is_control or has_image or not rules.is_row(columns):
            return _Part(
                op=np.zeros(count, np.uint8),
                names=[pa.nulls(count, pa.string())] * len(rules.PARTS),
                source_ts=pa.nulls(count, pa.timestamp("us", "UTC")),
                after=nothing,
                before=nothing,
                types={},
                skipped={"control event": count} if is_control else {},
                refused=np.full(count, not is_control),
            )
    stated = op_codes(_text_or_null(columns.get("__op"), count), _OPS)
    given = np.asarray(columns["__op"].is_valid()) if "__op" in columns else np.zeros(count, np.bool_)
    flagged = np.asarray(pc.fill_null(pc.equal(_text_or_null(columns.get("__deleted"), count), "true"), False))
    op, refused = rules.of_row(stated, given, flagged)
    row = {name: array for name, array in columns.items() if name not in ADDED}
    deleted = op == rules.DELETE
    return _Part(
        op=op,
        names=[
            pc.coalesce(*(_text_or_null(columns.get(f"{prefix}{name}"), count) for prefix in ORIGIN_PREFIXES))
            for name in rules.PARTS
        ],
        source_ts=pc.coalesce(_millis(columns.get("__source_ts_ms"), count), _millis(columns.get("__ts_ms"), count)),
        after=ArrowMembers(row, ~deleted),
        before=ArrowMembers(row, deleted),
        types={name: t for name, t in group.types.items() if name in row},
        skipped={},
        refused=refused,
    )


def _orders(groups: Sequence[EventColumns], places: pa.Array) -> Callable[[str], Placed]:
    def placed(path: str) -> Placed:
        steps = path.removeprefix("payload.").split(".")
        found = [_at(g.columns, steps, len(g.raw)) for g in groups]
        if all(f is None or pa.types.is_null(f.type) for f in found):
            raise KeyError(path)
        # Each in its own type: what lies beside it must not round it.
        texts = [of_columns(path, pa.nulls(len(g.raw)) if f is None else f) for g, f in zip(groups, found, strict=True)]
        return pa.concat_arrays(texts).take(places), None

    return placed


def _at(columns: Mapping[str, pa.Array], steps: Sequence[str], count: int) -> pa.Array | None:
    array = columns.get(steps[0])
    for step in steps[1:]:
        if array is None or not _is_struct(array.type):
            return None
        array = _members(array).get(step)
    return array if array is None or len(array) == count else None


def _members(array: pa.StructArray) -> dict[str, pa.Array]:
    return {array.type.field(i).name: member for i, member in enumerate(array.flatten())}


def _is_struct(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_struct(arrow))


def _text(array: pa.Array) -> pa.Array:
    return cast_each(array, pa.string())[0]


def _text_or_null(array: pa.Array | None, count: int) -> pa.Array:
    if array is None or pa.types.is_nested(array.type):
        return pa.nulls(count, pa.string())
    return _text(array)


def _millis(array: pa.Array | None, count: int) -> pa.Array:
    if array is None or not pa.types.is_integer(array.type):
        return pa.nulls(count, pa.timestamp("us", "UTC"))
    values = np.asarray(array.fill_null(0).cast(pa.int64()))
    return milliseconds(values, np.asarray(array.is_valid()))


def _single(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
