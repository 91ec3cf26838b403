from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.checks.configured import freshness, volume
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)


def test_freshness_measures_the_current_snapshot(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    location = str(table.metadata_path)
    assert not freshness(scan_core.open_table(location).metadata, 3600).passed
    table.commit(table.data({"id": [1]}), timestamp_ms=int(WRITTEN.timestamp() * 1000))
    metadata = scan_core.open_table(str(table.metadata_path)).metadata
    assert freshness(metadata, 3600, now=WRITTEN + timedelta(minutes=59)).passed
    late = freshness(metadata, 3600, now=WRITTEN + timedelta(minutes=61))
    assert "was written 2026-01-01T00:00:00+00:00, more than 1:00:00 ago" in late.details[0]
    assert late.compared == {"age in seconds": 3660}


@pytest.mark.parametrize(
    ("last", "passes"), [(10, True), (39, True), (41, False), (3, True), (2, False), (0, False)], ids=str
)
def test_volume_of_the_last_day_is_compared_with_the_days_before(tmp_path: Path, last: int, *, passes: bool) -> None:
    log = TableBuilder(tmp_path / "log", [Column(1, "op", "string"), Column(2, "source_ts", "timestamptz")])
    times = [WRITTEN + timedelta(days=day, minutes=minute) for day in range(6) for minute in range(10)]
    times += [WRITTEN + timedelta(days=6, minutes=minute) for minute in range(last)]
    loaded = [WRITTEN + timedelta(days=6)] * 1000  # rows of an initial load do not count
    rows = {"op": ["c"] * len(times) + ["r"] * len(loaded), "source_ts": times + loaded}
    log.commit(log.data(rows))
    result = volume(scan_core.open_table(log.metadata_path), 14, 4.0, now=WRITTEN + timedelta(days=7, hours=1))
    assert result.passed is passes
    assert result.compared == {"changes on the last day": last, "days before": 5, "usual changes per day": 10}
    assert bool(result.details) is not passes


def test_volume_needs_three_days_before(tmp_path: Path) -> None:
    log = TableBuilder(tmp_path / "log", [Column(1, "op", "string"), Column(2, "source_ts", "timestamptz")])
    assert "no times" in volume(scan_core.open_table(log.metadata_path), 14, 4.0).details[0]
    log.commit(log.data({"op": ["c"] * 3, "source_ts": [WRITTEN + timedelta(days=day) for day in range(3)]}))
    result = volume(scan_core.open_table(log.metadata_path), 14, 4.0, now=WRITTEN + timedelta(days=3))
    assert result.details == ["not compared: too few days"]
