"""The change log of a table: every decoded change, append-only, with an ordinal and the position of its source.

Ordinals rise by one over the table's life, in application order. The position and the changes it covers are one
commit, so a change is in the log exactly once. What the changes lead to is the business of `mirror.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.catalog import create_table, find_table
from pipelines.changes.change_batch import ORDER, ChangeBatch
from pipelines.changes.change_run import Changes
from pipelines.changes.log_rows import FIXED_COLUMNS, highest_place, key_of, numbered_from, placed, truncate
from pipelines.changes.logged_changes import atomic_runs
from pipelines.errors import CommitConflictError, PipelineError, PositionLostError, SchemaConflictError
from pipelines.tables import positions
from pipelines.tables.commit import Committed, RowDelta, retry_conflicts
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.loaded_table import check_writable, current_schema, metadata_location, refresh, storage_of
from pipelines.tables.schema_evolution import evolve, iceberg_fields
from pipelines.tables.table_writer import WriterOptions, write_rows
from scan_core.schema import Schema, StructType, arrow_type

LOADED = "nevermore.loaded"
"""Table property of a log into which a full load went: what the load holds may come once more from the feed, as inserts."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Changes that are now in the log; the first of them has the ordinal `first`."""

    changes: Changes | None
    first: int
    committed: Committed


class ChangeLog:
    """One change log. Mutable only in that it follows its table's commits."""

    def __init__(self, catalog: Any, name: str, options: WriterOptions | None = None) -> None:
        self.name = name
        self._catalog = catalog
        self._options = options
        self.table: Any | None = find_table(catalog, name)
        self._read_state()

    def _read_state(self) -> None:
        self.position: str | None = None
        self.last_ordinal = 0
        self.order_by = self.order_reached = None
        if self.table is None:
            return
        check_writable(self.table)
        storage = storage_of(self.table)
        for snapshot in positions.ancestors(self.table):
            self.position = positions.position_in(snapshot.summary.additional_properties, storage)
            if self.position is not None:
                break
        ordinal = positions.newest_property(self.table, positions.LAST_ORDINAL)
        if (self.position is None or ordinal is None) and _has_rows(self.table):
            raise PositionLostError(
                f"{self.name} holds changes but no snapshot of it carries a source position: reading from the start "
                "would apply everything twice. Restore the snapshots that carried it, or drop the table and its mirror"
            )
        self.last_ordinal = int(ordinal or 0)
        if ORDER in current_schema(self.table).names:
            self.order_by = positions.newest_property(self.table, positions.ORDER_BY)
            self.order_reached = positions.newest_property(self.table, positions.ORDER_REACHED)

    @property
    def snapshot_id(self) -> int | None:
        """The log's current snapshot."""
        return None if self.table is None else self.table.metadata.current_snapshot_id

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

    def create(self, properties: Mapping[str, str] | None = None) -> None:
        """Make the table, with these properties, unless it is there."""
        if self.table is None:
            fields, hours = iceberg_fields(FIXED_COLUMNS), [("hour", "ingested_at")]
            self.table = create_table(self._catalog, self.name, fields, partition_by=hours, properties=properties)
            self._read_state()

    def property(self, name: str) -> str | None:
        """A property of the table."""
        return None if self.table is None else self.table.metadata.properties.get(name)

    def append(
        self,
        changes: Changes | None,
        position: str,
        *,
        key_may_grow: bool = False,
        is_atomic: bool = False,
        order_by: str | None = None,
    ) -> Appended:
        """Commit changes together with the position that they reach; without changes only the position.

        Args:
            changes: in application order, with rows of one type.
            position: of the source, after them.
            key_may_grow: for tables whose whole row is their key: a new column becomes part of it.
            order_by: what orders them, where that is not their place in the source.
            is_atomic: they end where a transaction of the source ends, so the mirror is not to show a part of them.

        Raises:
            SchemaConflictError: a column's type clashes with what is logged.
            CommitConflictError: another ingester appended meanwhile.
        """
        key = () if changes is None else key_of(changes)
        if key and self.key and not key_may_grow and set(key) != set(self.key):
            raise SchemaConflictError(
                f"{self.name}: the key was ({', '.join(self.key)}) and is now ({', '.join(key)}); "
                "a changed key needs a new table (`nevermore resync`)"
            )
        # As this run has read on from; another process may make the table meanwhile, and fill it.
        before = self.position
        self.create()
        more = {positions.ATOMIC: "true"} if is_atomic else {}
        more |= {} if order_by is None else {positions.ORDER_BY: order_by}
        return retry_conflicts(lambda: self._attempt(changes, position, before, more))

    def _attempt(self, changes: Changes | None, position: str, before: str | None, more: Mapping[str, str]) -> Appended:
        table = self._moved_table(before)
        delta = RowDelta(table, self._options)
        files: list[WrittenFile] = []
        first = last = self.last_ordinal
        order = self.order_reached
        try:
            for part in () if changes is None else changes.tables():
                files += self._written(part, last + 1, delta)
                last += part.num_rows
                order = max(filter(None, (order, highest_place(part))), default=None)
            if order is not None:
                more = {**more, positions.ORDER_REACHED: order}
            committed = delta.commit(files, {**self._properties(position, last, delta), **more}, operation="append")
        except PipelineError:
            delta.discard(files)
            raise
        self.position, self.last_ordinal, self.order_reached = position, last, order
        self.order_by = more.get(positions.ORDER_BY, self.order_by)
        return Appended(changes, first + 1, committed)

    def _written(self, changes: pa.Table, first: int, delta: RowDelta) -> list[WrittenFile]:
        """Files of changes, numbered from `first` on, in a schema that takes them."""
        numbered = numbered_from(changes, first)
        self._evolve(delta, numbered.schema)
        return write_rows(numbered, delta.target, delta.default_spec)

    def replace_all(self, batches: Iterable[ChangeBatch]) -> int:
        """Commit a truncate and the rows of a whole new state after it, at the position there is; their number.

        All in one commit: a log that ends in the midst of a new state would lead to a mirror that lacks the rest.

        Raises:
            PositionLostError: nothing is logged yet, so there is no position.
            SchemaConflictError: a column's type clashes with what is logged.
            CommitConflictError: another ingester appended meanwhile.
        """
        if self.position is None:
            raise PositionLostError(f"{self.name} has no position yet; ingest first")
        table = self._moved_table(self.position)
        delta = RowDelta(table, self._options)
        delta.set_properties({LOADED: "true"})
        files: list[WrittenFile] = []
        last = self.last_ordinal
        try:
            for number, batch in enumerate(batches):
                changes = pa.concat_tables([truncate(batch), batch.table]) if number == 0 else batch.table
                if self.order_reached is not None:  # late changes belong before it
                    changes = placed(changes, self.order_reached)
                files += self._written(changes, last + 1, delta)
                last += changes.num_rows
            delta.commit(files, self._properties(self.position, last, delta), operation="append")
        except PipelineError:
            delta.discard(files)
            raise
        count, self.last_ordinal = last - self.last_ordinal, last
        return count

    def _properties(self, position: str, last: int, delta: RowDelta) -> dict[str, str]:
        carried = positions.position_properties(position, metadata_location(self.table), delta.storage)
        return {**carried, positions.LAST_ORDINAL: str(last)}

    def _evolve(self, delta: RowDelta, wanted: pa.Schema) -> None:
        last_id = max(delta.table.metadata.last_column_id, *delta.schema.field_ids)
        evolution = evolve(delta.schema, iceberg_fields(wanted), last_id)
        if evolution.clashes:
            raise SchemaConflictError(f"{self.name}: " + "; ".join(str(c) for c in evolution.clashes))
        if evolution.changed:
            delta.evolve(evolution.schema)

    def _moved_table(self, before: str | None) -> Any:
        """The table as it is now, if nobody else has appended since we read its position."""
        table = self.table
        if table is None:
            raise PositionLostError(f"{self.name} has vanished")
        known = table.metadata.current_snapshot_id
        refresh(table)
        if table.metadata.current_snapshot_id != known:
            self._read_state()
        if self.position != before:
            raise CommitConflictError(
                f"another ingester has appended to {self.name} meanwhile; this run stops, its changes are not lost",
                may_retry=False,
            )
        return table

    def end_of_batch(self, after: int, most_rows: int) -> int:
        """The ordinal where the next batch of a mirror ends: at most so many changes, but no part of what is atomic."""
        end = min(after + most_rows, self.last_ordinal)
        for first, last in atomic_runs(self.table, after):
            if first <= end < last:
                end = first - 1 if first > after + 1 else last
        return end


def _has_rows(table: Any) -> bool:
    snapshot = positions.current_snapshot(table)
    return snapshot is not None and (snapshot.summary is None or snapshot.summary["total-records"] != "0")
