"""A catalog that was lost or restored, a project that was moved or copied: no row is lost, none goes to the wrong table."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import CatalogMismatchError, SourceError
from nevermore.pipelines.iceberg import recovery
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.checked_catalog import open_existing
from nevermore.pipelines.iceberg.commit import upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.iceberg.recovery import recover
from nevermore.pipelines.iceberg.warehouse import metadata_files
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport
from nevermore.pipelines.maintain.replay import resync
from nevermore.scan_core import open_table
from nevermore.scan_core.io import private_files, whole_file

CONFIG = """
catalog: {type: sql, uri: "sqlite:///warehouse/catalog.db", warehouse: warehouse}
tables:
  shop.p: {source: {path: "landing/*.jsonl", format: debezium-json}, key: [id], deletes: equality, types: {id: long}}
"""
LOG = "change_log.shop_p"


class Project:
    """A folder with a config, into which events land one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str = CONFIG) -> "Project":
        (self.folder / "landing").mkdir(parents=True)
        self.config_path.write_text(text)
        return self

    @property
    def config_path(self) -> Path:
        return self.folder / "nevermore.yaml"

    @property
    def catalog_file(self) -> Path:
        return self.folder / "warehouse" / "catalog.db"

    def land(self, *ids: int, op: str = "c") -> None:
        name = f"{len(list((self.folder / 'landing').iterdir())):06d}.jsonl"
        images = [(None, {"id": i}) if op == "c" else ({"id": i}, None) for i in ids]
        lines = [json.dumps({"op": op, "before": b, "after": a, "ts_ms": 1}) + "\n" for b, a in images]
        (self.folder / "landing" / name).write_text("".join(lines))

    def ingest(self, *ids: int, op: str = "c") -> IngestReport:
        if ids:
            self.land(*ids, op=op)
        report = run_once(load(self.config_path))
        assert [t.error for t in report.tables] == [None]
        return report

    def rows(self) -> list[int]:
        config = load(self.config_path)
        table = find_table(open_catalog(config), "shop.p")
        return sorted(open_table(table).scan().to_table()["id"].to_pylist())

    def recover(self, *names: str, is_dry: bool = False) -> dict[str, str]:
        config = load(self.config_path)
        allowing = config.model_copy(update={"tables_elsewhere": "allow"})
        return {r.table: r.action for r in recover(config, open_catalog(allowing), names, is_dry=is_dry)}

    def archive_landing(self) -> None:
        shutil.rmtree(self.folder / "landing")
        (self.folder / "landing").mkdir()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Three commits, the last of which deletes."""
    project = Project(tmp_path / "original").write()
    project.ingest(1, 2)
    project.ingest(3)
    project.ingest(2, op="d")
    return project


def metadata_of(project: Project, table: str = "shop/p") -> list[Path]:
    return sorted((project.folder / "warehouse" / table / "metadata").glob("*.metadata.json"))


def test_a_deleted_catalog_stops_ingest_until_tables_are_registered(project: Project) -> None:
    project.catalog_file.unlink()
    project.archive_landing()
    project.land(4)
    with pytest.raises(CatalogMismatchError, match=r"does not know: shop\.p, change_log\.shop_p.*nevermore recover"):
        run_once(load(project.config_path))
    assert project.recover(is_dry=True) == {LOG: "registered", "shop.p": "registered"}
    with pytest.raises(CatalogMismatchError):
        project.ingest()
    assert project.recover() == {LOG: "registered", "shop.p": "registered"}
    assert project.recover() == {LOG: "unchanged", "shop.p": "unchanged"}
    project.ingest()
    assert project.rows() == [1, 3, 4]


def test_a_mirror_that_was_dropped_is_made_anew_from_its_log(project: Project) -> None:
    open_catalog(load(project.config_path)).drop_table(("shop", "p"))
    project.ingest()
    assert project.rows() == [1, 3]


@pytest.mark.each(3)
@pytest.mark.parametrize("commits", [1, 2, 5])
def test_a_catalog_restored_from_an_older_copy_stops_ingest(project: Project, commits: int) -> None:
    copy = project.catalog_file.read_bytes()
    for number in range(commits):
        project.ingest(10 + number)
    project.catalog_file.write_bytes(copy)
    project.archive_landing()
    project.land(99)
    with pytest.raises(CatalogMismatchError, match=r"newer metadata .*shop_p, shop\.p.*restored from an older copy"):
        run_once(load(project.config_path))
    with pytest.raises(CatalogMismatchError):  # as replay, resync, adopt, and quarantine open it
        open_existing(load(project.config_path))
    assert set(project.recover().values()) == {"brought forward"}
    project.ingest()
    assert project.rows() == [1, 3, *range(10, 10 + commits), 99]


def test_a_commit_that_died_before_the_catalog_knew_of_it_stops_nothing(project: Project) -> None:
    newest = metadata_of(project)[-1]
    shutil.copy(
        newest, newest.with_name(f"{int(newest.name[:5]) + 1:05d}-00000000-0000-0000-0000-000000000000.metadata.json")
    )
    project.ingest(5)
    assert project.rows() == [1, 3, 5]


def test_a_metadata_file_that_disappears_while_the_warehouse_is_looked_at_stops_nothing(project: Project) -> None:
    """As a commit that loses against another one removes its file. A link to nothing is listed, but not there."""
    newest = metadata_of(project)[-1]
    gone = newest.with_name(f"{newest.name[:5]}-gone.metadata.json")
    gone.symlink_to(newest.with_name("gone"))
    assert next(metadata_files(newest.parent.parent)).path == newest
    project.ingest()
    assert project.rows() == [1, 3]
    assert live_rows(newest.parent.parent).num_rows == 2


def test_a_table_that_was_only_created_is_no_loss(tmp_path: Path) -> None:
    project = Project(tmp_path).write()
    project.ingest(1)
    for extra in metadata_of(project)[1:]:
        extra.unlink()
    for extra in metadata_of(project, "change_log/shop_p")[1:]:
        extra.unlink()
    project.catalog_file.unlink()
    project.ingest()
    assert project.rows() == [1]


COMMANDS = (
    ["compact", "shop.p", "--all"],
    ["convert", "shop.p"],
    ["index", "shop.p", "--columns", "id"],
    ["expire"],
    ["orphans", "--delete"],
    ["erase", "shop.p", "--where", "id = 1", "--delete"],
    ["rollback", "shop.p", "--to", "1"],
    ["replay", "shop.p", "--all"],
    ["resync", "shop.p"],
    ["adopt", "shop.p"],
    ["debt"],
)
READERS = (
    *(["status"], ["tables"], ["quarantine", "list"], ["check"]),
    *([name, "shop.p"] for name in ("scan", "describe", "files", "snapshots", "explain", "changes", "verify")),
)


@pytest.mark.each(28)
@pytest.mark.parametrize("command", [*COMMANDS, *READERS], ids=lambda command: command[0])
def test_no_command_takes_a_lost_catalog_for_a_project_without_tables(
    command: list[str], project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.catalog_file.unlink()
    with pytest.raises(SystemExit) as ended:
        main([*command, "--config", str(project.config_path), "--json"])
    assert ended.value.code == 1
    message = json.loads(capsys.readouterr().err)["error"]
    assert "does not know: shop.p, change_log.shop_p" in message
    assert "nevermore recover" in message
    assert not project.catalog_file.exists()


@pytest.mark.each(28)
@pytest.mark.parametrize("command", [*COMMANDS, *READERS, ["report", "shop.p"]], ids=lambda command: command[0])
def test_no_command_reads_or_changes_the_tables_of_the_project_that_was_copied(
    command: list[str], project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Project(tmp_path / "copy")
    shutil.copytree(project.folder, copy.folder)
    before = sorted(project.folder.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main([*command, "--config", str(copy.config_path), "--json"])
    assert ended.value.code == 1
    assert "was copied or moved" in json.loads(capsys.readouterr().err)["error"]
    assert sorted(project.folder.rglob("*")) == before


def test_a_project_behind_a_symbolic_link_is_no_copy(project: Project, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(project.folder, target_is_directory=True)
    linked = Project(tmp_path / "link")
    linked.ingest(9)
    assert linked.rows() == project.rows() == [1, 3, 9]


def test_a_copied_project_does_not_write_into_the_original(project: Project, tmp_path: Path) -> None:
    copy = Project(tmp_path / "copy")
    shutil.copytree(project.folder, copy.folder)
    copy.land(7)
    before = sorted(project.folder.rglob("*"))
    with pytest.raises(CatalogMismatchError, match=r"was copied or moved.*nevermore recover"):
        run_once(load(copy.config_path))
    assert set(copy.recover().values()) == {"moved here"}
    copy.ingest()
    assert (copy.rows(), project.rows()) == ([1, 3, 7], [1, 3])
    assert sorted(project.folder.rglob("*")) == before
    shutil.rmtree(project.folder)  # nothing of the copy names it any more
    copy.ingest(8, op="c")
    copy.ingest(1, op="d")
    assert copy.rows() == [3, 7, 8]
    table = open_table(find_table(open_catalog(load(copy.config_path)), "shop.p"))
    for snapshot in table.metadata.snapshots:
        table.scan().as_of_snapshot(snapshot).to_table()
    assert str(project.folder) not in metadata_of(copy)[-1].read_text()


def test_a_copy_may_be_told_to_write_the_tables_of_the_original(project: Project, tmp_path: Path) -> None:
    copy = Project(tmp_path / "copy")
    shutil.copytree(project.folder, copy.folder)
    copy.config_path.write_text(f"{CONFIG}tables_elsewhere: allow\n")
    copy.land(7)
    copy.ingest()
    assert copy.rows() == [1, 3, 7]
    assert len(metadata_of(project)) > len(metadata_of(copy))


def test_a_moved_project_names_the_way_out(project: Project, tmp_path: Path) -> None:
    moved = Project(tmp_path / "moved")
    shutil.move(project.folder, moved.folder)
    with pytest.raises(CatalogMismatchError, match="nevermore recover"):
        moved.rows()
    with pytest.raises(CatalogMismatchError, match="nevermore recover"):
        run_once(load(moved.config_path))
    assert set(moved.recover().values()) == {"moved here"}
    moved.ingest(9)
    assert moved.rows() == [1, 3, 9]


def test_a_move_that_finds_no_room_leaves_none_of_its_files(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = find_table(open_catalog(load(project.config_path)), "shop.p")
    assert table is not None
    project.ingest(1, op="d")
    convert(table.refresh())
    copy = Project(tmp_path / "copy")
    shutil.copytree(project.folder, copy.folder)
    left = 0

    def fails() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    @contextmanager
    def half_a_file(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
        with whole_file(path, mode) as file:
            yield file
            if fails():
                (copy.folder / "warehouse" / f"of others {number}").mkdir()
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recovery, "whole_file", half_a_file)
    monkeypatch.setattr(private_files, "whole_file", half_a_file)
    for number in range(6):  # a table has more files to write
        left = number
        before = {*copy.folder.rglob("*"), copy.folder / "warehouse" / f"of others {number}"}
        with pytest.raises(SystemExit) as end:
            main(["recover", "shop.p", "--config", str(copy.config_path)])
        assert end.value.code == 1
        assert {*copy.folder.rglob("*")} == before
        assert capsys.readouterr().err.startswith(f"error: No space left on device: '{copy.folder}/")
    monkeypatch.undo()
    copy.recover()
    assert copy.rows() == project.rows()


@pytest.mark.each(2)
@pytest.mark.parametrize("version", [2, 3])
def test_position_deletes_move_with_a_copy(project: Project, tmp_path: Path, version: int) -> None:
    catalog = open_catalog(load(project.config_path))
    table = find_table(catalog, "shop.p")
    assert table is not None
    if version == 3:
        upgrade(table, 3)
        project.config_path.write_text(CONFIG.replace("key: [id]", "key: [id], format_version: 3"))
    assert convert(table).snapshot_id is not None
    copy = Project(tmp_path / "a copy")
    shutil.copytree(project.folder, copy.folder)
    assert set(copy.recover(is_dry=True).values()) == {"moved here"}
    assert set(copy.recover().values()) == {"moved here"}
    shutil.rmtree(project.folder)
    assert copy.rows() == [1, 3]
    found = find_table(open_catalog(load(copy.config_path)), "shop.p")
    assert found is not None
    live = live_rows(Path(found.metadata_location.removeprefix("file://")))
    assert sorted(live["id"].to_pylist()) == [1, 3]
    copy.ingest(1, op="d")
    copy.ingest(9)
    assert copy.rows() == [3, 9]
    assert set(copy.recover().values()) == {"unchanged"}


@pytest.mark.each(2)
@pytest.mark.parametrize("kind", ["avro", "orc"])
def test_of_a_copy_all_tables_move_or_none(project: Project, tmp_path: Path, kind: str) -> None:
    import fastavro

    copy = Project(tmp_path / "copy")
    shutil.copytree(project.folder, copy.folder)
    for path in (copy.folder / "warehouse/shop/p/metadata").glob("*-m*.avro"):
        with path.open("rb") as stream:
            reader = fastavro.reader(stream)
            rows, schema, header = list(reader), json.loads(reader.metadata["avro.schema"]), dict(reader.metadata)
        if header.get("content") != "deletes":
            continue
        for row in rows:
            row["data_file"] |= {"content": 1, "file_format": kind}
        with path.open("wb") as stream:
            fastavro.writer(
                stream, schema, rows, metadata={k: v for k, v in header.items() if not k.startswith("avro.")}
            )
    before = sorted(copy.folder.rglob("*"))
    for is_dry in (True, False):
        with pytest.raises(SourceError, match=rf"{kind} files.*rewrite_table_path.*--relocate.*no table was changed"):
            copy.recover(is_dry=is_dry)
    assert sorted(copy.folder.rglob("*")) == before


@pytest.mark.each(15)
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
@pytest.mark.parametrize(
    "words", [["ingest"], ["scan", "shop.p", "--count"], ["status"], ["check"], ["resync", "shop.p"]]
)
def test_damaged_metadata_is_one_message_that_names_the_file(
    project: Project, damage: str, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    from nevermore.pipelines.cli.main import main

    newest = metadata_of(project)[-1]
    if damage == "missing":
        newest.unlink()
    else:
        newest.write_bytes(newest.read_bytes()[: 300 if damage == "cut" else 0])
    with pytest.raises(SystemExit) as ended:
        main([*words, "--config", str(project.config_path)])
    errors = capfd.readouterr().err
    assert ended.value.code == 1
    assert newest.name in errors
    assert "nevermore recover" in errors
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1


def test_a_fifo_in_the_place_of_metadata_is_refused_at_once(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    path = metadata_of(project)[-1]
    path.unlink()
    os.mkfifo(path)
    for command in (["compact", "shop.p"], ["scan", "shop.p"], ["expire", "shop.p"], ["status"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--config", str(project.config_path), "--json"])
        assert ended.value.code == 1
        assert "is not a regular file" in str(capsys.readouterr())
    assert project.recover()["shop.p"] == "brought forward"
    assert project.rows() == [1, 2, 3]  # the delete was committed with the metadata that is gone


def test_recover_falls_back_to_the_newest_metadata_that_is_whole(project: Project) -> None:
    newest = metadata_of(project)[-1]
    newest.write_bytes(newest.read_bytes()[:300])
    assert project.recover("shop.p") == {"shop.p": "brought forward"}
    assert project.rows() == [1, 2, 3]
    project.ingest()  # the log has what was lost
    assert project.rows() == [1, 3]


def test_recover_passes_over_metadata_of_which_a_manifest_list_is_damaged(project: Project) -> None:
    newest = json.loads(metadata_of(project)[-1].read_bytes())
    (listed,) = [s["manifest-list"] for s in newest["snapshots"] if s["snapshot-id"] == newest["current-snapshot-id"]]
    path = Path(listed.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-30])
    (found,) = recover(load(project.config_path), open_catalog(load(project.config_path)), ["shop.p"])
    assert found.action == "brought forward"
    assert path.name in found.passed_over[0]
    assert project.rows() == [1, 2, 3]


def test_recover_says_what_is_missing(project: Project) -> None:
    with pytest.raises(SourceError, match=r"no table shop\.q; it has change_log\.shop_p, shop\.p"):
        project.recover("shop.q")
    project.catalog_file.unlink()
    for path in (project.folder / "warehouse/shop/p").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(SourceError, match=r"shop\.p: no metadata file .* can be used: .*parquet, which is not there"):
        project.recover("shop.p")


def test_folders_of_dropped_tables_are_no_tables(project: Project) -> None:
    config = load(project.config_path)
    resync(open_catalog(config), config, "shop.p")
    assert not (project.folder / "warehouse" / "shop" / "p__resync").exists()
    (project.folder / "warehouse" / "shop" / "p__resync" / "metadata").mkdir(parents=True)  # as other tools leave it
    project.catalog_file.unlink()
    assert project.recover() == {"shop.p": "registered", LOG: "registered"}
    assert project.rows() == [1, 3]
    with pytest.raises(SourceError, match=r"has no table shop\.p__resync"):
        project.recover("shop.p__resync")


def test_a_table_that_cannot_be_recovered_is_named_and_the_others_can_be_chosen(project: Project) -> None:
    shutil.rmtree(project.folder / "warehouse" / "change_log" / "shop_p" / "data")
    project.catalog_file.unlink()
    for is_dry in (True, False):
        with pytest.raises(
            SourceError,
            match=r"^change_log\.shop_p: .*; no table was changed; `nevermore recover shop\.p` leaves the others",
        ):
            project.recover(is_dry=is_dry)
    assert project.recover("shop.p") == {"shop.p": "registered"}
    assert project.rows() == [1, 3]


def test_tables_of_patterns_are_missed_too(tmp_path: Path) -> None:
    text = CONFIG.replace("shop.p:", "shop.*:").replace(", key: [id], types: {id: long}", ", key: [id]")
    project = Project(tmp_path).write(text)
    event = {"op": "c", "before": None, "after": {"id": 1}, "source": {"table": "p"}, "ts_ms": 1}
    (project.folder / "landing" / "1.jsonl").write_text(json.dumps(event) + "\n")
    assert [t.error for t in run_once(load(project.config_path)).tables] == [None]
    project.catalog_file.unlink()
    with pytest.raises(CatalogMismatchError, match=r"change_log\.shop_p"):
        run_once(load(project.config_path))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach; the temporary folders of pytest are its user's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["ingest"], "warehouse/shop/p/metadata"),
        (["ingest"], "warehouse/catalog.db"),
        (["resync", "shop.p"], "warehouse"),
        pytest.param(["ingest"], "warehouse", marks=pytest.mark.slow),
        pytest.param(["resync", "shop.p"], "warehouse/shop/p/metadata", marks=pytest.mark.slow),
        pytest.param(["resync", "shop.p"], "warehouse/catalog.db", marks=pytest.mark.slow),
    ],
)
def test_a_warehouse_that_cannot_be_written_is_one_message(open_folder: Path, place: str, words: list[str]) -> None:
    project = Project(open_folder / "project").write()
    project.ingest(1)
    project.land(5)
    for path in (project.folder, *project.folder.rglob("*")):
        path.chmod(0o777)
    read_only = project.folder / place
    read_only.chmod(0o555)
    home = open_folder / "home"
    home.mkdir(mode=0o777)
    code = (
        "import os, sys\n"
        "from nevermore.pipelines.cli.main import main\n"
        "import nevermore.pipelines.cli.ingest_commands, nevermore.pipelines.cli.repair_commands, nevermore.pipelines.maintain.replay, nevermore.pipelines.iceberg.recovery\n"
        "import pyiceberg.catalog.sql\n"
        f"os.environ['HOME'] = {str(home)!r}\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"main({[*words, '--config', str(project.config_path)]!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr == f"error: {read_only} is not writable for this user (uid 65534); nothing was read or written\n"
