"""Files of object stores by their address, through the FileIO and the properties of the catalog."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.fs

from pipelines.errors import SourceError
from scan_core.catalog import filesystem
from scan_core.errors import MissingFileError
from scan_core.location import parse_location


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a listing; `path` is its whole address."""

    path: str
    size: int
    mtime_ns: int | None
    is_file: bool


@dataclass(frozen=True)
class RemoteFiles:
    """File systems by scheme and authority.

    Attributes:
        properties: of FileIO (`s3.endpoint`, `s3.access-key-id` ...), as the catalog has them.
    """

    properties: Mapping[str, str] = field(default_factory=dict)

    def get_file_info(self, selector: Any) -> list[RemoteFile]:
        """The files in a folder."""
        folder, inner = self._at(selector.base_dir)
        prefix = selector.base_dir[: len(selector.base_dir) - len(inner)]
        found = folder.get_file_info(pa.fs.FileSelector(inner, recursive=selector.recursive))
        return [RemoteFile(prefix + i.path.removeprefix("/"), i.size, i.mtime_ns, i.is_file) for i in found]

    def is_folder(self, path: str) -> bool:
        """Whether an address is that of a folder."""
        folder, inner = self._at(path)
        return bool(folder.get_file_info(inner).type == pa.fs.FileType.Directory)

    def open_input_file(self, path: str) -> Any:
        """A file for reading."""
        folder, inner = self._at(path)
        return folder.open_input_file(inner)

    def _at(self, path: str) -> tuple[Any, str]:
        try:
            return filesystem(parse_location(path), self.properties)
        except MissingFileError as error:
            raise SourceError(f"cannot reach {path}: {error}") from error


@cache
def environment_files() -> RemoteFiles:
    """Files that are reached with what the environment says."""
    return RemoteFiles()
