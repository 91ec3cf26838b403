"""What makes a Debezium event a change: one set of rules for JSON (`debezium.py`) and columns (`debezium_columns.py`).

An event is an envelope (op, before, after), a row that ExtractNewRecordState made of one, or control: what connectors
write beside changes. Which it is depends on the event alone, never on its neighbours.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Ops = NDArray[np.uint8]

LETTERS = "rcudt"
MESSAGE = ord("m")
DELETE, UPDATE = ord("d"), ord("u")

PARTS = ("db", "schema", "table")
"""Of the name of a table, as the origin of an event states it."""
FLAGS = ("__deleted", "__op")
"""Members that only rows of ExtractNewRecordState have."""
ENVELOPE_MEMBERS = frozenset(
    {"before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction"}
    | {"schema", "payload", "message", "updateDescription", "patch", "filter"}
)
"""An object of nothing else is no row: it is an envelope that lacks something."""

NO_CHANGE = "no change event: neither op with before or after, nor a row, nor a known control event"
UNKNOWN_OP = f"op is none of {', '.join(LETTERS)}"
UNKNOWN_ROW_OP = f"__op is none of {', '.join(LETTERS)}"
MONGODB = "after is text or missing, as of MongoDB: let ExtractNewDocumentState make rows of it"

TIMES = frozenset({"ts_ms", "ts_us", "ts_ns"})
MARKER = frozenset({"status", "id", "event_count", "data_collections"}) | TIMES
NOTIFICATION = frozenset({"id", "type", "aggregate_type", "additional_data", "timestamp"}) | TIMES
_IS_OP = np.zeros(256, np.bool_)
_IS_OP[[ord(letter) for letter in LETTERS]] = True


def is_control(names: Collection[str]) -> bool:
    """Whether events with exactly these members are heartbeats, schema changes, transaction markers, notifications."""
    given = set(names)
    heartbeat = "ts_ms" in given and given <= TIMES
    # A row may well have columns that are called status, type or ddl.
    marker = {"status", "id", "event_count"} <= given <= MARKER
    notification = {"aggregate_type", "type"} <= given <= NOTIFICATION
    schema_change = "ddl" in given and not given.isdisjoint({"databaseName", "tableChanges"})
    return heartbeat or marker or notification or schema_change


def is_row(names: Collection[str]) -> bool:
    """Whether an object with these members, none of them an object that is an image, may be a row."""
    return not set(names) <= ENVELOPE_MEMBERS


def of_envelope(stated: Ops) -> tuple[Ops, Mask, Mask]:
    """(operation, logical decoding messages, unknown ones) of the letters in `op`; 0 where there is no operation."""
    message = stated == MESSAGE
    known = _IS_OP[stated]
    return np.where(known, stated, np.uint8(0)), message, ~known & ~message


def of_row(stated: Ops, given: Mask, deleted: Mask) -> tuple[Ops, Mask]:
    """(operation, unknown ones) of rows by `__op` where it is given, and `__deleted`; a row without either is upserted."""
    known = _IS_OP[stated]
    unknown = given & ~known
    op = np.where(deleted, np.uint8(DELETE), np.where(known, stated, np.uint8(UPDATE)))
    return np.where(unknown, np.uint8(0), op), unknown
