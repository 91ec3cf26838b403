"""Manifests that hold DELETED entries alone, EXISTING ones alone, or none, on every path that opens manifests."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.checks.mirror_checks import checks_of, run_checks
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.io import cache
from nevermore.scan_core.native import compiled
from nevermore.scan_core.why import key_report
from tests.pipelines.project import Project, event
from tests.support.agreed_rows import rows_of
from tests.support.iceberg_json import Column, Partition
from tests.support.manifest_states import STATES, State, restate
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]
KEY = COLUMNS[:1]
ROWS = [(n, "ab"[n % 2]) for n in range(8)]
DEAD = {0, 3}
STATED = [*product(STATES, (0, 1), (True, False), (True, False), (2, 3))]


@pytest.fixture(autouse=True)
def _no_manifests_in_memory() -> None:
    cache.clear()


def decode(monkeypatch: pytest.MonkeyPatch, *, together: bool) -> None:
    """Entries of manifests are decoded by compiled code, or by Python."""
    compiled.load()
    monkeypatch.setenv(compiled.SWITCH, "on" if together else "off")


def built(folder: Path, version: int = 2) -> TableBuilder:
    """Eight rows in two partitions and two files, of which an equality and a position delete remove two."""
    table = TableBuilder(folder, COLUMNS, partitions=[Partition("name", 2)], version=version)
    files = {
        name: table.data(
            {"id": [i for i, n in ROWS if n == name], "name": [n for _, n in ROWS if n == name]},
            partition={"name": name},
        )
        for name in "ab"
    }
    table.commit(*files.values())
    table.commit(
        table.equality_delete({"id": [0]}, ids=[1], columns=KEY, partition={"name": "a"}),
        table.position_delete([(files["b"], 1)]),
    )
    return table


def check_scans(table: TableBuilder, content: int, state: State, *, alone: bool) -> None:
    restate(table.metadata_path, content, state, alone=alone)
    is_gone = alone and state != "existing"
    expected = [] if is_gone and content == 0 else [r for r in ROWS if r[0] not in DEAD or (is_gone and content == 1)]
    assert rows_of(table) == expected
    opened = scan_core.open_table(table.metadata_path)
    for options in (ScanOptions(), ScanOptions.without_optimisations()):
        scan = opened.scan().with_options(options)
        assert scan.where("name = 'b' and id > 1").count() == sum(n == "b" and i > 1 for i, n in expected)
        assert scan.with_options(ScanOptions(trust_record_counts=True)).count() == len(expected)
        assert scan.explain()
        assert scan.semi_join("id", [1, 2]).count() == sum(i in {1, 2} for i, _ in expected)
        start, end = (s["snapshot-id"] for s in table.snapshots)
        changes = opened.scan().as_of_snapshot(end).with_options(options).changes(start)
        assert changes.deletes.to_table().num_rows == len(ROWS) - len(expected)
        assert changes.inserts.to_table().num_rows == 0
    for key in (0, 1):
        assert key_report(opened.scan(), {"id": key}).num_alive == sum(i == key for i, _ in expected)


def test_delete_manifests_of_deleted_entries_alone_are_read(tmp_path: Path) -> None:
    compiled.load()
    check_scans(built(tmp_path), 1, "deleted", alone=True)


@pytest.mark.slow
@pytest.mark.parametrize(("state", "content", "alone", "together", "version"), STATED)
def test_every_state_gives_its_rows_on_every_path_of_the_engine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    content: int,
    version: int,
    *,
    alone: bool,
    together: bool,
) -> None:
    decode(monkeypatch, together=together)
    check_scans(built(tmp_path, version), content, state, alone=alone)


@pytest.mark.slow
@pytest.mark.parametrize(("state", "content", "together"), list(product(STATES, (0, 1), (True, False))))
def test_mirrors_are_checked_indexed_and_written_on_over_every_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State, content: int, *, together: bool
) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "types": {"id": "long", "name": "string"}}})
    project.land("1.jsonl", [event("c", {"id": i, "name": n}) for i, n in ROWS])
    project.run()
    project.land("2.jsonl", [event("d", {"id": i, "name": n}) for i, n in ROWS if i in DEAD])
    project.run()
    decode(monkeypatch, together=together)
    restate(metadata_of(project), content, state, alone=False)
    config = load(project.folder / "nevermore.yaml")
    results = list(run_checks(config, "shop.products", checks_of(config, "shop.products")))
    assert [(r.name, r.details) for r in results if not r.passed] == []
    assert build_indexes(CatalogTarget(project.table("shop.products")), ["id"]).built == 1
    project.land("3.jsonl", [event("u", {"id": 1, "name": "new"}), event("c", {"id": 0, "name": "again"})])
    assert project.run().exit_code == 0
    assert project.rows() == [
        {"id": 0, "name": "again"},
        {"id": 1, "name": "new"},
        *({"id": i, "name": n} for i, n in ROWS if i > 1 and i not in DEAD),
    ]
    assert live_rows(metadata_of(project)).num_rows == scan_core.open_table(metadata_of(project)).scan().count()


def metadata_of(project: Project) -> Path:
    table: Any = project.table("shop.products")
    return Path(table.metadata_location.removeprefix("file://"))
