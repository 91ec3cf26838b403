"""Changes in order, in any number.

They stay in memory up to a limit and are spilled to local disk beyond it. They can be split by key, so that each part
is folded alone with the same result.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.keys import KeySet, num_to_truncate, same_rows
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.row_shape import members_of, single_array
from nevermore.scan_core.io import spill_folder, user_folder
from nevermore.scan_core.parts import hash_rows, hash_seed, key_column


class SpilledTables:
    """Tables in files on local disk, by part, in order within each part; they can be read repeatedly.

    Each file contains tables of one schema, of any number of parts. Mutable until first read; `close` removes the
    files.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self.nbytes = 0
        self._files: list[_SpillFile] = []
        self._batches: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._writer: pa.RecordBatchFileWriter | None = None
        self._schema: pa.Schema | None = None
        self._num_batches = 0

    def append(self, table: pa.Table, part: int = 0) -> None:
        """Append a table to those of the part.

        Raises:
            PipelineError: the disk is full.
        """
        if table.num_rows == 0:
            return
        try:
            if self._writer is None or not table.schema.equals(self._schema):
                self._end_file()
                self._files.append(_SpillFile())
                self._writer, self._schema = pa.ipc.new_file(self._files[-1].sink, table.schema), table.schema
                self._num_batches = 0
            for batch in table.to_batches():
                self._writer.write_batch(batch)
                self._batches[part].append((len(self._files) - 1, self._num_batches))
                self._num_batches += 1
        except OSError as error:
            raise _disk_full(error) from error
        self.num_rows += table.num_rows
        self.nbytes += table.nbytes

    def parts(self) -> Iterator[Iterator[pa.Table]]:
        """Yield the tables of each part that has rows, in order of the parts; one per record batch that was written.

        Raises:
            PipelineError: the disk is full, so the last file cannot be finished.
        """
        try:
            self._end_file()
        except OSError as error:
            raise _disk_full(error) from error
        with ExitStack() as opened:
            readers = [pa.ipc.open_file(opened.enter_context(file.open())) for file in self._files]
            for part in sorted(self._batches):
                yield (pa.Table.from_batches([readers[file].get_batch(n)]) for file, n in self._batches[part])

    def tables(self) -> Iterator[pa.Table]:
        """Yield the tables of all parts, one after the other.

        Raises:
            PipelineError: as `parts`.
        """
        for part in self.parts():
            yield from part

    def close(self) -> None:
        """Remove the files."""
        with suppress(OSError):  # a full disk cannot take the end of a file either, and this one is removed anyway
            self._end_file()
        for file in self._files:
            file.remove()
        self._files, self._batches = [], defaultdict(list)
        self.num_rows = self.nbytes = 0

    def _end_file(self) -> None:
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            if self._files:
                self._files[-1].sink.close()


class _SpillFile:
    """A new file in this process's folder, to be written once.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self) -> None:
        self._folder, self._name = spill_folder(), f"{uuid.uuid4().hex}.arrow"
        self.sink: BinaryIO = self._folder.create(self._name)

    def open(self) -> BinaryIO:
        """Open the file for reading."""
        return self._folder.read(self._name)

    def remove(self) -> None:
        """Remove the file."""
        self._folder.remove(self._name)


def _disk_full(error: OSError) -> PipelineError:
    return PipelineError(
        f"changes beyond memory_limit_bytes cannot be spilled to {user_folder('spill').path}: {error}; free space there, set "
        "TMPDIR to another folder, or lower commit_rows"
    )


BATCH_SHARE = 4
"""Divides the memory limit for decoded changes: folding, sorting and writing them need several times as much."""


class Changes(Protocol):
    """Changes in order: a `ChangeBatch`, or a `ChangeRun` that may not fit into memory."""

    @property
    def num_rows(self) -> int:
        """Number of changes."""
        ...

    def tables(self) -> Iterator[pa.Table]:
        """Iterate over all of them; may be called repeatedly."""
        ...


class ChangeRun:
    """Tables of one schema in order. Mutable only while it is filled; `close` removes spilled files."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is the size of the tables that it reads back from disk."""
        self._limit_bytes = limit_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._spilled = SpilledTables()
        self._num_rows = 0

    @classmethod
    def of(cls, tables: Iterable[pa.Table], limit_bytes: int) -> "ChangeRun":
        """Make a run of these tables, spilled whenever it takes more than `limit_bytes`.

        Raises:
            PipelineError: the disk is full.
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
        """Bytes in memory."""
        return self._held_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all changes, as they would be in memory."""
        return self._held_bytes + self._spilled.nbytes

    @property
    def is_spilled(self) -> bool:
        """Whether part of it is on disk."""
        return self._spilled.num_rows > 0

    def append(self, table: pa.Table) -> None:
        """Hold one more table in memory."""
        if table.num_rows:
            self._held.append(table)
            self._held_bytes += table.nbytes
            self._num_rows += table.num_rows

    def spill(self) -> None:
        """Write what is in memory to disk.

        Raises:
            PipelineError: the disk is full.
        """
        for table in self._held:
            self._spilled.append(table)
        self._held, self._held_bytes = [], 0

    def tables(self) -> Iterator[pa.Table]:
        """All changes, in tables that fit into memory; a single one if nothing is spilled."""
        if not self.is_spilled:
            yield from gathered(self._held, self._held_bytes)
            return
        yield from gathered(self._spilled.tables(), self._limit_bytes)
        yield from self._held

    def close(self) -> None:
        """Release the memory and remove the files."""
        self._spilled.close()
        self._held, self._held_bytes, self._num_rows = [], 0, 0


def sliced(tables: Iterable[pa.Table], first: int, count: int) -> Iterator[pa.Table]:
    """Yield `count` rows of consecutive tables, from row `first` on."""
    at = 0
    for table in tables:
        rows = table.slice(max(0, first - at), max(0, first + count - max(at, first)))
        at += table.num_rows
        if rows.num_rows:
            yield rows
        if at >= first + count:
            return


Item = TypeVar("Item")


def in_groups(items: Iterable[Item], size_of: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Consecutive items in groups of at most a size; a larger one is alone."""
    held: list[Item] = []
    size = 0
    for item in items:
        if held and size + size_of(item) > limit:
            yield held
            held, size = [], 0
        held.append(item)
        size += size_of(item)
    if held:
        yield held


def gathered(tables: Iterable[pa.Table], limit_bytes: int) -> Iterator[pa.Table]:
    """Join consecutive tables of one schema up to a size limit."""
    for held in in_groups(tables, lambda table: int(table.nbytes), limit_bytes):
        for _, of_schema in groupby(held, key=lambda table: table.schema):
            yield pa.concat_tables(of_schema)


Codes = npt.NDArray[np.int64]

MAX_PARTS = 16_384
"""Minimum size of parts: with smaller ones, most of a file would be metadata of its batches."""
SPARE_PARTS = 1.25
"""More parts than strictly necessary, because keys are not evenly distributed."""
_SEED = hash_seed(0x6B657973)


@dataclass(frozen=True, slots=True)
class KeyPart:
    """Changes to be folded together; `after_truncate`: a truncate precedes them, so the table is empty before them."""

    changes: pa.Table
    after_truncate: bool


Shrink = Callable[[pa.Table], pa.Table]
"""Reduces changes to fewer with the same result."""


def parts_by_key(
    run: ChangeRun, key: Sequence[str], limit_bytes: int, shrink: Shrink | None = None
) -> Iterator[KeyPart]:
    """Split the changes of a run by key into parts of about `limit_bytes`; no split if nothing is spilled.

    Args:
        run: changes of the log in order.
        key: columns that identify a row.
        limit_bytes: of a part.
        shrink: applied to a part that takes more, because few keys change often.

    Raises:
        PipelineError: the disk is full.
    """
    if not run.is_spilled:
        yield from (KeyPart(table, after_truncate=False) for table in run.tables())
        return
    first, ties = _survey(run, key)
    count = num_parts(run, limit_bytes)
    tied = _TiedKeys(ties, count) if ties else None

    def part_of(table: pa.Table) -> Codes:
        old = _members(table, "key", key)
        codes = hash_codes(old, count)
        return codes if tied is None else tied.moved(old, codes)

    for part in spread(rows_after(run, first), part_of, count, limit_bytes=limit_bytes, shrink=shrink):
        yield KeyPart(part, after_truncate=first > 0)
    if first == run.num_rows:
        yield KeyPart(next(run.tables()).slice(0, 0), after_truncate=True)


def num_parts(run: ChangeRun, limit_bytes: int) -> int:
    """Number of parts that a run needs."""
    return int(min(MAX_PARTS, max(2, SPARE_PARTS * run.nbytes / max(limit_bytes, 1) + 1)))


def rows_after(run: ChangeRun, first: int) -> Iterator[pa.Table]:
    """Yield the changes of a run from row `first` on."""
    yield from sliced(run.tables(), first, run.num_rows - first)


def spread(
    tables: Iterator[pa.Table],
    part_of: Callable[[pa.Table], Codes],
    count: int,
    *,
    limit_bytes: int = 0,
    shrink: Shrink | None = None,
) -> Iterator[pa.Table]:
    """Regroup the rows of tables by part through files, in order within each part; `shrink` reduces large parts.

    Raises:
        PipelineError: the disk is full.
    """
    with closing(SpilledTables()) as spilled:
        for table in tables:
            for number, rows in by_part(table, part_of(table), count):
                spilled.append(rows, number)
        for part in spilled.parts():
            yield _gathered(part, limit_bytes, shrink)


def by_part(table: pa.Table, codes: Codes, count: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of a table by part, given for each as a number below `count`: each part that has rows, in their order."""
    # stable: changes of one key keep their order; codes of 8 or 16 bits are sorted by their bytes
    order = np.argsort(codes.astype(np.min_scalar_type(count)), kind="stable")
    starts = np.searchsorted(codes[order], np.arange(count + 1))
    rows = table.take(pa.array(order)).combine_chunks()
    for number in np.flatnonzero(np.diff(starts)).tolist():
        yield number, rows.slice(starts[number], starts[number + 1] - starts[number])


def _gathered(tables: Iterator[pa.Table], limit_bytes: int, shrink: Shrink | None) -> pa.Table:
    held: list[pa.Table] = []
    size, most = 0, limit_bytes
    for table in tables:
        held.append(table)
        size += table.nbytes
        if shrink is not None and size > most:
            held = [shrink(pa.concat_tables(held).combine_chunks())]
            size = held[0].nbytes
            most = max(limit_bytes, 2 * size)  # a part that cannot be reduced is not tried again and again
    return pa.concat_tables(held)


def hash_codes(columns: Sequence[pa.Array], count: int) -> Codes:
    """The part of each row of key columns; equal rows are in the same part."""
    return (key_hashes(columns) % np.uint64(count)).astype(np.int64)


def key_hashes(columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """A hash of each row of key columns; those of equal rows are equal."""
    return hash_rows([key_column(column) for column in columns], _SEED)


def repeated(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hashes that occur more than once."""
    found, counts = np.unique(hashes, return_counts=True)
    return found[counts > 1]


def _survey(run: ChangeRun, key: Sequence[str]) -> tuple[int, list[tuple[pa.Table, pa.Table]]]:
    """(number of rows up to the last truncate, key changes after it as keys before and after)."""
    first = at = 0
    ties: list[tuple[pa.Table, pa.Table]] = []
    for table in run.tables():
        if own := num_to_truncate(table):
            first, ties = at + own, []
        rows = table.slice(max(0, first - at))
        at += table.num_rows
        if not rows.num_rows:
            continue
        old, new = _members(rows, "key", key), _members(rows, "after", key)
        moves = np.flatnonzero(np.asarray(pc.is_valid(single_array(rows.column("after")))) & ~same_rows(old, new))
        if len(moves):
            chosen = pa.array(moves)
            ties.append(tuple(pa.table([c.take(chosen) for c in side], names=list(key)) for side in (old, new)))
    return first, ties


class _TiedKeys:
    """Keys connected by key changes: folding one needs the others, so all keys of a group go to the same part."""

    def __init__(self, ties: Sequence[tuple[pa.Table, pa.Table]], count: int) -> None:
        old, new = (pa.concat_tables([pair[side] for pair in ties]) for side in (0, 1))
        both = pa.concat_tables([old, new])
        self._keys = KeySet(both.columns)
        member = self._keys.find(both.columns)
        self._parts = hash_codes([single_array(c) for c in both.columns], count)[
            _groups(member[: old.num_rows], member[old.num_rows :], both.num_rows)
        ]

    def moved(self, columns: Sequence[pa.Array], codes: Codes) -> Codes:
        """The codes, with those of connected keys replaced by a common one."""
        found = self._keys.find(columns)
        return np.where(found >= 0, self._parts[np.maximum(found, 0)], codes)


def _groups(left: Codes, right: Codes, count: int) -> Codes:
    """Connected components: for each node, the smallest node connected to it by edges `left[i]` - `right[i]`."""
    label = np.arange(count)
    while True:
        least = np.minimum(label[left], label[right])
        before = label.copy()
        np.minimum.at(label, left, least)
        np.minimum.at(label, right, least)
        # Pointer jumping: a label is a node of the same component, and so is that node's label.
        label = label[label]
        if (label == before).all():
            return label


def _members(table: pa.Table, column: str, names: Sequence[str]) -> list[pa.Array]:
    given = members_of(single_array(table.column(column)))
    return [given[name] for name in names]
