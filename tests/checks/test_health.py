from datetime import UTC, datetime, timedelta
from pathlib import Path

from checks.health import freshness
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)


def test_freshness_measures_the_current_snapshot(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    assert not freshness(str(table.metadata_path), timedelta(hours=1)).passed
    table.commit(table.data({"id": [1]}), timestamp_ms=int(WRITTEN.timestamp() * 1000))
    location = str(table.metadata_path)
    assert freshness(location, timedelta(hours=1), now=WRITTEN + timedelta(minutes=59)).passed
    late = freshness(location, timedelta(hours=1), now=WRITTEN + timedelta(minutes=61))
    assert late.details == ["written 2026-01-01T00:00:00+00:00, older than 1:00:00"]
    assert late.compared == {"age in seconds": 3660}
