"""The position of a table of a database, and how much of the table is loaded.

A load reads chunks of a table, each in a transaction of its own. A change of the stream is part of a chunk if that transaction saw
it. So a table is complete as soon as all chunks are read: what the stream has before that is applied to the chunks that lack it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, ClassVar, Self, TypeVar

from nevermore.pipelines.errors import PositionLostError, SourceError
from nevermore.pipelines.wording import counted

VERSION = 1
LOAD_AGAIN = "Load the table again: nevermore resync TABLE --from-source"
T = TypeVar("T")
End = int | tuple[str, ...] | None
"""The end of a chunk: see `Chunk`."""


def parse_position(text: str, source: str, title: str, version: int, read: Callable[[dict[str, Any]], T]) -> T:
    """A position from its JSON text.

    Args:
        text: as a change log has it.
        source: what the text must say that it is a position of.
        title: the same for people.
        version: the only version that is known.
        read: makes the position of the members.

    Raises:
        PositionLostError: not a position of this source, or of an unknown version.
    """
    try:
        document = json.loads(text)
        if document["source"] != source or document["version"] != version:
            raise PositionLostError(
                f"not a position of {title} of version {version}: {document['source']} version {document['version']}; "
                "a change log takes one kind of source: use another table name"
            )
        return read(document)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PositionLostError(f"unreadable position of {title} {text[:80]!r}: {error}") from error


class LoadOutdatedError(SourceError):
    """What was loaded of a table can no longer be completed; the load begins again after `position`.

    Attributes:
        position: position of the table, before which its rows must be removed.
    """

    def __init__(self, message: str, position: str) -> None:
        super().__init__(message)
        self.position = position


def other_identity(table: str, what: str) -> SourceError:
    """The error for a table of the source whose rows are no longer identified as before."""
    return SourceError(f"{table}: {what} than when it was read last, so its mirror could mix up rows. {LOAD_AGAIN}")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a table that was read: the keys below `end` that no earlier chunk has; None for all others.

    Attributes:
        end: of a key that is not an integer, the text of its columns: only the server knows their order.
        seen: which changes its transaction saw, in the words of the source.
    """

    end: End
    seen: int | str


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key by whose order a table is divided.

    Attributes:
        name: its name in the mirror.
        sql: how the source makes a value of it from text.
        collation: its collation in SQL; None for that of the database, or for types without one.
    """

    name: str
    sql: str
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How much of a table is loaded.

    Attributes:
        chunks: chunks that were read, in order of their keys.
        column: column of the keys in the mirror, if chunks are ranges of an integer key.
        until: once the load is complete, the position from which on no change can be part of it; else 0.
        key: columns of the key, if they are ranges of another one.
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


@dataclass(frozen=True, kw_only=True)
class TablePosition:
    """A position in the changes of a database.

    Attributes:
        at: all transactions before this place are contained.
        load: state of the load, as long as it matters.
        claims: tables of the source by the target that takes them.
    """

    source: ClassVar[str]
    title: ClassVar[str]
    at: int
    load: Load | None = None
    claims: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The place as the server writes it."""
        raise NotImplementedError

    @property
    def stated(self) -> str:
        """The place, and what else identifies it."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """Describe the position."""
        if self.load is None or self.load.is_complete:
            return self.stated
        return f"{self.stated}; being loaded, {counted(len(self.load.chunks), 'chunk')} so far"

    @property
    def is_loaded(self) -> bool:
        """Whether the table contains what existed before the stream."""
        return self.load is None or self.load.is_complete

    @property
    def settled(self) -> int:
        """The place up to which changes may be part of the load, or of what was read before."""
        return self.at if self.load is None else max(self.at, self.load.until)

    @property
    def again(self) -> str:
        """The position, as text, if the table is loaded again."""
        return replace(self, load=Load()).to_json()

    def resumed(self, begun: Load, table: str) -> Load:
        """The load to go on with: `begun`, or an earlier one that reads the table in the same way.

        Raises:
            LoadOutdatedError: the earlier load cannot be continued.
        """
        if self.load is None or not self.load.chunks:
            return begun
        if not begun.is_ranged or self.load.begun_again != begun:
            raise LoadOutdatedError(f"{table}: the load was interrupted and begins again", self.again)
        return self.load

    def reaching(self, at: int, claims: Mapping[str, str], **others: Any) -> Self:
        """The position after reading the log up to a place; `others` are members of the position there."""
        load = None if self.load is not None and self.load.is_complete and at >= self.load.until else self.load
        return replace(self, at=max(at, self.at), load=load, claims=claims, **others)

    def to_json(self) -> str:
        """The position as JSON text."""
        members = {f.name: getattr(self, f.name) for f in fields(self)}
        load = None if self.load is None else astuple(self.load)
        document = {"source": self.source, "version": VERSION, **members, "load": load}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a position.

        Raises:
            PositionLostError: not a position of this source, or of an unknown version.
        """

        def read(document: dict[str, Any]) -> Any:
            members = {f.name: _frozen(document[f.name]) for f in fields(cls)}
            if members["load"] is not None:
                chunks, column, until, key = members["load"]
                members["load"] = Load(
                    tuple(Chunk(*chunk) for chunk in chunks), column, until, tuple(KeyColumn(*c) for c in key)
                )
            return cls(**members)

        found: Self = parse_position(text, cls.source, cls.title, VERSION, read)
        return found


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
