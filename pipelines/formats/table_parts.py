"""Changes of one table that were assembled apart, because the feed declares different things of them, joined again."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.changes.change_batch import ORDER, ChangeBatch, Rejected, change_schema
from pipelines.formats.column_types import widened
from pipelines.formats.events import reject
from pipelines.formats.feed import TableFeed
from pipelines.formats.value_type import describe
from pipelines.sources.raw_events import RawEvents

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Changes of one table for which the feed declares the same.

    `places` are their ranks in application order, `sent` the columns that they have in the feed,
    `encodings` how the values of these are written.
    """

    table: pa.Table
    row_type: pa.StructType
    key: tuple[str, ...]
    places: Rows
    raw_rows: Rows
    num_cut: int = 0
    sent: frozenset[str] = frozenset()
    encodings: Mapping[str, str] = dataclasses.field(default_factory=dict)


def merge_parts(parts: list[Part], feed: TableFeed, raw: RawEvents) -> tuple[ChangeBatch, list[Rejected]]:
    """One batch of all parts in application order; a part that contradicts an earlier one is rejected."""
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
        reason = _conflict(row_type, part, kept)
        if reason is None:
            row_type = _united(row_type, part.row_type)
            kept.append(part)
        else:
            conflicts.append(reject(raw, part.raw_rows, reason, feed.name))
    key = kept[0].key
    schema = change_schema(row_type, key, is_ordered=ORDER in kept[0].table.column_names)
    table = pa.concat_tables([_conformed(part.table, schema) for part in kept]).combine_chunks()
    order = np.argsort(np.concatenate([part.places for part in kept]), kind="stable")
    sent = frozenset[str]().union(*(part.sent for part in kept))
    return ChangeBatch(table.take(pa.array(order)), row_type, key, sent), conflicts


def _conflict(row_type: pa.StructType, part: Part, kept: list[Part]) -> str | None:
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
