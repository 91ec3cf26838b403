"""What is no scan, no session or no name of a column is refused with what would be right."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.scan import Table
from nevermore.scan_core.spark.frames import dataframe
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

SESSION: Any = SimpleNamespace(createDataFrame=None, conf=None)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    builder.commit(builder.data({"id": [1, 2, 3]}))
    return scan_core.open_table(builder.metadata_path)


def test_a_table_or_path_in_place_of_a_scan_is_told_how_to_become_one(table: Table) -> None:
    given: Any
    for given, told in (
        (table, r"dataframe takes a scan, not a table: table\.scan\(\)"),
        ("warehouse/t", r"not text: scan_core\.open_table\('warehouse/t'\)\.scan\(\)"),
        (None, "dataframe takes a scan, not a NoneType"),
    ):
        with pytest.raises(OptionError, match=told):
            dataframe(SESSION, given)


def test_arguments_in_the_wrong_order_are_told_the_right_one(table: Table) -> None:
    scan: Any = table.scan()
    with pytest.raises(OptionError, match=r"not a Scan: dataframe\(spark, scan\)"):
        dataframe(scan, SESSION)
