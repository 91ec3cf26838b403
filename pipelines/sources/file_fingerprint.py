"""By what files are known again when they were renamed, re-delivered or have grown: all of their bytes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pipelines.sources.byte_hash import ByteHash
from pipelines.sources.file_listing import ListedFile, open_file
from pipelines.sources.file_position import FINGERPRINT_BYTES, XXH64, ReadFile

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
