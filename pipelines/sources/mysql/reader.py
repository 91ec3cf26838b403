"""Reads the changes of a MySQL or MariaDB server from its binary log, in batches that know their transactions.

Also examines a server before it is read, for `nevermore doctor`: its settings, rights, binary log and tables.
"""

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from nevermore.pipelines.config.sources import MysqlSource
from nevermore.pipelines.config.tables import TableConfig, read_columns
from nevermore.pipelines.decode.batches import BatchEnd, RawEvents
from nevermore.pipelines.decode.feed import TableFeed
from nevermore.pipelines.errors import PipelineError, SourceError
from nevermore.pipelines.formats.binlog import MysqlTable, event, values_change
from nevermore.pipelines.sources.live import Finding, HashedTable, KeyRanges, LiveSource, Wanted, clock_finding, unfit
from nevermore.pipelines.sources.mysql import log
from nevermore.pipelines.sources.mysql.load import MysqlBatch, TableLoad, refused
from nevermore.pipelines.sources.mysql.log import Effect, LogEvent, LogReader
from nevermore.pipelines.sources.mysql.position import (
    Gtid,
    MariaGtids,
    MysqlGtids,
    MysqlPosition,
    file_name,
    log_number,
    parts_of,
)
from nevermore.pipelines.sources.mysql.server import Server, lost, quoted
from nevermore.pipelines.sources.table_position import LoadOutdatedError
from nevermore.pipelines.wording import counted

_TEXTS = {
    **dict.fromkeys(("bool", "int", "decimal"), "{0} + 0"),
    "string": "CHAR_LENGTH({0}), ':', CONVERT({0} USING utf8mb4)",
    "date": "DATEDIFF({0}, '1970-01-01')",
    "timestamp": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {0})",
    "binary": "LOWER(HEX({0}))",
}
"""See `HashedTable`."""
_logger = logging.getLogger(__name__)
MAX_EVENTS = 200_000
"""Events in a batch: each takes some hundred bytes in addition to its rows."""
_END = re.compile(r"COMMIT\b", re.IGNORECASE)
_UNDONE = re.compile(r"ROLLBACK\b", re.IGNORECASE)
_WITHIN = re.compile(r"(BEGIN|SAVEPOINT|RELEASE|XA)\b", re.IGNORECASE)
_BEGUN = re.compile(r"(BEGIN|XA\s+(?:START|BEGIN))\b", re.IGNORECASE)


@dataclass
class _Pending:
    """Events that were received and not yet returned as a batch."""

    documents: list[bytes] = field(default_factory=list)
    transaction: list[int] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    tables: dict[MysqlTable, int] = field(default_factory=dict)
    begins: list[int] = field(default_factory=list)
    unknown: dict[tuple[int, int], str] = field(default_factory=dict)
    keys: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    size: int = 0

    def add(self, table: MysqlTable, seconds: int, what: bytes, number: int, body: bytes | memoryview = b"") -> None:
        """Add an event of the last transaction; `number` is its number there."""
        self.documents.append(event(self.tables.setdefault(table, len(self.tables)), seconds, what, body))
        self.transaction.append(len(self.begins) - 1)
        self.number.append(number)
        if table.columns:
            self.keys[table.name, table.key] = self.begins[-1]
        self.size += len(body)


class MysqlReader(LiveSource):
    """See `LiveSource`."""

    positions = MysqlPosition

    def __init__(self, source: MysqlSource) -> None:
        self.source = source
        self._server = Server(source)
        self._names: tuple[str, ...] = ()
        self._base = self._uuid = self._identity = ""
        self._start = 0
        self._start_gtid = ""
        self._reached: tuple[int, str] | None = None
        self._verified: set[tuple[int, str]] = set()
        self._moved: dict[str, MysqlPosition] = {}
        """Positions of another server, and where they are in the log of this one."""
        self._described: dict[bytes, MysqlTable] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """See `LiveSource`."""
        self._names = self._server.tables()
        return self._names

    def how_to_add(self, table: str) -> str:
        """See `LiveSource`."""
        return f"let the user of the config see it: GRANT SELECT ON {table} TO the user"

    def begin(self, positions: Mapping[str, str | None]) -> None:
        """See `LiveSource`."""
        self._server.check()
        if self._identity != (identity := self._server.identity()):
            self._verified.clear()
        self._identity, self._uuid = identity, self._server.uuid
        self._base, written = self._server.written()
        self._moved = {}
        texts = [text for text in positions.values() if text is not None]
        self._check(texts, written)
        known = [self._moved.get(text) or MysqlPosition.from_json(text) for text in texts]
        if not known:
            self._start, self._start_gtid = self._now()
        else:
            oldest = min(known, key=lambda position: position.at)
            self._start, self._start_gtid = oldest.at, oldest.gtid

    def _now(self) -> tuple[int, str]:
        """The place after all that is committed now, and its position of global transaction identifiers."""
        if not self._server.is_mariadb:
            quiet = self._server.quiet()
            if quiet is not None:
                self._base, at, gtid = quiet
            else:
                self._base, at = self._server.written()
                gtid = str(log.gtids_at(self._server, self._base, at))
            return at, gtid
        self._base, at = self._server.written()
        found = self._server.gtid_at(self._base, at)
        if found is None:
            raise SourceError(
                "the server does not know its own position in the binary log: is log_bin a folder it can read? If the log has "
                "larger rows than max_allowed_packet allows now, begin a new one: FLUSH BINARY LOGS"
            )
        self._verified.add((at, found))
        return at, found

    def _check(self, texts: Sequence[str], written: int) -> None:
        """Refuse positions that this server's log does not have; find those of a server whose transactions it has.

        Raises:
            SourceError: the log was removed, or this is a server without these transactions.
        """
        positions = {text: MysqlPosition.from_json(text) for text in texts}
        unverified = {text: p for text, p in positions.items() if (p.at, p.gtid) not in self._verified}
        if not unverified:
            return
        files = {log_number(name) for name in self._server.files()}
        for text, position in sorted(unverified.items(), key=lambda item: item[1].at):
            if self._is_here(position, written, files):
                self._verified.add((position.at, position.gtid))
            else:
                self._moved[text] = self._found(position, written, sorted(files))

    def _is_here(self, position: MysqlPosition, written: int, files: Collection[int]) -> bool:
        """Whether the place of a position in this log is the one that was read."""
        at = position.at
        if position.base != self._base or at > written or parts_of(at)[0] not in files:
            return False
        if self._server.is_mariadb:
            return self._server.gtid_at(self._base, at) == position.gtid
        return position.server == self._uuid and MysqlGtids(position.gtid).is_within(self._server.executed())

    def _found(self, position: MysqlPosition, written: int, files: Sequence[int]) -> MysqlPosition:
        """The same position in the log of another server, such as a replica that took over.

        Raises:
            SourceError: this server does not have its transactions yet, or its log has no such place.
        """
        at, of = position.at, f"{position.file}:{parts_of(position.at)[1]}"
        is_same = position.base == self._base if self._server.is_mariadb else position.server == self._uuid
        wanted: Any = MariaGtids(position.gtid) if self._server.is_mariadb else MysqlGtids(position.gtid)
        executed: Any = MariaGtids(self._now()[1]) if self._server.is_mariadb else self._server.executed()
        what = f"the position is {of} of server {position.server or 'unknown'} with gtid {position.gtid or 'none'}"
        if not wanted.is_within(executed):
            raise lost(
                f"this is not the server that was read before, or its log began again: {what}, and this one has gtid {executed}. If "
                "it is a replica that is behind, wait for it; otherwise connect to the former server, as it is not known which "
                "changes are missing",
                position,
            )
        place = log.place_of(self._server, self._base, files, wanted) if position.gtid else None
        if place is None and is_same and at <= written and parts_of(at)[0] not in files:
            raise lost(f"the server has removed {position.file} (binlog_expire_logs_seconds, PURGE)", position)
        if place is None:
            raise lost(
                f"this is not the server that was read before, or its log began again: {what}, and its log has no place with "
                "exactly these transactions before it: they were removed, or are in another order (replica_preserve_commit_order), "
                "or it has some of its own. Connect to the former server; otherwise it is not known which changes are missing",
                position,
            )
        return replace(position, base=self._base, at=place, server=self._uuid)

    def news(self, positions: Collection[str | None]) -> str | None:
        """See `TellsNews`: what any table of the server changed counts, as the log is one for all."""
        base, written = self._server.written()
        where = f"{file_name(base, parts_of(written)[0])}:{parts_of(written)[1]}"
        if not all(self.is_loaded(position) for position in positions):
            return f"rows to load, {where}"
        known = [MysqlPosition.from_json(position) for position in positions if position is not None]
        return where if any((position.base, position.at) != (base, written) for position in known) else None

    def check_table(self, source_table: str, position: str) -> str | None:
        """See `LiveSource`. A table that was dropped and created again is seen in the log; other engines have no moment to load at."""
        MysqlPosition.from_json(position)
        self._server.check_engine(source_table)
        moved = self._moved.get(position)
        if moved is None:
            return None
        if moved.load is not None:
            why = (
                f"{source_table}: this is another server than the one that it was loaded from, so the load begins again"
            )
            raise LoadOutdatedError(why, moved.again)
        self._verified.add((moved.at, moved.gtid))
        return moved.to_json()

    def load(
        self, table: TableFeed, source_table: str, position: str | None, limit_bytes: int, ranges: KeyRanges = ()
    ) -> Iterator[MysqlBatch]:
        """See `LiveSource`."""
        self.interrupt()
        start = self._at(self._start, self._start_gtid) if position is None else MysqlPosition.from_json(position)
        yield from TableLoad(self._server, source_table, table, limit_bytes, ranges).parts(start)

    def hashed(self, table: TableFeed, source_table: str) -> HashedTable:
        """See `LiveSource`."""
        types = self._server.describe(source_table).declared.types
        return HashedTable(
            self._server.query,
            ".".join(map(quoted, source_table.split(".", 1))),
            {table.target_name(name): (quoted(name), kind.arrow) for name, kind in types.items()},
            [table.target_name(name) for name, _ in self._server.ordered_key(source_table)],
            _TEXTS,
            "CAST(CONV(LEFT(MD5({}), 15), 16, 10) AS UNSIGNED)",
            "k DIV {}",
            lambda: self._server.written()[1],
            self._server.identity(),
        )

    def _at(self, place: int, gtid: str) -> MysqlPosition:
        """A position in the log of this server."""
        return MysqlPosition(base=self._base, at=place, gtid=gtid, server=self._uuid)

    def stream(self, positions: Mapping[str, str | None], limit_bytes: int) -> Iterator[MysqlBatch]:
        """See `LiveSource`."""
        known = [MysqlPosition.from_json(text) for text in positions.values() if text is not None]
        target = self._server.written()[1]
        oldest = min(known, key=lambda position: position.at, default=None)
        at, gtid = (self._start, self._start_gtid) if oldest is None else (oldest.at, oldest.gtid)
        if self._reached is not None and self._reached[0] >= at:
            at, gtid = self._reached
        wanted = {name for position in known for name in position.claims.values()}
        reading = _Reading(self._server, self._at(at, gtid), wanted or set(self._names), self._described, limit_bytes)
        try:
            yield from reading.batches(target)
        finally:
            reading.close()
        self._reached = reading.done, reading.gtid
        self._verified.add(self._reached)

    def acknowledge(self, positions: Sequence[str]) -> None:
        """See `LiveSource`. The server removes its log by age and size, whoever has read it."""
        self._verified = {(p.at, p.gtid) for p in map(MysqlPosition.from_json, positions)} & self._verified

    def warnings(self) -> Sequence[str]:
        """See `LiveSource`."""
        files = self._server.files()
        oldest = self._start if self._reached is None else min(self._start, self._reached[0])
        number = parts_of(oldest)[0]
        if number == log_number(files[0]) and len(files) > 1:
            text = (
                f"{file_name(self._base, number)}, which the tables still need, is the oldest log file that the server has, and the next "
                "that it removes: run nevermore ingest more often, or keep more of the log (binlog_expire_logs_seconds)"
            )
            return [text]
        return []

    def restart(self) -> str:
        """See `LiveSource`."""
        self._server.check()
        self._uuid = self._server.uuid
        return self._at(*self._now()).again

    def interrupt(self) -> None:
        """See `LiveSource`."""
        self._reached = None

    def close(self) -> None:
        """See `LiveSource`."""
        self._server.close()


class _Reading:
    """One reading of the log from a place to a later one. Mutable: `done` and `gtid` are after the last complete transaction."""

    def __init__(
        self,
        server: Server,
        start: MysqlPosition,
        wanted: Collection[str],
        known: dict[bytes, MysqlTable],
        limit_bytes: int,
    ) -> None:
        self.done = start.at
        self._server, self._wanted, self._known = server, frozenset(wanted), known
        self._cascades = server.cascades(self._wanted)
        self._cascaded: set[str] = set()
        """Tables that the transaction changed by foreign keys so far."""
        self._changed: set[str] = set()
        """Wanted tables that it changed."""
        self._limit_bytes = limit_bytes
        self._base = start.base
        self._gtids = (MariaGtids if server.is_mariadb else MysqlGtids)(start.gtid)
        self._log = LogReader(server, start.base, start.at)
        self._pending = _Pending()
        self._open: int | None = None
        """Place where the transaction begins that is not complete."""
        self._is_single = False
        """Whether the next statement is all of its transaction."""
        self._next_gtid: Gtid | None = None
        self._changes = 0
        """Events of the transaction so far."""
        self._tables: dict[int, tuple[str, MysqlTable | str] | None] = {}
        """By number, name and description of a table, or why there is none; None for tables that do not matter."""

    @property
    def gtid(self) -> str:
        """The position of global transaction identifiers at `done`."""
        return str(self._gtids)

    def close(self) -> None:
        """Close the connection."""
        self._log.close()

    def batches(self, target: int) -> Iterator[MysqlBatch]:
        """Read up to `target`, at least to the end of the transaction there.

        Raises:
            SourceError: something in the log cannot be applied, or the log ends before.
        """
        continues = False
        is_at_end = self.done >= target
        if not is_at_end:
            for found in self._log.events():
                self._take(found)
                is_at_end = self._open is None and self._log.at >= target
                if self._open is None:
                    self.done = self._log.at
                if is_at_end:
                    break
                if self._pending.size < self._limit_bytes and len(self._pending.documents) < MAX_EVENTS:
                    continue
                if self._open is None:
                    yield self._batch(BatchEnd.TRANSACTION, continues=continues)
                    continues = False
                elif self._pending.begins:
                    yield self._batch(BatchEnd.WITHIN_TRANSACTION, continues=continues)
                    continues = True
        if not is_at_end:
            raise SourceError(
                f"the server ended its binary log at {self._where(self._log.at)}, before {self._where(target)}; the next run continues "
                "where the tables are"
            )
        yield self._batch(BatchEnd.TRANSACTION, continues=continues)

    def _where(self, at: int) -> str:
        number, offset = parts_of(at)
        return f"{file_name(self._base, number)}:{offset}"

    def _take(self, found: LogEvent) -> None:
        kind = found.kind
        if kind in {log.GTID, log.MYSQL_GTID}:
            # MySQL does not say whether a transaction is a single statement: others begin with BEGIN.
            self._is_single = kind == log.MYSQL_GTID or bool(found.body[12] & log.STANDALONE)
            self._begin(found)
            self._next_gtid = log.gtid_in(found)
        elif kind == log.FORMAT and self._open is not None:
            # A file begins within a transaction: the server stopped, and rolled it back when it started again.
            self._stop(self._changed, found, "a transaction without an end, as the server stopped within it")
            self._open = None
        elif kind == log.TABLE_MAP:
            self._describe(found)
        elif kind in log.ROWS or kind == log.PARTIAL_ROWS:
            self._rows(found)
        elif kind == log.XID:
            self._end()
        elif kind in {log.QUERY, log.LOAD_QUERY}:
            self._statement(found)
        elif kind == log.XA_PREPARE:
            if not found.body[0]:
                self._stop(self._changed, found, "a transaction in two phases (XA), which may still be rolled back")
            self._end()
        elif kind in log.WITHOUT_ROWS:
            self._hidden(found)

    def _hidden(self, found: LogEvent) -> None:
        """Changes of any table, which are not visible: all stop."""
        if found.kind in {log.MYSQL_ANONYMOUS, log.MYSQL_TAGGED}:
            self._is_single = True
            self._begin(found)
        self._stop(self._wanted, found, log.WITHOUT_ROWS[found.kind])
        if found.kind == log.MYSQL_COMPRESSED:
            self._end()

    def _begin(self, found: LogEvent) -> None:
        self._open, self._changes, self._tables, self._cascaded, self._changed = found.begin, 0, {}, set(), set()

    def _end(self) -> None:
        if self._next_gtid is not None:
            self._gtids.add(self._next_gtid)
            self._next_gtid = None
        self._open = None

    def _stop(self, names: Collection[str], found: LogEvent, what: str) -> None:
        """Stop tables whose changes are in the log in a form that cannot be applied; all others go on past it."""
        for name in sorted(self._wanted.intersection(names)):
            self._lose(
                name,
                found,
                f"{name}: the binary log has {what} at {self._where(found.begin)}. Load the table again, which begins after it: "
                "nevermore resync TABLE --from-source",
            )

    def _describe(self, found: LogEvent) -> None:
        number, name = log.table_name(found.body)
        self._tables[number] = None
        if name not in self._wanted and name not in self._cascades:
            return
        content = bytes(found.body[6:])
        if content not in self._known:
            try:
                self._known[content] = self._server.without_unreadable(log.described_in(found.body, self._server))
            except log.UndescribedError as error:
                self._tables[number] = name, str(error)
                return
        self._tables[number] = name, self._known[content]

    def _rows(self, found: LogEvent) -> None:
        number, body = log.rows_in(found)
        if number not in self._tables:
            raise SourceError(
                f"rows in the binary log at {self._where(found.begin)} have no description of their table"
            )
        known, what = self._tables[number], log.ROWS.get(found.kind, b"u")
        if known is None:
            return
        name, table = known
        if found.kind == log.PARTIAL_ROWS:
            table = "parts of JSON values in place of rows (binlog_row_value_options)"
        elif isinstance(table, MysqlTable) and not log.has_all_columns(found):
            table = f"rows of {name} without some of their columns (binlog_row_image)"
        if isinstance(table, str):
            self._stop([name], found, table)
        elif name in self._wanted:
            self._changed.add(name)
            self._add(table, found, what, body)
        for cascade in self._cascades.get(name, ()) if what != b"c" else ():
            is_changed = cascade.on_delete if what == b"d" else bool(cascade.columns)
            if what == b"u" and is_changed and isinstance(table, MysqlTable):
                is_changed = values_change(table, body, cascade.columns)
            for child in sorted(cascade.tables - self._cascaded) if is_changed else ():
                self._cascaded.add(child)
                self._changed.add(child)
                self._lose(child, found)

    def _lose(self, name: str, found: LogEvent, why: str = "") -> None:
        """From here on, a table has rows that the log does not have: it stops, if `why` says so, or is loaded again."""
        self._empty(name, found)
        self._pending.unknown[len(self._pending.begins) - 1, self._changes] = why

    def _empty(self, name: str, found: LogEvent) -> None:
        """From here on, a table has no rows. Without columns, the rows before it have other ones: a truncate has no row."""
        self._add(MysqlTable(name, ()), found, b"t")

    def _add(self, table: MysqlTable, found: LogEvent, what: bytes, body: bytes | memoryview = b"") -> None:
        pending = self._pending
        begin = found.begin if self._open is None else self._open
        if not pending.begins or pending.begins[-1] != begin:
            pending.begins.append(begin)
        self._changes += 1
        pending.add(table, found.seconds, what, self._changes, body)

    def _statement(self, found: LogEvent) -> None:
        database, statement = log.statement_in(found)
        text = statement.strip()
        if self._open is not None and self._is_single and _BEGUN.match(text):
            self._is_single = False
            return
        if self._open is not None and not self._is_single:
            if _END.match(text):
                self._end()
                return
            if _UNDONE.match(text):
                self._stop(self._changed, found, "changes that were rolled back afterwards")
                if " TO " not in text.upper():
                    self._end()
                return
            if _WITHIN.match(text):
                return
        effect = log.effect_of(database, text)
        if effect.changes:
            what = f"a statement ({effect.changes} in database {database}) instead of the rows that it changed (binlog_format)"
            if touched := self._touched(effect, database):
                self._stop(touched, found, what)
            else:
                _logger.warning(
                    "the binary log has %s at %s. It names no table that is read; if a trigger changed one, load that again: "
                    "nevermore resync TABLE --from-source",
                    *(what, self._where(found.begin)),
                )
        self._apply(effect, found)
        if self._is_single or self._open is None:
            self._end()

    def _apply(self, effect: Effect, found: LogEvent) -> None:
        gone = [name for name in self._wanted if name.split(".", 1)[0] in effect.databases]
        for name in (*effect.emptied, *gone):
            if name in self._wanted:
                self._empty(name, found)
        linked = {name for table in effect.unlinked for c in self._cascades.get(table, ()) for name in c.tables}
        for name in {*effect.unknown, *effect.unlinked} & self._wanted | linked:
            self._lose(name, found)

    def _touched(self, effect: Effect, database: str) -> Collection[str]:
        """Wanted tables that a statement may have changed: those that it names, and all if it names a view or calls functions."""

        def is_named(name: str) -> bool:
            schema, table = name.lower().split(".", 1)
            return table in effect.named and (schema in effect.named or schema == database.lower())

        if effect.is_call or any(map(is_named, self._server.views())):
            return self._wanted
        children = (c.tables for name, cascades in self._cascades.items() if is_named(name) for c in cascades)
        return frozenset(filter(is_named, self._wanted)).union(*children)

    def _batch(self, end: BatchEnd, *, continues: bool) -> MysqlBatch:
        """All pending events as a batch."""
        pending, self._pending = self._pending, _Pending()
        if end is BatchEnd.WITHIN_TRANSACTION and self._open is not None:
            self._pending.begins.append(self._open)
        names = pa.array(list(map(self._where, pending.begins)), pa.string())
        raw = RawEvents(
            source_file=pa.DictionaryArray.from_arrays(pa.array(pending.transaction, pa.int32()), names),
            source_offset=pa.array(pending.number, pa.int64()),
            documents=pa.array(pending.documents, pa.binary()),
            tables=tuple(pending.tables),
        )
        unknown = {(names[at].as_py(), number): why for (at, number), why in pending.unknown.items()}
        begins = np.array(pending.begins, np.int64)
        position = MysqlPosition(base=self._base, at=self.done, gtid=self.gtid)
        return MysqlBatch(raw, end, continues, position, names, begins, self._server, unknown, pending.keys)


def findings(source: MysqlSource, wanted: Wanted) -> Iterator[Finding]:
    """Look at settings, rights, the log and tables.

    The first failure to connect ends it.
    """
    server = Server(source)
    try:
        yield Finding("connection", "ok", f"{server.title}, database {server.database or 'all'}")
        for name, wrong in server.settings().items():
            yield Finding(name, "ok", "as it must be") if wrong is None else Finding(name, "failed", wrong)
        yield from _log(server)
        tables = server.tables()
        for table, config in sorted(wanted(tables).items()):
            if table in tables:
                yield _table(server, table, config)
            else:
                what = f"the user sees no such table in {server.database or 'any database'}: correct source_table or dsn, or GRANT SELECT ON it"
                yield Finding(f"table {table}", "failed", what)
        began = time.time()
        theirs = float(server.value("SELECT UNIX_TIMESTAMP(NOW(6))"))
        yield clock_finding("the database", theirs - (began + time.time()) / 2)
    except PipelineError as error:
        yield Finding("connection", "failed", str(error))
    finally:
        server.close()


def _log(server: Server) -> Iterator[Finding]:
    grants = " ".join(str(row[0]) for row in server.query("SHOW GRANTS")).upper()
    may_read = any(right in grants for right in ("REPLICATION SLAVE", "REPLICATION REPLICA", "ALL PRIVILEGES ON *.*"))
    to_see = "BINLOG MONITOR" if server.is_mariadb else "REPLICATION CLIENT"
    if may_read:
        yield Finding("right to replicate", "ok", "the user may read the binary log")
    else:
        what = f"the user may not: GRANT REPLICATION SLAVE, {to_see} ON *.* TO the user of the config"
        yield Finding("right to replicate", "failed", what)
    try:
        files = server.files()
        yield Finding("binary log", "ok", f"{counted(len(files), 'file')}, from {files[0]} on")
    except PipelineError as error:
        yield Finding("binary log", "failed", f"{error}: GRANT {to_see} ON *.* TO the user of the config")
    if not server.is_mariadb:
        if "LOCK TABLES" in grants or "ALL PRIVILEGES" in grants:
            yield Finding(
                "right to load", "ok", "the user may lock tables, for the moment in which a part of their load begins"
            )
        else:
            what = "the user may not lock tables, as each part of a load does for a moment: GRANT LOCK TABLES ON *.* TO the user"
            yield Finding("right to load", "failed", what)


def _table(server: Server, table: str, config: TableConfig) -> Finding:
    try:
        server.check_engine(table)
        described = server.describe(table)
    except PipelineError as error:
        return Finding(f"table {table}", "failed", str(error))
    columns = {column.name: column.type for column in described.columns}
    identity = described.key or config.key or (("the whole row",) if config.identity == "full" else ())
    if not identity:
        what = "it has no primary key: ALTER TABLE ... ADD PRIMARY KEY, or set identity: full or key in the config"
        return Finding(f"table {table}", "failed", what)
    unreadable = refused(described)
    if kept := [f"{name} ({unreadable[name]})" for name in read_columns(config, columns) if name in unreadable]:
        what = f"columns that cannot be read and must be excluded: {', '.join(kept)}"
        return Finding(f"table {table}", "failed", what)
    if missing := unfit(config, columns, described.key):
        return Finding(f"table {table}", "failed", missing)
    return Finding(f"table {table}", "ok", f"readable, identified by {', '.join(identity)}")
