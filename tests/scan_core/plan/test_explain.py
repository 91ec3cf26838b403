"""What a plan says of itself reads without knowing how Iceberg stores things."""

import datetime as dt
from pathlib import Path

import pytest

from nevermore import scan_core
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "day", "date"), Column(3, "ts", "timestamptz")]
DAY, MOMENT = dt.date(2026, 2, 3), dt.datetime(2026, 2, 3, 4, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("source", "transform", "value", "expected"),
    [
        (2, "identity", DAY, "p = 2026-02-03"),
        (2, "month", 56 * 12 + 1, "p = 2026-02"),
        (2, "year", 56, "p = 2026"),
        (3, "day", DAY, "p = 2026-02-03"),
        (3, "hour", int(MOMENT.timestamp()) // 3600, "p = 2026-02-03 04:00"),
        (3, "identity", MOMENT, "p = 2026-02-03 04:05:00"),
        (1, "bucket[4]", 3, "p = 3"),
        (1, "identity", None, "p = null"),
    ],
)
def test_partitions_are_named_as_people_write_them(
    tmp_path: Path, source: int, transform: str, value: object, expected: str
) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, partitions=[Partition("p", source, transform)])
    table.commit(table.data({"id": [1], "day": [DAY], "ts": [MOMENT]}, partition={"p": value}))
    assert f"partition {expected} (spec 0): 1 file" in scan_core.open_table(table.metadata_path).scan().explain()


def test_filter_is_shown_as_written_and_as_it_is_understood(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    table.commit(table.data({"id": [1], "day": [DAY], "ts": [MOMENT]}))
    scan = scan_core.open_table(table.metadata_path).scan()
    text = scan.where("not (id < 5 or day <> '2026-02-03') and (id = 7 or id = 8)").explain()
    assert "  filter: not (id < 5 or day <> '2026-02-03') and (id = 7 or id = 8)\n" in text
    assert "      id >= 5\n" in text
    assert "      day = date '2026-02-03'\n" in text
    assert "      id in (7, 8)\n" in text
    assert "data files: 0 to read of 1 listed, 0 bytes, in 0 splits" in text
    assert "left out by the filter, from the least and greatest values of their columns: 1 (" in text
    assert "fulfils" not in scan.where("id > 0").explain()
