"""Pieces of files joined or cut to batches of raw events of bounded rows and bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from pipelines.changes.change_batch import Rejected
from pipelines.errors import SourceError
from pipelines.sources.file_position import ReadFile
from pipelines.sources.file_reader import FilePiece
from pipelines.sources.raw_events import RawEvents

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


CompleteEvents = Callable[[pa.BinaryArray], int | None]
"""How many of some events belong to finished transactions; None where the feed does not mark transactions."""


def gather(
    pieces: Iterator[FilePiece], batch_rows: int, batch_bytes: int, complete: CompleteEvents | None = None
) -> Iterator[tuple[RawEvents | None, list[ReadFile]]]:
    """(events, files as far as they are read after them) of pieces in order.

    A batch ends where the next piece would take it over a limit, or has other columns. Readers keep pieces below the
    limits, as far as lines and documents allow; only `complete` cuts pieces: what it leaves goes into the next batch,
    which grows until a transaction is finished. Files of which something is left in the end come last, without events.
    """
    pending = _Pending()
    reading = iter(pieces)
    while True:
        try:
            piece = next(reading, None)
        except SourceError:
            # What comes before a file that cannot be read is applied first.
            done, _ = _cut(pending, complete)
            if done.has_events:
                yield _batch(done)
            raise
        if piece is None:
            break
        count = len(piece.piece.offsets)
        full = pending.rows + count > batch_rows or pending.size >= batch_bytes
        if count and pending.rows and (full or not _joins(pending.pieces, piece)):
            done, pending = _cut(pending, complete)
            if done.has_events:
                yield _batch(done)
        pending.add(piece)
    done, left = _cut(pending, complete)
    if done.pieces:
        yield _batch(done)
    if left.pieces:
        files = {p.after.name: replace(p.before, finished=False) for p in reversed(left.pieces)}
        yield None, list(files.values())


def _cut(pending: _Pending, complete: CompleteEvents | None) -> tuple[_Pending, _Pending]:
    """What may be applied, and what waits for the rest of its transaction."""
    if complete is None or not pending.rows or any(p.rows is not None for p in pending.pieces):
        return pending, _Pending()
    usable = complete(_documents([p for p in pending.pieces if len(p.piece.offsets)]))
    if usable is None or usable == pending.rows:
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


def _halves(piece: FilePiece, count: int) -> tuple[FilePiece, FilePiece]:
    """The first `count` events of a piece, and the others. Where in the file the cut is, only its line tells."""
    part = piece.piece
    line = int(part.offsets[count - 1]) if count else piece.before.lines
    middle = replace(piece.before, read_bytes=0, lines=line, finished=False) if count else piece.before
    keys = (None, None) if part.keys is None else (part.keys.slice(0, count), part.keys.slice(count))
    first = replace(part, documents=part.documents.slice(0, count), keys=keys[0], offsets=part.offsets[:count])
    rest = replace(part, documents=part.documents.slice(count), keys=keys[1], offsets=part.offsets[count:], skipped={})
    return replace(piece, piece=first, after=middle), replace(piece, piece=rest, before=middle)


def _joins(pieces: list[FilePiece], piece: FilePiece) -> bool:
    last = next((p for p in reversed(pieces) if len(p.piece.offsets)), piece)
    if (last.rows is None) != (piece.rows is None):
        return False
    return piece.rows is None or last.rows is None or piece.rows.schema.equals(last.rows.schema, check_metadata=True)


def _batch(pending: _Pending) -> tuple[RawEvents, list[ReadFile]]:
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
    return raw, list(ends.values())


def _documents(pieces: list[FilePiece]) -> pa.BinaryArray:
    arrays = [p.piece.documents for p in pieces]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays([*arrays, pa.array([], pa.binary())])


def _keys(pieces: list[FilePiece]) -> pa.BinaryArray | None:
    if all(p.piece.keys is None for p in pieces):
        return None
    parts = [pa.nulls(len(p.piece.offsets), pa.binary()) if p.piece.keys is None else p.piece.keys for p in pieces]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
