"""Scan: a request for rows of a table, and the public ways to get them.

How rows are found is the business of `plan/` on the driver and `read/` on the workers; what is asked for, that of
`scan_request.py`.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from scan_core.distribute.local import QUEUED_BATCHES, run_splits
from scan_core.errors import OptionError
from scan_core.metrics import ScanMetrics
from scan_core.plan.planner import ScanPlan, plan_scan
from scan_core.read.public_types import public_batch
from scan_core.read.read_ahead import FilesAhead
from scan_core.read.split_reader import count_split, read_split
from scan_core.scan_request import ScanRequest
from scan_core.split import Split

if TYPE_CHECKING:
    from scan_core.changes.request import Changes
    from scan_core.runtime_filter.request import RuntimeFilter

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


@dataclass(frozen=True, repr=False)
class Scan(ScanRequest):
    """A request for rows of one table, and how to get them. Immutable but for what its last run counted."""

    _last: _LastRun = field(default_factory=_LastRun, repr=False, compare=False)

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

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows as record batches of at most `options.batch_rows` rows, none empty.

        They come in the order of the plan, or, with `options.keep_order` off, as they are read.

        Closing the iterator early stops the workers.
        """
        return self._run(self.plan(), self.arrow_schema)

    def _run(self, plan: ScanPlan, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
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
        self,
        plan: ScanPlan,
        read: Callable[[Split, ScanMetrics, FilesAhead], Iterator[T]],
        *,
        keep_order: bool = True,
        queued: int = QUEUED_BATCHES,
    ) -> Generator[T, None, None]:
        """What `read` yields for each split of a plan, in this process; `metrics` tells of it afterwards.

        `keep_order` and `queued` are those of `run_splits`.
        """
        metrics = ScanMetrics()
        with FilesAhead(self.options) as ahead:
            results = run_splits(
                _local_splits(plan),
                lambda split, own: read(split, own, ahead),
                metrics,
                self.options.parallelism,
                keep_order=keep_order,
                queued=queued,
                expect=ahead.expect,
            )
            try:
                yield from results
            finally:
                results.close()
                self._last.metrics, self._last.filters = plan.metrics + metrics, plan.context.runtime_filters

    def _with(self, **changes: Any) -> Self:
        return super()._with(**changes, _last=_LastRun())


def _count_one(split: Split, metrics: ScanMetrics, ahead: FilesAhead) -> Iterator[int]:
    yield count_split(split, metrics, ahead)


def _local_splits(plan: ScanPlan) -> Sequence[Split]:
    size = min(max(plan.total_bytes // _LOCAL_SPLITS, _LEAST_SPLIT_BYTES), _MOST_LOCAL_SPLIT_BYTES)
    return plan.splits(min(size, plan.context.options.split_bytes))
