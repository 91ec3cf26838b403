"""Publishes rows that are only columns of one mirror: the tasks that read the mirror write the files."""

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
"""Parts of a query that select columns and do nothing else; `kind` and `hint` must be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """Reads splits and writes their rows; pickled to the workers.

    Attributes:
        publish: how and where.
        shared: what the splits share, as packed with them.
        source: what Spark would see of the columns that the splits give.
        sources: for each column of the result its place among those, None for the day.
        result: the columns of the result.
        day: of all rows, where the result has one that is no column of the mirror.
    """

    publish: PublishTask
    shared: bytes
    source: pa.Schema
    sources: tuple[int | None, ...]
    result: pa.Schema
    day: date | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One report for all the packed splits in `batches`."""
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
    """The column of the mirror that each column of the result is, None for the day; or None for any other query.

    The query reads one mirror, of these columns, and Spark names the columns of its result. `day` is the column of the
    result that is known to be one day in all rows, whatever it is made of.
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
    """What the query selects from, if that is a table as it is."""
    source: Any = select.args.get("from_") or select.args.get("from")
    if select.args.get("kind") or select.args.get("hint") or source is None or not isinstance(source.this, exp.Table):
        return None
    table = source.this
    is_renamed = table.args.get("alias") is not None and table.args["alias"].columns
    return None if is_renamed or any(table.args.get(name) for name in _READ_OTHERWISE) else table


def _is_column_of(expression: exp.Expression, table: exp.Table) -> bool:
    """Whether this is a column named alone or by its table: `a.b` may as well be a member of a struct `a`."""
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
"""What would make a table give other rows than its mirror has."""
