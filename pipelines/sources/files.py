"""Event files as a source: what is new since a position, in batches of bounded size, each with the position after it.

Files are read in name order. Late files (a name below those already read), growing files (from where reading stopped),
renamed and re-delivered files (recognised by size and fingerprint) are told apart by `FilePosition`; see there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.sources.file_fingerprint import continues, fingerprint_of
from pipelines.sources.file_listing import ListedFile, list_files
from pipelines.sources.file_options import FileOptions
from pipelines.sources.file_position import Digest, FilePosition, ReadFile, digest
from pipelines.sources.file_reader import read_file
from pipelines.sources.raw_batching import CompleteEvents, gather
from pipelines.sources.raw_events import RawEvents

MARGIN_NS = 3600 * 1_000_000_000
"""Object stores may show a file long after the time it carries (multipart uploads): so far back arrivals are checked."""

AppliedLines = Callable[[Sequence[str]], Mapping[str, int]]
"""Names of files to how many of their lines are in the change log; names it does not know are left out."""


@dataclass(frozen=True)
class FileBatch:
    """Events, and the position once they are applied."""

    raw: RawEvents
    position_after: FilePosition


def discover(
    patterns: Sequence[str],
    position: FilePosition | None = None,
    options: FileOptions | None = None,
    *,
    applied_lines: AppliedLines | None = None,
    complete: CompleteEvents | None = None,
    filesystem: Any = None,
) -> Iterator[FileBatch]:
    """What is new in the files, in name order; nothing at all if nothing is.

    Args:
        patterns: paths with wildcards, local or of a pyarrow filesystem.
        position: after the last batch that was applied; None begins from the start.
        options: limits and layout.
        applied_lines: asks the change log about files that the position's ledger no longer knows.
        complete: tells how many events belong to finished transactions; others wait for the rest.
        filesystem: a pyarrow filesystem for remote paths; None takes the one of their scheme.

    Raises:
        SourceError: no such path, or a file that cannot be read.
    """
    chosen = options or FileOptions()
    now = position or FilePosition()
    listed = list_files(patterns, filesystem)
    newest = max((f.arrived_ns for f in listed), default=-1)
    sweeps = [now.until_ns] if now.is_sweeping else []
    for until in [*sweeps, newest]:
        if until != now.until_ns or not now.is_sweeping:
            now = now.sweeping(max(until, now.settled_ns))
        todo = _todo(listed, now, applied_lines, filesystem)
        waiting: FileBatch | None = None
        pieces = (piece for file, known in todo for piece in read_file(file, known, chosen, filesystem))
        for raw, ends in gather(pieces, chosen.batch_rows, chosen.batch_bytes, complete):
            if waiting is not None and raw is not None and raw.num_events:
                yield waiting
                waiting = None
            for end in ends:
                now = now.with_file(end)
            if raw is not None and raw.num_events:
                waiting = FileBatch(raw, now)
        now = now.settled(_recent(listed, max(now.until_ns, now.settled_ns)))
        if waiting is not None:
            yield replace(waiting, position_after=now)


def _todo(
    listed: Sequence[ListedFile], position: FilePosition, applied_lines: AppliedLines | None, filesystem: Any
) -> list[tuple[ListedFile, ReadFile]]:
    """The files to read in this sweep, in name order, each as far as it is read already."""
    odd = _recent(listed, position.settled_ns) != position.listed
    fresh: list[tuple[ListedFile, ReadFile]] = []
    doubtful: list[tuple[ListedFile, ReadFile]] = []
    names = {f.name for f in listed}
    for file in listed:
        is_new = file.arrived_ns > position.settled_ns
        is_open = (same := position.find(file.name)) is not None and not same.finished
        is_odd = odd and _is_recent(file, position.settled_ns)
        if file.arrived_ns > position.until_ns or not (is_new or is_odd or is_open):
            continue
        if is_new and position.swept and file.name <= position.swept and not is_open:
            continue
        known = _known(file, position, names, filesystem)
        if known is None:
            continue
        is_old = known.lines == 0 and (not is_new or file.name <= position.highest)
        (doubtful if is_old else fresh).append((file, known))
    if doubtful:
        fresh += _not_applied(doubtful, position, applied_lines)
    return sorted(fresh, key=lambda entry: entry[0].name)


def _known(file: ListedFile, position: FilePosition, names: set[str], filesystem: Any) -> ReadFile | None:
    """How far the file is read; None if there is nothing new in it."""
    own = fingerprint_of(file, filesystem)
    same_name = position.find(file.name)
    if same_name is not None:
        if own.fingerprint == same_name.fingerprint and same_name.finished:
            return None
        if continues(file, same_name, filesystem):
            return replace(own, read_bytes=same_name.read_bytes, lines=same_name.lines)
        return own  # another content under an old name
    if position.knows(own.fingerprint):
        return None
    for gone in position.named:
        if gone.name not in names and gone.lines and continues(file, gone, filesystem):
            return replace(own, read_bytes=gone.read_bytes, lines=gone.lines)  # renamed, and grown since
    return own


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
