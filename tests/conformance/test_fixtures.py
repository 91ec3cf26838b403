"""Every shared fixture table at every snapshot, read by scan_core, has exactly the expected rows.

The plain reading runs always; the variants (columns, counts, predicates, optimisations off, threads) are slow.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import scan_core
from scan_core import Scan, ScanOptions
from tests.fixture_tables import FixtureTable, fixture_tables, snapshots
from tests.rendering import differences, rendered

SNAPSHOTS = snapshots()
every_snapshot = pytest.mark.parametrize(("name", "snapshot"), SNAPSHOTS)
VARIANTS = {
    "plain": ScanOptions.without_optimisations(),
    "threads": ScanOptions(parallelism=4, split_bytes=1024),
    "small batches": ScanOptions(batch_rows=3),
    "little memory": ScanOptions(memory_limit_bytes=1),
    "no cache": ScanOptions(delete_cache_bytes=0),
    **{
        f"without {switch}": ScanOptions(**{switch: False})
        for switch in (
            "prune_partitions",
            "prune_files",
            "prune_row_groups",
            "prune_pages",
            "prune_deletes",
            "lazy_columns",
            "adaptive_order",
            "use_numba",
        )
    },
}


def scan_of(name: str, snapshot: str, options: ScanOptions | None = None) -> tuple[FixtureTable, Scan]:
    table = fixture_tables()[name]
    scan = scan_core.open_table(table.metadata, relocate=table.relocate).scan().as_of(int(snapshot))
    return table, scan if options is None else scan.with_options(options)


def expected(table: FixtureTable, snapshot: str) -> Any:
    return table.facts["rows_by_snapshot"][snapshot]


@every_snapshot
def test_snapshot_has_the_expected_rows_in_all_columns(shared_dir: Path, name: str, snapshot: str) -> None:
    table, scan = scan_of(name, snapshot)
    rows = scan.to_table()
    assert rows.column_names == table.columns(snapshot)
    assert differences(rows, expected(table, snapshot)) == []


@pytest.mark.parametrize("name", fixture_tables())
def test_current_snapshot_has_the_expected_rows(shared_dir: Path, name: str) -> None:
    table = fixture_tables()[name]
    rows = scan_core.open_table(table.metadata, relocate=table.relocate).scan().to_table()
    assert rows.column_names == table.facts["columns"]
    assert differences(rows, expected(table, table.facts["current"])) == []


def test_branches_and_tags_have_the_expected_rows(shared_dir: Path) -> None:
    table = fixture_tables()["branch_tag"]
    for ref, snapshot in table.facts["refs"].items():
        scan = scan_core.open_table(table.metadata, relocate=table.relocate).scan().at_ref(ref)
        assert differences(scan.to_table(), expected(table, snapshot)) == []


def test_row_lineage_of_v3_table_is_as_expected(shared_dir: Path) -> None:
    table = fixture_tables()["v3_dv_and_eq"]
    scan = scan_core.open_table(table.metadata, relocate=table.relocate).scan()
    rows = scan.select("id", "_row_id", "_last_updated_sequence_number").to_table()
    assert differences(rows, table.facts["row_lineage"]) == []


@pytest.mark.slow
@every_snapshot
@pytest.mark.parametrize("variant", VARIANTS)
def test_options_change_no_result(shared_dir: Path, name: str, snapshot: str, variant: str) -> None:
    table, scan = scan_of(name, snapshot, VARIANTS[variant])
    assert differences(scan.to_table(), expected(table, snapshot)) == []
    assert scan.count() == _num_rows(expected(table, snapshot))


@pytest.mark.slow
@every_snapshot
def test_each_single_column_and_count_agree_with_all_columns(shared_dir: Path, name: str, snapshot: str) -> None:
    table, scan = scan_of(name, snapshot)
    rows = scan.to_table()
    assert scan.count() == rows.num_rows
    for column in table.columns(snapshot):
        assert rendered(scan.select(column).to_table()) == rendered(rows.select([column]))


@pytest.mark.slow
@every_snapshot
@pytest.mark.parametrize("plain", [False, True], ids=["optimised", "plain"])
def test_predicates_on_each_column_keep_the_right_rows(
    shared_dir: Path, name: str, snapshot: str, *, plain: bool
) -> None:
    table, scan = scan_of(name, snapshot, ScanOptions.without_optimisations() if plain else None)
    rows = scan.to_table()
    for column in table.columns(snapshot)[:6]:
        nulls = rows.filter(rows.column(column).is_null())
        others = rows.filter(rows.column(column).is_valid())
        quoted = "`" + column.replace("`", "``") + "`"
        assert rendered(scan.where(f"{quoted} is null").to_table()) == rendered(nulls)
        assert rendered(scan.where(f"{quoted} is not null").to_table()) == rendered(others)
        literal = _literal(rows, column)
        if literal is not None:
            value, text = literal
            same = pa.compute.equal(rows.column(column), value)
            assert rendered(scan.where(f"{quoted} = {text}").to_table()) == rendered(rows.filter(same))
            other = pa.compute.not_equal(rows.column(column), value)
            assert rendered(scan.where(f"{quoted} <> {text}").to_table()) == rendered(rows.filter(other))


def _num_rows(rows: Any) -> int:
    return int(rows["num_rows"]) if isinstance(rows, dict) else len(rows)


def _literal(rows: pa.Table, column: str) -> tuple[pa.Scalar, str] | None:
    """A value of the column and its SQL, for types whose literals are plain."""
    values = [v for v in rows.column(column) if v.is_valid]
    kind = rows.schema.field(column).type
    if not values:
        return None
    value = values[len(values) // 2]
    if pa.types.is_integer(kind):
        return value, str(value.as_py())
    if pa.types.is_string(kind) and value.as_py().isprintable() and "\\" not in value.as_py():
        return value, "'" + value.as_py().replace("'", "''") + "'"
    return (value, f"date '{value.as_py().isoformat()}'") if pa.types.is_date(kind) else None
