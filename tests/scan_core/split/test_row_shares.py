"""A row group too large for one task: its shares hold every living row once, and each reads its own pages."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.plan.planner import ScanPlan
from nevermore.scan_core.read.split_reader import count_split, read_split
from nevermore.scan_core.split.tasks import Split, share_row_groups
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

NUM_ROWS = 20_000
_TAGS = {"type": "list", "element-id": 9, "element": "int", "element-required": False}
_WRITING: dict[str, Any] = {
    "write_page_index": True,
    "data_page_size": 2_000,
    "use_dictionary": False,
    "compression": "none",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> scan_core.Table:
    """One file of one row group, a seventh of the rows deleted, a file of dead positions, and a list."""
    folder = tmp_path_factory.mktemp("shares")
    builder = TableBuilder(folder, [Column(1, "id", "long"), Column(2, "x", "double"), Column(3, "tags", _TAGS)])
    random = np.random.default_rng(7)
    rows = {
        "id": list(range(NUM_ROWS)),
        "x": random.random(NUM_ROWS).tolist(),
        "tags": [[i, i + 1] if i % 3 else None for i in range(NUM_ROWS)],
    }
    file = builder.data(rows, **_WRITING)
    builder.commit(file)
    builder.commit(builder.equality_delete({"id": list(range(0, NUM_ROWS, 7))}, ids=[1]))
    builder.commit(builder.position_delete([(file, 1), (file, 10_001), (file, NUM_ROWS - 1)]))
    return scan_core.open_table(builder.metadata_path)


def _shares(plan: ScanPlan, number: int) -> list[Split]:
    size = plan.tasks[0].length
    return list(share_row_groups(plan.splits(size), size // number))


@pytest.mark.each(5)
@pytest.mark.parametrize("columns", [("id", "x"), ("x", "id", "tags"), ("tags",)])
@pytest.mark.parametrize(
    "options", [ScanOptions(), ScanOptions(memory_limit_bytes=200_000), ScanOptions.of(prune_pages=False)]
)
@pytest.mark.parametrize("where", [None, "x < 0.5 and id > 4000"])
def test_shares_give_every_living_row_once_and_their_metrics_add_up(
    table: scan_core.Table, columns: tuple[str, ...], options: ScanOptions, where: str | None
) -> None:
    scan = table.scan().select(*columns).with_options(options)
    scan = scan if where is None else scan.where(where)
    whole = scan.to_table()
    plan = scan.plan()
    shares = _shares(plan, 5)
    assert len(shares) >= 5
    metrics = [ScanMetrics() for _ in shares]
    parts = [list(read_split(share, counted)) for share, counted in zip(shares, metrics, strict=True)]
    found = pa.Table.from_batches([batch for part in parts for batch in part], schema=whole.schema)
    assert found.combine_chunks().equals(whole.combine_chunks())
    assert sum(count_split(share, ScanMetrics()) for share in shares) == whole.num_rows
    total = sum(metrics, ScanMetrics())
    for name in ("rows_in_files", "data_files_read", "row_groups_read", "rows_removed_by_position_deletes", "rows_out"):
        assert getattr(total, name) == getattr(scan.metrics, name), name
    assert total.rows_removed_by_equality_deletes + total.rows_removed_by_filter == NUM_ROWS - 3 - whole.num_rows
    assert (
        sum(bool(part) for part in parts) > 3 if options.switches.prune_pages else parts[1:] == [[]] * (len(shares) - 1)
    )


def test_each_share_reads_its_own_pages(table: scan_core.Table) -> None:
    scan = table.scan().select("id", "x")
    scan.to_table()
    for share in _shares(scan.plan(), 5):
        metrics = ScanMetrics()
        list(read_split(share, metrics))
        assert 0 < metrics.bytes_read < scan.metrics.bytes_read / 3


def test_row_groups_stay_whole_where_they_are_small(table: scan_core.Table) -> None:
    plan = table.scan().plan()
    assert list(share_row_groups(plan.splits(), plan.tasks[0].length)) == list(plan.splits())
