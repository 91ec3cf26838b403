"""Measurements of the filters of a table, kept for later processes.

Columns whose filters removed rows only after their values were read: for them a bitmap index would have paid. Numbers of
rows are kept, and no values. What a killed process had not stored yet is lost, and of two processes that store at the same
time one wins: all of it only guides choices.
"""

import atexit
import hashlib
import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from threading import Lock

from nevermore.scan_core.io.private_files import PrivateFolder, UnsafeFileError, cache_folder, held_folder

MIN_REMOVED = 10_000
"""Rows removed late in a table that are worth a file."""
_SECONDS_BETWEEN = 5.0
_FOLDER = "filters"
_MAX_TABLES = 1_000
_MAX_COLUMNS = 256
_MAX_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class LateFilter:
    """What the filters on one column removed by value.

    Attributes:
        field_id: of the column or struct member.
        rows: rows that were judged by value.
        removed: rows among them that were removed.
    """

    field_id: int
    rows: int
    removed: int


class _Recorder:
    """Counts of this process that are not stored yet."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, dict[int, list[int]]] = {}
        self._stored_at = 0.0
        self._is_storing = False

    def add(self, table: str, field_id: int, rows: int, removed: int) -> None:
        with self._lock:
            counted = self._counts.setdefault(table, defaultdict(lambda: [0, 0]))[field_id]
            counted[0] += rows
            counted[1] += removed
            due = counted[1] >= MIN_REMOVED and time.monotonic() - self._stored_at >= _SECONDS_BETWEEN
        if due:
            self.store()

    def store(self) -> None:
        with self._lock:
            worth = [t for t, c in self._counts.items() if sum(removed for _, removed in c.values()) >= MIN_REMOVED]
            waiting = {table: self._counts.pop(table) for table in worth}
            self._stored_at = time.monotonic()
        folder = _folder() if waiting else None
        if folder is None:
            return
        for table, counts in waiting.items():
            try:
                _merge(folder, table, counts)
            except (OSError, UnsafeFileError):
                return  # a scan does not fail for want of a note
        folder.keep_latest(_MAX_TABLES)

    def forget(self) -> None:
        """Forget the counts in a forked process; its parent stores them."""
        self._lock = Lock()
        self._counts = {}


_RECORDER = _Recorder()
os.register_at_fork(after_in_child=_RECORDER.forget)
atexit.register(_RECORDER.store)


def record_late_filter(table: str, field_id: int, rows: int, removed: int) -> None:
    """Count rows of a table that a filter on one column judged, and removed, by value."""
    _RECORDER.add(table, field_id, rows, removed)


def late_filters(table: str) -> list[LateFilter]:
    """The columns of a table, by its location, whose filters removed many rows by value; those that removed most first."""
    _RECORDER.store()
    folder = _folder()
    counts = {} if folder is None else _read(folder, _name(table), table)
    found = [LateFilter(i, rows, removed) for i, (rows, removed) in counts.items() if removed >= MIN_REMOVED]
    return sorted(found, key=lambda f: (-f.removed, f.field_id))


def _folder() -> PrivateFolder | None:
    root = cache_folder()
    try:
        return None if root is None else held_folder(root).folder(_FOLDER)
    except (OSError, UnsafeFileError):
        return None


def _name(table: str) -> str:
    return f"{hashlib.sha256(table.rstrip('/').encode()).hexdigest()[:32]}.json"


def _merge(folder: PrivateFolder, table: str, counts: dict[int, list[int]]) -> None:
    known = _read(folder, _name(table), table)
    for field_id, (rows, removed) in counts.items():
        before = known.get(field_id, (0, 0))
        known[field_id] = before[0] + rows, before[1] + removed
    kept = sorted(known.items(), key=lambda item: -item[1][1])[:_MAX_COLUMNS]
    with folder.replace(_name(table)) as file:
        file.write(json.dumps({"table": table, "columns": {str(i): list(c) for i, c in kept}}).encode())


def _read(folder: PrivateFolder, name: str, table: str) -> dict[int, tuple[int, int]]:
    """Counts by field id; none where the file is missing or not as we write it."""
    try:
        with folder.read(name) as file:
            content = json.loads(file.read(_MAX_BYTES))
        if content["table"] != table:
            return {}
        return {int(i): (int(rows), int(removed)) for i, (rows, removed) in content["columns"].items()}
    except (OSError, UnsafeFileError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
