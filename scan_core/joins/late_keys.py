"""LateKeys: a place in a plan for keys that are filled in while the scan runs, and key tables as bytes."""

import base64
import threading
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from scan_core.io.private_files import private_folder
from scan_core.joins.key_set import KeySet
from scan_core.model.errors import OptionError


@dataclass(eq=False)
class LateKeys:
    """Keys to come.

    Args:
        folder: where versions are left for other processes of this user, who alone may write to it; None for this process.
    """

    folder: Path | None = None
    name: str = field(default_factory=lambda: uuid4().hex)
    _given: list[Any] = field(default_factory=list, repr=False)
    _bound: dict[tuple[Any, ...], tuple[int, KeySet]] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def version(self) -> int:
        """How many times it was filled; 0 before the first."""
        if self.folder is None:
            return len(self._given)
        if not self.folder.exists():
            return 0
        with private_folder(self.folder) as folder:
            names = [name for name in folder.names() if fnmatch(name, f"{self.name}-*.arrow")]
        return max((int(name.removesuffix(".arrow").rpartition("-")[2]) for name in names), default=0)

    def fill(self, keys: Any) -> None:
        """Say which keys there are: all rows with other keys may be left out from now on.

        Args:
            keys: as `Scan.semi_join` takes them, a scan apart.

        Raises:
            OptionError: no keys, or a folder that others may write to.
        """
        from scan_core.joins.given_keys import key_table

        table = keys if hasattr(keys, "column_names") else None
        names = list(table.column_names) if table is not None else ["keys"]
        if table is None and isinstance(keys, list) and keys and isinstance(keys[0], tuple):
            names = [f"key {i}" for i in range(len(keys[0]))]
        found = key_table(keys, names)
        with self._lock:
            if self.folder is None:
                self._given.append(found)
                return
            with private_folder(self.folder) as folder, folder.replace(self._file(self.version + 1)) as file:
                file.write(to_bytes(found))

    def newest(self, fields: tuple[Any, ...]) -> KeySet | None:
        """The newest version as keys of these columns; None before the first.

        Raises:
            OptionError: keys of another kind, or of another number of columns.
        """
        from scan_core.joins.given_keys import distinct_keys

        version = self.version
        if version == 0:
            return None
        known = self._bound.get(fields)
        if known is not None and known[0] == version:
            return known[1]
        table = self._given[version - 1] if self.folder is None else self._read(self.folder, version)
        if table.num_columns != len(fields):
            raise OptionError(f"late keys have {table.num_columns} columns, {len(fields)} are to be matched")
        keys = KeySet(fields, distinct_keys(table, fields, [f.name for f in fields]))
        self._bound[fields] = version, keys
        return keys

    def _file(self, version: int) -> str:
        return f"{self.name}-{version:06}.arrow"

    def _read(self, folder: Path, version: int) -> pa.Table:

        with private_folder(folder) as held, held.read(self._file(version)) as file:
            return from_bytes(file.read())

    def __getstate__(self) -> dict[str, Any]:
        """In another process only the folder tells of later versions; without one, what is known now goes along."""
        return {"folder": self.folder, "name": self.name, "given": self._given[-1:]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same place, in another process."""
        self.__init__(state["folder"], state["name"], state["given"])  # type: ignore[misc]


_CODEC = "zstd"


def to_bytes(table: pa.Table) -> bytes:
    """An Arrow stream, compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=_CODEC)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> pa.Table:
    """The inverse.

    Raises:
        OptionError: not such bytes.
    """
    try:
        return pa.ipc.open_stream(data).read_all()
    except (pa.ArrowException, OSError) as error:
        raise OptionError(f"keys of a runtime filter cannot be read: {error}") from error


def to_text(table: pa.Table) -> str:
    """The bytes in characters that every option can hold."""
    return base64.b85encode(to_bytes(table)).decode("ascii")


def from_text(text: str) -> pa.Table:
    """The inverse.

    Raises:
        OptionError: not such text.
    """
    try:
        return from_bytes(base64.b85decode(text))
    except ValueError as error:
        raise OptionError(f"keys of a runtime filter cannot be read: {error}") from error
