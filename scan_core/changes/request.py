"""Changes: the frozen request for the rows inserted and deleted between two snapshots, and the ways to get them.

Which files differ is found by `file_changes.py`, which of their rows by `row_changes.py`; what cancels out is dropped
by `net.py`.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from scan_core.changes.file_changes import file_changes
from scan_core.changes.net import net_changes
from scan_core.changes.row_changes import Changed, ChangeSplit, ChangeType, change_splits, read_changes
from scan_core.changes.stretches import stretches
from scan_core.distribute.local import run_splits
from scan_core.errors import ColumnNotFoundError, OptionError, PredicateError, UnsupportedError
from scan_core.metadata import TableMetadata
from scan_core.metrics import ScanMetrics
from scan_core.read.metadata_columns import DEAD_ROW_IDS, METADATA_IDS
from scan_core.read.public_types import public_batch, public_schema
from scan_core.schema import Schema, arrow_type
from scan_core.snapshot import Snapshot
from scan_core.split import ScanContext

CHANGE_TYPE = "_change_type"


@dataclass(slots=True)
class _LastRun:
    """The only mutable part: what the last run counted."""

    metrics: ScanMetrics = field(default_factory=ScanMetrics)


@dataclass(frozen=True, slots=True)
class ChangeWork:
    """What has to be read to find changes.

    Attributes:
        splits: the parts, each of which a worker reads alone.
        context: in which they are read; its projection has the columns that rows are compared by, too.
        compared: the columns by which rows that came and rows that went cancel out; None where all are of one kind.
    """

    splits: tuple[ChangeSplit, ...]
    context: ScanContext
    compared: Schema | None


@dataclass(frozen=True)
class Changes:
    """Rows inserted and rows deleted between two snapshots. Immutable; made by `Scan.changes`.

    Net: a row that came and went in between is not among them, nor is one that was only moved to another file. An
    update is a delete of the old row and an insert of the new one. Rows have the schema of the later snapshot behind a
    column `_change_type`, `delete` or `insert` (`_change_type_` where the table has that name); deletes come first. Where rows both came and went, both are held in
    memory until they have been compared.

    Attributes:
        metadata: of the table.
        context: columns, filter and options.
        schema: all columns in force.
        from_snapshot: the earlier snapshot; None for the empty table before the first.
        to_snapshot: the later one; None for a table without snapshots.
        trust_rewrites: believe `replace` snapshots (compactions) that they changed no row, and read nothing of what they
            rewrote, rather than compare.
        only: None for both kinds of changes.
        row_limit: most rows of the result, None for all.
    """

    metadata: TableMetadata
    context: ScanContext
    schema: Schema
    from_snapshot: Snapshot | None
    to_snapshot: Snapshot | None
    trust_rewrites: bool = False
    only: ChangeType | None = None
    row_limit: int | None = None
    _last: _LastRun = field(default_factory=_LastRun, repr=False, compare=False)

    def __post_init__(self) -> None:
        dead = [f.name for f in self.context.projection.fields if f.field_id in DEAD_ROW_IDS]
        if dead:
            raise ColumnNotFoundError(
                f"column {dead[0]!r} says nothing of changes, whose rows `_change_type` describes"
            )
        predicate = self.context.predicate
        if predicate is not None and not METADATA_IDS.isdisjoint(predicate.column_ids):
            raise PredicateError(f"changes cannot be filtered by where a row is stored: {predicate.sql}")

    @property
    def inserts(self) -> "Changes":
        """The inserted rows alone, without `_change_type`."""
        return replace(self, only=ChangeType.INSERT, _last=_LastRun())

    @property
    def deletes(self) -> "Changes":
        """The deleted rows alone, as they were, without `_change_type`."""
        return replace(self, only=ChangeType.DELETE, _last=_LastRun())

    def limit(self, num_rows: int) -> "Changes":
        """At most `num_rows` rows, whichever come first.

        Raises:
            OptionError: negative.
        """
        if num_rows < 0:
            raise OptionError(f"limit must not be negative, not {num_rows}")
        least = num_rows if self.row_limit is None else min(num_rows, self.row_limit)
        return replace(self, row_limit=least, _last=_LastRun())

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the result, uuid columns as `pa.uuid()`. The first column tells the kind of change."""
        rows = public_schema(self.context.projection)
        if self.only is not None:
            return rows
        name = CHANGE_TYPE
        while name in rows.names:  # the table has such a column: both are shown
            name += "_"
        return rows.insert(0, pa.field(name, pa.string(), nullable=False))

    @property
    def metrics(self) -> ScanMetrics:
        """What the last finished run did, planning included."""
        return self._last.metrics

    def count(self) -> int:
        """Rows of the result."""
        return sum(batch.num_rows for batch in self.to_batches())

    def to_table(self) -> pa.Table:
        """All rows as one table."""
        return pa.Table.from_batches(list(self.to_batches()), self.arrow_schema)

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows as record batches, none empty. Closing the iterator early stops the workers.

        Raises:
            UnsupportedError: rows must be compared, and a column of the table has a type that cannot be read.
        """
        schema, rows_schema = self.arrow_schema, public_schema(self.context.projection)
        left = self.row_limit
        changed = self._changed()
        try:
            while left is None or left > 0:
                change, batch = next(changed, (None, None))
                if change is None or batch is None:
                    break
                rows = public_batch(batch if left is None else batch.slice(0, left), rows_schema)
                left = None if left is None else left - rows.num_rows
                yield rows if self.only is not None else _typed(change, rows, schema)
        finally:
            changed.close()

    def work(self) -> "ChangeWork":
        """The parts of the work, for executors of one's own: `read_changes` reads each.

        Raises:
            UnsupportedError: as `to_batches` does.
        """
        self._last.metrics = ScanMetrics()
        if self.to_snapshot is None:
            return ChangeWork((), self.context, None)
        parts = [
            file_changes(self.metadata, earlier, later, self.context)
            for earlier, later in stretches(
                self.metadata, self.from_snapshot, self.to_snapshot, trust_rewrites=self.trust_rewrites
            )
        ]
        for part in parts:
            self._last.metrics.add(part.metrics)
        possible = {
            *([ChangeType.INSERT] if any(part.may_insert for part in parts) else []),
            *([ChangeType.DELETE] if any(part.may_delete for part in parts) else []),
        }
        if possible.isdisjoint(set(ChangeType) if self.only is None else {self.only}):
            return ChangeWork((), self.context, None)
        reading, compared = self.context, None
        if len(possible) > 1:
            compared = _comparable(self.schema)
            reading = replace(self.context, projection=_widened(self.context.projection, compared))
        return ChangeWork(tuple(split for part in parts for split in change_splits(part, reading)), reading, compared)

    def _changed(self) -> Generator[Changed, None, None]:
        """Net changes of the kinds asked for, in the engine's types."""
        work = self.work()
        if work.compared is None:
            yield from self._run(work.splits)
            return
        wanted = set(ChangeType) if self.only is None else {self.only}
        yield from self._net(self._run(work.splits), work.context, work.compared, wanted)

    def _run(self, splits: Sequence[ChangeSplit]) -> Generator[Changed, None, None]:
        metrics = ScanMetrics()
        changed = run_splits(splits, read_changes, metrics, self.context.options.parallelism)
        try:
            yield from changed
        finally:
            changed.close()
            self._last.metrics.add(metrics)

    def _net(
        self, changed: Iterator[Changed], reading: ScanContext, compared: Schema, wanted: set[ChangeType]
    ) -> Iterator[Changed]:
        batches: dict[ChangeType, list[pa.RecordBatch]] = {change: [] for change in ChangeType}
        for change, batch in changed:
            batches[change].append(batch)
        schema = reading.projection.arrow_schema()
        tables = {change: pa.Table.from_batches(found, schema) for change, found in batches.items()}
        keep = dict(
            zip(
                (ChangeType.DELETE, ChangeType.INSERT),
                net_changes(tables[ChangeType.DELETE], tables[ChangeType.INSERT], compared.names),
                strict=True,
            )
        )
        for change in ChangeType:
            if change in wanted:
                rows = tables[change].select(self.context.projection.names).filter(pa.array(keep[change]))
                for batch in rows.to_batches(max_chunksize=self.context.options.batch_rows):
                    if batch.num_rows:
                        yield change, batch


def _typed(change: ChangeType, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    kinds = pa.repeat(pa.scalar(change.value), rows.num_rows)
    return pa.RecordBatch.from_arrays([kinds, *rows.columns], schema=schema)


def _comparable(schema: Schema) -> Schema:
    """The schema itself, if all of its columns can be read."""
    for column in schema.fields:
        try:
            arrow_type(column.type)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"column {column.name!r}: type {column.type} is not supported, so deleted and inserted rows cannot be "
                "compared; snapshots between which rows were only inserted, or only deleted, can be read"
            ) from error
    return schema


def _widened(projection: Schema, compared: Schema) -> Schema:
    """The projection with all columns that rows are compared by."""
    known = {f.field_id for f in projection.fields}
    return replace(projection, fields=(*projection.fields, *(f for f in compared.fields if f.field_id not in known)))
