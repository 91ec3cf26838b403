"""Random semi joins over random tables with deletes, every pruner on and off: scan_core against DuckDB.

Keys are lists, tables and scans on one to three columns of all types; the limits beyond which keys are summarised are
drawn too, so that few keys take the ways of many.
"""

import datetime as dt
import decimal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.checks.reference.sql_columns import open_connection
from nevermore.scan_core import ScanOptions, Switches
from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.joins import column_keys, key_set
from nevermore.scan_core.model.schema import arrow_type, parse_type
from nevermore.scan_core.model.transforms import normalise_value, parse_transform
from nevermore.scan_core.read import key_filter, restriction
from tests.differential.filtered_tables import draw_file
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

UTC = dt.UTC
POOLS: dict[str, tuple[str, list[Any]]] = {
    "i": ("int", [-(2**31), -7, 0, 3, 4, 5, 6, 2**31 - 1]),
    "l": ("long", [-(2**63), -1, 0, 1, 10, 11, 12, 2**63 - 1]),
    "s": ("string", ["", "a", "aa", "abcdefghijklmnopqrstu", "abcdefghijklmnopqrstv", "b", "ÿ", "z" * 40]),
    "dt": ("date", [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(2024, 3, 1)]),
    "ts": (
        "timestamp",
        [dt.datetime.fromisoformat(t) for t in ("1969-12-31T23:00", "2024-01-01", "2024-01-01T00:00:00.000001")],
    ),
    "tz": ("timestamptz", [dt.datetime(1960, 1, 1, tzinfo=UTC), dt.datetime(2024, 5, 5, 5, tzinfo=UTC)]),
    "tm": ("time", [dt.time(0), dt.time(12, 30), dt.time(23, 59, 59, 999999)]),
    "dec": ("decimal(7, 2)", [decimal.Decimal(v) for v in ("-9999.99", "0.00", "1.10", "1.11", "99999.99")]),
    "big": ("decimal(30, 3)", [decimal.Decimal(v) for v in ("-1.000", "0.001", "123456789012345678901234567.891")]),
    "u": ("uuid", [bytes(15) + b"\1", bytes([127]) + bytes(15), bytes([128]) + bytes(15), b"\xff" * 16]),
    "b": ("binary", [b"", b"\0", b"ab", b"\xff\xff"]),
    "x": ("fixed[3]", [b"\0\0\0", b"abc", b"\xff\xff\xff"]),
    "f": ("double", [-0.0, 0.0, 1.5, -1.5, float("nan"), float("inf"), 1e300]),
    "t": ("boolean", [True, False]),
}
COLUMNS = [Column(1, "id", "long"), *(Column(k, n, t) for k, (n, (t, _)) in enumerate(POOLS.items(), 2))]
IDS = {c.name: c.id for c in COLUMNS}
PARTITIONS = {
    "i": ["identity", "bucket[4]", "truncate[3]"],
    "l": ["identity", "bucket[3]", "truncate[10]"],
    "s": ["identity", "bucket[4]", "truncate[2]"],
    "dt": ["identity", "year", "month", "day", "bucket[4]"],
    "ts": ["year", "day", "hour", "bucket[2]"],
    "tz": ["month"],
    "dec": ["identity", "truncate[100]", "bucket[3]"],
    "u": ["bucket[3]", "identity"],
    "b": ["identity", "truncate[1]"],
}
SWITCHES = [f.name for f in fields(Switches)]
QUICK = settings(
    max_examples=5, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def draw_rows(draw: Callable[..., Any], most: int) -> pa.Table:
    """Rows of few values each, so that many have partners."""
    count = draw(st.integers(0, most))
    columns = {"id": pa.array(range(count), pa.int64())}
    for name, (kind, pool) in POOLS.items():
        values = draw(st.lists(st.sampled_from([*pool, None]), min_size=count, max_size=count))
        columns[name] = pa.array(values, arrow_type(parse_type(kind)))
    return pa.table(columns)


def draw_table(draw: Callable[..., Any], folder: Path) -> tuple[TableBuilder, pa.Table]:
    """A table in several files and commits, with deletes by key and position between them; and its living rows."""
    name, transform = draw(st.sampled_from([("", ""), *((n, t) for n, ts in PARTITIONS.items() for t in ts)]))
    partitions = [Partition("p", IDS[name], transform)] if name else []
    table = TableBuilder(folder / "t", COLUMNS, partitions=partitions)
    spec, alive, first = table.spec_id, [], 0
    for _ in range(draw(st.integers(1, 3))):
        rows = draw_rows(draw, 14)
        rows = rows.set_column(0, "id", pa.array(range(first, first + rows.num_rows), pa.int64()))
        first += rows.num_rows
        files = []
        for partition, part in by_partition(rows, name, transform):
            options, file_format = draw_file(draw)
            files.append(table.data(part, file_format=file_format, partition=partition, spec_id=spec, **options))
        table.commit(*files)
        alive.append(rows)
        keys = draw(st.sampled_from([None, ["i"], ["s"], ["i", "s"], ["dt", "u"], ["id"]]))
        if keys is not None:
            dead = (
                draw_rows(draw, 5).select(keys).drop_null() if draw(st.booleans()) else draw_rows(draw, 5).select(keys)
            )
            global_spec = table.repartition() if name else 0
            columns = [c for c in COLUMNS if c.name in keys]
            table.commit(table.equality_delete(dead, ids=[IDS[k] for k in keys], spec_id=global_spec, columns=columns))
            gone = {tuple(row.values()) for row in dead.to_pylist()}
            alive = [
                part.filter(
                    pa.array([tuple(row.values()) not in gone for row in part.select(keys).to_pylist()], pa.bool_())
                )
                for part in alive
            ]
    return table, pa.concat_tables(alive)


def by_partition(rows: pa.Table, name: str, transform: str) -> list[tuple[dict[str, Any], pa.Table]]:
    """Rows of one partition each, with its value."""
    if not name or not rows.num_rows:
        return [] if name else [({}, rows)]
    kind = parse_type(POOLS[name][0])
    parsed = parse_transform(transform)
    values = parsed.apply(rows.column(name).combine_chunks(), kind)
    is_number = pa.types.is_temporal(values.type)
    result = parsed.result_type(kind)
    keys = [None if not v.is_valid else normalise_value(v.value if is_number else v.as_py(), result) for v in values]
    stored = dict(zip(keys, values.to_pylist(), strict=True))
    return [({"p": stored[k]}, rows.filter(pa.array([other == k for other in keys]))) for k in dict.fromkeys(keys)]


def draw_options(draw: Callable[..., Any]) -> list[ScanOptions]:
    """All switches on, all off, some of them off."""
    off = dict.fromkeys(draw(st.sets(st.sampled_from(SWITCHES), min_size=1)), False)
    return [ScanOptions(), ScanOptions.without_optimisations(), ScanOptions.of(parallelism=1, **off)]


def by_duckdb(rows: pa.Table, names: list[str], keys: pa.Table) -> list[int]:
    """Ids of the rows that have a partner."""
    with open_connection() as connection:
        connection.register("facts", rows)
        connection.register("partners", keys)
        equal = " and ".join(f"partners.k{i} = facts.{n}" for i, n in enumerate(names))
        sql = f"select id from facts where exists (select 1 from partners where {equal}) order by id"
        return [k for (k,) in connection.execute(sql).fetchall()]


def small_limits(stack: ExitStack) -> None:
    """Few keys are many."""
    for module, name in (
        (column_keys, "MAX_VALUES"),
        (key_filter, "MAX_TESTED"),
        (restriction, "TRIED_ROWS"),
    ):
        stack.enter_context(patch.object(module, name, 1))
    stack.enter_context(patch.object(key_set, "_LOOKUPS", BoundedCache(lambda lookup: lookup.num_bytes)))


def check(draw: Callable[..., Any]) -> None:
    """One table, some semi joins, each under three sets of switches."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if draw(st.booleans()):
            small_limits(stack)
        table, rows = draw_table(draw, Path(folder))
        scan = scan_core.open_table(table.metadata_path).scan()
        assert sorted(scan.to_table()["id"].to_pylist()) == sorted(rows["id"].to_pylist())
        for _ in range(4):
            names = draw(st.lists(st.sampled_from(list(POOLS)), min_size=1, max_size=3, unique=True))
            keys = draw_rows(draw, 4).select(names).rename_columns([f"k{i}" for i in range(len(names))])
            expected = by_duckdb(rows, names, keys)
            for options in draw_options(draw):
                joined = scan.with_options(options).semi_join(names, keys)
                found = joined.select("id").to_table()["id"].to_pylist()
                assert sorted(found) == expected, (names, keys.to_pylist(), options)
                assert joined.count() == len(expected)
                assert joined.aggregate(("count", "*")) == (len(expected),)
                left = scan.with_options(options).prefilter(names, keys).select("id").to_table()["id"].to_pylist()
                assert set(expected) <= set(left) <= set(rows["id"].to_pylist())


@pytest.mark.slow
@QUICK
@given(st.data())
def test_rows_with_partner_are_those_of_duckdb(data: st.DataObject) -> None:
    check(data.draw)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@settings(QUICK, max_examples=1000, derandomize=False, print_blob=True)
@given(st.data())
def test_rows_with_partner_of_many_tables_are_those_of_duckdb(data: st.DataObject) -> None:
    check(data.draw)
