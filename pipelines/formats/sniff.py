"""Which format a feed has, from its first events: names the format, or says what is in doubt."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.errors import SourceError
from pipelines.formats import json_kernels as kernels
from pipelines.formats.debezium_layouts import is_envelope, is_unwrapped
from pipelines.formats.documents import Documents, from_binary
from pipelines.formats.events import letters
from pipelines.formats.json_events import blank, tombstones
from pipelines.formats.json_scan import scan_objects
from pipelines.formats.json_spans import Members, SpanColumn
from pipelines.formats.op_names import USUAL_OP_COLUMNS
from pipelines.sources.raw_events import RawEvents

SNIFFED_EVENTS = 200

Mask = NDArray[np.bool_]

_DEBEZIUM = (
    *(("op", "before"), ("op", "after"), ("op", "source"), ("schema", "payload"), ("__deleted",)),
    # What shares files with changes: transaction markers and schema changes.
    *(("status", "id", "event_count"), ("ddl", "databaseName"), ("ddl", "tableChanges")),
)
_CANAL = (("isDdl", "data", "type"), ("mysqlType", "data", "type"), ("isDdl", "sql", "type"))
_MAXWELL = (("database", "table", "type", "ts", "data"), ("database", "type", "ts", "def"), ("database", "type", "sql"))
_NAMES = tuple(dict.fromkeys(name for mark in (*_DEBEZIUM, *_CANAL, *_MAXWELL) for name in mark))
_WAL2JSON = ("action", "change", "table", "message")
_DMS = ("data", "metadata")
_FULL_LOAD = r"(^|/)LOAD[0-9A-F]{8}\.(csv|parquet)(\.gz)?$"
_TRANSACTION_MEMBERS = frozenset(
    {"action", "xid", "timestamp", "lsn", "nextlsn", "origin", "transactional", "prefix", "content", "message"}
)


def sniff(raw: RawEvents) -> str:
    """The name of the format.

    Raises:
        SourceError: the events look like no format, or like several.
    """
    if raw.rows is not None:
        return "debezium-avro" if is_envelope(raw.rows) or is_unwrapped(raw.rows) else _sniff_columns(raw, raw.rows)
    if raw.documents is None:
        raise SourceError("nothing to tell the format by: state it (format: ...)")
    first = raw.documents.slice(0, SNIFFED_EVENTS)
    if pc.any(pc.starts_with(first, b"\0")).as_py():
        return "debezium-avro"
    documents = from_binary(first)
    events = scan_objects(documents, (*_NAMES, *_WAL2JSON, *_DMS, "__op", *USUAL_OP_COLUMNS), learn=False)
    canal = _has_any(events, _CANAL)
    marks = {
        "debezium-json": _has_any(events, _DEBEZIUM)
        | _is_op(events.column("__op"))
        | _is_heartbeat(documents, events)
        | _is_bare_payload(documents),
        "canal-json": canal,
        "maxwell-json": _has_any(events, _MAXWELL) & ~canal,  # Canal's messages have all that Maxwell's have
        "dms": _is_dms(events),
        "wal2json": _is_wal2json(documents, events),
    }
    found = [name for name, mask in marks.items() if mask.any()]
    if len(found) == 1:
        return found[0]
    if not found and any(events.column(name).has_value.any() for name in USUAL_OP_COLUMNS):
        return "rows"
    if not found and (blank(events) | tombstones(events)).all():
        return "debezium-json"  # tombstones alone, which it leaves out
    shown = next((document for document in first.to_pylist() if document and document.strip()), b"")
    looks = f"look like {' and '.join(found)}" if found else "look like no known format"
    raise SourceError(f"the events {looks}; state the format (format: ...). The first is {shown[:120]!r}")


def _has_any(events: Members, marks: tuple[tuple[str, ...], ...]) -> Mask:
    found = np.zeros(len(events), np.bool_)
    for names in marks:
        found |= events.is_object & np.all([events.column(name).kind != kernels.MISSING for name in names], axis=0)
    return found


def _is_op(column: SpanColumn) -> Mask:
    return _is_one_of(column, b"rcudt")


def _is_heartbeat(documents: Documents, events: Members) -> Mask:
    """Objects of nothing but `ts_ms`."""
    every = scan_objects(documents, ("ts_ms",), learn=True)
    result: Mask = events.is_object & every.of_names({"ts_ms"}) & every.column("ts_ms").of_kind(kernels.INT)
    return result


def _is_bare_payload(documents: Documents) -> Mask:
    """Objects of nothing but a `payload` that is an event."""
    outer = scan_objects(documents, ("payload",), learn=True)
    inner = scan_objects(outer.column("payload").documents(kernels.OBJECT), ("op", "before", "after"), learn=False)
    has_image = (inner.column("before").kind != kernels.MISSING) | (inner.column("after").kind != kernels.MISSING)
    result: Mask = outer.of_names({"payload"}) & _is_op(inner.column("op")) & has_image
    return result


def _is_dms(events: Members) -> Mask:
    inside = scan_objects(
        events.column("metadata").documents(kernels.OBJECT), ("record-type", "operation", "table-name"), learn=False
    )
    return inside.column("operation").has_value & (
        inside.column("record-type").has_value | inside.column("table-name").has_value
    )


def _is_wal2json(documents: Documents, events: Members) -> Mask:
    """Transactions of version 1, changes of version 2, or what stands around them and around pgcopydb's messages."""
    action = events.column("action")
    change = _is_one_of(action, b"IUDT") & (events.column("table").has_value | events.column("message").has_value)
    around = _is_one_of(action, b"BCMKEXPR") & scan_objects(documents, ("action",), learn=True).of_names(
        set(_TRANSACTION_MEMBERS)
    )
    return events.column("change").of_kind(kernels.ARRAY) | change | around


def _is_one_of(column: SpanColumn, words: bytes) -> Mask:
    """Strings of one character, one of these."""
    return np.isin(letters(column), np.frombuffer(words, np.uint8))


def _sniff_columns(raw: RawEvents, rows: pa.Table) -> str:
    names = rows.column_names
    files = pc.unique(raw.source_file.cast(pa.string()))
    if (names and names[0] == "Op") or pc.all(pc.match_substring_regex(files, _FULL_LOAD)).as_py():
        return "dms"
    if any(name in USUAL_OP_COLUMNS for name in names):
        return "rows"
    raise SourceError(
        f"no column of {', '.join(names[:10])} says what happened to a row: format: dms or rows, with op_column or no_op"
    )
