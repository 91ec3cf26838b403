"""The position of a table in the binary log of a MySQL or MariaDB server, and how much of the table is loaded.

A load reads chunks of a table, each in a transaction whose position in the log is known. A change of the stream is
part of a chunk if its transaction begins before that position: the log has transactions in the order in which they became visible.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.sources.live import parse_position

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


def _place_of(text: str) -> tuple[str, int]:
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
    """A part of a table that was read: the keys below `end` that no earlier chunk has, None for all others; and at which place."""

    end: int | None
    at: int


@dataclass(frozen=True, slots=True)
class Load:
    """How much of a table is loaded.

    Attributes:
        chunks: chunks that were read, in order of their keys.
        column: column of the keys in the mirror, if chunks are ranges of keys.
        is_complete: whether all of the table is loaded.
    """

    chunks: tuple[Chunk, ...] = ()
    column: str | None = None
    is_complete: bool = False

    @property
    def until(self) -> int:
        """The place from which on no change can be part of a chunk."""
        return max((chunk.at for chunk in self.chunks), default=0)

    def to_json(self) -> dict[str, Any]:
        """The load as a JSON object."""
        chunks = [[c.end, *parts_of(c.at)] for c in self.chunks]
        return {"chunks": chunks, "column": self.column, "complete": self.is_complete}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Load":
        """The load of a JSON object."""
        chunks = tuple(Chunk(end, place(number, offset)) for end, number, offset in document["chunks"])
        return cls(chunks, document["column"], document["complete"])


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
    """

    base: str
    at: int
    gtid: str
    load: Load | None = None
    claims: Mapping[str, str] = field(default_factory=dict)
    server: str = ""

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
        return f"{text}; being loaded, {len(self.load.chunks):,} chunk{'s' * (len(self.load.chunks) != 1)} so far"

    def reaching(self, at: int, gtid: str, claims: Mapping[str, str]) -> "MysqlPosition":
        """The position after reading the log up to a place."""
        if at <= self.at:
            return replace(self, claims=claims)
        load = None if self.load is not None and self.load.is_complete and at >= self.load.until else self.load
        return replace(self, at=at, gtid=gtid, load=load, claims=claims)

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
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "MysqlPosition":
        """Parse a position.

        Raises:
            PositionLostError: not a position of MySQL, or of an unknown version.
        """

        def read(document: dict[str, Any]) -> "MysqlPosition":
            base, at = _place_of(document["at"])
            return cls(
                base=base,
                at=at,
                gtid=document["gtid"],
                load=Load.from_json(document["load"]) if "load" in document else None,
                claims=dict(document.get("claims", {})),
                server=str(document.get("server", "")),
            )

        return parse_position(text, "mysql", "MySQL", VERSION, read)


def file_name(base: str, number: int) -> str:
    """Name of a log file: the server writes at least six digits."""
    return f"{base}.{number:06d}"
