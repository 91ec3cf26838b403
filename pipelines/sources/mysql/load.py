"""Loads what exists in a table: in chunks, each as a transaction of its own sees it, selected as text.

Chunks are ranges of a key where there is one: such a load continues after an interruption, and the key of a change
tells which chunk it belongs to. Other tables are read in one transaction; their load begins again after an interruption.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.batches import BatchEnd, ChangeBatch, Rejected
from nevermore.pipelines.decode.feed import TableFeed
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats import mysql_kernels as stored
from nevermore.pipelines.formats.binlog import MysqlColumn, MysqlTable
from nevermore.pipelines.sources.live import AskedRows, KeyRanges, LiveBatch, chunk_rows, divided_by, loaded_events
from nevermore.pipelines.sources.mysql.log import FULL_PACKET
from nevermore.pipelines.sources.mysql.position import MysqlPosition, log_number, place
from nevermore.pipelines.sources.mysql.server import (
    INTEGER_BYTES,
    Server,
    before,
    connect,
    not_before,
    quoted,
    reported,
    rows_of,
    text_value,
)
from nevermore.pipelines.sources.table_position import Chunk, End, KeyColumn, Load, LoadOutdatedError
from nevermore.scan_core import Mask

MAX_CHUNK_ROWS = 2_000_000
COM_QUERY = 3
READ_BYTES = 1024**2
MAX_PLACES = 65_536
LOCK_SECONDS, LOCK_TRIES = 2, 30
BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
LOCK_TIMEOUT = 1205
"""Error of the server: a lock was not given in time."""


@dataclass(frozen=True)
class MysqlBatch(LiveBatch):
    """See `LiveBatch`.

    Attributes:
        unknown: transactions and numbers of the events after which a table has rows that the log does not have, and what stops the
            table there; with an empty text, it is loaded again.
        keys: columns of the primary keys with which rows are described, by table, and where the last such transaction begins.
    """

    position: MysqlPosition
    unknown: Mapping[tuple[str, int], str] = field(default_factory=dict)
    keys: Mapping[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)

    def reached(self, position: MysqlPosition, claims: Mapping[str, str]) -> MysqlPosition:
        """See `LiveBatch`."""
        gtid = self.position.gtid if self.position.at > position.at else position.gtid
        return position.reaching(self.position.at, claims, gtid=gtid)

    def seen_by(self, load: Load, transactions: NDArray[np.int64]) -> Mask:
        """See `LiveBatch`."""
        seen: Mask = np.array([[chunk.seen] for chunk in load.chunks], np.int64) > self.begins[transactions]
        return seen

    def texts_of(self, values: pa.Array) -> list[str]:
        """See `LiveBatch`."""
        if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            return [(value or b"").hex() for value in values.to_pylist()]
        texts = values.cast(pa.string()).fill_null("").to_pylist()
        return [text.removesuffix("Z") for text in texts] if pa.types.is_timestamp(values.type) else texts

    def new_changes(self, before: str | None, changes: ChangeBatch) -> ChangeBatch:
        """See `LiveBatch`."""
        changes = super().new_changes(before, changes)
        emptied = changes.table.filter(pc.equal(changes.table.column("op"), "t")) if self.unknown else None
        if before is None or not emptied:
            return changes
        places = zip(emptied["source_file"].to_pylist(), emptied["source_offset"].to_pylist(), strict=True)
        reasons = [self.unknown[at] for at in places if at in self.unknown]
        if why := next(filter(None, reasons), None):
            raise SourceError(why)
        if reasons:
            why = "a statement or a foreign key changed rows in a way that the binary log does not show, so the table is loaded again"
            raise LoadOutdatedError(why, MysqlPosition.from_json(before).again)
        return changes

    def new_rejected(self, before: str | None, rejected: Rejected) -> Rejected:
        """See `LiveBatch`."""
        if before is not None and self.keys:
            position = MysqlPosition.from_json(before)
            for (table, key), begin in self.keys.items():
                if begin >= position.settled:
                    position.check_key(table, key)
        return super().new_rejected(before, rejected)


@dataclass(frozen=True)
class TableLoad:
    """A load of one table.

    Attributes:
        server: where the table is.
        name: its name, `database.table`.
        target: the mirror.
        limit_bytes: size of a batch.
        ranges: the keys to load; all of them without any.
    """

    server: Server
    name: str
    target: TableFeed
    limit_bytes: int
    ranges: KeyRanges = ()

    def parts(self, start: MysqlPosition) -> Iterator[MysqlBatch]:
        """Read the rows that the load at this position of the table has not read yet.

        Raises:
            LoadOutdatedError: the earlier load cannot be continued.
            SourceError: the table cannot be followed.
        """
        self.server.check_engine(self.name)
        description = self.server.describe(self.name)
        self._check(description, start)
        columns, begun = self._ranges(description)
        load = start.resumed(begun, self.target.name)
        asked = None
        if self.ranges:
            key = {name: quoted(name) for name, _ in self.server.ordered_key(self.name)}
            asked, columns = AskedRows.of(self.target, key, description.declared.types, self.ranges), ()
        values = tuple(column.sql for column in load.key) or ("{}",)
        with closing(_Selection(self.server, self.name, columns, values, self.limit_bytes)) as selection:
            yield from self._chunks(selection, description, load, start, asked)

    def _chunks(
        self,
        selection: "_Selection",
        description: MysqlTable,
        load: Load,
        start: MysqlPosition,
        asked: AskedRows | None,
    ) -> Iterator[MysqlBatch]:
        step = self._step()
        while not load.is_complete:
            after = load.chunks[-1].end if load.chunks else None
            at, end = selection.begin(after, step, start)
            if selection.description != description:
                why = f"{self.target.name}: the table was altered while it was loaded, so the load begins again"
                if load.chunks:
                    raise LoadOutdatedError(why, start.again)
                description = selection.description
                self._check(description, start)
            chunks = (*load.chunks, Chunk(end, at))
            done = replace(load, chunks=chunks, until=max(int(c.seen) for c in chunks) if end is None else 0)
            done = done if asked is None else asked.load(at, 0, at)
            identity = (self.name, *description.key) if description.key and not self.target.identity_full else ()
            number = 0
            for documents, is_last in selection.rows(after, end, [] if asked is None else [asked.condition]):
                yield MysqlBatch(
                    loaded_events(f"load of {self.name}", description, documents, number),
                    BatchEnd.ANYWHERE if is_last else BatchEnd.WITHIN_TRANSACTION,
                    number > 0,
                    replace(start, load=done if is_last else load, identity=identity),
                )
                number += len(documents)
            load = done

    def _step(self) -> int:
        """Rows of a chunk."""
        rows, width = self.server.query(
            "SELECT table_rows, avg_row_length FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            *self.name.split(".", 1),
        )[0]
        return chunk_rows(self.server.source.chunk_bytes, float(width) if rows and width else 100.0, MAX_CHUNK_ROWS)

    def _check(self, description: MysqlTable, start: MysqlPosition) -> None:
        target = self.target
        if not target.identity_full:
            start.check_key(self.name, description.key)
        if not (description.key or target.key or target.identity_full):
            raise SourceError(
                f"{self.name} has no primary key, so it is not known which rows its updates and deletes mean: "
                f"ALTER TABLE {self.name} ADD PRIMARY KEY (...), or set identity: full (the whole row), or key: [...] in the config"
            )
        for name, kind in refused(description).items():
            is_read = name not in target.exclude and (not target.include or name in target.include)
            if is_read:
                raise SourceError(
                    f"column {name} of {self.name} is of type {kind}, which cannot be read from the binary log: exclude: [{name}] in "
                    "the config, or keep a copy in a column of another type (such as ST_AsText of a geometry, CHAR(36) of a UUID, "
                    "utf8mb4 for other character sets)"
                )

    def _ranges(self, description: MysqlTable) -> tuple[tuple[str, ...], Load]:
        """(columns of the key, the load before its first chunk) by ranges of the key, if the mirror identifies rows by the same columns."""
        names = divided_by(self.target, description.key)
        if not names:
            return (), Load()
        if len(names) == 1:
            (name,) = names
            kind = next(column.type for column in description.columns if column.name == name)
            if kind in INTEGER_BYTES or kind in {f"{k} unsigned" for k in INTEGER_BYTES if k != "bigint"}:
                return (name,), Load(column=names[name])
        key = self.server.ordered_key(self.name)
        return tuple(name for name, _ in key), Load(key=tuple(KeyColumn(names[name], value) for name, value in key))


def refused(table: MysqlTable) -> dict[str, str]:
    """Types of the columns that cannot be read, by name."""
    return {column.name: column.type for column in table.columns if not column.is_readable}


def _selected(column: MysqlColumn) -> str:
    """An expression whose text is exact, and the same as that of the log."""
    name = quoted(column.name)
    match column.stored:
        case stored.SIGNED | stored.UNSIGNED | stored.BIT | stored.BOOLEAN | stored.YEAR:
            return f"{name} + 0"
        case stored.FLOAT:
            return f"{name} * 1e0"
        case stored.BYTES:
            return f"HEX({name})"
        case stored.TIMESTAMP:
            return f"CONCAT({name}, '+00')"
        case stored.REFUSED:
            return "NULL"
    return name


def _text_of(column: str, value: str) -> str:
    """An expression for the text of a key's column, from which `value` makes the same value again."""
    if value == "UNHEX({})":
        return f"HEX({column})"
    return column if value == "{}" else f"CAST({column} AS CHAR CHARACTER SET utf8mb4)"


class _Selection:
    """A connection that selects chunks of a table. Mutable: each chunk has a transaction, and the table's description in it."""

    def __init__(
        self, server: Server, name: str, columns: Sequence[str], values: Sequence[str], limit_bytes: int
    ) -> None:
        """`columns` are those of the key, if any, and `values` their expressions for a text; one for numbers."""
        self.description = MysqlTable(name, ())
        self._server, self._name, self._limit_bytes = server, name, limit_bytes
        self._key, self._values = tuple(map(quoted, columns)), values
        self._table = ".".join(map(quoted, name.split(".", 1)))
        self._connection: Any = connect(server.source)

    def close(self) -> None:
        """Close the connection, which may have more to send."""
        if self._connection.open:
            self._connection._force_close()  # noqa: SLF001 - the server may have more to send

    def begin(self, after: End, step: int, start: MysqlPosition) -> tuple[int, End]:
        """Begin the chunk after a key: (its place in the log, its end, None if it has all other rows).

        It sees all transactions before the position `start`.

        Raises:
            SourceError: the server cannot tell the place.
        """
        with reported(f"{self._name} could not be loaded"):
            at = self._snapshot(start) if self._server.is_mariadb else self._locked_snapshot()
            self.description = self._server.describe(self._name, self._connection)
            if not self._key:
                return at, None
            where = "" if after is None else f"WHERE {not_before(self._key, self._literals(after))} "
            texts = ", ".join(map(_text_of, self._key, self._values))
            order = ", ".join(self._key)
            found = rows_of(
                self._connection, f"SELECT {texts} FROM {self._table} {where}ORDER BY {order} LIMIT 1 OFFSET {step}"
            )
            if not found:
                return at, None
            return at, int(found[0][0]) if self._values == ("{}",) else tuple(map(str, found[0]))

    def _literals(self, end: int | tuple[str, ...]) -> list[str]:
        """The values of a key in SQL."""
        if isinstance(end, int):
            return [str(end)]
        return [text_value(value, text) for value, text in zip(self._values, end, strict=True)]

    def _snapshot(self, start: MysqlPosition) -> int:
        """Begin a transaction; return its place, which MariaDB tells.

        Rows of transactions that are prepared (XA) are in the log before it, and invisible to it. Others are in the log shortly
        before they are visible: the place may be before one to which the log was written.
        """
        for remaining in reversed(range(LOCK_TRIES)):
            rows_of(self._connection, BEGIN)
            at = self._visible()
            prepared = self._server.query("XA RECOVER")
            if not prepared and (at >= start.at or self._server.gtid_at(start.base, at) == start.gtid):
                break
            if not remaining:
                raise SourceError(
                    f"{self._name} could not be loaded, as "
                    + (
                        "a transaction in two phases has been prepared for long: end what XA RECOVER shows with XA COMMIT or XA ROLLBACK"
                        if prepared
                        else f"transactions that are in the binary log up to {start.gtid} cannot be seen in tables yet: run it again"
                    )
                )
            rows_of(self._connection, "ROLLBACK")
            time.sleep(LOCK_SECONDS)
        return at

    def _visible(self) -> int:
        """The place of the transaction."""
        status = {str(k).lower(): v for k, v in rows_of(self._connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
        if not status.get("binlog_snapshot_file"):
            raise SourceError(
                "the server does not tell the place of a transaction in its binary log (binlog_snapshot_file)"
            )
        return place(log_number(str(status["binlog_snapshot_file"])), int(status["binlog_snapshot_position"]))

    def _locked_snapshot(self) -> int:
        """Begin a transaction while nobody writes to the table; return its place.

        While the lock is held, all transactions that wrote to the table are committed and in the log. It is held for three
        statements. New writers wait behind a request for it, so that waits for running ones only for a short time at once.
        """
        import pymysql

        with closing(connect(self._server.source)) as lock:
            rows_of(lock, f"SET lock_wait_timeout = {LOCK_SECONDS}")
            for remaining in reversed(range(LOCK_TRIES)):
                try:
                    rows_of(lock, f"LOCK TABLES {self._table} READ")
                    break
                except pymysql.OperationalError as error:
                    if error.args[0] != LOCK_TIMEOUT or not remaining:
                        raise
                    time.sleep(LOCK_SECONDS)
            rows_of(self._connection, BEGIN)
            return self._server.written()[1]

    def rows(self, after: End, end: End, only: Sequence[str]) -> Iterator[tuple[pa.BinaryArray, bool]]:
        """(rows as the server sends them, whether they are the last) of the keys from `after` to before `end`, if all of `only` is true.

        Raises:
            SourceError: the rows cannot be read.
        """
        conditions = [*only]
        conditions += [f"({not_before(self._key, self._literals(after))})"] if after is not None else []
        conditions += [f"({before(self._key, self._literals(end))})"] if end is not None else []
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        names = ", ".join(map(_selected, self.description.columns))
        with reported(f"{self._name} could not be loaded"):
            self._connection._execute_command(COM_QUERY, f"SELECT {names} FROM {self._table}{where}")  # noqa: SLF001
            first = self._connection._read_packet()  # noqa: SLF001 - rows are read in blocks, not one by one
            count = first.read_length_encoded_integer()
            for _ in range(count + 1):  # descriptions of columns, and their end
                self._connection._read_packet()  # noqa: SLF001
            held: list[pa.BinaryArray] = []
            size = 0
            for block in self._blocks():
                held.append(block)
                size += block.nbytes
                if size >= self._limit_bytes:
                    yield pa.concat_arrays(held), False
                    held, size = [], 0
            # While the rows are committed, no statement that alters the table should wait for this transaction.
            rows_of(self._connection, "ROLLBACK")
            yield pa.concat_arrays(held) if held else pa.array([], pa.binary()), True

    def _blocks(self) -> Iterator[pa.BinaryArray]:
        """Rows, each with the header of its packet, as the server sends them."""
        source = self._connection._rfile  # noqa: SLF001
        places = np.zeros(MAX_PLACES, np.int64)
        data = b""
        while True:
            array = np.frombuffer(data, np.uint8)
            count = int(stored.frame(array, 0, len(data), places))
            rest = int(places[count])
            if count:
                offsets = np.append(places[:count] - 4, rest).astype(np.int32)
                yield pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
            is_special = places[-1] == 1
            data = data[rest:]
            if is_special:
                if data[:3] != b"\xff\xff\xff":
                    self._finish(data)
                    return
                row, data = self._large(data)
                yield pa.array([row], pa.binary())
            elif count < MAX_PLACES - 2:
                more = source.read1(READ_BYTES)
                if not more:
                    raise OSError("the server closed the connection")
                data += more

    def _large(self, data: bytes) -> tuple[bytes, bytes]:
        """(a row that takes several packets, what follows it)."""
        row = [b"\0\0\0\0"]
        while True:
            data = self._at_least(4, data)
            size = int.from_bytes(data[:3], "little")
            data = self._at_least(4 + size, data)
            row.append(data[4 : 4 + size])
            data = data[4 + size :]
            if size < FULL_PACKET:
                return b"".join(row), data

    def _at_least(self, size: int, data: bytes) -> bytes:
        """What was read, and what is missing to so many bytes."""
        if len(data) < size:
            data += self._connection._rfile.read(size - len(data))  # noqa: SLF001
        if len(data) < size:
            raise OSError("the server closed the connection")
        return data

    def _finish(self, data: bytes) -> None:
        """See that the packet after the rows is their end, and the last.

        Raises:
            SourceError: it is an error.
        """
        size = int.from_bytes(data[:3], "little")
        if data[4] == 0xFF:
            text = data[13 : 4 + size].decode("utf-8", "replace")
            raise SourceError(f"{self._name} could not be loaded: {text}; the next run continues the load")
        if len(data) != 4 + size:
            raise SourceError(f"{self._name} could not be loaded: the server sent more than its rows")
