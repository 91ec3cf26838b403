"""Converting equality deletes: tables of every writer, other writers meanwhile, kills, and the command."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from nevermore import scan_core
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import CommitConflictError, PipelineError
from nevermore.pipelines.iceberg import conversion, storage
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, everything, upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.maintain.orphans import orphans_of_all
from nevermore.scan_core import ScanOptions
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of
from tests.pipelines.project import Project, event
from tests.support.agreed_rows import scanned_rows
from tests.support.fixture_tables import copied, fixture_tables

EVERYTHING = CompactSettings(rewrite_all=True)


def deletes_left(table: Any) -> tuple[int, int, int]:
    """(data files with equality deletes, with position deletes, with vectors) of the current snapshot."""
    tasks = scan_core.open_table(table).scan().plan().tasks
    return (
        sum(bool(t.equality_deletes) for t in tasks),
        sum(bool(t.position_deletes) for t in tasks),
        sum(t.deletion_vector is not None for t in tasks),
    )


# Tables of other writers

OTHERS = sorted(
    name
    for name, table in fixture_tables().items()
    if table.facts["rows_by_snapshot"]
    and name != "pos_and_eq"  # position deletes in ORC, which a copy does not rewrite
)


@pytest.mark.each(38)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_tables_of_other_writers_keep_their_rows(
    name: str, version: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fixture = fixture_tables()[name]
    folder = copied(fixture.folder / name, tmp_path / "t", fixture.facts["location"])
    catalog = SqlCatalog("c", uri="sqlite://", warehouse=str(tmp_path))
    request.addfinalizer(catalog.close)
    catalog.create_namespace("lake")
    table = catalog.register_table("lake.t", str(folder / fixture.facts["metadata"]))
    before = scanned_rows(scan_core.open_table(table).scan())
    if table.format_version == 1:
        with pytest.raises(PipelineError, match="format version 1"):
            convert(table)
        return
    if version > table.format_version:
        upgrade(table, version)
    report = convert(table)
    assert scanned_rows(scan_core.open_table(catalog.load_table("lake.t")).scan()) == before
    equality, positions, vectors = deletes_left(table)
    assert equality == 0
    assert (vectors if table.format_version == 2 else positions) == 0
    assert report.snapshot_id in {None, table.metadata.current_snapshot_id}
    assert convert(table).snapshot_id is None


# Beside other writers


def table_with_deletes(folder: Path, version: int) -> Any:
    """Rows 0 to 9 in two files, where 1 and 6 were deleted by key."""
    table = new_table(catalog_in(folder), {"id": "long", "n": "long"})
    for first in (0, 5):
        append(table, range(first, first + 5))
    delete(table, [1, 6])
    if version > 2:
        upgrade(reloaded(table.catalog), version)
    return reloaded(table.catalog)


def append(table: Any, ids: Any, n: int = 0) -> None:
    delta = RowDelta(reloaded(table.catalog))
    keys = list(ids)
    delta.commit(write_rows(pa.table({"id": keys, "n": [n] * len(keys)}), delta.target, delta.default_spec), {})


def delete(table: Any, ids: list[int]) -> None:
    delta = RowDelta(reloaded(table.catalog))
    delta.commit(write_deletes(pa.table({"id": ids}), delta.target, delta.default_spec, [1]), {})


def replace_row(table: Any, key: int) -> None:
    delta = RowDelta(reloaded(table.catalog))
    files = write_rows(pa.table({"id": [key], "n": [7]}), delta.target, delta.default_spec)
    delta.commit([*files, *write_deletes(pa.table({"id": [key]}), delta.target, delta.default_spec, [1])], {})


def truncate(table: Any) -> None:
    RowDelta(reloaded(table.catalog)).commit([], {}, remove=everything)


MEANWHILE: dict[str, tuple[Callable[[Any], Any], set[int]]] = {
    "another key is deleted": (lambda t: delete(t, [2]), {1, 2, 6}),
    "a deleted key is inserted again": (lambda t: append(t, [1], n=7), {6}),
    "the row of a deleted key is replaced": (lambda t: replace_row(t, 6), {1}),
    "rows are added": (lambda t: append(t, [10]), {1, 6}),
    "everything is removed": (truncate, set(range(10))),
    "everything is removed, and a row comes": (lambda t: (truncate(t), append(t, [1], n=7)), set(range(10)) - {1}),
    "another conversion is faster": (lambda t: convert(reloaded(t.catalog)), {1, 6}),
    "deletes come and are converted": (lambda t: (delete(t, [3]), convert(reloaded(t.catalog))), {1, 3, 6}),
    "files are compacted": (lambda t: compact(reloaded(t.catalog), EVERYTHING), {1, 6}),
    "files are compacted, and a key is deleted": (
        lambda t: (compact(reloaded(t.catalog), EVERYTHING), delete(t, [2])),
        {1, 2, 6},
    ),
}
V2_MEANWHILE: dict[str, tuple[Callable[[Any], Any], set[int]]] = {
    "the table is upgraded": (lambda t: upgrade(reloaded(t.catalog), 3), {1, 6}),
}
CASES = [(name, version) for name in MEANWHILE for version in (2, 3)] + [(name, 2) for name in V2_MEANWHILE]


@pytest.mark.each(42)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("name", "version"), CASES)
def test_what_others_do_meanwhile_stays(
    name: str, version: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_deletes(tmp_path, version)
    act, dead = {**MEANWHILE, **V2_MEANWHILE}[name]
    written, left = conversion._written, [times]

    def then(*args: Any, **options: Any) -> Any:
        found = written(*args, **options)
        if left[0]:
            left[0] -= 1
            with monkeypatch.context() as within:
                within.setattr(conversion, "_written", written)
                act(table)
        return found

    monkeypatch.setattr(conversion, "_written", then)
    convert(reloaded(table.catalog))
    left[0] = 0
    table = reloaded(table.catalog)
    alive = sorted(set(range(10)) - dead | ({10} if name == "rows are added" else set()))
    assert [row["id"] for row in rows_of(table)] == alive
    convert(table)
    assert deletes_left(table)[0] == 0
    assert [row["id"] for row in rows_of(table)] == alive
    assert scan_core.open_table(table).scan().to_table().sort_by("id").to_pylist() == rows_of(table)


@pytest.mark.parametrize("version", [2, 3])
def test_rule_32_a_row_that_came_with_the_commit_that_is_converted_stays(version: int, tmp_path: Path) -> None:
    table = table_with_deletes(tmp_path, version)
    replace_row(table, 3)
    append(table, [1], n=8)
    report = convert(reloaded(table.catalog))
    table = reloaded(table.catalog)
    found = {row["id"]: row["n"] for row in rows_of(table)}
    assert found == {**dict.fromkeys((0, 2, 4, 5, 7, 8, 9), 0), 3: 7, 1: 8}
    assert (report.removed_files, report.added_positions, deletes_left(table)[0]) == (2, 3, 0)
    assert scan_core.open_table(table).scan().to_table().sort_by("id").to_pylist() == rows_of(table)


def test_writers_that_never_stop_end_it_with_a_message_and_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_deletes(tmp_path, 2)
    swap = RowDelta.commit

    def busy(self: RowDelta, *args: Any, **options: Any) -> Any:
        if options.get("operation") == "replace":
            raise CommitConflictError("shop.t has changed")
        return swap(self, *args, **options)

    monkeypatch.setattr(RowDelta, "commit", busy)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    before = sorted((tmp_path / "warehouse").rglob("*.parquet"))
    with pytest.raises(CommitConflictError):
        convert(reloaded(table.catalog))
    assert sorted((tmp_path / "warehouse").rglob("*.parquet")) == before


@pytest.mark.each(2)
@pytest.mark.parametrize("options", [ScanOptions(), ScanOptions.without_optimisations(), ScanOptions.of(parallelism=3)])
@pytest.mark.parametrize("version", [2, 3])
def test_deletes_that_touch_no_row_leave_without_a_trace(version: int, options: ScanOptions, tmp_path: Path) -> None:
    table = table_with_deletes(tmp_path, version)
    delete(table, [77])
    report = convert(reloaded(table.catalog), options)
    assert (report.removed_files, report.removed_deletes, report.added_positions) == (2, 3, 2)
    table = reloaded(table.catalog)
    delete(table, [99])
    report = convert(reloaded(table.catalog), options)
    assert (report.removed_files, report.added_files) == (1, 0)
    summary = reloaded(table.catalog).current_snapshot().summary
    assert (summary["total-equality-deletes"], summary["total-records"]) == ("0", "10")
    assert summary["total-position-deletes"] == "2"


# Killed


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipelines.warm_ingest"])


def convert_and_crash(config: str, point: str) -> None:
    os.environ[storage.VARIABLE] = point
    table = find_table(open_catalog(load(Path(config))), "shop.products")
    assert table is not None
    convert(table)


@pytest.mark.each(6)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("point", ["after-files", "after-manifests", "after-commit"])
def test_killed_anywhere_no_row_changes_and_the_next_one_finishes(tmp_path: Path, point: str, version: int) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "format_version": version}})
    project.land("1.jsonl", [event("c", {"id": n, "name": "a"}) for n in range(9)])
    project.run()
    project.land("2.jsonl", [event("d", {"id": 3, "name": "a"}), event("u", {"id": 4, "name": "b"})])
    project.run()
    rows = project.rows()
    process = FORKS.Process(target=convert_and_crash, args=(str(tmp_path / "nevermore.yaml"), point))
    process.start()
    process.join()
    assert process.exitcode == storage.EXIT_CODE
    assert project.rows() == rows
    convert(project.table("shop.products"))
    assert project.rows() == rows
    assert deletes_left(project.table("shop.products")) == ((0, 1, 0) if version == 2 else (0, 0, 1))
    config = load(tmp_path / "nevermore.yaml")
    catalog = open_catalog(config)
    time.sleep(0.05)
    list(orphans_of_all(catalog, config, ["shop.products"], overrides=RetentionConfig(orphan_age=0.01), delete=True))
    assert project.rows() == rows
    project.land("3.jsonl", [event("d", {"id": 5, "name": "a"})])
    assert project.run().exit_code == 0
    assert project.rows() == [row for row in rows if row["id"] != 5]


@pytest.mark.each(6)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("point", ["after-files", "after-manifests", "after-commit"])
def test_an_interrupted_conversion_removes_no_file_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, version: int
) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "format_version": version}})
    project.land("1.jsonl", [event("c", {"id": n, "name": "a"}) for n in range(9)])
    project.run()
    project.land("2.jsonl", [event("d", {"id": 3, "name": "a"}), event("u", {"id": 4, "name": "b"})])
    project.run()
    rows = project.rows()

    def interrupt(here: str) -> None:
        if here == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage, "reached", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert(project.table("shop.products"))
    assert project.rows() == rows
    convert(project.table("shop.products"))
    assert project.rows() == rows
    assert deletes_left(project.table("shop.products")) == ((0, 1, 0) if version == 2 else (0, 0, 1))


# The command


def call(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        main(list(words))
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capfd.readouterr()
    return code, out, err


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", {"id": n, "name": "a"}) for n in range(9)])
    project.run()
    project.land("2.jsonl", [event("d", {"id": 3, "name": "a"})])
    project.run()
    config = ("--config", str(tmp_path / "nevermore.yaml"))
    code, out, _ = call(capfd, "convert", "shop.products", *config)
    assert (code, out.split(" in ")[0]) == (
        0,
        "shop.products: 1 delete file replaced by 1 position-delete file of 1 dead row",
    )
    code, out, _ = call(capfd, "convert", "shop.products", "--upgrade", "--json", *config)
    found = json.loads(out)
    assert (code, found["removed_files"], found["added_files"], found["has_vectors"]) == (0, 1, 1, True)
    assert deletes_left(project.table("shop.products")) == (0, 0, 1)
    assert call(capfd, "convert", "shop.products", *config)[:2] == (0, "shop.products: no deletes to convert\n")
    code, _, err = call(capfd, "convert", "shop.nothing", *config)
    assert code != 0
    assert "shop.nothing" in err
    assert "Traceback" not in err
    path = str(project.table("shop.products").metadata_location)
    code, _, err = call(capfd, "convert", path)
    assert code != 0
    assert "only a catalog can make a commit" in err
