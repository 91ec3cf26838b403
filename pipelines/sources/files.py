"""Event files as a source: everything new since a position, in batches of bounded size.

Each batch carries the position after it. A file that was renamed or delivered again is recognized by the hash of its
bytes. One file is read in `file_reader.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.decode.batches import CompleteEvents, RawEvents, Rejected
from pipelines.errors import SourceError
from pipelines.sources.byte_hash import ByteHash
from pipelines.sources.file_documents import FilePiece
from pipelines.sources.file_listing import ListedFile, list_files, open_file, place
from pipelines.sources.file_options import STOP, FileOptions
from pipelines.sources.file_position import FINGERPRINT_BYTES, XXH64, Digest, FilePosition, ReadFile, digest
from pipelines.sources.file_reader import is_quiet, read_file, unreadable_rest

_END_BYTES = 4096
_BLOCK_BYTES = 4 * 1024**2
_MOVING_END = b"], \t\r\n"
"""What stands behind the last event of an array and moves when the array grows."""


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """A file as known by its bytes, nothing of it read yet, and the fingerprints of some of its beginnings."""

    whole: ReadFile
    beginnings: Mapping[int, str]

    def continue_from(self, known: ReadFile) -> bool:
        """Whether the file begins with what `known` was: it is the same one, grown."""
        return self.beginnings.get(known.kept_bytes) == known.fingerprint


def fingerprints_of(
    file: ListedFile, lengths: Iterable[int], filesystem: Any = None, algorithm: str = XXH64
) -> Fingerprints:
    """The fingerprints of a file and of its beginnings of these lengths, as far as it is so long; in one pass."""
    with open_file(file, filesystem) as stream:
        tail = _read(stream, max(file.size - _END_BYTES, 0), file.size)
        kept = file.size - len(tail) + len(tail.rstrip(_MOVING_END))
        found: dict[int, str] = {}
        hashed = ByteHash() if algorithm == XXH64 else blake2b(digest_size=FINGERPRINT_BYTES)
        at = 0
        for border in sorted({kept, *(n for n in lengths if n <= file.size)}):
            while at < border:
                block = _read(stream, at, min(border, at + _BLOCK_BYTES))
                if not block:
                    break  # cut off while we read: it is listed anew next time
                hashed.update(block)
                at += len(block)
            found[border] = hashed.hexdigest()
    whole = ReadFile(
        name=file.name,
        size=file.size,
        read_bytes=0,
        lines=0,
        kept_bytes=kept,
        fingerprint=found[kept],
        finished=False,
    )
    return Fingerprints(whole, found)


def _read(stream: Any, start: int, end: int) -> bytes:
    stream.seek(start)
    data: bytes = stream.read(end - start)
    return data


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


MARGIN_NS = 3600 * 1_000_000_000
"""Object stores may show a file long after the time it carries (multipart uploads): so far back arrivals are checked."""

DISTINCT_BYTES = 1024
"""Beginnings of fewer bytes may be alike by chance: such a file is no renamed one if others were read since."""

RE_DELIVERED = "re-delivered file"
UNFINISHED = "unfinished line"

LeftOut = Callable[[str, int], None]
AppliedLines = Callable[[Sequence[str]], Mapping[str, int]]
"""Names of files to how many of their lines are in the change log; names it does not know are left out."""


@dataclass(frozen=True)
class FileBatch:
    """Events, and the position once they are applied.

    Attributes:
        raw: the events.
        position_after: once they are applied.
        is_open: they end within a transaction that is larger than a batch: they may be decoded, and are applied with
            the batch that ends it. Without one nothing of it is applied, and it is read again.
        goes_on: they go on with the transaction of the batch before, which was open; if not, that one counts for nothing.
    """

    raw: RawEvents
    position_after: FilePosition
    is_open: bool = False
    goes_on: bool = False


def discover(
    patterns: Sequence[str],
    position: FilePosition | None = None,
    options: FileOptions | None = None,
    *,
    applied_lines: AppliedLines | None = None,
    complete: CompleteEvents | None = None,
    left_out: LeftOut | None = None,
    filesystem: Any = None,
) -> Iterator[FileBatch]:
    """What is new in the files, in name order; nothing at all if nothing is.

    Args:
        patterns: paths with wildcards, local or of a pyarrow filesystem.
        position: after the last batch that was applied; None begins from the start.
        options: limits and layout.
        applied_lines: asks the change log about files that the position's ledger no longer knows.
        complete: tells how many events need none of those that follow; others wait for the rest of their group.
        left_out: told why something was not read, and how much: a re-delivered file, an unfinished line, the events of
            a transaction that is open.
        filesystem: a pyarrow filesystem for remote paths; None takes the one of their scheme.

    Raises:
        SourceError: no such path, or a file that cannot be read.
    """
    chosen = options or FileOptions()
    now = position or FilePosition()
    tell = left_out or _nobody
    listed = list_files(patterns, filesystem)
    if not listed and position is None:
        # A folder that was emptied after it was read is no mistake; one that never held anything is.
        raise SourceError(f"no file matches {', '.join(patterns)}")
    newest = max((f.arrived_ns for f in listed), default=-1)
    sweeps = [now.until_ns] if now.is_sweeping else []
    for until in [*sweeps, newest]:
        if until != now.until_ns or not now.is_sweeping:
            now = now.sweeping(max(until, now.settled_ns))
        todo = _todo(listed, now, applied_lines, tell, filesystem=filesystem, options=chosen)
        waiting: FileBatch | None = None
        pieces = (piece for file, known in todo for piece in _pieces(file, known, chosen, filesystem))
        try:
            for part in gather(pieces, chosen.batch_rows, chosen.batch_bytes, complete):
                has_events = part.raw is not None and part.raw.num_read
                if waiting is not None and has_events:
                    yield waiting
                    waiting = None
                now = _advanced(now, part, tell)
                if part.raw is not None and has_events:
                    waiting = FileBatch(part.raw, now, part.is_open, part.goes_on)
        except SourceError:
            # What comes before a file that cannot be read is applied first.
            if waiting is not None:
                yield waiting
            raise
        now = now.settled(_recent(listed, max(now.until_ns, now.settled_ns)))
        if waiting is not None:
            yield replace(waiting, position_after=now)


def may_have_news(
    patterns: Sequence[str],
    position: FilePosition,
    options: FileOptions,
    *,
    applied_lines: AppliedLines | None = None,
    filesystem: Any = None,
) -> bool:
    """Whether `discover` might find something, or have something to tell; without reading any new file.

    Raises:
        SourceError: no such path.
    """
    if position.is_sweeping:
        return True
    told: list[str] = []
    listed = list_files(patterns, filesystem)
    newest = max((f.arrived_ns for f in listed), default=-1)
    now = position.sweeping(max(newest, position.settled_ns))
    todo = _todo(
        listed, now, applied_lines, lambda reason, _: told.append(reason), filesystem=filesystem, options=options
    )
    return bool(todo or told)


def _todo(
    listed: Sequence[ListedFile],
    position: FilePosition,
    applied_lines: AppliedLines | None,
    tell: LeftOut,
    *,
    filesystem: Any,
    options: FileOptions,
) -> list[tuple[ListedFile, ReadFile]]:
    """The files to read in this sweep, in name order, each as far as it is read already."""
    odd = _recent(listed, position.settled_ns) != position.listed
    fresh: list[tuple[ListedFile, ReadFile]] = []
    doubtful: list[tuple[ListedFile, ReadFile]] = []
    names = {f.name for f in listed}
    newest = max((f.arrived_ns for f in listed), default=-1)
    for file in listed:
        is_new = file.arrived_ns > position.settled_ns
        # A writer's time may be seen before its bytes: that nothing was added is believed of files that others came after.
        is_left = file.arrived_ns < newest or is_quiet(file)
        is_open = (same := position.find(file.name)) is not None and (
            not same.finished or (same.waiting and not is_new and is_left)
        )
        is_odd = odd and _is_recent(file, position.settled_ns)
        if file.arrived_ns > position.until_ns or not (is_new or is_odd or is_open):
            continue
        if is_new and position.swept and place(file.name) <= place(position.swept) and not is_open:
            continue
        try:
            known = _known(file, position, names, tell, filesystem, is_left=is_left)
        except SourceError:
            if options.unreadable == STOP:
                raise
            known = ReadFile(file.name, file.size, 0, 0, 0, "", finished=False)  # reading it says what is wrong
        if known is None:
            continue
        # Another content under a name of the ledger is a new file; lines of the old one say nothing of it.
        is_old = same is None and known.lines == 0 and (not is_new or place(file.name) <= place(position.highest))
        (doubtful if is_old else fresh).append((file, known))
    if doubtful:
        fresh += _not_applied(doubtful, position, applied_lines)
    return sorted(fresh, key=lambda entry: place(entry[0].name))


def _pieces(file: ListedFile, known: ReadFile, options: FileOptions, filesystem: Any) -> Iterator[FilePiece]:
    """The events of a file; what cannot be read is an event that is rejected, where the options say so."""
    at = known
    try:
        for piece in read_file(file, known, options, filesystem):
            at = piece.after
            yield piece
    except SourceError as error:
        if options.unreadable == STOP:
            raise
        yield unreadable_rest(at, str(error))


def _known(
    file: ListedFile, position: FilePosition, names: set[str], tell: LeftOut, filesystem: Any, *, is_left: bool
) -> ReadFile | None:
    """How far the file is read; None if there is nothing new in it."""
    same_name = position.find(file.name)
    gone = [] if same_name is not None else [f for f in position.named if f.name not in names and f.lines]
    lengths = {f.kept_bytes for f in gone} if same_name is None else {same_name.kept_bytes}
    prints = fingerprints_of(file, lengths, filesystem, position.hash)
    own = prints.whole
    if same_name is not None:
        same = own.fingerprint == same_name.fingerprint and own.size == same_name.size
        if same and same_name.finished:
            # What was left for later and has not changed since will not be finished any more.
            return replace(same_name, finished=False) if same_name.waiting and is_left else None
        # Another content under an old name is another file.
        return _grown(own, same_name) if prints.continue_from(same_name) else own
    if own.kept_bytes and position.knows(own.fingerprint):
        if not any(f.fingerprint == own.fingerprint for f in gone):
            tell(RE_DELIVERED, 1)
        return None
    # Of a file that was renamed more than once, the ledger holds all former names: the one that was read farthest tells.
    for earlier in sorted(gone, key=lambda f: f.kept_bytes, reverse=True):
        is_telling = earlier.kept_bytes >= DISTINCT_BYTES or earlier is position.named[-1]
        if is_telling and prints.continue_from(earlier):
            return _grown(own, earlier)  # renamed, and grown since
    return own


def _grown(own: ReadFile, earlier: ReadFile) -> ReadFile:
    return replace(own, read_bytes=earlier.read_bytes, lines=earlier.lines, layout=earlier.layout)


def _advanced(position: FilePosition, part: Gathered, tell: LeftOut) -> FilePosition:
    """The position after reading files so far."""
    for end in part.ends:
        if end.waiting and end.finished:
            tell(UNFINISHED, 1)
    for reason, count in part.waiting.items():
        tell(reason, count)
    return position.with_files(part.ends)


def _nobody(_: str, _count: int) -> None:
    """Nobody asked."""


def _not_applied(
    doubtful: list[tuple[ListedFile, ReadFile]], position: FilePosition, applied_lines: AppliedLines | None
) -> list[tuple[ListedFile, ReadFile]]:
    """Of files that may be older than the ledger, those with lines that the change log does not have."""
    if applied_lines is None:
        # Without the change log only what is new for certain is read: nothing may be applied twice.
        return [(f, known) for f, known in doubtful if f.arrived_ns > position.settled_ns]
    lines = applied_lines([f.name for f, _ in doubtful])
    return [(f, replace(known, lines=lines.get(f.name, 0))) for f, known in doubtful]


def _is_recent(file: ListedFile, settled_ns: int) -> bool:
    return settled_ns - MARGIN_NS < file.arrived_ns <= settled_ns


def _recent(listed: Sequence[ListedFile], settled_ns: int) -> Digest:
    return digest((f.name, f.size) for f in listed if _is_recent(f, settled_ns))
