"""Faults that others report of tables with deletes that are compacted and converted: none of them happens here."""

from pathlib import Path
from typing import Any

import pytest

import scan_core
from pipelines.iceberg.commit import RowDelta
from pipelines.iceberg.conversion import convert
from pipelines.iceberg.loaded_table import upgrade
from pipelines.maintain.compact import CompactSettings, compact
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of
from tests.pipelines.maintain.test_compact import COLUMNS, EVERYTHING, append, between, files_of, upsert
from tests.pipelines.project import Project, event, product

MODES: dict[str, dict[str, Any]] = {
    "equality": {},
    "converted": {"deletes": "converted"},
    "vectors": {"deletes": "vectors", "format_version": 3},
}


def ids_of(catalog: Any) -> list[int]:
    """The keys of live rows, as the reference and the engine read them."""
    found = [row["id"] for row in rows_of(reloaded(catalog))]
    assert sorted(scan_core.open_table(reloaded(catalog)).scan().to_table()["id"].to_pylist()) == found
    return found


@pytest.mark.parametrize("version", [2, 3])
def test_apache_iceberg_10312_a_delete_that_overtakes_a_compaction_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A compaction of rows 1 to 3 runs while a commit deletes row 2 by its key, and another one appends row 4."""
    catalog = catalog_in(tmp_path)
    table = new_table(catalog, COLUMNS)
    if version == 3:
        upgrade(table, 3)
    append(catalog, [1, 2, 3])

    def meanwhile() -> None:
        upsert(catalog, [], deleted=[2])
        append(catalog, [4])

    between(monkeypatch, meanwhile)
    report = compact(reloaded(catalog), EVERYTHING)
    assert (report.files_before, report.given_up) == (1, 0)
    assert ids_of(catalog) == [1, 3, 4]
    convert(reloaded(catalog))
    assert ids_of(catalog) == [1, 3, 4]
    compact(reloaded(catalog), EVERYTHING)
    assert ids_of(catalog) == [1, 3, 4]
    assert files_of(catalog)[1] == []


@pytest.mark.parametrize("mode", MODES)
def test_apache_iceberg_15305_a_delete_applies_to_the_row_that_its_own_commit_would_add(
    tmp_path: Path, mode: str
) -> None:
    """Data and equality deletes of one commit have one sequence number, so that such a delete never meets its row."""
    project = Project(tmp_path, {"shop.products": {"key": ["id"], **MODES[mode]}})
    project.land("1.jsonl", [event("c", product(i)) for i in range(4)])
    assert project.run().exit_code == 0
    lines = [
        event("u", product(1, "new")),
        event("d", product(1)),
        event("c", product(7)),
        event("d", product(7)),
        event("d", product(2)),
        event("c", product(2, "again")),
    ]
    project.land("2.jsonl", lines)
    assert project.run().exit_code == 0

    def alive() -> dict[int, str]:
        return {row["id"]: row["name"] for row in project.rows()}

    expected = {0: product(0)["name"], 2: "again", 3: product(3)["name"]}
    assert alive() == expected
    convert(project.table("shop.products"))
    assert alive() == expected
    compact(project.table("shop.products"), EVERYTHING)
    assert alive() == expected


@pytest.mark.parametrize("version", [2, 3])
def test_global_deletes_of_a_partitioned_table_do_not_dangle_while_a_partition_needs_them(
    tmp_path: Path, version: int
) -> None:
    """A rewrite of one partition leaves no data file of the unpartitioned spec, and yet the delete is needed by others."""
    catalog = catalog_in(tmp_path)
    table = new_table(catalog, COLUMNS, ("identity", "city"))
    if version == 3:
        upgrade(table, 3)
    append(catalog, range(9))
    upsert(catalog, [], deleted=[0, 1, 2])
    for place, left in enumerate((1, 1, 0)):
        compact(reloaded(catalog), CompactSettings(rewrite_all=True, where=f"city = 'a{place}'"))
        assert len(files_of(catalog)[1]) == left
        assert ids_of(catalog) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("first", ["compaction", "vectors"])
def test_a_vector_for_a_file_that_a_compaction_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Ingest writes vectors for the files that it has read; a compaction replaces them before either commits."""
    project = Project(tmp_path, {"shop.products": {"key": ["id"], **MODES["vectors"]}})
    for number in range(4):
        project.land(f"{number}.jsonl", [event("c", product(i)) for i in range(5 * number, 5 * number + 5)])
        assert project.run().exit_code == 0
    project.land("later.jsonl", [event("d", product(i)) for i in (0, 6)] + [event("u", product(12, "new"))])
    if first == "vectors":
        between(monkeypatch, project.run)
        report = compact(project.table("shop.products"), EVERYTHING)
        assert report.replanned > 0
    else:
        original, left = RowDelta.commit, [1]

        def overtaken(self: RowDelta, *args: Any, **options: Any) -> Any:
            if self.table.name()[-1] == "products" and left[0]:
                left[0] = 0
                compact(project.table("shop.products"), EVERYTHING)
            return original(self, *args, **options)

        monkeypatch.setattr(RowDelta, "commit", overtaken)
        assert project.run().exit_code == 0
        assert left == [0]
    found = {row["id"]: row["name"] for row in project.rows()}
    assert found.keys() == {*range(20)} - {0, 6}
    assert found[12] == "new"
    engine = scan_core.open_table(project.table("shop.products")).scan().to_table()
    assert dict(zip(engine["id"].to_pylist(), engine["name"].to_pylist(), strict=True)) == found
