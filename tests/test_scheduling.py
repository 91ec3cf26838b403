"""Tests of one file share a process in a parallel run, so that a fixture of theirs is made once."""

import os

import pytest


@pytest.mark.each(4)
@pytest.mark.parametrize("number", range(4))
def test_a_file_stays_in_one_process(number: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        pytest.skip("one process runs all tests")
    seen = tmp_path_factory.getbasetemp().parent / "processes_of_this_file"
    with seen.open("a", encoding="utf-8") as file:
        file.write(f"{worker}\n")
    assert set(seen.read_text(encoding="utf-8").split()) == {worker}
