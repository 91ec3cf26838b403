"""Which files of a source are new since a position, or have grown: by name, size, time of arrival and the hash of their bytes.

Loads no decoder: most runs find nothing new. What is new is read in `files.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from xxhash import xxh64

from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.sources.file_listing import FileSystem, ListedFile, is_quiet, list_files, open_file, place
from nevermore.pipelines.sources.file_options import STOP, FileOptions
from nevermore.pipelines.sources.file_position import Digest, FilePosition, ReadFile, digest
from nevermore.pipelines.workers import ahead
from nevermore.scan_core.io import cached_property

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


def fingerprints_of(file: ListedFile, lengths: Iterable[int], filesystem: FileSystem | None = None) -> Fingerprints:
    """Compute the fingerprints of a file and of its prefixes of these lengths, in one pass."""
    with open_file(file, filesystem) as stream:
        tail = _read(stream, max(file.size - _END_BYTES, 0), file.size)
        kept = file.size - len(tail) + len(tail.rstrip(_MOVING_END))
        found: dict[int, str] = {}
        hashed = xxh64()
        at = 0
        for border in sorted({kept, *(n for n in lengths if n <= file.size)}):
            while at < border:
                block = _read(stream, at, min(border, at + _BLOCK_BYTES))
                if not block:
                    break  # truncated since the listing: the next run lists it with its new size
                hashed.update(block)
                at += len(block)
            found[border] = hashed.hexdigest()
    return Fingerprints(ReadFile(file.name, file.size, 0, 0, kept, found[kept], finished=False), found)


def _read(stream: Any, start: int, end: int) -> bytes:
    stream.seek(start)
    data: bytes = stream.read(end - start)
    return data


MARGIN_NS = 3600 * 1_000_000_000
"""Object stores may list a file long after its timestamp (multipart uploads): files of up to this age may be new."""

DISTINCT_BYTES = 1024
"""Shorter prefixes may be equal by chance, so such a file is not taken for a renamed one if others were read since."""

_DIGITS = re.compile(r"(?<!\d)(?!(?<=\+)\d+\+\d|(?<!\d\D)(?:0|[1-9]\d{0,4})\D0\d{9})\d+")
"""The numbers of a name, but for that of a Kafka partition before an offset: `topic+0+12`, `topic-0-0000000012`."""
_SHOWN = 3
"""Files that a warning names."""
RE_DELIVERED = "re-delivered file"

OnSkipped = Callable[[str, int], None]
AppliedLines = Callable[[Sequence[str]], Mapping[str, int]]
"""Maps names of files to the number of their lines in the change log; unknown names are omitted."""


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
    warn: Callable[[str], None] | None = None,
    look: Look = ahead,
) -> Sweep:
    """Begin to read what has arrived since a position, or continue its sweep; see `discover`."""
    now = position if position.is_sweeping else position.sweeping(max(listing.newest_ns, position.settled_ns))
    changed = list(_changed_files(listing, now, options, on_skipped, look))
    sweep = Sweep(listing, now, _in_order(changed, now, applied_lines))
    if warn is not None and (late := _overtaken(sweep)):
        warn(late)
    return sweep


def _overtaken(sweep: Sweep) -> str | None:
    """A warning of new files that are read after files with higher numbers; None if there are none.

    An object store may list a file late, and in the order of names 10 comes before 9. Only names in one folder that differ by digits
    alone are compared: the files and folders of partitions have numbers of their own.
    """
    late, highest = list[str](), dict[str, list[int]]()
    begun = [known.name for known in sweep.position.named]
    for name in dict.fromkeys((*begun, *(file.name for file, _ in sweep.files))):
        folder, _, base = name.rpartition("/")
        series, numbers = f"{folder}/{_DIGITS.sub('0', base)}", [int(digits) for digits in _DIGITS.findall(base)]
        if numbers < highest.setdefault(series, numbers) and name not in begun:
            late.append(name)
        highest[series] = max(highest[series], numbers)
    if not late:
        return None
    more = f" and {len(late) - _SHOWN} more files" if len(late) > _SHOWN else ""
    return (
        f"{', '.join(late[:_SHOWN])}{more}: read after files with higher numbers, and applied after them; if that is not their "
        "order, write numbers of equal length, and set order_by, such as order_by: [source.lsn]"
    )


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
        return is_unfinished or not (is_new and position.swept and place(file.name) <= place(position.swept))

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


def _looked_at(
    file: ListedFile, position: FilePosition, gone: Sequence[ReadFile], filesystem: FileSystem | None
) -> Looked:
    """(file, its fingerprints up to where it was read under its name, or under names that are gone; why it cannot be read)."""
    same_name = position.find(file.name)
    lengths = {f.kept_bytes for f in gone} if same_name is None else {same_name.kept_bytes}
    try:
        return file, fingerprints_of(file, lengths, filesystem)
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


def _is_recent(file: ListedFile, settled_ns: int) -> bool:
    return settled_ns - MARGIN_NS < file.arrived_ns <= settled_ns


def _recent(listed: Sequence[ListedFile], settled_ns: int) -> Digest:
    return digest((f.name, f.size) for f in listed if _is_recent(f, settled_ns))
