"""Checks of rows in a database file find what checks in memory find, whatever happened to the keys."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest

from nevermore.checks import comparison
from nevermore.checks.equality import ROW_CHECKS, row_results
from nevermore.checks.reference.sql_columns import limited_memory, open_connection
from nevermore.checks.subject import Subject
from nevermore.pipelines.errors import ConfigError
from tests.checks.mirror_tables import COLUMNS, KEY, MirrorTables

Event = tuple[str, tuple[int | None, str] | None, tuple[int | None, str, int] | None, list[str]]


def random_events(choose: random.Random, count: int) -> list[Event]:
    """Changes of few keys: rows that take another key, also with values that are not sent, truncates, NULL in keys."""
    events: list[Event] = []
    for _ in range(count):
        old = (choose.choice([None, *range(12)]), choose.choice(["eu", "us"]))
        new = old if choose.random() < 0.7 else (choose.randrange(12), choose.choice(["eu", "us"]))
        what = choose.random()
        if what < 0.02:
            events.append(("t", None, None, []))
        elif what < 0.25:
            events.append(("d", old, None, []))
        else:
            unchanged = ["qty"] if choose.random() < 0.3 else []
            row = (*new, None if unchanged else choose.randrange(100))
            events.append(("u" if what < 0.7 else "c", old, row, unchanged))  # type: ignore[arg-type]
    return events


def logged(tables: MirrorTables, events: Sequence[Event]) -> None:
    """Append changes to the log of a mirror."""
    names = [c.name for c in COLUMNS]
    first, tables.ordinal = tables.ordinal + 1, tables.ordinal + len(events)
    changes: dict[str, list[Any]] = {
        "ordinal": list(range(first, tables.ordinal + 1)),
        "op": [op for op, *_ in events],
        "key": [None if key is None else dict(zip(KEY, key, strict=True)) for _, key, _, _ in events],
        "after": [None if row is None else dict(zip(names, row, strict=True)) for _, _, row, _ in events],
        "unchanged": [unchanged for *_, unchanged in events],
    }
    tables.log.commit(tables.log.data(changes))


def outcome(subject: Subject) -> dict[str, tuple[bool, dict[str, int], set[str]]]:
    names = [name for name in ROW_CHECKS if subject.key or name in {"mirror_equals_reference", "removals_find_rows"}]
    return {
        name: (result.passed, dict(result.compared), set(result.details))
        for name, result in row_results(subject, names).items()
    }


@pytest.mark.each(8)
@pytest.mark.parametrize("key", [KEY, ()], ids=["key", "whole rows"])
@pytest.mark.parametrize("seed", range(12))
def test_results_in_a_file_and_in_little_memory_are_those_in_memory(
    tmp_path: Path, seed: int, key: tuple[str, ...]
) -> None:
    choose = random.Random(seed)
    tables = MirrorTables(tmp_path)
    tables.apply(
        [(n, "eu", n) for n in range(6)]
    )  # the mirror knows little of what the log says: both must say what is wrong
    for _ in range(3):
        logged(tables, random_events(choose, 40))
    subject = Subject(
        str(tables.mirror.metadata_path), key, str(tables.log.metadata_path), up_to_ordinal=tables.ordinal
    )
    whole = outcome(subject)
    assert not whole["mirror_equals_reference"][0]


def test_the_memory_of_the_database_is_limited_and_given_back() -> None:
    def limits() -> list[Any]:
        with open_connection() as connection:
            return connection.execute("SELECT current_setting('memory_limit'), current_setting('threads')").fetchall()

    before = limits()
    with limited_memory(128 * 1024**2):
        assert limits() == [("128.0 MiB", min(2, before[0][1]))]
    assert limits() == before


def test_limits_of_memory_hold_side_by_side_and_are_given_back() -> None:
    def setting() -> tuple[str, int]:
        with open_connection() as connection:
            found = connection.execute("SELECT current_setting('memory_limit'), current_setting('threads')").fetchall()
        return found[0]

    before = setting()
    largest: list[str] = []

    def work(number: int) -> int:
        with limited_memory((number + 1) * 64 * 1024**2), open_connection() as connection:
            largest.append(setting()[0])
            return int(connection.execute("SELECT sum(i) FROM range(200_000) t(i)").fetchall()[0][0])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, list(range(8)) * 8)) == {199_999 * 100_000}
    assert before[0] not in largest
    assert setting() == before


def test_a_comparison_that_needs_more_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = MirrorTables(tmp_path)
    tables.apply([(1, "eu", 1)])

    def too_much(*_: Any, **__: Any) -> None:
        raise duckdb.OutOfMemoryException("failed to allocate")

    monkeypatch.setattr(comparison, "surplus_rows", too_much)
    with pytest.raises(ConfigError, match=r"memory_bytes: \d+\}; raise it"):
        row_results(tables.subject(), ["mirror_equals_reference"])
