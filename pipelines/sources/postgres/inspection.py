"""Looks at a PostgreSQL database before it is read: its tables for a new config, its settings and rights for `nevermore doctor`."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from nevermore.pipelines.config.sources import PostgresSource
from nevermore.pipelines.errors import PipelineError, SourceError
from nevermore.pipelines.sources.live import Finding, Wanted, clock_finding, unfit
from nevermore.pipelines.sources.postgres.position import PostgresPosition
from nevermore.pipelines.sources.postgres.server import Server, added_to, in_quotes, quoted

MAX_DIGITS, SAMPLED_ROWS = 38, 100_000
LARGE_LAG_BYTES = 10 * 1024**3
"""Log that is worth a warning: at a common 16 MiB a second it takes ten minutes to read."""


@dataclass(frozen=True, slots=True)
class DatabaseTable:
    """A table of the database.

    Attributes:
        key: columns of the replica identity's index, else of the primary key.
        identity: replica identity: d(efault), n(othing), f(ull) or i(ndex).
        columns: names, and types as PostgreSQL writes them.
        rows: number of rows as the planner estimates it; -1 if it was never analysed.
        sql_name: the name in SQL, in quotes where it needs them.
        decimals: of columns of type numeric without precision, the most digits after the point and before it in some of their
            values; None if these are none, or no decimal can hold them.
    """

    schema: str
    name: str
    key: tuple[str, ...]
    identity: str
    columns: tuple[tuple[str, str], ...]
    rows: int
    sql_name: str
    decimals: dict[str, tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Database:
    """A database: its name, its tables without those of the system, and its publications with the names of their tables."""

    name: str
    tables: tuple[DatabaseTable, ...]
    publications: dict[str, frozenset[str]]


def database_of(source: PostgresSource) -> Database:
    """Look at all tables of a database.

    Raises:
        ConfigError: the driver is not installed, or the connection string is invalid.
        SourceError: the server cannot be reached.
    """
    server = Server(source)
    try:
        rows = server.query(
            "SELECT c.oid::int8, n.nspname, c.relname, c.relreplident::text, "
            "CASE WHEN c.relkind = 'p' THEN (SELECT CASE WHEN max(p.reltuples) < 0 THEN -1 ELSE coalesce(sum(greatest(p.reltuples, 0)), 0) END "
            "FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid WHERE t.isleaf) ELSE c.reltuples END::int8, "
            "(SELECT array_agg(ARRAY[a.attname::text, format_type(a.atttypid, a.atttypmod)] ORDER BY a.attnum) "
            "FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), format('%I.%I', n.nspname, c.relname) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' "
            "AND n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema' "
            "AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') ORDER BY 2, 3"
        )
        tables = tuple(
            DatabaseTable(
                schema,
                name,
                server.key_of(oid),
                identity,
                tuple((column, kind) for column, kind in columns or ()),
                int(estimate),
                sql_name,
                {column: _digits(server, sql_name, column) for column, kind in columns or () if kind == "numeric"},
            )
            for oid, schema, name, identity, estimate, columns, sql_name in rows
        )
        published = server.query(
            "SELECT pubname::text, array_agg(schemaname || '.' || tablename) FROM pg_publication "
            "LEFT JOIN pg_publication_tables USING (pubname) GROUP BY 1 ORDER BY 1"
        )
        publications = {name: frozenset(filter(None, taken)) for name, taken in published}
        return Database(str(server.value("SELECT current_database()")), tables, publications)
    finally:
        server.close()


def _digits(server: Server, table: str, column: str) -> tuple[int, int] | None:
    try:
        after, ahead, others = server.query(
            "SELECT max(scale(v)), max(length(trunc(abs(v))::text)), count(*) FILTER (WHERE v IN ('NaN', 'Infinity', '-Infinity')) "
            f"FROM (SELECT {in_quotes(column)} AS v FROM {table} LIMIT {SAMPLED_ROWS}) s"
        )[0]
    except SourceError:  # no right to read it, which doctor reports
        return None
    return None if others or after is None or after + ahead > MAX_DIGITS else (after, ahead)


def findings(source: PostgresSource, wanted: Wanted, positions: Callable[[], Sequence[str]]) -> Iterator[Finding]:
    """Look at settings, rights, publication and slot, from which tables were read up to some positions.

    The first failure to connect ends it.
    """
    server, what = Server(source), "connection"
    try:
        yield Finding(what, "ok", f"PostgreSQL {server.version}, database {server.value('SELECT current_database()')}")
        what = "database"
        yield from _settings(server)
        yield from _rights(server)
        yield from _published(server, wanted)
        yield from _slot(server, positions)
        began = time.time()
        theirs = float(server.value("SELECT extract(epoch FROM clock_timestamp())"))
        yield clock_finding("the database", theirs - (began + time.time()) / 2)
    except PipelineError as error:
        yield Finding(what, "failed", str(error))
    finally:
        server.close()


def _settings(server: Server) -> Iterator[Finding]:
    try:
        server.check()
        yield Finding("server settings", "ok", "wal_level is logical")
    except PipelineError as error:
        yield Finding("server settings", "failed", str(error))
    for setting, used in (
        ("max_replication_slots", "SELECT count(*) FROM pg_replication_slots WHERE slot_name <> %s"),
        # Of other senders, who has no right to see more knows only the process.
        (
            "max_wal_senders",
            "SELECT count(*) FROM pg_stat_replication LEFT JOIN pg_replication_slots ON pid = active_pid WHERE slot_name IS DISTINCT FROM %s",
        ),
    ):
        limit, taken = int(server.value(f"SHOW {setting}")), int(server.value(used, server.source.slot))
        if taken < limit:
            yield Finding(setting, "ok", f"{taken} of {limit} are in use")
        else:
            what = f"all {limit} are in use: ALTER SYSTEM SET {setting} = {limit + 4}, then restart the server"
            yield Finding(setting, "failed", what)


def _rights(server: Server) -> Iterator[Finding]:
    user, may = server.query(
        "SELECT quote_ident(current_user), rolsuper OR rolreplication OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = "
        "'rds_replication' AND pg_has_role(current_user, r.oid, 'member')) FROM pg_roles WHERE rolname = current_user"
    )[0]
    if may:
        yield Finding("right to replicate", "ok", f"{user} may read replication slots")
    else:
        what = (
            f"{user} may not: as a superuser, ALTER ROLE {user} REPLICATION (on RDS: GRANT rds_replication TO {user})"
        )
        yield Finding("right to replicate", "failed", what)

    for (function,) in server.query(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message' AND proargtypes[2] = 'text'::regtype "
        "AND NOT has_function_privilege(oid, 'EXECUTE')"
    ):
        what = f"{user} may not mark the end of a round in the log: GRANT EXECUTE ON FUNCTION {function} TO {user}"
        yield Finding("right to write messages", "failed", what)


def _published(server: Server, wanted: Wanted) -> Iterator[Finding]:
    name = server.source.publication
    try:
        publication = server.require_publication()
    except PipelineError as error:
        yield Finding("publication", "failed", str(error))
        return
    lacks = sorted({"insert", "update", "delete", "truncate"} - publication.operations)
    if lacks:
        what = f"{name} does not send {', '.join(lacks)}: ALTER PUBLICATION {quoted(name)} SET (publish = 'insert, update, delete, truncate')"
        yield Finding("publication", "warning", what)
    else:
        yield Finding("publication", "ok", f"{name} sends {len(publication.tables)} tables")
    sent = {table.name: table for table in publication.tables}
    for table, config in sorted(wanted(list(sent)).items()):
        if table not in sent:
            yield Finding(
                f"table {table}",
                "failed",
                f"it is not in the publication: {added_to(name, [table])}",
            )
            continue
        described, identity = server.describe(sent[table]), server.identity(sent[table])
        may_read, schema, may_use, user = server.query(
            "SELECT has_table_privilege(oid, 'SELECT') OR (SELECT bool_and(has_column_privilege(c.oid, name, 'SELECT')) FROM unnest(%s) name), "
            "relnamespace::regnamespace::text, has_schema_privilege(relnamespace, 'USAGE'), quote_ident(current_user) FROM pg_class c "
            "WHERE oid = %s",
            [column.name for column in described.columns],
            sent[table].oid,
        )[0]
        if not may_read or not may_use:
            what = f"SELECT ON {sent[table].sql_name}" if may_use else f"USAGE ON SCHEMA {schema}"
            yield Finding(f"table {table}", "failed", f"it may not be read: GRANT {what} TO {user}")
            continue
        if server.value("SELECT row_security_active(%s::oid)", sent[table].oid):
            what = f"policies hide rows of it from {user}: as a superuser, ALTER ROLE {user} BYPASSRLS"
            yield Finding(f"table {table}", "failed", what)
            continue
        if identity == "n" or (identity == "d" and not described.key):
            why = "REPLICA IDENTITY NOTHING" if identity == "n" else "no primary key"
            what = (
                f"it has {why}, so its updates and deletes cannot be read: ALTER TABLE {sent[table].sql_name} ADD PRIMARY KEY (...), or "
                f"ALTER TABLE {sent[table].sql_name} REPLICA IDENTITY FULL with identity: full in the config"
            )
            yield Finding(f"table {table}", "failed", what)
        elif missing := unfit(config, {column.name: column.type for column in described.columns}, described.key):
            yield Finding(f"table {table}", "failed", missing)
        else:
            key = ", ".join(described.key) or "the whole row"
            yield Finding(f"table {table}", "ok", f"readable, identified by {key}")


def _slot(server: Server, read: Callable[[], Sequence[str]]) -> Iterator[Finding]:
    name, slot = server.source.slot, server.slot()
    positions = read()  # after the slot: an ingester moves its tables on, and then the slot
    if slot is None and positions:
        what = f"there is no replication slot {name} any more, so changes may be lost: nevermore resync --all --from-source"
        yield Finding("slot", "failed", what)
        return
    if slot is None:
        yield Finding("slot", "ok", f"{name} does not exist yet; the first run creates it")
        return
    oldest = min((PostgresPosition.from_json(position).at for position in positions), default=None)
    held = f"the server keeps {slot.held_bytes / 1024**2:,.0f} MiB of log for it"
    status: Literal["ok", "warning", "failed"] = "ok"
    what = f"{name}: {held}"
    if slot.status == "unreserved" or slot.held_bytes > LARGE_LAG_BYTES:
        status = "warning"
        what = f"{held}: run nevermore ingest soon, or the disk fills up or the log is removed"
    elif not positions:
        status = "warning"
        what = f"{name} exists, though no table was read from it: if another project reads it, choose another name (slot: ...)"
    try:
        slot.check(oldest)
    except SourceError as error:
        status, what = "failed", str(error)
    yield Finding("slot", status, what)
    if int(server.value("SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'")) < 0:
        what = "max_slot_wal_keep_size has no limit: an ingester that stops for days fills the disk of the database; set one"
        yield Finding("log that a slot may hold", "warning", what)
