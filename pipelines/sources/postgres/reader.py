"""Reads the changes of a PostgreSQL database from a replication slot, in batches that know their transactions."""

import logging
import select
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from nevermore.pipelines.config.sources import PostgresSource
from nevermore.pipelines.decode.batches import BatchEnd, RawEvents
from nevermore.pipelines.decode.feed import TableFeed
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.pgoutput import (
    NumberedMessages,
    SourceColumn,
    SourceTable,
    relation_message,
)
from nevermore.pipelines.jsonscan.spans import from_binary
from nevermore.pipelines.sources.live import HEARTBEAT_BYTES, HashedTable, KeyRanges, LiveSource
from nevermore.pipelines.sources.postgres.load import WAIT_SECONDS as LOAD_SECONDS
from nevermore.pipelines.sources.postgres.load import PostgresBatch, TableLoad
from nevermore.pipelines.sources.postgres.position import PostgresPosition, Shape, UnsentError, lsn_text
from nevermore.pipelines.sources.postgres.server import (
    Publication,
    Server,
    added_to,
    connect,
    in_quotes,
    lost,
    reported,
)
from nevermore.pipelines.sources.table_position import LOAD_AGAIN, LoadOutdatedError, other_identity

WAIT_SECONDS = 0.05
SILENCE_SECONDS = 30.0
"""After so long without a message, the server is asked whether it still sends."""
CONFIRM_SECONDS = 60.0
"""How often the server learns which log it may forget, if it keeps less than HEARTBEAT_BYTES."""
NEVER_SECONDS = 10_000_000
"""The driver must not acknowledge by itself what it takes for idle: the slot would be ahead of the change logs."""
MAX_MESSAGES = 500_000
MAX_PEEKED = 1000
"""Changes that are counted to see whether something new came."""
_BEGIN, _COMMIT, _RELATION, _TRUNCATE = (ord(letter) for letter in "BCRT")
_NO_CHANGES = frozenset(ord(letter) for letter in "YOM")
"""Descriptions of types, origins of transactions, messages of applications."""
_CHANGES = frozenset(ord(letter) for letter in "IUDT")


_SINCE = "CASE WHEN isfinite({0}) THEN concat(%s) ELSE concat({0}) END"
_MICROSECONDS = "(extract(epoch FROM {0}) * 1000000)::bigint"
_TEXTS = {
    "bool": "{0}::int",
    "int": "{0}",
    "decimal": "{0}::numeric(1000,{1})",
    "string": "length(concat({0})), ':', {0}",
    "date": _SINCE % "{0} - date '1970-01-01'",
    "timestamp": _SINCE % _MICROSECONDS,
    "time": _MICROSECONDS,
    "binary": "encode({0}, 'hex')",
    "fixed": "replace({0}::text, '-', '')",
    "double": "('x' || encode(float8send({0}), 'hex'))::bit(64)::bigint",
    "float": "('x' || encode(float4send({0}), 'hex'))::bit(32)::int",
}
"""See `HashedTable`."""
_log = logging.getLogger(__name__)


@dataclass
class _Pending:
    """Messages that were received and not yet returned as a batch."""

    payloads: list[bytes] = field(default_factory=list)
    size: int = 0
    begun_at: int | None = None
    """Place of the begin of the transaction that is not complete."""
    done: int = 0
    """Log position after the last complete transaction."""

    def add(self, payload: bytes) -> None:
        self.payloads.append(payload)
        self.size += len(payload)
        kind = payload[0]
        if kind == _BEGIN:
            self.begun_at = len(self.payloads) - 1
        elif kind == _COMMIT:
            self.begun_at = None
            self.done = struct.unpack_from(">Q", payload, 10)[0]

    def keep(self, payloads: list[bytes]) -> None:
        """Keep only these, which are the beginning of a transaction, if any."""
        self.payloads, self.size = payloads, sum(map(len, payloads))
        self.begun_at = 0 if payloads else None


@dataclass(frozen=True)
class _Place:
    """The place of a batch in the transaction that it continues: number of changes of this before it."""

    changes: int = 0
    continues: bool = False


class PostgresReader(LiveSource):
    """See `LiveSource`."""

    positions = PostgresPosition

    def __init__(self, source: PostgresSource) -> None:
        self.source = source
        self._server = Server(source)
        self._stream: Any = None
        self._versions: list[SourceTable] = []
        self._current: dict[int, int] = {}
        self._publication: Publication | None = None
        self._name_of: dict[int, str] = {}
        self._shapes: dict[str, str] = {}
        self._system = ""
        self._timeline = 0
        self._start = 0
        self._safe = 0
        self._reached = 0
        self._confirmed_at = time.monotonic()

    @property
    def tables(self) -> tuple[str, ...]:
        """See `LiveSource`."""
        self._publication = self._server.require_publication()
        self._name_of = {table.oid: table.name for table in self._publication.tables}
        self._shapes = {table.member: table.shape for table in self._publication.tables}
        return tuple(table.name for table in self._publication.tables)

    def how_to_add(self, table: str) -> str:
        """See `LiveSource`."""
        return f"add it: {added_to(self.source.publication, [table])}"

    def begin(self, positions: Mapping[str, str | None]) -> None:
        """See `LiveSource`."""
        if not self._system:
            self._server.check()
        self._system = self._server.system
        known = [PostgresPosition.from_json(text) for text in positions.values() if text is not None]
        oldest = min((position.at for position in known), default=0)
        if any(position.system != self._system for position in known):
            raise lost("this is another database cluster than the one that was read before", oldest)
        self._timeline = self._server.timeline
        for position in known:
            self._check_history(position)
        newest = max((position.at for position in known), default=0)
        if newest > (end := self._server.inserted):
            raise lost("the server was restored from a copy that is older than what was read", end)
        if others := sorted({position.slot for position in known} - {self.source.slot}):
            raise SourceError(
                f"the tables were read from slot {others[0]}, and the config says {self.source.slot}: a new slot lacks the "
                "changes before it. Use the former one, or load the tables again: nevermore resync TABLE --from-source"
            )
        slot = self._server.slot()
        if slot is None and known:
            raise lost(f"there is no replication slot {self.source.slot} any more", oldest)
        if slot is None:
            self._server.create_slot()
        self._start = (slot or self._server.require_slot()).check(oldest if known else None)

    def _check_history(self, position: PostgresPosition) -> None:
        """Refuse a server that was a standby, unless it has all that was read of the former primary."""
        if position.timeline in {0, self._timeline}:
            return
        is_later = self._timeline > position.timeline
        end = self._server.end_of_timeline(position.timeline) if is_later else 0
        if position.at > end:
            left = f"left its log at {lsn_text(end)}" if end else "does not have its log"
            raise lost(
                f"the server was replaced by a standby, or restored, which {left} and lacks what was read after it",
                end or position.at,
            )

    def news(self, positions: Collection[str | None]) -> str | None:
        """What is new for tables with these positions: a text that is another one when more has come; None if nothing is.

        Raises:
            SourceError: the server cannot be reached, or the slot is in use.
        """
        slot = self._server.slot()
        if slot is None or not all(self.is_loaded(position) for position in positions):
            return f"rows to load, {lsn_text(self._server.written())}"
        if slot.active_pid is not None:
            raise SourceError(f"slot {self.source.slot} is being read by process {slot.active_pid} of the server")
        changes = self._server.first_changes(self.source.publication, MAX_PEEKED)
        return f"{len(changes)} changes from {changes[0]} on" if changes else None

    def check_table(self, source_table: str, position: str) -> None:
        """See `LiveSource`."""
        known = PostgresPosition.from_json(position)
        publication = self._publication or self._server.require_publication()
        published = next(table for table in publication.tables if table.name == source_table)
        if known.member is not None and known.member != published.member:
            raise lost(
                f"{source_table} was dropped and created again, or was out of publication {self.source.publication} for some "
                "time",
                known.at,
            )
        if not known.shape:
            return
        try:
            Shape.parse(known.shape).check(Shape.parse(published.shape))
        except UnsentError as unsent:
            if unsent.is_another_key:
                raise other_identity(source_table, str(unsent)) from None
            why = f"{source_table}: {unsent}, and PostgreSQL does not send what becomes of existing rows"
            if unsent.is_another_type:
                text = f"{why}. {LOAD_AGAIN}"
                raise SourceError(text) from None
            again = replace(known, shape=published.shape).again
            raise LoadOutdatedError(f"{why}, so the table is loaded again", again) from None

    def load(
        self, table: TableFeed, source_table: str, position: str | None, limit_bytes: int, ranges: KeyRanges = ()
    ) -> Iterator[PostgresBatch]:
        """See `LiveSource`."""
        self.interrupt()
        publication = self._publication or self._server.require_publication()
        published = next(t for t in publication.tables if t.name == source_table)
        known = self._at(self._start) if position is None else PostgresPosition.from_json(position)
        known = replace(known, timeline=self._timeline, member=published.member, shape=published.shape)
        yield from TableLoad(self._server, publication, published, table, limit_bytes, ranges).parts(known)

    def hashed(self, table: TableFeed, source_table: str) -> HashedTable:
        """See `LiveSource`."""
        server = self._server
        published = next(t for t in server.require_publication().tables if t.name == source_table)
        server.wait_for_running(LOAD_SECONDS)  # the stream may have a transaction shortly before others see it
        where = f" WHERE {published.condition}" if published.condition else ""
        types = server.describe(published).declared.types
        return HashedTable(
            server.query,
            f"(SELECT * FROM {server.relation(published)}{where}) AS t",
            {table.target_name(name): (in_quotes(name), kind.arrow) for name, kind in types.items()},
            [table.target_name(name) for name, _, _ in server.ordered_key(published.oid)],
            _TEXTS,
            "('x0' || left(md5(convert_to({}, 'UTF8')), 15))::bit(64)::bigint",
            "k::bigint / {}",
            lambda: server.inserted,
            f"{server.system} {server.value('SELECT current_database()')}",
        )

    def _at(self, place: int) -> PostgresPosition:
        """A position here and now."""
        return PostgresPosition(at=place, system=self._system, slot=self.source.slot, timeline=self._timeline)

    def stream(self, positions: Mapping[str, str | None], limit_bytes: int) -> Iterator[PostgresBatch]:
        """See `LiveSource`."""
        known = [PostgresPosition.from_json(text).at for text in positions.values() if text is not None]
        target = self._server.written()
        start = min(known, default=target)
        if self._stream is None:
            self._open(start)
        pending = _Pending(done=self._reached or start)
        place = _Place()
        for payload in self._messages(target, pending):
            pending.add(payload)
            if pending.size < limit_bytes and len(pending.payloads) < MAX_MESSAGES:
                continue
            if pending.begun_at == 0:
                yield self._batch(pending.payloads, pending.done, BatchEnd.WITHIN_TRANSACTION, place)
                place = _Place(place.changes + sum(p[0] in _CHANGES for p in pending.payloads), continues=True)
                pending.keep(pending.payloads[:1])
            else:  # complete transactions, without the beginning of the next one
                complete = len(pending.payloads) if pending.begun_at is None else pending.begun_at
                yield self._batch(pending.payloads[:complete], pending.done, BatchEnd.TRANSACTION, place)
                place = _Place()
                pending.keep(pending.payloads[complete:])
        self._reached = max(pending.done, target)
        yield self._batch(pending.payloads, self._reached, BatchEnd.TRANSACTION, place)

    def acknowledge(self, positions: Sequence[str]) -> None:
        """See `LiveSource`. The server learns it at the end, or when it keeps much log: the stream must be closed for that."""
        oldest = min((PostgresPosition.from_json(text).at for text in positions), default=0)
        self._safe = oldest
        is_late = time.monotonic() - self._confirmed_at >= CONFIRM_SECONDS
        if self._safe - self._start >= (1 if is_late else HEARTBEAT_BYTES):
            self._tell()

    def _tell(self) -> None:
        self.interrupt()
        if self._safe > self._start:
            self._server.advance_slot(self._safe)
            self._start = self._safe
        self._confirmed_at = time.monotonic()

    def warnings(self) -> Sequence[str]:
        """See `LiveSource`."""
        slot = self._server.slot()
        complaint = None if slot is None else slot.complaint(self.source)
        return [] if complaint is None else [complaint]

    def restart(self) -> str:
        """See `LiveSource`. Replaces a slot whose log is lost."""
        self._server.check()
        slot = self._server.slot()
        if slot is not None and slot.status == "lost":
            self._server.drop_slot()
            slot = None
        if slot is None:
            self._server.create_slot()
        self._system, self._timeline = self._server.system, self._server.timeline
        (slot or self._server.require_slot()).check()
        # not from where the slot is: the server may be unable to decode changes from times without the publication
        return self._at(self._server.written()).again

    def interrupt(self) -> None:
        """See `LiveSource`."""
        if self._stream is not None:
            self._stream.connection.close()
            self._stream = None
        self._reached = 0
        self._versions, self._current = [], {}

    def close(self) -> None:
        """See `LiveSource`."""
        try:
            self._tell()
        except SourceError as error:  # what is committed is safe; the next run tells the server
            _log.warning("%s", error)
        self._server.close()

    def _open(self, start: int) -> None:
        connection = connect(self.source, replication=True)
        cursor = connection.cursor()
        name = in_quotes(self.source.publication)
        try:
            with reported(f"cannot read from slot {self.source.slot}"):
                cursor.start_replication(
                    slot_name=self.source.slot,
                    decode=False,
                    start_lsn=start,
                    options={"publication_names": name, "proto_version": "1"},
                    status_interval=NEVER_SECONDS,
                )
            self._server.require_slot().check(start)  # nobody can replace it now, but could during a long load
        except SourceError:
            connection.close()
            raise
        self._stream, self._versions, self._current, self._reached = cursor, [], {}, 0

    def _messages(self, target: int, pending: _Pending) -> Iterator[bytes]:
        """Messages until all transactions that were committed before `target` are complete."""
        stream = self._stream
        heard = time.monotonic()
        with reported(f"the connection to slot {self.source.slot} broke; the next run continues where the tables are"):
            while True:
                message = stream.read_message()
                if message is not None:
                    heard = time.monotonic()
                    yield from self._prepared(message.payload)
                    if pending.begun_at is None and pending.done >= target:
                        return
                    continue
                if pending.begun_at is None and stream.wal_end >= target:
                    return
                if time.monotonic() - heard > SILENCE_SECONDS:
                    heard = time.monotonic()  # it may be reading a transaction that takes long
                    slot = self._server.slot()
                    if slot is None or slot.active_pid is None:
                        raise SourceError(f"the server no longer sends from slot {self.source.slot}")
                select.select([stream], [], [], WAIT_SECONDS)

    def _prepared(self, payload: bytes) -> Iterator[bytes]:
        """A message as the decoder expects it: descriptions by number, truncates of one table each."""
        kind = payload[0]
        if kind == _RELATION:
            self._versions.append(self._described(payload))
            yield relation_message(self._versions[-1].oid, len(self._versions) - 1)
        elif kind == _TRUNCATE:
            count = struct.unpack_from(">I", payload, 1)[0]
            for oid in struct.unpack_from(f">{count}I", payload, 6):
                yield payload[:1] + oid.to_bytes(4, "big")
        elif kind not in _NO_CHANGES:
            yield payload

    def _described(self, payload: bytes) -> SourceTable:
        oid = struct.unpack_from(">I", payload, 1)[0]
        schema, table, rest = payload[5:].split(b"\0", 2)
        identity, count = rest[:1], struct.unpack_from(">H", rest, 1)[0]
        columns = []
        at = 3
        for _ in range(count):
            end = rest.index(b"\0", at + 1)
            kind, modifier = struct.unpack_from(">Ii", rest, end + 1)
            columns.append((rest[at + 1 : end].decode(), rest[at] & 1 == 1, (kind, modifier)))
            at = end + 9
        names = self._server.type_names([kind for _, _, kind in columns])
        key = tuple(name for name, in_key, _ in columns if in_key)
        if identity == b"f":
            key = tuple(name for name in self._server.key_of(oid) if name in key)
        described_columns = tuple(SourceColumn(name, names[kind], in_key) for name, in_key, kind in columns)
        # a table that had another name for some time is the same table
        name = self._name_of.get(oid, f"{(schema or b'pg_catalog').decode()}.{table.decode()}")
        return SourceTable(oid, name, described_columns, key)

    def _batch(self, payloads: list[bytes], lsn: int, end: BatchEnd, place: "_Place") -> PostgresBatch:
        """A batch of messages; `place` is that of the first one in its transaction."""
        known = list(self._current.values())
        numbers = {number: at for at, number in enumerate(known)}
        documents = [relation_message(self._versions[n].oid, at) for n, at in numbers.items()]
        for payload in payloads:
            if payload[0] == _RELATION:
                oid, number = struct.unpack_from(">II", payload, 1)
                self._current[oid] = number
                documents.append(relation_message(oid, numbers.setdefault(number, len(numbers))))
            else:
                documents.append(payload)
        array = pa.array(documents, pa.binary())
        spans = from_binary(array)
        numbered = NumberedMessages.of(spans.data, spans.start, spans.end, place.changes)
        names = pa.array([*map(lsn_text, numbered.lsn.tolist()), ""], pa.string())
        codes = np.where(numbered.transaction < 0, len(numbered.lsn), numbered.transaction).astype(np.int32)
        raw = RawEvents(
            source_file=pa.DictionaryArray.from_arrays(pa.array(codes), names),
            source_offset=pa.array(numbered.index),
            documents=array,
            tables=tuple(self._versions[number] for number in numbers),
        )
        return PostgresBatch(
            raw,
            end,
            place.continues,
            self._at(lsn),
            names.slice(0, len(numbered.lsn)),
            numbered.lsn,
            self._server,
            numbered.xid,
            self._shapes,
        )
