"""Manifests sorted by partition: the same files and rows, and plans that read few manifests."""

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import CommitConflictError, ConfigError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.commit import RowDelta, upgrade
from nevermore.pipelines.iceberg.positions import POSITION
from nevermore.pipelines.iceberg.table_writer import check_key, write_deletes, write_rows
from nevermore.pipelines.maintain import compact as compaction
from nevermore.pipelines.maintain import manifest_order as module
from nevermore.pipelines.maintain.compact import compact_mirror
from nevermore.pipelines.maintain.manifest_order import ManifestReport, arrange_manifests
from nevermore.scan_core import MalformedTableError
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of
from tests.pipelines.project import Project, event, product

SIZE = "commit.manifest.target-size-bytes"
COLUMNS = {"id": "long", "city": "string", "x": "double"}
NAME = "shop.t"
CITIES = ("a", "b", None, "d")


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    return catalog_in(tmp_path)


def commit(catalog: Any, start: int, cities: tuple[str | None, ...] = CITIES, *, number: int = 8) -> None:
    """Insert rows, and delete one earlier row of each partition."""
    delta = RowDelta(reloaded(catalog))
    ids = list(range(start, start + number))
    rows = pa.table(
        {"id": pa.array(ids, pa.int64()), "city": [cities[i % len(cities)] for i in ids], "x": [i / 2 for i in ids]}
    )
    key = check_key(delta.schema, ("id", "city"))
    gone = rows.set_column(0, "id", pa.array([i - number for i in ids], pa.int64())).slice(0, len(cities))
    files = write_deletes(gone.select(["id", "city"]), delta.target, delta.default_spec, key)
    delta.commit([*files, *write_rows(rows, delta.target, delta.default_spec)], {POSITION: str(start)})


@pytest.fixture(scope="module")
def many_commits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metadata of a table with 20 commits of all partitions."""
    catalog = catalog_in(tmp_path_factory.mktemp("made"))
    new_table(catalog, COLUMNS, ("identity", "city"))
    for number in range(20):
        commit(catalog, number * 8)
    return str(reloaded(catalog).metadata_location)


@pytest.fixture
def made(catalog: Any, many_commits: str) -> Any:
    """The same table in a catalog of its own; manifests of 6,000 bytes are full."""
    catalog.create_namespace_if_not_exists(NAME.split(".", maxsplit=1)[0])
    catalog.register_table(NAME, many_commits)
    return sized(catalog, 6_000)


def sized(catalog: Any, size: int | str) -> Any:
    with reloaded(catalog).transaction() as change:
        change.set_properties({SIZE: str(size)})
    return reloaded(catalog)


def files_of(table: Any) -> set[tuple[Any, ...]]:
    """Everything that a snapshot says of its live files."""
    names = ("content", "file_path", "spec_id", "record_count", "file_size_in_bytes")
    return {
        (entry["sequence_number"], entry["file_sequence_number"], *(str(entry["data_file"].get(n)) for n in names))
        for entry in table.inspect.entries().to_pylist()
    }


def manifests_of(table: Any) -> list[dict[str, Any]]:
    return list(table.inspect.manifests().to_pylist())


def arranged(catalog: Any, **options: Any) -> ManifestReport:
    """Arrange the manifests, and compare the rows and files before and after."""
    before, files = rows_of(reloaded(catalog)), files_of(reloaded(catalog))
    report = arrange_manifests(reloaded(catalog), **options)
    table = reloaded(catalog)
    assert (rows_of(table), files_of(table)) == (before, files)
    assert scan_core.open_table(table).scan().to_table().sort_by("id").to_pylist() == before
    return report


@pytest.mark.each(2)
@pytest.mark.parametrize("version", [2, 3])
def test_files_are_sorted_by_partition_and_nothing_else_changes(catalog: Any, made: Any, version: int) -> None:
    if version > 2:
        upgrade(made, version)
        for number in range(20, 24):
            commit(catalog, number * 8)
    before = reloaded(catalog)
    lineage = ["id", "_row_id", "_last_updated_sequence_number"][: 1 if version < 3 else 3]
    ids = scan_core.open_table(before).scan().select(*lineage).to_table().sort_by("id")
    report = arranged(catalog)
    after = reloaded(catalog)
    assert report.read_after < report.read_before / 2
    assert (report.snapshot_id, after.current_snapshot().summary.operation.value) == (
        after.current_snapshot().snapshot_id,
        "replace",
    )
    for content in (0, 1):
        bounds = [m["partition_summaries"][0] for m in manifests_of(after) if m["content"] == content]
        assert all(b["lower_bound"] == b["upper_bound"] for b in bounds), "one partition in each"
    assert after.current_snapshot().summary[POSITION] == str((20 if version < 3 else 24) * 8 - 8)
    totals = [s.current_snapshot().summary["total-data-files"] for s in (before, after)]
    assert totals[0] == totals[1]
    assert scan_core.open_table(after).scan().select(*lineage).to_table().sort_by("id").equals(ids)
    changes = scan_core.open_table(after).scan().changes(before.current_snapshot().snapshot_id)
    assert changes.to_table().num_rows == 0
    again = arranged(catalog)
    assert (again.manifests_before, again.snapshot_id) == (0, None)
    commit(catalog, 4_000)  # and life goes on
    assert len(rows_of(reloaded(catalog))) == len(ids) + 8


def test_a_dry_run_reports_what_the_run_then_does(catalog: Any, made: Any) -> None:
    dry = arranged(catalog, is_dry=True)
    assert reloaded(catalog).metadata_location == made.metadata_location
    done = arranged(catalog)
    assert replace(dry, is_dry=False) == replace(done, snapshot_id=None)


def test_manifests_of_an_unpartitioned_table_are_merged(catalog: Any) -> None:
    new_table(catalog, COLUMNS)
    for number in range(12):
        commit(catalog, number * 8)
    report = arranged(catalog)
    assert report.manifests_before > report.manifests_after == 2  # of data, of deletes
    assert (arranged(catalog).manifests_before, arranged(catalog).snapshot_id) == (0, None)


def test_each_partition_spec_keeps_its_own(catalog: Any, made: Any) -> None:
    with made.update_spec() as change:
        change.add_field("id", "bucket[2]")
    for number in range(20, 30):
        commit(catalog, number * 8)
    report = arranged(catalog)
    assert report.read_after < report.read_before
    assert {m["partition_spec_id"] for m in manifests_of(reloaded(catalog))} == {0, 1}


def test_a_partition_larger_than_a_manifest_is_cut(catalog: Any, made: Any) -> None:
    sized(catalog, 1)
    assert arranged(catalog).snapshot_id is None, "a manifest of each file is more to read"
    sized(catalog, made.current_snapshot().manifests(made.io)[-1].manifest_length)
    arranged(catalog)
    found = [m["partition_summaries"][0] for m in manifests_of(reloaded(catalog)) if m["content"] == 0]
    assert len(found) > len(CITIES)
    assert all(one["lower_bound"] == one["upper_bound"] for one in found)


def test_commits_that_arrive_meanwhile_stay(catalog: Any, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = RowDelta.rearrange
    late = [4_000, 5_000]

    def arrange(self: RowDelta, *arguments: Any, **options: Any) -> Any:
        if late:
            commit(catalog, late.pop())
        return real(self, *arguments, **options)

    monkeypatch.setattr(RowDelta, "rearrange", arrange)
    report = arrange_manifests(made)
    assert report.snapshot_id == reloaded(catalog).current_snapshot().snapshot_id
    ids = {row["id"] for row in rows_of(reloaded(catalog))}
    assert {4_007, 5_007} < ids
    assert scan_core.open_table(reloaded(catalog)).scan().to_table().num_rows == len(ids)


def test_a_conflict_that_does_not_end_leaves_no_manifest(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(made.metadata_location.removeprefix("file://")).parent
    monkeypatch.setattr("nevermore.pipelines.iceberg.commit.commit_to_database", _conflict)
    before = set(folder.iterdir())
    with pytest.raises(CommitConflictError, match="somebody"):
        arrange_manifests(made)
    assert set(folder.iterdir()) == before


def _conflict(*_: Any) -> None:
    raise CommitConflictError("somebody else", may_retry=False)


@pytest.mark.each(3)
@pytest.mark.parametrize("point", ["after-files", "after-manifests", "after-commit"])
def test_killed_anywhere_it_changes_no_row_and_the_next_one_finishes(catalog: Any, made: Any, point: str) -> None:
    before, files = rows_of(made), files_of(made)
    process = FORKS.Process(target=arrange_and_crash, args=(str(catalog.properties["uri"]), point))
    process.start()
    process.join()
    assert process.exitcode == storage.EXIT_CODE
    assert (rows_of(reloaded(catalog)), files_of(reloaded(catalog))) == (before, files)
    assert (reloaded(catalog).metadata_location == made.metadata_location) == (point != "after-commit")
    assert (arranged(catalog).manifests_before == 0) == (point == "after-commit")


FORKS = multiprocessing.get_context("forkserver")


def arrange_and_crash(uri: str, point: str) -> None:
    """An arrangement that the system ends at a point."""
    os.environ[storage.VARIABLE] = point
    arrange_manifests(reloaded(catalog_in(Path(uri.removeprefix("sqlite:///")).parents[1])))


def test_unasked_only_where_scans_read_many_full_manifests(catalog: Any, made: Any) -> None:
    sized(catalog, 60_000)
    assert arranged(catalog, is_automatic=True).snapshot_id is None
    sized(catalog, 3_000)
    assert arranged(catalog, is_automatic=True).snapshot_id is not None
    assert arranged(catalog, is_automatic=True).snapshot_id is None


@pytest.mark.parametrize("size", ["8MiB", "0", "-1", "\u0663"])
def test_a_size_that_is_none_is_one_message(catalog: Any, made: Any, size: str) -> None:
    sized(catalog, size)
    with pytest.raises(ConfigError, match=f"{SIZE} is .*, not a number of bytes"):
        arrange_manifests(reloaded(catalog))


def test_a_damaged_manifest_stops_it_before_anything_is_written(catalog: Any) -> None:
    new_table(catalog, COLUMNS, ("identity", "city"))
    commit(catalog, 0)
    commit(catalog, 8)
    table = reloaded(catalog)
    path = Path(table.current_snapshot().manifests(table.io)[0].manifest_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(MalformedTableError, match=path.name):
        arrange_manifests(table)
    assert reloaded(catalog).metadata_location == table.metadata_location


def test_a_mirror_is_arranged_by_the_command_and_on_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nevermore.pipelines.cli.main import main

    project = Project(tmp_path, {"shop.products": {"key": ["id"], "partition_by": ["name"], "commit_rows": 4}})
    for number in range(12):
        project.land(f"{number:02}.jsonl", (event("c", product(number * 4 + i, f"p{i}")) for i in range(4)))
        project.run()
    before = project.rows()

    def run(*words: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(["compact", "shop.products", "--config", str(tmp_path / "nevermore.yaml"), "--manifests", *words])
        printed = capsys.readouterr()
        return (json.loads(printed.out) if ended.value.code == 0 else printed.err), ended.value.code

    table = project.table("shop.products")
    with table.transaction() as change:
        change.set_properties({SIZE: "2000"})
    (dry,), code = run("--dry-run", "--json")
    assert (code, dry["snapshot_id"], dry["manifests_before"] > 0) == (0, None, True)
    message, code = run("--all", "--json")
    assert code != 0
    assert "leave out --sort, --all" in message
    monkeypatch.setattr(module, "AUTO_TARGETS", 1)
    monkeypatch.setattr(compaction, "pays_unasked", lambda *_: False)
    report = compact_mirror(load(tmp_path / "nevermore.yaml"), "shop.products")
    assert report is not None
    assert report.manifests_rewritten == dry["manifests_before"]
    assert "manifests sorted by partition" in "\n".join(report.lines)
    (none,), code = run("--json")
    assert (code, none["manifests_before"]) == (0, 0)
    assert project.rows() == before
    project.land("99.jsonl", [event("d", product(1, "p1"))])
    project.run()
    assert len(project.rows()) == len(before) - 1
