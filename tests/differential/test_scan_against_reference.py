"""scan_core and the DuckDB reference agree on random tables, projections and predicates, optimised and not."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.checks.comparison import canonical, compare
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.checks.reference.sql_columns import open_connection
from nevermore.scan_core import ScanOptions
from tests.differential.table_histories import draw_table
from tests.support.kernels_used import kernels_used

EXAMPLES = 14
MANY_EXAMPLES = 1500
OPTIONS = [
    ScanOptions(),
    ScanOptions.without_optimisations(),
    ScanOptions(parallelism=3, split_bytes=1, batch_rows=2, keep_order=False),
    ScanOptions(memory_limit_bytes=1),
]
quick = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
thorough = settings(quick, max_examples=MANY_EXAMPLES, derandomize=False, print_blob=True)


def check_all_rows(draw: Callable[..., Any]) -> None:
    """Every snapshot in all columns, and the current one with row identity, under all options."""
    with tempfile.TemporaryDirectory() as folder:
        table = draw_table(draw, Path(folder) / "t").table
        for snapshot in [None, *(s["snapshot-id"] for s in table.snapshots)]:
            expected = live_rows(table.metadata_path, snapshot_id=snapshot)
            scan = scan_core.open_table(table.metadata_path).scan()
            scan = scan if snapshot is None else scan.as_of(snapshot)
            for options in OPTIONS if snapshot is None else OPTIONS[:1]:
                chosen = scan.with_options(options)
                with kernels_used(are_on=options is OPTIONS[0]):
                    assert_equal(chosen.to_table(), expected)
                    assert chosen.count() == expected.num_rows
        identity = ["_file", "_pos", *(["_row_id", "_last_updated_sequence_number"] if table.version > 2 else [])]
        found = scan_core.open_table(table.metadata_path).scan().select(*identity).to_table()
        assert_equal(found, live_rows(table.metadata_path, columns=identity))


def check_query(draw: Callable[..., Any]) -> None:
    """A random projection under a random predicate."""
    with tempfile.TemporaryDirectory() as folder:
        table = draw_table(draw, Path(folder) / "t").table
        expected = live_rows(table.metadata_path)
        names = expected.column_names
        for _ in range(3):
            columns = draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
            predicate = draw_predicate(draw, expected.schema)
            wanted = filtered(expected, predicate, columns)
            scan = scan_core.open_table(table.metadata_path).scan().select(*columns).where(predicate)
            for options in OPTIONS:
                chosen = scan.with_options(options)
                assert_equal(chosen.to_table(), wanted, predicate)
                assert chosen.count() == wanted.num_rows, predicate


@quick
@given(st.data())
def test_all_rows_of_random_tables_equal_the_reference(data: st.DataObject) -> None:
    check_all_rows(data.draw)


@pytest.mark.slow
@quick
@given(st.data())
def test_queries_of_random_tables_equal_the_reference(data: st.DataObject) -> None:
    check_query(data.draw)


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # on a machine that does other work
@thorough
@given(st.data())
def test_all_rows_of_many_random_tables_equal_the_reference(data: st.DataObject) -> None:
    check_all_rows(data.draw)


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # on a machine that does other work
@thorough
@given(st.data())
def test_queries_of_many_random_tables_equal_the_reference(data: st.DataObject) -> None:
    check_query(data.draw)


def assert_equal(found: pa.Table, expected: pa.Table, context: str = "") -> None:
    difference = compare(found, expected)
    assert difference.equal, (
        context,
        difference.type_differences,
        f"too many: {difference.left_only.to_pylist()}",
        f"missing: {difference.right_only.to_pylist()}",
    )


def filtered(rows: pa.Table, predicate: str, columns: list[str]) -> pa.Table:
    """The rows that fulfil the predicate, by DuckDB."""
    numbered = canonical(rows).append_column("row_number", pa.array(range(rows.num_rows), pa.int64()))
    with open_connection() as connection:
        connection.register("rows", numbered)
        kept = connection.execute(f"SELECT row_number FROM rows WHERE {predicate}").fetchall()
    return rows.select(columns).take(pa.array([k for (k,) in kept], pa.int64()))


LITERALS = {
    "int32": ["0", "1", "-1", "2147483647"],
    "int64": ["0", "1", "4294967296", "-9223372036854775807"],
    "string": ["''", "'a'", "'b'", "'abcdefghijklmnop1'", "'é'"],
    "double": ["0.0", "1.5", "-1e300"],
    "float": ["0.0", "1.5"],
    "bool": ["true", "false"],
    "date32[day]": ["date '1970-01-01'", "date '2024-02-29'", "date '1900-01-01'"],
    "timestamp[us]": ["timestamp '2024-01-01 00:00:00'", "timestamp '1970-01-01 00:00:00'"],
    "decimal128(9, 2)": ["0", "1.5", "1.51"],
    "decimal128(12, 2)": ["0", "1.5", "9999999999.99"],
    "decimal128(30, 4)": ["0", "1.5"],
}


def draw_predicate(draw: Callable[..., Any], schema: pa.Schema, depth: int = 2) -> str:
    """SQL that means the same to Spark and DuckDB."""
    if depth and draw(st.booleans()):
        left, right = (draw_predicate(draw, schema, depth - 1) for _ in range(2))
        shape = draw(st.sampled_from(["({} and {})", "({} or {})", "(not {} and {})", "not ({} or {})"]))
        return shape.format(left, right)
    operands = [(f.name, str(f.type)) for f in schema]
    for f in schema:
        if pa.types.is_struct(f.type):
            operands += [(f"{f.name}.{m.name}", str(m.type)) for m in f.type]
    name, kind = draw(st.sampled_from(operands))
    if kind not in LITERALS or draw(st.integers(0, 4)) == 0:
        return f"{name} is {draw(st.sampled_from(['null', 'not null']))}"
    literals = st.sampled_from(LITERALS[kind])
    form = draw(st.sampled_from(["compare", "in", "between"]))
    if form == "in":
        listed = draw(st.lists(literals, min_size=1, max_size=3))
        return f"{name} {draw(st.sampled_from(['in', 'not in']))} ({', '.join(listed)})"
    if form == "between":
        return f"{name} between {draw(literals)} and {draw(literals)}"
    return f"{name} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {draw(literals)}"
