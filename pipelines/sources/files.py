"""Event files as a source: reads everything new since a position, in batches of bounded size.

Each batch carries the position after it. A file that was renamed or delivered again is recognized by the hash of its
bytes. Single files are read in `file_reader.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64

from pipelines.decode.batches import BatchEnd, CompleteEvents, RawEvents, Rejected
from pipelines.errors import SourceError
from pipelines.sources.file_documents import FilePiece
from pipelines.sources.file_listing import FileSystem, ListedFile, list_files, open_file, place
from pipelines.sources.file_options import STOP, FileOptions
from pipelines.sources.file_position import FINGERPRINT_BYTES, XXH64, Digest, FilePosition, ReadFile, digest
from pipelines.sources.file_reader import is_compressed, is_quiet, read_file, unreadable_rest
from pipelines.workers import ahead, num_threads

_END_BYTES = 4096
_BLOCK_BYTES = 4 * 1024**2
_MOVING_END = b"], \t\r\n"
"""Maximum number of bytes after the last event of an array, which move when the array grows."""


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """A file that is identified by its bytes but not read yet, with the fingerprints of some of its prefixes."""

    whole: ReadFile
    prefixes: Mapping[int, str]

    def continue_from(self, known: ReadFile) -> bool:
        """Whether the file begins with the content of `known`, so that it is the same file after growing."""
        return self.prefixes.get(known.kept_bytes) == known.fingerprint


def fingerprints_of(
    file: ListedFile, lengths: Iterable[int], filesystem: FileSystem | None = None, algorithm: str = XXH64
) -> Fingerprints:
    """Compute the fingerprints of a file and of its prefixes of these lengths, in one pass."""
    with open_file(file, filesystem) as stream:
        tail = _read(stream, max(file.size - _END_BYTES, 0), file.size)
        kept = file.size - len(tail) + len(tail.rstrip(_MOVING_END))
        found: dict[int, str] = {}
        hashed = xxh64() if algorithm == XXH64 else blake2b(digest_size=FINGERPRINT_BYTES)
        at = 0
        for border in sorted({kept, *(n for n in lengths if n <= file.size)}):
            while at < border:
                block = _read(stream, at, min(border, at + _BLOCK_BYTES))
                if not block:
                    break  # truncated since the listing: the next run lists it with its new size
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
"""Why events at the end of the input are not applied yet; they are read again together with later events."""

PIECE_BYTES = 3 * 1024
"""Memory of a piece in addition to its events; a small file has two pieces, its events and its end."""


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
    reading = iter(pieces)
    while True:
        try:
            piece = next(reading, None)
        except SourceError:
            # everything before an unreadable file is applied first
            continues = cutting.is_within_transaction
            done, _ = cutting.cut(pending)
            if done.has_events:
                yield _batch(done, cutting.end, continues=continues)
            raise
        if piece is None:
            break
        count = len(piece.piece.offsets)
        full = pending.rows + count > batch_rows or pending.size >= batch_bytes
        if count and pending.rows and (full or not _joins(pending.pieces, piece)):
            continues = cutting.is_within_transaction
            done, pending = cutting.cut(pending)
            if done.pieces:
                yield _batch(done, cutting.end, continues=continues)
            # the transaction has no end yet: kept for the next batch, it would exceed the limits or mix columns
            is_large = pending.rows >= batch_rows or pending.size >= batch_bytes
            if pending.rows and ((is_large and cutting.of_transactions) or not _joins(pending.pieces, piece)):
                continues = cutting.is_within_transaction
                yield _batch(pending, cutting.end_within(pending), continues=continues)
                pending = _Pending()
        pending.add(piece)
    continues = cutting.is_within_transaction
    done, left = cutting.cut(pending)
    if done.pieces:
        yield _batch(done, cutting.end, continues=continues)
    if files := cutting.unfinished(left):
        yield Gathered(None, files, waiting=cutting.waiting(left))


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

    def cut(self, pending: _Pending) -> tuple[_Pending, _Pending]:
        """(events that may be applied, events that wait for the rest of their group)."""
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
        # documents are examined all at once; rows piece by piece from the end, until a piece has complete events
        for part in [full] if full[-1].rows is None else [[piece] for piece in reversed(full)]:
            rows = part[-1].rows
            complete = self._complete(_documents(part) if rows is None else rows)
            if complete is None:
                return 0 if self._open else pending.rows
            self.of_transactions |= complete.of_transactions
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
        keys=None if columns else _keys(full),
        rows=pa.concat_tables([p.rows for p in full]) if columns else None,
        ingested_at=datetime.now(UTC),
        skipped=dict(skipped),
        rejected=Rejected.concat(p.rejected for p in pending.pieces),
    )
    files = {p.after.name: p.after for p in pending.pieces}
    return Gathered(raw, list(files.values()), end, continues)


def _documents(pieces: list[FilePiece]) -> pa.BinaryArray:
    arrays = [p.piece.documents for p in pieces]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays([*arrays, pa.array([], pa.binary())])


def _keys(pieces: list[FilePiece]) -> pa.BinaryArray | None:
    if all(p.piece.keys is None for p in pieces):
        return None
    parts = [pa.nulls(len(p.piece.offsets), pa.binary()) if p.piece.keys is None else p.piece.keys for p in pieces]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


MARGIN_NS = 3600 * 1_000_000_000
"""Object stores may list a file long after its timestamp (multipart uploads): files of up to this age may be new."""

DISTINCT_BYTES = 1024
"""Shorter prefixes may be equal by chance, so such a file is not taken for a renamed one if others were read since."""

RE_DELIVERED = "re-delivered file"
UNFINISHED = "unfinished line"

OnSkipped = Callable[[str, int], None]
AppliedLines = Callable[[Sequence[str]], Mapping[str, int]]
"""Maps names of files to the number of their lines in the change log; unknown names are omitted."""


@dataclass(frozen=True)
class FileBatch:
    """Events and the position after them.

    Attributes:
        raw: the events.
        position_after: position once they are applied.
        end: if within a transaction, the events may be decoded, but are applied only together with the batch that ends
            it; if no batch ends it, nothing of the transaction is applied, and it is read again.
        continues: whether they continue the transaction of the previous batch; if not, the beginning of that is dropped.
    """

    raw: RawEvents
    position_after: FilePosition
    end: BatchEnd = BatchEnd.ANYWHERE
    continues: bool = False


class Listing:
    """The files of a source, listed once for all readers of a run."""

    def __init__(self, patterns: Sequence[str], filesystem: FileSystem | None = None) -> None:
        """`filesystem` is used for remote paths; None selects it by their scheme."""
        self.patterns = patterns
        self.filesystem = filesystem

    @cached_property
    def files(self) -> list[ListedFile]:
        """The files in the order in which they are read.

        Raises:
            SourceError: no such path.
        """
        return list_files(self.patterns, self.filesystem)

    @property
    def newest_ns(self) -> int:
        """Time of arrival of the newest file; -1 without files."""
        return max((f.arrived_ns for f in self.files), default=-1)


def discover(
    patterns: Sequence[str] | Listing,
    position: FilePosition | None = None,
    options: FileOptions | None = None,
    *,
    applied_lines: AppliedLines | None = None,
    complete: CompleteEvents | None = None,
    on_skipped: OnSkipped | None = None,
    filesystem: FileSystem | None = None,
) -> Iterator[FileBatch]:
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
        sweep = begin_sweep(listing, now, chosen, applied_lines, skip)
        now = sweep.position
        waiting: FileBatch | None = None
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
                    waiting = FileBatch(part.raw, now, part.end, part.continues)
        except SourceError:
            if waiting is not None:
                yield waiting
            raise
        now = sweep.settled(now)
        if waiting is not None:
            yield replace(waiting, position_after=now)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The files to read in a sweep.

    Attributes:
        listing: all files of the source.
        position: the position before them.
        files: what to read, in order, with the state of reading each.
    """

    listing: Listing
    position: FilePosition
    files: Sequence[tuple[ListedFile, ReadFile]]

    def settled(self, reached: FilePosition) -> FilePosition:
        """The position once all of them are read, up to `reached`."""
        return reached.settled(_recent(self.listing.files, max(reached.until_ns, reached.settled_ns)))


Looked = tuple[ListedFile, Fingerprints | SourceError]
Look = Callable[[Iterable[Callable[[], Looked]]], Iterator[Looked]]
"""Runs tasks that each look at a file, and returns their results in order."""


def begin_sweep(
    listing: Listing,
    position: FilePosition,
    options: FileOptions,
    applied_lines: AppliedLines | None,
    on_skipped: OnSkipped,
    *,
    look: Look = ahead,
) -> Sweep:
    """Begin to read what has arrived since a position, or continue its sweep; see `discover`."""
    now = position if position.is_sweeping else position.sweeping(max(listing.newest_ns, position.settled_ns))
    changed = list(_changed_files(listing, now, options, on_skipped, look))
    return Sweep(listing, now, _in_order(changed, now, applied_lines))


def may_have_news(listing: Listing, position: FilePosition, options: FileOptions) -> bool:
    """Whether `discover` might read or skip something. Reads no new files, and at most one known file to compare it.

    Raises:
        SourceError: no such path.
    """
    if position.is_sweeping:
        return True
    skipped: list[str] = []
    sweep = position.sweeping(max(listing.newest_ns, position.settled_ns))
    changed = _changed_files(listing, sweep, options, lambda reason, _: skipped.append(reason))
    return any(True for _ in changed) or bool(skipped)


@dataclass(frozen=True, slots=True)
class _ChangedFile:
    """A file to read.

    Attributes:
        file: the listed file.
        known: state of reading it according to the position.
        may_be_applied: whether the change log may contain lines of it, because the file or its name is older than the
            ledger.
    """

    file: ListedFile
    known: ReadFile
    may_be_applied: bool


def _changed_files(
    listing: Listing, position: FilePosition, options: FileOptions, skip: OnSkipped, look: Look = ahead
) -> Iterator[_ChangedFile]:
    """The files to read in this sweep."""
    listed, newest_ns = listing.files, listing.newest_ns
    # files may appear with an old time, since object stores date an upload by its start: then the set differs
    has_late = _recent(listed, position.settled_ns) != position.listed
    names = {f.name for f in listed}
    gone = [f for f in position.named if f.name not in names and f.lines]

    def is_left(file: ListedFile) -> bool:
        # a file's time may be visible before its bytes: only files that are followed by newer ones count as unchanged
        return file.arrived_ns < newest_ns or is_quiet(file)

    def may_have_changed(file: ListedFile) -> bool:
        is_new = file.arrived_ns > position.settled_ns
        same_name = position.find(file.name)
        is_unfinished = same_name is not None and (
            not same_name.finished or (same_name.waiting and not is_new and is_left(file))
        )
        may_be_late = has_late and _is_recent(file, position.settled_ns)
        if file.arrived_ns > position.until_ns or not (is_new or may_be_late or is_unfinished):
            return False
        is_swept = is_new and position.swept and place(file.name) <= place(position.swept)
        return is_unfinished or not is_swept

    looked_at = (
        partial(_looked_at, file, position, gone, listing.filesystem) for file in listed if may_have_changed(file)
    )
    for file, prints in look(looked_at):
        same_name, is_new = position.find(file.name), file.arrived_ns > position.settled_ns
        known: ReadFile | None
        if not isinstance(prints, SourceError):
            known = _known(prints, position, gone, skip, is_left=is_left(file))
        elif options.unreadable == STOP:
            raise prints
        else:
            known = ReadFile(file.name, file.size, 0, 0, 0, "", finished=False)  # reading it reports the problem
        if known is not None:
            # other content under a known name is a new file, of which the change log cannot contain lines
            is_old_name = not is_new or place(file.name) <= place(position.highest)
            yield _ChangedFile(file, known, same_name is None and known.lines == 0 and is_old_name)


def _in_order(
    changed: Sequence[_ChangedFile], position: FilePosition, applied_lines: AppliedLines | None
) -> list[tuple[ListedFile, ReadFile]]:
    """Sort files in the order of reading, each with the number of lines that are already applied."""
    doubtful = [c for c in changed if c.may_be_applied]
    chosen = [(c.file, c.known) for c in changed if not c.may_be_applied]
    if applied_lines is None:
        # without the change log, only content that is certainly new is read: nothing may be applied twice
        chosen += [(c.file, c.known) for c in doubtful if c.file.arrived_ns > position.settled_ns]
    elif doubtful:
        lines = applied_lines([c.file.name for c in doubtful])
        chosen += [(c.file, replace(c.known, lines=lines.get(c.file.name, 0))) for c in doubtful]
    return sorted(chosen, key=lambda entry: place(entry[0].name))


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
    try:
        for piece in read_file(file, known, options, filesystem, stop):
            at = piece.after
            yield piece
    except SourceError as error:
        if options.unreadable == STOP:
            raise
        yield unreadable_rest(at, str(error))


def _looked_at(
    file: ListedFile, position: FilePosition, gone: Sequence[ReadFile], filesystem: FileSystem | None
) -> Looked:
    """(file, its fingerprints up to where it was read under its name, or under names that are gone; why it cannot be read)."""
    same_name = position.find(file.name)
    lengths = {f.kept_bytes for f in gone} if same_name is None else {same_name.kept_bytes}
    try:
        return file, fingerprints_of(file, lengths, filesystem, position.hash)
    except SourceError as error:
        return file, error


def _known(
    prints: Fingerprints, position: FilePosition, gone: Sequence[ReadFile], skip: OnSkipped, *, is_left: bool
) -> ReadFile | None:
    """The state of reading a file; None if it contains nothing new. `gone` are files whose names do not exist any more."""
    own = prints.whole
    same_name = position.find(own.name)
    if same_name is not None:
        same = own.fingerprint == same_name.fingerprint and own.size == same_name.size
        if same and same_name.finished:
            # a rest that was left for later and is unchanged will not be completed any more
            return replace(same_name, finished=False) if same_name.waiting and is_left else None
        # other content under a known name is another file
        return _grown(own, same_name) if prints.continue_from(same_name) else own
    if own.kept_bytes and position.knows(own.fingerprint):
        if not any(f.fingerprint == own.fingerprint for f in gone):
            skip(RE_DELIVERED, 1)
        return None
    # a file renamed more than once has several names in the ledger: the one that was read farthest counts
    for earlier in sorted(gone, key=lambda f: f.kept_bytes, reverse=True):
        is_telling = earlier.kept_bytes >= DISTINCT_BYTES or earlier is position.named[-1]
        if is_telling and prints.continue_from(earlier):
            return _grown(own, earlier)  # renamed and grown since
    return own


def _grown(own: ReadFile, earlier: ReadFile) -> ReadFile:
    return replace(own, read_bytes=earlier.read_bytes, lines=earlier.lines, layout=earlier.layout)


def advanced(position: FilePosition, part: Gathered, skip: OnSkipped) -> FilePosition:
    """The position after reading these parts of files."""
    for file in part.files:
        if file.waiting and file.finished:
            skip(UNFINISHED, 1)
    for reason, count in part.waiting.items():
        skip(reason, count)
    return position.with_files(part.files)


def _is_recent(file: ListedFile, settled_ns: int) -> bool:
    return settled_ns - MARGIN_NS < file.arrived_ns <= settled_ns


def _recent(listed: Sequence[ListedFile], settled_ns: int) -> Digest:
    return digest((f.name, f.size) for f in listed if _is_recent(f, settled_ns))
