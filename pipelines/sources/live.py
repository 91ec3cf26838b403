"""What a live source offers an ingest run: a load of what exists, a stream of what changes, and acknowledgement.

A source keeps its position in the change logs of its tables. It may forget what precedes a position only once all change
logs have reached it, so the run acknowledges positions after their commits, never what was merely read.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.config.tables import TableConfig, unfit_columns
from nevermore.pipelines.decode.batches import BatchEnd, ChangeBatch, RawEvents, Rejected
from nevermore.pipelines.decode.feed import Decided, TableFeed
from nevermore.pipelines.errors import PositionLostError, SourceError
from nevermore.scan_core import Mask

LOAD_AGAIN = "Load the table again: nevermore resync TABLE --from-source"
T = TypeVar("T")


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
    except (KeyError, TypeError, ValueError, AttributeError) as error:
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


def check_rejected(rejected: Rejected) -> None:
    """Refuse events of a table that became another one: in quarantine, its rows would be missing from then on.

    Raises:
        SourceError: the key or the type of a column is another one.
    """
    if (why := rejected.other_shape) is not None:
        raise SourceError(f"{why}. {LOAD_AGAIN}")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at before anything is read.

    Attributes:
        what: what was looked at.
        status: `ok`; `warning`: works, but not for long or not for everything; `failed`: a run would fail.
        found: what was found, and what to do unless it is `ok`.
    """

    what: str
    status: Literal["ok", "warning", "failed"]
    found: str


Wanted = Callable[[Sequence[str]], Mapping[str, TableConfig]]
"""Which tables of the source the config reads, of those that there are; also those that it reads in vain."""


def unfit(config: TableConfig, columns: Mapping[str, str], key: Collection[str]) -> str | None:
    """What the config of a table lacks for its columns; None if it lacks nothing."""
    types, names = unfit_columns(config, columns, key)
    if types:
        return f"floats, lists and maps identify no rows: add types: {json.dumps(types)} to the config, which makes them text"
    return f"Iceberg reserves these names: add rename: {json.dumps(names)} to the config" if names else None


CLOCK_SECONDS = 5.0
"""Clocks that differ by more make lags and times of ingestion misleading."""


def clock_finding(server: str, seconds: float) -> Finding:
    """How far the clock of a server is ahead of the local one."""
    if abs(seconds) <= CLOCK_SECONDS:
        return Finding("clock", "ok", f"{server} and this machine differ by {abs(seconds):.1f} s")
    return Finding(
        "clock",
        "warning",
        f"the clock of {server} is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} that of this machine, so lags "
        "are wrong by as much: synchronise both (NTP)",
    )


@runtime_checkable
class TellsNews(Protocol):
    """A connection that can tell without reading them whether there are new events."""

    def news(self, positions: Collection[str | None]) -> str | None:
        """What is new for tables with these positions: a text that is another one when more has come; None if nothing is.

        Raises:
            SourceError: the source cannot be reached.
        """
        ...


class LiveBatch(Protocol):
    """Events of several tables, and the position after them."""

    @property
    def raw(self) -> RawEvents:
        """The events."""
        ...

    @property
    def end(self) -> BatchEnd:
        """Where the batch ends relative to transactions."""
        ...

    @property
    def continues(self) -> bool:
        """Whether it continues the transaction of the previous batch."""
        ...

    @property
    def at_text(self) -> str:
        """The commit of the source with which it ends."""
        ...

    def position_after(self, before: str | None, decided: Decided) -> str:
        """The position of a table after this batch; `before` is the last one that its change log has."""
        ...

    def is_due(self, before: str | None) -> bool:
        """Whether a table without changes in this batch records the position nevertheless."""
        ...

    def new_changes(self, before: str | None, changes: ChangeBatch) -> ChangeBatch:
        """The changes of a table that are not part of what precedes `before`.

        Raises:
            LoadOutdatedError: the load of the table must begin again.
            SourceError: rows of the table are no longer identified as before.
        """
        ...

    def new_rejected(self, before: str | None, rejected: Rejected) -> Rejected:
        """The rejected events of a table that are not part of what precedes `before`.

        Raises:
            SourceError: the table has become another one: see `check_rejected`.
        """
        ...


class LiveSource(Protocol):
    """A connection to a source whose events do not end. Mutable: it remembers how far it has read."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that the source has now."""
        ...

    def how_to_add(self, table: str) -> str:
        """What to do for a table that is not among them."""
        ...

    def begin(self, positions: Mapping[str, str | None]) -> None:
        """Begin a round for tables with these positions of their change logs.

        Raises:
            SourceError: the source cannot be reached, or no longer has what follows a position.
        """
        ...

    def check_table(self, source_table: str, position: str) -> str | None:
        """Refuse a table of which changes after a position were not recorded.

        Returns:
            The same position in other words, if the source is another server with the same changes; otherwise None.

        Raises:
            SourceError: it is another table than the one that was read, or was not recorded for some time.
            LoadOutdatedError: its rows changed without an event, so its load must begin again.
        """
        ...

    def is_loaded(self, position: str | None) -> bool:
        """Whether a table with this position contains what existed before the stream."""
        ...

    def load(self, table: TableFeed, source_table: str, position: str | None, limit_bytes: int) -> Iterator[LiveBatch]:
        """Read what exists in a table, or what a load that was interrupted has not read yet, in batches of bounded size.

        The rows of a batch that ends within a transaction are committed together with the next one. If the first batch
        `continues` nothing and the table has rows of an unfinished load, they must be removed: see `LoadOutdatedError`.
        """
        ...

    def stream(self, positions: Mapping[str, str | None], limit_bytes: int) -> Iterator[LiveBatch]:
        """Read what has changed until now, in batches of bounded size."""
        ...

    def is_reached(self, commit: str, position: str) -> bool:
        """Whether a table with this position, which has all changes up to a commit, is as it was then.

        Not if the table was read further before, or if rows of its load are newer. `commit` is the `at_text` of a batch.
        """
        ...

    def acknowledge(self, positions: Sequence[str]) -> None:
        """Allow the source to forget what precedes all of these positions of change logs."""
        ...

    def warnings(self) -> Sequence[str]:
        """What someone should see to, one statement each."""
        ...

    def restart(self) -> str:
        """The position of a table that is loaded again from the start, whatever was read of it before.

        Raises:
            SourceError: the source cannot be reached.
        """
        ...

    def interrupt(self) -> None:
        """Forget how far was read: the next round reads again from the positions of the change logs."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def split_updates(table: pa.Table, *, removed: Mask, created: Mask) -> pa.Table:
    """Updates of a key between chunks: removals of the old key, creations of the new one."""
    schema = table.schema
    op = pc.if_else(pa.array(removed), "d", table.column("op").combine_chunks())
    key_type = schema.field("key").type
    after = table.column("after").combine_chunks()
    new_key = pa.StructArray.from_arrays([after.field(f.name) for f in key_type], fields=list(key_type))
    key = pc.if_else(pa.array(created), new_key, table.column("key").combine_chunks())
    nothing = pa.scalar(None, schema.field("before").type)
    before = pc.if_else(pa.array(created), nothing, table.column("before").combine_chunks())
    after = pc.if_else(pa.array(removed), nothing, after)
    columns = {"op": op, "key": key, "before": before, "after": after}
    return pa.Table.from_arrays([columns.get(f.name, table.column(f.name)) for f in schema], schema=schema)
