"""The first and last dates and times that mirrors have, wherever rows pass."""

from pathlib import Path
from typing import Any

import pytest

from nevermore.checks.mirror_checks import checks_of, run_checks
from nevermore.pipelines.changes.change_log import key_log
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, everything
from nevermore.pipelines.ingest.quarantine_replay import replay_quarantine
from nevermore.scan_core import open_table
from tests.pipelines.project import Project, event, the

DAYS = [2_932_896, -719_162, 2_932_895, -719_161, 0]
TIMES = ["9999-12-31T18:59:59.999999-05:00", "0001-01-01T05:00:00+05:00", "2024-01-01T00:00:00Z"]
WAYS: dict[str, dict[str, Any]] = {
    "key": {"key": ["d", "id"]},
    "key of times": {"key": ["t", "id"]},
    "key in partitions of its own": {"key": ["d", "id"], "partition_by": ["d"]},
    "looked up in partitions": {"key": ["id"], "partition_by": ["d", "t"]},
    "key looked up in partitions": {"key": ["d", "id"], "partition_by": ["bucket(4, t)"]},
    "soft deletes": {"key": ["d", "id"], "soft_delete": True},
    "whole rows": {"identity": "full"},
    "sorted": {"key": ["id"], "sort_by": ["d", "t"], "bloom_filters": True},
}


@pytest.mark.each(8)
@pytest.mark.parametrize("way", WAYS)
def test_rows_come_and_go(tmp_path: Path, way: str) -> None:
    types = {"d": "date", "t": "timestamptz", "s.d": "date"}
    project = Project(tmp_path, {"shop.products": {**WAYS[way], "types": types}})
    rows = [{"id": i, "d": day, "t": TIMES[i % 3], "s": {"d": day}} for i, day in enumerate(DAYS)]
    if way == "whole rows":
        rows = [{name: value for name, value in row.items() if name != "s"} for row in rows]
    project.land("1.jsonl", [event("c", row) for row in rows])
    assert the(project.run()).error is None
    project.land("2.jsonl", [event("d", row) for row in rows[:-1]])
    assert the(project.run()).error is None
    config = load(tmp_path / "nevermore.yaml")
    for result in run_checks(config, "shop.products", checks_of(config, "shop.products")):
        assert result.passed, result
    table = open_table(project.table("shop.products"))
    assert table.scan().where("_deleted = false" if way == "soft deletes" else "true").count() == 1
    log = open_table(project.table("change_log.shop_products"))
    found = key_log("change_log.shop_products", log, {"id": 0})
    assert found is not None
    assert [change.op for change in found.newest] == ["c", "d"]


def test_rejected_changes_are_kept_and_compared(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "types": {"d": "date", "n": "string"}}})
    unknown = {"id": 1, "d": DAYS[2], "n": "__debezium_unavailable_value"}
    project.land("1.jsonl", [event("u", unknown), event("c", {"id": 2, "d": DAYS[0], "n": "x"})])
    report = the(project.run())
    assert (report.error, report.quarantined) == (None, 1)
    config = load(tmp_path / "nevermore.yaml")
    done = replay_quarantine(open_catalog(config), config, "shop.products")
    assert (done.applied, done.rejected) == (0, 1)


def test_wrong_rows_are_named(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["d"], "types": {"d": "date"}}})
    project.land("1.jsonl", [event("c", {"d": day}) for day in DAYS])
    assert the(project.run()).error is None
    RowDelta(project.table("shop.products")).commit([], {}, remove=everything)
    config = load(tmp_path / "nevermore.yaml")
    results = run_checks(config, "shop.products", checks_of(config, "shop.products"))
    keys = [key for result in results if not result.passed for key in result.offending_keys]
    assert "date(9999, 12, 31)" in str(keys)
