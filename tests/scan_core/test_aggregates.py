import datetime as dt
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core import OptionError, Scan, ScanOptions, UnsupportedError
from tests.support.iceberg_json import Column, list_of
from tests.support.table_builder import TableBuilder

COLUMNS = (
    Column(1, "id", "long"),
    Column(2, "city", "string"),
    Column(3, "price", "double"),
    Column(4, "amount", "decimal(12, 2)"),
    Column(5, "day", "date"),
    Column(6, "ref", "uuid"),
    Column(7, "flag", "boolean"),
    Column(8, "tags", list_of(9, "int")),
)
CITIES = ["oslo", None, "bern", "zürich"]
OPTIONS = [ScanOptions(parallelism=2), ScanOptions.without_optimisations()]


def row(i: int) -> dict[str, Any]:
    return {
        "id": i - 500,
        "city": CITIES[i % 4],
        "price": None if i % 7 == 0 else i * 0.5,
        "amount": Decimal(i) / 4,
        "day": dt.date(2026, 1, 1) + dt.timedelta(days=i % 90),
        "ref": uuid.UUID(int=i).bytes,
        "flag": i % 2 == 0,
        "tags": [i],
    }


def table_of(path: Path, rows: list[dict[str, Any]], deleted: list[int]) -> TableBuilder:
    table = TableBuilder(path, COLUMNS)
    columns = {c: [r[c] for r in rows] for c in ("id", "city", "price", "amount", "day", "ref", "flag", "tags")}
    table.commit(table.data(columns))
    if deleted:
        table.commit(table.equality_delete({"id": deleted}, ids=[1]))
    return table


def scan_of(table: TableBuilder, options: ScanOptions) -> Scan:
    return scan_core.open_table(table.metadata_path).scan().with_options(options)


@pytest.mark.parametrize("options", OPTIONS, ids=["optimised", "plain"])
@pytest.mark.parametrize("where", [None, "id % 3 <> 0", "id % 50 = 1", "id < -10000"])
def test_aggregates_equal_those_of_the_rows(tmp_path: Path, options: ScanOptions, where: str | None) -> None:
    table = table_of(tmp_path, [row(i) for i in range(1000)], list(range(-500, 500, 8)))
    scan = scan_of(table, options) if where is None else scan_of(table, options).where(where)
    rows = scan.to_table().to_pylist()
    for name in ("id", "city", "price", "amount", "day", "ref", "flag"):
        present = [r[name] for r in rows if r[name] is not None]
        found = scan.aggregate(("count", name), ("min", name), ("max", name))
        assert found == (len(present), min(present, default=None), max(present, default=None)), name
    sums = scan.aggregate(("sum", "id"), ("sum", "price"), ("sum", "amount"), ("count", "*"), ("count", "tags"))
    expected = [[r[n] for r in rows if r[n] is not None] for n in ("id", "price", "amount")]
    assert sums == (*(sum(values) if values else None for values in expected), len(rows), len(rows))
    assert scan.metrics.rows_out == len(rows)


def test_sums_of_integers_do_not_overflow(tmp_path: Path) -> None:
    largest = 2**63 - 1
    table = table_of(tmp_path, [{**row(i), "id": largest - i} for i in range(100)], [largest])
    assert scan_of(table, ScanOptions()).aggregate(("sum", "id")) == (sum(largest - i for i in range(1, 100)),)


@pytest.mark.parametrize("options", OPTIONS, ids=["optimised", "plain"])
def test_dates_and_times_beyond_the_years_of_python_are_text(tmp_path: Path, options: ScanOptions) -> None:
    table = TableBuilder(tmp_path, (Column(1, "day", "date"), Column(2, "at", "timestamp")))
    table.commit(table.data({"day": [4_000_000, -800_000, None], "at": [4 * 10**17, -9 * 10**16, 0]}))
    found = scan_of(table, options).aggregate(("min", "day"), ("max", "day"), ("min", "at"), ("max", "at"))
    assert found == ("-0221-09-04", "12921-08-18", "-0882-01-06 08:00:00.000000", "14645-06-30 15:06:40.000000")
    within = scan_of(table, options).where("at < timestamp '1970-01-02'").aggregate(("max", "at"))
    assert within == (dt.datetime(1970, 1, 1),)  # noqa: DTZ001


def test_nan_is_larger_than_every_number(tmp_path: Path) -> None:
    rows = [{**row(i), "price": math.nan if i == 3 else float(i)} for i in range(1, 6)]
    scan = scan_of(table_of(tmp_path, rows, []), ScanOptions())
    smallest, largest = scan.aggregate(("min", "price"), ("max", "price"))
    assert smallest == 1.0
    assert math.isnan(largest)
    assert scan.where("id > -497").aggregate(("max", "price")) == (5.0,)


def test_aggregates_do_not_read_payload(tmp_path: Path) -> None:
    scan = scan_of(table_of(tmp_path, [row(i) for i in range(100)], []), ScanOptions())
    scan.aggregate(("max", "day"))
    narrow = scan.metrics.bytes_read
    scan.to_table()
    assert narrow < scan.metrics.bytes_read / 4


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (("avg", "id"), OptionError, "unknown aggregate 'avg'"),
        (("sum", "*"), OptionError, "only count takes"),
        (("sum", "city"), UnsupportedError, "cannot be added"),
        (("min", "tags"), UnsupportedError, "no order"),
    ],
)
def test_impossible_aggregates_are_refused(
    tmp_path: Path, call: tuple[str, str], error: type[Exception], message: str
) -> None:
    scan = scan_of(table_of(tmp_path, [row(1)], []), ScanOptions())
    with pytest.raises(error, match=message):
        scan.aggregate(call)


def test_limits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="limits"):
        scan_of(table_of(tmp_path, [row(1)], []), ScanOptions()).limit(1).aggregate(("count", "*"))
