"""Loads what exists in a table: in chunks, each as a transaction of its own sees it, copied as text.

Chunks are ranges of a key where there is one: such a load continues after an interruption, and the key of a change tells which
chunk it belongs to. Other tables are read within one transaction, by ranges of row addresses; their load begins again after an
interruption. Addresses could not be the borders of chunks of several transactions: an update moves a row to another address, so
that no chunk has it, and a change that does not send all of its values would find no row to take them from.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from queue import Full, Queue
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nevermore.pipelines.decode.batches import BatchEnd, ChangeBatch, RawEvents
from nevermore.pipelines.decode.feed import TableFeed
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.pgoutput import ROWS, SourceTable, described
from nevermore.pipelines.sources.live import LoadOutdatedError, split_updates
from nevermore.pipelines.sources.postgres.position import Chunk, KeyColumn, Load, PostgresPosition, Visibility
from nevermore.pipelines.sources.postgres.server import (
    Publication,
    PublishedTable,
    Server,
    connect,
    in_quotes,
    reported,
)
from nevermore.scan_core import Mask

MIN_CHUNK_ROWS = 1_000
MAX_CHUNK_ROWS = 2_000_000
PAGE_BYTES = 8_192
WAIT_SECONDS = 600.0
"""How long a load waits for transactions that run when it begins."""
_INTEGERS = frozenset({"smallint", "integer", "bigint"})


@dataclass(frozen=True)
class Part:
    """Rows of a table, with the state of its load once they are committed; `end` tells whether more of a chunk follows."""

    raw: RawEvents
    end: BatchEnd
    continues: bool
    load: Load


@dataclass(frozen=True)
class _Range:
    """A part of a table: a condition for its rows, and the end of its keys."""

    relation: str
    condition: str
    end: int | tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Block:
    """Lines of a range; `is_last` ends the range."""

    lines: list[bytes]
    range: _Range
    visible: Visibility
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
    """

    server: Server
    publication: Publication
    published: PublishedTable
    target: TableFeed
    limit_bytes: int

    def parts(self, known: PostgresPosition | None) -> Iterator[Part]:
        """Read the rows that a load has not read yet; `known` is the position of an earlier one.

        Raises:
            LoadOutdatedError: the earlier load cannot be continued.
            SourceError: updates and deletes of the table would not tell which row they mean.
        """
        description = self.server.describe(self.published)
        self._check_identity(description)
        load = self._begun(description)
        if known is not None and known.load is not None and known.load.chunks:
            if not load.is_ranged or known.load.begun_again != load:
                why = f"{self.target.name}: the load was interrupted and begins again"
                raise LoadOutdatedError(why, replace(known, load=Load()).to_json())
            load = known.load
        self.server.wait_for_running(WAIT_SECONDS)
        ranges = self._by_key(description, load) if load.is_ranged else self._by_address()
        yield from self._decodable(description, load, ranges)

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
        if not description.key or self.target.identity_full:
            return Load()
        names = {name: self.target.target_name(name) for name in description.key}
        is_same = not self.target.key or set(self.target.key) == set(names.values())
        if not is_same or {*names, *names.values()} & {*self.target.cast, *self.target.types}:
            return Load()
        key = self.server.ordered_key(description.oid)
        if len(key) == 1 and key[0][1] in _INTEGERS:
            return Load(column=names[key[0][0]])
        return Load(key=tuple(KeyColumn(names[name], kind, collation) for name, kind, collation in key))

    def _by_key(self, description: SourceTable, done: Load) -> Iterator[_Range]:
        names = [in_quotes(name) for name, _, _ in self.server.ordered_key(description.oid)]
        key = ", ".join(names)
        ends = key if done.column is not None else ", ".join(f"{name}::text" for name in names)
        size, rows, is_partitioned = self.server.query(
            "SELECT sum(pg_relation_size(oid)), sum(greatest(reltuples, 0)), bool_or(relkind = 'p') FROM pg_class "
            "WHERE oid = %s OR oid IN (SELECT relid FROM pg_partition_tree(%s))",
            description.oid,
            description.oid,
        )[0]
        # rows of tables that inherit from this one are sent as theirs
        only = "" if is_partitioned else "ONLY "
        relation = f"{only}{self.published.sql_name}"
        width = float(size) / float(rows) if rows else 100.0
        step = int(min(max(self.server.source.chunk_bytes / max(width, 1.0), MIN_CHUNK_ROWS), MAX_CHUNK_ROWS))
        begin = done.chunks[-1].end if done.chunks else None
        while True:
            lower = "" if begin is None else f"({key}) >= ({_literals(done, begin)})"
            where = f" WHERE {lower}" if lower else ""
            found = self.server.query(f"SELECT {ends} FROM {relation}{where} ORDER BY {key} OFFSET {step} LIMIT 1")
            end = None if not found else found[0][0] if done.column is not None else tuple(found[0])
            upper = "" if end is None else f"({key}) < ({_literals(done, end)})"
            yield _Range(relation, " AND ".join(filter(None, (lower, upper))), end)
            if end is None:
                return
            begin = end

    def _by_address(self) -> Iterator[_Range]:
        leaves = self.server.query(
            "SELECT format('%%I.%%I', n.nspname, c.relname), c.relkind::text, pg_relation_size(c.oid) / "
            "current_setting('block_size')::int FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE (c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s))) AND c.relkind <> 'p' ORDER BY 1",
            self.published.oid,
            self.published.oid,
        )
        for name, kind, pages in leaves:
            relation = f"ONLY {name}"
            step = max(self.server.source.chunk_bytes // PAGE_BYTES, 1)
            borders = [*range(step, int(pages), step)] if kind == "r" else []
            for begin, end in zip([0, *borders], [*borders, None], strict=True):
                lower = f"ctid >= '({begin},0)'" if begin else ""
                upper = "" if end is None else f"ctid < '({end},0)'"
                yield _Range(relation, " AND ".join(filter(None, (lower, upper))))
        if not leaves:  # a partitioned table without partitions
            yield _Range(self.published.sql_name, "")

    def _decodable(self, description: SourceTable, load: Load, ranges: Iterator[_Range]) -> Iterator[Part]:
        """Blocks as raw events, with the state of the load after each."""
        header = described([description], ROWS)
        place = pa.array([f"load of {self.published.name} in {self.server.source.slot}"])
        held: _Block | None = None
        continues, number = False, 0

        def part(block: _Block, until: int) -> Part:
            after = load
            if block.is_last:
                chunk = Chunk(block.range.end, block.visible)
                after = replace(load, chunks=(*load.chunks, chunk) if load.is_ranged else (chunk,), until=until)
            count = len(block.lines) + 1
            raw = RawEvents(
                source_file=pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), place),
                source_offset=pa.array(np.arange(number, number + count, dtype=np.int64)),
                documents=pa.array([header, *block.lines], pa.binary()),
                ingested_at=datetime.now(UTC),
            )
            return Part(raw, BatchEnd.ANYWHERE if block.is_last else BatchEnd.WITHIN_TRANSACTION, continues, after)

        # Each block waits for the next one: only the last completes the load.
        for block in read_ahead(partial(self._copy, description, ranges, in_one_transaction=not load.is_ranged)):
            if held is not None:
                done = part(held, until=0)
                load, number, continues = done.load, number + len(held.lines), not held.is_last
                yield done
            held = block
        if held is None:
            raise SourceError(f"{self.published.name} was not loaded: nothing was read")
        # Every transaction that any chunk sees has committed before this position.
        yield part(held, until=self.server.inserted)

    def _copy(self, description: SourceTable, ranges: Iterator[_Range], put: _Put, *, in_one_transaction: bool) -> None:
        """Read ranges, all in one transaction or each in one of its own."""
        names = ", ".join(in_quotes(column.name) for column in description.columns)
        connection: Any = connect(self.server.source)
        visible: Visibility | None = None
        try:
            with reported(f"{self.published.name} could not be loaded"), connection.cursor() as cursor:
                for part in ranges:
                    if visible is None or not in_one_transaction:
                        cursor.execute("ROLLBACK" if visible is not None else "SELECT 1")
                        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                        cursor.execute("SELECT pg_current_snapshot()::text")
                        visible = Visibility.parse(cursor.fetchone()[0])
                    condition = " AND ".join(filter(None, (part.condition, self.published.condition)))
                    where = f" WHERE {condition}" if condition else ""
                    sink = _Sink(self.limit_bytes, part, visible, put)
                    cursor.copy_expert(f"COPY (SELECT {names} FROM {part.relation}{where}) TO STDOUT", sink)
                    put(_Block(sink.lines, part, visible, is_last=True))
        finally:
            connection.close()


def _literals(load: Load, end: int | tuple[str, ...]) -> str:
    """The values of a key in SQL."""
    if isinstance(end, int):
        return str(end)
    texts = ("E'" + text.replace("\\", "\\\\").replace("'", "''") + "'" for text in end)
    return ", ".join(f"{text}::{column.type}" for text, column in zip(texts, load.key, strict=True))


class _Sink:
    """Receives lines from COPY; hands them on in blocks."""

    def __init__(self, limit_bytes: int, part: _Range, visible: Visibility, put: _Put) -> None:
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


PLACED_KEYS = 50_000
"""Keys whose chunks the server tells in one query."""


def without_loaded(
    changes: ChangeBatch, position: PostgresPosition, lsn: NDArray[np.int64], xid: NDArray[np.int64], server: Server
) -> ChangeBatch:
    """Changes that the load does not contain; of an update that moves a row to another chunk, the half that it does not contain.

    Args:
        changes: changes of the table.
        position: position of the table, with its load.
        lsn: log position of the transaction of each change.
        xid: identifier of the transaction of each change.
        server: knows the order of keys that are not integers.

    Raises:
        LoadOutdatedError: the table was truncated between chunks.
        SourceError: the server cannot be asked.
    """
    load = position.load
    if load is None or not load.is_complete:
        return changes
    table = changes.table
    ops = np.asarray(table.column("op").combine_chunks().cast(pa.binary()).to_numpy(zero_copy_only=False))
    is_truncate = ops == b"t"
    doubtful = lsn < load.until
    seen_by = np.stack([chunk.visible.sees(xid) for chunk in load.chunks]) & doubtful
    by_all: Mask = np.logical_and.reduce(seen_by)
    depends: Mask = np.logical_or.reduce(seen_by) & ~by_all
    if (is_truncate & depends).any():
        why = "the table was truncated while it was loaded, so the load begins again"
        raise LoadOutdatedError(why, replace(position, load=load.begun_again).to_json())

    def seen(rows: pa.ChunkedArray, asked: Mask) -> Mask:
        found = by_all.copy()
        places = np.flatnonzero(asked)
        if len(places):
            chunks = _chunks_of(rows.combine_chunks().take(pa.array(places)), load, server)
            found[places] = seen_by[chunks, places]
        return found

    old = seen(table.column("key"), depends)
    is_update = ops == b"u"
    new = np.where(is_update, seen(table.column("after"), depends & is_update), old) if load.is_ranged else old
    dropped = old & new
    if not (old != new).any():
        return changes if not dropped.any() else replace(changes, table=table.filter(pa.array(~dropped)))
    kept = split_updates(table, removed=~old & new, created=old & ~new)
    return replace(changes, table=kept.filter(pa.array(~dropped)))


def _chunks_of(rows: pa.StructArray, load: Load, server: Server) -> NDArray[np.int64]:
    """The chunk that contains the key of each row."""
    if not load.is_ranged or len(load.chunks) == 1:
        return np.zeros(len(rows), np.int64)
    ends = [chunk.end for chunk in load.chunks if chunk.end is not None]
    if load.column is not None:
        keys = np.asarray(rows.field(load.column).cast(pa.int64()))
        return np.searchsorted(np.array(ends, np.int64), keys, side="right")
    types = [(column.type, column.collation) for column in load.key]
    columns = [_texts(rows.field(column.name)) for column in load.key]
    borders = [list(values) for values in zip(*(end for end in ends if isinstance(end, tuple)), strict=True)]
    found: list[int] = []
    for first in range(0, len(rows), PLACED_KEYS):
        found += server.chunks_of(types, [texts[first : first + PLACED_KEYS] for texts in columns], borders)
    return np.array(found, np.int64)


def _texts(values: pa.Array) -> list[str]:
    """Values as PostgreSQL reads them."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_fixed_size_binary(values.type):  # uuid
        return [value.hex() for value in values.to_pylist()]
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return [f"\\x{value.hex()}" for value in values.to_pylist()]
    texts: list[str] = values.cast(pa.string()).to_pylist()
    return texts
