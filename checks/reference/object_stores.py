"""Files of an object store for DuckDB, read by PyArrow: nothing is installed at run time, and the engine's code is not used."""

from datetime import UTC, datetime
from typing import Any

import duckdb
from fsspec import AbstractFileSystem  # type: ignore[import-untyped]  # it has no types
from pyarrow import fs


class _Store(AbstractFileSystem):  # type: ignore[misc]
    """What DuckDB asks of a file system to read files by their exact names."""

    cachable = False

    def __init__(self, protocol: str, inner: fs.FileSystem) -> None:
        super().__init__()
        self.protocol = protocol
        self._inner = inner

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self.protocol}://")

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:  # noqa: ARG002 - files are only read
        return self._inner.open_input_file(self._key(path))

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path]  # names may have brackets and stars

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self._inner.get_file_info(self._key(path)).size, "type": "file"}

    def modified(self, path: str) -> datetime:
        return self._inner.get_file_info(self._key(path)).mtime or datetime.now(UTC)


def register(connection: duckdb.DuckDBPyConnection, protocol: str, filesystem: fs.FileSystem) -> None:
    """Let the database of a connection open `protocol://PATH` by a file system, from now on."""
    if not connection.filesystem_is_registered(protocol):
        connection.register_filesystem(_Store(protocol, filesystem))
