"""Changes that belong together, in order, however many they are.

They stay in memory up to a limit and are spilled to local disk beyond it. They can be split by key, so that each
part is folded alone with the same result.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.keys import KeySet, same_rows
from pipelines.errors import PipelineError
from scan_core import hash_rows, hash_seed, key_column
from scan_core.io import spill_folder, user_folder


class SpilledTables:
    """Tables in files, in order, as often as wanted. Mutable until it is read first; `close` removes the files."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.nbytes = 0
        self._files: list[SpillFile] = []
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._sink: BinaryIO | None = None
        self._schema: pa.Schema | None = None

    def append(self, table: pa.Table) -> None:
        """Write a table.

        Raises:
            PipelineError: the disk takes no more.
        """
        if table.num_rows == 0:
            return
        try:
            writer = self._writer_of(table.schema)
            writer.write_table(table)
        except OSError as error:
            raise no_room(error) from error
        self.num_rows += table.num_rows
        self.nbytes += table.nbytes

    def tables(self) -> Iterator[pa.Table]:
        """One table per record batch that was written.

        Raises:
            PipelineError: the disk does not take the last of them.
        """
        try:
            self._end_file()
        except OSError as error:
            raise no_room(error) from error
        for file in self._files:
            with file.open() as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])

    def close(self) -> None:
        """Remove the files."""
        with suppress(OSError):  # a full disk takes no end of a file either, and this one goes anyway
            self._end_file()
        for file in self._files:
            file.remove()
        self._files = []
        self.num_rows = self.nbytes = 0

    def _writer_of(self, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        if self._writer is None or not schema.equals(self._schema):
            self._end_file()
            file = SpillFile()
            self._files.append(file)
            self._sink = file.sink
            self._writer, self._schema = pa.ipc.new_stream(self._sink, schema), schema
        return self._writer

    def _end_file(self) -> None:
        writer, sink, self._writer, self._sink = self._writer, self._sink, None, None
        if sink is not None:
            with sink:
                if writer is not None:
                    writer.close()


class SpillFile:
    """A new file in this process's folder, to be written once, read as often as wanted, and removed.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        self._folder, self._name = spill_folder(), f"{uuid.uuid4().hex}.arrow"
        self.sink: BinaryIO = self._folder.create(self._name)

    def open(self) -> BinaryIO:
        """The file, to be read."""
        return self._folder.read(self._name)

    def remove(self) -> None:
        """Remove it."""
        self._folder.remove(self._name)


def no_room(error: OSError) -> PipelineError:
    """What to say when the disk takes no more."""
    return PipelineError(
        f"changes beyond memory_limit_bytes cannot be spilled to {user_folder('spill').path}: {error}; make room there, set TMPDIR to "
        "another folder, or lower commit_rows"
    )


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


class PartFile:
    """Parts of one schema. Mutable until the first of them is read; `close` removes the file."""

    def __init__(self) -> None:
        self._file: SpillFile | None = None
        self._sink: BinaryIO | None = None
        self._writer: pa.RecordBatchFileWriter | None = None
        self._batches: dict[int, list[int]] = defaultdict(list)
        self._num_batches = 0

    def append(self, part: int, rows: pa.Table) -> None:
        """Write rows behind those that the part has.

        Raises:
            PipelineError: the disk takes no more.
        """
        try:
            if self._writer is None:
                self._file = SpillFile()
                self._sink = self._file.sink
                self._writer = pa.ipc.new_file(self._sink, rows.schema)
            for batch in rows.combine_chunks().to_batches():
                self._writer.write_batch(batch)
                self._batches[part].append(self._num_batches)
                self._num_batches += 1
        except OSError as error:
            raise no_room(error) from error

    def parts(self) -> Iterator[Iterator[pa.Table]]:
        """The tables of each part that has rows, in order of the parts.

        Raises:
            PipelineError: the disk does not take the end of the file.
        """
        try:
            self._end()
        except OSError as error:
            raise no_room(error) from error
        if self._file is None:
            return
        with self._file.open() as source, pa.ipc.open_file(source) as reader:
            for part in sorted(self._batches):
                yield (pa.Table.from_batches([reader.get_batch(number)]) for number in self._batches[part])

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):  # a full disk takes no end of a file either, and this one goes anyway
            self._end()
        if self._file is not None:
            self._file.remove()
            self._file = None

    def _end(self) -> None:
        writer, sink, self._writer, self._sink = self._writer, self._sink, None, None
        if sink is not None:
            with sink:
                if writer is not None:
                    writer.close()


Codes = npt.NDArray[np.int64]

MOST_PARTS = 16_384
"""Of smaller parts most of the file would be what tells where they are."""
SPARE_PARTS = 1.25
"""Keys do not spread evenly: so many more parts than would just do."""
_SEED = hash_seed(0x6B657973)


@dataclass(frozen=True, slots=True)
class KeyPart:
    """Changes to be folded together; `after_truncate`: a truncate came before them, so the table is empty by then."""

    changes: pa.Table
    after_truncate: bool


Shrink = Callable[[pa.Table], pa.Table]
"""Makes changes fewer, without another outcome."""


def parts_by_key(
    run: ChangeRun, key: Sequence[str], limit_bytes: int, shrink: Shrink | None = None
) -> Iterator[KeyPart]:
    """The changes of a run, parted so that each part takes about `limit_bytes`; as they are if nothing is spilled.

    Args:
        run: changes of the log in order.
        key: columns that identify a row.
        limit_bytes: of a part.
        shrink: what is done with a part that takes more, since few keys change often.

    Raises:
        PipelineError: the disk has no room.
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
    """How many parts a run needs."""
    return int(min(MOST_PARTS, max(2, SPARE_PARTS * run.nbytes / max(limit_bytes, 1) + 1)))


def rows_after(run: ChangeRun, first: int) -> Iterator[pa.Table]:
    """The changes of a run without the first ones."""
    at = 0
    for table in run.tables():
        rows = table.slice(max(0, first - at))
        at += table.num_rows
        if rows.num_rows:
            yield rows


def spread(
    tables: Iterator[pa.Table],
    part_of: Callable[[pa.Table], Codes],
    count: int,
    *,
    limit_bytes: int = 0,
    shrink: Shrink | None = None,
) -> Iterator[pa.Table]:
    """The rows of tables by part, each part whole and in order, through files; beyond a limit, what `shrink` leaves.

    Raises:
        PipelineError: the disk has no room.
    """
    file = PartFile()
    try:
        for table in tables:
            codes = part_of(table)
            order = np.argsort(codes, kind="stable")
            starts = np.searchsorted(codes[order], np.arange(count + 1))
            rows = table.take(pa.array(order))
            for number in np.flatnonzero(np.diff(starts)).tolist():
                file.append(number, rows.slice(starts[number], starts[number + 1] - starts[number]))
        for part in file.parts():
            yield _gathered(part, limit_bytes, shrink)
    finally:
        file.close()


def _gathered(tables: Iterator[pa.Table], limit_bytes: int, shrink: Shrink | None) -> pa.Table:
    held: list[pa.Table] = []
    size, most = 0, limit_bytes
    for table in tables:
        held.append(table)
        size += table.nbytes
        if shrink is not None and size > most:
            held = [shrink(pa.concat_tables(held).combine_chunks())]
            size = held[0].nbytes
            most = max(limit_bytes, 2 * size)  # what cannot be made smaller is not tried again and again
    return pa.concat_tables(held)


def hash_codes(columns: Sequence[pa.Array], count: int) -> Codes:
    """A part for each row of key columns: equal rows have one."""
    hashes = hash_rows([key_column(column) for column in columns], _SEED)
    return (hashes % np.uint64(count)).astype(np.int64)


def _survey(run: ChangeRun, key: Sequence[str]) -> tuple[int, list[tuple[pa.Table, pa.Table]]]:
    """How many rows to leave out up to the last truncate, and the key changes after it: keys before and after."""
    first = at = 0
    ties: list[tuple[pa.Table, pa.Table]] = []
    for table in run.tables():
        truncates = np.flatnonzero(np.asarray(pc.equal(table.column("op"), "t")))
        if len(truncates):
            first, ties = at + int(truncates[-1]) + 1, []
        rows = table.slice(max(0, first - at))
        at += table.num_rows
        if not rows.num_rows:
            continue
        old, new = _members(rows, "key", key), _members(rows, "after", key)
        moves = np.flatnonzero(np.asarray(pc.is_valid(_single(rows.column("after")))) & ~same_rows(old, new))
        if len(moves):
            chosen = pa.array(moves)
            ties.append(tuple(pa.table([c.take(chosen) for c in side], names=list(key)) for side in (old, new)))
    return first, ties


class _TiedKeys:
    """Keys that key changes tie together, and the part that all keys of such a group share."""

    def __init__(self, ties: Sequence[tuple[pa.Table, pa.Table]], count: int) -> None:
        old, new = (pa.concat_tables([pair[side] for pair in ties]) for side in (0, 1))
        both = pa.concat_tables([old, new])
        self._keys = KeySet(both.columns)
        member = self._keys.find(both.columns)
        self._parts = hash_codes([_single(c) for c in both.columns], count)[
            _groups(member[: old.num_rows], member[old.num_rows :], both.num_rows)
        ]

    def moved(self, columns: Sequence[pa.Array], codes: Codes) -> Codes:
        """The codes, with those of tied keys replaced."""
        found = self._keys.find(columns)
        return np.where(found >= 0, self._parts[np.maximum(found, 0)], codes)


def _groups(left: Codes, right: Codes, count: int) -> Codes:
    """Per node the least node that a chain of edges `left[i]` - `right[i]` ties it to."""
    label = np.arange(count)
    while True:
        least = np.minimum(label[left], label[right])
        before = label.copy()
        np.minimum.at(label, left, least)
        np.minimum.at(label, right, least)
        # A label points to a node of its own group: what that one is tied to, it is tied to.
        label = label[label]
        if (label == before).all():
            return label


def _members(table: pa.Table, column: str, names: Sequence[str]) -> list[pa.Array]:
    struct = _single(table.column(column))
    given = dict(zip([f.name for f in struct.type], struct.flatten(), strict=True))
    return [given[name] for name in names]


def _single(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
