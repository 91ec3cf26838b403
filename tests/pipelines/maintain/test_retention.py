"""Old snapshots expire, and with them the files that only they reach; nothing that anybody still reads goes."""

import json
import multiprocessing
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load, quarantine_name
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import CommitConflictError
from nevermore.pipelines.iceberg import metadata_swap, storage
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, commit, everything
from nevermore.pipelines.iceberg.positions import LAST_ORDINAL, LOG_ORDINAL, POSITION_FILE, num_carriers
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.maintain import retention
from nevermore.pipelines.maintain.orphans import orphans, orphans_of_all
from nevermore.pipelines.maintain.retention import (
    Expiry,
    MaintainedTable,
    RegularExpiry,
    expire,
    expire_all,
    file_name,
    live_files,
    manifests_of,
)
from nevermore.pipelines.publish.state import STATE, PublishedState, SourceState
from nevermore.scan_core import open_table
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of
from tests.pipelines.project import Project, event, product

NAME, LOG = "shop.products", "change_log.shop_products"
LEAST = RetentionConfig(keep_snapshots=1, keep_for=0.001)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A mirror of six commits, in which every row has been updated."""
    made = Project(tmp_path)
    for number in range(6):
        land(made, number)
    return made


def land(project: Project, number: int) -> None:
    project.land(f"{number:02}.jsonl", [event("u", product(key, f"v{number}")) for key in range(3)] + ["no json"])
    assert project.run().exit_code == 3


def config_of(project: Project) -> Any:
    return load(project.folder / "nevermore.yaml")


def run_expiry(project: Project, settings: RetentionConfig = LEAST, **options: Any) -> dict[str, Expiry]:
    config = config_of(project)
    time.sleep(0.005)
    found = expire_all(open_catalog(config), config, overrides=settings, **options)
    return {done.table: done for done in found}


def files_of(project: Project) -> set[str]:
    return {str(p.relative_to(project.folder)) for p in (project.folder / "warehouse").rglob("*") if p.is_file()}


def files_named(table: Any, *, kept: bool = True) -> set[str]:
    """Names of the data and delete files of all snapshots."""
    found = table.inspect.all_files() if kept else table.inspect.files()
    return {path.rpartition("/")[2] for path in found["file_path"].to_pylist()}


@pytest.mark.slow
def test_expired_snapshots_go_with_the_files_that_only_they_reached(project: Project) -> None:
    before, rows = files_of(project), project.rows()
    done = run_expiry(project)
    assert {name: one.error for name, one in done.items()} == dict.fromkeys((NAME, LOG, quarantine_name(NAME)))
    mirror = project.table(NAME)
    assert len(done[NAME].expired) == 5
    assert [s.snapshot_id for s in mirror.metadata.snapshots] == [mirror.metadata.current_snapshot_id]
    assert project.rows() == rows
    gone = before - files_of(project)
    assert sum(sum(one.files.values()) for one in done.values()) == len({p for p in gone if "metadata.json" not in p})
    # every row was replaced, but equality deletes let data files stay
    assert {p for p in files_of(project) if p.endswith(".parquet") and "/shop/" in p} >= {
        p for p in files_of(project) if Path(p).name in files_named(mirror)
    }
    assert all(
        Path(path.removeprefix("file://")).exists() for path in mirror.inspect.all_files()["file_path"].to_pylist()
    )
    assert not any(one.expired for one in run_expiry(project).values())
    loaded = open_catalog(config_of(project)).load_table(NAME)
    assert loaded.metadata.snapshot_log[-1].snapshot_id == loaded.metadata.current_snapshot_id


def test_data_files_that_were_replaced_go(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    paths = [append(table, key, replace=True) for key in range(3)]
    done = expired(tmp_path, table)
    assert done.files["data files"] == 2
    assert [Path(path.removeprefix("file://")).exists() for path in paths] == [False, False, True]
    assert rows_of(reloaded(table.catalog)) == [{"id": 2}]


def append(table: Any, key: int, *, replace: bool = False, **properties: str) -> str:
    delta = RowDelta(table)
    files = write_rows(pa.table({"id": [key]}), delta.target, delta.default_spec)
    delta.commit(files, properties, remove=(lambda _file: True) if replace else None)
    return str(files[0].path)


def expired(folder: Path, table: Any, settings: RetentionConfig = LEAST, **options: Any) -> Expiry:
    (folder / "nevermore.yaml").write_text("tables: {}")
    time.sleep(0.005)
    target = MaintainedTable("shop.t", "shop.t", settings)
    return expire(table.catalog, load(folder / "nevermore.yaml"), target, **options)


def ids(table: Any) -> list[int]:
    return [s.snapshot_id for s in reloaded(table.catalog).metadata.snapshots]


def test_tags_branches_number_and_age_keep_snapshots(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    for key in range(8):
        append(table, key, replace=True)
    all_ids = ids(table)
    with table.manage_snapshots() as change:
        change.create_tag(all_ids[0], "first")
        change.create_branch(all_ids[2], "side")
    assert len(expired(tmp_path, table, RetentionConfig(keep_snapshots=1, keep_for=3600)).expired) == 0
    done = expired(tmp_path, table, RetentionConfig(keep_snapshots=3, keep_for=0.001))
    # three of main, the tag, and of the branch its head and two before it, of which one is the tag's
    assert ids(table) == [all_ids[0], all_ids[1], all_ids[2], *all_ids[5:]]
    assert done.kept == {"branch main": 1, "tag first": 1, "branch side": 1, "minimum number": 3}
    opened = open_table(reloaded(table.catalog))
    assert opened.scan().at_ref("first").to_table().to_pylist() == [{"id": 0}]
    assert opened.scan().as_of_snapshot(all_ids[1]).to_table().to_pylist() == [{"id": 1}]
    assert opened.scan().at_ref("side").to_table().to_pylist() == [{"id": 2}]
    assert opened.scan().as_of_snapshot(all_ids[5]).to_table().to_pylist() == [{"id": 5}]


def test_a_branch_may_ask_to_keep_more_snapshots(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    for key in range(5):
        append(table, key)
    with table.manage_snapshots() as change:
        change.create_branch(ids(table)[3], "side", min_snapshots_to_keep=2)
    expired(tmp_path, table)
    assert len(ids(table)) == 3
    with table.manage_snapshots() as change:
        change.create_branch(ids(table)[-1], "long", max_snapshot_age_ms=3_600_000)
    append(table, 9)
    expired(tmp_path, table)
    assert len(ids(table)) == 4


def test_what_was_current_within_the_time_stays_however_old_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    now = time.time_ns() + 60 * 3_600_000_000_000
    for key, hours_ago in enumerate((50, 40, 30, 1)):
        monkeypatch.setattr(time, "time", lambda at=hours_ago: now / 1e9 - at * 3600)
        append(table, key, replace=True)
    monkeypatch.setattr(time, "time_ns", lambda: now)
    all_ids = ids(table)
    expired(tmp_path, table, RetentionConfig(keep_snapshots=1, keep_for=2 * 3600))
    assert ids(table) == all_ids[2:]  # the third was current until an hour ago
    assert open_table(reloaded(table.catalog)).scan().as_of_snapshot(all_ids[2]).count() == 1


def test_rolled_back_snapshots_stay_within_the_time_and_the_newest_always(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    for key in range(3):
        append(table, key)
    first, _, last = ids(table)
    with table.manage_snapshots() as change:
        change.rollback_to_snapshot(first)
    assert not expired(tmp_path, table, RetentionConfig(keep_snapshots=1, keep_for=60)).expired
    expired(tmp_path, table)
    assert ids(table) == [first, last]
    assert rows_of(reloaded(table.catalog)) == [{"id": 0}]


def test_rule_29_the_last_carrier_of_a_position_stays_with_all_newer_snapshots(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    append(table, 0)
    append(table, 1, **{LOG_ORDINAL: "17"})
    for key in (2, 3):
        append(table, key)
    all_ids = ids(table)
    done = expired(tmp_path, table)
    assert ids(table) == all_ids[1:]
    assert done.kept["position"] == 2
    append(reloaded(table.catalog), 4, **{LOG_ORDINAL: "18"})
    expired(tmp_path, table)
    assert len(ids(table)) == 1


def test_a_position_in_a_file_goes_with_its_last_snapshot(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    paths = [f"{table.location()}/metadata/position-{number}.txt" for number in range(2)]
    for number, path in enumerate(paths):
        RowDelta(table).storage.write(path, b"x")
        append(table, number, **{POSITION_FILE: path})
    assert expired(tmp_path, table).files["position files"] == 1
    assert [Path(path.removeprefix("file://")).exists() for path in paths] == [False, True]


@pytest.mark.parametrize(
    ("summaries", "count"),
    [
        ([], 0),
        ([{}, {}], 0),
        ([{LOG_ORDINAL: "1"}, {LOG_ORDINAL: "0"}], 1),
        ([{}, {"nevermore.position": "a"}, {POSITION_FILE: "b"}], 2),
        ([{LOG_ORDINAL: "1"}, {}, {LAST_ORDINAL: "3"}, {}], 3),
    ],
)
def test_carriers_are_the_newest_of_each_position(summaries: list[dict[str, str]], count: int) -> None:
    assert num_carriers(summaries) == count


def test_an_ingest_after_expiry_goes_on_where_it_was(project: Project) -> None:
    run_expiry(project)
    again = project.run()
    assert again.found_nothing_new
    land(project, 6)
    assert [row["name"] for row in project.rows()] == ["v6"] * 3
    log = project.rows(LOG, "ordinal")
    assert [row["ordinal"] for row in log] == list(range(1, 22))
    run_expiry(project)
    assert [row["name"] for row in project.rows()] == ["v6"] * 3


@pytest.mark.slow
def test_changes_that_the_mirror_lacks_keep_the_snapshots_of_the_log(project: Project) -> None:
    for number in (6, 7, 8):
        project.land(f"{number:02}.jsonl", [event("u", product(1, f"v{number}"))])
        project.run(log_only=True)
    done = run_expiry(project)
    assert done[LOG].kept == {"branch main": 1, "not applied yet": 3}
    project.run()
    assert [row["name"] for row in project.rows()] == ["v5", "v8", "v5"]
    assert len(run_expiry(project)[LOG].expired) == 3


def published(project: Project, mirror: Any, snapshot_id: int, *, name: str = "shop.made") -> Any:
    """A published table whose first snapshot states what it was made from, and two later ones that state nothing."""
    catalog = open_catalog(config_of(project))
    made = new_table(catalog, {"id": "long"}, name=name)
    source = SourceState(str(mirror.metadata.table_uuid), snapshot_id, "")
    append(made, 0)
    append(made, 1, **{STATE: PublishedState("q", {NAME: source}).as_json()})
    append(made, 2, **{"nevermore.partitions": "[]"})
    return made


def test_incremental_publications_keep_what_they_were_made_from(project: Project) -> None:
    mirror = project.table(NAME)
    middle = mirror.metadata.snapshots[3].snapshot_id
    path = project.folder / "nevermore.yaml"
    text = path.read_text()
    made = published(project, mirror, middle)
    path.write_text(f"{text}published:\n  shop.made: {{sql: select id from shop.products, incremental: auto}}\n")
    done = run_expiry(project)
    assert done[NAME].kept == {"branch main": 1, "changes for shop.made": 2}
    assert done["shop.made"].kept == {"branch main": 1, "published state": 1}
    assert open_table(project.table(NAME)).scan().changes(middle).to_table().num_rows == 6
    path.write_text(f"{text}published:\n  shop.made: {{sql: select id from shop.products}}\n")
    assert len(run_expiry(project)[NAME].expired) == 2
    assert len(made.catalog.load_table("shop.made").metadata.snapshots) == 1


def test_a_dry_run_reports_the_same_and_changes_nothing(project: Project) -> None:
    before, states = files_of(project), project.snapshots()
    foreseen = run_expiry(project, is_dry=True)
    assert (files_of(project), project.snapshots()) == (before, states)
    done = run_expiry(project)
    for name, one in done.items():
        assert (one.expired, one.files, one.kept) == (foreseen[name].expired, foreseen[name].files, foreseen[name].kept)
        assert one.deleted_bytes == foreseen[name].deleted_bytes > 0


def test_a_reader_of_a_kept_snapshot_goes_on_while_others_expire(project: Project) -> None:
    table = open_table(project.table(NAME))
    held = table.metadata.ancestors(table.metadata.current_snapshot_id or 0)[1].snapshot_id
    scan = table.scan().as_of_snapshot(held)
    names = {row["name"] for row in scan.to_table().to_pylist()}
    run_expiry(project, RetentionConfig(keep_snapshots=2, keep_for=0.001))
    assert {row["name"] for row in table.scan().as_of_snapshot(held).to_table().to_pylist()} == names == {"v4"}


def test_another_commit_in_between_makes_the_expiry_plan_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    for key in range(4):
        append(table, key)
    all_ids = ids(table)
    calls = []

    def late(*arguments: Any) -> None:
        if not calls:  # somebody tags a snapshot that is about to expire
            other = reloaded(catalog_in(tmp_path))
            with other.manage_snapshots() as change:
                change.create_tag(all_ids[1], "needed")
        calls.append(1)
        commit(*arguments)

    monkeypatch.setattr(retention, "commit", late)
    expired(tmp_path, table)
    assert len(calls) == 2
    assert ids(table) == [all_ids[1], all_ids[3]]
    assert open_table(reloaded(table.catalog)).scan().at_ref("needed").count() == 2


@pytest.mark.parametrize("removes_manifests", [False, True])
def test_two_expiries_at_once_both_delete_what_they_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, removes_manifests: bool
) -> None:
    """The second one expires more, and deletes it between the first one's commit and its look at what stays."""
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    for key in range(4):
        append(table, key, replace=removes_manifests)
    all_ids = ids(table)
    reached, inner = storage.reached, list[Expiry]()

    def overtaken(point: str) -> None:
        if point == "after-commit" and not inner:
            inner.append(Expiry(""))
            inner[0] = expired(tmp_path, reloaded(table.catalog))
        reached(point)

    monkeypatch.setattr(storage, "reached", overtaken)
    outer = expired(tmp_path, table, RetentionConfig(keep_snapshots=2, keep_for=0.001))
    assert (outer.expired, inner[0].expired) == (tuple(all_ids[:2]), (all_ids[2],))
    assert ids(table) == all_ids[3:]
    left = {path.name for path in tmp_path.rglob("*.avro")} | {path.name for path in tmp_path.rglob("*.parquet")}
    opened = open_table(reloaded(table.catalog))
    lists = {file_name(s.manifest_list) for s in opened.metadata.snapshots.values()}
    manifests = list(manifests_of(list(opened.metadata.snapshots.values()), opened))
    data = {file_name(file.path) for file in live_files(manifests, opened)}
    assert left == lists | data | {file_name(manifest.path) for manifest in manifests}


def test_a_table_that_never_rests_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    for key in range(3):
        append(table, key)

    def lose(*_: Any) -> None:
        raise CommitConflictError("another writer changed shop.t")

    monkeypatch.setattr(retention, "commit", lose)
    monkeypatch.setattr("nevermore.pipelines.iceberg.commit.LONGEST_PAUSE_SECONDS", 0.001)
    with pytest.raises(CommitConflictError, match=r"another writer changed shop\.t"):
        expired(tmp_path, table)
    assert len(ids(table)) == 3


def test_catalogs_without_swap_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    for key in range(4):
        append(table, key, replace=True)
    monkeypatch.setattr("nevermore.pipelines.iceberg.commit.can_swap", lambda _: False)
    done = expired(tmp_path, table)
    assert (len(done.expired), len(ids(table)), done.files["data files"]) == (3, 1, 3)
    assert rows_of(reloaded(table.catalog)) == [{"id": 3}]


def test_files_outside_of_the_folders_of_the_table_stay(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    path = append(table, 0, replace=True)
    with table.transaction() as change:
        change.set_properties({"write.data.path": f"file://{tmp_path}/elsewhere"})
    away = append(table, 1, replace=True)
    append(table, 2, replace=True)
    with table.transaction() as change:
        change.remove_properties("write.data.path")
    done = expired(tmp_path, table)
    assert done.elsewhere == (away,)
    assert Path(away.removeprefix("file://")).exists()
    assert not Path(path.removeprefix("file://")).exists()


def test_tables_whose_files_may_be_of_others_are_refused(project: Project) -> None:
    with project.table(NAME).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    done = run_expiry(project)
    assert "gc.enabled=false" in (done[NAME].error or "")
    assert done[LOG].error is None
    assert done[LOG].expired


def test_damaged_metadata_of_a_kept_snapshot_deletes_no_file(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    for key in range(3):
        append(table, key, replace=True)
    kept = Path(reloaded(table.catalog).current_snapshot().manifest_list.removeprefix("file://"))
    content = kept.read_bytes()
    kept.write_bytes(content[:-30])
    files = set(tmp_path.rglob("*.parquet"))
    with pytest.raises(Exception, match=kept.name):
        expired(tmp_path, table)
    assert set(tmp_path.rglob("*.parquet")) == files


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipelines.warm_ingest"])


def die(config: str, point: str) -> None:
    os.environ[storage.VARIABLE] = point
    loaded = load(config)
    list(expire_all(open_catalog(loaded), loaded, overrides=LEAST))
    sys.exit(0)


@pytest.mark.each(4)
@pytest.mark.parametrize(
    "point", ["after-commit", "after-commit:3", "before-acknowledgement", "before-acknowledgement:2"]
)
def test_killed_anywhere_rows_are_the_same_and_orphans_finishes(project: Project, point: str) -> None:
    rows = project.rows()
    process = FORKS.Process(target=die, args=(str(project.folder / "nevermore.yaml"), point))
    process.start()
    process.join()
    assert process.exitcode == storage.EXIT_CODE
    assert project.rows() == rows
    run_expiry(project)
    config = config_of(project)
    left = list(orphans_of_all(open_catalog(config), config, overrides=RetentionConfig(orphan_age=0.001), delete=True))
    assert sum(len(one.files) for one in left) > 0
    assert [one.error for one in left] == [None] * 3
    assert project.rows() == rows
    land(project, 6)
    assert [row["name"] for row in project.rows()] == ["v6"] * 3
    untouched = Project.__new__(Project)
    untouched.folder = project.folder
    assert not any(one.expired for one in run_expiry(untouched, RetentionConfig()).values())


def test_killed_before_the_swap_only_a_metadata_file_is_left(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, states = project.rows(), project.snapshots()

    class KilledError(BaseException):
        pass

    def die_here(*_: Any) -> bool:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(metadata_swap, "swap_location", die_here)
        with pytest.raises(KilledError):
            run_expiry(project)
    assert (project.rows(), project.snapshots()) == (rows, states)
    assert run_expiry(project)[NAME].expired
    assert project.rows() == rows


def test_beside_a_running_ingester_both_succeed(tmp_path: Path) -> None:
    project = Project(tmp_path)
    land(project, 0)
    failures: list[BaseException] = []
    enough = threading.Event()
    numbers: list[int] = []
    seconds = [0.1]

    def ingest() -> None:
        try:
            while not enough.is_set():
                numbers.append(len(numbers) + 1)
                began = time.monotonic()
                land(project, numbers[-1])
                seconds.append(time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    writer = threading.Thread(target=ingest)
    writer.start()
    num_expired = 0
    while writer.is_alive():
        began = time.monotonic()
        # longer than a commit takes: what an ingest builds upon must not vanish meanwhile
        for done in run_expiry(project, RetentionConfig(keep_snapshots=1, keep_for=5 * max(seconds))).values():
            assert done.error is None
            num_expired += len(done.expired)
        assert len({row["name"] for row in project.rows()}) == 1
        seconds.append(time.monotonic() - began)
        if num_expired > 5:
            enough.set()
    writer.join()
    assert failures == []
    run_expiry(project)
    assert [row["name"] for row in project.rows()] == [f"v{len(numbers)}"] * 3
    assert [row["ordinal"] for row in project.rows(LOG, "ordinal")] == list(range(1, 3 * len(numbers) + 4))


def history(folder: Path, seed: int, num_steps: int) -> int:
    """Random commits, tags, branches and rollbacks; after each expiry and removal of orphans, all that is left is as it was."""
    chance = random.Random(seed)
    table = new_table(catalog_in(folder), {"id": "long", "n": "long"})
    rows: dict[int, list[dict[str, Any]]] = {}
    num_expired = 0
    for step in range(num_steps):
        table = reloaded(table.catalog)
        kind = chance.choice(("commit", "commit", "commit", "replace", "truncate", "ref", "back", "expire", "orphans"))
        if kind in ("ref", "back"):
            move_refs(table, kind, step, chance)
        elif kind == "expire":
            settings = RetentionConfig(keep_snapshots=chance.randrange(1, 6), keep_for=chance.choice([0.001, 0.3, 60]))
            num_expired += len(expired(folder, table, settings).expired)
        elif kind == "orphans":
            RowDelta(table).storage.write(f"{table.location()}/data/left-{step}.parquet", b"x")
            time.sleep(0.005)
            found = orphans(table.catalog, MaintainedTable("shop.t", "shop.t", LEAST), 0.001, delete=True)
            assert [path.rpartition("/")[2] for path in found.files].count(f"left-{step}.parquet") == 1
        else:
            write(table, kind, step, chance)
        table = reloaded(table.catalog)
        location = table.metadata_location.removeprefix("file://")
        for snapshot in table.metadata.snapshots:
            if kind in ("expire", "orphans") or snapshot.snapshot_id not in rows:
                order: Any = [("id", "ascending"), ("n", "ascending")]
                now = live_rows(location, snapshot_id=snapshot.snapshot_id).sort_by(order).to_pylist()
                assert rows.setdefault(snapshot.snapshot_id, now) == now
    for name in table.metadata.refs:
        assert open_table(table).scan().at_ref(name).count() == len(rows[table.metadata.refs[name].snapshot_id])
    return num_expired


def write(table: Any, kind: str, step: int, chance: random.Random) -> None:
    delta = RowDelta(table)
    keys = [chance.randrange(8) for _ in range(3)]
    files = []
    if kind != "truncate":
        files = write_rows(pa.table({"id": keys, "n": [step] * 3}), delta.target, delta.default_spec)
        files += write_deletes(pa.table({"id": keys}), delta.target, delta.default_spec, [1])
    delta.commit(files, {}, remove=None if kind == "commit" else everything)


def move_refs(table: Any, kind: str, step: int, chance: random.Random) -> None:
    """Tag a snapshot or begin a branch at it, or roll back to an ancestor."""
    current = table.metadata.current_snapshot_id
    if current is None:
        return
    with table.manage_snapshots() as change:
        if kind == "back":
            change.rollback_to_snapshot(chance.choice(open_table(table).metadata.ancestors(current)).snapshot_id)
        else:
            create = change.create_tag if chance.random() < 0.5 else change.create_branch
            create(chance.choice(table.metadata.snapshots).snapshot_id, f"r{step}")


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_left_is_as_it_was(seed: int, tmp_path: Path) -> None:
    assert history(tmp_path, seed, 24) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", range(5))
def test_whatever_is_left_is_as_it_was_in_many_histories(block: int, tmp_path: Path) -> None:
    for seed in range(100 + 20 * block, 120 + 20 * block):
        (tmp_path / str(seed)).mkdir()
        history(tmp_path / str(seed), seed, 40)


def test_a_continuous_run_expires_what_is_due(project: Project) -> None:
    path = project.folder / "nevermore.yaml"
    assert RegularExpiry(config_of(project)).run() == []
    path.write_text(path.read_text() + "maintenance: {keep_snapshots: 2, keep_for: 1ms, expire_every: 1h}\n")
    expiry = RegularExpiry(config_of(project))
    assert {done.table: len(done.expired) for done in expiry.run()} == dict.fromkeys(
        (NAME, LOG, quarantine_name(NAME)), 4
    )
    land(project, 6)
    assert expiry.run() == []


def test_the_quarantine_of_a_feed_belongs_to_its_tables(tmp_path: Path) -> None:
    project = Project(tmp_path, {name: {"key": ["id"]} for name in ("shop.products", "shop.orders")})
    for number in range(3):
        project.land(f"{number}.jsonl", [event("c", product(number)), f"no json {number}"])
        project.run()
    config = config_of(project)
    for names in (None, ["shop.orders"]):
        found = [t.name for t in retention.maintained_tables(open_catalog(config), config, names)]
        assert found.count("quarantine.feed_of_shop_products") == 1
        assert len(set(found)) == len(found)
    time.sleep(0.005)
    done = list(expire_all(open_catalog(config), config, overrides=LEAST))
    assert [len(one.expired) for one in done if one.table.startswith("quarantine.feed")] == [2]


def test_the_section_of_a_table_overrides_single_options(tmp_path: Path) -> None:
    project = Project(
        tmp_path, {"shop.a": {"key": ["id"], "maintenance": {"keep_snapshots": 7}}, "shop.b": {"key": ["id"]}}
    )
    path = project.folder / "nevermore.yaml"
    path.write_text(path.read_text() + "maintenance: {keep_for: 2d, keep_snapshots: 3}\n")
    tables = config_of(project).tables
    assert [(tables[n].maintenance.keep_snapshots, tables[n].maintenance.keep_for) for n in ("shop.a", "shop.b")] == [
        (7, 172_800.0),
        (3, 172_800.0),
    ]


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_the_command_says_what_goes_and_what_stays(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    config = str(project.folder / "nevermore.yaml")
    assert call("expire", "--config", config) == 0
    assert (
        "shop.products: nothing to expire; 6 snapshots kept (branch main: 1, minimum number: 5)"
        in capfd.readouterr().out
    )
    time.sleep(0.005)
    words = ("expire", NAME, "--config", config, "--keep-snapshots", "2", "--keep-for", "1ms")
    assert call(*words, "--dry-run") == 0
    text = capfd.readouterr().out
    assert "shop.products: would expire 4 snapshots" in text
    assert "would be deleted" in text
    assert call(*words, "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found[0]["table"], len(found[0]["expired"]), found[0]["is_dry"]) == (NAME, 4, False)
    assert call("expire", "shop.other", "--config", config) == 2
    assert "did you mean shop.products?" in capfd.readouterr().err
    for command, option in (("expire", "--keep-for"), ("orphans", "--older-than"), ("trim-log", "--keep-log")):
        assert call(command, "--config", config, option, "soon") == 2
        assert f"{option}: 'soon' is not a duration" in capfd.readouterr().err
    with project.table(NAME).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    assert call("expire", "--config", config) == 1
    assert "shop.products: failed: shop.products has the property" in capfd.readouterr().err
