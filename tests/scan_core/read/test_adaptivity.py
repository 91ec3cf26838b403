"""What a runtime filter is worth: expected from statistics, measured while it runs, never changing exact results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.prune.verdicts import Level
from nevermore.scan_core.read import restriction
from nevermore.scan_core.read.restriction import Worth
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


@pytest.fixture
def scattered(tmp_path: Path) -> scan_core.Scan:
    """Even numbers in random order: bounds, pages and Bloom filters of sets of even numbers exclude nothing."""
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "v", "long")])
    numbers = np.random.default_rng(3)
    for _ in range(4):
        part = numbers.permutation(np.arange(0, 8_000, 2)).tolist()
        options: dict[str, Any] = {"bloom_filter_options": {"id": {"ndv": 8_000, "fpp": 0.01}}, "use_dictionary": False}
        table.commit(table.data({"id": part, "v": part}, row_group_size=1_000, max_rows_per_page=100, **options))
    return scan_core.open_table(table.metadata_path).scan().with_options(ScanOptions(parallelism=1))


def test_level_that_excludes_nothing_is_switched_off_and_counted(
    scattered: scan_core.Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restriction, "TRIED_ROWS", 2_000)
    keys = list(range(0, 8_000, 6))
    expected = sum(k % 6 == 0 for k in range(0, 8_000, 2)) * 4
    joined = scattered.semi_join("id", keys)
    assert joined.count() == expected
    assert joined.metrics.runtime_filters_switched_off >= 2


def test_filters_that_go_on_whatever_they_exclude_are_not_reported_as_switched_off(
    scattered: scan_core.Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restriction, "TRIED_ROWS", 2_000)
    keys = list(range(0, 8_000, 2))
    exact = scattered.semi_join("id", keys)
    assert exact.count() == 16_000
    assert "used for" in exact.explain()
    assert "for rows: it excluded too little" not in exact.explain(), "rows of a semi join are always looked up"


def test_rows_are_left_to_the_next_join_where_nearly_all_have_a_key(scattered: scan_core.Scan) -> None:
    keys = [k for k in range(8_000) if k % 50]
    scan = scattered.prefilter("id", keys)
    assert scan.count() == 16_000
    text = scan.explain()
    assert (
        "not used for rows: 98 % of the rows are expected to have a key, and the join is repeated on the result" in text
    )
    assert scattered.semi_join("id", keys).count() < 16_000, "a semi join stays exact"


def test_tally_goes_off_and_tries_again() -> None:
    worth = Worth()
    assert worth.is_on(Level.PAGES)
    assert worth.record(Level.PAGES, restriction.TRIED_ROWS, 0)
    assert not worth.is_on(Level.PAGES)
    assert sum(worth.is_on(Level.PAGES) for _ in range(64)) == 4
    assert not worth.record(Level.PAGES, restriction.TRIED_ROWS, restriction.TRIED_ROWS)
    assert worth.is_on(Level.PAGES)
