"""Changes of one table that are decoded and not yet committed, joined while their rows have one type or can get one.

What is more than memory takes is spilled. When to commit is decided by `table_ingest.py`.
"""

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa

from pipelines.changes.change_batch import ORDER, ChangeBatch
from pipelines.changes.change_run import ChangeRun
from pipelines.formats.column_types import widened


class PendingChanges:
    """Mutable: grows batch by batch until it is committed and cleared."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is what a part of it may hold in memory."""
        self._limit_bytes = limit_bytes
        self._run = ChangeRun(limit_bytes)
        self._is_uniform = True
        self._row_type: pa.StructType | None = None
        self._key: tuple[str, ...] = ()
        self._counts: Counter[str] = Counter()
        self._order_reached: str | None = None

    @property
    def num_rows(self) -> int:
        """Number of changes."""
        return self._run.num_rows

    @property
    def held_bytes(self) -> int:
        """What it holds in memory."""
        return self._run.held_bytes

    @property
    def nbytes(self) -> int:
        """Of all changes, those on the disk included."""
        return self._run.nbytes

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of changes per operation."""
        return self._counts

    @property
    def row_type(self) -> pa.StructType | None:
        """Columns of the rows, None without changes."""
        return self._row_type

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns; none without changes."""
        return self._key

    def takes(self, batch: ChangeBatch) -> bool:
        """Whether a batch may be committed together with what there is: of one key, with rows of one type, in order."""
        if self._row_type is None or batch.num_rows == 0:
            return True
        if self._order_reached is not None and batch.table.column(ORDER)[0].as_py() < self._order_reached:
            return False
        return batch.key == self._key and _united(self._row_type, batch.row_type) is not None

    def add(self, batch: ChangeBatch) -> None:
        """Take a batch, of which `takes` was true."""
        if batch.num_rows == 0:
            return
        known = batch.row_type if self._row_type is None else _united(self._row_type, batch.row_type)
        self._is_uniform &= self._row_type is None or known == self._row_type == batch.row_type
        self._row_type, self._key = known, batch.key
        if ORDER in batch.table.column_names:
            self._order_reached = batch.table.column(ORDER)[-1].as_py()
        self._counts.update(batch.counts)
        self._run.append(batch.table)

    def spill(self) -> None:
        """Write what is in memory to the disk.

        Raises:
            PipelineError: it has no room.
        """
        self._run.spill()

    def run(self) -> ChangeRun:
        """All changes in order, with rows of one type."""
        if self._is_uniform:
            return self._run
        tables = (self._conformed(table) for table in self._run.tables())
        uniform = ChangeRun.of(tables, self._limit_bytes)
        self._run.close()
        self._run, self._is_uniform = uniform, True
        return uniform

    def _conformed(self, table: pa.Table) -> pa.Table:
        own = table.schema.field("after").type
        return ChangeBatch(table, own, self._key).in_row_type(self._row_type).table

    def clear(self) -> None:
        """Forget everything."""
        self._run.close()
        self._run = ChangeRun(self._limit_bytes)
        self._is_uniform, self._row_type, self._key, self._counts = True, None, (), Counter()
        self._order_reached = None


def _united(first: pa.StructType, second: pa.StructType) -> pa.StructType | None:
    """Columns of both, in types that hold the values of both; None if there is no such type."""
    if first == second:
        return first
    united = widened(first, second)
    return None if united is None else pa.struct(list(united))
