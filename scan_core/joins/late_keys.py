"""Keys given by a caller, and LateKeys: a placeholder in a plan for keys that are provided while the scan runs."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from nevermore.scan_core.io.private_files import private_folder
from nevermore.scan_core.joins.column_keys import KeyField
from nevermore.scan_core.joins.key_set import KeySet, as_column_values
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.model.running import ProcessLock


def key_table(keys: Any, names: Sequence[str]) -> pa.Table:
    """Keys as a table with one column per name, in their own types.

    Args:
        keys: of one column a sequence of values or an Arrow array; of several a sequence of tuples; or anything that is
            or exports an Arrow table: its columns of these names, or all of them in order.
        names: of the key columns.

    Raises:
        OptionError: no keys, or not as many columns as names.
    """
    if isinstance(keys, str | bytes) or (not isinstance(keys, Iterable) and not hasattr(keys, "__arrow_c_stream__")):
        raise OptionError(f"keys must be a list, an Arrow array or table, or a scan, not {type(keys).__name__}")
    if isinstance(keys, pa.RecordBatch):
        keys = pa.Table.from_batches([keys])
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return _named([keys], names)
    if not isinstance(keys, pa.Table) and hasattr(keys, "__arrow_c_stream__"):
        keys = _exported(keys)
    if isinstance(keys, pa.Table):
        if set(names) <= set(keys.column_names):
            return _named([keys.column(name) for name in names], names)
        return _named(keys.columns, names)
    if len(names) == 1:
        return _named([_array(keys if hasattr(keys, "dtype") else list(keys), names[0])], names)
    rows = list(keys)
    if not rows:
        return _named([pa.nulls(0) for _ in names], names)
    if {len(row) if isinstance(row, tuple | list) else 1 for row in rows} != {len(names)}:
        raise OptionError(f"keys of the columns {', '.join(names)} must be tuples of {len(names)} values")
    return _named([_array(list(part), name) for part, name in zip(zip(*rows, strict=True), names, strict=True)], names)


def distinct_keys(keys: pa.Table, columns: Sequence[KeyField], names: Sequence[str]) -> tuple[pa.Array, ...]:
    """The distinct key rows as values of the columns; one array per column, none with NULL.

    Raises:
        OptionError: keys of another kind than their column.
    """
    arrays = [
        as_column_values(keys.column(index).combine_chunks(), name, column.type)
        for index, (name, column) in enumerate(zip(names, columns, strict=True))
    ]
    labels = [f"k{i}" for i in range(len(arrays))]
    rows = pa.table(dict(zip(labels, arrays, strict=True))).drop_null()
    if len(labels) == 1:
        return (_whole(rows.column(0).unique()),)
    return tuple(_whole(c) for c in rows.group_by(labels).aggregate([]).columns)


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _named(columns: Sequence[pa.Array | pa.ChunkedArray], names: Sequence[str]) -> pa.Table:
    if len(columns) != len(names):
        raise OptionError(f"keys have {len(columns)} columns, but {len(names)} are to be matched: {', '.join(names)}")
    return pa.table({f"k{i}": column for i, column in enumerate(columns)})


def _exported(keys: Any) -> pa.Table:
    if hasattr(keys, "__arrow_c_array__"):
        return pa.table({"k0": pa.array(keys)})
    return pa.RecordBatchReader.from_stream(keys).read_all()


def _array(values: Any, name: str) -> pa.Array:
    if isinstance(values, list) and any(isinstance(v, UUID) for v in values):
        values = [v.bytes if isinstance(v, UUID) else v for v in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise OptionError(f"keys of column {name!r}: {error}") from error


@dataclass(eq=False)
class LateKeys:
    """A placeholder for keys that are provided later.

    Args:
        folder: where versions are left for other processes of this user, who alone may write to it; None for this process.
    """

    folder: Path | None = None
    name: str = field(default_factory=lambda: uuid4().hex)
    _given: list[Any] = field(default_factory=list, repr=False)
    _bound: dict[tuple[Any, ...], tuple[int, KeySet]] = field(default_factory=dict, repr=False)
    _lock: ProcessLock = field(default_factory=ProcessLock, repr=False)

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
        """Provide the keys: from now on, rows with other keys may be skipped.

        Args:
            keys: as `Scan.semi_join` takes them, except a scan.

        Raises:
            OptionError: no keys, or a folder that others may write to.
        """
        table = keys if hasattr(keys, "column_names") else None
        names = list(table.column_names) if table is not None else ["keys"]
        if table is None and isinstance(keys, list) and keys and isinstance(keys[0], tuple):
            names = [f"key {i}" for i in range(len(keys[0]))]
        found = key_table(keys, names)
        with self._lock:
            if self.folder is None:
                self._given.append(found)
                return
            with (
                private_folder(self.folder) as folder,
                folder.locked(f"{self.name}.lock"),  # other processes may fill it, too
                folder.replace(self._file(self.version + 1)) as file,
            ):
                file.write(to_bytes(found))

    def newest(self, fields: tuple[Any, ...]) -> KeySet | None:
        """The newest version as keys of these columns; None before the first.

        Raises:
            OptionError: keys of another kind, or of another number of columns.
        """
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
        """Another process learns of later versions from the folder only; without one, the latest version travels along."""
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
