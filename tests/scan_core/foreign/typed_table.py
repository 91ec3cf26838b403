"""A table with a column of every type that other libraries compare, values at which their rules differ, and deletes."""

import datetime as dt
import itertools
from decimal import Decimal
from pathlib import Path
from typing import Any

from nevermore import scan_core
from nevermore.scan_core import Scan
from tests.support.iceberg_json import Column, struct
from tests.support.table_builder import TableBuilder

NAN, INF = float("nan"), float("inf")
COLUMNS = (
    Column(1, "n", "long"),
    Column(2, "i", "int"),
    Column(3, "l", "long"),
    Column(4, "f", "float"),
    Column(5, "d", "double"),
    Column(6, "dec", "decimal(9, 2)"),
    Column(7, "s", "string"),
    Column(8, "day", "date"),
    Column(9, "ts", "timestamp"),
    Column(10, "tz", "timestamptz"),
    Column(11, "tm", "time"),
    Column(12, "b", "boolean"),
    Column(13, "bin", "binary"),
    Column(14, "st", struct(Column(15, "a", "int"), Column(16, "x", "string"))),
    Column(17, "a.b", "int"),
)
_DAYS = [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29)]
_MOMENTS = [dt.datetime.combine(day, dt.time(23, 30, 1, 5)) for day in _DAYS]
VALUES: dict[str, list[Any]] = {
    "i": [-(2**31), -7, 0, 1, 2, 2**31 - 1],
    "l": [-(2**63), -1, 0, 1, 2**24 + 1, 2**53 + 1, 2**63 - 1],
    "f": [-INF, -1.5, -0.0, 0.0, 0.1, 2.5, INF, NAN],
    "d": [-INF, -1.5, -0.0, 0.0, 0.1, 0.10000000149011612, 2.5, INF, NAN],
    "dec": [Decimal("-1.50"), Decimal("0.00"), Decimal("0.01"), Decimal("9999999.99")],
    "s": ["", "a", "ab", "a'\"\\b", "bä", "ß", "😀", "zz"],
    "day": _DAYS,
    "ts": _MOMENTS,
    "tz": [moment.replace(tzinfo=dt.UTC) for moment in _MOMENTS],
    "tm": [dt.time(0), dt.time(12, 30, 0, 7), dt.time(23, 59, 59, 999999)],
    "b": [True, False],
    "bin": [b"", b"\x00", b"a", b"\xff\xfe"],
    "st": [{"a": 1, "x": "a"}, {"a": None, "x": "b"}, {"a": 3, "x": None}],
    "a.b": [1, 2, 3],
}
"""Each column also has NULL."""


NUM_ROWS = 120


def typed_scan(path: Path) -> Scan:
    """Two row groups; every fifth row is deleted."""
    table = TableBuilder(path, COLUMNS)
    cycles = {name: itertools.cycle([*values, None]) for name, values in VALUES.items()}
    rows = {"n": list(range(NUM_ROWS))} | {name: list(itertools.islice(c, NUM_ROWS)) for name, c in cycles.items()}
    table.commit(table.data(rows, row_group_size=60))
    table.commit(table.equality_delete({"n": list(range(0, NUM_ROWS, 5))}, ids=[1]))
    return scan_core.open_table(table.metadata_path).scan()
