"""One data file of a split, opened: which of its row groups to read, and which of their rows are alive.

Everything between a task and a final selection is here in order; how single steps narrow is in `row_filter.py`, how
survivors become batches in `output.py`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from scan_core.deletes.delete_filter import DeleteFilter, open_delete_filter
from scan_core.errors import UnsupportedError
from scan_core.expr.bound import BoundExpr, Column, Member, walk
from scan_core.expr.nodes import leaf_ids
from scan_core.metrics import ScanMetrics
from scan_core.prune.bounds import match_conjuncts
from scan_core.prune.match import Match
from scan_core.read.conjunct_order import ConjunctOrder
from scan_core.read.dead_rows import find_dead_rows, removed_by
from scan_core.read.file_reader import ColumnStatistics, FileReader, ReadCounts, RowGroup, open_file
from scan_core.read.lazy import LazyColumns
from scan_core.read.metadata_columns import (
    METADATA_IDS,
    MetadataSource,
    keeps_dead_rows,
    metadata_fields,
    partition_member,
)
from scan_core.read.projection import Constant, FileProjection
from scan_core.read.row_filter import (
    DeleteStep,
    PredicateStep,
    RefineStep,
    ValueSource,
    file_columns_of,
    refine_rows,
)
from scan_core.read.statistics import table_statistics
from scan_core.rows.algebra import nothing
from scan_core.rows.selection import All, RowSelection, intersect, selected_count
from scan_core.schema import Type
from scan_core.split import FileScanTask, ScanContext


@contextmanager
def open_task(
    task: FileScanTask, context: ScanContext, metrics: ScanMetrics, order: ConjunctOrder
) -> Iterator["TaskReader"]:
    """Open the file of a task, and close it again.

    Raises:
        UnsupportedError: the file is encrypted.
        MalformedTableError: it cannot be read, or lacks a required column.
    """
    data_file = task.data_file
    if data_file.is_encrypted:
        raise UnsupportedError(f"{data_file.path}: encrypted files are not supported")
    reader = open_file(
        data_file.path,
        data_file.format,
        context.io,
        data_file.file_size_bytes,
        reads_pages=context.options.prune_pages,
    )
    try:
        yield TaskReader(task, context, metrics, order, reader)
    finally:
        reader.close()


class TaskReader:
    """An open data file and the deletes that may touch it."""

    def __init__(
        self,
        task: FileScanTask,
        context: ScanContext,
        metrics: ScanMetrics,
        order: ConjunctOrder,
        reader: FileReader,
    ) -> None:
        self._task = task
        self._context = context
        self._metrics = metrics
        self._order = order
        self._reader = reader
        self._wanted: set[int] = set()
        self._keeps_dead_rows = keeps_dead_rows(context)
        self.projection = FileProjection(
            reader.arrow_schema, has_field_ids=reader.has_field_ids, context=context, file=task.data_file
        )
        self._deletes: DeleteFilter = open_delete_filter(task, context, metrics)
        self._key_types = {i: path[0].type for i, path in context.field_paths.items() if len(path) == 1}
        self._predicate_types = {
            node.field_id: node.type
            for conjunct in (context.predicate.conjuncts if context.predicate is not None else ())
            for node in walk(conjunct)
            if isinstance(node, Column)
            and node.field_id not in METADATA_IDS  # bounds tell nothing of what is inherited
        }
        self._predicate_steps = self._plan_predicate()
        self._delete_steps = [
            DeleteStep(deletes, [self.projection.leaf(i) for i in deletes.key_ids])
            for deletes in self._deletes.equality
        ]
        self.plan_to_read(self._step_columns())
        metrics.data_files_read += task.start == 0

    def plan_to_read(self, file_columns: Collection[int]) -> None:
        """Columns that will be read, so that what deletes and filters save can be told."""
        self._wanted.update(file_columns)

    def row_groups(self) -> Iterator[tuple[LazyColumns, Sequence[PredicateStep]]]:
        """Row groups of the task that may hold rows of the result, and the conjuncts that statistics do not decide."""
        for row_group in self._reader.row_groups:
            if not self._owns(row_group):
                continue
            self._metrics.rows_in_files += row_group.num_rows
            if row_group.num_rows == 0:
                continue
            steps = self._undecided(row_group)
            if steps is None:
                self._metrics.row_groups_pruned += 1
                self._metrics.rows_removed_by_filter += row_group.num_rows
                self._metrics.bytes_skipped += self._reader.compressed_bytes(row_group, sorted(self._wanted))
                continue
            self._metrics.row_groups_read += 1
            yield LazyColumns(self._reader, row_group), steps

    def refine(
        self, columns: LazyColumns, conjuncts: Sequence[PredicateStep], within: RowSelection | None = None
    ) -> RowSelection:
        """The rows that fulfil the predicate and that no delete removes; dead ones too where they are asked for.

        Args:
            columns: of one row group.
            conjuncts: of the predicate, as `row_groups` yields them.
            within: look no further than at these rows.
        """
        num_rows = columns.row_group.num_rows
        if self._keeps_dead_rows:
            columns.dead = find_dead_rows(self._task, self._context, self._deletes, self.projection, columns)
            return refine_rows(conjuncts, columns, All(num_rows), self._order, self._metrics)
        selection = self._deletes.position_selection(columns.row_group.first_row_position, num_rows)
        self._metrics.rows_removed_by_position_deletes += num_rows - selected_count(selection)
        selection = selection if within is None else intersect(selection, within)
        if not self._context.options.lazy_columns:
            columns.load(sorted(self._wanted), All(num_rows))
        deletes = self._deletes_that_touch(columns.row_group)
        if deletes is None:
            self._metrics.rows_removed_by_equality_deletes += selected_count(selection)
            return nothing(num_rows)
        return refine_rows([*conjuncts, *deletes], columns, selection, self._order, self._metrics)

    def removed_by(self, deletes: DeleteFilter, columns: LazyColumns) -> npt.NDArray[np.bool_]:
        """Which rows of a row group `deletes`, not the task's own, remove."""
        statistics_of = self._statistics_of(columns.row_group, self._key_types)
        prune = self._context.options.prune_deletes
        return removed_by(deletes, self.projection, columns, statistics_of if prune else None)

    def count_bytes(self, columns: LazyColumns) -> None:
        """Add what was read of a row group, and what of the planned columns was not."""
        counts, self._reader.counts = self._reader.counts, ReadCounts()
        wanted = self._reader.compressed_bytes(columns.row_group, sorted(self._wanted | columns.indices))
        read = self._reader.compressed_bytes(columns.row_group, sorted(columns.indices)) - counts.bytes_left_out
        self._metrics.bytes_read += read
        self._metrics.bytes_skipped += wanted - read
        self._metrics.pages_read += counts.pages_read
        self._metrics.pages_skipped += counts.pages_left_out
        self._metrics.fallbacks += counts.fallbacks

    def _owns(self, row_group: RowGroup) -> bool:
        """Each row group lies in exactly one task, even where the manifest's file size is wrong."""
        end = self._task.start + self._task.length
        is_last = end >= self._task.data_file.file_size_bytes
        return (self._task.start == 0 or row_group.byte_offset >= self._task.start) and (
            is_last or row_group.byte_offset < end
        )

    def _undecided(self, row_group: RowGroup) -> Sequence[PredicateStep] | None:
        """The conjuncts that may be untrue for some row; None if one of them is true for no row."""
        predicate = self._context.predicate
        if predicate is None or not self._context.options.prune_row_groups:
            return self._predicate_steps
        verdicts = match_conjuncts(predicate, self._statistics_of(row_group, self._predicate_types))
        if Match.NEVER in verdicts:
            return None
        return [s for s, verdict in zip(self._predicate_steps, verdicts, strict=True) if verdict is not Match.ALWAYS]

    def _deletes_that_touch(self, row_group: RowGroup) -> list[RefineStep] | None:
        """The delete sets that can remove rows of this row group; None if one removes them all."""
        if not self._context.options.prune_deletes:
            return list(self._delete_steps)
        steps: list[RefineStep] = []
        statistics_of = self._statistics_of(row_group, self._key_types)
        for step in self._delete_steps:
            match step.deletes.may_touch(statistics_of):
                case Match.NEVER:
                    continue
                case Match.ALWAYS:
                    return None
                case Match.MAYBE:
                    steps.append(step)
        return steps

    def _statistics_of(
        self, row_group: RowGroup, types: Mapping[int, Type]
    ) -> Callable[[int], ColumnStatistics | None]:
        """Statistics of top-level columns by field id, bounds in the types given."""

        def statistics_of(field_id: int) -> ColumnStatistics | None:
            index = self.projection.index_of(field_id)
            if index is None or field_id not in types:
                return None
            found = self._reader.statistics(row_group, index)
            return found and table_statistics(found, self._reader.arrow_schema.field(index).type, types[field_id])

        return statistics_of

    def _plan_predicate(self) -> list[PredicateStep]:
        predicate = self._context.predicate
        if predicate is None:
            return []
        return [
            PredicateStep(conjunct, {i: self._source(i, conjunct) for i in leaf_ids(conjunct)}, index)
            for index, conjunct in enumerate(predicate.conjuncts)
        ]

    def _source(self, field_id: int, conjunct: BoundExpr) -> ValueSource:
        """Where a column or member comes from, in the type of the schema that the predicate is bound to."""
        node = next(n for n in walk(conjunct) if isinstance(n, Column | Member) and n.field_id == field_id)
        if field_id in METADATA_IDS:
            field = metadata_fields(self._context.specs, self._context.field_paths)[node.name]
            return MetadataSource(field, self._task.data_file, self.projection, self._context.specs)
        data_file = self._task.data_file
        member = partition_member(field_id, data_file, self._context.specs[data_file.spec_id], node.type)
        return self.projection.leaf(field_id, node.type) if member is None else Constant(member)

    def _step_columns(self) -> set[int]:
        sources = [s for step in self._predicate_steps for s in step.sources.values()]
        sources += [s for step in self._delete_steps for s in step.sources]
        return {index for source in sources for index in file_columns_of(source)}
