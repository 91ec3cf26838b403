"""PostgreSQL's logical replication (pgoutput), and rows that PostgreSQL copies, as changes.

The source describes each table (`RawEvents.tables`), because a server describes it only once per connection. Values are text as PostgreSQL writes it, and become columns of the declared types.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nevermore.pipelines.decode.batches import RawEvents
from nevermore.pipelines.decode.events import Declared, Events, described_rows, loaded_rows, refusal
from nevermore.pipelines.decode.feed_schemas import postgres_type
from nevermore.pipelines.decode.image import Columns
from nevermore.pipelines.decode.value_types import ValueType, list_of, map_of
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats import pgoutput_kernels as messages
from nevermore.pipelines.formats.options import PgOutputOptions
from nevermore.pipelines.formats.pgoutput_kernels import BOOLEAN, INTEGER, JSON_LIST, LIST, MAP, MAX_GROWTH, REAL, TEXT
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.spans import Documents, Members, from_binary
from nevermore.scan_core import Rows

UNCHANGED = b"\0unchanged"
"""Stands for a value that was not sent; PostgreSQL's text has no zero bytes."""
_EPOCH_MICROS = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970."""
_OPS = np.zeros(256, np.uint8)
_OPS[[messages.INSERT, messages.UPDATE, messages.DELETE, messages.TRUNCATE]] = [ord(op) for op in "cudt"]


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a source table: its name, its type as PostgreSQL writes it, whether it is part of the replica identity."""

    name: str
    type: str
    in_identity: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """The description of a source table at some time.

    Attributes:
        oid: identifier of the table in its database.
        name: `schema.table`.
        columns: columns in the order of the messages.
        key: columns of the primary key, or of the index that is the replica identity; none without either.
    """

    oid: int
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...] = ()

    @property
    def declared(self) -> Declared:
        """Types and key of the table."""
        return Declared({c.name: column_type(c.type) for c in self.columns}, self.key, is_whole=True)

    @property
    def marks(self) -> NDArray[np.uint8]:
        """How the values of each column are marked for decoding."""
        return np.array([_mark(column.type) for column in self.columns], np.uint8)


_TEXT = ValueType(pa.string())
_VECTOR = re.compile(r"(.*\.)?(vector|halfvec)(\(\d+\))?")
_HSTORE = re.compile(r"(.*\.)?hstore")
_BOX = "box"
"""The only type whose elements are not separated by commas."""


@lru_cache(maxsize=4096)
def column_type(name: str) -> ValueType:
    """The value type of a column: lists for arrays and vectors, maps for hstore; text for types that have no counterpart."""
    if name.endswith("[]") and name != f"{_BOX}[]":
        element = column_type(name.removesuffix("[]"))
        return _TEXT if element.members else list_of(element)
    if _VECTOR.fullmatch(name):
        return list_of(ValueType(pa.float32()))
    if _HSTORE.fullmatch(name):
        return map_of(_TEXT, _TEXT)
    return postgres_type(name)


def _mark(name: str) -> int:
    arrow = column_type(name).arrow
    if pa.types.is_list(arrow):
        return LIST if name.endswith("[]") else JSON_LIST
    if pa.types.is_map(arrow):
        return MAP
    if pa.types.is_integer(arrow):
        return INTEGER
    if pa.types.is_floating(arrow):
        return REAL
    return BOOLEAN if pa.types.is_boolean(arrow) else TEXT


def relation_message(oid: int, number: int) -> bytes:
    """The message from which on a table has the description of this number."""
    return b"R" + oid.to_bytes(4, "big") + number.to_bytes(4, "big")


@dataclass(frozen=True)
class _MessageImages:
    """Rows of changes of several tables; changes that are taken together are of one description.

    Attributes:
        data: bytes of the messages.
        tables: descriptions.
        version: description of each change.
        at: position of the row of each change, 0 without one.
        part: whether the row has only the key, per change.
        unchanged: span of the mark for values that were not sent.
    """

    data: NDArray[np.uint8]
    tables: tuple[SourceTable, ...]
    version: NDArray[np.int32]
    at: NDArray[np.int32]
    part: NDArray[np.uint8]
    unchanged: tuple[int, int]

    def take(self, rows: Rows) -> Columns:
        """See `ImageSource`."""
        numbers = np.unique(self.version[rows])
        table = self.tables[int(numbers[0])] if len(numbers) else SourceTable(0, "", ())
        shape = len(table.columns), len(rows)
        start, end, kind = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.int8)
        status = np.empty(len(rows), np.int8)
        in_key = np.array([column.in_identity for column in table.columns], np.bool_)
        is_whole = messages.read_rows(
            self.data, self.at[rows], self.part[rows], table.marks, in_key, *self.unchanged, start, end, kind, status
        )
        if not is_whole:
            raise SourceError(f"rows of {table.name} differ from its description in the number of columns")
        data = _with_json(self.data, table, start, end, kind)
        return Members(data, tuple(c.name for c in table.columns), start, end, kind, status)


def decode_pgoutput(raw: RawEvents, _options: PgOutputOptions) -> Events:
    """Decode a batch of messages.

    Raises:
        SourceError: no source describes the tables.
    """
    if raw.tables is None:
        raise SourceError(
            "pgoutput is what PostgreSQL sends to a replication client, not a format of files: source: {type: postgres}"
        )
    documents, tables = from_binary(raw.documents), raw.tables
    if raw.is_load:
        return _copied_rows(tables[0], documents)
    start, end, count = documents.start, documents.end, len(documents)
    # The mark of values that were not sent follows the messages.
    data = np.concatenate([documents.data, np.frombuffer(UNCHANGED, np.uint8)])
    oids = np.unique(np.array([t.oid for t in tables], np.int64))
    version, old, new = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    what, old_kind = np.empty(count, np.uint8), np.empty(count, np.uint8)
    broken = np.empty(count, np.bool_)
    current = np.empty(len(oids), np.int64)
    messages.read_messages(data, start, end, oids, current, version, what, old, new, old_kind, broken)
    op = np.where(version >= 0, _OPS[what], np.uint8(0))
    unchanged = len(data) - len(UNCHANGED), len(data)
    nothing = np.zeros(count, np.uint8)
    return described_rows(
        [(t.name, t.declared) for t in tables],
        np.maximum(version, 0),
        op,
        _MessageImages(data, tables, version, new, nothing, unchanged),
        _MessageImages(data, tables, version, old, old_kind, unchanged),
        source_ts=_times(data, start, end),
        placeholder=UNCHANGED,
        refusals=refusal(broken, "a message of logical replication that cannot be read"),
    )


def _with_json(
    data: NDArray[np.uint8],
    table: SourceTable,
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    kind: NDArray[np.int8],
) -> NDArray[np.uint8]:
    """The bytes of the values, followed by arrays and hstores as JSON, to which their spans point."""
    parts, base = [data], len(data)
    for column in np.flatnonzero(np.isin(table.marks, (LIST, MAP))).tolist():
        is_map = bool(table.marks[column] == MAP)
        room = MAX_GROWTH * int((end[column] - start[column]).sum(dtype=np.int64)) + 8 * len(start[column]) + 16
        out = np.empty(room, np.uint8)
        used = messages.write_json(data, start[column], end[column], kind[column], is_map, out, base)
        parts.append(out[:used])
        base += used
    return data if len(parts) == 1 else np.concatenate(parts)


def _copied_rows(table: SourceTable, documents: Documents) -> Events:
    """Rows that were copied, as snapshot reads."""
    count = len(documents)
    # A copy: values are unescaped in place.
    data = documents.data[documents.start[0] : documents.end[-1]].copy() if count else documents.data
    shape = len(table.columns), count
    start, end, kind = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.int8)
    if messages.read_copy(data, len(data), table.marks, start, end, kind) != count:
        raise SourceError(f"rows copied from {table.name} cannot be read")
    names = tuple(column.name for column in table.columns)
    whole = _with_json(data, table, start, end, kind)
    members = Members(whole, names, start, end, kind, np.full(count, kernels.OK, np.int8))
    return loaded_rows(table.name, table.declared, members)


def _times(data: NDArray[np.uint8], start: NDArray[np.int32], end: NDArray[np.int32]) -> pa.Array:
    """The time of the transaction of each message."""
    numbered = NumberedMessages.of(data, start, end)
    times = np.append(numbered.time + _EPOCH_MICROS, 0)[numbered.transaction]
    return pa.array(times, pa.int64(), mask=numbered.transaction < 0).cast(pa.timestamp("us", "UTC"))


@dataclass(frozen=True)
class NumberedMessages:
    """Messages with their places.

    Attributes:
        transaction: the transaction of each message, as an index into the arrays below; -1 before the first.
        index: number of each change in its transaction, from 1; 0 for other messages.
        lsn: position of the commit of each transaction.
        time: time of each transaction in microseconds since 2000.
        xid: identifier of each transaction.
    """

    transaction: NDArray[np.int64]
    index: NDArray[np.int64]
    lsn: NDArray[np.int64]
    time: NDArray[np.int64]
    xid: NDArray[np.int64]

    @classmethod
    def of(
        cls, data: NDArray[np.uint8], start: NDArray[np.int32], end: NDArray[np.int32], first: int = 0
    ) -> "NumberedMessages":
        """Number messages; `first` changes precede them in the transaction that they continue.

        Raises:
            SourceError: a message is broken.
        """
        arrays = [np.empty(len(start), np.int64) for _ in range(5)]
        found = messages.number_messages(data, start, end, first, *arrays)
        if found < 0:
            raise SourceError("the begin of a transaction cannot be read: logical replication is broken")
        return cls(arrays[0], arrays[1], *(array[:found] for array in arrays[2:]))
