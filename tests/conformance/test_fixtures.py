"""Every shared fixture table at every snapshot, read by scan_core, has exactly the expected rows.

The plain reading runs always; the matrix (columns, counts, predicates, every optimisation on and off, threads) is slow.
What Spark reads is compared in `test_spark.py`.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions, Switches
from tests.conformance.queries import queries
from tests.support.fixture_tables import FixtureTable, fixture_tables, snapshots
from tests.support.rendering import differences, rendered

SNAPSHOTS = snapshots()
every_snapshot = pytest.mark.parametrize(("name", "snapshot"), SNAPSHOTS)
VARIANTS = {
    "one process": ScanOptions(parallelism=1),
    "plain": ScanOptions.without_optimisations(),
    "threads": ScanOptions(parallelism=4, split_bytes=1024, keep_order=False),
    "small batches": ScanOptions(batch_rows=3),
    "little memory": ScanOptions(memory_limit_bytes=1),
    "no cache": ScanOptions(delete_cache_bytes=0),
    **{f"without {switch.name}": ScanOptions.of(**{switch.name: False}) for switch in fields(Switches)},
}


def scan_of(name: str, snapshot: str, options: ScanOptions | None = None) -> tuple[FixtureTable, Scan]:
    table = fixture_tables()[name]
    scan = scan_core.open_table(table.metadata, relocate=table.relocate).scan().as_of(int(snapshot))
    return table, scan if options is None else scan.with_options(options)


def expected(table: FixtureTable, snapshot: str) -> Any:
    return table.facts["rows_by_snapshot"][snapshot]


@pytest.mark.each(16)
@every_snapshot
def test_snapshot_has_the_expected_rows_in_all_columns(shared_dir: Path, name: str, snapshot: str) -> None:
    table, scan = scan_of(name, snapshot)
    rows = scan.to_table()
    assert rows.column_names == table.columns(snapshot)
    assert differences(rows, expected(table, snapshot)) == []


@pytest.mark.each(6)
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
def test_no_option_changes_a_result(shared_dir: Path, name: str, snapshot: str, variant: str) -> None:
    table, scan = scan_of(name, snapshot, VARIANTS[variant])
    rows = scan.to_table()
    assert differences(rows, expected(table, snapshot)) == []
    for query in queries(name, snapshot, rows):
        asked = query.ask(scan)
        wanted = rendered(query.answer(rows))
        assert rendered(asked.to_table()) == wanted, query.name
        assert asked.count() == len(wanted), query.name


@pytest.mark.slow
@every_snapshot
def test_each_single_column_agrees_with_all_columns(shared_dir: Path, name: str, snapshot: str) -> None:
    table, scan = scan_of(name, snapshot)
    rows = scan.to_table()
    for column in table.columns(snapshot):
        assert rendered(scan.select(column).to_table()) == rendered(rows.select([column]))
