"""Changes that are more than memory takes, parted by key, so that each part is folded alone with the same result.

All changes of a key are in one part, in their order. A key change ties two keys together: keys tied by some chain of
changes share a part. What comes before the last truncate leads to nothing and is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_run import ChangeRun
from pipelines.changes.key_codes import same_rows
from pipelines.changes.key_set import KeySet
from pipelines.changes.part_file import PartFile
from scan_core.index.key_columns import key_column
from scan_core.index.key_hash import hash_rows, hash_seed

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
