"""Reads the binary log of a server: packets, events with their places, descriptions of tables, and statements.

Every event must begin where the last one ended: a connection that skips or repeats events is an error.
"""

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats import mysql_kernels as stored
from nevermore.pipelines.formats.binlog import MysqlColumn, MysqlTable
from nevermore.pipelines.sources.mysql.position import Gtid, MariaGtids, MysqlGtids, file_name, parts_of, place
from nevermore.pipelines.sources.mysql.server import NAME, Server, bits, connect, integer, reported, rows_of, unquoted

QUERY, STOP, ROTATE, FORMAT, XID, TABLE_MAP, INCIDENT, HEARTBEAT, XA_PREPARE = 2, 3, 4, 15, 16, 19, 26, 27, 38
MYSQL_GTID, MYSQL_ANONYMOUS, MYSQL_PREVIOUS, MYSQL_COMPRESSED, MYSQL_TAGGED = 33, 34, 35, 40, 42
ANNOTATE, CHECKPOINT, GTID, GTID_LIST, ENCRYPTION, QUERY_COMPRESSED = 160, 161, 162, 163, 164, 165
ROWS = {
    number + at: what
    for number in (23, 30, 166, 169)  # both versions, plain and compressed
    for at, what in enumerate((b"c", b"u", b"d"))
}
"""What events with rows do, by their type."""
WITHOUT_ROWS = {
    INCIDENT: "an incident: the server lost changes",
    MYSQL_COMPRESSED: "a compressed transaction (binlog_transaction_compression)",
    MYSQL_TAGGED: "a transaction with a tag in its identifier (GTID_NEXT)",
    MYSQL_ANONYMOUS: "a transaction without an identifier (gtid_mode)",
}
"""Events that may stand for rows of any table, and what they are: the settings for them are refused, but a session may have its own."""
PARTIAL_ROWS = 39
LOAD_QUERY = 18
"""A statement (LOAD DATA) whose data precedes it."""
_IGNORABLE = 0x80
_BESIDE_ROWS = frozenset({5, 13, 14, 17, 29, 36, 37, 41, ANNOTATE})
"""Variables and data of statements, texts of statements beside their rows, and what groups of servers say to each other."""
_SECOND_VERSION = frozenset({30, 31, 32, 169, 170, 171})
_COMPRESSED = frozenset({*range(165, 172)})
_OF_FILES = frozenset({FORMAT, ROTATE, STOP, CHECKPOINT, GTID_LIST, MYSQL_PREVIOUS, ENCRYPTION, HEARTBEAT})
"""Events about the log itself, some of which a server keeps to itself."""
_KNOWN = frozenset(
    {
        *(QUERY, LOAD_QUERY, XID, TABLE_MAP, XA_PREPARE, GTID, MYSQL_GTID, PARTIAL_ROWS),
        *(*_OF_FILES, *_BESIDE_ROWS, *ROWS, *WITHOUT_ROWS),
    }
)
_LOAD_BYTES = 13
"""What precedes a statement with data: number of the data, and where its name is."""
_HEADER = struct.Struct("<IBIIIH")
_HEADER_BYTES = _HEADER.size
_ARTIFICIAL = 0x20
_CHECKSUM_BYTES = 4
_FIRST = 4
"""Where the events of a file begin."""
FULL_PACKET = 0xFFFFFF
"""Bytes of a packet that another one continues."""
COM_BINLOG_DUMP = 0x12
_NON_BLOCKING, _WITH_STATEMENTS = 1, 2
STANDALONE = 1
"""Flag of a GTID: the event after it is all of its transaction."""


class UndescribedError(SourceError):
    """The log does not describe the rows of a table; the text says what it has instead."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An event of the log.

    Attributes:
        kind: its type.
        seconds: when it was made, since 1970.
        begin: place where it begins.
        end: place after it.
        server: number of the server that made it.
        body: its content without header and checksum.
    """

    kind: int
    seconds: int
    begin: int
    end: int
    server: int
    body: memoryview


def packets(connection: Any) -> Iterator[bytes]:
    """Packets that a server sends, each in whole, without end."""
    read = connection._rfile.read  # noqa: SLF001 - PyMySQL reads packets one field at a time
    while True:
        parts = []
        while True:
            header = read(4)
            if len(header) < 4:
                raise OSError("the server closed the connection")
            size = int.from_bytes(header[:3], "little")
            part = read(size)
            if len(part) < size:
                raise OSError("the server closed the connection")
            parts.append(part)
            if size < FULL_PACKET:
                break
        yield parts[0] if len(parts) == 1 else b"".join(parts)


class LogReader:
    """Reads events from a place to the end of what the server has, over a connection of its own. Mutable: knows where it is."""

    def __init__(self, server: Server, base: str, at: int) -> None:
        """Ask for the events from a place on.

        Raises:
            SourceError: the server cannot be reached, or another one answers now.
        """
        self.base, self.at = base, at
        self._connection: Any = connect(server.source)
        identity = server.identity()
        with reported("the binary log cannot be read"):
            if server.identity_on(self._connection) != identity:
                self._connection.close()
                raise SourceError(
                    "another server answers than a moment before; the next run reads it from the right place"
                )
        number, offset = parts_of(at)
        self._number, self._offset = number, offset
        self._is_in_header = True
        self._has_checksums = self._has_format = False
        with reported("the binary log cannot be read"):
            for statement in (
                "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum",
                "SET @mariadb_slave_capability = 4",
            ):
                rows_of(self._connection, statement)
            name = file_name(base, number).encode()
            # No number of a server: it reads like mysqlbinlog, and ends where the log ends now.
            arguments = struct.pack("<IHI", offset & 0xFFFFFFFF, _NON_BLOCKING | _WITH_STATEMENTS, 0)
            self._connection._execute_command(COM_BINLOG_DUMP, arguments + name)  # noqa: SLF001

    def close(self) -> None:
        """Close the connection."""
        if self._connection.open:
            self._connection._force_close()  # noqa: SLF001 - the server has more to send, and expects no command

    def events(self) -> Iterator[LogEvent]:
        """Events up to the end of the log.

        Raises:
            SourceError: the server has not what follows the place, an event is damaged, or events are missing.
        """
        with reported("the connection to the binary log broke; the next run continues where the tables are"):
            for packet in packets(self._connection):
                if packet[0] == 0xFE and len(packet) < 9:
                    return
                if packet[0] == 0xFF:
                    raise self._refused(packet)
                found = self._event(packet)
                if found is not None:
                    yield found

    def _refused(self, packet: bytes) -> SourceError:
        number, text = struct.unpack_from("<H", packet, 1)[0], packet[9:].decode("utf-8", "replace")
        where = f"{file_name(self.base, self._number)}:{self._offset}"
        return SourceError(
            f"the server does not send its binary log from {where} on ({number}: {text}). If it is another server, or removed "
            "that part of its log, changes may be lost: nevermore resync TABLE --from-source"
        )

    def _event(self, packet: bytes) -> LogEvent | None:
        seconds, kind, server, size, log_pos, flags = _HEADER.unpack_from(packet, 1)
        if size != len(packet) - 1:
            raise SourceError(f"an event of the binary log at {self._where} has {len(packet) - 1} bytes, not {size}")
        body_end = len(packet)
        if kind == FORMAT:
            self._has_checksums, self._has_format = packet[-5] == 1, True
        if self._has_checksums and not (kind == ROTATE and flags & _ARTIFICIAL):
            body_end -= _CHECKSUM_BYTES
            if kind != FORMAT and zlib.crc32(memoryview(packet)[1:body_end]) != int.from_bytes(packet[-4:], "little"):
                raise SourceError(f"an event of the binary log at {self._where} is damaged: its checksum is wrong")
        if kind == ROTATE and flags & _ARTIFICIAL:
            self._follow(packet[1 + _HEADER_BYTES + 8 :])
        if log_pos == 0 or flags & _ARTIFICIAL:
            return None
        begin = self._begin_of(log_pos, size)
        self._is_in_header &= kind in _OF_FILES
        self._offset = begin + size
        place_of = place(self._number, begin)
        self.at = place(self._number, self._offset)
        body = memoryview(packet)[1 + _HEADER_BYTES : body_end]
        if kind == ROTATE:
            self._rotate(body)
        if kind in _COMPRESSED:
            kind, body = _decompressed(kind, body)
        if kind not in _KNOWN and not flags & _IGNORABLE:
            raise SourceError(
                f"an event of the binary log at {self._where} is of the unknown type {kind}: is the server too new?"
            )
        return LogEvent(kind, seconds, place_of, self.at, server, body)

    def _begin_of(self, log_pos: int, size: int) -> int:
        """Where an event begins that says where it ends.

        Raises:
            SourceError: not where the last one ended.
        """
        begin = self._offset
        if (log_pos - size) & 0xFFFFFFFF == begin & 0xFFFFFFFF:
            return begin
        if not self._is_in_header or log_pos - size < begin:
            raise SourceError(
                f"events of the binary log at {self._where} are missing: the next one begins at {log_pos - size}. The next run "
                "reads them again; if that does not help, nevermore resync TABLE --from-source"
            )
        return log_pos - size

    def _rotate(self, body: memoryview) -> None:
        """Go on to the file that the last one names at its end."""
        self.base, _, number = bytes(body[8:]).decode().rpartition(".")
        self._number, self._offset, self._is_in_header = int(number), int.from_bytes(body[:8], "little"), True
        self.at = place(self._number, self._offset)

    def _follow(self, name: bytes) -> None:
        """Go on to the next file where the last one does not name it: the server stopped without ending that.

        Raises:
            SourceError: a file is missing between the two.
        """
        if not self._has_format:  # the name of the file that was asked for
            return
        text = (name[:-_CHECKSUM_BYTES] if self._has_checksums else name).decode()
        base, _, number = text.rpartition(".")
        if int(number) == self._number:
            return
        if base != self.base or int(number) != self._number + 1:
            raise SourceError(
                f"after {self._where}, the server goes on with {text}: nevermore resync TABLE --from-source"
            )
        self._number, self._offset, self._is_in_header = int(number), _FIRST, True
        self.at = place(self._number, self._offset)

    @property
    def _where(self) -> str:
        return f"{file_name(self.base, self._number)}:{self._offset}"


def _decompressed(kind: int, body: memoryview) -> tuple[int, memoryview]:
    """An event as it was before compression (log_bin_compress)."""
    if kind == QUERY_COMPRESSED:
        head = 13 + body[8] + int.from_bytes(body[11:13], "little") + 1
        return QUERY, memoryview(bytes(body[:head]) + _inflated(body[head:]))
    at = 8 + (int.from_bytes(body[8:10], "little") if kind in _SECOND_VERSION else 0)
    count, at = _length(body, at)
    at += (count + 7) // 8 * (2 if ROWS[kind] == b"u" else 1)
    plain = {166: 23, 169: 30}[166 if kind < 169 else 169] + (kind - 166) % 3
    return plain, memoryview(bytes(body[:at]) + _inflated(body[at:]))


def _inflated(data: memoryview) -> bytes:
    size = data[0] & 7
    if data[0] >> 4 & 7:
        raise SourceError("an event of the binary log is compressed in an unknown way")
    return zlib.decompress(data[1 + size :])


def _length(data: memoryview, at: int) -> tuple[int, int]:
    """(a number of variable length, the position after it)."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _texts(data: memoryview, at: int, count: int) -> tuple[list[bytes], int]:
    found = []
    for _ in range(count):
        size, at = _length(data, at)
        found.append(bytes(data[at : at + size]))
        at += size
    return found, at


def gtid_in(event: LogEvent) -> Gtid:
    """The identifier of the transaction that begins with this event."""
    body = event.body
    if event.kind == MYSQL_GTID:
        return Gtid(str(UUID(bytes=bytes(body[1:17]))), int.from_bytes(body[17:25], "little"))
    return Gtid(str(int.from_bytes(body[8:12], "little")), int.from_bytes(body[:8], "little"), event.server)


def gtids_at(server: Server, base: str, at: int) -> MysqlGtids:
    """The transactions that the log of a MySQL server has up to a place: what its file begins with, and what follows there.

    Raises:
        SourceError: the log does not reach the place.
    """
    found = MysqlGtids()
    reader = LogReader(server, base, place(parts_of(at)[0], _FIRST))
    with closing(reader):
        for event in reader.events():
            if event.begin >= at:
                return found
            if event.kind == MYSQL_PREVIOUS:
                found = MysqlGtids.from_log(event.body)
            elif event.kind == MYSQL_GTID:
                found.add(gtid_in(event))
    if reader.at < at:
        raise SourceError(
            f"the binary log ended before {file_name(base, parts_of(at)[0])}:{parts_of(at)[1]}; run again"
        )
    return found


def place_of(server: Server, base: str, numbers: Sequence[int], wanted: MariaGtids | MysqlGtids) -> int | None:
    """The place up to which a log has exactly these transactions; None if it has none.

    Args:
        server: where the log is.
        base: name of its files without their numbers.
        numbers: numbers of its files, oldest first.
        wanted: the transactions.

    Raises:
        SourceError: the log cannot be read.
    """
    for number in reversed(numbers):
        found: Any = None
        with closing(LogReader(server, base, place(number, _FIRST))) as reader:
            for event in reader.events():
                if event.kind in {MYSQL_PREVIOUS, GTID_LIST} and found is None:
                    found = (MariaGtids if event.kind == GTID_LIST else MysqlGtids).from_log(event.body)
                    if not found.is_within(wanted):
                        break  # an earlier file may have the place
                elif event.kind in {GTID, MYSQL_GTID} and found is not None:
                    if not wanted.contains(gtid_in(event)):
                        return event.begin if str(found) == str(wanted) else None
                    found.add(gtid_in(event))
            else:
                return reader.at if str(found) == str(wanted) else None
    return None


def rows_in(event: LogEvent) -> tuple[int, memoryview]:
    """(identifier of the table, bitmaps of columns and rows) of an event with rows."""
    return int.from_bytes(event.body[:6], "little"), event.body[_columns_of(event)[1] :]


def has_all_columns(event: LogEvent) -> bool:
    """Whether the rows of an event have all columns of their table, before a change and after it."""
    count, at = _columns_of(event)
    size = (count + 7) // 8
    images = (event.body[at + n * size : at + (n + 1) * size] for n in range(2 if ROWS[event.kind] == b"u" else 1))
    whole = (1 << count) - 1
    return all(int.from_bytes(image, "little") & whole == whole for image in images)


def _columns_of(event: LogEvent) -> tuple[int, int]:
    """(number of columns, place of their bitmaps) of an event with rows."""
    at = 8 + (int.from_bytes(event.body[8:10], "little") if event.kind in _SECOND_VERSION else 0)
    return _length(event.body, at)


def statement_in(event: LogEvent) -> tuple[str, str]:
    """(database, statement) of an event with a statement."""
    body = event.body
    size, status = body[8], int.from_bytes(body[11:13], "little")
    at = 13 + (_LOAD_BYTES if event.kind == LOAD_QUERY else 0) + status
    return bytes(body[at : at + size]).decode("utf-8", "replace"), bytes(body[at + size + 1 :]).decode(
        "utf-8", "replace"
    )


_TYPES = {1: "tinyint", 2: "smallint", 3: "int", 8: "bigint", 9: "mediumint"}
_SIZED = {
    4: ("float", stored.FLOAT),
    5: ("double", stored.DOUBLE),
    10: ("date", stored.DATE),
    13: ("year", stored.YEAR),
    255: ("geometry", stored.REFUSED),
}
_TIMES = {17: ("timestamp", stored.TIMESTAMP), 18: ("datetime", stored.DATETIME), 19: ("time", stored.TIME)}
_BIT, _JSON, _DECIMAL = 16, 245, 246
_COMPRESSED_COLUMNS = frozenset({140, 141})
_COMPRESSED_BLOB = 140
_NUMERIC = frozenset({*_TYPES, 4, 5, 13, _DECIMAL})
_NUMERIC_OF_MYSQL = _NUMERIC - {13}
"""Columns that have a bit of their own among those with a sign."""
_META_BYTES = {
    4: 1,
    5: 1,
    15: 2,
    16: 2,
    17: 1,
    18: 1,
    19: 1,
    246: 2,
    252: 1,
    253: 2,
    254: 2,
    255: 1,
    140: 1,
    141: 2,
    _JSON: 1,
}
_STRING, _ENUM, _SET, _VARCHAR, _BLOB = 254, 247, 248, 15, 252
_CHARACTERS = frozenset({_STRING, _VARCHAR, _BLOB, 253})
_BINARY = "binary"


def table_name(body: memoryview) -> tuple[int, str]:
    """(identifier, `database.table`) of a description."""
    size = body[8]
    at = 9 + size + 1
    name = bytes(body[at + 1 : at + 1 + body[at]])
    return int.from_bytes(body[:6], "little"), f"{bytes(body[9 : 9 + size]).decode()}.{name.decode()}"


def described_in(body: memoryview, server: Server) -> MysqlTable:
    """The table of a description.

    Raises:
        UndescribedError: the log does not have the names of columns, or one is stored in a way that cannot be read.
    """
    _, name = table_name(body)
    at = 9 + body[8] + 1
    at += 1 + body[at] + 1
    count, at = _length(body, at)
    types = list(body[at : at + count])
    _, at = _length(body, at + count)
    metas = []
    for at_column, kind in enumerate(types):
        size = _META_BYTES.get(kind, 0)
        meta = bytes(body[at : at + size])
        at += size
        if kind == _STRING and meta[0] in {_ENUM, _SET}:
            types[at_column] = meta[0]
        metas.append(meta)
    at += (count + 7) // 8
    more: dict[int, memoryview] = {}
    while at < len(body):
        what = body[at]
        size, at = _length(body, at + 1)
        more[what] = body[at : at + size]
        at += size
    if 4 not in more:
        raise UndescribedError(f"changes of {name} without names of columns (SET GLOBAL binlog_row_metadata = 'FULL')")
    names = [text.decode() for text in _texts(more[4], 0, count)[0]]
    signed = _NUMERIC if server.is_mariadb else _NUMERIC_OF_MYSQL
    numeric = [at for at, kind in enumerate(types) if kind in signed]
    unsigned = {at for bit, at in enumerate(numeric) if 1 in more and more[1][bit // 8] >> (7 - bit % 8) & 1}
    charsets = _charsets(more, 2, 3, [at for at, kind in enumerate(types) if kind in _CHARACTERS], server)
    of_choices = _charsets(more, 10, 11, [at for at, kind in enumerate(types) if kind in {_ENUM, _SET}], server)
    choices = {
        **_choices(more.get(6), [at for at, kind in enumerate(types) if kind == _ENUM]),
        **_choices(more.get(5), [at for at, kind in enumerate(types) if kind == _SET]),
    }
    columns = []
    for at_column, (column, kind, meta) in enumerate(zip(names, types, metas, strict=True)):
        if kind in {_ENUM, _SET}:
            text = server.text_of(of_choices.get(at_column, ""))
            columns.append(_choice(column, kind, meta[1], choices.get(at_column, []), text))
        elif kind in _CHARACTERS:
            columns.append(_characters(column, kind, meta, charsets.get(at_column, ""), server))
        else:
            columns.append(_plain(f"{name}.{column}", column, kind, meta, is_unsigned=at_column in unsigned))
    key = _numbers(more[8])[::1] if 8 in more else _numbers(more[9])[::2] if 9 in more else []
    return MysqlTable(name, tuple(columns), tuple(names[at] for at in key))


def _numbers(data: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = _length(data, at)
        found.append(number)
    return found


def _charsets(
    more: dict[int, memoryview], default: int, each: int, columns: list[int], server: Server
) -> dict[int, str]:
    """Character sets of these columns."""
    if each in more:
        collations = dict(zip(columns, _numbers(more[each]), strict=True))
    elif default in more:
        usual, *others = _numbers(more[default])
        special = dict(zip(others[::2], others[1::2], strict=True))
        collations = {column: special.get(at, usual) for at, column in enumerate(columns)}
    else:
        return {}
    return {column: server.charset_of(collation) for column, collation in collations.items()}


def _choices(data: memoryview | None, columns: list[int]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    at = 0
    if data is None:
        return found
    for column in columns:
        count, at = _length(data, at)
        found[column], at = _texts(data, at, count)
    return found


def _choice(column: str, kind: int, size: int, words: list[bytes], text: tuple[int, tuple[str, ...]]) -> MysqlColumn:
    what, letters = text
    if what == stored.REFUSED:
        # stored as a number; its words may be in any character set
        return MysqlColumn(column, "enum in a character set that cannot be read", stored.REFUSED_CHOICE, size)
    texts = tuple("".join(letters[byte] for byte in word) if letters else word.decode() for word in words)
    return MysqlColumn(column, "text", stored.CHOICE if kind == _ENUM else stored.CHOICES, size, choices=texts)


def _characters(column: str, kind: int, meta: bytes, charset: str, server: Server) -> MysqlColumn:
    if kind == _BLOB:
        size, width = meta[0], 0
    elif kind == _STRING:
        width = meta[1] | ((meta[0] & 0x30) ^ 0x30) << 4
        size = 1 if width < 256 else 2
    else:
        width = int.from_bytes(meta, "little")
        size = 1 if width < 256 else 2
    if charset == _BINARY:
        if kind == _STRING:
            return MysqlColumn(column, "bytes", stored.FIXED_BYTES, size, width)
        return MysqlColumn(column, "bytes", stored.BYTES, size)
    what, letters = server.text_of(charset)
    name = "text" if what != stored.REFUSED else f"text in {charset or 'an unknown character set'}"
    return MysqlColumn(column, name, what, size, letters=letters)


def _plain(where: str, column: str, kind: int, meta: bytes, *, is_unsigned: bool) -> MysqlColumn:
    """A column of neither text nor bytes.

    Raises:
        UndescribedError: it is stored in a way that cannot be read.
    """
    if kind in _TYPES:
        return integer(column, _TYPES[kind], is_unsigned=is_unsigned)
    if kind in _SIZED:
        name, what_stored = _SIZED[kind]
        return MysqlColumn(column, name, what_stored, meta[0] if meta else {10: 3, 13: 1}[kind])
    if kind in _TIMES:
        name, what_stored = _TIMES[kind]
        return MysqlColumn(column, name, what_stored, scale=meta[0])
    if kind == _JSON:
        return MysqlColumn(column, "text", stored.TREE, meta[0])
    if kind == _BIT:
        return bits(column, meta[1] * 8 + meta[0])
    if kind == _DECIMAL:
        return MysqlColumn(column, f"decimal({meta[0]},{meta[1]})", stored.DECIMAL, meta[0], meta[1])
    if kind in _COMPRESSED_COLUMNS:
        size = meta[0] if kind == _COMPRESSED_BLOB else 1 if int.from_bytes(meta, "little") < 256 else 2
        return MysqlColumn(column, "compressed", stored.REFUSED, size)
    what = {7: "a timestamp of MySQL 5.5", 11: "a time of MySQL 5.5", 12: "a datetime of MySQL 5.5"}
    raise UndescribedError(
        f"column {where} as {what.get(kind, f'type {kind}')}, which cannot be read (rebuild the table by ALTER TABLE ... FORCE, or "
        "give the column another type)"
    )


# ---- statements ----

_TABLE = rf"{NAME}(?:\s*\.\s*{NAME})?"
_COMMENT = re.compile(r"/\*M?!\d*(.*?)\*/|/\*.*?\*/|^\s*(?:--[^\n]*|#[^\n]*)\n", re.DOTALL)
_CHANGES = re.compile(
    r"(?:INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|DO|WITH|IMPORT|SELECT)\b|CREATE\b.*\bTABLE\b.*\bSELECT\b",
    re.IGNORECASE | re.DOTALL,
)
_CALLS = re.compile(r"(?:CALL|DO|SELECT)\b", re.IGNORECASE)
_UNLINKS = re.compile(r"DROP\s+(?:FOREIGN|CONSTRAINT)\b", re.IGNORECASE)
_TRUNCATE = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?({_TABLE})", re.IGNORECASE)
_DROP = re.compile(rf"DROP\s+TABLES?\s+(?:IF\s+EXISTS\s+)?({_TABLE}(?:\s*,\s*{_TABLE})*)", re.IGNORECASE)
_REPLACE = re.compile(rf"CREATE\s+OR\s+REPLACE\s+TABLE\s+({_TABLE})", re.IGNORECASE)
_DROP_DATABASE = re.compile(rf"DROP\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+EXISTS\s+)?({NAME})", re.IGNORECASE)
_RENAME = re.compile(r"RENAME\s+TABLES?\s+(?:IF\s+EXISTS\s+)?(.*)", re.IGNORECASE | re.DOTALL)
_ALTER = re.compile(
    rf"ALTER\s+(?:ONLINE\s+)?(?:IGNORE\s+)?TABLE\s+(?:IF\s+EXISTS\s+)?({_TABLE})\s*(.*)", re.IGNORECASE | re.DOTALL
)
_MOVED = re.compile(
    rf"(?:RENAME\s+(?:TO\s+|AS\s+|=\s*)?(?!COLUMN\b|INDEX\b|KEY\b)|WITH\s+TABLE\s+|TO\s+TABLE\s+)({_TABLE})",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    rf"""(?:
    (?:ADD|DROP)\s+(?:COLUMN\s+)?(?:IF\s+(?:NOT\s+)?EXISTS\s+)?(?:UNIQUE|INDEX|KEY|FULLTEXT|CONSTRAINT|FOREIGN|CHECK)\b.*
    | ADD\s+(?:COLUMN\s+)?(?:IF\s+NOT\s+EXISTS\s+)?{NAME}\s+
      (?:(?:TINY|SMALL|MEDIUM|BIG)?INT(?:EGER)?|DECIMAL|NUMERIC|FLOAT|DOUBLE|(?:VAR)?CHAR|(?:TINY|MEDIUM|LONG)?(?:TEXT|BLOB)|DATE|DATETIME|TIME
        |(?:VAR)?BINARY|BIT|JSON|YEAR)(?:\s*\([\d,\s]+\))?(?:\s+UNSIGNED)?(?:\s+(?:DEFAULT\s+)?NULL)?(?:\s+COMMENT\s+'[^']*')?
      (?:\s+(?:FIRST|AFTER\s+{NAME}))?
    | DROP\s+COLUMN\s+(?:IF\s+EXISTS\s+)?{NAME}
    | (?:ALGORITHM|LOCK|ENGINE|COMMENT|AUTO_INCREMENT|ROW_FORMAT|STATS_\w+)\s*=?\s*(?:'[^']*'|\w+)
    | RENAME\s+(?:INDEX|KEY)\s.* | ALTER\s+(?:INDEX|KEY)\s.*
    | ALTER\s+(?:COLUMN\s+)?{NAME}\s+(?:SET\s+DEFAULT\b.*|DROP\s+DEFAULT)
    | FORCE | (?:ENABLE|DISABLE)\s+KEYS
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""Parts of ALTER TABLE that change no value of an existing row."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a statement does to tables that is not in events with rows.

    Attributes:
        emptied: tables without rows, or that no longer exist, afterwards.
        unknown: tables whose rows are other ones afterwards, which the log does not have.
        databases: databases that no longer exist.
        unlinked: tables that may have lost a foreign key, so that the catalog no longer tells which changes changed them.
        changes: how it begins, if it changes rows by itself; empty otherwise.
        named: names in it, in lower case.
        is_call: whether it calls functions, which may change any table.
    """

    emptied: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    databases: tuple[str, ...] = ()
    unlinked: tuple[str, ...] = ()
    changes: str = ""
    named: frozenset[str] = frozenset()
    is_call: bool = False


def effect_of(database: str, statement: str) -> Effect:
    """What a statement does to tables; names are `database.table`."""
    text = _COMMENT.sub(lambda found: f" {found[1]} " if found[1] is not None else " ", statement).strip()
    if _CHANGES.match(text) is not None:
        named = frozenset(unquoted(name).lower() for name in re.findall(NAME, text))
        return Effect(changes=text.split(None, 1)[0].upper(), named=named, is_call=_CALLS.match(text) is not None)
    if (found := _TRUNCATE.match(text)) is not None:
        return Effect(emptied=(_full(found[1], database),))
    if (found := _DROP.match(text)) is not None:
        return Effect(emptied=tuple(_full(name, database) for name in re.findall(_TABLE, found[1])))
    if (found := _REPLACE.match(text)) is not None:
        return Effect(emptied=(_full(found[1], database),))
    if (found := _DROP_DATABASE.match(text)) is not None:
        return Effect(databases=(unquoted(found[1]),))
    if (found := _RENAME.match(text)) is not None:
        pairs = re.findall(rf"({_TABLE})\s+(?:WAIT\s+\d+\s+|NOWAIT\s+)?TO\s+({_TABLE})", found[1], re.IGNORECASE)
        return Effect(unknown=tuple(_full(name, database) for pair in pairs for name in pair))
    if (found := _ALTER.match(text)) is not None:
        if all(_HARMLESS.fullmatch(part.strip()) for part in _clauses(found[2])):
            return Effect(unlinked=(_full(found[1], database),) if _UNLINKS.search(found[2]) else ())
        others = _MOVED.findall(found[2])
        return Effect(unknown=tuple(_full(name, database) for name in (found[1], *others)))
    return Effect()


def _clauses(text: str) -> list[str]:
    """The parts of a list that are separated by commas outside of parentheses and quotes."""
    parts, depth, quote, begin = [], 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _full(name: str, database: str) -> str:
    parts = [unquoted(part) for part in re.findall(NAME, name)]
    return ".".join(parts if len(parts) > 1 else (database, *parts))
