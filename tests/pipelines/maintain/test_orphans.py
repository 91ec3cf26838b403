"""Files that nothing names are found and deleted; nothing that anybody may need is."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load, quarantine_name
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.maintain.orphans import Orphans, orphans, orphans_of_all
from nevermore.pipelines.maintain.retention import MaintainedTable, expire, expire_all
from nevermore.pipelines.publish.publish_commit import StagedSnapshot
from nevermore.scan_core import open_table
from nevermore.scan_core.io import exists
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of
from tests.pipelines.ingest.test_crash import Shop
from tests.pipelines.project import Project, event, product
from tests.pipelines.publish import amounts
from tests.support.object_server import properties_of, serving, store_of

DAY = 86_400.0


@pytest.fixture
def table(tmp_path: Path) -> Any:
    made = new_table(catalog_in(tmp_path), {"id": "long"})
    for key in range(3):
        append(made, key)
    return made


def append(table: Any, key: int, *, replace: bool = False) -> str:
    delta = RowDelta(table)
    files = write_rows(pa.table({"id": [key]}), delta.target, delta.default_spec)
    delta.commit(files, {}, remove=(lambda _file: True) if replace else None)
    return str(files[0].path)


def plain(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def age(folder: Path, days: float = 4) -> None:
    """Make all files older."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".db":
            os.utime(path, (time.time() - days * DAY,) * 2)


def find(table: Any, older_than: float = 3 * DAY, *, delete: bool = False) -> Orphans:
    name = ".".join(table.name())
    return orphans(table.catalog, MaintainedTable(name, name, RetentionConfig()), older_than, delete=delete)


def all_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def left_behind(table: Any) -> list[Path]:
    """What a writer leaves that was killed before its commit: data, deletes, a manifest, a list, metadata, an index, a position."""
    delta = RowDelta(table)
    written = write_rows(pa.table({"id": [7]}), delta.target, delta.default_spec)
    written += write_deletes(pa.table({"id": [7]}), delta.target, delta.default_spec, [1])
    folder = f"{table.location()}/metadata"
    names = ("x-m0.avro", "snap-1-0-x.avro", "00000-x.metadata.json", "x-bitmaps.puffin", "position-x.txt", "x.tmp")
    for name in names:
        delta.storage.write(f"{folder}/{name}", b"x")
    return [*(plain(file.path) for file in written), *(plain(f"{folder}/{name}") for name in names)]


def test_what_a_killed_writer_leaves_is_found_and_deleted(table: Any, tmp_path: Path) -> None:
    left = left_behind(table)
    assert find(table).files == ()  # too young
    assert find(table).kept["too young"] == len(left)
    age(tmp_path)
    before = all_files(tmp_path)
    found = find(table)
    assert {plain(path) for path in found.files} == set(left)
    assert found.orphan_bytes == sum(path.stat().st_size for path in left)
    assert (found.are_deleted, all_files(tmp_path)) == (False, before)
    assert find(table, delete=True).are_deleted
    assert all_files(tmp_path) == before - set(left)
    assert find(table).files == ()
    assert [row["id"] for row in rows_of(table)] == [0, 1, 2]
    assert reloaded(table.catalog).inspect.all_files().num_rows == 3


def test_a_table_that_has_only_its_first_version_keeps_its_metadata(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    assert table.metadata.metadata_log == []
    age(tmp_path)
    before = all_files(tmp_path)
    assert find(table, delete=True).files == ()
    assert all_files(tmp_path) == before


def test_nothing_that_a_snapshot_tag_or_branch_reaches_is_an_orphan(table: Any, tmp_path: Path) -> None:
    first, second, _ = (s.snapshot_id for s in table.metadata.snapshots)
    with table.manage_snapshots() as change:
        change.create_tag(first, "first")
        change.create_branch(second, "side")
        change.rollback_to_snapshot(second)
    table.refresh()
    build_indexes(CatalogTarget(table), ["id"])
    age(tmp_path)
    assert find(table).files == ()
    assert find(table, 0.0, delete=True).files == ()
    assert [row["id"] for row in rows_of(reloaded(table.catalog))] == [0, 1]
    for reference in ("first", "side", "main"):
        assert open_table(reloaded(table.catalog)).scan().at_ref(reference).count() >= 1


def test_what_recent_versions_of_the_metadata_reach_stays(table: Any, tmp_path: Path) -> None:
    """As a reader does who opened the table before its snapshots expired, or whoever goes back to that version."""
    reader = open_table(table)
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.metadata.snapshots[:-1]]).commit()
    age(tmp_path)
    assert find(table).files == ()
    assert reader.scan().as_of_snapshot(next(iter(reader.metadata.snapshots))).count() == 1
    # later, only what the snapshots that are left reach stays: two manifest lists go, as rows were only appended
    assert len(find(table, 0.0, delete=True).files) == 2
    assert [row["id"] for row in rows_of(reloaded(table.catalog))] == [0, 1, 2]


def test_tables_below_the_folder_of_a_table_are_not_its_orphans(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    outer = new_table(catalog, {"id": "long"}, name="shop.t")
    append(outer, 1)
    catalog.create_namespace("shop.t")
    inner = catalog.create_table(("shop", "t", "inner"), outer.schema(), location=f"{outer.location()}/inner")
    append(inner, 2)
    left_behind(inner)
    age(tmp_path)
    found = find(outer, 0.0, delete=True)
    assert found.files == ()
    assert found.kept["of another table"] > 8
    assert rows_of(reloaded(catalog, "shop.t.inner")) == [{"id": 2}]
    assert len(find(inner, 0.0).files) == 8


def test_a_moved_table_keeps_its_files(table: Any, tmp_path: Path) -> None:
    """Its manifests name them by other paths."""
    folder = plain(table.location())
    moved = folder.with_name("moved")
    folder.rename(moved)
    folder.symlink_to(moved)
    with table.transaction() as change:
        change._apply((_location(f"file://{moved}"),), ())
    age(tmp_path)
    found = find(reloaded(table.catalog), 0.0)
    assert found.files == ()
    assert found.kept["named by metadata"] >= 9


def _location(path: str) -> Any:
    from pyiceberg.table.update import SetLocationUpdate

    return SetLocationUpdate(location=path)


def test_hidden_files_hints_and_records_stay(table: Any, tmp_path: Path) -> None:
    folder = plain(table.location())
    for name in (
        "data/_SUCCESS",
        "data/.part.crc",
        "metadata/version-hint.text",
        "metadata/nevermore-checks/1-2-x.json",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    strange = folder / "data" / "_day=1"
    strange.mkdir()
    (strange / "left.parquet").write_text("x")
    age(tmp_path)
    found = find(table, delete=True)
    assert [plain(path).name for path in found.files] == ["left.parquet"]
    assert (found.kept["hidden"], found.kept["record"]) == (2, 2)


def test_damaged_metadata_means_nothing_is_deleted(table: Any, tmp_path: Path) -> None:
    left_behind(table)
    manifest = plain(table.metadata.snapshots[0].manifest_list)
    manifest.unlink()
    age(tmp_path)
    before = all_files(tmp_path)
    with pytest.raises(Exception, match=manifest.name):
        find(table, delete=True)
    assert all_files(tmp_path) == before


def test_rows_that_failed_a_check_stay_on_their_branch(tmp_path: Path) -> None:
    project = amounts.Project(tmp_path)
    project.publish("replace", amounts.FIRST, {1: 10})
    staged: list[StagedSnapshot] = []

    def refuse(snapshot: StagedSnapshot) -> None:
        staged.append(snapshot)
        raise ValueError("wrong rows")

    with pytest.raises(ValueError, match="wrong rows"):
        project.publish("replace", amounts.SECOND, {2: 20}, audit=refuse)
    age(tmp_path)
    assert find(project.table, 0.0, delete=True).files == ()
    assert open_table(project.table).scan().at_ref(staged[0].branch).count() == 2


@pytest.mark.each(3)
@pytest.mark.parametrize("point", ["after-files", "after-manifests", "after-commit"])
def test_what_a_killed_ingest_leaves_is_found(point: storage.CrashPoint, tmp_path: Path) -> None:
    shop = Shop(tmp_path, 3)
    shop.land(40)
    assert shop.run_and_die(point, 2) == storage.EXIT_CODE
    shop.finish()
    config = load(shop.config)
    catalog = open_catalog(config)
    age(tmp_path)
    done = list(orphans_of_all(catalog, config, overrides=RetentionConfig(orphan_age=0.001), delete=True))
    assert [one.error for one in done] == [None] * len(done)
    assert any(one.files for one in done) == (point != "after-commit")
    shop.assert_exactly_once()
    shop.land(10)
    shop.finish()
    shop.assert_exactly_once()
    for one in done:  # every file that is left is named by something
        again = orphans(catalog, MaintainedTable(one.table, one.table, RetentionConfig()), 0.0)
        assert again.files == ()


def test_what_expiry_leaves_is_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for number in range(4):
        project.land(f"{number}.jsonl", [event("u", product(key, f"v{number}")) for key in range(3)] + ["no json"])
        project.run()
    config = load(tmp_path / "nevermore.yaml")
    time.sleep(0.005)
    done = list(expire_all(open_catalog(config), config, overrides=RetentionConfig(keep_snapshots=1, keep_for=0.001)))
    assert [len(one.expired) for one in done] == [3, 3, 3]
    age(tmp_path)
    assert [
        one.files for one in orphans_of_all(open_catalog(config), config, overrides=RetentionConfig(orphan_age=0.001))
    ] == [(), (), ()]


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_the_command_lists_and_deletes_only_on_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    project = Project(tmp_path)
    config = str(tmp_path / "nevermore.yaml")
    project.land("0.jsonl", [event("c", product(1)), "no json"])
    project.run()
    left = left_behind(project.table("shop.products"))
    age(tmp_path)
    assert call("orphans", "shop.products", "--config", config) == 0
    text = capfd.readouterr().out
    assert f"shop.products: {len(left)} orphan files older than 3d of " in text
    assert "not deleted, --delete deletes them" in text
    assert all(str(path) in text for path in left)
    assert call("orphans", "--config", config, "--json", "--older-than", "5d") == 0
    found = json.loads(capfd.readouterr().out)
    assert [one["table"] for one in found] == [
        "shop.products",
        "change_log.shop_products",
        quarantine_name("shop.products"),
    ]
    assert [one["files"] for one in found] == [[], [], []]
    assert call("orphans", "--config", config, "--delete") == 0
    assert "deleted;" in capfd.readouterr().out
    assert not any(path.exists() for path in left)
    assert project.rows() == [product(1)]


def test_object_stores(tmp_path: Path) -> None:
    with serving() as endpoint:
        settings = properties_of(endpoint)
        store_of(settings).create_dir("lake")
        (tmp_path / "nevermore.yaml").write_text(
            yaml.safe_dump({"catalog": {"type": "sql", "warehouse": "s3://lake/warehouse", **settings}, "tables": {}})
        )
        config = load(tmp_path / "nevermore.yaml")
        table = new_table(open_catalog(config), {"id": "long"})
        paths = [append(table, key, replace=True) for key in range(3)]
        delta = RowDelta(table)
        left = write_rows(pa.table({"id": [7]}), delta.target, delta.default_spec)
        time.sleep(1.1)  # times of objects are whole seconds
        assert find(table).files == ()
        found = find(table, 0.01, delete=True)
        assert found.files == (left[0].path,)
        target = MaintainedTable("shop.t", "shop.t", RetentionConfig(keep_snapshots=1, keep_for=0.001))
        done = expire(table.catalog, config, target)
        assert (len(done.expired), done.files["data files"], done.elsewhere) == (2, 2, ())
        assert done.deleted_bytes > 0
        assert find(table, 0.01).files == ()
        now = reloaded(table.catalog)
        assert open_table(now).scan().to_table().to_pylist() == [{"id": 2}]
        assert [path for path in paths if exists(path, open_table(now).io)] == paths[2:]


def test_links_lead_to_files_that_are_not_the_tables(table: Any, tmp_path: Path) -> None:
    data, others = plain(table.location()) / "data", tmp_path / "others"
    (others / "below").mkdir(parents=True)
    theirs = [others / "a.parquet", others / "below" / "b.parquet"]
    for path in (*theirs, data / "left.parquet"):
        path.write_bytes(b"x")
    (data / "linked").symlink_to(others)
    (data / "itself").symlink_to(data)
    (data / "one.parquet").symlink_to(theirs[0])
    os.mkfifo(data / "fifo.parquet")
    age(tmp_path)
    found = find(table, DAY, delete=True)
    assert [path.rpartition("/")[2] for path in found.files] == ["left.parquet"]
    assert all(path.exists() for path in theirs)
    assert rows_of(table) == [{"id": key} for key in range(3)]


def test_a_folder_of_records_that_is_a_link_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "a").write_bytes(b"x")
    (tmp_path / "nevermore-checks").symlink_to(tmp_path / "others")
    assert storage.Storage().files_in(str(tmp_path / "nevermore-checks")) == []
    assert storage.Storage().files_in(str(tmp_path / "others")) == [str(tmp_path / "others" / "a")]
