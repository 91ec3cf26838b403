from pathlib import Path

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import OptionError, ScanOptions
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "n", "int")])
    files = [
        table.data({"id": list(range(k, k + 3_000)), "n": [i % 7 for i in range(3_000)]}, row_group_size=700)
        for k in (0, 3_000)
    ]
    table.commit(*files)
    return table


def ids(scan: scan_core.Scan) -> set[int]:
    return set(scan.to_table()["id"].to_pylist())


def test_sample_is_the_same_under_all_options_and_later_deletes(table: TableBuilder) -> None:
    scan = scan_core.open_table(table.location).scan()
    sampled = ids(scan.sample(0.1, seed=4))
    assert 450 < len(sampled) < 750
    for options in (ScanOptions.without_optimisations(), ScanOptions(parallelism=3, split_bytes=1)):
        assert ids(scan.with_options(options).sample(0.1, seed=4)) == sampled
    assert scan.sample(0.1, seed=4).count() == len(sampled)
    assert ids(scan.sample(0.1, seed=5)) != sampled
    dead = set(list(sampled)[:100]) | {1, 2}
    table.commit(table.equality_delete({"id": sorted(dead)}, ids=[1]))
    later = scan_core.open_table(table.location).scan().sample(0.1, seed=4)
    assert ids(later) == sampled - dead
    metrics = later.metrics
    assert metrics.rows_in_files == 6_000
    assert metrics.rows_removed_by_sampling == 6_000 - len(sampled)
    assert metrics.rows_removed_by_equality_deletes == len(dead & sampled)


def test_filters_and_aggregates_see_the_rows_of_the_sample(table: TableBuilder) -> None:
    scan = scan_core.open_table(table.location).scan().sample(0.3, seed=1)
    rows = scan.to_table()
    assert scan.where("n = 3").count() == pa.compute.sum(pa.compute.equal(rows["n"], 3)).as_py()
    assert scan.aggregate(("sum", "id"), ("count", "*")) == (pa.compute.sum(rows["id"]).as_py(), rows.num_rows)
    assert scan.with_options(ScanOptions(trust_record_counts=True)).count() == rows.num_rows
    assert "sample: 30 % of the rows, by row position, seed 1" in scan.explain()


def test_nothing_is_read_of_row_groups_without_sampled_rows(table: TableBuilder) -> None:
    scan = scan_core.open_table(table.location).scan().sample(0.0)
    assert scan.to_table().num_rows == 0
    assert scan.metrics.bytes_read == 0
    assert scan.metrics.rows_removed_by_sampling == 6_000


def test_what_cannot_be_sampled_is_refused(table: TableBuilder) -> None:
    scan = scan_core.open_table(table.location).scan().sample(0.5)
    with pytest.raises(OptionError, match="sampled already"):
        scan.sample(0.5)
    with pytest.raises(OptionError, match="cannot be sampled"):
        scan.changes(None)
    with pytest.raises(OptionError, match="between 0 and 1"):
        scan_core.open_table(table.location).scan().sample(20)
