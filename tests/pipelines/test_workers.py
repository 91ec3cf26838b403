"""Tasks in the threads of a run."""

import threading
from functools import partial

import pytest

from nevermore.pipelines.workers import submitted, together, workers


def failing(number: int) -> int:
    if number in {2, 5}:
        raise ValueError(f"task {number}")
    return number


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_results_together_are_in_order(threads: int) -> None:
    with workers(threads):
        assert together([partial(pow, n, 2) for n in range(50)]) == [n * n for n in range(50)]
        assert together([]) == []


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_the_first_failure_in_order_is_raised(threads: int) -> None:
    with workers(threads), pytest.raises(ValueError, match="task 2"):
        together([partial(failing, n) for n in range(8)])


def test_a_caller_does_what_busy_threads_do_not_begin() -> None:
    release = threading.Event()
    with workers(2):
        busy = [submitted(release.wait) for _ in range(2)]
        try:
            assert together([threading.get_ident] * 5) == [threading.get_ident()] * 5
        finally:
            release.set()
        assert all(task.result() for task in busy)
