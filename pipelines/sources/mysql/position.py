"""The position of a table in the binary log of a MySQL or MariaDB server, and how much of the table is loaded.

A load reads chunks of a table, each in a transaction whose position in the log is known. A change of the stream is
part of a chunk if its transaction begins before that position: the log has transactions in the order in which they became visible.

Sets of global transaction identifiers say which transactions a place of the log contains. MariaDB and MySQL have different ones;
their texts are those of the servers, in one order: equal sets have equal texts.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self
from uuid import UUID

from nevermore.pipelines.sources.live import other_identity, parse_position
from nevermore.pipelines.wording import counted

VERSION = 1
_PLACE_BITS = 40
_PLACE = re.compile(r"(.+)\.(\d+):(\d+)")


def log_number(file: str) -> int:
    """The number at the end of a log file's name."""
    return int(file.rpartition(".")[2])


def place(number: int, offset: int) -> int:
    """A place in the log as a number whose order is that of the log: the number of a file, and an offset in it."""
    return number << _PLACE_BITS | offset


def parts_of(at: int) -> tuple[int, int]:
    """(number of the file, offset) of a place."""
    return at >> _PLACE_BITS, at & ((1 << _PLACE_BITS) - 1)


def parse_place(text: str) -> tuple[str, int]:
    """(base of the file's name, place) of `binlog.000001:1234`.

    Raises:
        ValueError: it is not like that.
    """
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a place in a binary log")
    return match[1], place(int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a table that was read: the keys below `end` that no earlier chunk has, None for all others; and at which place.

    Of a key that is not an integer, `end` is the text of its columns: only the server knows their order.
    """

    end: int | tuple[str, ...] | None
    at: int


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key by whose order a table is divided.

    Attributes:
        name: its name in the mirror.
        value: an expression that makes a value of it from text, for which `{}` stands.
    """

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Load:
    """How much of a table is loaded.

    Attributes:
        chunks: chunks that were read, in order of their keys.
        column: column of the keys in the mirror, if chunks are ranges of an integer key.
        is_complete: whether all of the table is loaded.
        key: columns of the key, if they are ranges of another one.
    """

    chunks: tuple[Chunk, ...] = ()
    column: str | None = None
    is_complete: bool = False
    key: tuple[KeyColumn, ...] = ()

    @property
    def begun_again(self) -> "Load":
        """The load before its first chunk."""
        return Load(column=self.column, key=self.key)

    @property
    def until(self) -> int:
        """The place from which on no change can be part of a chunk."""
        return max((chunk.at for chunk in self.chunks), default=0)

    def to_json(self) -> dict[str, Any]:
        """The load as a JSON object."""
        chunks = [[c.end, *parts_of(c.at)] for c in self.chunks]
        key = {"key": [[c.name, c.value] for c in self.key]} if self.key else {}
        return {"chunks": chunks, "column": self.column, "complete": self.is_complete, **key}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Load":
        """The load of a JSON object."""
        chunks = tuple(
            Chunk(tuple(end) if isinstance(end, list) else end, place(number, offset))
            for end, number, offset in document["chunks"]
        )
        key = tuple(KeyColumn(*column) for column in document.get("key", ()))
        return cls(chunks, document["column"], document["complete"], key)


@dataclass(frozen=True, slots=True)
class MysqlPosition:
    """A position.

    Attributes:
        base: name of the log files without their numbers.
        at: all transactions that begin before this place are contained.
        gtid: the global transaction identifiers that the log has up to this place; other servers have others there.
        load: state of the load, as long as it matters.
        claims: tables of the source by the target that takes them.
        server: UUID of a MySQL server; MariaDB has none.
        identity: name of the table, and the columns of the primary key that it had when it was loaded; empty if rows are identified
            in another way, or it is not known.
    """

    base: str
    at: int
    gtid: str
    load: Load | None = None
    claims: Mapping[str, str] = field(default_factory=dict)
    server: str = ""
    identity: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Name of the log file."""
        return file_name(self.base, parts_of(self.at)[0])

    @property
    def words(self) -> str:
        """Describe the position."""
        text = f"{self.file}:{parts_of(self.at)[1]}, gtid {self.gtid or 'none'}"
        if self.load is None or self.load.is_complete:
            return text
        return f"{text}; being loaded, {counted(len(self.load.chunks), 'chunk')} so far"

    def reaching(self, at: int, gtid: str, claims: Mapping[str, str]) -> "MysqlPosition":
        """The position after reading the log up to a place."""
        if at <= self.at:
            return replace(self, claims=claims)
        load = None if self.load is not None and self.load.is_complete and at >= self.load.until else self.load
        return replace(self, at=at, gtid=gtid, load=load, claims=claims)

    def check_key(self, table: str, key: Sequence[str]) -> None:
        """Refuse a table with another key than the one that it was loaded with.

        Raises:
            SourceError: it has another key.
        """
        if self.identity and self.identity[0] == table and set(key) != set(self.identity[1:]):
            was, now = ", ".join(self.identity[1:]), ", ".join(key) or "none"
            raise other_identity(table, f"its primary key is another one ({now} instead of {was})")

    def to_json(self) -> str:
        """The position as JSON text."""
        document = {
            "source": "mysql",
            "version": VERSION,
            "at": f"{self.file}:{parts_of(self.at)[1]}",
            "gtid": self.gtid,
            **({} if self.load is None else {"load": self.load.to_json()}),
            **({"claims": dict(self.claims)} if self.claims else {}),
            **({"server": self.server} if self.server else {}),
            **({"identity": list(self.identity)} if self.identity else {}),
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "MysqlPosition":
        """Parse a position.

        Raises:
            PositionLostError: not a position of MySQL, or of an unknown version.
        """

        def read(document: dict[str, Any]) -> "MysqlPosition":
            base, at = parse_place(document["at"])
            return cls(
                base=base,
                at=at,
                gtid=document["gtid"],
                load=Load.from_json(document["load"]) if "load" in document else None,
                claims=dict(document.get("claims", {})),
                server=str(document.get("server", "")),
                identity=tuple(document.get("identity", ())),
            )

        return parse_position(text, "mysql", "MySQL", VERSION, read)


def file_name(base: str, number: int) -> str:
    """Name of a log file: the server writes at least six digits."""
    return f"{base}.{number:06d}"


@dataclass(frozen=True, slots=True)
class Gtid:
    """A transaction: its domain and server (MariaDB) or its source (MySQL, a UUID), and its number there."""

    source: str
    number: int
    server: int = 0


class Gtids(Protocol):
    """A set of transactions. Mutable."""

    def add(self, gtid: Gtid) -> None:
        """Add a transaction."""
        ...

    def contains(self, gtid: Gtid) -> bool:
        """Whether it has a transaction."""
        ...

    def is_within(self, other: Self) -> bool:
        """Whether the other set has all transactions of this one."""
        ...


class MariaGtids:
    """See `Gtids`: the last transaction of each domain, which precedes all others there (`0-1-57`)."""

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
        """See `Gtids`."""
        self.last[gtid.source] = gtid.number, gtid.server

    def contains(self, gtid: Gtid) -> bool:
        """See `Gtids`."""
        return gtid.number <= self.last.get(gtid.source, (-1, 0))[0]

    def is_within(self, other: "MariaGtids") -> bool:
        """See `Gtids`."""
        return all(number <= other.last.get(domain, (-1, 0))[0] for domain, (number, _) in self.last.items())

    def __str__(self) -> str:
        return ",".join(
            f"{domain}-{server}-{number}" for domain, (number, server) in sorted(self.last.items(), key=_domain)
        )


def _domain(item: tuple[str, tuple[int, int]]) -> int:
    return int(item[0])


class MysqlGtids:
    """See `Gtids`: intervals of numbers of each source (`3e11fa47-71ca-11e1-9e33-c80aa9429562:1-57:60`)."""

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
        """See `Gtids`."""
        self._include(gtid.source, gtid.number, gtid.number)

    def contains(self, gtid: Gtid) -> bool:
        """See `Gtids`."""
        return self.has(gtid.source, gtid.number, gtid.number)

    def _include(self, source: str, first: int, last: int) -> None:
        firsts, lasts = self._intervals.setdefault(source, ([], []))
        begin = bisect_right(lasts, first - 2)  # the first interval that reaches this one, or touches it
        end = bisect_right(firsts, last + 1)
        if begin < end:
            first, last = min(first, firsts[begin]), max(last, lasts[end - 1])
        firsts[begin:end], lasts[begin:end] = [first], [last]

    def is_within(self, other: "MysqlGtids") -> bool:
        """See `Gtids`."""
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
