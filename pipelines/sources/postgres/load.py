"""Loads what exists in a table: in chunks, each as a transaction of its own sees it, copied as text.

Chunks are ranges of an integer key where there is one: such a load continues after an interruption, and the key of a change
tells which chunk it belongs to. Other tables are read within one transaction, by ranges of row addresses; their load begins
again after an interruption.
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
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.decode.batches import BatchEnd, ChangeBatch, RawEvents
from pipelines.decode.feed import TableFeed
from pipelines.errors import SourceError
from pipelines.formats.pgoutput import ROWS, SourceTable, described
from pipelines.sources.live import LoadOutdatedError
from pipelines.sources.postgres.position import Chunk, Load, PostgresPosition, Visibility, lsn_of
from pipelines.sources.postgres.server import Publication, PublishedTable, Server, connect, reported
from scan_core import Mask

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
    end: int | None = None


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
        column = self._range_column(description)
        name = None if column is None else self.target.target_name(column)
        load = Load(column=name)
        if known is not None and known.load is not None and known.load.chunks:
            load = known.load
            if name is None or load.column != name:
                why = f"{self.target.name}: the load was interrupted and begins again"
                raise LoadOutdatedError(why, replace(known, load=Load()).to_json())
        self.server.wait_for_running(WAIT_SECONDS)
        ranges = self._by_address() if column is None else self._by_key(description, column, load)
        yield from self._decodable(description, load, ranges)

    def _check_identity(self, description: SourceTable) -> None:
        name, identity = self.published.name, self.server.identity(self.published)
        is_known = identity in "fi" or (identity == "d" and description.key)
        if is_known or not self.publication.operations & {"update", "delete"}:
            return
        why = "REPLICA IDENTITY NOTHING" if identity == "n" else "no primary key"
        raise SourceError(
            f"{name} has {why}, so PostgreSQL refuses its updates and deletes while it is published. Give it one of: "
            f"ALTER TABLE {name} ADD PRIMARY KEY (...); ALTER TABLE {name} REPLICA IDENTITY USING INDEX ...; "
            f"ALTER TABLE {name} REPLICA IDENTITY FULL, with identity: full in the config"
        )

    def _range_column(self, description: SourceTable) -> str | None:
        """The only column of the key, if it is an integer by which the mirror identifies rows, too."""
        if len(description.key) != 1 or self.target.identity_full:
            return None
        (name,) = description.key
        kind = next(column.type for column in description.columns if column.name == name)
        is_key = self.target.key in ((), (self.target.target_name(name),))
        return name if kind in _INTEGERS and is_key and name not in {*self.target.cast, *self.target.types} else None

    def _by_key(self, description: SourceTable, column: str, done: Load) -> Iterator[_Range]:
        relation, key = f"{_quoted(self.published.schema)}.{_quoted(self.published.table)}", _quoted(column)
        size, rows = self.server.query(
            "SELECT sum(pg_relation_size(oid)), sum(greatest(reltuples, 0)) FROM pg_class "
            "WHERE oid = %s OR oid IN (SELECT relid FROM pg_partition_tree(%s))",
            description.oid,
            description.oid,
        )[0]
        width = float(size) / float(rows) if rows else 100.0
        step = int(min(max(self.server.source.chunk_bytes / max(width, 1.0), MIN_CHUNK_ROWS), MAX_CHUNK_ROWS))
        begin = done.chunks[-1].end if done.chunks else None
        while True:
            lower = "" if begin is None else f"{key} >= {begin}"
            where = f" WHERE {lower}" if lower else ""
            end = self.server.value(f"SELECT {key} FROM {relation}{where} ORDER BY {key} OFFSET {step} LIMIT 1")
            upper = "" if end is None else f"{key} < {end}"
            yield _Range(relation, " AND ".join(filter(None, (lower, upper))), end)
            if end is None:
                return
            begin = end

    def _by_address(self) -> Iterator[_Range]:
        leaves = self.server.query(
            "SELECT n.nspname, c.relname, c.relkind::text, pg_relation_size(c.oid) / current_setting('block_size')::int "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, "
            "(SELECT to_regclass(format('%%I.%%I', %s::text, %s::text)) AS oid) root "
            "WHERE (c.oid = root.oid OR c.oid IN (SELECT relid FROM pg_partition_tree(root.oid))) AND c.relkind <> 'p' "
            "ORDER BY 1, 2",
            self.published.schema,
            self.published.table,
        )
        for schema, name, kind, pages in leaves:
            relation = f"ONLY {_quoted(schema)}.{_quoted(name)}"
            step = max(self.server.source.chunk_bytes // PAGE_BYTES, 1)
            borders = [*range(step, int(pages), step)] if kind == "r" else []
            for begin, end in zip([0, *borders], [*borders, None], strict=True):
                lower = f"ctid >= '({begin},0)'" if begin else ""
                upper = "" if end is None else f"ctid < '({end},0)'"
                yield _Range(relation, " AND ".join(filter(None, (lower, upper))))
        if not leaves:  # a partitioned table without partitions
            yield _Range(f"{_quoted(self.published.schema)}.{_quoted(self.published.table)}", "")

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
                after = replace(
                    load, chunks=(*load.chunks, chunk) if load.column is not None else (chunk,), until=until
                )
            count = len(block.lines) + 1
            raw = RawEvents(
                source_file=pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), place),
                source_offset=pa.array(np.arange(number, number + count, dtype=np.int64)),
                documents=pa.array([header, *block.lines], pa.binary()),
                ingested_at=datetime.now(UTC),
            )
            return Part(raw, BatchEnd.ANYWHERE if block.is_last else BatchEnd.WITHIN_TRANSACTION, continues, after)

        # Each block waits for the next one: only the last completes the load.
        for block in read_ahead(partial(self._copy, description, ranges, in_one_transaction=load.column is None)):
            if held is not None:
                done = part(held, until=0)
                load, number, continues = done.load, number + len(held.lines), not held.is_last
                yield done
            held = block
        if held is None:
            raise SourceError(f"{self.published.name} was not loaded: nothing was read")
        # Every transaction that any chunk sees has committed before this position.
        yield part(held, until=lsn_of(self.server.value("SELECT pg_current_wal_insert_lsn()::text")))

    def _copy(self, description: SourceTable, ranges: Iterator[_Range], put: _Put, *, in_one_transaction: bool) -> None:
        """Read ranges, all in one transaction or each in one of its own."""
        names = ", ".join(_quoted(column.name) for column in description.columns)
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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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


def without_loaded(
    changes: ChangeBatch, position: PostgresPosition, lsn: NDArray[np.int64], xid: NDArray[np.int64]
) -> ChangeBatch:
    """Changes without those that the load of their rows contains; of a changed key, the part that it does not.

    Args:
        changes: changes of the table.
        position: position of the table, with its load.
        lsn: log position of the transaction of each change.
        xid: identifier of the transaction of each change.

    Raises:
        LoadOutdatedError: the table was truncated between chunks.
    """
    load = position.load
    if load is None or not load.is_complete:
        return changes
    table = changes.table
    ops = np.asarray(table.column("op").combine_chunks().cast(pa.binary()).to_numpy(zero_copy_only=False))
    is_truncate = ops == b"t"
    doubtful = lsn < load.until
    seen_by = np.stack([chunk.visible.sees(xid) for chunk in load.chunks]) & doubtful
    if (is_truncate & seen_by.any(axis=0) & ~seen_by.all(axis=0)).any():
        why = "the table was truncated while it was loaded, so the load begins again"
        raise LoadOutdatedError(why, replace(position, load=Load(column=load.column)).to_json())
    old = seen_by[_chunk_of(table.column("key"), load), np.arange(len(xid))]
    new = old
    is_update = ops == b"u"
    if load.column is not None and is_update.any():
        new = np.where(is_update, seen_by[_chunk_of(table.column("after"), load), np.arange(len(xid))], old)
    old = np.where(is_truncate, seen_by.all(axis=0), old)
    new = np.where(is_truncate, old, new)
    dropped = old & new
    if not (old != new).any():
        return changes if not dropped.any() else replace(changes, table=table.filter(pa.array(~dropped)))
    kept = _split_updates(table, removed=~old & new, created=old & ~new)
    return replace(changes, table=kept.filter(pa.array(~dropped)))


def _chunk_of(rows: pa.ChunkedArray, load: Load) -> NDArray[np.int64]:
    """The chunk that contains the key of each row; the first where there is none."""
    if load.column is None or len(load.chunks) == 1:
        return np.zeros(len(rows), np.int64)
    array = rows.combine_chunks()
    keys = np.asarray(array.field(load.column).cast(pa.int64()).fill_null(0))
    ends = np.array([chunk.end for chunk in load.chunks[:-1]], np.int64)
    return np.searchsorted(ends, keys, side="right")


def _split_updates(table: pa.Table, *, removed: Mask, created: Mask) -> pa.Table:
    """Updates of a key between chunks: removals of the old key, creations of the new one."""
    schema = table.schema
    op = pc.if_else(pa.array(removed), "d", table.column("op").combine_chunks())
    key_type = schema.field("key").type
    after = table.column("after").combine_chunks()
    new_key = pa.StructArray.from_arrays([after.field(f.name) for f in key_type], fields=list(key_type))
    key = pc.if_else(pa.array(created), new_key, table.column("key").combine_chunks())
    nothing = pa.scalar(None, schema.field("before").type)
    before = pc.if_else(pa.array(created), nothing, table.column("before").combine_chunks())
    after = pc.if_else(pa.array(removed), nothing, after)
    columns = {"op": op, "key": key, "before": before, "after": after}
    return pa.Table.from_arrays([columns.get(f.name, table.column(f.name)) for f in schema], schema=schema)
