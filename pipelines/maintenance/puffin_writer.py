"""Writes one Puffin file, blob by blob, so that no more than one of them is in memory."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from pipelines.tables.storage import Storage
from scan_core.bitmap_index.puffin import MAGIC, PuffinBlob, footer_bytes
from scan_core.file_io import read_bytes
from scan_core.split import FileIOConfig

_COPIED_BYTES = 8 * 1024**2
"""Read at a time when a blob is copied."""


class PuffinWriter:
    """A new Puffin file; `close` makes it complete, leaving it otherwise removes it."""

    def __init__(self, path: str, storage: Storage) -> None:
        self.path = path
        self.blobs: list[PuffinBlob] = []
        self.footer_size_bytes = 0
        self._storage = storage
        self._sink = storage.open_output(path)
        self._sink.write(MAGIC)
        self._offset = len(MAGIC)
        self._is_complete = False

    @property
    def size_bytes(self) -> int:
        """Written so far."""
        return self._offset

    def write_blob(self, described: PuffinBlob, parts: Iterable[bytes]) -> None:
        """Append a blob; offset and length of `described` are replaced."""
        begin = self._offset
        for part in parts:
            self._sink.write(part)
            self._offset += len(part)
        self.blobs.append(replace(described, offset=begin, length=self._offset - begin))

    def copy_blob(self, blob: PuffinBlob, path: str, io: FileIOConfig) -> None:
        """Append a blob of another Puffin file as it is."""
        ends = range(blob.offset, blob.offset + blob.length, _COPIED_BYTES)
        stop = blob.offset + blob.length
        self.write_blob(blob, (read_bytes(path, io, at, min(_COPIED_BYTES, stop - at)) for at in ends))

    def close(self, properties: Mapping[str, str]) -> None:
        """Write the footer."""
        footer = footer_bytes(self.blobs, properties)
        self._sink.write(footer)
        self._sink.close()
        self.footer_size_bytes = len(footer)
        self._offset += len(footer)
        self._is_complete = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_complete:
            self._sink.close()
            self._storage.remove([self.path])
