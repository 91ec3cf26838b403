"""Decoded changes of a table as rows of the change schema."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.changes.change_batch import TIMESTAMP, change_schema
from pipelines.formats.events import Events, distinct
from pipelines.formats.identity import CREATE, READ, TRUNCATE, UPDATE
from pipelines.formats.image import Image
from pipelines.formats.image_sources import is_whole
from pipelines.sources.raw_events import RawEvents

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


def change_table(
    events: Events,
    rows: Rows,
    raw: RawEvents,
    row_type: pa.StructType,
    key: tuple[str, ...],
    *,
    parts: tuple[list[pa.Array], Image, Image, pa.ListArray],
    schema_version: int,
) -> pa.Table:
    """The changes of `events` at `rows`; `parts` are their keys, old rows, new rows and unchanged columns."""
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
    fields = [row_type.field(i) for i in range(row_type.num_fields)]
    return _struct([image.columns.get(f.name, pa.nulls(len(valid), f.type)) for f in fields], row_type, valid)


def _struct(arrays: list[pa.Array], arrow: pa.StructType, valid: Mask) -> pa.StructArray:
    fields = [arrow.field(i) for i in range(arrow.num_fields)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=None if valid.all() else pa.array(~valid))
