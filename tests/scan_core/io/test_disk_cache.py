"""Entries on disk that several processes share: whole or not there, and within their limit."""

import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from nevermore.scan_core.io import object_store as module
from nevermore.scan_core.io.object_store import DiskCache
from nevermore.scan_core.io.private_files import PrivateFolder, private_folder

LIMIT = 100_000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PrivateFolder]:
    with private_folder(tmp_path / "objects") as found:
        yield found


def put(cache: DiskCache, name: str, data: bytes) -> None:
    cache.put(name, memoryview(data), is_first=False)


def test_an_entry_is_kept_at_once_or_from_the_second_time_on(folder: PrivateFolder) -> None:
    cache = DiskCache(folder, LIMIT)
    put(cache, "a", b"end")
    cache.put("b", memoryview(b"range"), is_first=True)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"end", None, None)
    cache.put("b", memoryview(b"range"), is_first=True)
    assert DiskCache(folder, LIMIT).get("b") == b"range"
    assert cache.clear() >= 2
    assert cache.get("a") is None


@pytest.mark.parametrize("place", [0, 7, 8, 20, -1])
def test_a_damaged_or_truncated_entry_is_not_there(folder: PrivateFolder, place: int) -> None:
    cache = DiskCache(folder, LIMIT)
    put(cache, "a", bytes(range(100)))
    path = folder.path / "a"
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)
    assert cache.get("a") is None
    put(cache, "a", bytes(range(100)))
    path.write_bytes(path.read_bytes()[: place + 1])
    assert cache.get("a") is None


def test_beyond_the_limit_what_was_not_used_for_longest_goes(folder: PrivateFolder) -> None:
    cache = DiskCache(folder, LIMIT)
    now = time.time()
    for number in range(12):
        put(cache, f"{number:02}", bytes([number]) * 8_000)
        os.utime(folder.path / f"{number:02}", (now - 1000 + number, now - 1000 + number))
    assert cache.get("00") is not None
    for number in range(12, 18):
        put(cache, f"{number:02}", bytes([number]) * 8_000)
    left = {p.name: p.stat().st_size for p in folder.path.iterdir()}
    assert sum(left.values()) <= LIMIT
    assert "00" in left, "it was used"
    assert "01" not in left
    assert "17" in left


def test_what_was_not_used_for_a_week_goes(folder: PrivateFolder) -> None:
    put(DiskCache(folder, LIMIT), "old", b"x" * 100)
    week_ago = time.time() - 8 * 24 * 3600
    os.utime(folder.path / "old", (week_ago, week_ago))
    put(DiskCache(folder, LIMIT), "new", b"x" * 100)
    assert {"old", "new"} & {p.name for p in folder.path.iterdir()} == {"new"}


def test_a_disk_that_refuses_is_reported_once(
    folder: PrivateFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(folder, LIMIT)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PrivateFolder, "replace", full)
    with caplog.at_level(logging.WARNING):
        put(cache, "a", b"x")
        put(cache, "b", b"x")
    refusals = [m for m in (record.getMessage() for record in caplog.records) if "No space left" in m]
    assert len(refusals) == 1
    assert cache.get("a") is None


def _work(path: str, seed: int) -> int:
    with private_folder(Path(path)) as folder:
        cache = DiskCache(folder, LIMIT)
        wrong = 0
        for step in range(300):
            number = (step * 7 + seed) % 40
            expected = bytes([number]) * (1_000 + number)
            found = cache.get(str(number))
            wrong += found is not None and found != expected
            put(cache, str(number), expected)
        return wrong


def test_processes_that_write_and_sweep_at_once_find_whole_entries(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3, get_context("spawn")) as pool:
        assert list(pool.map(_work, [str(tmp_path / "objects")] * 3, range(3))) == [0, 0, 0]
    assert sum(p.stat().st_size for p in (tmp_path / "objects").iterdir()) <= 1.2 * LIMIT


def test_nothing_is_kept_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert module.disk_cache(0) is None
