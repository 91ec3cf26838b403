"""Publishes rows that consist of columns of a single mirror: the tasks that read the mirror write the files."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
from sqlglot import exp

from pipelines.iceberg.table_writer import RollingWriter
from pipelines.publish.query import PublishedQuery
from pipelines.publish.task import PublishTask, TaskReport
from scan_core import ScanMetrics, read_split, unpack_split
from scan_core.native import is_missed
from scan_core.spark import conform, keep_archives_of_spark

_SIMPLE = frozenset({"expressions", "from", "from_", "kind", "hint"})
"""Parts of a query that only selects columns; `kind` and `hint` must be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """Reads splits and writes their rows; pickled to the workers.

    Attributes:
        publish: how and where to write.
        shared: data that the splits share, as packed with them.
        source: the columns of the splits as Spark would see them.
        sources: for each column of the result its index in `source`, None for the day.
        result: columns of the result.
        day: the day of all rows, where the result has a day that is not a column of the mirror.
    """

    publish: PublishTask
    shared: bytes
    source: pa.Schema
    sources: tuple[int | None, ...]
    result: pa.Schema
    day: date | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return one report for all the packed splits in `batches`."""
        keep_archives_of_spark()
        metrics = ScanMetrics()
        task = self.publish
        with RollingWriter(task.target, task.spec, task.layout, task.run) as writer:
            writer.write(self._rows(batches, metrics))
        yield TaskReport(tuple(writer.files), metrics).batch()

    def _rows(self, batches: Iterable[pa.RecordBatch], metrics: ScanMetrics) -> Iterator[pa.RecordBatch]:
        for packed in (packed for batch in batches for packed in batch.column(0).to_pylist()):
            split = unpack_split(self.shared, packed)
            metrics.fallbacks += is_missed(split.context.options)
            for rows in read_split(split, metrics):
                given = conform(rows, self.source)
                day = pa.repeat(pa.scalar(self.day, pa.date32()), given.num_rows)
                columns = [day if place is None else given.column(place) for place in self.sources]
                yield pa.RecordBatch.from_arrays(columns, schema=self.result)


def copied_columns(
    query: PublishedQuery, columns: Sequence[str], result: Sequence[str], day: str | None = None
) -> list[str | None] | None:
    """Find the column of the mirror behind each column of the result, None for the day; or None for any other query.

    Applies to queries that only select columns of one mirror; Spark names the columns of their result. `day` is the
    column of the result that is known to hold a single day in all rows, however it is computed.
    """
    select = query.tree
    if not isinstance(select, exp.Select) or any(value for name, value in select.args.items() if name not in _SIMPLE):
        return None
    table = _only_table(select)
    if table is None or len(query.tables) != 1:
        return None
    by_lower = {name.lower(): name for name in columns}
    if len(by_lower) != len(columns):
        return None
    day = (day or "").lower()
    found: list[tuple[str, str | None]] = []
    for expression in select.expressions:
        inner = expression.unalias()
        if isinstance(inner, exp.Star) and not any(inner.args.values()):
            found += [(name, name) for name in columns]
        elif day and expression.alias_or_name.lower() == day:
            found.append((expression.alias_or_name, None))
        elif _is_column_of(inner, table) and inner.name.lower() in by_lower:
            found.append((expression.alias_or_name, by_lower[inner.name.lower()]))
        else:
            return None
    if [name.lower() for name, _ in found] != [name.lower() for name in result]:
        return None
    return [None if name.lower() == day else column for name, column in found]


def _only_table(select: exp.Select) -> exp.Table | None:
    """Table that the query selects from, if it is a table without modifiers."""
    source: Any = select.args.get("from_") or select.args.get("from")
    if select.args.get("kind") or select.args.get("hint") or source is None or not isinstance(source.this, exp.Table):
        return None
    table = source.this
    is_renamed = table.args.get("alias") is not None and table.args["alias"].columns
    return None if is_renamed or any(table.args.get(name) for name in _READ_OTHERWISE) else table


def _is_column_of(expression: exp.Expression, table: exp.Table) -> bool:
    """Whether this is a column, bare or qualified by its table: `a.b` may also be a member of a struct `a`."""
    if not isinstance(expression, exp.Column) or not isinstance(expression.this, exp.Identifier):
        return False
    qualifier = [part.name.lower() for part in expression.parts[:-1]]
    known = (
        [[table.alias.lower()]]
        if table.alias
        else [[part.name.lower() for part in table.parts[-n:]] for n in (1, len(table.parts))]
    )
    return not qualifier or qualifier in known


_READ_OTHERWISE = frozenset({"sample", "joins", "laterals", "pivots", "version", "when", "hints", "only", "partition"})
"""Parts of a table reference that would change the mirror's rows."""
