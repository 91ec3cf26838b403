"""The position in a folder of event files: a high-water mark and a ledger of bounded size (rule 29).

All files that had arrived by `settled_ns` are read. During a sweep, files that arrived by `until_ns` are
read in name order, and `swept` names the last finished one. The ledger has the last files by name, with how much of
them was read, and more files by fingerprint only: enough to recognise late, growing, renamed and re-delivered files.
A digest of the listing reveals files that arrive with an old time.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from nevermore.pipelines.decode.feed import Decided
from nevermore.pipelines.sources.file_listing import place
from nevermore.pipelines.sources.table_position import parse_position

MAX_NAMED_FILES = 64
"""Number of files remembered by name: those that may still grow are among the last; each adds about 100 bytes to a position."""
MAX_FINGERPRINTS = 4_096
"""Number of files remembered by fingerprint, of 8 bytes each, to recognize re-deliveries."""
FINGERPRINT_BYTES = 8
VERSION = 1


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The state of reading a file.

    Attributes:
        name: path relative to the folder of the source.
        size: size of the file when it was last listed, in bytes.
        read_bytes: bytes of complete events read, after decompression.
        lines: lines, rows or documents read.
        kept_bytes: length of the part that never changes: without closing brackets and white space at the end.
        fingerprint: fingerprint of these bytes.
        finished: whether the whole file was read.
        layout: layout of its documents, once one of them has been read.
        waiting: whether its end was left for a later run because it may be unfinished.
    """

    name: str
    size: int
    read_bytes: int
    lines: int
    kept_bytes: int
    fingerprint: str
    finished: bool
    layout: str = ""
    waiting: bool = False

    def to_list(self) -> list[Any]:
        """The members in order, for JSON."""
        members = [self.name, self.size, self.read_bytes, self.lines, self.kept_bytes, self.fingerprint, self.finished]
        return [*members, self.layout, self.waiting] if self.layout or self.waiting else members


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest of a set of files, independent of their order; equal digests mean equal sets."""

    count: int = 0
    total: int = 0


@dataclass(frozen=True)
class FilePosition:
    """The position described at the top of this module; `decided` is what was decided while reading up to here."""

    settled_ns: int = -1
    until_ns: int = -1
    swept: str = ""
    highest: str = ""
    named: tuple[ReadFile, ...] = ()
    fingerprints: tuple[str, ...] = ()
    listed: Digest = Digest()
    decided: Decided = field(default_factory=Decided)

    @property
    def is_sweeping(self) -> bool:
        """Whether a sweep is unfinished."""
        return self.until_ns > self.settled_ns

    def find(self, name: str) -> ReadFile | None:
        """The file of this name, if the ledger contains it."""
        return next((f for f in self.named if f.name == name), None)

    def knows(self, fingerprint: str) -> bool:
        """Whether the ledger contains a file with this fingerprint."""
        return fingerprint in self.fingerprints or any(f.fingerprint == fingerprint for f in self.named)

    def with_files(self, files: Iterable[ReadFile]) -> "FilePosition":
        """The position after reading these files, in order, to the given extent."""
        recent = {f.name: f for f in self.named}
        kept: dict[str, ReadFile] = {}
        fingerprints = list(self.fingerprints)
        finished = []
        for file in files:
            recent.pop(file.name, None)
            kept.pop(file.name, None)
            while len(recent) >= MAX_NAMED_FILES:
                oldest = recent.pop(next(iter(recent)))
                # files with events of an unfinished transaction are never removed
                if not oldest.finished or oldest.waiting:
                    kept[oldest.name] = oldest
                else:
                    fingerprints.append(oldest.fingerprint)
            recent[file.name] = file
            if file.finished:
                finished.append(file.name)
        return replace(
            self,
            named=(*kept.values(), *recent.values()),
            fingerprints=tuple(fingerprints[-MAX_FINGERPRINTS:]),
            swept=max((self.swept, *finished), key=place) if self.is_sweeping else self.swept,
            highest=max((self.highest, *finished), key=place),
        )

    def sweeping(self, until_ns: int) -> "FilePosition":
        """The position at the beginning of a sweep over all files that arrived by `until_ns`."""
        return replace(self, until_ns=until_ns, swept="")

    def settled(self, listed: Digest) -> "FilePosition":
        """The position at the end of a sweep."""
        return replace(self, settled_ns=max(self.until_ns, self.settled_ns), swept="", listed=listed)

    def to_json(self) -> str:
        """The position as a small JSON text."""
        packed = b64encode(b"".join(bytes.fromhex(f) for f in self.fingerprints)).decode()
        document = {
            "source": "files",
            "version": VERSION,
            "settled": self.settled_ns,
            "until": self.until_ns,
            "swept": self.swept,
            "highest": self.highest,
            "files": [f.to_list() for f in self.named],
            "fingerprints": packed,
            **self.decided.as_members(),
            "listed": [self.listed.count, f"{self.listed.total:x}"],
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "FilePosition":
        """Parse a position from JSON text.

        Raises:
            PositionLostError: not a position of files, or of an unknown version.
        """

        def read(document: dict[str, Any]) -> "FilePosition":
            packed = b64decode(document["fingerprints"]).hex()
            step = 2 * FINGERPRINT_BYTES
            return cls(
                settled_ns=document["settled"],
                until_ns=document["until"],
                swept=document["swept"],
                highest=document["highest"],
                named=tuple(ReadFile(*members) for members in document["files"]),
                fingerprints=tuple(packed[i : i + step] for i in range(0, len(packed), step)),
                listed=Digest(document["listed"][0], int(document["listed"][1], 16)),
                decided=Decided.of_members(document),
            )

        return parse_position(text, "files", "files", VERSION, read)


def digest(files: Iterable[tuple[str, int]]) -> Digest:
    """The digest of files by name and size."""
    count, total = 0, 0
    for name, size in files:
        count += 1
        total += hash_text(f"{size}:{name}")
    return Digest(count, total % 2**64)


def hash_text(text: str) -> int:
    """64-bit hash of a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
