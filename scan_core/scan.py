"""Scan: the frozen request for rows of a table, and the public ways to get them.

What a scan means is resolved here (columns, predicate, snapshot); how rows are found is the business of `plan/` on
the driver and `read/` on the workers.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from scan_core.binding import Binding, readable
from scan_core.distribute.local import run_splits
from scan_core.errors import OptionError
from scan_core.metrics import ScanMetrics
from scan_core.options import ScanOptions
from scan_core.plan.planner import ScanPlan, plan_scan
from scan_core.point_in_time import is_plausible_time, milliseconds
from scan_core.read.public_types import public_batch, public_schema
from scan_core.read.read_ahead import FilesAhead
from scan_core.read.split_reader import count_split, read_split
from scan_core.rows.sample import RowSample
from scan_core.schema import Schema
from scan_core.snapshot import Snapshot
from scan_core.split import ScanContext, Split

if TYPE_CHECKING:
    from scan_core.changes.request import Changes
    from scan_core.expr.nodes import BoundPredicate, Expr
    from scan_core.runtime_filter.column_keys import KeyField
    from scan_core.runtime_filter.request import RuntimeFilter
    from scan_core.runtime_filter.semi_join import SemiJoin
    from scan_core.table import Table

T = TypeVar("T")

_LEAST_SPLIT_BYTES = 1024**2
_MOST_LOCAL_SPLIT_BYTES = 32 * 1024**2
_LOCAL_SPLITS = 16
"""Enough to keep a few threads busy to the end; how many splits there are does not depend on the threads."""


@dataclass(slots=True)
class _LastRun:
    """The only mutable part of a scan: what its last run counted."""

    metrics: ScanMetrics = field(default_factory=ScanMetrics)
    filters: "tuple[RuntimeFilter, ...]" = ()


@dataclass(frozen=True)
class Scan:
    """A request for rows of one table. Immutable: every method that narrows it returns a copy.

    Attributes:
        table: what is read.
        columns: names of the result's columns, in order; None for all of the schema in force.
        predicates: SQL texts or expressions, all of which rows must fulfil.
        snapshot_id: read this snapshot; None for the current one.
        timestamp_ms: read what was current at this time, in milliseconds since the epoch.
        ref: read this branch or tag.
        options: limits and switches.
        row_limit: most rows of the result, None for all.
        row_sample: which rows to look at, None for all.
        joins: keys that rows must have, all of them, beside the predicates.
    """

    table: "Table"
    columns: tuple[str, ...] | None = None
    predicates: "tuple[str | Expr, ...]" = ()
    snapshot_id: int | None = None
    timestamp_ms: int | None = None
    ref: str | None = None
    options: ScanOptions = field(default_factory=ScanOptions)
    row_limit: int | None = None
    row_sample: RowSample | None = None
    joins: "tuple[SemiJoin, ...]" = ()
    _last: _LastRun = field(default_factory=_LastRun, repr=False, compare=False)

    def select(self, *names: str) -> "Scan":
        """These columns, in this order. Of a struct, `address.city` reads and gives that member alone.

        Metadata columns such as `_file` and `_pos` are chosen by name.
        """
        return self._with(columns=names)

    def where(self, predicate: "str | Expr") -> "Scan":
        """Rows that also fulfil `predicate`: SQL text such as `qty > 5`, or `col("qty") > 5`."""
        return self._with(predicates=(*self.predicates, predicate))

    def semi_join(self, columns: str | Sequence[str], keys: Any) -> "Scan":
        """Rows whose values of `columns` are among `keys`: exactly those, each once; NULL is never among them.

        What has no key is excluded as early as possible: files, row groups, pages, keys of deletes, then single rows.

        Args:
            columns: one column or struct member, or several that are matched together.
            keys: values (of several columns tuples of them), an Arrow array or table or whatever exports one, or
                another scan, which is read when this one first runs. Keys may repeat; those that the column's type
                cannot hold match nothing.

        Raises:
            OptionError: no keys, or not as many columns of keys as names.
        """
        from scan_core.runtime_filter.semi_join import semi_join

        return self._with(joins=(*self.joins, semi_join(columns, keys, is_exact=True)))

    def prefilter(self, columns: str | Sequence[str], keys: Any) -> "Scan":
        """Rows without key may be left out wherever that is cheap, and need not be: for callers who join again.

        Args:
            columns: see `semi_join`.
            keys: as in `semi_join`; or `LateKeys`, which are filled while the scan runs; or `induced_ranges` of the
                other side's key, which are known without reading it.

        Raises:
            OptionError: see `semi_join`.
        """
        from scan_core.runtime_filter.semi_join import semi_join

        return self._with(joins=(*self.joins, semi_join(columns, keys, is_exact=False)))

    def as_of(self, when: int | datetime) -> "Scan":
        """The snapshot with this id, or what was current at this time (a datetime, or milliseconds since the epoch).

        Raises:
            SnapshotNotFoundError: neither an id of the table nor plausible as milliseconds.
        """
        if isinstance(when, int) and (when in self.table.metadata.snapshots or not is_plausible_time(when)):
            return self.as_of_snapshot(when)
        return self.as_of_time(when)

    def as_of_snapshot(self, snapshot_id: int) -> "Scan":
        """The snapshot with this id, read with its own schema."""
        return self._with(snapshot_id=snapshot_id, timestamp_ms=None, ref=None)

    def as_of_time(self, when: int | str | datetime) -> "Scan":
        """What was current at a time: a datetime, ISO 8601 text (UTC where it names no zone), or milliseconds.

        Raises:
            SnapshotNotFoundError: text that is no time.
        """
        return self._with(snapshot_id=None, timestamp_ms=milliseconds(when), ref=None)

    def at_ref(self, name: str) -> "Scan":
        """A branch (read with the table's current schema) or a tag (with its snapshot's)."""
        return self._with(snapshot_id=None, timestamp_ms=None, ref=name)

    def with_options(self, options: ScanOptions) -> "Scan":
        """The same rows, found in another way."""
        return self._with(options=options)

    def limit(self, num_rows: int) -> "Scan":
        """At most `num_rows` rows, whichever come first.

        Raises:
            OptionError: negative.
        """
        if num_rows < 0:
            raise OptionError(f"limit must not be negative, not {num_rows}")
        return self._with(row_limit=num_rows if self.row_limit is None else min(num_rows, self.row_limit))

    def sample(self, fraction: float, seed: int = 0) -> "Scan":
        """A random part of the rows: each with probability `fraction`, decided before any column is read.

        The same seed takes the same rows of a data file, whatever is deleted from it later. Filters apply to the rows
        taken. Large files are sampled by block of rows, then by row, so that only some of their pages are read.

        Raises:
            OptionError: a fraction outside of 0 to 1, a negative seed, or a scan that is sampled already.
        """
        if self.row_sample is not None:
            raise OptionError("this scan is sampled already; give one fraction")
        return self._with(row_sample=RowSample(fraction, seed))

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that will be read; None for a table without snapshots."""
        return self._resolve()[0]

    @property
    def schema(self) -> Schema:
        """The columns of the result.

        Raises:
            ColumnNotFoundError: an unknown column; names the nearest.
        """
        return self._binding(self._resolve()[1]).projection(self.columns)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the result, uuid columns as `pa.uuid()`.

        Raises:
            UnsupportedError: a selected column has a type that cannot be read.
        """
        return public_schema(readable(self.schema))

    @property
    def applied_filters(self) -> tuple[str, ...]:
        """What every row of the result is sure to fulfil, as SQL, in the form that is evaluated; all must be true.

        Whoever reads the rows need not apply any of it again. `push_filters` finds out what of an engine's filters can
        be applied.

        Raises:
            PredicateError: a predicate is wrong or not supported.
        """
        predicate = self.predicate
        if predicate is None:
            return ()
        from scan_core.expr.text import bound_text

        return tuple(map(bound_text, predicate.conjuncts))

    @property
    def predicate(self) -> "BoundPredicate | None":
        """All predicates as one, bound to field ids; None without any. Errors are those of `applied_filters`."""
        return self._binding(self._resolve()[1]).predicate(self.predicates)

    def key_fields(self, names: Sequence[str]) -> "tuple[KeyField, ...]":
        """The columns or struct members with these names, as keys of a join.

        Raises:
            ColumnNotFoundError: an unknown column.
            OptionError: one that cannot be a key.
        """
        return self._binding(self._resolve()[1]).key_fields(names)

    @property
    def metrics(self) -> ScanMetrics:
        """What the last finished run of this scan did, planning included."""
        return self._last.metrics

    def plan(self) -> ScanPlan:
        """The files to read, and the deletes that may touch each."""
        snapshot, schema = self._resolve()
        return plan_scan(self.table.metadata, snapshot, self._context(schema))

    def changes(
        self, from_snapshot: int | None, to_snapshot: int | None = None, *, trust_rewrites: bool = False
    ) -> "Changes":
        """The rows of this scan inserted and deleted between two snapshots, in the schema of the later one.

        Args:
            from_snapshot: id of the earlier snapshot; None stands for the table before its first snapshot.
            to_snapshot: id of the later one, which descends from it; by default the snapshot that this scan reads.
            trust_rewrites: believe `replace` snapshots (compactions) that they changed no row, and read nothing of what
                they rewrote. By default old and new files are compared: some rewrites bring deleted rows back.

        Raises:
            SnapshotNotFoundError: there is no such snapshot, or the later one does not descend from the earlier one.
        """
        if self.row_sample is not None:
            raise OptionError("changes between snapshots cannot be sampled: rewritten rows have other places")
        from scan_core.changes.request import Changes
        from scan_core.changes.stretches import earlier_snapshot

        scan = self if to_snapshot is None else self.as_of_snapshot(to_snapshot)
        later, schema = scan._resolve()  # noqa: SLF001  its own class
        earlier = earlier_snapshot(self.table.metadata, from_snapshot, later)
        context = scan._context(schema)  # noqa: SLF001  its own class
        exact = tuple(f for f in context.runtime_filters if f.is_exact)  # rows may not be there by chance
        return Changes(
            self.table.metadata,
            replace(context, runtime_filters=exact),
            schema,
            earlier,
            later,
            trust_rewrites=trust_rewrites,
            row_limit=self.row_limit,
        )

    def explain(self) -> str:
        """In plain text: what is read, what was pruned by what, which deletes apply, what the last run switched off."""
        text = self.plan().explain()
        if not self._last.filters:
            return text
        from scan_core.runtime_filter.explain import explain_run

        return "\n".join([text, *explain_run(self._last.filters)])

    def count(self) -> int:
        """Rows of the result, without building any."""
        total = sum(self.run(self.plan(), _count_one))
        return total if self.row_limit is None else min(total, self.row_limit)

    def aggregate(self, *wanted: tuple[str, str]) -> tuple[Any, ...]:
        """The answers to `("sum", "price")`, `("count", "*")`, `("min", "day")` ..., without building rows.

        NULLs do not count; without any value min, max and sum are None. Sums of integers and decimals are exact, those
        of floats are added up row group by row group in the order of the plan. NaN is larger than every number.

        Args:
            wanted: functions (count, min, max, sum), each with the name of a column, or `*` for count.

        Raises:
            OptionError: an unknown function, or a row limit, which aggregates do not know.
            UnsupportedError: a column whose type has no order or cannot be added.
        """
        from scan_core.aggregates import run_aggregates

        if self.row_limit is not None:
            raise OptionError("aggregates do not know limits; aggregate what to_table() gives")
        return run_aggregates(self, wanted)

    def to_table(self) -> pa.Table:
        """All rows as one table."""
        schema = self.arrow_schema
        return pa.Table.from_batches(list(self.to_batches()), schema=schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches of at most `options.batch_rows` rows, none empty.

        They come in the order of the plan, or, with `options.keep_order` off, as they are read.

        Closing the iterator early stops the workers.
        """
        return self._run(self.plan(), self.arrow_schema)

    def _run(self, plan: ScanPlan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        left = self.row_limit
        batches = self.run(plan, read_split, keep_order=self.options.keep_order)
        try:
            while left is None or left > 0:
                batch = next(batches, None)
                if batch is None:
                    break
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                yield public_batch(batch, schema)
        finally:
            batches.close()

    def run(
        self, plan: ScanPlan, read: Callable[[Split, ScanMetrics, FilesAhead], Iterator[T]], *, keep_order: bool = True
    ) -> Generator[T, None, None]:
        """What `read` yields for each split of a plan, in this process; `metrics` tells of it afterwards."""
        metrics = ScanMetrics()
        with FilesAhead(self.options) as ahead:
            results = run_splits(
                _local_splits(plan),
                lambda split, own: read(split, own, ahead),
                metrics,
                self.options.parallelism,
                keep_order=keep_order,
                expect=ahead.expect,
            )
            try:
                yield from results
            finally:
                results.close()
                self._last.metrics, self._last.filters = plan.metrics + metrics, plan.context.runtime_filters

    def _with(self, **changes: Any) -> "Scan":
        return replace(self, **changes, _last=_LastRun())

    def _resolve(self) -> tuple[Snapshot | None, Schema]:
        return self.table.metadata.snapshot_for(
            snapshot_id=self.snapshot_id, timestamp_ms=self.timestamp_ms, ref=self.ref
        )

    def _binding(self, schema: Schema) -> Binding:
        return Binding(self.table.metadata, schema, self.options)

    def _context(self, schema: Schema) -> ScanContext:
        metadata, binding = self.table.metadata, self._binding(schema)
        return ScanContext(
            table=self.table.location,
            projection=readable(binding.projection(self.columns)),
            predicate=binding.predicate(self.predicates),
            field_paths=metadata.field_paths(),
            specs=metadata.specs,
            name_mapping=metadata.name_mapping,
            io=self.table.io,
            options=self.options,
            sample=self.row_sample,
            runtime_filters=tuple(join.bind(binding.key_fields(join.columns)) for join in self.joins),
        )


def _count_one(split: Split, metrics: ScanMetrics, ahead: FilesAhead) -> Iterator[int]:
    yield count_split(split, metrics, ahead)


def _local_splits(plan: ScanPlan) -> tuple[Split, ...]:
    size = min(max(plan.total_bytes // _LOCAL_SPLITS, _LEAST_SPLIT_BYTES), _MOST_LOCAL_SPLIT_BYTES)
    return plan.splits(min(size, plan.context.options.split_bytes))
