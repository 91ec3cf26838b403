"""Writes the live rows of data files to new files: in this process, or by tasks of Spark.

A group of files is rewritten by one task. A group that is too large for that, because all rows of a partition are sorted, is
divided by ranges of the order: some tasks read, others sort and write. Nothing is committed here. Files of tasks that fail or
are overtaken are in no result, and are orphans if the task was killed.
"""

import pickle
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, groupby
from math import ceil
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from nevermore.pipelines.changes.change_run import by_part, gathered, in_groups
from nevermore.pipelines.changes.row_order import Order, Parts, sample, sorted_rows, step_of
from nevermore.pipelines.config.project import SparkConfig
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.table_writer import FileLayout, RollingWriter, WriteTarget
from nevermore.pipelines.spark.jobs import ROWS, SparkJobs, begin_task, packed_table, row_of, unpacked_table, values_of
from nevermore.scan_core import (
    ContentFile,
    FileScanTask,
    Mask,
    PartitionSpec,
    ScanContext,
    ScanMetrics,
    Split,
    pack_splits,
    read_split,
    run_splits,
    unpack_split,
)
from nevermore.scan_core.parts import resolve_deletes

SORTED_BATCH_ROWS = 8_192
"""The writer ends files between batches."""
SPREAD_FILES = 8
"""A group of more bytes than so many target files is sorted by several tasks."""
BUCKET_FILES = 4
"""Target files that a task writes of a sorted group."""
COUNTED_BYTES = 4 * 1024**3
"""Stored bytes of data files in which a task counts dead rows: it reads only the columns of keys."""

Read = Callable[[Split, ScanMetrics], Iterator[pa.RecordBatch]]
Drops = Callable[[pa.RecordBatch], Mask]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """New files, and the number of dead rows of the old ones."""

    files: tuple[ContentFile, ...]
    dead_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """How data files are rewritten; pickled to the workers.

    Attributes:
        table: name of the table.
        context: how the rows are read, with the columns of row lineage if the table has them.
        target: schema and place of the new files.
        spec: their partition spec.
        layout: their layout.
        key_ids: columns whose bounds are not truncated.
        order: order of the rows.
        sort_bytes: Arrow bytes of rows that are sorted at once.
    """

    table: str
    context: ScanContext
    target: WriteTarget
    spec: PartitionSpec
    layout: FileLayout
    key_ids: tuple[int, ...]
    order: Order
    sort_bytes: int

    def __call__(self, tasks: Sequence[FileScanTask], read: Read = read_split, drops: Drops | None = None) -> Rewritten:
        """Write the live rows of a group of files, without those that `drops` names.

        Raises:
            PipelineError: a row does not fit the schema of the table, or was lost.
        """
        metrics = ScanMetrics()
        with self._writer() as writer, closing(self._rows(tasks, metrics, read)) as batches:
            kept, num_dropped = (batches, [0]) if drops is None else _without(batches, drops)
            rows: Iterator[pa.Table | pa.RecordBatch] = kept
            if self.order.columns:
                parts = sorted_rows(kept, self.order, self.sort_bytes, lambda: self.keys(tasks))
                rows = chain.from_iterable(part.to_batches(SORTED_BATCH_ROWS) for part in parts)
            writer.write(rows)
        written = tuple(writer.files)
        if sum(f.record_count for f in written) + sum(num_dropped) != metrics.rows_out:
            self.discard(written)
            raise self.miscounted(metrics.rows_out)
        return Rewritten(written, dead_rows_of(metrics))

    def discard(self, files: Iterable[ContentFile]) -> None:
        """Remove files that will not be committed."""
        self.target.storage.remove(file.path for file in files)

    def miscounted(self, num_rows: int) -> PipelineError:
        """The error for a number of rows that was not written."""
        return PipelineError(f"{self.table}: {num_rows} rows were read, but others written")

    def keys(self, tasks: Sequence[FileScanTask], metrics: ScanMetrics | None = None) -> Iterator[pa.RecordBatch]:
        """The columns to sort by of all live rows."""
        ids = tuple(self.target.schema.find(name).field_id for name in self.order.columns)
        context = replace(self.context, projection=self.target.schema.select(ids))
        return run_splits(_splits(context, tasks), read_split, metrics or ScanMetrics(), context.options.parallelism)

    def _writer(self) -> RollingWriter:
        prefix = f"compact-{uuid.uuid4().hex[:8]}"
        return RollingWriter(self.target, self.spec, self.layout, prefix, self.key_ids)

    def _rows(
        self, tasks: Sequence[FileScanTask], metrics: ScanMetrics, read: Read = read_split
    ) -> Generator[pa.RecordBatch, None, None]:
        yield from run_splits(_splits(self.context, tasks), read, metrics, self.context.options.parallelism)

    # Groups that several tasks sort

    def row_bytes(self, tasks: Sequence[FileScanTask]) -> int:
        """Arrow bytes of a row, by the first ones; 0 without rows."""
        with closing(self._rows(tasks, ScanMetrics())) as batches:
            first = next((batch for batch in batches if batch.num_rows), None)
        return 0 if first is None else max(1, first.nbytes // first.num_rows)

    def sampled(self, piece: int, tasks: Sequence[FileScanTask], step: int) -> tuple[pa.Table, int, int]:
        """The columns to sort by of every `step`-th row with its number, the number of rows, and that of dead ones."""
        metrics, found, seen = ScanMetrics(), [], _first_of(piece)
        for batch in self.keys(tasks, metrics):
            found.append(sample(pa.Table.from_batches([batch]), self.order, seen, step))
            seen += batch.num_rows
        return pa.concat_tables(found) if found else pa.table({}), metrics.rows_out, dead_rows_of(metrics)

    def divided(
        self, piece: int, tasks: Sequence[FileScanTask], parts: Parts, num_buckets: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of files by part, for the tasks that sort a bucket of parts each."""
        seen = _first_of(piece)
        batches = (pa.Table.from_batches([batch]) for batch in self._rows(tasks, ScanMetrics()))
        for rows in gathered(batches, self.sort_bytes):
            codes = parts.part_of(rows, np.arange(seen, seen + rows.num_rows))
            seen += rows.num_rows
            for part, own in by_part(rows, codes, parts.count):
                yield row_of(part, piece, part * num_buckets // parts.count, packed_table(own))

    def written(self, rows: Iterable[tuple[int, int, bytes]], parts: Parts) -> Rewritten:
        """Sort and write the parts of one bucket."""
        with self._writer() as writer:
            for _, own in groupby(rows, key=itemgetter(1)):
                part = pa.concat_tables(unpacked_table(data) for *_, data in own)
                writer.write(iter(parts.in_order(part).to_batches(SORTED_BATCH_ROWS)))
        return Rewritten(tuple(writer.files), 0)


def _splits(context: ScanContext, tasks: Sequence[FileScanTask]) -> list[Split]:
    return [Split(context, (task,)) for task in tasks]


def _first_of(piece: int) -> int:
    """Number of the first row of a piece."""
    return piece << 40


def dead_rows_of(metrics: ScanMetrics) -> int:
    """Number of rows that deletes removed."""
    return metrics.rows_removed_by_equality_deletes + metrics.rows_removed_by_position_deletes


def _without(batches: Iterator[pa.RecordBatch], drops: Drops) -> tuple[Iterator[pa.RecordBatch], list[int]]:
    """The rows that are not dropped, and the numbers of those that were so far."""
    num_dropped: list[int] = []

    def kept() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            dropped = drops(batch)
            num_dropped.append(int(dropped.sum()))
            yield batch.filter(pa.array(~dropped)) if dropped.any() else batch

    return kept(), num_dropped


def count_dead_rows(tasks: Sequence[FileScanTask], context: ScanContext) -> list[int]:
    """Number of dead rows of each of these files; reads the columns of keys."""

    def count(split: Split, metrics: ScanMetrics) -> Iterator[int]:
        yield sum(int(flags.sum()) for flags in resolve_deletes(split.tasks[0], context, metrics))

    return list(run_splits(_splits(context, tasks), count, ScanMetrics(), context.options.parallelism))


# Spark

_Work = Callable[[int, Split], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class _OnSplits:
    """Does the same work for each packed split; pickled to the workers."""

    shared: bytes
    work: _Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        for number, packed in values_of(batches, "number", "packed"):
            yield from self.work(number, unpack_split(self.shared, packed))


def _with_result(made: Callable[[int, Split], Any]) -> _Work:
    return lambda number, split: iter([row_of(number, 0, 0, pickle.dumps(made(number, split)))])


@dataclass(frozen=True, slots=True)
class _WriteBuckets:
    """Sorts and writes buckets; pickled to the workers."""

    rewrite: Rewrite
    parts: Parts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task()
        rows = values_of(batches, "number", "piece", "data")
        for bucket, own in groupby(rows, key=itemgetter(0)):
            yield row_of(bucket, 0, 0, pickle.dumps(self.rewrite.written(own, self.parts)))


@dataclass(frozen=True, slots=True)
class SparkRewrites:
    """Rewrites groups of files by the tasks of a session."""

    jobs: SparkJobs
    slots: int

    @classmethod
    def of(cls, spark: SparkConfig) -> "SparkRewrites":
        """In the session of a config.

        Raises:
            PipelineError: no session can be started.
        """
        from nevermore.pipelines.spark.session import project_session
        from nevermore.scan_core.spark import parallelism_of

        session = project_session(spark)
        return cls(SparkJobs(session), parallelism_of(session))

    def rewrite(self, groups: Sequence[Sequence[FileScanTask]], rewrite: Rewrite) -> list[Rewritten]:
        """The new files of each group.

        Raises:
            PipelineError: a task failed; no file of any of the groups was kept.
        """
        rewrite = _for_tasks(rewrite)
        limit = SPREAD_FILES * rewrite.layout.target_file_bytes
        large = [i for i, tasks in enumerate(groups) if rewrite.order.columns and _size(tasks) > limit]
        small = [i for i in range(len(groups)) if i not in large]
        done: dict[int, Rewritten] = {}
        try:
            done.update(zip(small, self._each([groups[i] for i in small], rewrite), strict=True))
            for i in large:
                done[i] = self._sorted(groups[i], rewrite)
        except BaseException:
            rewrite.discard(file for one in done.values() for file in one.files)
            raise
        return [done[i] for i in range(len(groups))]

    def count_dead_rows(self, tasks: Sequence[FileScanTask], context: ScanContext) -> list[int]:
        """As the function of this name."""
        if not tasks:
            return []
        pieces = _pieces(tasks, min(COUNTED_BYTES, max(1, _size(tasks) // (2 * self.slots))))
        counts: Callable[[int, Split], list[int]] = lambda _, split: count_dead_rows(split.tasks, split.context)  # noqa: E731 - pickled to the workers
        found = self._results(
            pieces, replace(context, options=replace(context.options, parallelism=1)), _with_result(counts)
        )
        return [count for piece in found for count in piece]

    def _each(self, groups: Sequence[Sequence[FileScanTask]], rewrite: Rewrite) -> list[Rewritten]:
        if not groups:
            return []
        work = _with_result(lambda _, split: rewrite(split.tasks))
        return self._results(groups, rewrite.context, work)

    def _sorted(self, tasks: Sequence[FileScanTask], rewrite: Rewrite) -> Rewritten:
        row_bytes = rewrite.row_bytes(tasks)
        if not row_bytes:
            return self._each([tasks], rewrite)[0]
        step = step_of(rewrite.sort_bytes, row_bytes)
        target = rewrite.layout.target_file_bytes
        pieces = _pieces(tasks, target)
        keys = _with_result(lambda number, split: rewrite.sampled(number, split.tasks, step))
        sampled, num_rows, dead_rows = zip(*self._results(pieces, rewrite.context, keys), strict=True)
        parts = Parts.of(pa.concat_tables(table for table in sampled if table.num_rows), rewrite.order)
        num_buckets = min(max(1, ceil(_size(tasks) / (BUCKET_FILES * target))), parts.count)
        divided = self._frame(
            pieces, rewrite.context, lambda number, split: rewrite.divided(number, split.tasks, parts, num_buckets)
        )
        buckets = divided.repartition(num_buckets, "number").sortWithinPartitions("number", "piece", "place")
        written = self._reported(buckets.mapInArrow(_WriteBuckets(rewrite, parts), ROWS))
        files = tuple(file for one in written.values() for file in one.files)
        if sum(file.record_count for file in files) != sum(num_rows):
            rewrite.discard(files)
            raise rewrite.miscounted(sum(num_rows))
        return Rewritten(files, sum(dead_rows))

    def _frame(self, pieces: Sequence[Sequence[FileScanTask]], context: ScanContext, work: _Work) -> Any:
        packed = pack_splits([Split(context, tuple(tasks)) for tasks in pieces])
        return self.jobs.spread(dict(enumerate(packed.splits))).mapInArrow(_OnSplits(packed.shared, work), ROWS)

    def _results(self, pieces: Sequence[Sequence[FileScanTask]], context: ScanContext, work: _Work) -> list[Any]:
        found = self._reported(self._frame(pieces, context, work))
        return [found[number] for number in range(len(pieces))]

    def _reported(self, frame: Any) -> dict[int, Any]:
        return {row["piece"]: pickle.loads(bytes(row["data"])) for row in self.jobs.collected(frame)}  # noqa: S301 - of our own tasks


def _for_tasks(rewrite: Rewrite) -> Rewrite:
    """The same in one thread: Spark gives a task one core."""
    context = rewrite.context
    return replace(rewrite, context=replace(context, options=replace(context.options, parallelism=1)))


def _size(tasks: Iterable[FileScanTask]) -> int:
    return sum(task.data_file.file_size_bytes for task in tasks)


def _pieces(tasks: Iterable[FileScanTask], most: int) -> list[list[FileScanTask]]:
    return list(in_groups(tasks, lambda task: task.data_file.file_size_bytes, most))
