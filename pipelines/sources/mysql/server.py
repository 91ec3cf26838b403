"""A MySQL or MariaDB server: connections, what its catalog says about tables, its binary log, and what is wrong with them."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from nevermore.pipelines.config.sources import MysqlSource
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats import mysql_kernels as stored
from nevermore.pipelines.formats.binlog import MysqlColumn, MysqlTable
from nevermore.pipelines.sources.mysql.position import (
    MariaGtids,
    MysqlGtids,
    MysqlPosition,
    file_name,
    log_number,
    parts_of,
    place,
)
from nevermore.pipelines.sources.table_position import KeyColumn
from nevermore.scan_core.io import remember_passwords, require_package

if TYPE_CHECKING:
    import pymysql

MIN_MARIADB, MIN_MYSQL = (10, 5), (8, 0)
"""From here on, the log can have the names and types of columns (binlog_row_metadata)."""
_RENAMED_STATUS = (8, 4)
"""From here on, MySQL has SHOW BINARY LOG STATUS in place of SHOW MASTER STATUS."""
CONNECT_SECONDS = 15
QUIET_TRIES = 20
READ_SECONDS = 600
SESSION = (
    "SET time_zone = '+00:00', sql_mode = '', sql_quote_show_create = 1",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET net_write_timeout = 31536000, net_read_timeout = 31536000, wait_timeout = 31536000",
)
"""Settings on which the text of values depends; a commit may take longer than the server waits for a client."""
SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")
INTEGER_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "enum", "set"}
_BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_BOTH = {
    "log_bin": ("1", "start the server with log_bin"),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = 'ROW', and in the configuration of the server"),
    "binlog_row_image": ("FULL", "SET GLOBAL binlog_row_image = 'FULL', and in the configuration of the server"),
    "binlog_row_metadata": ("FULL", "SET GLOBAL binlog_row_metadata = 'FULL', and in the configuration of the server"),
}
_OF_MYSQL = {
    "gtid_mode": (
        "ON",
        (
            "SET GLOBAL enforce_gtid_consistency = ON, then gtid_mode = OFF_PERMISSIVE, ON_PERMISSIVE and ON, one after the "
            "other, and in the configuration of the server"
        ),
    ),
    "binlog_row_value_options": (
        "",
        "SET GLOBAL binlog_row_value_options = '', and in the configuration of the server",
    ),
    "binlog_transaction_compression": (
        "0",
        "SET GLOBAL binlog_transaction_compression = OFF, and in the configuration of the server",
    ),
}
"""Settings that the log needs: their values, and how to set them."""
_SINCE = {"binlog_transaction_compression": (8, 0, 20)}

NAME = r"(?:`(?:[^`]|``)+`|[\w$\u0080-\uffff]+)"
"""A name in a statement."""
_ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT")
"""What foreign keys do to rows that refer to a row."""
_ACTION = rf"({'|'.join(_ACTIONS)}|RESTRICT|NO ACTION)"
_NAMES = rf"{NAME}(?:, {NAME})*"
_FOREIGN_KEY = re.compile(
    rf"^ *CONSTRAINT {NAME} FOREIGN KEY \({_NAMES}\) REFERENCES (?:({NAME})\.)?({NAME}) \(({_NAMES})\)"
    rf"(?: ON DELETE {_ACTION})?(?: ON UPDATE {_ACTION})?",
    re.MULTILINE,
)
"""A foreign key in the statement of a table, as servers write it."""

_require_driver = partial(require_package, "pymysql", "a source of type mysql", "nevermore-iceberg[mysql]")


def connect(source: MysqlSource) -> "pymysql.connections.Connection[Any]":
    """Open a connection; it commits each statement.

    Raises:
        MissingPackageError: PyMySQL is not installed.
        SourceError: the server cannot be reached, or refuses the connection.
    """
    _require_driver()
    import pymysql

    remember_passwords(source.dsn)
    parts = urlsplit(source.dsn)
    options = dict(parse_qsl(parts.query))
    secure: dict[str, Any] = {}
    if "ssl_ca" in options:
        secure = {"ssl_ca": options["ssl_ca"], "ssl_verify_cert": True, "ssl_verify_identity": True}
    elif options.get("ssl", "false").lower() in {"true", "1"}:
        secure = {"ssl": {"check_hostname": False}}
    try:
        connection = pymysql.connect(
            host=parts.hostname or "",
            port=parts.port or 3306,
            user=unquote(parts.username or "") or None,
            password=unquote(parts.password or "") or os.environ.get("MYSQL_PWD", ""),
            charset="utf8mb4",
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            autocommit=True,
            program_name="nevermore",
            **secure,
        )
        with connection.cursor() as cursor:
            for statement in SESSION:
                cursor.execute(statement)
            cursor.execute(f"SET {'max_statement_time' if is_mariadb(connection) else 'max_execution_time'} = 0")
    except (pymysql.Error, OSError, RuntimeError) as error:
        raise SourceError(f"cannot connect to MySQL at {parts.hostname}:{parts.port or 3306}: {words(error)}") from None
    return connection


def text_value(value: str, text: str) -> str:
    """A value of a column in SQL; `value` is its expression for a text."""
    return value.format(f"_utf8mb4 x'{text.encode().hex()}'" if text else "_utf8mb4 ''")


def not_before(columns: Sequence[str], values: Sequence[str]) -> str:
    """A condition for keys that are not before another one; servers find its rows by the index, unlike those of `(a, b) >= (c, d)`."""
    condition = f"{columns[-1]} >= {values[-1]}"
    for column, value in zip(columns[-2::-1], values[-2::-1], strict=True):
        condition = f"{column} >= {value} AND ({column} > {value} OR ({condition}))"
    return condition


def before(columns: Sequence[str], values: Sequence[str]) -> str:
    """A condition for keys that are before another one."""
    condition = f"{columns[-1]} < {values[-1]}"
    for column, value in zip(columns[-2::-1], values[-2::-1], strict=True):
        condition = f"{column} <= {value} AND ({column} < {value} OR ({condition}))"
    return condition


def is_mariadb(connection: Any) -> bool:
    """Whether a connection is to MariaDB, not to MySQL."""
    return "mariadb" in connection.server_version.lower()


def words(error: BaseException) -> str:
    """What an error says: the server's number and words."""
    return " ".join(" ".join(map(str, error.args)).split()) or type(error).__name__


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Turn errors of the driver into errors of the source.

    Raises:
        SourceError: `what` failed, with the server's words.
        MissingPackageError: PyMySQL is not installed.
    """
    _require_driver()
    import pymysql

    try:
        yield
    except (pymysql.Error, OSError) as error:
        raise SourceError(f"{what}: {words(error)}") from error


@dataclass(frozen=True, slots=True)
class Cascade:
    """A foreign key with an action, which changes rows of other tables without an event in the log.

    Attributes:
        on_delete: whether deletes do.
        columns: columns whose changes do.
        tables: tables whose rows may change.
    """

    on_delete: bool
    columns: frozenset[str]
    tables: frozenset[str]


class Server:
    """A connection for questions to the server. Mutable: opened when it is first needed, and again if it was closed."""

    def __init__(self, source: MysqlSource) -> None:
        self.source = source
        self.database = unquote(urlsplit(source.dsn).path.strip("/"))
        self._connection: Any = None
        self._version: str | None = None
        self._letters: dict[str, tuple[str, ...]] = {}
        self._collations: dict[int, str] = {}

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a query and return its rows.

        Raises:
            SourceError: it failed.
        """
        import pymysql

        with reported("a query to MySQL failed"):
            if self._connection is not None and self._connection.open:
                try:
                    return rows_of(self._connection, sql, values)
                except (pymysql.OperationalError, pymysql.InterfaceError, OSError):
                    self.close()  # closed by the server, perhaps long ago
            self._connection, self._version = connect(self.source), None
            return rows_of(self._connection, sql, values)

    def value(self, sql: str, *values: Any) -> Any:
        """The first value of a query's only row; None without a row."""
        rows = self.query(sql, *values)
        return rows[0][0] if rows else None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            if self._connection.open:
                self._connection.close()
            self._connection = None

    @property
    def version(self) -> str:
        """The version as the server writes it."""
        if self._version is None:
            self._version = str(self.value("SELECT @@version"))
        return self._version

    @property
    def is_mariadb(self) -> bool:
        """Whether it is MariaDB, not MySQL.

        Raises:
            SourceError: the server cannot be reached.
        """
        return "mariadb" in self.version.lower()

    @property
    def title(self) -> str:
        """Which server it is, for people."""
        return f"{'MariaDB' if self.is_mariadb else 'MySQL'} {self.version}"

    @property
    def uuid(self) -> str:
        """What tells a MySQL server from others; MariaDB has nothing like it."""
        return "" if self.is_mariadb else str(self.value("SELECT @@server_uuid"))

    @staticmethod
    def identity_on(connection: Any) -> str:
        """What tells the server of a connection from others, as far as it can be told."""
        unique = "@@hostname, ':', @@port" if is_mariadb(connection) else "@@server_uuid"
        return str(rows_of(connection, f"SELECT CONCAT({unique}, ':', @@server_id)")[0][0])

    def identity(self) -> str:
        """See `identity_on`.

        Raises:
            SourceError: the server cannot be reached.
        """
        self.value("SELECT 1")  # connects
        with reported("a query to MySQL failed"):
            return self.identity_on(self._connection)

    def _numbers(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])

    def settings(self) -> dict[str, str | None]:
        """Settings that the log needs: None where they are right, or what is wrong and what to do about it.

        Raises:
            SourceError: the server cannot be reached, or is none that can be read.
        """
        numbers, least = self._numbers(), MIN_MARIADB if self.is_mariadb else MIN_MYSQL
        if numbers < least:
            raise SourceError(f"{'.'.join(map(str, least))} or newer is required; this is {self.title}")
        of_kind = {} if self.is_mariadb else _OF_MYSQL
        wanted = {n: w for n, w in {**_BOTH, **of_kind}.items() if numbers >= _SINCE.get(n, ())}
        (values,) = self.query(f"SELECT {', '.join(f'@@global.{name}' for name in wanted)}")
        found = dict(zip(wanted, map(str, values), strict=True))
        return {
            name: None
            if found[name].upper() == right
            else f"{name} is {found[name]}, but must be {right or 'empty'}: {what}"
            for name, (right, what) in wanted.items()
        }

    def check(self) -> None:
        """Refuse a server whose changes cannot be read.

        Raises:
            SourceError: says which setting to change.
        """
        for what in self.settings().values():
            if what is not None:
                raise SourceError(what)

    def tables(self) -> tuple[str, ...]:
        """Names of all tables, as `database.table`, without those of the system."""
        rows = self.query(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') "
            "AND table_schema NOT IN %s AND (%s = '' OR table_schema = %s) "
            # bytes, as T and t are equal to some servers, which then return them in any order
            "ORDER BY CAST(table_schema AS BINARY), CAST(table_name AS BINARY)",
            SYSTEM_DATABASES,
            self.database,
            self.database,
        )
        return tuple(f"{schema}.{name}" for schema, name in rows)

    def views(self) -> list[str]:
        """Names of all views, as `database.view`."""
        rows = self.query("SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'VIEW'")
        return [f"{schema}.{name}" for schema, name in rows]

    def row_counts(self) -> dict[str, int]:
        """The number of rows of each table, as the server estimates it."""
        rows = self.query(
            "SELECT table_schema, table_name, table_rows FROM information_schema.tables WHERE table_schema NOT IN %s",
            SYSTEM_DATABASES,
        )
        return {f"{schema}.{name}": int(count or 0) for schema, name, count in rows}

    def files(self) -> list[str]:
        """Names of the log files that the server has, oldest first.

        Raises:
            SourceError: the user may not see them.
        """
        return [str(row[0]) for row in self.query("SHOW BINARY LOGS")]

    def written(self) -> tuple[str, int]:
        """(base of the file names, place after all that is committed now)."""
        return self._status()[:2]

    def _status(self) -> tuple[str, int, str]:
        """(base of the file names, place after what is in the log, transactions that are committed, of MySQL)."""
        is_renamed = not self.is_mariadb and self._numbers() >= _RENAMED_STATUS
        rows = self.query("SHOW BINARY LOG STATUS" if is_renamed else "SHOW MASTER STATUS")
        if not rows:
            raise SourceError("the server writes no binary log: start it with log_bin")
        file = str(rows[0][0])
        return (
            file.rpartition(".")[0],
            place(log_number(file), int(rows[0][1])),
            "" if self.is_mariadb else str(MysqlGtids(str(rows[0][4]))),
        )

    def quiet(self) -> tuple[str, int, str] | None:
        """What `_status` has, if all transactions up to the place are committed, and no others; None on a busy server."""
        for _ in range(QUIET_TRIES):
            before, owned = self._status(), self.value("SELECT @@global.gtid_owned")
            if not owned and self._status() == before:
                return before
        return None

    def executed(self) -> MysqlGtids:
        """All transactions that a MySQL server has."""
        return MysqlGtids(str(self.value("SELECT @@global.gtid_executed")))

    def gtid_at(self, base: str, at: int) -> str | None:
        """The position of global transaction identifiers of MariaDB at a place of the log; None if the log has no such place."""
        number, offset = parts_of(at)
        found = self.value("SELECT BINLOG_GTID_POS(%s, %s)", file_name(base, number), offset)
        return None if found is None else str(MariaGtids(str(found)))

    def charset_of(self, collation: int) -> str:
        """The character set of a collation, by its number in the binary log."""
        if not self._collations:
            of = "collation_character_set_applicability" if self.is_mariadb else "collations"
            self._collations = {
                int(number): str(name)
                for number, name in self.query(
                    f"SELECT id, character_set_name FROM information_schema.{of} WHERE character_set_name IS NOT NULL"
                )
            }
        return self._collations.get(collation, "")

    def text_of(self, charset: str) -> tuple[int, tuple[str, ...]]:
        """How text of a character set is stored: as it is, by the UTF-8 of each character, or so that it cannot be read."""
        if charset in {"utf8mb4", "utf8mb3", "utf8", "ascii"}:
            return stored.TEXT, ()
        if charset not in self._letters:
            widest = self.value(
                "SELECT maxlen FROM information_schema.character_sets WHERE character_set_name = %s", charset
            )
            letters: tuple[str, ...] = ()
            if widest == 1:
                # The server itself says which character each byte is.
                each = ", ".join(f"CONVERT(_{charset} 0x{byte:02X} USING utf8mb4)" for byte in range(256))
                letters = tuple(map(str, self.query(f"SELECT {each}")[0]))
            self._letters[charset] = letters
        letters = self._letters[charset]
        return (stored.SINGLE, letters) if letters else (stored.REFUSED, ())

    def describe(self, name: str, connection: Any = None) -> MysqlTable:
        """The columns and the key of a table as they are now.

        Raises:
            SourceError: the table no longer exists.
        """
        schema, table = name.split(".", 1)
        ask = self.query if connection is None else lambda sql, *values: rows_of(connection, sql, values)
        rows = ask(
            "SELECT column_name, data_type, column_type, character_set_name, column_key FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            schema,
            table,
        )
        if not rows:
            raise SourceError(f"{name} no longer exists in the database")
        key = tuple(
            str(column)
            for (column,) in ask(
                "SELECT column_name FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s "
                "AND index_name = 'PRIMARY' ORDER BY seq_in_index",
                schema,
                table,
            )
        )
        return MysqlTable(name, tuple(self._column(*row[:4]) for row in rows), key)

    def ordered_key(self, name: str) -> tuple[tuple[str, str], ...]:
        """Columns of the primary key in its order, each with an expression that makes a value from text (`{}`).

        None if the text of some value might not lead to the same place in the order, as that of floats, enums and bits, or if
        only the beginning of a column is in the key.
        """
        rows = self.query(
            "SELECT c.column_name, c.data_type, c.column_type, c.character_set_name, c.collation_name, c.numeric_precision, "
            "c.numeric_scale, s.sub_part FROM information_schema.statistics s JOIN information_schema.columns c USING "
            "(table_schema, table_name, column_name) WHERE s.table_schema = %s AND s.table_name = %s AND s.index_name = 'PRIMARY' "
            "ORDER BY s.seq_in_index",
            *name.split(".", 1),
        )
        found = []
        for column, kind, whole, charset, collation, precision, scale, part in rows:
            if part is not None:
                return ()
            if kind in {*INTEGER_BYTES, "year"}:
                value = f"CAST({{}} AS {'UNSIGNED' if 'unsigned' in whole or kind == 'year' else 'SIGNED'})"
            elif kind in {"char", "varchar"} and charset is not None:
                value = f"CONVERT({{}} USING {charset}) COLLATE {collation}"
            elif kind in {"binary", "varbinary"}:
                value = "UNHEX({})"
            elif kind == "decimal":
                value = f"CAST({{}} AS DECIMAL({precision},{scale}))"
            elif kind in {"date", "datetime", "timestamp"}:
                value = "CAST({} AS DATE)" if kind == "date" else "CAST({} AS DATETIME(6))"
            else:
                return ()
            found.append((str(column), value))
        return tuple(found)

    def are_at_or_behind(
        self, columns: Sequence[KeyColumn], keys: Sequence[Sequence[str]], ends: Sequence[Sequence[str]]
    ) -> list[bool]:
        """Whether each key is not before an end of its own, in the order that the server has; both are texts."""
        numbers = range(len(columns))
        rows = (
            ", ".join([str(place), *(text_value(columns[n].sql, side[n]) for n in numbers for side in (key, end))])
            for place, (key, end) in enumerate(zip(keys, ends, strict=True))
        )
        names = ["p", *(f"{side}{n}" for n in numbers for side in "ke")]
        condition = not_before([f"v.k{n}" for n in numbers], [f"v.e{n}" for n in numbers])
        selects = " UNION ALL ".join(f"SELECT {row}" for row in rows)
        found = self.query(f"WITH v ({', '.join(names)}) AS ({selects}) SELECT p, {condition} FROM v")
        return [bool(is_behind) for _, is_behind in sorted(found)]

    def foreign_keys(self, name: str) -> list[tuple[str, Cascade]]:
        """(parent, what its changes do to rows of this table without an event in the log) of the foreign keys with an action.

        Its statement shows them to everyone who may read the table; `REFERENTIAL_CONSTRAINTS` is empty without another right.
        """
        found = []
        statement = str(self.query(f"SHOW CREATE TABLE {'.'.join(map(quoted, name.split('.', 1)))}")[0][1])
        for schema, parent, columns, on_delete, on_update in _FOREIGN_KEY.findall(statement):
            if {on_delete, on_update} & {*_ACTIONS}:
                parent_name = f"{unquoted(schema or name.split('.', 1)[0])}.{unquoted(parent)}"
                changed = map(unquoted, re.findall(NAME, columns)) if on_update in _ACTIONS else ()
                found.append((parent_name, Cascade(on_delete in _ACTIONS, frozenset(changed), frozenset({name}))))
        return found

    def cascades(self, wanted: Collection[str]) -> dict[str, tuple[Cascade, ...]]:
        """By table, what its deletes and changed keys do to rows of wanted tables without an event in the log."""
        children = {
            f"{schema}.{name}"
            for schema, name in self.query(
                "SELECT DISTINCT table_schema, table_name FROM information_schema.key_column_usage "
                "WHERE referenced_table_name IS NOT NULL"
            )
        }
        edges: dict[str, list[Cascade]] = {}
        waiting = list(children & set(wanted))
        for child in waiting:  # grows
            for parent, cascade in self.foreign_keys(child):
                edges.setdefault(parent, []).append(cascade)
                if parent in children and parent not in waiting:
                    waiting.append(parent)
        found = {}
        for parent, cascades in edges.items():
            reached = (replace(c, tables=_descendants(c.tables, edges) & set(wanted)) for c in cascades)
            if kept := tuple(c for c in reached if c.tables):
                found[parent] = kept
        return found

    def _check_parents(self, name: str) -> None:
        """Refuse a table whose rows foreign keys may change from tables that the user may not see.

        Raises:
            SourceError: names the table to grant rights on.
        """
        waiting = [name]
        for child in waiting:  # grows
            for parent, _ in self.foreign_keys(child):
                if not self.query(
                    "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
                    *parent.split(".", 1),
                ):
                    raise SourceError(
                        f"foreign keys change rows of {name} when {parent} changes, and the user may not see what changes that: "
                        f"GRANT SELECT ON {parent} TO the user"
                    )
                if parent not in waiting:
                    waiting.append(parent)

    def check_engine(self, name: str) -> None:
        """Refuse a table whose rows of a moment cannot be selected.

        Raises:
            SourceError: its engine has no transactions, the log has rows of its history among its own, or the user may not see some of
                its columns, although the log contains their values, or tables whose changes change its rows.
        """
        rows = self.query(
            "SELECT engine, table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            *name.split(".", 1),
        )
        engine, kind = rows[0] if rows else (None, "")
        if kind == "SYSTEM VERSIONED":
            raise SourceError(
                f"{name} is system-versioned, so the binary log has rows of its history among its own: "
                f"ALTER TABLE {name} DROP SYSTEM VERSIONING"
            )
        if engine is not None and engine != "InnoDB":
            raise SourceError(
                f"{name} is of engine {engine}, which has no transactions, so it cannot be read at one moment: "
                f"ALTER TABLE {name} ENGINE = InnoDB"
            )
        if engine is not None:
            self.query(f"SELECT * FROM {'.'.join(map(quoted, name.split('.', 1)))} LIMIT 0")
            self._check_parents(name)

    def without_unreadable(self, table: MysqlTable) -> MysqlTable:
        """A description from the log, with columns marked whose type only the catalog knows to be unreadable (UUID, INET6)."""
        schema, name = table.name.split(".", 1)
        rows = self.query(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
            schema,
            name,
        )
        own = {column for column, kind in rows if self._column(column, kind, kind, None).stored == stored.REFUSED}
        columns = (
            replace(c, stored=stored.REFUSED) if c.name in own and c.stored == stored.FIXED_BYTES else c
            for c in table.columns
        )
        return replace(table, columns=tuple(columns))

    def _column(self, name: str, kind: str, full: str, charset: str | None) -> MysqlColumn:
        kind = kind.lower()
        arguments = re.search(r"\(([\d,]+)\)", full)
        numbers = [int(n) for n in arguments[1].split(",")] if arguments else []
        if "COMPRESSED*/" in full.upper().replace(" ", ""):  # of MariaDB
            return MysqlColumn(name, f"{kind} compressed", stored.REFUSED)
        if kind in INTEGER_BYTES:
            return integer(name, kind, is_unsigned="unsigned" in full.lower())
        if kind == "decimal":
            digits, scale = (*(numbers or [10]), 0)[:2]
            return MysqlColumn(name, f"decimal({digits},{scale})", stored.DECIMAL, digits, scale)
        if kind in {"float", "double"}:
            return MysqlColumn(name, kind, stored.FLOAT if kind == "float" else stored.DOUBLE)
        if kind == "bit":
            return bits(name, numbers[0] if numbers else 1)
        if kind in {"date", "time", "datetime", "timestamp", "year"}:
            what = {
                "date": stored.DATE,
                "time": stored.TIME,
                "datetime": stored.DATETIME,
                "timestamp": stored.TIMESTAMP,
                "year": stored.YEAR,
            }[kind]
            return MysqlColumn(name, kind, what)
        if kind in _BYTES:
            return MysqlColumn(name, "bytes", stored.BYTES)
        if kind in _TEXTS:
            # The server converts text that it sends; in the log it is as it is stored, which must be known, too.
            if self.text_of(charset or "utf8mb4")[0] == stored.REFUSED:
                return MysqlColumn(name, f"{kind} in {charset}", stored.REFUSED)
            return MysqlColumn(name, "text", stored.TEXT)
        return MysqlColumn(name, kind, stored.REFUSED)


def _descendants(tables: frozenset[str], edges: Mapping[str, Sequence[Cascade]]) -> frozenset[str]:
    """Tables, and all that foreign keys with actions reach from them."""
    found, waiting = set(tables), list(tables)
    while waiting:
        for cascade in edges.get(waiting.pop(), ()):
            waiting += cascade.tables - found
            found |= cascade.tables
    return frozenset(found)


def integer(name: str, kind: str, *, is_unsigned: bool) -> MysqlColumn:
    """An integer column."""
    what = stored.UNSIGNED if is_unsigned else stored.SIGNED
    return MysqlColumn(name, f"{kind} unsigned" if is_unsigned else kind, what, INTEGER_BYTES[kind])


def bits(name: str, count: int) -> MysqlColumn:
    """A column of bits: a boolean if there is one."""
    return MysqlColumn(name, f"bit({count})", stored.BOOLEAN if count == 1 else stored.BIT, (count + 7) // 8)


def rows_of(connection: Any, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a query on a connection."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


def quoted(name: str) -> str:
    """A name in SQL."""
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """A name as SQL has it, without its quotes."""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def lost(why: str, position: MysqlPosition) -> SourceError:
    """The error for changes that the server no longer has."""
    return SourceError(
        f"{why}, so changes after {position.file}:{parts_of(position.at)[1]} may be lost. Load the tables again: "
        "nevermore resync TABLE --from-source"
    )
