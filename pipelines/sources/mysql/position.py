"""The position of a table in the binary log of a MySQL or MariaDB server.

A load reads each chunk of a table in a transaction whose place in the log is known. A change of the stream is part of the
chunk if its transaction begins before that place: the log has transactions in the order in which they became visible.

Sets of global transaction identifiers say which transactions a place of the log contains. MariaDB and MySQL have different ones;
their texts are those of the servers, in one order: equal sets have equal texts.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from nevermore.pipelines.sources.table_position import TablePosition, other_identity

_PLACE_BITS = 40


def log_number(file: str) -> int:
    """The number at the end of a log file's name."""
    return int(file.rpartition(".")[2])


def place(number: int, offset: int) -> int:
    """A place in the log as a number whose order is that of the log: the number of a file, and an offset in it."""
    return number << _PLACE_BITS | offset


def parts_of(at: int) -> tuple[int, int]:
    """(number of the file, offset) of a place."""
    return at >> _PLACE_BITS, at & ((1 << _PLACE_BITS) - 1)


@dataclass(frozen=True, kw_only=True)
class MysqlPosition(TablePosition):
    """A position: transactions that begin at `at`, or later, are not contained.

    Attributes:
        base: name of the log files without their numbers.
        gtid: the global transaction identifiers that the log has up to this place; other servers have others there.
        server: UUID of a MySQL server; MariaDB has none.
        identity: name of the table, and the columns of the primary key that it had when it was loaded; empty if rows are identified
            in another way, or it is not known.
    """

    source: ClassVar[str] = "mysql"
    title: ClassVar[str] = "MySQL"
    base: str
    gtid: str
    server: str = ""
    identity: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Name of the log file."""
        return file_name(self.base, parts_of(self.at)[0])

    @property
    def place(self) -> str:
        """See `TablePosition`."""
        return f"{self.file}:{parts_of(self.at)[1]}"

    @property
    def stated(self) -> str:
        """See `TablePosition`."""
        return f"{self.place}, gtid {self.gtid or 'none'}"

    def check_key(self, table: str, key: Sequence[str]) -> None:
        """Refuse a table with another key than the one that it was loaded with.

        Raises:
            SourceError: it has another key.
        """
        if self.identity and self.identity[0] == table and set(key) != set(self.identity[1:]):
            was, now = ", ".join(self.identity[1:]), ", ".join(key) or "none"
            raise other_identity(table, f"its primary key is another one ({now} instead of {was})")


def file_name(base: str, number: int) -> str:
    """Name of a log file: the server writes at least six digits."""
    return f"{base}.{number:06d}"


@dataclass(frozen=True, slots=True)
class Gtid:
    """A transaction: its domain and server (MariaDB) or its source (MySQL, a UUID), and its number there."""

    source: str
    number: int
    server: int = 0


class MariaGtids:
    """A set of transactions: the last transaction of each domain, which precedes all others there (`0-1-57`)."""

    def __init__(self, text: str = "") -> None:
        """Parse a set.

        Raises:
            ValueError: it is none of MariaDB.
        """
        self.last: dict[str, tuple[int, int]] = {}
        for part in filter(None, text.replace("\n", "").split(",")):
            domain, server, number = part.strip().split("-")
            self.last[domain] = int(number), int(server)

    @classmethod
    def from_log(cls, body: memoryview) -> "MariaGtids":
        """The set of an event that tells what earlier files have."""
        made = cls()
        for number in range(int.from_bytes(body[:4], "little") & 0x0FFFFFFF):
            part = body[4 + 16 * number : 20 + 16 * number]
            domain, server, sequence = (int.from_bytes(part[p:q], "little") for p, q in ((0, 4), (4, 8), (8, 16)))
            made.add(Gtid(str(domain), sequence, server))
        return made

    def add(self, gtid: Gtid) -> None:
        """Add a transaction."""
        self.last[gtid.source] = gtid.number, gtid.server

    def contains(self, gtid: Gtid) -> bool:
        """Whether it has a transaction."""
        return gtid.number <= self.last.get(gtid.source, (-1, 0))[0]

    def is_within(self, other: "MariaGtids") -> bool:
        """Whether the other set has all transactions of this one."""
        return all(number <= other.last.get(domain, (-1, 0))[0] for domain, (number, _) in self.last.items())

    def __str__(self) -> str:
        return ",".join(
            f"{domain}-{server}-{number}" for domain, (number, server) in sorted(self.last.items(), key=_domain)
        )


def _domain(item: tuple[str, tuple[int, int]]) -> int:
    return int(item[0])


class MysqlGtids:
    """A set of transactions: intervals of numbers of each source (`3e11fa47-71ca-11e1-9e33-c80aa9429562:1-57:60`)."""

    def __init__(self, text: str = "") -> None:
        """Parse a set.

        Raises:
            ValueError: it is none of MySQL.
        """
        self._intervals: dict[str, tuple[list[int], list[int]]] = {}
        for part in filter(None, text.replace("\n", "").split(",")):
            source, *intervals = part.strip().split(":")
            for interval in intervals:
                first, _, last = interval.partition("-")
                self._include(str(UUID(source)), int(first), int(last or first))

    @classmethod
    def from_log(cls, body: memoryview) -> "MysqlGtids":
        """The set of an event that tells what earlier files have."""
        made, at = cls(), 8
        for _ in range(int.from_bytes(body[:8], "little")):
            source, count = (
                str(UUID(bytes=bytes(body[at : at + 16]))),
                int.from_bytes(body[at + 16 : at + 24], "little"),
            )
            at += 24
            for _ in range(count):
                first, end = (int.from_bytes(body[p : p + 8], "little") for p in (at, at + 8))
                made._include(source, first, end - 1)
                at += 16
        return made

    def add(self, gtid: Gtid) -> None:
        """Add a transaction."""
        self._include(gtid.source, gtid.number, gtid.number)

    def contains(self, gtid: Gtid) -> bool:
        """Whether it has a transaction."""
        return self.has(gtid.source, gtid.number, gtid.number)

    def _include(self, source: str, first: int, last: int) -> None:
        firsts, lasts = self._intervals.setdefault(source, ([], []))
        begin = bisect_right(lasts, first - 2)  # the first interval that reaches this one, or touches it
        end = bisect_right(firsts, last + 1)
        if begin < end:
            first, last = min(first, firsts[begin]), max(last, lasts[end - 1])
        firsts[begin:end], lasts[begin:end] = [first], [last]

    def is_within(self, other: "MysqlGtids") -> bool:
        """Whether the other set has all transactions of this one."""
        return all(other.has(source, first, last) for source, first, last in self._all())

    def has(self, source: str, first: int, last: int) -> bool:
        """Whether it has all of an interval."""
        firsts, lasts = self._intervals.get(source, ([], []))
        at = bisect_right(firsts, first) - 1
        return at >= 0 and last <= lasts[at]

    def _all(self) -> Iterator[tuple[str, int, int]]:
        for source, (firsts, lasts) in sorted(self._intervals.items()):
            for first, last in zip(firsts, lasts, strict=True):
                yield source, first, last

    def __str__(self) -> str:
        texts: dict[str, str] = {}
        for source, first, last in self._all():
            interval = f"{first}-{last}" if last > first else str(first)
            texts[source] = f"{texts.get(source, source)}:{interval}"
        return ",".join(texts.values())
