"""Filters over ORC files with row indexes and Bloom filters, which are not looked at."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

ROWS, STRIDE = 12_000, 1_000
COLUMNS = (
    Column(1, "id", "long"),
    Column(2, "n", "int"),
    Column(3, "s", "string"),
    Column(4, "d", "date"),
    Column(5, "x", "double"),
    Column(6, "p", "string"),
)


def content(seed: int = 5) -> dict[str, Any]:
    """Numbers in clusters and at random, texts short and long, some of everything NULL."""
    draw = np.random.default_rng(seed)
    clusters = np.arange(ROWS) // STRIDE * 7 % (ROWS // STRIDE) * 1_000
    texts = [f"text {n}" * int(1 + n % 3) if n % 11 else None for n in draw.integers(0, 10**6, ROWS)]
    days = draw.integers(-20_000, 40_000, ROWS)
    return {
        "id": clusters + draw.permutation(ROWS) % 500,
        "n": [int(n) if n % 13 else None for n in draw.integers(-(2**31), 2**31, ROWS)],
        "s": texts,
        "d": [dt.date(1970, 1, 1) + dt.timedelta(int(n)) for n in days],
        "x": draw.random(ROWS) + clusters,
        "p": [f"payload {n}" for n in range(ROWS)],
    }


def table_of(path: Path, compression: str = "zstd") -> tuple[TableBuilder, dict[str, Any]]:
    rows = content()
    table = TableBuilder(path, COLUMNS)
    table.commit(
        table.data(
            rows,
            file_format="orc",
            compression=compression,
            row_index_stride=STRIDE,
            bloom_filter_columns=[0, 1, 2, 3],
            bloom_filter_fpp=0.0001,
            stripe_size=1 << 30,
        )
    )
    return table, rows


@pytest.mark.parametrize("seed", range(3))
def test_filters_give_the_rows_that_they_give_without_any_pruning(tmp_path: Path, seed: int) -> None:
    table, rows = table_of(tmp_path)
    table.commit(table.equality_delete({"id": rows["id"][::17]}, ids=[1]))
    draw = np.random.default_rng(seed)
    opened = scan_core.open_table(table.metadata_path)
    for _ in range(12):
        at = int(draw.integers(0, ROWS))
        text = rows["s"][at] or "none"
        day = rows["d"][at]
        for where in (
            f"id = {rows['id'][at]}",
            f"id between {rows['id'][at]} and {int(rows['id'][at]) + 40}",
            f"s = '{text}'",
            f"s in ('{text}', 'other') and x < {rows['x'][at] + 0.2}",
            f"n = {rows['n'][at] or 5}",
            f"d = date '{day.isoformat()}'",
            f"n is null and id < {rows['id'][at]}",
            f"not (s = '{text}') and id = {rows['id'][at]}",
        ):
            scan = opened.scan().where(where)
            plain = scan.with_options(ScanOptions.without_optimisations())
            assert scan.to_table().equals(plain.to_table()), where
