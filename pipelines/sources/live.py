"""What a live source offers an ingest run: a load of what exists, a stream of what changes, and acknowledgement.

A source keeps its position in the change logs of its tables. It may forget what precedes a position only once all change
logs have reached it, so the run acknowledges positions after their commits, never what was merely read.
"""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.config.tables import TableConfig, unfit_columns
from nevermore.pipelines.decode.batches import BatchEnd, ChangeBatch, RawEvents, Rejected, one_text
from nevermore.pipelines.decode.feed import Decided, TableFeed
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.sources.table_position import LOAD_AGAIN, Chunk, Load, LoadOutdatedError, TablePosition
from nevermore.scan_core import Mask


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
    """What the config of a table lacks for its columns; None if it lacks nothing. Other engines do not tell `v` from `V`."""
    types, names = unfit_columns(config, columns, key)
    if types:
        return f"floats, lists and maps identify no rows: add types: {json.dumps(types)} to the config, which makes them text"
    return (
        f"names that Iceberg reserves or that differ by case only: add rename: {json.dumps(names)} to the config"
        if names
        else None
    )


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


HEARTBEAT_BYTES = 16 * 1024**2
"""A table without changes records the position once so much log was written since: the server keeps the log until then.

A place in another file of MySQL's log is much farther away.
"""


@dataclass(frozen=True)
class LiveBatch(ABC):
    """Events of several tables, and the position after them.

    Attributes:
        raw: the events.
        end: where the batch ends relative to transactions.
        continues: whether it continues the transaction of the previous batch.
        position: after the last transaction that is complete; for rows of a load, that of their table.
        names: names of the transactions of the changes, which are their `source_file`; None for rows of a load.
        begins: places of these transactions.
        server: is asked about keys while a load is recent; None for rows of a load.
    """

    raw: RawEvents
    end: BatchEnd
    continues: bool
    position: TablePosition
    names: pa.StringArray | None = None
    begins: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    server: Any = None

    @abstractmethod
    def reached(self, position: Any, claims: Mapping[str, str]) -> TablePosition:
        """The position of a table after this batch; `position` is the last one that its change log has."""

    @abstractmethod
    def seen_by(self, load: Load, transactions: NDArray[np.int64]) -> Mask:
        """For each chunk of a load, which of these transactions it saw."""

    @abstractmethod
    def texts_of(self, values: pa.Array) -> list[str]:
        """Values of a column of a key as the server reads them; of those without a value, which are rejected, any text."""

    def _known(self, text: str) -> TablePosition:
        return type(self.position).from_json(text)

    def position_after(self, before: str | None, decided: Decided) -> str:
        """The position of a table after this batch; `before` is the last one that its change log has."""
        if self.names is None or before is None:
            return replace(self.position, claims=decided.claims).to_json()
        return self.reached(self._known(before), decided.claims).to_json()

    def is_due(self, before: str | None) -> bool:
        """Whether a table without changes in this batch records the position nevertheless."""
        return before is not None and self.position.at - self._known(before).at >= HEARTBEAT_BYTES

    def is_reached(self, position: str) -> bool:
        """Whether a table with this position, which has all changes up to the batch, is as it was then.

        Not if the table was read further before, or if rows of its load are newer.
        """
        known = self._known(position)
        return known.is_loaded and known.settled <= self.position.at

    def new_changes(self, before: str | None, changes: ChangeBatch) -> ChangeBatch:
        """The changes of a table that are not part of what precedes `before`.

        Raises:
            LoadOutdatedError: the load of the table must begin again.
            SourceError: rows of the table are no longer identified as before.
        """
        if self.names is None or before is None or not changes.num_rows:
            return changes
        position = self._known(before)
        if position.load is None and (self.begins >= position.at).all():
            return changes
        of = np.asarray(pc.index_in(changes.table.column("source_file"), value_set=self.names))
        is_new = self.begins[of] >= position.at
        changes, of = replace(changes, table=changes.table.filter(pa.array(is_new))), of[is_new]
        if position.load is None or not changes.num_rows:
            return changes
        return self._without_loaded(changes, position, position.load, of)

    def new_rejected(self, before: str | None, rejected: Rejected) -> Rejected:
        """The rejected events of a table that are not part of what precedes `before`.

        Raises:
            SourceError: the table has become another one: see `check_rejected`.
        """
        if self.names is None or before is None or not rejected.num_rows:
            check_rejected(rejected)
            return rejected
        position = self._known(before)
        of = np.asarray(pc.index_in(rejected.table["source_file"], value_set=self.names))
        begins = self.begins[of]
        is_new = begins >= position.at
        if position.load is not None:
            is_new &= ~self._seen_by(position.load, of).all(axis=0)
        check_rejected(Rejected(rejected.table.filter(pa.array(is_new & (begins >= position.settled)))))
        return Rejected(rejected.table.filter(pa.array(is_new)))

    def _seen_by(self, load: Load, of: NDArray[np.int64]) -> Mask:
        seen: Mask = self.seen_by(load, of) & (self.begins[of] < load.until)
        return seen

    def _without_loaded(
        self, changes: ChangeBatch, position: TablePosition, load: Load, of: NDArray[np.int64]
    ) -> ChangeBatch:
        """Changes that the load does not contain; of an update that moves a row to another chunk, the half that it does not contain.

        Raises:
            LoadOutdatedError: the table was truncated between chunks.
        """
        table = changes.table
        ops = np.asarray(table.column("op").combine_chunks().cast(pa.binary()).to_numpy(zero_copy_only=False))
        is_update = ops == b"u"
        seen_by = self._seen_by(load, of)
        by_all: Mask = np.logical_and.reduce(seen_by)
        depends: Mask = np.logical_or.reduce(seen_by) & ~by_all
        if (depends & (ops == b"t")).any():
            why = "the table was truncated while it was loaded, so the load begins again"
            raise LoadOutdatedError(why, replace(position, load=load.begun_again).to_json())

        def seen(column: str, asked: Mask) -> Mask:
            found, places = by_all.copy(), np.flatnonzero(asked)
            if len(places):
                rows = table.column(column).combine_chunks().take(pa.array(places))
                found[places] = self._contained(rows, load, seen_by[:, places])
            return found

        old = seen("key", depends)
        new = np.where(is_update, seen("after", depends & is_update), old)
        dropped = old & new
        if (old != new).any():
            table = split_updates(table, removed=~old & new, created=old & ~new)
        return replace(changes, table=table.filter(pa.array(~dropped)) if dropped.any() else table)

    def _contained(self, rows: pa.StructArray, load: Load, seen_by: Mask) -> Mask:
        if load.column is None:
            return self._are_behind(rows, load, (~seen_by).sum(axis=0).tolist())
        keys = np.asarray(rows.field(load.column).cast(pa.int64()).fill_null(0))  # those without a value are rejected
        ends = np.array([chunk.end for chunk in load.chunks if chunk.end is not None], np.int64)
        found: Mask = seen_by[np.searchsorted(ends, keys, side="right"), np.arange(len(keys))]
        return found

    def _are_behind(self, rows: pa.StructArray, load: Load, numbers: list[int]) -> Mask:
        """Which rows belong to a chunk from a number of their own on: chunks were read in the order of their keys, which the server knows.

        So a change is part of the later chunks, from one on.
        """
        borders = [load.chunks[number - 1].end for number in numbers]
        texts = list(zip(*(self.texts_of(rows.field(column.name)) for column in load.key), strict=True))
        found: list[bool] = []
        for begin in range(0, len(texts), PLACED_KEYS):
            part = slice(begin, begin + PLACED_KEYS)
            found += self.server.are_at_or_behind(load.key, texts[part], borders[part])
        return np.array(found, np.bool_)


PLACED_KEYS = 1_000
"""Keys whose chunks the server tells in one query."""


MIN_CHUNK_ROWS = 1_000


def chunk_rows(chunk_bytes: int, row_bytes: float, most: int) -> int:
    """Rows of a chunk."""
    return int(min(max(chunk_bytes / max(row_bytes, 1.0), MIN_CHUNK_ROWS), most))


def loaded_events(title: str, table: Any, documents: pa.BinaryArray, number: int) -> RawEvents:
    """Rows of a load of a table, which is described, as events; so many precede them."""
    count = len(documents)
    return RawEvents(
        source_file=one_text(title, count),
        source_offset=pa.array(np.arange(number + 1, number + 1 + count, dtype=np.int64)),
        documents=documents,
        tables=(table,),
        is_load=True,
    )


def divided_by(table: TableFeed, key: Sequence[str]) -> dict[str, str]:
    """Names in the mirror of the columns of a key by whose order a load divides a table; none if it cannot.

    The mirror must identify rows by the same columns, with values as the source has them.
    """
    names = {name: table.target_name(name) for name in key}
    is_same = not table.key or set(table.key) == set(names.values())
    is_given = {*names, *names.values()} & {*table.cast, *table.types, *table.exclude}
    return {} if table.identity_full or not is_same or is_given else names


KeyRanges = Sequence[tuple[int, int]]
"""First and last values of an integer with which keys begin, in order and apart from each other."""


def key_ranges(text: str) -> KeyRanges:
    """The ranges of a text such as `17,20..30`.

    Raises:
        ConfigError: it is no such text.
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(_range(*part.partition("..")) for part in text.split(",")):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def _range(first: str, separator: str, last: str) -> tuple[int, int]:
    with suppress(ValueError):
        found = int(first), int(last if separator else first)
        if -(2**63) <= found[0] <= found[1] < 2**63 - 1:
            return found
    raise ConfigError(f"keys: {first}{separator}{last} is neither an integer nor a range of them, as in 17,20..30")


@dataclass(frozen=True, slots=True)
class AskedRows:
    """Rows that are loaded again, all in one transaction.

    Attributes:
        condition: what is true of them, in SQL.
        column: name in the mirror of the integer with which their key begins.
        ranges: its values.
    """

    condition: str
    column: str
    ranges: KeyRanges

    @classmethod
    def of(cls, table: TableFeed, key: Mapping[str, str], types: Mapping[str, Any], ranges: KeyRanges) -> "AskedRows":
        """The rows of these ranges; `key` has the names of its columns in order, with those in SQL.

        Raises:
            SourceError: the mirror does not identify rows by such a key.
        """
        names, (first, *_) = divided_by(table, [*key]), [*key, ""]
        if not names or not pa.types.is_integer(types[first].arrow):
            raise SourceError(
                f"{table.name}: rows are loaded by ranges of an integer with which the key begins, in the database and in the "
                f"mirror alike; load all of them: nevermore resync {table.name} --from-source"
            )
        parts = (f"{key[first]} BETWEEN {begin} AND {end}" for begin, end in ranges)
        return cls(f"({' OR '.join(parts)})", names[first], ranges)

    def load(self, seen: int | str, nothing: int | str, until: int) -> Load:
        """The complete load; `nothing` is what a transaction saw that saw no change."""
        chunks = (chunk for begin, end in self.ranges for chunk in (Chunk(begin, nothing), Chunk(end + 1, seen)))
        return Load((*chunks, Chunk(None, nothing)), self.column, until)


_ARGUMENTS = 50
"""PostgreSQL takes at most 100."""
RANGE_ROWS = 4096
"""About the rows whose hashes are summed."""


@dataclass(frozen=True, slots=True)
class HashedTable:
    """Rows of a table that its database hashes, from texts that all databases write alike.

    Attributes:
        ask: runs a query.
        relation: the rows, in a FROM clause.
        columns: their names in SQL and types, by name in the mirror.
        key: names in the mirror of the columns that identify a row, an integer first if there is one in front.
        texts: by kind of type, arguments of CONCAT for the text of a value {0}; {1} is the scale of a decimal.
        number: the number of the first 60 bits of the MD5 of a text.
        place: whole part of the number k, divided by {}.
        now: place in the log of the database after all that queries have seen.
        server: what tells the database from others.
        stored: a table that has the hashes, if they were stored.
    """

    ask: Callable[[str], list[tuple[Any, ...]]]
    relation: str
    columns: Mapping[str, tuple[str, pa.DataType]]
    key: Sequence[str]
    texts: Mapping[str, str]
    number: str
    place: str
    now: Callable[[], int] = int
    server: str = ""
    stored: str | None = None

    def kind(self, name: str) -> tuple[str, int]:
        """The first letters of the name of a column's type in Arrow, and the scale of a decimal; no letters without the column."""
        kind = self.columns.get(name, ("", pa.null()))[1]
        kind = getattr(kind, "storage_type", kind)
        return re.split("[^a-z]", str(kind))[0], getattr(kind, "scale", 0)

    def text(self, name: str) -> str:
        """SQL for the text of a value."""
        (kind, scale), (column, _) = self.kind(name), self.columns[name]
        text = self.texts[kind].format(column, scale)
        return f"COALESCE(CASE WHEN {column} IS NOT NULL THEN CONCAT({text}) END, 'N')"

    def is_like(self, other: "HashedTable", names: Sequence[str]) -> bool:
        """Whether both have the same texts for these columns, and the key begins with an integer."""
        kinds = [*map(self.kind, names)]
        is_same = kinds == [*map(other.kind, names)] and all(kind in self.texts for kind, _ in kinds)
        return is_same and self.kind([*self.key, ""][0])[0] == "int"

    def differing(
        self, other: "HashedTable", names: Sequence[str], most: int | None, once: Callable[..., Any]
    ) -> tuple[int, int, list[int]]:
        """Compare sums of hashes by ranges of the key.

        Args:
            other: the other table.
            names: the columns to hash.
            most: about the rows that are summed by one query.
            once: gives what was found earlier under a name, or else what a function finds: the rows of the other table, which decide
                about ranges only, and the sums of this one.

        Returns:
            (rows, numbers of a range, places of the ranges whose sums differ).
        """
        span = f"SELECT MIN(k), MAX(k), COUNT(*) FROM {other.hashed(names)}"
        ((low, high, num_rows),) = once("span", partial(other.ask, span))
        low, high = low or 0, high or 0
        width = min((high - low) * RANGE_ROWS // (num_rows + 1) + 1, 2**62)  # an integer of the database
        borders = () if most is None else range(low, high, width * most // RANGE_ROWS + 1)
        sums, num_rows = Counter[int](), 0
        for above, below in pairwise(["1 = 0", *(f"k < {border}" for border in borders), "1 = 1"]):
            where = f"NOT ({above}) AND {below}"
            found = once(where, partial(self._sums, names, width, where))
            sums.update({place: total for place, total, _ in found})
            num_rows += sum(count for _, _, count in found)
        totals = {place: total for place, total, _ in other._sums(names, width, "1 = 1")}  # noqa: SLF001
        return num_rows, width, sorted({place for place, _ in sums.items() ^ totals.items()})

    def _sums(self, names: Sequence[str], width: int, where: str) -> list[tuple[int, int, int]]:
        rows = f"{self.hashed(names)} WHERE {where}"
        found = self.ask(f"SELECT {self.place.format(width)}, SUM(h), COUNT(*) FROM {rows} GROUP BY 1")
        return [(int(place), int(total), int(count)) for place, total, count in found]

    @property
    def schema(self) -> pa.Schema:
        """The columns of `rows`: texts of the key, and the hash."""
        return pa.schema([*((name, pa.string()) for name in self.key), ("hash", pa.int64())])

    def rows(self, names: Sequence[str], width: int, places: Sequence[int]) -> Iterator[pa.Table]:
        """The rows of these ranges."""
        for at in places:
            near = f"k BETWEEN {(at - 1) * width} AND {(at + 1) * width}"  # numbers are divided towards 0
            found = self.ask(f"SELECT * FROM {self.hashed(names)} WHERE {near} AND {self.place.format(width)} = {at}")
            yield pa.Table.from_pylist(
                [dict(zip(("k", *self.schema.names), row, strict=True)) for row in found], self.schema
            )

    def hashed(self, names: Sequence[str]) -> str:
        """A sub-query: the number k, texts of the key, and the hash h of a row."""
        if self.stored is not None:
            return self.stored
        joined = [self.text(name) for name in names]
        while len(joined) > 1:
            groups = (joined[i : i + _ARGUMENTS] for i in range(0, len(joined), _ARGUMENTS))
            joined = [f"CONCAT_WS('|', {', '.join(group)})" for group in groups]
        keys = ", ".join(f"{self.text(name)} AS t{i}" for i, name in enumerate(self.key))
        number, _ = self.columns[self.key[0]]
        return f"(SELECT {number} AS k, {keys}, {self.number.format(joined[0])} AS h FROM {self.relation}) AS hashed"


_DUCKDB = {
    **dict.fromkeys(("timestamp", "time"), "epoch_us({0})"),
    **dict.fromkeys(("binary", "fixed"), "lower(hex({0}))"),
    "int": "{0}",
    "bool": "CAST({0} AS INTEGER)",
    "decimal": "regexp_replace(CAST({0} AS VARCHAR), '^(-?)[.]', '\\10.')",  # no 0 before the point if all digits are behind it
    "string": "length({0}), ':', {0}",
    "date": "date_diff('day', DATE '1970-01-01', {0})",
    "double": "CASE WHEN isnan({0}) THEN 9221120237041090560 ELSE CAST(CAST({0} AS BIT) AS BIGINT) END",
    "float": "CASE WHEN isnan({0}) THEN 2143289344 ELSE CAST(CAST({0} AS BIT) AS INTEGER) END",
}
"""See `HashedTable`."""


def hashed_in_duckdb(rows: Any, key: Sequence[str]) -> HashedTable:
    """Rows in DuckDB: a `Relation` of the checks, whose columns are c0, c1, ..."""
    return HashedTable(
        lambda sql: list(rows.connection.execute(sql).fetchall()),
        rows.sql,
        {field.name: (f"c{place}", field.type) for place, field in enumerate(rows.schema)},
        key,
        _DUCKDB,
        "('0x' || left(md5({}), 15))::BIGINT",
        "k // {}",
    )


class LiveSource(Protocol):
    """A connection to a source whose events do not end. Mutable: it remembers how far it has read."""

    positions: type[TablePosition]

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
        return position is not None and self.positions.from_json(position).is_loaded

    def load(
        self, table: TableFeed, source_table: str, position: str | None, limit_bytes: int, ranges: KeyRanges = ()
    ) -> Iterator[LiveBatch]:
        """Read what exists in a table, or what a load that was interrupted has not read yet, in batches of bounded size.

        With `ranges`, only rows with these keys, all in one transaction: only the load of the positions counts, and of the last batch.

        The rows of a batch that ends within a transaction are committed together with the next one. If the first batch
        `continues` nothing and the table has rows of an unfinished load, they must be removed: see `LoadOutdatedError`.
        """
        ...

    def hashed(self, table: TableFeed, source_table: str) -> HashedTable:
        """The rows of a table as they are, with all changes that were streamed before.

        Raises:
            SourceError: the source cannot be reached, or no longer has the table.
        """
        ...

    def stream(self, positions: Mapping[str, str | None], limit_bytes: int) -> Iterator[LiveBatch]:
        """Read what has changed until now, in batches of bounded size."""
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
