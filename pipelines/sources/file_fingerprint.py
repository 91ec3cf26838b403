"""By what files are known again when they were renamed, re-delivered or have grown: their bytes at both ends."""

from hashlib import blake2b
from typing import Any

from pipelines.sources.file_listing import ListedFile, open_file
from pipelines.sources.file_position import FINGERPRINT_BYTES, ReadFile

FINGERPRINTED_BYTES = 4096
"""At both ends: the beginnings of files are alike where events carry their schema."""
_MOVING_END = b"], \t\r\n"
"""What stands behind the last event of an array and moves when the array grows."""


def fingerprint_of(file: ListedFile, filesystem: Any = None) -> ReadFile:
    """The file as known by its bytes, nothing of it read yet."""
    with open_file(file, filesystem) as stream:
        tail = _read(stream, file.size - FINGERPRINTED_BYTES, file.size)
        kept = file.size - len(tail) + len(tail.rstrip(_MOVING_END))
        fingerprint = _fingerprint(stream, kept)
    return ReadFile(
        name=file.name,
        size=file.size,
        read_bytes=0,
        lines=0,
        kept_bytes=kept,
        fingerprint=fingerprint,
        finished=False,
    )


def continues(file: ListedFile, known: ReadFile, filesystem: Any = None) -> bool:
    """Whether the file begins with what `known` was: it is the same one, grown."""
    if file.size < known.kept_bytes:
        return False
    with open_file(file, filesystem) as stream:
        return _fingerprint(stream, known.kept_bytes) == known.fingerprint


def _fingerprint(stream: Any, size: int) -> str:
    parts = [b"%d:" % size, _read(stream, 0, min(FINGERPRINTED_BYTES, size))]
    if size > FINGERPRINTED_BYTES:
        parts.append(_read(stream, size - FINGERPRINTED_BYTES, size))
    return blake2b(b"".join(parts), digest_size=FINGERPRINT_BYTES).hexdigest()


def _read(stream: Any, start: int, end: int) -> bytes:
    stream.seek(max(start, 0))
    data: bytes = stream.read(end - max(start, 0))
    return data
