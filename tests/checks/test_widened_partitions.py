"""A decimal partition column that was widened: its values are stored in more bytes, and are the same."""

from decimal import Decimal
from pathlib import Path

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder


def test_deletes_after_the_widening_reach_rows_before_it(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, (Column(1, "id", "long"), Column(2, "p", "decimal(9,2)")))
    table.repartition(Partition("p", 2))
    values = [Decimal("-1.50"), Decimal("1.50"), Decimal("200.00")]
    for value in values:
        table.commit(table.data({"id": [1, 2], "p": [value] * 2}, partition={"p": value}))
    table.evolve(Column(1, "id", "long"), Column(2, "p", "decimal(18,2)"))
    for value in values:
        table.commit(table.equality_delete({"id": [1]}, ids=[1], partition={"p": value}))
    rows = live_rows(table.metadata_path)
    assert sorted(zip(*(rows.column(n).to_pylist() for n in ("id", "p")), strict=True)) == [(2, v) for v in values]
    assert scan_core.open_table(table.metadata_path).scan().count() == rows.num_rows
