"""The position of a table in the changes of a PostgreSQL database, and how much of the table is loaded.

A load reads chunks of a table, each as a transaction sees it. A change of the stream is part of a chunk if its transaction was
visible there. Visibility is decided by transaction identifiers, not by log positions: a transaction becomes visible some time
after its commit is in the log.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.sources.live import parse_position
from scan_core import Mask

VERSION = 1


def lsn_text(lsn: int) -> str:
    """A log position as PostgreSQL writes it: `0/16B3748`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """The number of a log position.

    Raises:
        ValueError: not a log position.
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which transactions a snapshot of the database sees (`pg_current_snapshot()`).

    Attributes:
        xmin: all transactions below were finished.
        xmax: no transaction from here on was finished.
        running: transactions in between that were not finished.
    """

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Visibility":
        """Parse `xmin:xmax:running,running`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(x) for x in running.split(",") if x))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def sees(self, xids: NDArray[np.int64]) -> Mask:
        """Which committed transactions are visible; the stream has the low 32 bits of identifiers."""
        distance = (xids - (self.xmax & 0xFFFFFFFF) + 2**31) % 2**32 - 2**31
        full = self.xmax + distance
        seen: Mask = (full < self.xmax) & ~np.isin(full, np.array(self.running, np.int64))
        return seen


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a table that was read: the keys below `end` that no earlier chunk has; None for all others.

    Of a key that is not an integer, `end` is the text of its columns: only the server knows their order.
    """

    end: int | tuple[str, ...] | None
    visible: Visibility


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key by whose order a table is divided.

    Attributes:
        name: its name in the mirror.
        type: its type in SQL.
        collation: its collation in SQL; None for that of the database, or for types without one.
    """

    name: str
    type: str
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How much of a table is loaded.

    Attributes:
        chunks: chunks that were read, in order of their keys.
        column: column of the keys in the mirror, if chunks are ranges of an integer key.
        key: columns of the key, if they are ranges of another one.
        until: once the load is complete, the log position from which on no change can be part of it; else 0.
    """

    chunks: tuple[Chunk, ...] = ()
    column: str | None = None
    until: int = 0
    key: tuple[KeyColumn, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all of the table is loaded."""
        return self.until > 0

    @property
    def is_ranged(self) -> bool:
        """Whether chunks are ranges of keys."""
        return self.column is not None or bool(self.key)

    @property
    def begun_again(self) -> "Load":
        """The load before its first chunk."""
        return replace(self, chunks=(), until=0)

    def to_json(self) -> dict[str, Any]:
        """The load as a JSON object."""
        chunks = [[c.end, str(c.visible)] for c in self.chunks]
        key = {"key": [[c.name, c.type, c.collation] for c in self.key]} if self.key else {}
        return {"chunks": chunks, "column": self.column, "until": lsn_text(self.until), **key}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Load":
        """The load of a JSON object."""
        chunks = tuple(
            Chunk(tuple(end) if isinstance(end, list) else end, Visibility.parse(text))
            for end, text in document["chunks"]
        )
        key = tuple(KeyColumn(*column) for column in document.get("key", ()))
        return cls(chunks, document["column"], lsn_of(document["until"]), key)


@dataclass(frozen=True, slots=True)
class PostgresPosition:
    """A position.

    Attributes:
        system: identifier of the database cluster.
        slot: name of the replication slot.
        lsn: all transactions whose commit is in the log before this position are contained.
        load: state of the load, as long as it matters.
        claims: tables of the source by the target that takes them.
        member: what identifies the table and its membership in the publication; None if it is not known.
        timeline: history of the cluster that the position is of; 0 if it is not known. A standby that becomes the primary begins
            another one, in which the same positions may mean other changes.
    """

    system: str
    slot: str
    lsn: int
    load: Load | None = None
    claims: Mapping[str, str] = field(default_factory=dict)
    member: str | None = None
    timeline: int = 0

    @property
    def words(self) -> str:
        """Describe the position."""
        text = f"{lsn_text(self.lsn)} of slot {self.slot}"
        if self.load is None or self.load.is_complete:
            return text
        return f"{text}; being loaded, {len(self.load.chunks):,} chunk{'s' * (len(self.load.chunks) != 1)} so far"

    def reaching(self, lsn: int, claims: Mapping[str, str], timeline: int = 0) -> "PostgresPosition":
        """The position after reading the log up to `lsn`."""
        load = None if self.load is not None and self.load.is_complete and lsn >= self.load.until else self.load
        return replace(self, lsn=max(lsn, self.lsn), load=load, claims=claims, timeline=timeline or self.timeline)

    def to_json(self) -> str:
        """The position as JSON text."""
        document = {
            "source": "postgres",
            "version": VERSION,
            "system": self.system,
            "slot": self.slot,
            "lsn": lsn_text(self.lsn),
            **({} if self.load is None else {"load": self.load.to_json()}),
            **({"claims": dict(self.claims)} if self.claims else {}),
            **({} if self.member is None else {"member": self.member}),
            **({"timeline": self.timeline} if self.timeline else {}),
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "PostgresPosition":
        """Parse a position.

        Raises:
            PositionLostError: not a position of PostgreSQL, or of an unknown version.
        """

        def read(document: dict[str, Any]) -> "PostgresPosition":
            return cls(
                system=document["system"],
                slot=document["slot"],
                lsn=lsn_of(document["lsn"]),
                load=Load.from_json(document["load"]) if "load" in document else None,
                claims=dict(document.get("claims", {})),
                member=document.get("member"),
                timeline=document.get("timeline", 0),
            )

        return parse_position(text, "postgres", "PostgreSQL", VERSION, read)
