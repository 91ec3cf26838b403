"""A PostgreSQL server: connections, what its catalog says about tables, the replication slot, and what is wrong with them."""

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.config.sources import PostgresSource
from nevermore.pipelines.errors import AnotherIngesterError, ConfigError, SourceError
from nevermore.pipelines.formats.pgoutput import SourceColumn, SourceTable
from nevermore.pipelines.sources.postgres.position import lsn_of, lsn_text
from nevermore.pipelines.sources.table_position import KeyColumn
from nevermore.scan_core.io import remember_passwords, require_package

if TYPE_CHECKING:
    import psycopg2.extensions

MIN_VERSION = 14
"""Ranges of row addresses are read without a scan of the whole table from this version on."""
SESSION = (
    "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex -c timezone=UTC "
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c search_path=pg_catalog -c synchronous_commit=local "
    "-c row_security=off -c jit=off"
)
"""Settings on which the text of values depends; rows that a policy hides are an error; a commit waits for the server's own disk, not for its standbys.

Compiling the query for the publication would take seconds, the query itself milliseconds.
"""
REPLICATION_SESSION = f"{SESSION} -c wal_sender_timeout=0 -c tcp_keepalives_idle=60 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=6"
"""The server must not ask for answers: a commit may take longer than it waits, and psycopg2 would acknowledge what it thinks is idle."""
CONNECT_SECONDS = 15
UNANSWERED_MILLISECONDS = 90_000
"""A connection ends after this time without an answer to what was sent: the network has failed. Otherwise it would take a quarter of an hour."""
RELEASE_SECONDS = 10.0
"""How long a server may take to notice that a connection was closed."""
_SHAPE = (
    "concat(c.relfilenode, ';', (SELECT string_agg(CASE WHEN a.attisdropped OR NOT ({sent}) THEN '-' ELSE concat(left(md5(a.attname), 6), "
    "CASE WHEN a.atthasmissing OR a.atthasdef OR a.attidentity <> '' THEN '+' ELSE '=' END, a.atttypid, '.', a.atttypmod, ':', a.xmin) "
    "END, ' ' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0), ';', "
    # The descriptions of its own columns, such as ctid, stay as they are when a table becomes a partition.
    "(SELECT string_agg(concat(r.oid, '.', r.relfilenode, '@', i.xmin, CASE WHEN i.xmin <> a.xmin THEN 'a' END), ' ' ORDER BY r.oid) "
    "FROM pg_partition_tree(c.oid) m JOIN pg_class r ON r.oid = m.relid JOIN pg_inherits i ON i.inhrelid = r.oid "
    "JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum = -1 WHERE m.level > 0), ';', "
    "(SELECT string_agg(k.attnum::text, ',' ORDER BY k.attnum) FROM (SELECT * FROM pg_index x WHERE x.indrelid = c.oid AND x.indimmediate "
    "AND (x.indisprimary OR x.indisreplident) ORDER BY x.indisreplident DESC LIMIT 1) i, unnest(i.indkey[0:i.indnkeyatts - 1]) k(attnum)), "
    "';', p.xmin, ';', (WITH RECURSIVE used(oid) AS (SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 "
    "AND NOT a.attisdropped AND ({sent}) UNION SELECT part FROM used JOIN pg_type t USING (oid), LATERAL (VALUES (t.typelem), "
    "(t.typbasetype) UNION ALL SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid UNION ALL SELECT atttypid FROM pg_attribute "
    "WHERE attrelid = t.typrelid AND attnum > 0) parts(part)) SELECT string_agg(concat(oid, '=', "
    "words), ' ' ORDER BY oid) FROM (SELECT oid, coalesce((SELECT string_agg(left(md5(enumlabel), 4), '' ORDER BY e.oid) FROM pg_enum e "
    "WHERE enumtypid = used.oid), (SELECT string_agg(CASE WHEN attisdropped THEN '-' ELSE '+' END, '' ORDER BY attnum) || '.' "
    "FROM pg_type t JOIN pg_attribute ON attrelid = t.typrelid AND attnum > 0 WHERE t.oid = used.oid)) AS words FROM used) w "
    "WHERE words IS NOT NULL))"
)
"""The text of a `Shape` in SQL."""

_require_driver = partial(require_package, "psycopg2", "a source of type postgres", "nevermore-iceberg[postgres]")


def connect(source: PostgresSource, *, replication: bool = False) -> "psycopg2.extensions.connection":
    """Open a connection; it commits each statement.

    Raises:
        MissingPackageError: psycopg2 is not installed.
        ConfigError: the connection string is invalid.
        SourceError: the server cannot be reached, or refuses the connection.
    """
    _require_driver()
    import psycopg2
    from psycopg2.extras import LogicalReplicationConnection

    remember_passwords(source.dsn)
    try:
        connection = psycopg2.connect(
            source.dsn,
            connection_factory=LogicalReplicationConnection if replication else None,
            connect_timeout=CONNECT_SECONDS,
            client_encoding="UTF8",
            application_name="nevermore",
            options=REPLICATION_SESSION if replication else SESSION,
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=6,
            tcp_user_timeout=UNANSWERED_MILLISECONDS,
        )
    except psycopg2.ProgrammingError as error:
        raise ConfigError(f"dsn of {source.title}: {_words(error)}") from None
    except psycopg2.Error as error:
        raise SourceError(f"cannot connect to PostgreSQL: {_words(error)}") from None
    if not replication:  # the other commits each command anyway
        connection.autocommit = True
    return connection


def in_quotes(name: str) -> str:
    """A name in SQL, whatever it is."""
    return '"' + name.replace('"', '""') + '"'


def quoted(name: str) -> str:
    """A name in the SQL of a message, in quotes where it needs them because of its letters."""
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else in_quotes(name)


def added_to(publication: str, tables: Sequence[str]) -> str:
    """SQL by which a publication sends more tables."""
    name = quoted(publication)
    return (
        f"ALTER PUBLICATION {name} ADD TABLE {', '.join(tables)}; -- partitioned ones that are part of it, also by FOR ALL TABLES: "
        f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"
    )


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Turn errors of the driver into errors of the source.

    Raises:
        SourceError: `what` failed, with the server's words.
        AnotherIngesterError: because another process reads the slot.
        MissingPackageError: psycopg2 is not installed.
    """
    _require_driver()
    import psycopg2

    try:
        yield
    except psycopg2.Error as error:
        kind = AnotherIngesterError if isinstance(error, psycopg2.errors.ObjectInUse) else SourceError
        raise kind(f"{what}: {_words(error)}") from error


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot.

    Attributes:
        name: its name.
        plugin: its output plugin.
        database: its database.
        is_here: whether that is the one of the connection.
        confirmed: log position up to which changes are acknowledged.
        status: whether the log is kept (`reserved`, `extended`, `unreserved`, `lost`).
        active_pid: process that reads from it.
        held_bytes: size of the log that the server keeps for it.
        lag_bytes: size of the log that was not acknowledged.
    """

    name: str
    plugin: str | None
    database: str | None
    is_here: bool
    confirmed: int
    status: str | None
    active_pid: int | None
    held_bytes: int
    lag_bytes: int

    def check(self, oldest: int | None = None) -> int:
        """The position that it has confirmed, if it has all changes after `oldest`, up to which a table was read.

        Raises:
            SourceError: it does not, or is no slot for this database.
        """
        if self.plugin != "pgoutput":
            plugin = self.plugin or "physical replication"
            raise SourceError(
                f"slot {self.name} is a slot of {plugin}, not of pgoutput; choose another name (slot: ...)"
            )
        if not self.is_here:
            raise SourceError(
                f"slot {self.name} belongs to another database, {self.database}; choose another name (slot: ...)"
            )
        if self.status == "lost":
            raise lost(f"the server has removed log that slot {self.name} needs", oldest or self.confirmed)
        if oldest is not None and self.confirmed > oldest:
            at = lsn_text(self.confirmed)
            raise lost(f"slot {self.name} was read up to {at} by someone else, or dropped and created again", oldest)
        return self.confirmed

    def complaint(self, source: PostgresSource, oldest: int | None = None) -> str | None:
        """What is wrong with the slot, whose tables were read up to `oldest` or more, or with its log; None if nothing is."""
        try:
            self.check(oldest)
        except SourceError as error:
            return str(error)
        if self.held_bytes <= source.max_held_bytes:
            return None
        by = f", which process {self.active_pid} reads" if self.active_pid is not None else ", which nobody reads now"
        return (
            f"the server keeps {self.held_bytes:,} bytes of its log for slot {self.name}{by}, more than max_held_bytes: "
            f"{source.max_held_bytes:,}. Its disk may fill up: run nevermore ingest; if that does not help, a change log "
            "that fails, or a transaction that has been open for long, holds the slot back"
        )


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication.

    Attributes:
        name: `schema.table`.
        sql_name: the same in SQL, in quotes where it needs them.
        columns: the columns that are sent.
        condition: of the only rows that are sent; None for all.
        member: identifiers of the table, the publication, and the entry by which it is in it. They change if the table is
            created again, or if it was out of the publication, when its changes were not sent.
        shape: text of its `Shape`.
    """

    name: str
    sql_name: str
    columns: frozenset[str]
    condition: str | None
    member: str
    shape: str

    @property
    def oid(self) -> int:
        """Identifier of the table in its database."""
        return int(self.member.partition("/")[0])


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication.

    Attributes:
        operations: operations that it sends: insert, update, delete, truncate.
        tables: its tables.
    """

    operations: frozenset[str]
    tables: tuple[PublishedTable, ...]


class Server:
    """A connection for questions to the catalog."""

    def __init__(self, source: PostgresSource) -> None:
        self.source = source
        self._connection: Any = None
        self._types: dict[tuple[int, int], str] = {}
        self._lock = threading.Lock()

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a query and return its rows.

        Raises:
            SourceError: it failed.
        """
        with reported("a query to PostgreSQL failed"), self._lock:
            if self._connection is not None and self._connection.closed == 0:
                try:
                    return self._rows(sql, values)
                except Exception:
                    if self._connection.closed == 0:
                        raise
            self._connection = connect(self.source)  # the former connection was closed by the server, perhaps long ago
            return self._rows(sql, values)

    def _rows(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def value(self, sql: str, *values: Any) -> Any:
        """The first value of a query's only row; None without a row."""
        rows = self.query(sql, *values)
        return rows[0][0] if rows else None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def version(self) -> int:
        """The major version."""
        return int(self.value("SHOW server_version_num")) // 10_000

    @property
    def system(self) -> str:
        """Identifier of the database cluster; a copy of it has the same one."""
        return str(self.value("SELECT system_identifier FROM pg_control_system()"))

    @property
    def timeline(self) -> int:
        """Number of the history that the server writes."""
        return int(str(self.value("SELECT pg_walfile_name(pg_current_wal_lsn())"))[:8], 16)

    @property
    def inserted(self) -> int:
        """Log position after all that was written, some of it perhaps not to disk."""
        return lsn_of(self.value("SELECT pg_current_wal_insert_lsn()::text"))

    def end_of_timeline(self, timeline: int) -> int:
        """Log position at which the present history left an older one; 0 if it does not come from that.

        Raises:
            SourceError: no right to replicate.
        """
        with (
            reported("the history of the server could not be read"),
            closing(connect(self.source, replication=True)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"TIMELINE_HISTORY {self.timeline}")
            _, content = cursor.fetchone()
        text = content if isinstance(content, str) else bytes(content).decode(errors="replace")
        lines = (line.split() for line in text.splitlines())
        return next((lsn_of(words[1]) for words in lines if len(words) > 1 and words[0] == str(timeline)), 0)

    def written(self) -> int:
        """Log position after all that is committed now; the server sends what is before it without delay.

        Only log on disk is sent, up to the last record that is there as a whole. Log of commits with `synchronous_commit = off`
        and of open transactions gets there later, and in pages, so that its end on disk is in the middle of a record, for up to 15
        seconds. A transaction of our own, which has nothing but a message, ends this: its commit takes all log before it along.

        Raises:
            SourceError: no right to write the message.
        """
        inserted, on_disk = self.query("SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text")[0]
        return lsn_of(
            inserted
            if inserted == on_disk
            else self.value("SELECT pg_logical_emit_message(true, 'nevermore', '')::text")
        )

    def check(self) -> None:
        """Refuse a server whose changes cannot be read.

        Raises:
            SourceError: says which setting to change.
        """
        if self.version < MIN_VERSION:
            raise SourceError(f"PostgreSQL {MIN_VERSION} or newer is required; this is {self.version}")
        if (level := self.value("SHOW wal_level")) != "logical":
            raise SourceError(
                f"wal_level is {level}, but logical replication needs logical: ALTER SYSTEM SET wal_level = logical, then "
                "restart the server (on RDS: rds.logical_replication = 1)"
            )
        if self.value("SELECT pg_is_in_recovery()"):
            raise SourceError("this server is a standby; connect to the primary")
        if (encoding := self.value("SHOW server_encoding")) == "SQL_ASCII":
            raise SourceError(
                f"the encoding of the database is {encoding}, so its text may be any bytes; only known text can be read"
            )

    def slot(self) -> Slot | None:
        """The replication slot; None if there is none."""
        rows = self.query(
            "SELECT slot_name::text, plugin, database, database = current_database(), coalesce(confirmed_flush_lsn - '0/0', 0)::bigint, wal_status, active_pid, "
            "coalesce(pg_current_wal_lsn() - restart_lsn, 0)::bigint, "
            "coalesce(pg_current_wal_lsn() - confirmed_flush_lsn, 0)::bigint "
            "FROM pg_replication_slots WHERE slot_name = %s",
            self.source.slot,
        )
        return Slot(*rows[0]) if rows else None

    def first_changes(self, publication: str, most: int) -> list[str]:
        """Log positions of the first changes of published tables that are not confirmed, about `most` of them.

        They are left where they are. The server decodes its log up to them, and for more if none is of these tables.

        Raises:
            SourceError: the slot is in use.
        """
        return [
            str(lsn)
            for (lsn,) in self.query(
                "SELECT lsn::text FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s, 'proto_version', '1', "
                "'publication_names', %s) WHERE get_byte(data, 0) IN (68, 73, 84, 85) LIMIT %s",  # delete, insert, truncate, update
                self.source.slot,
                most,
                publication,
                most,
            )
        ]

    def require_slot(self) -> Slot:
        """The replication slot.

        Raises:
            SourceError: there is none.
        """
        if (slot := self.slot()) is None:
            raise SourceError(
                f"there is no replication slot {self.source.slot}: the first nevermore ingest creates it. If tables were read from it "
                "before, changes since may be lost: nevermore resync --all --from-source"
            )
        return slot

    def create_slot(self) -> None:
        """Create the replication slot; waits for transactions that are running.

        Raises:
            SourceError: no right to, or too many slots.
        """
        self.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self.source.slot)

    def advance_slot(self, lsn: int) -> None:
        """Let the server forget its log before a position. A connection that was reading from the slot must be closed.

        Raises:
            SourceError: it is in use.
        """
        ends = time.monotonic() + RELEASE_SECONDS
        while (slot := self.slot()) is not None and slot.confirmed < lsn:
            if slot.active_pid is None:
                self.query("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", self.source.slot, lsn_text(lsn))
                return
            if time.monotonic() > ends:
                raise AnotherIngesterError(
                    f"slot {self.source.slot} is in use by process {slot.active_pid}: stop the other ingester"
                )
            time.sleep(0.02)

    def drop_slot(self) -> None:
        """Drop the replication slot, if it exists."""
        self.query(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
            self.source.slot,
        )

    def publication(self) -> Publication | None:
        """The publication; None if there is none."""
        found = self.query(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s",
            self.source.publication,
        )
        if not found:
            return None
        names = ("insert", "update", "delete", "truncate")
        operations = frozenset(name for name, is_sent in zip(names, found[0], strict=True) if is_sent)
        condition = "rowfilter" if self.version >= 15 else "NULL"
        # 15 lists generated columns among the published ones, and only 18 can send them.
        sent = "a.attgenerated = ''" if self.version < 18 else "true"
        sent += " AND a.attname = ANY (t.attnames)" if self.version >= 15 else ""
        columns = f"SELECT array_agg(a.attname::text) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {sent}"
        of_schema = (
            "SELECT s.oid FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace"
        )
        of_table = "SELECT r.oid FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid"
        entry = f"coalesce(({of_table}), ({of_schema if self.version >= 15 else 'NULL::oid'}), 0)"
        shape = _SHAPE.format(sent=sent)
        rows = self.query(
            f"SELECT concat(t.schemaname, '.', t.tablename), format('%%I.%%I', t.schemaname, t.tablename), ({columns}), {condition}, concat_ws('/', c.oid, p.oid, {entry}), {shape} "
            "FROM pg_publication_tables t JOIN pg_publication p USING (pubname) "
            "JOIN pg_namespace n ON n.nspname = t.schemaname "
            "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename "
            "WHERE pubname = %s ORDER BY 1, 2",
            self.source.publication,
        )
        tables = (
            PublishedTable(name, sql_name, frozenset(columns or ()), where, member, shape)
            for name, sql_name, columns, where, member, shape in rows
        )
        return Publication(operations, tuple(tables))

    def require_publication(self) -> Publication:
        """The publication.

        Raises:
            SourceError: there is none; says how to create it.
        """
        found = self.publication()
        if found is None:
            raise SourceError(
                f"there is no publication {self.source.publication}: as the owner of the tables, run "
                f"CREATE PUBLICATION {quoted(self.source.publication)} FOR TABLE schema.table, ... WITH (publish_via_partition_root = true)"
            )
        return found

    def describe(self, table: PublishedTable) -> SourceTable:
        """The columns and the key of a table as they are now, as far as the publication sends them.

        Raises:
            SourceError: the table no longer exists.
        """
        rows = self.query(
            "SELECT a.attname, a.atttypid::int8, a.atttypmod FROM pg_attribute a "
            "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (%s) ORDER BY a.attnum",
            table.oid,
            list(table.columns),
        )
        if not self.query("SELECT FROM pg_class WHERE oid = %s", table.oid):
            raise SourceError(f"{table.name} no longer exists in the database")
        if not rows:
            raise SourceError(f"{table.name} has no columns that are sent, so there is nothing to read: leave it out")
        key = self.key_of(table.oid)
        names = self.type_names([(kind, modifier) for _, kind, modifier in rows])
        columns = (SourceColumn(name, names[kind, modifier], name in key) for name, kind, modifier in rows)
        return SourceTable(table.oid, table.name, tuple(columns), key)

    def relation(self, table: PublishedTable) -> str:
        """The rows of a table that are sent as its own: those of its partitions, but not of tables that inherit from it."""
        is_partitioned = self.value("SELECT relkind = 'p' FROM pg_class WHERE oid = %s", table.oid)
        return table.sql_name if is_partitioned else f"ONLY {table.sql_name}"

    def key_of(self, oid: int) -> tuple[str, ...]:
        """Columns of the index that is the replica identity, else of the primary key, in the order of the table."""
        rows = self.query(
            "SELECT i.indisreplident, array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) "
            "WHERE i.indrelid = %s AND i.indimmediate AND (i.indisprimary OR i.indisreplident) GROUP BY i.indexrelid, i.indisreplident "
            "ORDER BY i.indisreplident DESC",
            oid,
        )
        return tuple(rows[0][1]) if rows else ()

    def ordered_key(self, oid: int) -> tuple[tuple[str, str, str | None], ...]:
        """Columns of the index that is the replica identity, else of the primary key, in the order of the index.

        Returns:
            (name, type in SQL, collation in SQL if it is another than that of the database) of each; none if the text of some
            value might not lead to the same place in the order: types of extensions, floats, arrays and ranges.
        """
        rows = self.query(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attcollation NOT IN (0, 100) THEN "
            "(SELECT format('%%I.%%I', n.nspname, c.collname) FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace "
            "WHERE c.oid = a.attcollation) END, "
            "t.typtype = 'e' OR (t.typnamespace = 'pg_catalog'::regnamespace AND t.typcategory NOT IN ('A', 'R', 'C', 'P', 'X') "
            "AND t.oid NOT IN ('real'::regtype, 'double precision'::regtype)) "
            "FROM (SELECT * FROM pg_index WHERE indrelid = %s AND indimmediate AND (indisprimary OR indisreplident) "
            "ORDER BY indisreplident DESC LIMIT 1) i, unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY k(attnum, place) "
            "JOIN pg_attribute a ON a.attrelid = %s AND a.attnum = k.attnum JOIN pg_type b ON b.oid = a.atttypid "
            "JOIN pg_type t ON t.oid = CASE b.typtype WHEN 'd' THEN b.typbasetype ELSE b.oid END ORDER BY k.place",
            oid,
            oid,
        )
        return tuple(row[:3] for row in rows) if all(row[3] for row in rows) else ()

    def are_at_or_behind(
        self, columns: Sequence[KeyColumn], keys: Sequence[Sequence[str]], ends: Sequence[Sequence[str]]
    ) -> list[bool]:
        """Whether each key is not before an end of its own, in the order that the server has; both are texts."""
        kinds = ", ".join(f"%s::text[]::{column.sql}[]" for column in columns)
        k, e = ([f"{side}{place}" for place in range(len(columns))] for side in "ke")
        order = (f"{n} COLLATE {c.collation}" if c.collation else n for n, c in zip(k, columns, strict=True))
        rows = self.query(
            f"SELECT ({', '.join(order)}) >= ({', '.join(e)}) FROM unnest({kinds}, {kinds}) WITH ORDINALITY "
            f"v({', '.join((*k, *e))}, place) ORDER BY place",
            *map(list, (*zip(*keys, strict=True), *zip(*ends, strict=True))),
        )
        return [bool(is_behind) for (is_behind,) in rows]

    def identity(self, table: PublishedTable) -> str:
        """The replica identity of a table: d(efault), n(othing), f(ull) or i(ndex)."""
        return str(self.value("SELECT relreplident::text FROM pg_class WHERE oid = %s", table.oid) or "n")

    def type_names(self, types: Sequence[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """Names of types with their modifiers; domains by what they are based on, types of the database's own as text."""
        wanted = [t for t in dict.fromkeys(types) if t not in self._types]
        for start in wanted:
            kind, modifier = start
            while True:
                found = self.query(
                    "SELECT typtype::text, typbasetype::int8, typtypmod, format_type(oid, %s) FROM pg_type WHERE oid = %s",
                    None if modifier < 0 else modifier,
                    kind,
                )
                # A type of the database's own may be gone by the time that changes before its end are read.
                typtype, base, base_modifier, name = found[0] if found else ("b", 0, 0, "text")
                if typtype != "d":
                    break
                kind, modifier = int(base), int(base_modifier)
            self._types[start] = name if typtype == "b" else "text"
        return {t: self._types[t] for t in types}

    def wait_for_running(self, stop_after_seconds: float) -> None:
        """Wait until all transactions that run now have ended, so that a snapshot sees what they committed.

        Raises:
            SourceError: one of them takes longer; names it.
        """
        until = int(self.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8"))
        ends = time.monotonic() + stop_after_seconds
        while int(self.value("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8")) < until:
            if time.monotonic() > ends:
                rows = self.query(
                    "SELECT pid, now() - xact_start FROM pg_stat_activity WHERE backend_xid IS NOT NULL "
                    "ORDER BY xact_start LIMIT 1"
                )
                longest = (
                    f"process {rows[0][0]} has run one for {rows[0][1]}" if rows else "a prepared transaction is open"
                )
                raise SourceError(
                    f"a load waits for transactions that began before it, and {longest}; end it, then try again"
                )
            time.sleep(0.05)


def slot_of(source: PostgresSource) -> Slot:
    """The replication slot of a source, with a connection for this question alone.

    Raises:
        SourceError: the server cannot be reached, or has no such slot.
    """
    server = Server(source)
    try:
        return server.require_slot()
    finally:
        server.close()


def lost(why: str, at: int) -> SourceError:
    """The error for changes that the server no longer has."""
    return SourceError(
        f"{why}, so changes after {lsn_text(at)} may be lost. Load the tables again: nevermore resync TABLE --from-source"
    )
