"""Pieces of files joined or cut to batches of raw events of bounded rows and bytes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_batch import Rejected
from pipelines.errors import SourceError
from pipelines.sources.event_groups import CompleteEvents
from pipelines.sources.file_piece import FilePiece
from pipelines.sources.file_position import ReadFile
from pipelines.sources.raw_events import RawEvents

OPEN_TRANSACTION = "waiting for the commit of their transaction"
OPEN_PAIR = "waiting for the new row of their update"
"""Why events at the end of what there is are not applied: they are read again with what follows."""

PIECE_BYTES = 3 * 1024
"""What a piece takes in memory beside its events; a small file makes two, its events and its end."""


@dataclass
class _Pending:
    pieces: list[FilePiece] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    @property
    def has_events(self) -> bool:
        return self.rows > 0 or any(p.rejected.num_rows for p in self.pieces)

    def add(self, piece: FilePiece) -> None:
        self.pieces.append(piece)
        self.rows += len(piece.piece.offsets)
        self.size += PIECE_BYTES + int(piece.piece.documents.nbytes if piece.rows is None else piece.rows.nbytes)


@dataclass(frozen=True)
class Gathered:
    """A batch.

    Attributes:
        raw: its events; None if there are none.
        ends: files as far as they are read after it.
        is_open: it ends within a transaction, of which the next batch holds more; if there is none, nothing of it counts.
        goes_on: it goes on with the transaction of the batch before.
        waiting: number of events that wait for the rest of their group, by what that is.
    """

    raw: RawEvents | None
    ends: list[ReadFile]
    is_open: bool = False
    goes_on: bool = False
    waiting: Mapping[str, int] = field(default_factory=dict)


def gather(
    pieces: Iterator[FilePiece], batch_rows: int, batch_bytes: int, complete: CompleteEvents | None = None
) -> Iterator[Gathered]:
    """The events of pieces in order, in batches.

    A batch ends where the next piece would take it over a limit, or has other columns. Readers keep pieces below the
    limits, as far as lines and documents allow; only `complete` cuts pieces: what it leaves goes into the next batch.
    A transaction that is larger than a batch makes several, all but the last of them open. Files of which something is
    left in the end come last, without events.
    """
    pending = _Pending()
    cutting = _Cutting(complete)
    reading = iter(pieces)
    while True:
        try:
            piece = next(reading, None)
        except SourceError:
            # What comes before a file that cannot be read is applied first.
            goes_on = cutting.is_open
            done, _ = cutting.cut(pending)
            if done.has_events:
                yield _batch(done, goes_on=goes_on)
            raise
        if piece is None:
            break
        count = len(piece.piece.offsets)
        full = pending.rows + count > batch_rows or pending.size >= batch_bytes
        if count and pending.rows and (full or not _joins(pending.pieces, piece)):
            goes_on = cutting.is_open
            done, pending = cutting.cut(pending)
            if done.pieces:
                yield _batch(done, goes_on=goes_on)
            is_large = pending.rows >= batch_rows or pending.size >= batch_bytes
            if pending.rows and ((is_large and cutting.of_transactions) or not _joins(pending.pieces, piece)):
                goes_on = cutting.is_open
                yield _batch(pending, is_open=cutting.opened(pending), goes_on=goes_on)
                pending = _Pending()
        pending.add(piece)
    goes_on = cutting.is_open
    done, left = cutting.cut(pending)
    if done.pieces:
        yield _batch(done, goes_on=goes_on)
    if files := cutting.unfinished(left):
        yield Gathered(None, files, waiting=cutting.waiting(left))


class _Cutting:
    """Where batches may end. Mutable: knows the files of a transaction whose begin was handed on already."""

    def __init__(self, complete: CompleteEvents | None) -> None:
        self._complete = complete
        self._open: dict[str, ReadFile] = {}
        self._num_open = 0
        self.of_transactions = False

    @property
    def is_open(self) -> bool:
        """Whether what was handed on last ends within a transaction."""
        return bool(self._open)

    def cut(self, pending: _Pending) -> tuple[_Pending, _Pending]:
        """What may be applied, and what waits for the rest of its group."""
        usable = self._usable(pending)
        if usable:
            self._open, self._num_open = {}, 0
        if usable == pending.rows:
            return pending, _Pending()
        done, left = _Pending(), _Pending()
        for piece in pending.pieces:
            count = len(piece.piece.offsets)
            if left.pieces or usable < count:
                first, rest = _halves(piece, 0 if left.pieces else usable)
                if len(first.piece.offsets):
                    done.add(first)
                left.add(rest)
            else:
                done.add(piece)
            usable = max(usable - count, 0)
        return done, left

    def _usable(self, pending: _Pending) -> int:
        if self._complete is None or not pending.rows:
            return pending.rows
        full = [p for p in pending.pieces if len(p.piece.offsets)]
        before = pending.rows
        # Of rows, pieces are looked at from the last one back, up to one that does not wait as a whole.
        for part in [full] if full[-1].rows is None else [[piece] for piece in reversed(full)]:
            rows = part[-1].rows
            complete = self._complete(_documents(part) if rows is None else rows)
            if complete is None:
                return 0 if self._open else pending.rows
            self.of_transactions = complete.of_transactions
            before -= sum(len(piece.piece.offsets) for piece in part)
            if complete.num_events:
                return before + complete.num_events
        return 0

    def opened(self, pending: _Pending) -> bool:
        """Whether events that are handed on begin, or go on with, a transaction: its files are remembered then."""
        if self.of_transactions:
            self._open = _first_seen(self._open, pending)
            self._num_open += pending.rows
        return self.of_transactions

    def waiting(self, left: _Pending) -> dict[str, int]:
        """Number of events that are not complete in the end, by what they wait for."""
        count = left.rows + self._num_open
        return {OPEN_TRANSACTION if self.of_transactions else OPEN_PAIR: count} if count else {}

    def unfinished(self, left: _Pending) -> list[ReadFile]:
        """The files of what is not complete in the end, as far as they were read before it."""
        return [replace(file, finished=False) for file in _first_seen(self._open, left).values()]


def _first_seen(known: dict[str, ReadFile], pending: _Pending) -> dict[str, ReadFile]:
    """Files as they were before all of this."""
    return {**{p.after.name: p.before for p in reversed(pending.pieces)}, **known}


def _halves(piece: FilePiece, count: int) -> tuple[FilePiece, FilePiece]:
    """The first `count` events of a piece, and the others. Where in the file the cut is, only its line tells."""
    part, rows = piece.piece, piece.rows
    line = int(part.offsets[count - 1]) if count else piece.before.lines
    layout = "" if rows is not None else piece.before.layout  # CSV counts its records anew without one
    middle = replace(piece.before, read_bytes=0, lines=line, layout=layout, finished=False) if count else piece.before
    keys = (None, None) if part.keys is None else (part.keys.slice(0, count), part.keys.slice(count))
    first = replace(part, documents=part.documents.slice(0, count), keys=keys[0], offsets=part.offsets[:count])
    rest = replace(part, documents=part.documents.slice(count), keys=keys[1], offsets=part.offsets[count:], skipped={})
    rejected = piece.rejected.table
    is_before = pc.less_equal(rejected.column("source_offset"), line)
    return (
        FilePiece(first, _sliced(rows, 0, count), piece.before, middle, Rejected(rejected.filter(is_before))),
        FilePiece(rest, _sliced(rows, count), middle, piece.after, Rejected(rejected.filter(pc.invert(is_before)))),
    )


def _sliced(rows: pa.Table | None, first: int, count: int | None = None) -> pa.Table | None:
    return None if rows is None else rows.slice(first, count)


def _joins(pieces: list[FilePiece], piece: FilePiece) -> bool:
    last = next((p for p in reversed(pieces) if len(p.piece.offsets)), piece)
    if (last.rows is None) != (piece.rows is None):
        return False
    return piece.rows is None or last.rows is None or piece.rows.schema.equals(last.rows.schema, check_metadata=True)


def _batch(pending: _Pending, *, is_open: bool = False, goes_on: bool = False) -> Gathered:
    full = [p for p in pending.pieces if len(p.piece.offsets)]
    counts = [len(p.piece.offsets) for p in full]
    places = {name: place for place, name in enumerate(dict.fromkeys(p.after.name for p in full))}
    names = list(places)
    codes = np.repeat(np.array([places[p.after.name] for p in full], np.int32), counts)
    offsets = np.concatenate([p.piece.offsets for p in full]) if full else np.zeros(0, np.int64)
    skipped: dict[str, int] = {}
    for p in pending.pieces:
        for reason, count in p.piece.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    columns = full[0].rows is not None if full else False
    raw = RawEvents(
        source_file=pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string())),
        source_offset=pa.array(offsets),
        documents=None if columns else _documents(full),
        keys=None if columns else _keys(full),
        rows=pa.concat_tables([p.rows for p in full]) if columns else None,
        ingested_at=datetime.now(UTC),
        skipped=skipped,
        rejected=Rejected.concat(p.rejected for p in pending.pieces),
    )
    ends = {p.after.name: p.after for p in pending.pieces}
    return Gathered(raw, list(ends.values()), is_open, goes_on)


def _documents(pieces: list[FilePiece]) -> pa.BinaryArray:
    arrays = [p.piece.documents for p in pieces]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays([*arrays, pa.array([], pa.binary())])


def _keys(pieces: list[FilePiece]) -> pa.BinaryArray | None:
    if all(p.piece.keys is None for p in pieces):
        return None
    parts = [pa.nulls(len(p.piece.offsets), pa.binary()) if p.piece.keys is None else p.piece.keys for p in pieces]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
