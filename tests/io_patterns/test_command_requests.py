"""How many requests commands send to an object store: none of them may send more, and files that never change are asked for once."""

from collections import Counter

import pytest

from benchmarks.store_requests import requests_of_commands

MOST = {"ingest": 40, "scan": 12, "check": 120, "idle": 7}
"""Requests of each command, as measured; an ingest commits a change log and a mirror, and looks again at files that have
just arrived (31 later). A check reads a little for the expectations of the schema (15). Its threads may ask at the same time."""


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    return requests_of_commands(tmp_path_factory.mktemp("project"))


@pytest.mark.each(2)
@pytest.mark.parametrize("command", MOST)
def test_a_command_sends_no_more_requests_than_it_did(requests: dict[str, list[tuple[str, str]]], command: str) -> None:
    assert len(requests[command]) <= MOST[command], Counter(requests[command]).most_common(20)


def test_a_small_object_is_written_by_one_request(requests: dict[str, list[tuple[str, str]]]) -> None:
    kinds = Counter(kind for kind, _ in requests["ingest"])
    assert (kinds["PUT"], kinds["UPLOAD"]) == (10, 0)


def test_a_scan_reads_each_file_once(requests: dict[str, list[tuple[str, str]]]) -> None:
    assert {n for (kind, name), n in Counter(requests["scan"]).items() if not name.endswith(".json")} == {1}


def test_a_check_asks_for_the_size_of_no_file_twice(requests: dict[str, list[tuple[str, str]]]) -> None:
    heads = Counter(name for kind, name in requests["check"] if kind == "HEAD" and name.endswith((".parquet", ".avro")))
    assert max(heads.values()) <= 2
