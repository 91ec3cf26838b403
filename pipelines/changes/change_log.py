"""The change log of a table: every decoded change, append-only, with an ordinal and its position in the source.

Contains writing and reading of the log. The changes are applied to the mirror in `mirrors/`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_run import Changes
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.batches import PROVENANCE, ChangeBatch, change_schema
from nevermore.pipelines.decode.feed import ORDER, POSITION
from nevermore.pipelines.errors import (
    AnotherIngesterError,
    ConfigError,
    PositionLostError,
    SchemaConflictError,
    SourceError,
)
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import create_table, find_table
from nevermore.pipelines.iceberg.commit import Committed, RowDelta, make_current, retry_conflicts
from nevermore.pipelines.iceberg.loaded_table import (
    check_writable,
    current_schema,
    metadata_location,
    open_current,
    refresh,
    source_position,
)
from nevermore.pipelines.iceberg.row_shape import python_rows, with_columns, without_extensions
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import WriteTarget, write_rows
from nevermore.scan_core import ContentFile, Expr, PartitionSpec, Scan, Schema, StructType, Table, arrow_type, col

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

SOURCE_TABLE = "nevermore.source-table"
"""Table property of a change log: the table of the feed for which a pattern of the config created it."""
ORDINAL = "ordinal"
_ANOTHER_KEY = (
    "its mirror cannot be identified by another key: drop the mirror and this log from the catalog, then nevermore ingest builds "
    "both again"
)
FIRST_ROWS = 10_000
"""Number of rows of the first read, before their width is known."""


def read_changes(table: "CatalogTable | None", after: int, end: int, limit_bytes: int) -> Iterator[pa.Table]:
    """Read the changes with ordinals in (after, end], in order, in tables of about `limit_bytes`."""
    if table is None:
        return
    step = FIRST_ROWS
    while after < end:
        last = min(after + step, end)
        scan = open_current(table).scan().where(f"{ORDINAL} > {after} and {ORDINAL} <= {last}")
        rows = without_extensions(scan.to_table().sort_by(ORDINAL))
        yield rows
        # The width of these rows determines how many fit into memory next time; in a base most ordinals are missing.
        step = max(1, limit_bytes * (last - after) // rows.nbytes) if rows.num_rows else 8 * step
        after = last


def read_by_place(table: "CatalogTable | None", after: str, limit_bytes: int) -> Iterator[tuple[pa.Table, str]]:
    """Read the changes whose place is greater than another, in order of places, in tables of about `limit_bytes`.

    Each table is yielded with its last place; changes of one place are in one table. Only the places are held in memory.
    """
    if table is None:
        return
    scan = open_current(table).scan()
    places = scan.select(ORDER).where(col(ORDER) > after).to_table().column(ORDER)
    ordered = places.take(pc.sort_indices(places))
    at, step = 0, FIRST_ROWS
    while at < len(ordered):
        last = ordered[min(at + step, len(ordered)) - 1].as_py()
        rows = without_extensions(scan.where((col(ORDER) > after) & (col(ORDER) <= last)).to_table())
        yield rows, last
        at, after = at + rows.num_rows, last
        step = max(1, limit_bytes * rows.num_rows // max(rows.nbytes, 1))


def last_truncate(table: "CatalogTable | None", end: int) -> int:
    """The ordinal of the last truncate up to an ordinal, 0 if there is none: changes before it have no effect."""
    if table is None:
        return 0
    found = open_current(table).scan().select(ORDINAL).where(f"op = 't' and {ORDINAL} <= {end}").to_table()
    return int(pc.max(found.column(ORDINAL)).as_py() or 0)


def last_offsets(table: "CatalogTable | None", files: Sequence[str]) -> dict[str, int]:
    """The highest logged offset of each of these source files that has one."""
    if table is None or not files:
        return {}
    scan = open_current(table).scan().select("source_file", "source_offset")
    found = scan.where(col("source_file").is_in(list(files))).to_table()
    last = found.group_by("source_file").aggregate([("source_offset", "max")])
    return dict(zip(last.column("source_file").to_pylist(), last.column("source_offset_max").to_pylist(), strict=True))


def atomic_runs(table: "CatalogTable | None", after: int, *, whole_reloads: bool = True) -> list[tuple[int, int]]:
    """(first, last ordinal) of each atomic append after an ordinal, as far as snapshots state it, in order.

    With `whole_reloads`, also of each load that takes the place of all earlier rows; it contains its appends.
    """
    found: list[tuple[int, int]] = []
    newer: tuple[int, bool] | None = None
    for snapshot in () if table is None else positions.ancestors(table):
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        if (ordinal := properties.get(positions.LAST_ORDINAL)) is None:
            continue
        if whole_reloads and (reloaded := properties.get(positions.RELOADED)) is not None and int(ordinal) > after:
            first, last = map(int, reloaded.split())
            found.append((first, last))
        if newer is not None and newer[1] and newer[0] > int(ordinal):
            found.append((int(ordinal) + 1, newer[0]))
        newer = int(ordinal), positions.ATOMIC in properties
        if newer[0] <= after:
            break
    else:
        if newer is not None and newer[1]:
            found.append((1, newer[0]))
    return sorted(found, key=lambda run: (run[0], -run[1]))


def in_change_schema(logged: pa.Table, key: Sequence[str]) -> pa.Table:
    """Convert rows of a log to changes, with the columns, names and types of a batch."""
    row_type = pa.struct([pa.field(f.name, f.type) for f in logged.schema.field("after").type])  # without field ids
    schema = change_schema(row_type, key, is_ordered=True)
    columns = [
        logged.column(f.name).cast(f.type) if logged.schema.field(f.name).type != f.type else logged.column(f.name)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


FIXED_COLUMNS = pa.schema([(ORDINAL, pa.int64()), ("op", pa.string()), *PROVENANCE])
"""Columns that every log has from the start; key, before and after are added with the first changes."""


def truncate(like: ChangeBatch) -> pa.Table:
    """A truncate, as a change of the same table."""
    schema = like.table.schema
    given = {
        "op": "t",
        "unchanged": [],
        "ingested_at": like.table.column("ingested_at")[0].as_py(),
        "schema_version": 0,
    }
    return pa.Table.from_pylist([given], schema)


def placed(changes: pa.Table, place: str) -> pa.Table:
    """Set the place in the order of `order_by` of all these changes."""
    column = pa.repeat(place, changes.num_rows)
    known = ORDER in changes.column_names
    return with_columns(changes, {ORDER: column}) if known else changes.append_column(ORDER, column)


def _of_images(names: Iterable[str]) -> set[str]:
    return {f"{image}.{name}" for image in ("before", "after") for name in names}


def key_of(changes: Changes) -> tuple[str, ...]:
    """Names of the key columns; none without changes."""
    first = next(changes.tables(), None)
    return () if first is None else tuple(f.name for f in first.schema.field("key").type)


Reload = Literal["begins", "ends"]
"""Where a load that takes the place of all earlier rows begins and ends. Mirrors apply it as a whole."""
LOADED = "nevermore.loaded"
"""Table property of a log that contains a full load: the feed may deliver the same rows again, as inserts."""


@dataclass(frozen=True, slots=True)
class FoldOrder:
    """How changes that are elsewhere become files of a mirror.

    Attributes:
        target: schema and place of the files.
        spec: partition spec of data files.
        delete_spec: partition spec of deletes; None if the mirror has no rows to delete.
        live: facts about the mirror's live files, of which keys that they may hold are deleted.
        key: key columns.
        trusts_inserts: whether the key of an insert is known not to be in the mirror.
    """

    target: WriteTarget
    spec: PartitionSpec
    delete_spec: PartitionSpec | None
    live: Any
    key: tuple[str, ...]
    trusts_inserts: bool


@dataclass(frozen=True, slots=True)
class RemoteChanges:
    """Changes that the tasks of a cluster hold: they, not this process, write the files of the log and of the mirror.

    Attributes:
        num_rows: number of changes.
        schema: their schema.
        counts: the same by operation.
        truncates: whether one of them is a truncate; the mirror then holds only what follows the last one.
        first_place: place of the first change in the order of `order_by`; None without it.
        last_place: the same of the last change.
        why_local: why only this process can apply them to the mirror, from the log; None if tasks can.
        write_log: writes files of the log; the first change has the given ordinal.
        write_mirror: writes files of the mirror; returns them with the number of removals without a row.
        tables: fetches all changes in order, in tables of bounded size.
    """

    num_rows: int
    schema: pa.Schema
    counts: Mapping[str, int]
    truncates: bool
    first_place: str | None
    last_place: str | None
    why_local: str | None
    write_log: Callable[[WriteTarget, PartitionSpec, int], list[ContentFile]]
    write_mirror: Callable[[FoldOrder], tuple[list[ContentFile], int]]
    tables: Callable[[], Iterator[pa.Table]]

    @property
    def row_type(self) -> pa.StructType:
        """Columns of the rows."""
        return self.schema.field("after").type

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns."""
        return tuple(f.name for f in self.schema.field("key").type)


@dataclass(frozen=True, slots=True)
class Appended:
    """Changes that were appended to the log; the first has the ordinal `first`."""

    changes: Changes | RemoteChanges | None
    first: int
    committed: Committed


@dataclass(frozen=True, slots=True)
class LogBase:
    """The part of a change log that does not hold every change any more, but changes that lead to the same rows.

    Attributes:
        ordinal: the last change that it stands for; the log holds all later ones.
        num_changes: the changes in it.
    """

    ordinal: int = 0
    num_changes: int = 0

    @classmethod
    def of(cls, table: "CatalogTable") -> "LogBase":
        """The base of a change log; an empty one if every change is held."""
        text = positions.newest_property(table, positions.LOG_BASE)
        return cls() if text is None else cls(*map(int, text.split()))

    @property
    def properties(self) -> dict[str, str]:
        """Summary properties of the snapshots that have it."""
        return {positions.LOG_BASE: f"{self.ordinal} {self.num_changes}"} if self.ordinal else {}


class ChangeLog:
    """One change log. Mutable: its state is that of the last commit it knows."""

    def __init__(
        self,
        catalog: "Catalog",
        name: str,
        *,
        replaces_types: bool = False,
    ) -> None:
        """With `replaces_types`, columns of rows whose type clashes with what is logged become new ones: older rows were removed.

        Columns that no row has then are dropped when the load ends, unless they identify rows.
        """
        self.name = name
        self._catalog = catalog
        self._replaces_types = replaces_types
        self._sent: set[str] = set()
        self.table = find_table(catalog, name)
        self._read_state()

    def _read_state(self) -> None:
        self.position: str | None = None
        self.last_ordinal = 0
        self.reload_from: int | None = None
        """First ordinal of a load that is not complete; 0 if the last one is, None without any."""
        self.base = LogBase()
        self.order_by = self.order_reached = None
        if self.table is None:
            return
        check_writable(self.table)
        self.position = source_position(self.table)
        ordinal = positions.newest_property(self.table, positions.LAST_ORDINAL)
        if (self.position is None or ordinal is None) and _has_rows(self.table):
            raise PositionLostError(
                f"{self.name} contains changes, but none of its snapshots has a source position: reading from the start "
                "would apply everything twice. Restore the snapshots that had it, or drop the table and its mirror"
            )
        self.last_ordinal = int(ordinal or 0)
        self.base = LogBase.of(self.table)
        reload = positions.newest_property(self.table, positions.RELOAD)
        self.reload_from = None if reload is None else int(reload)
        if ORDER in current_schema(self.table).names:
            self.order_by = positions.newest_property(self.table, positions.ORDER_BY)
            self.order_reached = positions.newest_property(self.table, positions.ORDER_REACHED)

    @property
    def snapshot_id(self) -> int | None:
        """The log's current snapshot."""
        return None if self.table is None else self.table.metadata.current_snapshot_id

    @property
    def is_reloading(self) -> bool:
        """Whether rows that take the place of all earlier ones are not logged completely."""
        return bool(self.reload_from)

    @property
    def ready_ordinal(self) -> int:
        """The last change that a mirror may have: those of a load that is not complete wait for its end."""
        return self.reload_from - 1 if self.reload_from else self.last_ordinal

    @property
    def schema(self) -> Schema | None:
        """The log's schema, or None before its first commit."""
        return None if self.table is None else current_schema(self.table)

    @property
    def row_types(self) -> dict[str, pa.DataType]:
        """Arrow type of every column of the rows logged so far."""
        return self._member_types("after")

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns of the changes logged so far."""
        return tuple(self._member_types("key"))

    def _member_types(self, column: str) -> dict[str, pa.DataType]:
        schema = self.schema
        if schema is None or column not in schema.names:
            return {}
        struct = schema.find(column).type
        return {m.name: arrow_type(m.type) for m in struct.fields} if isinstance(struct, StructType) else {}

    def check_reached(self, mirror: str, applied: int) -> None:
        """Refuse to go on with a mirror that contains this log up to an ordinal from which the log does not lead on.

        Raises:
            PositionLostError: the log ends before it, or its base stands for more.
        """
        if (
            applied > self.last_ordinal and self.table is not None
        ):  # another ingester may have gone on since it was read
            refresh(self.table)
            self._read_state()
        if applied > self.last_ordinal:
            raise PositionLostError(
                f"{mirror} holds changes up to {applied}, but {self.name} ends at {self.last_ordinal}: the log was "
                "re-made; rebuild the mirror"
            )
        if 0 < applied < self.base.ordinal:
            raise PositionLostError(
                f"{mirror} holds changes up to {applied}, but {self.name} has only the last change of each key "
                f"up to {self.base.ordinal}; rebuild the mirror: nevermore resync {mirror}"
            )

    def table_property(self, name: str) -> str | None:
        """A property of the table."""
        return None if self.table is None else self.table.metadata.properties.get(name)

    @property
    def stored(self) -> "CatalogTable":
        """The table of a log that exists.

        Raises:
            PositionLostError: it does not exist.
        """
        if self.table is None:
            raise PositionLostError(f"{self.name} no longer exists")
        return self.table

    def scan(self) -> Scan:
        """A scan of the table of a log that exists."""
        return open_current(self.stored).scan()

    def create(self, properties: Mapping[str, str] | None = None) -> None:
        """Create the table with these properties, unless it exists."""
        if self.table is None:
            fields, hours = iceberg_fields(FIXED_COLUMNS), [("hour", "ingested_at")]
            self.table = create_table(self._catalog, self.name, fields, partition_by=hours, properties=properties)
            self._read_state()

    def roll_back(self, snapshot_id: int) -> None:
        """Make an earlier snapshot the current one again.

        Raises:
            AnotherIngesterError: another ingester appended in the meantime.
        """
        make_current(self.stored, snapshot_id)
        refresh(self.stored)
        self._read_state()

    def append(
        self,
        changes: Changes | RemoteChanges | None,
        position: str,
        *,
        key_may_grow: bool = False,
        is_atomic: bool = False,
        order_by: str | None = None,
        reload: Reload | None = None,
    ) -> Appended:
        """Commit changes together with the position after them; without changes, only the position.

        Args:
            changes: in application order, with rows of one type.
            position: position in the source after them.
            key_may_grow: whether a new column becomes part of the key, for tables whose whole row is the key.
            is_atomic: whether they end with a transaction of the source, so that the mirror must never show a part of
                them.
            order_by: the columns by which they are ordered, if not by position in the source.
            reload: whether a load that takes the place of all earlier rows begins with these changes, or ends with them;
                one that begins while another is not complete continues it.

        Raises:
            SchemaConflictError: a column's type clashes with what is logged.
            AnotherIngesterError: another ingester appended in the meantime.
        """
        key = () if changes is None else changes.key if isinstance(changes, RemoteChanges) else key_of(changes)
        if key and self.key and not key_may_grow and set(key) != set(self.key):
            raise SchemaConflictError(
                f"{self.name}: the key was ({', '.join(self.key)}) and is now ({', '.join(key)}); {_ANOTHER_KEY}"
            )
        # The position that this run started from: another process may create and fill the table in the meantime.
        before = self.position
        self.create()
        more = {positions.ATOMIC: "true"} if is_atomic else {}
        more |= {} if order_by is None else {positions.ORDER_BY: order_by}
        return retry_conflicts(lambda: self._attempt(changes, position, before, more, reload))

    def _attempt(
        self,
        changes: Changes | RemoteChanges | None,
        position: str,
        before: str | None,
        more: Mapping[str, str],
        reload: Reload | None,
    ) -> Appended:
        table = self._moved_table(before)
        files: list[ContentFile] = []
        first = last = self.last_ordinal
        order = self.order_reached
        reload_from = self.reload_from
        with RowDelta(table) as delta:
            if isinstance(changes, RemoteChanges):
                self._evolve(delta, changes.schema.insert(0, pa.field(ORDINAL, pa.int64())))
                files += changes.write_log(delta.target, delta.default_spec, last + 1)
                delta.storage.created.extend(file.path for file in files)
                last += changes.num_rows
                order = max(filter(None, (order, changes.last_place)), default=None)
            for part in () if changes is None or isinstance(changes, RemoteChanges) else changes.tables():
                files += self._written(part, last + 1, delta)
                last += part.num_rows
                place = pc.max(part.column(ORDER)).as_py() if ORDER in part.column_names else None
                order = max(filter(None, (order, place)), default=None)
            if order is not None:
                more = {**more, positions.ORDER_REACHED: order}
            if reload == "begins":
                reload_from = reload_from or first + 1
            elif reload == "ends" and reload_from:
                more = {**more, positions.RELOADED: f"{reload_from} {last}"}
                reload_from = 0
                if self._replaces_types and self._sent:  # without a row, nothing says which columns there are
                    delta.drop_columns(_of_images(self.row_types.keys() - self._sent - {*self.key}))
            carried = self._properties(position, last, delta, reload_from)
            committed = delta.commit(files, {**carried, **more}, operation="append")
        self.position, self.last_ordinal, self.order_reached = position, last, order
        self.reload_from = reload_from
        self.order_by = more.get(positions.ORDER_BY, self.order_by)
        return Appended(changes, first + 1, committed)

    def _written(self, changes: pa.Table, first: int, delta: RowDelta) -> list[ContentFile]:
        """Write files of changes, numbered from `first` on, in a schema that fits them."""
        ordinals = pa.array(np.arange(first, first + changes.num_rows, dtype=np.int64))
        numbered = changes.add_column(0, pa.field(ORDINAL, pa.int64()), ordinals)
        self._evolve(delta, numbered.schema)
        return write_rows(numbered, delta.target, delta.default_spec)

    def replace_all(self, batches: Iterable[ChangeBatch], position: str) -> int:
        """Commit a truncate followed by the rows of a full load that lead to a position; returns their number.

        All in one commit: a log that ended within a load would lead to a mirror without the other rows.

        Raises:
            PositionLostError: nothing is logged yet, so there is no position.
            SchemaConflictError: a column's type clashes with what is logged.
            AnotherIngesterError: another ingester appended in the meantime.
        """
        if self.position is None:
            raise PositionLostError(f"{self.name} has no position yet; ingest first")
        table = self._moved_table(self.position)
        files: list[ContentFile] = []
        last = self.last_ordinal
        with RowDelta(table) as delta:
            delta.set_properties({LOADED: "true"})
            for number, batch in enumerate(batches):
                changes = pa.concat_tables([truncate(batch), batch.table]) if number == 0 else batch.table
                if self.order_reached is not None:  # late changes belong before it
                    changes = placed(changes, self.order_reached)
                files += self._written(changes, last + 1, delta)
                last += changes.num_rows
            delta.commit(files, self._properties(position, last, delta, self.reload_from), operation="append")
        self.position = position
        count, self.last_ordinal = last - self.last_ordinal, last
        return count

    def _properties(self, position: str, last: int, delta: RowDelta, reload_from: int | None) -> dict[str, str]:
        carried = positions.position_properties(position, metadata_location(self.stored), delta.storage)
        reload = {} if reload_from is None else {positions.RELOAD: str(reload_from)}
        return {**carried, positions.LAST_ORDINAL: str(last), **self.base.properties, **reload}

    def drop_columns(self, names: Collection[str]) -> None:
        """Drop columns of the rows, without a snapshot."""
        delta = RowDelta(self._moved_table(self.position))
        delta.drop_columns(_of_images(names))
        delta.commit_schema()

    def dropped_columns(self, mirror: "CatalogTable") -> set[str]:
        """Columns of rows that were dropped after a mirror last applied this log, even if others have these names now."""
        if self.table is None:  # a table that was adopted, and nothing has changed since
            return set()
        metadata, now = self.stored.metadata, current_schema(self.stored)
        applied = metadata.snapshot_by_id(int(positions.newest_property(mirror, positions.LOG_SNAPSHOT) or 0))
        schemas = [s for s in metadata.schemas if applied is None or s.schema_id == applied.schema_id != now.schema_id]
        had = {(s.find_field(name).field_id, name) for s in schemas for name in s.column_names}
        gone = {name.removeprefix("after.") for number, name in had if name.startswith("after.") and number not in now}
        return gone - (self.row_types.keys() if applied is None else set())

    def _evolve(self, delta: RowDelta, wanted: pa.Schema) -> None:
        self._sent |= {member.name for member in wanted.field("after").type}
        # Keys stay what they are: they identify rows also in what refers to them.
        clashes = delta.hold(
            iceberg_fields(wanted), lambda path: self._replaces_types and path.startswith(("before.", "after."))
        )
        if (of_key := next((c for c in clashes if c.column.startswith("key.")), None)) is not None:
            raise SchemaConflictError(
                f"{self.name}: the column {of_key.column.removeprefix('key.')} of the key was {of_key.table_type} and is now "
                f"{of_key.feed_type}; {_ANOTHER_KEY}"
            )
        if clashes:
            raise SchemaConflictError(f"{self.name}: " + "; ".join(map(str, clashes)))

    def _moved_table(self, before: str | None) -> "CatalogTable":
        """The refreshed table, if nobody else has appended since its position was read."""
        table = self.stored
        known = table.metadata.current_snapshot_id
        refresh(table)
        if table.metadata.current_snapshot_id != known:
            self._read_state()
        if self.position != before:
            raise AnotherIngesterError(
                f"another ingester has appended to {self.name} in the meantime; this run stops, and the next run reads its changes again"
            )
        return table

    def last_before(self, when: datetime) -> int:
        """The ordinal before the first change that was read at a time or later; late changes repeat earlier ones."""
        (first,) = self.scan().where(col("ingested_at") >= when).aggregate(("min", ORDINAL))
        return self.last_ordinal if first is None else int(first) - 1

    def read_before(self, when: datetime) -> int:
        """The last change that was read before a time; 0 for none.

        Raises:
            SourceError: the base has replaced changes of that time.
        """
        ordinal = min(self.last_before(when), self.ready_ordinal) if self.last_ordinal else 0
        # The last changes before a base may be missing, as rows did not need them.
        last = f"{ORDINAL} = {ordinal} and {ORDINAL} >= {self.base.ordinal}"
        if 0 < ordinal <= self.base.ordinal and not self.scan().where(last).count():
            raise SourceError(f"{self.name} has only the last change of each key of that time: ask for a later one")
        return ordinal

    def check_between(self, ordinal: int) -> None:
        """Refuse a change of a database in the middle of a transaction or load, whose name each of its changes has.

        Raises:
            SourceError: more of it follows.
        """
        near = self.scan().select(ORDINAL, "source_file").where(f"{ORDINAL} in ({ordinal}, {ordinal + 1})").to_table()
        name, *following = near.sort_by(ORDINAL).column("source_file").to_pylist()
        if name is None or name in following:  # None: the truncate before a load
            raise SourceError(
                f"{self.name}: {name or 'a load'} was being read then: ask for a time before or after that"
            )

    def check_complete(self, after: int) -> None:
        """Refuse a log that lacks changes after an ordinal.

        Raises:
            PositionLostError: it has other numbers of changes than it should.
        """
        held, required = self.scan().where(f"{ORDINAL} > {after}").count(), self.num_required(after, self.last_ordinal)
        if held != required:
            raise PositionLostError(
                f"{self.name} has {held:,} of the {required:,} changes after ordinal {after:,}, so no mirror can be built from them; take "
                "a new snapshot of the source: nevermore resync TABLE --snapshot-source PATH"
            )

    def num_required(self, after: int, end: int) -> int:
        """Number of changes that a complete log holds in (after, end]; `end` is not within the base."""
        if after >= self.base.ordinal or self.table is None:
            return end - after
        earlier = self.scan().where(f"{ORDINAL} <= {after}").count() if after else 0
        return self.base.num_changes - int(earlier) + end - self.base.ordinal

    def end_of_batch(self, after: int, max_rows: int, *, whole_reloads: bool = True) -> int:
        """The last ordinal of a mirror's next batch: at most `max_rows` changes, and only whole atomic appends.

        The base of a log is one batch, and so is a load that takes the place of all rows, with `whole_reloads`.
        """
        end = self.base.ordinal if after < self.base.ordinal else min(after + max_rows, self.ready_ordinal)
        for first, last in atomic_runs(self.table, after, whole_reloads=whole_reloads):
            if first <= end < last:
                end = first - 1 if first > after + 1 else last
        return end


MAX_CHANGES = 20
_COLUMNS = ("ordinal", "op", "source_file", "source_offset", "source_ts")


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change in the log; `op` is that of Debezium: r, c, u or d."""

    ordinal: int
    op: str
    source_file: str | None
    source_offset: int | None
    source_ts: datetime | None


@dataclass(frozen=True, slots=True)
class KeyLog:
    """The newest changes of a key, oldest first, and the total number of its changes."""

    name: str
    num_changes: int
    newest: tuple[LoggedChange, ...]

    @property
    def ends_deleted(self) -> bool:
        """Whether the last change removed the row."""
        return bool(self.newest) and self.newest[-1].op == "d"


def key_log(name: str, log: Table, key: Mapping[str, Any]) -> KeyLog | None:
    """The changes of a key in a change log.

    Args:
        name: of the log, for messages.
        log: the change log's table.
        key: columns and values; None if the log lacks one of the columns, or has no snapshot.
    """
    members = {column: _place(log, column) for column in key}
    if not members or any(place is None for place in members.values()):
        return None
    scan = log.scan()
    for column, place in members.items():
        scan = scan.where(_is(col(str(place)).member(column), key[column]))
    rows: list[dict[str, Any]] = python_rows(scan.select(*_COLUMNS).to_table().sort_by("ordinal"))
    return KeyLog(name, len(rows), tuple(LoggedChange(**row) for row in rows[-MAX_CHANGES:]))


def _place(log: Table, column: str) -> str | None:
    """The struct of the log that contains a column: `key`, or `after`, the row after the change."""
    for place in ("key", "after"):
        if place in log.schema.names:
            kind = log.schema.find(place).type
            if isinstance(kind, StructType) and any(member.name == column for member in kind.fields):
                return place
    return None


def _is(operand: Expr, value: Any) -> Expr:
    return operand.is_null() if value is None else operand == value


def _has_rows(table: "CatalogTable") -> bool:
    snapshot = positions.current_snapshot(table)
    return snapshot is not None and (snapshot.summary is None or snapshot.summary["total-records"] != "0")


def order_text(config: TableConfig) -> str | None:
    """`order_by` as stored in change logs; None if the position in the source orders the changes."""
    return None if config.order_by == POSITION else ", ".join(config.order_by)


def check_order(name: str, config: TableConfig, log: ChangeLog) -> None:
    """Refuse a config whose `order_by` differs from that of the changes logged so far.

    Raises:
        ConfigError: it differs; says what to do.
    """
    wanted = order_text(config)
    if wanted is not None and log.order_by is not None and wanted != log.order_by:
        raise ConfigError(
            f"{name}: order_by was [{log.order_by}] and is now [{wanted}]; changes cannot be compared with those in "
            f"{log.name}: restore the previous order_by, or drop {log.name} and {name} and ingest again"
        )
