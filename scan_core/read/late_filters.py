"""Measurements of the filters of a table, kept for later processes.

Columns whose filters removed rows only after their values were read: for them a bitmap index would have paid. And what each
condition of a filter cost and let through, which orders them. Numbers of rows, times, and digests of filters are kept, and no
values. What a killed process had not stored yet is lost, and of two processes that store at the same time one wins: all of
it only guides choices.
"""

import atexit
import hashlib
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any

from nevermore.scan_core.io.private_files import PrivateFolder, UnsafeFileError, cache_folder, held_folder

MIN_REMOVED = 10_000
"""Rows removed late in a table that are worth a file."""
MIN_MEASURED = 100_000
"""Rows that the steps of a filter have judged, all together, before what they cost is kept."""
_SECONDS_BETWEEN = 5.0
_FOLDER = "filters"
_MAX_TABLES = 1_000
_MAX_COLUMNS = 256
_MAX_ORDERS, _MAX_STEPS = 24, 32
"""Filters of a table whose order is kept, the latest ones, and conditions of each."""
_MAX_BYTES = 128 * 1024
MAX_FILTER_LENGTH = 10_000
"""Characters of a filter whose order is kept: longer ones are lists of values that hardly come a second time."""

Measurements = Mapping[object, tuple[float, float, float]]
"""Of each step of a filter: seconds, rows in, rows out. Keys are tuples of texts, numbers and such tuples."""


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
        self._orders: dict[str, dict[str, Measurements]] = {}
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

    def add_order(self, table: str, text: str, measured: Measurements) -> None:
        if sum(rows for _, rows, _ in measured.values()) < MIN_MEASURED:
            return
        with self._lock:
            orders = self._orders.setdefault(table, {})
            orders.pop(text, None)
            orders[text] = measured
            if len(orders) > _MAX_ORDERS:
                del orders[next(iter(orders))]
            due = time.monotonic() - self._stored_at >= _SECONDS_BETWEEN
        if due:
            self.store()

    def store(self) -> None:
        with self._lock:
            worth = [t for t, c in self._counts.items() if sum(removed for _, removed in c.values()) >= MIN_REMOVED]
            waiting = {table: self._counts.pop(table) for table in worth}
            orders, self._orders = self._orders, {}
            self._stored_at = time.monotonic()
        folder = _folder() if waiting or orders else None
        if folder is None:
            return
        for table in waiting.keys() | orders.keys():
            try:
                _merge(folder, table, waiting.get(table, {}), orders.get(table, {}))
            except (OSError, UnsafeFileError):
                return  # a scan does not fail for want of a note
        folder.keep_latest(_MAX_TABLES)

    def forget(self) -> None:
        """Forget the counts in a forked process; its parent stores them."""
        self._lock = Lock()
        self._counts = {}
        self._orders = {}


_RECORDER = _Recorder()
os.register_at_fork(after_in_child=_RECORDER.forget)
atexit.register(_RECORDER.store)


def record_late_filter(table: str, field_id: int, rows: int, removed: int) -> None:
    """Count rows of a table that a filter on one column judged, and removed, by value."""
    _RECORDER.add(table, field_id, rows, removed)


def record_order(table: str, text: str, measured: Measurements) -> None:
    """Replace the measurements of the filter `text`: what its steps cost and let through."""
    _RECORDER.add_order(table, text, measured)


def stored_order(table: str, text: str) -> Measurements:
    """The measurements of other processes for a filter; empty without any."""
    folder = _folder()
    return {} if folder is None else _measurements(_read(folder, _name(table), table).orders.get(_digest(text)))


def late_filters(table: str) -> list[LateFilter]:
    """The columns of a table, by its location, whose filters removed many rows by value; those that removed most first."""
    _RECORDER.store()
    folder = _folder()
    counts = {} if folder is None else _read(folder, _name(table), table).columns
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


@dataclass(frozen=True, slots=True)
class _Learned:
    columns: dict[int, tuple[int, int]] = field(default_factory=dict)
    orders: dict[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=64)
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _merge(
    folder: PrivateFolder, table: str, counts: dict[int, list[int]], measured: Mapping[str, Measurements]
) -> None:
    learned = _read(folder, _name(table), table)
    known, orders = learned.columns, learned.orders
    for field_id, (rows, removed) in counts.items():
        before = known.get(field_id, (0, 0))
        known[field_id] = before[0] + rows, before[1] + removed
    kept = sorted(known.items(), key=lambda item: -item[1][1])[:_MAX_COLUMNS]
    for text, steps in measured.items():
        orders.pop(_digest(text), None)
        orders[_digest(text)] = [[key, *found] for key, found in list(steps.items())[:_MAX_STEPS]]
    latest = dict(list(orders.items())[-_MAX_ORDERS:])
    with folder.replace(_name(table)) as file:
        content = {"table": table, "columns": {str(i): list(c) for i, c in kept}, "orders": latest}
        file.write(json.dumps(content, default=str).encode())


def _measurements(stored: Any) -> Measurements:
    try:
        found = {
            _key(key): (float(seconds), float(rows_in), float(rows_out))
            for key, seconds, rows_in, rows_out in stored or ()
        }
    except (ValueError, TypeError, OverflowError, RecursionError):
        return {}
    is_plausible = all(
        0 <= out <= rows_in < math.inf and 0 <= s < math.inf and rows_in for s, rows_in, out in found.values()
    )
    return found if is_plausible else {}


def _key(stored: Any) -> Any:
    return tuple(map(_key, stored)) if isinstance(stored, list) else stored


def _read(folder: PrivateFolder, name: str, table: str) -> _Learned:
    """Counts by field id, and orders; none where the file is missing or not as we write it."""
    try:
        with folder.read(name) as file:
            content = json.loads(file.read(_MAX_BYTES))
        if content["table"] != table:
            return _Learned()
        columns = {int(i): (int(rows), int(removed)) for i, (rows, removed) in content["columns"].items()}
        return _Learned(columns, dict(content.get("orders", {})))
    except (OSError, UnsafeFileError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return _Learned()
