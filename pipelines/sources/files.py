"""Event files as a source: reads everything new since a position, in batches of bounded size.

Each batch carries the position after it. A file that was renamed or delivered again is recognized by the hash of its
bytes. Single files are read in `file_reader.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.decode.batches import BatchEnd, CompleteEvents, RawEvents, Rejected, SourceBatch, lost_events
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.sources.file_changes import AppliedLines, Listing, OnSkipped, begin_sweep
from nevermore.pipelines.sources.file_documents import SNIFFED_BYTES, FilePiece
from nevermore.pipelines.sources.file_listing import FileSystem, ListedFile, stored_version
from nevermore.pipelines.sources.file_options import STOP, FileOptions
from nevermore.pipelines.sources.file_position import FilePosition, ReadFile
from nevermore.pipelines.sources.file_reader import is_compressed, read_file, unreadable_rest
from nevermore.pipelines.workers import ahead, num_threads

OPEN_TRANSACTION = "waiting for the commit of their transaction"
OPEN_PAIR = "waiting for the new row of their update"
"""Why events at the end of the input are not applied yet; they are read again together with later events."""

PIECE_BYTES = 3 * 1024
"""Memory of a piece in addition to its events; a small file has two pieces, its events and its end."""


@dataclass
class _Account:
    """How many events were in pieces and are in no batch yet, counted apart from what batches are made of."""

    left: int = 0

    def counted(self, pieces: Iterator[FilePiece]) -> Iterator[FilePiece]:
        """The pieces, counted as they are read."""
        for piece in pieces:
            self.left += _num_read(piece)
            yield piece

    def close(self, batch: "Gathered", pending: "_Pending", following: FilePiece | None = None) -> "Gathered":
        """The batch, which has all that was read but is neither pending nor in the piece that follows.

        Raises:
            LostEventsError: it has fewer or more events.
        """
        self.left -= 0 if batch.raw is None else batch.raw.num_read
        waiting = sum(map(_num_read, pending.pieces)) + (0 if following is None else _num_read(following))
        if self.left != waiting:
            raise lost_events(
                f"{self.left} events of files are left to be read, but {waiting} are kept for the next batch"
            )
        return batch


def _num_read(piece: FilePiece) -> int:
    return len(piece.piece.offsets) + piece.rejected.num_rows


def _require_every_line(piece: FilePiece, options: FileOptions) -> None:
    """Every line, record or document of a piece is an event, rejected, or skipped for a reason that is counted.

    Raises:
        LostEventsError: the reader of the file has left some out.
    """
    last = min(piece.after.lines, options.last_line or piece.after.lines)
    passed = last - max(piece.before.lines, options.first_line - 1)
    found = _num_read(piece) + sum(piece.piece.skipped.values())
    if found < passed:
        raise lost_events(
            f"{passed - found} of {passed} lines or records of {piece.after.name} after {piece.before.lines} would be lost: "
            "they are neither events, nor rejected, nor skipped"
        )


@dataclass
class _Pending:
    pieces: list[FilePiece] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def add(self, piece: FilePiece) -> None:
        self.pieces.append(piece)
        self.rows += len(piece.piece.offsets)
        self.size += PIECE_BYTES + piece.nbytes


@dataclass(frozen=True)
class Gathered:
    """A batch.

    Attributes:
        raw: its events, if any.
        files: state of reading the files after it.
        end: where the batch ends.
        continues: whether it continues the transaction of the previous batch.
        waiting: number of events that wait for the rest of their group, by reason.
    """

    raw: RawEvents | None
    files: list[ReadFile]
    end: BatchEnd = BatchEnd.ANYWHERE
    continues: bool = False
    waiting: Mapping[str, int] = field(default_factory=dict)


def gather(
    pieces: Iterator[FilePiece], batch_rows: int, batch_bytes: int, complete: CompleteEvents | None = None
) -> Iterator[Gathered]:
    """Combine the events of pieces into batches, in order.

    A batch ends where the next piece would exceed a limit, or has other columns. Readers keep pieces below the limits as
    far as lines and documents allow; only `complete` cuts pieces, whose rest goes into the next batch. A transaction
    larger than a batch becomes several, all but the last of which end within it. Files with events that still wait for the
    rest of their group come last, without events.
    """
    pending = _Pending()
    cutting = _Cutting(complete)
    account = _Account()
    reading = account.counted(pieces)

    def usable(following: FilePiece | None = None, *, is_end: bool = False) -> Iterator[Gathered]:
        """What may be applied of the pending events, if any."""
        nonlocal pending
        continues = cutting.is_within_transaction
        done, pending = cutting.cut(pending, is_end=is_end)
        if done.pieces:
            yield account.close(_batch(done, cutting.end, continues=continues), pending, following)

    while True:
        try:
            piece = next(reading, None)
        except SourceError:
            # everything before an unreadable file is applied first
            yield from usable()
            raise
        if piece is None:
            break
        count = len(piece.piece.offsets)
        full = pending.rows + count > batch_rows or pending.size >= batch_bytes
        if count and pending.rows and (full or not _joins(pending.pieces, piece)):
            yield from usable(piece)
            # the transaction has no end yet: kept for the next batch, it would exceed the limits or mix columns
            is_large = pending.rows >= batch_rows or pending.size >= batch_bytes
            if pending.rows and ((is_large and cutting.of_transactions) or not _joins(pending.pieces, piece)):
                continues = cutting.is_within_transaction
                end = cutting.end_within(pending)
                yield account.close(_batch(pending, end, continues=continues), _Pending(), piece)
                pending = _Pending()
        pending.add(piece)
    yield from usable(is_end=True)
    if files := cutting.unfinished(pending):
        yield Gathered(None, files, waiting=cutting.waiting(pending))


class _Cutting:
    """Decides where batches may end. Mutable: remembers the files of a transaction whose beginning was yielded already."""

    def __init__(self, complete: CompleteEvents | None) -> None:
        self._complete = complete
        self._open: dict[str, ReadFile] = {}
        self._num_open = 0
        self.of_transactions = False

    @property
    def is_within_transaction(self) -> bool:
        """Whether the last batch ended within a transaction."""
        return bool(self._open)

    @property
    def end(self) -> BatchEnd:
        """Where a batch ends after `cut`."""
        return BatchEnd.TRANSACTION if self.of_transactions else BatchEnd.ANYWHERE

    def cut(self, pending: _Pending, *, is_end: bool = False) -> tuple[_Pending, _Pending]:
        """(events that may be applied, events that wait for the rest of their group), possibly at the end of the input."""
        usable = self._usable(pending, is_end=is_end)
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

    def _usable(self, pending: _Pending, *, is_end: bool) -> int:
        if self._complete is None or not pending.rows:
            return pending.rows
        full = [p for p in pending.pieces if len(p.piece.offsets)]
        before = pending.rows
        # documents are examined all at once; rows piece by piece from the end, until a piece has complete events
        for part in [full] if full[-1].rows is None else [[piece] for piece in reversed(full)]:
            rows = part[-1].rows
            complete = self._complete(_documents(part) if rows is None else rows)
            if complete is None:
                return 0 if self._open else pending.rows
            self.of_transactions |= complete.of_transactions
            if is_end and complete.may_end:
                return pending.rows
            before -= sum(len(piece.piece.offsets) for piece in part)
            if complete.num_events:
                return before + complete.num_events
        return 0

    def end_within(self, pending: _Pending) -> BatchEnd:
        """Where a batch that is not cut ends; remembers its files if that is within a transaction."""
        if not self.of_transactions:
            return BatchEnd.ANYWHERE
        self._open = _first_seen(self._open, pending)
        self._num_open += pending.rows
        return BatchEnd.WITHIN_TRANSACTION

    def waiting(self, left: _Pending) -> dict[str, int]:
        """The number of incomplete events at the end of the input, by reason."""
        count = left.rows + self._num_open
        return {OPEN_TRANSACTION if self.of_transactions else OPEN_PAIR: count} if count else {}

    def unfinished(self, left: _Pending) -> list[ReadFile]:
        """The files of incomplete events at the end of the input, in their state before these events."""
        return [replace(file, finished=False) for file in _first_seen(self._open, left).values()]


def _first_seen(known: dict[str, ReadFile], pending: _Pending) -> dict[str, ReadFile]:
    """The files in their state before these pieces."""
    return {**{p.after.name: p.before for p in reversed(pending.pieces)}, **known}


def _halves(piece: FilePiece, count: int) -> tuple[FilePiece, FilePiece]:
    """Split a piece after `count` events. Only the line of the cut is known, not its byte position."""
    part, rows = piece.piece, piece.rows
    line = int(part.offsets[count - 1]) if count else piece.before.lines
    layout = "" if rows is not None else piece.before.layout  # without a byte position, CSV counts its records again
    middle = replace(piece.before, read_bytes=0, lines=line, layout=layout, finished=False) if count else piece.before
    first, rest = part.slice(0, count), replace(part.slice(count), skipped={})
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


def _batch(pending: _Pending, end: BatchEnd, *, continues: bool) -> Gathered:
    full = [p for p in pending.pieces if len(p.piece.offsets)]
    counts = [len(p.piece.offsets) for p in full]
    places = {name: place for place, name in enumerate(dict.fromkeys(p.after.name for p in full))}
    names = list(places)
    codes = np.repeat(np.array([places[p.after.name] for p in full], np.int32), counts)
    offsets = np.concatenate([p.piece.offsets for p in full]) if full else np.zeros(0, np.int64)
    skipped: Counter[str] = Counter()
    for p in pending.pieces:
        skipped.update(p.piece.skipped)
    columns = full[0].rows is not None if full else False
    raw = RawEvents(
        source_file=pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string())),
        source_offset=pa.array(offsets),
        documents=None if columns else _documents(full),
        keys=_keys(full),
        rows=pa.concat_tables([p.rows for p in full]) if columns else None,
        skipped=dict(skipped),
        rejected=Rejected.concat(p.rejected for p in pending.pieces),
    )
    files = {p.after.name: p.after for p in pending.pieces}
    return Gathered(raw, list(files.values()), end, continues)


def _documents(pieces: list[FilePiece]) -> pa.BinaryArray:
    arrays = [p.piece.documents for p in pieces]
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays([*arrays, pa.array([], pa.binary())])


def _keys(pieces: list[FilePiece]) -> pa.BinaryArray | None:
    """The keys of pieces one after the other, NULL for those that lack them; None if all do."""
    if all(p.piece.keys is None for p in pieces):
        return None
    nothing = pa.scalar(None, pa.binary())
    return pa.concat_arrays(
        pa.repeat(nothing, len(p.piece.offsets)) if p.piece.keys is None else p.piece.keys for p in pieces
    )


UNFINISHED = "unfinished line"


def discover(
    patterns: Sequence[str] | Listing,
    position: FilePosition | None = None,
    options: FileOptions | None = None,
    *,
    applied_lines: AppliedLines | None = None,
    complete: CompleteEvents | None = None,
    on_skipped: OnSkipped | None = None,
    filesystem: FileSystem | None = None,
    warn: Callable[[str], None] | None = None,
) -> Iterator[SourceBatch]:
    """Read what is new in the files, in the order of their names; yield nothing if nothing is new.

    Args:
        patterns: paths with wildcards, local or remote, or their listing.
        position: position after the last batch that was applied; None starts from the beginning.
        options: limits and layout.
        applied_lines: looks up in the change log the files that the position's ledger no longer contains.
        complete: counts the events that do not depend on later ones; the others wait for the rest of their group.
        on_skipped: called with the reason and number of skipped items: re-delivered files, unfinished lines,
            events of an open transaction.
        filesystem: file system for remote paths; None selects it by their scheme.
        warn: called with what someone should see to: files that are read after others with higher numbers; None if values in
            the events order them.

    Raises:
        SourceError: no such path, or a file that cannot be read.
    """
    chosen = options or FileOptions()
    now = position or FilePosition()
    skip = on_skipped or (lambda *_: None)
    listing = patterns if isinstance(patterns, Listing) else Listing(patterns, filesystem)
    listed, filesystem = listing.files, listing.filesystem
    if not listed and position is None:
        # a folder that was emptied after reading is fine; one that never contained a file is a mistake
        raise SourceError(f"no file matches {', '.join(listing.patterns)}")
    # an unfinished sweep is finished first, over its original files: its position has only the last name
    for _ in range(2 if now.is_sweeping else 1):
        sweep = begin_sweep(listing, now, chosen, applied_lines, skip, warn=warn)
        now = sweep.position
        waiting: SourceBatch | None = None
        try:
            for part in gather(
                _pieces_of(sweep.files, chosen, filesystem), chosen.batch_rows, chosen.batch_bytes, complete
            ):
                has_events = part.raw is not None and part.raw.num_read
                # a batch is held back until the next one is known: pieces without events only move its position
                if waiting is not None and has_events:
                    yield waiting
                    waiting = None
                now = advanced(now, part, skip)
                if part.raw is not None and has_events:
                    waiting = SourceBatch(part.raw, now, part.end, part.continues)
        except SourceError:
            if waiting is not None:
                yield waiting
            raise
        now = sweep.settled(now)
        if waiting is not None:
            yield replace(waiting, position_after=now)


READ_AHEAD_SHARE = 4
"""Divides the size of a batch for the bytes of one file that a thread may read ahead."""


def _pieces_of(
    files: Sequence[tuple[ListedFile, ReadFile]], options: FileOptions, filesystem: FileSystem | None
) -> Iterator[FilePiece]:
    """The pieces of files, in order; threads read the beginning of each, as far as that takes time."""
    if num_threads() == 1:
        for file, known in files:
            yield from read_pieces(file, known, options, filesystem)
        return
    for first, rest in ahead(partial(_begun, file, known, options, filesystem) for file, known in files):
        yield from first
        yield from rest


def _begun(
    file: ListedFile, known: ReadFile, options: FileOptions, filesystem: FileSystem | None
) -> tuple[Sequence[FilePiece], Iterator[FilePiece]]:
    """(first pieces of a file, the others)."""
    pieces = read_pieces(file, known, options, filesystem)
    most, size = options.batch_bytes // READ_AHEAD_SHARE, 0
    if file.size > most and not is_compressed(file.name):
        return (), pieces  # lines are only looked for, and blocks and row groups have threads of their own
    first: list[FilePiece] = []
    try:
        for piece in pieces:
            first.append(piece)
            size += piece.nbytes
            if size >= most:
                break
    except Exception as error:  # noqa: BLE001 - raised behind the pieces before it
        return first, map(_raised, [error])
    return first, pieces


def _raised(error: Exception) -> FilePiece:
    raise error


def read_pieces(
    file: ListedFile, known: ReadFile, options: FileOptions, filesystem: FileSystem | None, stop: int | None = None
) -> Iterator[FilePiece]:
    """Read the events of a file, up to the byte `stop`; with `unreadable: quarantine` an unreadable rest becomes a rejected event."""
    at = known
    # what is read with one request is of one object
    version = stored_version(file, filesystem) if file.size > SNIFFED_BYTES else None

    def check_version() -> None:
        if version is not None and version != stored_version(file, filesystem):
            raise SourceError(
                f"{file.path} was replaced while it was read, so the rest of it is of another object; the next run reads that. "
                "Write new events to new objects"
            )

    try:
        for piece in read_file(file, known, options, filesystem, stop):
            check_version()
            _require_every_line(piece, options)
            at = piece.after
            yield piece
    except SourceError as error:
        check_version()
        if options.unreadable == STOP:
            raise
        yield unreadable_rest(at, str(error))


def advanced(position: FilePosition, part: Gathered, skip: OnSkipped) -> FilePosition:
    """The position after reading these parts of files."""
    for file in part.files:
        if file.waiting and file.finished:
            skip(UNFINISHED, 1)
    for reason, count in part.waiting.items():
        skip(reason, count)
    return position.with_files(part.files)
