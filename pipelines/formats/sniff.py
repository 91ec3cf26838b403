"""Which format a feed has, from its first events: names the format, or says what is in doubt."""

from collections.abc import Mapping

import numpy as np
import pyarrow.compute as pc

from pipelines.errors import SourceError
from pipelines.formats import json_kernels as kernels
from pipelines.formats.change_rows import USUAL_OP_COLUMNS
from pipelines.formats.debezium_columns import is_envelope
from pipelines.formats.json_scan import scan_objects
from pipelines.formats.json_spans import Members, from_binary
from pipelines.sources.raw_events import RawEvents

SNIFFED_EVENTS = 200
_MARKS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "debezium-json": (
        ("op", "before"),
        ("op", "after"),
        ("schema", "payload"),
        ("op", "source"),
        ("__deleted",),
        ("__op",),
    ),
    "canal-json": (("isDdl", "data", "type"), ("mysqlType", "data", "type")),
    "maxwell-json": (("database", "table", "type", "ts", "data"),),
    "dms": (("data", "metadata"), ("metadata",)),
    "wal2json": (("action", "columns"), ("action", "xid"), ("action", "lsn"), ("action",), ("change",)),
}
_NAMES = tuple(dict.fromkeys(name for marks in _MARKS.values() for mark in marks for name in mark))


def sniff(raw: RawEvents) -> str:
    """The name of the format.

    Raises:
        SourceError: the events look like no format, or like several.
    """
    if raw.rows is not None:
        return "debezium-avro" if is_envelope(raw.rows) else _sniff_columns(raw.rows.column_names)
    documents = from_binary(raw.documents.slice(0, SNIFFED_EVENTS)) if raw.documents is not None else None
    if documents is None:
        raise SourceError("nothing to tell the format by: state it (format: ...)")
    if raw.documents is not None and pc.any(pc.starts_with(raw.documents.slice(0, SNIFFED_EVENTS), b"\0")).as_py():
        return "debezium-avro"
    events = scan_objects(documents, (*_NAMES, *USUAL_OP_COLUMNS), learn=False)
    counts = {name: int(_looks_like(events, marks).sum()) for name, marks in _MARKS.items()}
    # Canal's messages have all that Maxwell's have.
    if counts["canal-json"]:
        counts["maxwell-json"] = 0
    found = [name for name, count in counts.items() if count]
    if len(found) == 1:
        return found[0]
    if not found and any(events.column(name).has_value.any() for name in USUAL_OP_COLUMNS):
        return "rows"
    shown = raw.documents[0].as_py() if raw.documents is not None and len(raw.documents) else b""
    looks = f"look like {' and '.join(found)}" if found else "look like no known format"
    raise SourceError(f"the events {looks}; state the format (format: ...). The first is {(shown or b'')[:120]!r}")


def _looks_like(events: Members, marks: tuple[tuple[str, ...], ...]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    found = np.zeros(len(events), np.bool_)
    for names in marks:
        found |= events.is_object & np.all([events.column(name).kind != kernels.MISSING for name in names], axis=0)
    return found


def _sniff_columns(names: list[str]) -> str:
    if names and names[0] == "Op":
        return "dms"
    if {"__deleted", "__op"} & set(names) or any(name in USUAL_OP_COLUMNS for name in names):
        return "rows"
    raise SourceError(
        f"no column of {', '.join(names[:10])} says what happened to a row: format: dms or rows, with op_column or no_op"
    )
