"""The events of a quarantine as a source would hand them on: documents, rows of columns, and records of CSV.

They are kept as bytes, and come in runs of one shape, in order. What becomes of them is `quarantine_replay.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.formats.raw_rows import rows_of, schema_of
from pipelines.sources.csv_file import LOAD_WITHOUT, Dialect, read_records
from pipelines.sources.file_documents import split_keys
from pipelines.sources.file_layout import Layout
from pipelines.sources.file_options import FileOptions
from pipelines.sources.raw_events import RawEvents

_Schema = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Run:
    """Events of one shape, from event `first` of the quarantine on; each has its number in the run for a place."""

    first: int
    raw: RawEvents


def in_runs(events: pa.Table, options: FileOptions) -> Iterator[Run]:
    """The events, as many at a time as are of one shape.

    Args:
        events: of a quarantine, in order.
        options: of the source: they tell the columns of CSV without a header.
    """
    documents = events.column("raw").to_pylist()
    shapes: list[tuple[_Schema | None, pa.Table | None]] = [_shape(document, options) for document in documents]
    first = 0
    for end in range(1, len(shapes) + 1):
        if end < len(shapes) and _is_same(shapes[first], shapes[end]):
            continue
        schema, record = shapes[first]
        if record is not None:
            yield Run(first, _raw(pa.concat_tables([table for _, table in shapes[first:end] if table is not None])))
        elif schema is not None:
            yield Run(first, _raw(rows_of(documents[first:end], schema)))
        else:
            yield Run(first, _messages(pa.array(documents[first:end], pa.binary()), options))
        first = end


def _messages(documents: pa.BinaryArray, options: FileOptions) -> RawEvents:
    """Documents; whole lines among them, which lacked their separator when they were read, with their keys."""
    raw = _raw(documents)
    if options.layout != Layout.KEYED_LINES.value:
        return raw
    values, keys, none = split_keys(pc.fill_null(documents, b""), options.separator)
    is_document = pa.array(none)
    nothing = pa.scalar(None, pa.binary())
    return replace(
        raw, documents=pc.if_else(is_document, documents, values), keys=pc.if_else(is_document, nothing, keys)
    )


def _shape(document: bytes | None, options: FileOptions) -> tuple[_Schema | None, pa.Table | None]:
    """The schema of a row; or the row of a CSV record, where the config tells its columns and it has as many."""
    schema = schema_of(document)
    if schema is not None or not document or not options.columns or document.lstrip()[:1] in {b"{", b"["}:
        return schema, None
    names = [options.columns, *([options.columns[1:]] if options.columns[0] in LOAD_WITHOUT else [])]
    for columns in names:
        dialect = Dialect(tuple(columns), options.delimiter or ",", 0, options.null_value)
        found = read_records(pa.py_buffer(document), dialect, 1, 2, is_all=True)
        if (found.count, found.rows.num_rows) == (1, 1):
            return None, found.rows
    return None, None


def _is_same(one: tuple[_Schema | None, pa.Table | None], other: tuple[_Schema | None, pa.Table | None]) -> bool:
    if one[1] is None or other[1] is None:
        return one == other
    return bool(one[1].schema.equals(other[1].schema))


def _raw(events: pa.Table | pa.BinaryArray) -> RawEvents:
    count = len(events)
    is_rows = isinstance(events, pa.Table)
    return RawEvents(
        # Two events may come from one place, if a file was replaced: for now each has its number for a place.
        source_file=pa.repeat("", count).dictionary_encode(),
        source_offset=pa.array(np.arange(count)),
        documents=None if is_rows else events,
        rows=events if is_rows else None,
    )
