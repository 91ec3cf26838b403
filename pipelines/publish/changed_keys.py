"""Makes single keys of a published table: their rows are computed again, and equality deletes remove the earlier ones.

A key is a tuple of values of result columns. All rows that have it are made together, so that it may repeat. This module
imports pyspark.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipelines.config.published import PublishedConfig
from pipelines.iceberg.commit import RowDelta
from pipelines.iceberg.file_metrics import WrittenFile
from pipelines.iceberg.row_shape import conform, distinct_rows
from pipelines.iceberg.table_writer import check_key, write_deletes
from pipelines.mirrors.delete_scope import live_keys
from pipelines.publish.partition_lineage import Reach, day_columns, plain_columns
from pipelines.publish.query import PublishedQuery
from pipelines.publish.task import numbers
from scan_core import FileScanTask, NestedField, Scan, Schema, arrow_type
from scan_core.spark import Sieve, quoted_name

MAX_KEYS = 1_000_000
"""Maximum of keys that a run makes one by one; the driver holds them, and each task gets them."""
MAX_SHARE = 4
"""Keys are made one by one up to one for this many rows of their partitions; for more, whole partitions cost less."""
MAX_DELETE_FILES = 32
"""Delete files over a data file from which its partition is made as a whole, which removes them: readers load them all."""
_KEY_TYPES = frozenset({
    "boolean", "tinyint", "smallint", "int", "bigint", "string", "binary", "date", "timestamp", "timestamp_ntz",
})  # fmt: skip
"""Types of Spark whose values are equal in a delete file exactly if they are equal in Spark; decimals, too."""


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns of a result that form its keys, with Spark's type of each."""

    fields: tuple[NestedField, ...]
    spark_types: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [field.name for field in self.fields]

    def why_not(self) -> str | None:
        """Why rows cannot be found by these columns; None if they can."""
        for name, kind in zip(self.names, self.spark_types, strict=True):
            if kind not in _KEY_TYPES and not kind.startswith("decimal("):
                return f"{name} is {kind}, which cannot be a key"
        return None

    def of(self, found: pa.Table | None) -> pa.Table | None:
        """Keys that a trace gives as `k0`, `k1` and so on; None stays None."""
        if found is None:
            return None
        arrays = [found.column(n).cast(arrow_type(field.type)) for n, field in enumerate(self.fields)]
        keys = pa.table(arrays, names=self.names)
        for field in self.fields:  # no row has such a key
            keys = keys.filter(pc.is_valid(keys.column(field.name))) if field.required else keys
        return keys


def key_column_names(entry: PublishedConfig) -> list[str]:
    """The columns by which rows are made again: with that of the partition, so that a delete is in one partition."""
    by = entry.partitioning
    return list(dict.fromkeys((*entry.key, *(() if by is None else (by.column,)))))


def traced_keys(
    entry: PublishedConfig, query: PublishedQuery, schemas: Mapping[str, Schema], changed: Sequence[str]
) -> tuple[Reach, ...] | str:
    """How rows of the mirrors reach keys of the result; a reason if this is not certain for one that has `changed`."""
    reaches = query.reaches_of_keys(schemas, key_column_names(entry))
    tables = {query.view_names[table]: table for table in changed}
    unknown = next((r for r in reaches if r.values is None and r.table in tables), None)
    return reaches if unknown is None else f"{tables[unknown.table]} cannot be traced to keys: {unknown.reason}"


@dataclass(frozen=True, slots=True)
class KeySieve:
    """Leaves the rows of a batch that have one of some keys.

    Attributes:
        plain: columns of the batch whose values are looked up.
        days: columns of the batch whose days, in UTC, are looked up with them.
        keys: values of these, without NULL, in columns named by their numbers.
    """

    plain: tuple[str, ...]
    days: tuple[str, ...]
    keys: pa.Table

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have one of the keys, in their order."""
        values = [*map(batch.column, self.plain), *(_days_of(batch.column(name)) for name in self.days)]
        values = [array.cast(field.type) for array, field in zip(values, self.keys.schema, strict=True)]
        rows = pa.table([*values, pa.array(np.arange(batch.num_rows))], names=[*self.keys.column_names, "row"])
        kept = rows.join(self.keys, self.keys.column_names, join_type="left semi", use_threads=False).column("row")
        return batch.take(kept.sort().combine_chunks())


def _days_of(moments: pa.Array) -> pa.Array:
    return moments if pa.types.is_date32(moments.type) else pc.floor_temporal(moments, unit="day").cast(pa.date32())


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """The keys that a run makes.

    Attributes:
        columns: columns of the keys.
        rows: the keys, each once.
        reaches: how rows of the mirrors reach keys.
    """

    columns: KeyColumns
    rows: pa.Table
    reaches: tuple[Reach, ...]

    @classmethod
    def of(cls, columns: KeyColumns, found: Sequence[pa.Table], reaches: tuple[Reach, ...]) -> "ChangedKeys":
        """Keys that several traces found."""
        none = pa.table([pa.array([], arrow_type(field.type)) for field in columns.fields], names=columns.names)
        return cls(columns, distinct_rows(pa.concat_tables([none, *found])), reaches)

    def why_not(self, tasks: Iterable[FileScanTask]) -> str | None:
        """Why making whole partitions costs less, given the files that the table has in them; None if it does not."""
        tasks = list(tasks)
        rows = sum(task.data_file.record_count for task in tasks)
        if self.rows.num_rows > max(1, rows // MAX_SHARE):
            return f"{self.rows.num_rows:,} keys changed, too many for {rows:,} rows"
        deletes = max((sum(len(group.files) for group in task.equality_deletes) for task in tasks), default=0)
        if deletes >= MAX_DELETE_FILES:
            return f"{deletes} delete files already apply to earlier rows"
        return None

    def narrowed(self, query: PublishedQuery, scans: Mapping[str, Scan]) -> dict[str, Scan]:
        """The scans without rows that certainly belong to other keys; they may leave some."""
        schemas = {table: scan.table.schema for table, scan in scans.items()}
        partners = self.partners(query, schemas)
        return {t: s.semi_join(partners[t].column_names, partners[t]) if t in partners else s for t, s in scans.items()}

    def partners(self, query: PublishedQuery, schemas: Mapping[str, Schema]) -> dict[str, pa.Table]:
        """By table, values of some of its columns: rows with other values certainly belong to other keys."""
        found = {}
        for table, of_column in self._anchors(query, schemas, plain_columns).items():
            values = [self.rows.column(n) for n in of_column.values()]
            found[table] = distinct_rows(pa.table(values, names=list(of_column)))
        return found

    def sieves(self, query: PublishedQuery, schemas: Mapping[str, Schema]) -> dict[str, Sieve]:
        """By table, what leaves out rows whose days together with values of other columns certainly belong to other keys."""
        found: dict[str, Sieve] = {}
        plain = self._anchors(query, schemas, plain_columns)
        for table, days in self._anchors(query, schemas, day_columns).items():
            parts = [*plain.get(table, {}).items(), *days.items()]
            values = pa.table([self.rows.column(n) for _, n in parts], names=numbers(len(parts)))
            found[table] = KeySieve(tuple(plain.get(table, {})), tuple(days), distinct_rows(values))
        return found

    def _anchors(
        self,
        query: PublishedQuery,
        schemas: Mapping[str, Schema],
        columns_of: Callable[[Reach, Schema], Mapping[str, int]],
    ) -> dict[str, dict[str, int]]:
        """By table, columns that `columns_of` finds to be parts of the key, with the numbers of these."""
        found = {}
        for table, view in query.view_names.items():
            places = [columns_of(reach, schemas[table]).items() for reach in self.reaches if reach.table == view]
            # a row that one place needs must not be left out for another
            common = reduce(and_, (set(place) for place in places)) if places else set()
            # NULL would meet no row
            of_column = {column: n for column, n in sorted(common) if not self.rows.column(n).null_count}
            if of_column:
                found[table] = of_column
        return found

    def chosen(self, result: DataFrame) -> DataFrame:
        """The rows of a result that have one of the keys; NULL is a value like any other."""
        labels = [f"_nevermore_key_{n}" for n in range(len(self.columns.fields))]
        keys = result.sparkSession.createDataFrame(self.rows.rename_columns(labels))
        keys = keys.select(*(f.col(x).cast(t).alias(x) for x, t in zip(labels, self.columns.spark_types, strict=True)))
        pairs = zip(self.columns.names, labels, strict=True)
        meets = reduce(and_, (result[quoted_name(name)].eqNullSafe(keys[label]) for name, label in pairs))
        return result.join(f.broadcast(keys), meets, "left_semi")

    def deletes(self, delta: RowDelta, run: str) -> list[WrittenFile]:
        """Write equality deletes of the keys that the table may have; names of files begin with `run`."""
        key_ids = check_key(delta.schema, self.columns.names)
        keys = conform(self.rows, delta.schema.select(key_ids))
        keys = keys.filter(pa.array(live_keys(delta.table, delta.schema, self.columns.names).may_hold(keys)))
        return write_deletes(keys, delta.target, delta.default_spec, key_ids, prefix=run)
