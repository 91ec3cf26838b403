"""Scans as text options of a data source: what is written is read back as the same scan."""

from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.spark.source import SourceOptions
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


@pytest.fixture
def table(tmp_path: Path) -> scan_core.Table:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "a, b", "string")])
    builder.commit(builder.data({"id": list(range(200)), "a, b": ["x"] * 200}))
    return scan_core.open_table(builder.metadata_path)


def test_a_scan_survives_as_text_with_all_that_narrows_it(table: scan_core.Table) -> None:
    scan = (
        table.scan().select("a, b", "id").where("id > 5").where("id < 150 or id = 7").sample(0.5, seed=3)
        .with_options(ScanOptions.of(batch_rows=7, prune_pages=False))
    )  # fmt: skip
    again = SourceOptions.parse(SourceOptions.of(scan).as_text()).scan()
    assert again.to_table() == scan.to_table()
    assert 0 < again.count() < 100
    assert (again.row_sample, again.columns, again.options) == (scan.row_sample, scan.columns, scan.options)


@pytest.mark.parametrize("text", ["half", "0.5,x", "1.5"])
def test_a_sample_that_is_no_fraction_is_refused(table: scan_core.Table, text: str) -> None:
    with pytest.raises(OptionError, match="sample"):
        SourceOptions(table=table.metadata_path, sample=text).scan()
