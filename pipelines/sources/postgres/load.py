"""Loads what exists in a table: in chunks, each as a transaction of its own sees it, copied as text.

Chunks are ranges of a key where there is one: such a load continues after an interruption, and the key of a change tells which
chunk it belongs to. Other tables are read within one transaction, by ranges of row addresses; their load begins again after an
interruption. Addresses could not be the borders of chunks of several transactions: an update moves a row to another address, so
that no chunk has it, and a change that does not send all of its values would find no row to take them from.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Full, Queue
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nevermore.pipelines.decode.batches import BatchEnd
from nevermore.pipelines.decode.feed import TableFeed
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.pgoutput import SourceTable
from nevermore.pipelines.sources.live import AskedRows, KeyRanges, LiveBatch, chunk_rows, divided_by, loaded_events
from nevermore.pipelines.sources.postgres.position import PostgresPosition, Visibility
from nevermore.pipelines.sources.postgres.server import (
    Publication,
    PublishedTable,
    Server,
    connect,
    in_quotes,
    reported,
)
from nevermore.pipelines.sources.table_position import Chunk, End, KeyColumn, Load
from nevermore.scan_core import Mask

MAX_CHUNK_ROWS = 2_000_000
WAIT_SECONDS = 600.0
"""How long a load waits for transactions that run when it begins."""
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
SEES_NOTHING = "1:1:"
"""See `Visibility`: identifiers of transactions begin with 3."""


@dataclass(frozen=True)
class PostgresBatch(LiveBatch):
    """See `LiveBatch`.

    Attributes:
        xid: identifiers of the transactions of the changes.
        shapes: shapes of the tables when the round began, by `member`.
    """

    position: PostgresPosition
    xid: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    shapes: Mapping[str, str] = field(default_factory=dict)

    def reached(self, position: PostgresPosition, claims: Mapping[str, str]) -> PostgresPosition:
        """See `LiveBatch`."""
        shape = position.shaped(self.shapes.get(position.member or "", ""))
        return position.reaching(self.position.at, claims, timeline=self.position.timeline, shape=shape)

    def seen_by(self, load: Load, transactions: NDArray[np.int64]) -> Mask:
        """See `LiveBatch`."""
        return np.stack([Visibility.parse(str(chunk.seen)).sees(self.xid[transactions]) for chunk in load.chunks])

    def texts_of(self, values: pa.Array) -> list[str]:
        """See `LiveBatch`."""
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if pa.types.is_fixed_size_binary(values.type):  # uuid
            return [(value or bytes(16)).hex() for value in values.to_pylist()]
        if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            return [f"\\x{(value or b'').hex()}" for value in values.to_pylist()]
        texts: list[str] = values.cast(pa.string()).to_pylist()
        return texts


@dataclass(frozen=True)
class _Range:
    """A part of a table: a condition for its rows, the end of its keys, and whether it is the last one."""

    relation: str
    condition: str
    end: End
    is_last: bool


@dataclass(frozen=True)
class _Block:
    """Lines of a range, and the transactions that its own sees; `is_last` ends the range."""

    lines: list[bytes]
    range: _Range
    visible: str
    is_last: bool


_Put = Callable[[_Block], None]


@dataclass(frozen=True)
class TableLoad:
    """A load of one table.

    Attributes:
        server: where the table is.
        publication: what is sent of it.
        published: its entry in the publication.
        target: the mirror.
        limit_bytes: size of a batch.
        ranges: the keys to load; all of them without any.
    """

    server: Server
    publication: Publication
    published: PublishedTable
    target: TableFeed
    limit_bytes: int
    ranges: KeyRanges = ()

    def parts(self, start: PostgresPosition) -> Iterator[PostgresBatch]:
        """Read the rows that the load at this position of the table has not read yet.

        Raises:
            LoadOutdatedError: the earlier load cannot be continued.
            SourceError: updates and deletes of the table would not tell which row they mean.
        """
        description = self.server.describe(self.published)
        self._check_identity(description)
        load = start.resumed(self._begun(description), self.target.name)
        self.server.wait_for_running(WAIT_SECONDS)
        asked = self._asked(description) if self.ranges else None
        condition = "" if asked is None else asked.condition
        whole = _Range(self.server.relation(self.published), condition, None, is_last=True)
        ranges = self._by_key(description, load) if load.is_ranged and asked is None else [whole]
        title = f"load of {self.published.name} in {self.server.source.slot}"
        continues, number = False, 0
        for block in read_ahead(partial(self._copy, description, ranges)):
            if block.is_last:
                chunk = Chunk(block.range.end, block.visible)
                # Every transaction that any chunk sees has committed before this position.
                until = self.server.inserted if block.range.is_last else 0
                load = replace(load, chunks=(*load.chunks, chunk), until=until)
                if asked is not None:
                    load = asked.load(block.visible, SEES_NOTHING, until)
            raw = loaded_events(title, description, pa.array(block.lines, pa.binary()), number)
            end = BatchEnd.ANYWHERE if block.is_last else BatchEnd.WITHIN_TRANSACTION
            yield PostgresBatch(raw, end, continues, replace(start, load=load))
            continues, number = not block.is_last, number + len(block.lines)

    def _check_identity(self, description: SourceTable) -> None:
        name, identity = self.published.name, self.server.identity(self.published)
        sent = {column.name for column in description.columns}
        if unsent := [column for column in description.key if column not in sent]:
            raise SourceError(
                f"{name} is identified by {', '.join(unsent)}, which is not sent: it is generated, or not among the columns of the "
                "publication. Choose other columns (ALTER PUBLICATION ... SET TABLE), or another identity (ALTER TABLE "
                f"{self.published.sql_name} REPLICA IDENTITY USING INDEX ...)"
            )
        is_known = identity in "fi" or (identity == "d" and description.key)
        if is_known or not self.publication.operations & {"update", "delete"}:
            return
        why = "REPLICA IDENTITY NOTHING" if identity == "n" else "no primary key"
        raise SourceError(
            f"{name} has {why}, so PostgreSQL refuses its updates and deletes while it is published. Give it one of: "
            f"ALTER TABLE {self.published.sql_name} ADD PRIMARY KEY (...); ALTER TABLE {self.published.sql_name} REPLICA IDENTITY USING INDEX ...; "
            f"ALTER TABLE {self.published.sql_name} REPLICA IDENTITY FULL, with identity: full in the config"
        )

    def _begun(self, description: SourceTable) -> Load:
        """The load before its first chunk: by ranges of the key, if the mirror identifies rows by the same columns."""
        names = divided_by(self.target, description.key)
        key = self.server.ordered_key(description.oid) if names else ()
        if len(key) == 1 and key[0][1] in _INTEGERS:
            return Load(column=names[key[0][0]])
        return Load(key=tuple(KeyColumn(names[name], kind, collation) for name, kind, collation in key))

    def _asked(self, description: SourceTable) -> AskedRows:
        key = {name: in_quotes(name) for name, _, _ in self.server.ordered_key(description.oid)}
        return AskedRows.of(self.target, key, description.declared.types, self.ranges)

    def _by_key(self, description: SourceTable, done: Load) -> Iterator[_Range]:
        names = [in_quotes(name) for name, _, _ in self.server.ordered_key(description.oid)]
        key = ", ".join(names)
        ends = key if done.column is not None else ", ".join(f"{name}::text" for name in names)
        size, rows = self.server.query(
            "SELECT sum(pg_relation_size(oid)), sum(greatest(reltuples, 0)) FROM pg_class "
            "WHERE oid = %s OR oid IN (SELECT relid FROM pg_partition_tree(%s))",
            description.oid,
            description.oid,
        )[0]
        relation = self.server.relation(self.published)
        width = float(size) / float(rows) if rows else 100.0
        step = chunk_rows(self.server.source.chunk_bytes, width, MAX_CHUNK_ROWS)
        begin = done.chunks[-1].end if done.chunks else None
        while True:
            lower = "" if begin is None else f"({key}) >= ({_literals(done, begin)})"
            where = f" WHERE {lower}" if lower else ""
            found = self.server.query(f"SELECT {ends} FROM {relation}{where} ORDER BY {key} OFFSET {step} LIMIT 1")
            end = None if not found else found[0][0] if done.column is not None else tuple(found[0])
            upper = "" if end is None else f"({key}) < ({_literals(done, end)})"
            yield _Range(relation, " AND ".join(filter(None, (lower, upper))), end, is_last=end is None)
            if end is None:
                return
            begin = end

    def _copy(self, description: SourceTable, ranges: Iterable[_Range], put: _Put) -> None:
        """Read ranges, each in a transaction of its own."""
        names = ", ".join(in_quotes(column.name) for column in description.columns)
        connection: Any = connect(self.server.source)
        try:
            with reported(f"{self.published.name} could not be loaded"), connection.cursor() as cursor:
                for part in ranges:
                    cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    cursor.execute("SELECT pg_current_snapshot()::text")
                    visible = str(cursor.fetchone()[0])
                    condition = " AND ".join(filter(None, (part.condition, self.published.condition)))
                    where = f" WHERE {condition}" if condition else ""
                    sink = _Sink(self.limit_bytes, part, visible, put)
                    cursor.copy_expert(f"COPY (SELECT {names} FROM {part.relation}{where}) TO STDOUT", sink)
                    cursor.execute("ROLLBACK")
                    put(_Block(sink.lines, part, visible, is_last=True))
        finally:
            connection.close()


def _literals(load: Load, end: int | tuple[str, ...]) -> str:
    """The values of a key in SQL."""
    if isinstance(end, int):
        return str(end)
    texts = ("E'" + text.replace("\\", "\\\\").replace("'", "''") + "'" for text in end)
    return ", ".join(f"{text}::{column.sql}" for text, column in zip(texts, load.key, strict=True))


class _Sink:
    """Receives lines from COPY; hands them on in blocks."""

    def __init__(self, limit_bytes: int, part: _Range, visible: str, put: _Put) -> None:
        self.lines: list[bytes] = []
        self._size = 0
        self._limit_bytes = limit_bytes
        self._part, self._visible, self._put = part, visible, put

    def write(self, line: bytes) -> None:
        """Take a line."""
        self.lines.append(line)
        self._size += len(line)
        if self._size >= self._limit_bytes:
            self._put(_Block(self.lines, self._part, self._visible, is_last=False))
            self.lines, self._size = [], 0


class _StoppedError(Exception):
    """The reader of the blocks has gone."""


def read_ahead(read: Callable[[_Put], None]) -> Iterator[_Block]:
    """Blocks that `read` puts, in a thread that reads the next one while the last is decoded and written."""
    blocks: Queue[_Block | Exception | None] = Queue(1)
    stop = threading.Event()

    def put(item: _Block | Exception | None) -> None:
        while not stop.is_set():
            with suppress(Full):
                blocks.put(item, timeout=0.2)
                return
        raise _StoppedError

    def run() -> None:
        with suppress(_StoppedError):
            try:
                read(put)
            except _StoppedError:
                raise
            except Exception as error:  # noqa: BLE001 - raised again by the reader of the queue
                put(error)
            put(None)

    thread = threading.Thread(target=run, name="postgres-load", daemon=True)
    thread.start()
    try:
        while (item := blocks.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()
