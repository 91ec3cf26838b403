"""Bits of dead rows that a process keeps: bounded also where no row is dead."""

from typing import Any

import numpy as np
import pytest

from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.spark import native
from nevermore.scan_core.spark.native import DeadRows, pack


def test_files_whose_deletes_meet_no_row_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: BoundedCache[Any, DeadRows] = BoundedCache(lambda rows: rows.num_bytes)
    monkeypatch.setattr(native, "_CACHE", kept)
    monkeypatch.setattr(native, "CACHE_BYTES", 10_000)
    monkeypatch.setattr(native, "_key", lambda task, _: task)
    nothing: Any = None
    for task in range(100):
        native.keep(task, nothing, pack(np.zeros(10, np.bool_)))  # type: ignore[arg-type] # only its key matters
    assert 0 < len(kept) < 100
