"""Equality deletes that a task writes beside its rows: their keys pass by anyway, and never reach the driver.

Which keys the table may hold was told before the job; the driver adds what other writers have brought meanwhile.
No pyspark here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from pipelines.mirrors.delete_scope import scope_without_look
from pipelines.mirrors.live_keys import LiveKeys
from pipelines.published.written_keys import KEY_BYTES
from pipelines.tables.commit import RowDelta
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.row_shape import conform
from pipelines.tables.table_writer import WriteTarget, check_key, write_deletes
from scan_core.snapshot import PartitionSpec


@dataclass(frozen=True, slots=True)
class TaskDeletes:
    """What tasks delete: keys that the table may have held when the job began.

    Attributes:
        spec: under which deletes are written: in the partition of their row, or reaching all of the table.
        live: facts of the table's files.
    """

    spec: PartitionSpec
    live: LiveKeys

    def reach(self, live: LiveKeys) -> bool:
        """Whether deletes under this spec reach all files that a table has later."""
        return self.spec.is_unpartitioned or live.spec_ids <= {self.spec.spec_id}

    def cover(self, live: LiveKeys) -> bool:
        """Whether all keys that a table may hold later are among those that it may have held."""
        mine = self.live.ranges
        return all(
            name in live.ranges
            and (known.may_be_null or not live.ranges[name].may_be_null)
            and known.lower <= live.ranges[name].lower
            and live.ranges[name].upper <= known.upper
            for name, known in mine.items()
        )


def task_deletes(delta: RowDelta, key: Sequence[str], live: LiveKeys) -> TaskDeletes | None:
    """What tasks are to delete; None if nothing, or if a look at the rows of a small table leads to better deletes."""
    spec = scope_without_look(delta, key, live) if live.num_files else None
    return None if spec is None else TaskDeletes(spec, live)


class KeyDeletes:
    """Delete files of one task. Use it as a context manager: leaving by an exception removes all its files.

    Args:
        deletes: what to delete; None for nothing.
        target: schema and place of the files.
        key: columns that identify a row.
        prefix: of file names, by which all files of one run are known.
        most_bytes: of keys in memory.
    """

    def __init__(
        self,
        deletes: TaskDeletes | None,
        target: WriteTarget,
        key: Sequence[str],
        prefix: str,
        *,
        most_bytes: int = KEY_BYTES,
    ) -> None:
        self._deletes = deletes
        self._target = target
        self._key = list(key)
        self._key_ids = check_key(target.schema, key) if key else ()
        self._prefix = prefix
        self._most_bytes = most_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self.files: list[WrittenFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is left, or remove all files if the task has failed."""
        if kind is None:
            self._flush()
        else:
            self._target.storage.remove(file.path for file in self.files)

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches as they are, their keys kept to be deleted."""
        for batch in batches:
            if self._deletes is not None:
                self._add(batch, self._deletes)
            yield batch

    def _add(self, batch: pa.RecordBatch, deletes: TaskDeletes) -> None:
        keys = conform(pa.Table.from_batches([batch]).select(self._key), self._target.schema.select(self._key_ids))
        keys = keys.filter(pa.array(deletes.live.may_hold(keys)))
        self._held.append(keys)
        self._held_bytes += keys.nbytes
        if self._held_bytes >= self._most_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._deletes is not None and self._held:
            keys = pa.concat_tables(self._held)
            self._held, self._held_bytes = [], 0
            self.files += write_deletes(keys, self._target, self._deletes.spec, self._key_ids, prefix=self._prefix)
