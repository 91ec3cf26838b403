"""Event files as a source: what is new since a position, in batches of bounded size, each with the position after it.

Files are read in name order. Late files (a name below those already read), growing files (from where reading stopped),
renamed and re-delivered files (recognised by size and fingerprint) are told apart by `FilePosition`; see there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.errors import SourceError
from pipelines.sources.event_groups import CompleteEvents
from pipelines.sources.file_fingerprint import fingerprints_of
from pipelines.sources.file_listing import ListedFile, list_files, place
from pipelines.sources.file_options import STOP, FileOptions
from pipelines.sources.file_piece import FilePiece
from pipelines.sources.file_position import Digest, FilePosition, ReadFile, digest
from pipelines.sources.file_reader import is_quiet, read_file, unreadable_rest
from pipelines.sources.raw_batching import Gathered, gather
from pipelines.sources.raw_events import RawEvents

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
