"""Faults that others report of tables with deletes that are compacted and converted: none of them happens here."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.checks.damage import verify_table
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg import conversion
from nevermore.pipelines.iceberg.commit import RowDelta, upgrade
from nevermore.pipelines.iceberg.conversion import ResolvedKeys, convert
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.maintain.retention import MaintainedTable, expire
from nevermore.scan_core import NestedField, PrimitiveType, ScanOptions, Schema
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of
from tests.pipelines.maintain.test_compact import COLUMNS, EVERYTHING, append, between, files_of, rows, upsert
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
def test_rule_31_a_vector_for_a_file_that_a_compaction_replaced(
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


def test_rows_that_get_ids_while_a_compaction_runs_keep_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files were written for format version 2, without ids; another writer upgrades the table and commits."""
    catalog = catalog_in(tmp_path)
    new_table(catalog, COLUMNS)
    append(catalog, [1, 2])
    append(catalog, [3])
    found: list[Any] = []

    def look() -> None:
        scan = scan_core.open_table(reloaded(catalog)).scan()
        found.append(scan.select("id", *(f.name for f in scan_core.ROW_LINEAGE)).to_table().sort_by("id").to_pylist())

    def meanwhile() -> None:
        upgrade(reloaded(catalog), 3)
        append(catalog, [4])
        look()

    between(monkeypatch, meanwhile)
    report = compact(reloaded(catalog), EVERYTHING)
    look()
    assert found[0] == found[1]
    assert (report.replanned, report.given_up, report.files_after) == (2, 0, 1)


def test_rule_31_a_table_that_is_upgraded_during_a_conversion_gets_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of format version 3 get no new position-delete files (rule 31)."""
    catalog = catalog_in(tmp_path)
    new_table(catalog, COLUMNS)
    append(catalog, [1, 2])
    upsert(catalog, [], deleted=[2])
    written = conversion._written

    def then(*args: Any, **options: Any) -> Any:
        made = written(*args, **options)
        if reloaded(catalog).format_version == 2:
            upgrade(reloaded(catalog), 3)
            append(catalog, [9])
        return made

    monkeypatch.setattr(conversion, "_written", then)
    report = convert(reloaded(catalog))
    assert report.has_vectors
    assert [e["file_format"] for e in reloaded(catalog).inspect.delete_files().to_pylist()] == ["PUFFIN"]
    assert ids_of(catalog) == [1, 9]
    # the older one holds the keys, for the snapshots before
    assert sorted(path.suffix for path in tmp_path.rglob("*-deletes*")) == [".parquet", ".puffin"]


@pytest.mark.parametrize("version", [2, 3])
def test_a_delete_by_a_dropped_column_that_overtakes_a_compaction_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A writer that began before the column was dropped still deletes by it, while the new files are without it."""
    catalog = catalog_in(tmp_path)
    table = new_table(catalog, {"id": "long", "n": "long"})
    if version == 3:
        upgrade(table, 3)
    delta = RowDelta(reloaded(catalog))
    files = write_rows(pa.table({"id": [1, 2, 3], "n": [1, 2, 3]}), delta.target, delta.default_spec)
    delta.commit(files, {})
    before = delta.schema
    delta = RowDelta(reloaded(catalog))
    delta.evolve(before.select([1]))
    delta.commit([], {})

    def meanwhile() -> None:
        delta = RowDelta(reloaded(catalog))
        target = replace(delta.target, schema=before)
        delta.commit(write_deletes(pa.table({"n": [2]}), target, delta.default_spec, [2]), {})

    between(monkeypatch, meanwhile)
    report = compact(reloaded(catalog), EVERYTHING)
    assert ids_of(catalog) == [1, 3]
    assert (report.replanned, report.dead_rows_removed, files_of(catalog)[1]) == (1, 1, [])


def dropped_column(catalog: Any, version: int, *, has_later_column: bool) -> Any:
    """A table of rows 1 to 3 whose column n was dropped, after which its file was rewritten; returns the schema before."""
    columns = {"id": "long", "n": "long"} | ({"later": "long"} if has_later_column else {})
    table = new_table(catalog, columns)
    if version == 3:
        upgrade(table, 3)
    delta = RowDelta(reloaded(catalog))
    rows = pa.table({name: pa.array([1, 2, 3]) for name in columns})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    before = delta.schema
    delta = RowDelta(reloaded(catalog))
    delta.evolve(before.select(tuple(i for i in before.field_ids if i != 2)))
    delta.commit([], {})
    compact(reloaded(catalog), EVERYTHING)
    return before


def delete_by(catalog: Any, schema: Any, name: str, value: int | None) -> None:
    """A delete by a writer that knows a schema."""
    delta = RowDelta(reloaded(catalog))
    target = replace(delta.target, schema=schema)
    keys = pa.table({name: pa.array([value], pa.int64())})
    delta.commit(write_deletes(keys, target, delta.default_spec, [schema.find(name).field_id]), {})


@pytest.mark.each(15)
@pytest.mark.parametrize("act", [convert, lambda table: compact(table, EVERYTHING)], ids=["convert", "compact"])
@pytest.mark.parametrize("value", [2, None])
@pytest.mark.parametrize("proof", ["snapshot", "later column"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_delete_by_a_dropped_column_that_comes_after_a_compaction_is_not_made_permanent(
    tmp_path: Path, version: int, proof: str, value: int | None, act: Callable[[Any], Any]
) -> None:
    """The new files lack the column, so that nobody can tell which of their rows a writer that still knows it deletes."""
    catalog = catalog_in(tmp_path)
    schema = dropped_column(catalog, version, has_later_column=proof == "later column")
    delete_by(catalog, schema, "n", value)
    if proof == "later column":
        kept = RetentionConfig(keep_snapshots=1, keep_for=0.001)
        config = parse("tables: {}", tmp_path / "nevermore.yaml")
        assert expire(catalog, config, MaintainedTable("shop.t", "shop.t", kept)).expired
    state = files_of(catalog)
    with pytest.raises(
        SourceError, match=r"shop\.t: .*deletes rows by column 'n', .* but data file .*parquet was written"
    ):
        act(reloaded(catalog))
    assert files_of(catalog) == state
    damage = verify_table(scan_core.open_table(reloaded(catalog))).damage
    assert [one.file for one in damage] == [file.path for file in state[0]]
    assert "deletes rows by column 'n'" in damage[0].problem


def test_rule_31_a_commit_with_vectors_makes_only_its_own_deletes_permanent(tmp_path: Path) -> None:
    """Scans read NULL for the dropped column, so the older delete removes all rows until it is rolled back."""
    catalog = catalog_in(tmp_path)
    schema = dropped_column(catalog, 3, has_later_column=False)
    delete_by(catalog, schema, "n", None)
    assert ids_of(catalog) == []
    delta = RowDelta(reloaded(catalog))
    keys = write_deletes(pa.table({"id": [2]}), delta.target, delta.default_spec, [1])
    added, replaced = ResolvedKeys(delta, keys, ScanOptions()).resolve()
    delta.commit(added, {}, remove=replaced)
    assert [file.record_count for file in added] == [1]
    assert sorted(Path(path).suffix for path in files_of(catalog)[1]) == [".parquet", ".puffin"]


@pytest.mark.parametrize("act", [convert, lambda table: compact(table, EVERYTHING)], ids=["convert", "compact"])
def test_a_file_from_before_a_column_has_nulls_in_it_though_the_column_was_dropped_later(
    tmp_path: Path, act: Callable[[Any], Any]
) -> None:
    """Rule 14: files from before a key column was added read it as NULL, so that a delete of NULL removes their rows."""
    catalog = catalog_in(tmp_path)
    new_table(catalog, {"id": "long"})
    delta = RowDelta(reloaded(catalog))
    delta.commit(write_rows(pa.table({"id": [1, 2]}), delta.target, delta.default_spec), {})
    first = delta.schema
    delta = RowDelta(reloaded(catalog))
    delta.evolve(Schema(1, (*first.fields, NestedField(2, "n", PrimitiveType("long"), required=False))))
    wider = delta.schema
    delta.commit(write_rows(pa.table({"id": [3, 4], "n": [3, 4]}), delta.target, delta.default_spec), {})
    delta = RowDelta(reloaded(catalog))
    delta.evolve(first)
    delta.commit([], {})
    delete_by(catalog, wider, "n", None)
    delete_by(catalog, wider, "n", 3)
    assert ids_of(catalog) == [4]
    assert not verify_table(scan_core.open_table(reloaded(catalog))).damage
    act(reloaded(catalog))
    assert ids_of(catalog) == [4]


def resolved_by_a_commit(table: Any) -> None:
    """A commit of ingest with `deletes: vectors`."""
    delta = RowDelta(table)
    keys = write_deletes(pa.table({"id": [1]}), delta.target, delta.default_spec, [1])
    ResolvedKeys(delta, keys, ScanOptions()).resolve()


@pytest.mark.parametrize("act", [convert, lambda table: compact(table, EVERYTHING), resolved_by_a_commit])
def test_a_data_file_that_is_listed_twice_is_refused(tmp_path: Path, act: Callable[[Any], Any]) -> None:
    """Engines that add existing files to a table do it again when asked again: a delete in between removes half of a key's rows."""
    catalog = catalog_in(tmp_path)
    upgrade(new_table(catalog, COLUMNS), 3)
    delta = RowDelta(reloaded(catalog))
    files = write_rows(rows([1, 2, 3]), delta.target, delta.default_spec)
    delta.commit(files, {})
    upsert(catalog, [], deleted=[2])
    RowDelta(reloaded(catalog)).commit(files, {})
    upsert(catalog, [], deleted=[3])

    def ids() -> list[int]:
        return sorted(scan_core.open_table(reloaded(catalog)).scan().to_table()["id"].to_pylist())

    assert ids() == [1, 1, 2]
    with pytest.raises(SourceError, match=r"shop\.t lists the data file .*parquet 2 times"):
        act(reloaded(catalog))
