"""LateKeys: a place in a plan for keys that are not known yet, filled while the scan runs.

Each version is a right filter by itself and takes the place of the one before. Splits ask for the newest version when
they are begun, so that one which arrives late helps those that remain. In a folder that driver and workers share it
reaches other processes, and tasks of later stages.
"""

import os
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from scan_core.errors import OptionError
from scan_core.runtime_filter.key_set import KeySet


@dataclass(eq=False)
class LateKeys:
    """Keys to come.

    Args:
        folder: where versions are left for other processes; None for this one alone.
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
        return max((int(p.stem.rpartition("-")[2]) for p in self.folder.glob(f"{self.name}-*.arrow")), default=0)

    def fill(self, keys: Any) -> None:
        """Say which keys there are: all rows with other keys may be left out from now on.

        Args:
            keys: as `Scan.semi_join` takes them, a scan apart.

        Raises:
            OptionError: no keys.
        """
        from scan_core.runtime_filter.given_keys import key_table
        from scan_core.runtime_filter.key_payload import write_table

        table = keys if hasattr(keys, "column_names") else None
        names = list(table.column_names) if table is not None else ["keys"]
        if table is None and isinstance(keys, list) and keys and isinstance(keys[0], tuple):
            names = [f"key {i}" for i in range(len(keys[0]))]
        found = key_table(keys, names)
        with self._lock:
            if self.folder is None:
                self._given.append(found)
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            os.close(handle)
            write_table(found, Path(temporary))
            Path(temporary).replace(self.folder / f"{self.name}-{self.version + 1:06}.arrow")

    def newest(self, fields: tuple[Any, ...]) -> KeySet | None:
        """The newest version as keys of these columns; None before the first.

        Raises:
            OptionError: keys of another kind, or of another number of columns.
        """
        from scan_core.runtime_filter.given_keys import distinct_keys
        from scan_core.runtime_filter.key_payload import read_table

        version = self.version
        if version == 0:
            return None
        known = self._bound.get(fields)
        if known is not None and known[0] == version:
            return known[1]
        table = (
            self._given[version - 1]
            if self.folder is None
            else read_table(self.folder / f"{self.name}-{version:06}.arrow")
        )
        if table.num_columns != len(fields):
            raise OptionError(f"late keys have {table.num_columns} columns, {len(fields)} are to be matched")
        keys = KeySet(fields, distinct_keys(table, fields, [f.name for f in fields]))
        self._bound[fields] = version, keys
        return keys

    def __getstate__(self) -> dict[str, Any]:
        """In another process only the folder tells of later versions; without one, what is known now goes along."""
        return {"folder": self.folder, "name": self.name, "given": self._given[-1:]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same place, in another process."""
        self.__init__(state["folder"], state["name"], state["given"])  # type: ignore[misc]
