"""Changes that belong together, in order: in memory as far as the limit goes, spilled to the disk beyond it.

They are read as often as wanted, table by table, each of which fits into memory. What a commit makes of them is decided
by `change_log.py` and `mirror.py`.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa

from pipelines.changes.spill import SpilledTables

BATCH_SHARE = 8
"""Decoded changes may take this part of the memory limit: fold, files and sort need several times as much."""


class Changes(Protocol):
    """Changes in order: a `ChangeBatch`, or a `ChangeRun` of more than memory takes."""

    @property
    def num_rows(self) -> int:
        """Number of changes."""
        ...

    def tables(self) -> Iterator[pa.Table]:
        """All of them, table by table, as often as wanted."""
        ...


class ChangeRun:
    """Tables of one schema in order. Mutable only while it is filled; `close` removes what was spilled."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is what it may hold in memory."""
        self._limit_bytes = limit_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._spilled = SpilledTables()
        self._num_rows = 0

    @classmethod
    def of(cls, tables: Iterable[pa.Table], limit_bytes: int) -> "ChangeRun":
        """All of these tables.

        Raises:
            PipelineError: they are more than memory takes, and the disk has no room either.
        """
        run = cls(limit_bytes)
        try:
            for table in tables:
                run.append(table)
                if run.held_bytes > limit_bytes:
                    run.spill()
        except BaseException:
            run.close()
            raise
        return run

    @property
    def num_rows(self) -> int:
        """Number of changes."""
        return self._num_rows

    @property
    def held_bytes(self) -> int:
        """What it holds in memory."""
        return self._held_bytes

    @property
    def nbytes(self) -> int:
        """Of all changes, as they would be in memory."""
        return self._held_bytes + self._spilled.nbytes

    @property
    def is_spilled(self) -> bool:
        """Whether some of it is on the disk."""
        return self._spilled.num_rows > 0

    def append(self, table: pa.Table) -> None:
        """Hold one more table in memory."""
        if table.num_rows:
            self._held.append(table)
            self._held_bytes += table.nbytes
            self._num_rows += table.num_rows

    def spill(self) -> None:
        """Write what is in memory to the disk.

        Raises:
            PipelineError: it has no room.
        """
        for table in self._held:
            self._spilled.append(table)
        self._held, self._held_bytes = [], 0

    def tables(self) -> Iterator[pa.Table]:
        """All of it, in tables that fit into memory; one if nothing is spilled."""
        if not self.is_spilled:
            yield from gathered(self._held, self._held_bytes)
            return
        yield from gathered(self._spilled.tables(), self._limit_bytes)
        yield from self._held

    def close(self) -> None:
        """Let go of everything."""
        self._spilled.close()
        self._held, self._held_bytes, self._num_rows = [], 0, 0


def sliced(tables: Iterable[pa.Table], first: int, count: int) -> Iterator[pa.Table]:
    """`count` rows of consecutive tables, from `first` on."""
    at = 0
    for table in tables:
        rows = table.slice(max(0, first - at), max(0, first + count - max(at, first)))
        at += table.num_rows
        if rows.num_rows:
            yield rows
        if at >= first + count:
            return


def gathered(tables: Iterable[pa.Table], limit_bytes: int) -> Iterator[pa.Table]:
    """Consecutive tables of one schema joined as long as they are no larger than a limit."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        if held and (size + table.nbytes > limit_bytes or not table.schema.equals(held[0].schema)):
            yield _joined(held)
            held, size = [], 0
        held.append(table)
        size += table.nbytes
    if held:
        yield _joined(held)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)
