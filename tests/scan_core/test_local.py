import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.run import run_splits


def numbered(split: Any, metrics: ScanMetrics) -> Iterator[tuple[int, int]]:
    """Stands for reading: split n yields n % 4 results and counts them; even ones are slow."""
    metrics.splits_read += 1
    for part in range(split % 4):
        if split % 2 == 0:
            time.sleep(0.0005)
        metrics.rows_out += 1
        yield split, part


def scan_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("scan-")]


@pytest.mark.parametrize("parallelism", [1, 2, 7, 64])
def test_results_come_in_split_order_and_metrics_add_up(parallelism: int) -> None:
    metrics = ScanMetrics()
    results = list(run_splits(range(50), numbered, metrics, parallelism))
    assert results == [(split, part) for split in range(50) for part in range(split % 4)]
    assert metrics == ScanMetrics(splits_read=50, rows_out=len(results))
    assert scan_threads() == []


@pytest.mark.parametrize("keep_order", [True, False])
@pytest.mark.parametrize("parallelism", [1, 4])
def test_closing_early_counts_what_was_read(parallelism: int, *, keep_order: bool) -> None:
    def reading(split: Any, metrics: ScanMetrics) -> Iterator[int]:
        try:
            while True:
                metrics.rows_out += 1
                yield split
        finally:
            metrics.bytes_read += 7
            metrics.splits_read += 1

    metrics = ScanMetrics()
    results = run_splits(range(8), reading, metrics, parallelism, keep_order=keep_order)
    next(results)
    results.close()
    assert metrics.splits_read >= 1
    assert metrics.bytes_read == 7 * metrics.splits_read
    assert metrics.rows_out >= metrics.splits_read


def test_no_splits_give_no_results() -> None:
    assert list(run_splits([], numbered, ScanMetrics(), 4)) == []


@pytest.mark.parametrize("parallelism", [1, 4])
def test_error_of_a_split_is_raised_in_its_turn(parallelism: int) -> None:
    def failing(split: Any, metrics: ScanMetrics) -> Iterator[int]:
        if split == 3:
            raise ValueError("split 3 is broken")
        yield split

    results = run_splits(range(10), failing, ScanMetrics(), parallelism)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="split 3"):
        next(results)
    assert scan_threads() == []


def test_closing_early_stops_all_threads() -> None:
    def endless(split: Any, metrics: ScanMetrics) -> Iterator[int]:
        while True:
            yield split

    results = run_splits(range(8), endless, ScanMetrics(), 4)
    assert [next(results) for _ in range(100)] == [0] * 100
    assert len(scan_threads()) == 4
    results.close()
    assert scan_threads() == []


def test_work_ahead_of_the_consumer_is_bounded() -> None:
    begun = []

    def reading(split: Any, metrics: ScanMetrics) -> Iterator[int]:
        begun.append(split)
        yield split

    results = run_splits(range(1000), reading, ScanMetrics(), 2)
    next(results)
    time.sleep(0.05)
    assert len(begun) <= 5
    results.close()


def test_reader_is_closed_when_its_results_are_not_wanted() -> None:
    closed = threading.Event()

    def reading(split: Any, metrics: ScanMetrics) -> Iterator[int]:
        try:
            while True:
                yield split
        finally:
            closed.set()

    results = run_splits(range(2), reading, ScanMetrics(), 2)
    next(results)
    results.close()
    assert closed.is_set()


def unordered(splits: Any, read: Any, metrics: ScanMetrics, parallelism: int) -> Any:
    return run_splits(splits, read, metrics, parallelism, keep_order=False)


@pytest.mark.parametrize("parallelism", [1, 2, 7, 64])
def test_without_order_the_same_results_come_and_metrics_add_up(parallelism: int) -> None:
    metrics = ScanMetrics()
    results = list(unordered(range(50), numbered, metrics, parallelism))
    assert sorted(results) == [(split, part) for split in range(50) for part in range(split % 4)]
    assert metrics == ScanMetrics(splits_read=50, rows_out=len(results))
    assert scan_threads() == []


def test_without_order_a_slow_split_keeps_nobody_waiting() -> None:
    others_are_done = threading.Event()

    def reading(split: Any, metrics: ScanMetrics) -> Iterator[int]:
        if split == 0:
            assert others_are_done.wait(300)
        yield split

    results = unordered(range(20), reading, ScanMetrics(), 2)
    assert sorted(next(results) for _ in range(19)) == list(range(1, 20))
    others_are_done.set()
    assert list(results) == [0]
    assert scan_threads() == []


def test_without_order_an_error_is_raised_and_stops_all_threads() -> None:
    def failing(split: Any, metrics: ScanMetrics) -> Iterator[int]:
        if split == 3:
            raise ValueError("split 3 is broken")
        while True:
            yield split

    with pytest.raises(ValueError, match="split 3"):
        for _ in unordered(range(10), failing, ScanMetrics(), 4):
            pass
    assert scan_threads() == []


def test_without_order_results_that_nobody_takes_are_bounded_and_closing_stops_all_threads() -> None:
    made = []

    def endless(split: Any, metrics: ScanMetrics) -> Iterator[int]:
        while True:
            made.append(split)
            yield split

    results = unordered(range(8), endless, ScanMetrics(), 4)
    assert next(results) in range(4)
    time.sleep(0.05)
    assert len(made) <= 1 + 2 * 4 + 4
    results.close()
    assert scan_threads() == []


@pytest.mark.parametrize("keep_order", [True, False])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_splits_are_expected_before_they_are_read(parallelism: int, *, keep_order: bool) -> None:
    expected: list[int] = []
    begun: list[int] = []

    def reading(split: int, metrics: ScanMetrics) -> Iterator[int]:
        begun.append(split)
        yield split

    results = run_splits(range(12), reading, ScanMetrics(), parallelism, keep_order=keep_order, expect=expected.append)
    assert sorted(results) == list(range(12))
    assert sorted(expected) == list(range(parallelism, 12))
    assert len(begun) == 12
