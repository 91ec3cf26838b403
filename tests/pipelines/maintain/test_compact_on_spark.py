"""Compaction by tasks of Spark: groups are rewritten side by side, and large sorted ones are divided."""

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.pipelines.changes.row_order import Order
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.commit import RowDelta, upgrade
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.maintain import compact as module
from nevermore.pipelines.maintain import rewrite
from nevermore.pipelines.maintain.compact import CompactSettings, compact, compact_mirror
from tests.pipelines.iceberg_tables import new_table, reloaded, rows_of
from tests.pipelines.maintain.test_compact import (
    COLUMNS,
    append,
    catalog,
    compacted,
    files_of,
    project_with_updates,
    upsert,
)
from tests.support.spark_session import SPARK_TEST

__all__ = ["catalog"]
pytestmark = [*SPARK_TEST, pytest.mark.usefixtures("spark")]
ON_SPARK = CompactSettings(rewrite_all=True, engine="spark")


@pytest.fixture(autouse=True)
def by_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Lets every compaction take Spark, and counts the groups that tasks rewrote."""
    seen: list[int] = []
    original = rewrite.SparkRewrites.rewrite

    def counting(self: Any, groups: Any, how: Any) -> Any:
        seen.append(len(groups))
        return original(self, groups, how)

    monkeypatch.setattr(rewrite.SparkRewrites, "rewrite", counting)
    monkeypatch.setattr(module.CompactSettings, "takes_spark", lambda *_: True)
    return seen


def test_groups_are_rewritten_by_one_job_and_committed_together(catalog: Any, by_tasks: list[int]) -> None:
    new_table(catalog, COLUMNS, ("identity", "city"))
    for version in range(4):
        upsert(catalog, range(30), "part ", deleted=[version])
    done: list[tuple[int, int]] = []
    before = rows_of(reloaded(catalog))
    report = compact(reloaded(catalog), CompactSettings(), lambda now, total, _name: done.append((now, total)))
    assert (report.engine, report.commits, report.files_before, report.files_after) == ("spark", 1, 12, 3)
    assert by_tasks == [3]
    assert done == [(report.bytes_before, report.bytes_before)]
    assert "on Spark" in "\n".join(report.lines)
    assert rows_of(reloaded(catalog)) == before


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("order", "version"),
    [
        (Order(("city", "id")), 3),
        pytest.param(Order(("city", "id")), 2, marks=SLOW),
        pytest.param(Order(("x", "id"), is_curve=True), 3, marks=SLOW),
        pytest.param(Order(("city",)), 3, marks=SLOW),
    ],
)
def test_a_large_group_is_sorted_by_several_tasks(
    catalog: Any, monkeypatch: pytest.MonkeyPatch, order: Order, version: int
) -> None:
    monkeypatch.setattr(rewrite, "SPREAD_FILES", 1)
    monkeypatch.setattr(rewrite, "BUCKET_FILES", 1)
    table = new_table(catalog, COLUMNS)
    if version == 3:
        upgrade(table, 3)
    ids = np.random.default_rng(7).permutation(40_000)
    for part in np.array_split(ids, 8):
        delta = RowDelta(reloaded(catalog))
        rows = pa.table({"id": part, "city": [f"c{i % 7}" for i in part], "x": (part * 7919 % 40_000) / 2})
        delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    upsert(catalog, [], deleted=ids[:500].tolist())

    def lineage() -> list[dict[str, Any]]:
        names = ["id", "_row_id", "_last_updated_sequence_number"] if version == 3 else ["id"]
        return scan_core.open_table(reloaded(catalog)).scan().select(*names).to_table().sort_by("id").to_pylist()

    before = lineage()
    settings = CompactSettings(
        rewrite_all=True, order=order, target_file_bytes=2**16, memory_limit_bytes=2**20, bloom_columns=("id",)
    )
    report = compacted(catalog, settings)
    assert (report.files_before, report.dead_rows_removed, report.rows) == (8, 500, 39_500)
    assert report.files_after > 2
    assert lineage() == before
    files = files_of(catalog)[0]
    if not order.is_curve:
        cities = sorted((f.lower_bounds[2], f.upper_bounds[2]) for f in files)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(cities))
    else:
        ends = [[struct.unpack("<d", of[3])[0] for of in (f.lower_bounds, f.upper_bounds)] for f in files]
        spans = [(high - low) / 20_000 for low, high in ends]
        assert np.mean(spans) < 0.7


@SLOW
def test_a_failing_task_is_one_message_and_leaves_the_table_as_it_was(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_table(catalog, COLUMNS)
    for start in range(0, 40, 10):
        append(catalog, range(start, start + 10))
    files = files_of(catalog)[0]
    Path(files[0].path.removeprefix("file://")).write_bytes(b"PAR1 damaged")
    snapshot = reloaded(catalog).metadata.current_snapshot_id
    with pytest.raises(SourceError, match="the Spark job failed: ") as raised:
        compact(reloaded(catalog), ON_SPARK)
    assert "\n" not in str(raised.value)
    assert files[0].path.rpartition("/")[2] in str(raised.value)
    assert reloaded(catalog).metadata.current_snapshot_id == snapshot
    assert not list(Path(reloaded(catalog).location().removeprefix("file://")).rglob("compact-*"))


@SLOW
def test_dead_rows_are_counted_by_tasks(catalog: Any) -> None:
    new_table(catalog, COLUMNS)
    for start in range(0, 60, 10):
        upsert(catalog, range(start, start + 15))
    plan = scan_core.open_table(reloaded(catalog)).scan().plan()
    tasks = [task for task in plan.tasks if task.has_deletes]
    spark = rewrite.SparkRewrites.of(CompactSettings().spark)
    assert spark.count_dead_rows(tasks, plan.context) == rewrite.count_dead_rows(tasks, plan.context) == [5] * 5


@pytest.mark.parametrize("order", [pytest.param({}, marks=SLOW), {"sort_by": ["name"]}])
def test_a_mirror_is_compacted_unasked_as_its_config_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_tasks: list[int], order: dict[str, Any]
) -> None:
    monkeypatch.undo()  # the config decides
    project, rows = project_with_updates(tmp_path, maintenance={"compact_engine": "spark"}, **order)
    monkeypatch.setattr(module, "MIN_AUTO_SECONDS", 0.0)
    report = compact_mirror(load(tmp_path / "nevermore.yaml"), "shop.products")
    assert report is not None
    assert (report.engine, report.files_before > 1) == ("spark", True)
    assert project.rows() == rows
    assert by_tasks == []
