"""Tasks in the threads of a run."""

from functools import partial

import pytest

from nevermore.pipelines.workers import ahead, workers


def failing(number: int) -> int:
    if number in {2, 5}:
        raise ValueError(f"task {number}")
    return number


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_results_are_in_order(threads: int) -> None:
    with workers(threads):
        assert list(ahead(partial(pow, n, 2) for n in range(50))) == [n * n for n in range(50)]
        assert list(ahead([])) == []


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_the_first_failure_in_order_is_raised(threads: int) -> None:
    with workers(threads), pytest.raises(ValueError, match="task 2"):
        list(ahead(partial(failing, n) for n in range(8)))
