"""Errors in the words of a user: what failed, where, and what to do."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from nevermore import open_project
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import PipelineError, describe, explained
from nevermore.pipelines.iceberg.catalog import create_table, open_catalog
from nevermore.pipelines.iceberg.storage import Storage, writing
from nevermore.pipelines.maintain import replay
from nevermore.pipelines.maintain.replay import resync
from nevermore.scan_core import NestedField
from nevermore.scan_core.metadata import parse_type
from tests.pipelines.project import Project, event, product, the

FULL, BROKEN = os.strerror(errno.ENOSPC), os.strerror(errno.EIO)
CASES = {
    "full": (OSError(errno.ENOSPC, FULL, "/d/f"), f"{FULL}: '/d/f': free space there and run it again"),
    "broken": (OSError(errno.EIO, BROKEN, "/d/f"), f"{BROKEN}: '/d/f': repair or replace the disk and run it again"),
    "in another language": (
        OSError(errno.ENOSPC, "Auf dem Gerät ist kein Platz", "/d/f"),
        "Auf dem Gerät ist kein Platz: '/d/f': free",
    ),
    "read-only": (OSError(errno.EROFS, "Read-only", "/d/f"), "Read-only: '/d/f': mount the disk for writing"),
    "rights": (PermissionError(errno.EACCES, "Denied", "/d/f"), "Denied: '/d/f': change the rights there"),
    "quota": (
        OSError(errno.EDQUOT, "Quota exceeded", "/d/f"),
        "Quota exceeded: '/d/f': free space there, or raise the quota",
    ),
    "missing": (FileNotFoundError(errno.ENOENT, "None such", "/d/f"), "None such: '/d/f'"),
    "arrow with a number": (
        OSError(errno.EIO, f"Error writing. Detail: [errno 5] {BROKEN}"),
        f"Error writing. Detail: {BROKEN}: repair",
    ),
    "rename": (OSError(errno.EXDEV, "Invalid link", "/a", None, "/b"), "Invalid link: '/a' -> '/b'"),
    "arrow": (OSError("[errno 28] " + FULL), f"{FULL}: free space there and run it again"),
    "sqlite broken": (
        sqlite3.OperationalError("disk I/O error"),
        "the disk of the SQLite database is full or broken: ",
    ),
    "sqlite full": (sqlite3.OperationalError("database or disk is full"), "the disk of the SQLite database is full"),
    "sqlite closed": (
        sqlite3.OperationalError("unable to open database file"),
        "the SQLite database cannot be opened: ",
    ),
}


@pytest.mark.parametrize(("error", "said"), CASES.values(), ids=CASES)
def test_an_error_of_a_disk_says_what_to_do_and_names_no_class(error: Exception, said: str) -> None:
    text = explained(error)
    assert text is not None
    assert text.startswith(said)
    assert "rrno" not in text


def test_an_unexpected_error_is_not_explained_but_described_with_its_class() -> None:
    assert explained(ValueError("a fault")) is None
    assert describe(ValueError("a fault")) == "ValueError: a fault"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_a_table_that_cannot_be_created_asks_for_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    project = Project(tmp_path)
    catalog = open_catalog(load(tmp_path / "nevermore.yaml"))

    def fails(*_: object, **__: object) -> None:
        raise OSError(code, f"Cannot create directory '/there'. Detail: [errno {code}] {os.strerror(code)}")

    with monkeypatch.context() as patch:
        patch.setattr(type(catalog), "create_table", fails)
        with pytest.raises(PipelineError) as error:
            create_table(catalog, "shop.products", [NestedField(1, "id", parse_type("long"))])
        monkeypatch.delitem(catalog.properties, "warehouse")
        with pytest.raises(PipelineError, match=r"its warehouse: .*; check that the bucket or container exists"):
            create_table(catalog, "shop.products", [NestedField(1, "id", parse_type("long"))])
    text = describe(error.value)
    said = f"Cannot create directory '/there'. Detail: {os.strerror(code)}"
    assert text.startswith(f"shop.products cannot be created in file://{tmp_path}/warehouse: {said}: ")
    assert "credentials" not in text
    assert project.table("shop.products") is None


@pytest.mark.parametrize("path", ["s3://b/a.parquet", "file:///there/a.parquet", "/there/a.parquet"])
def test_the_words_of_a_store_stay(path: str) -> None:
    said = "The AWS Access Key Id you provided does not exist in our records."
    with pytest.raises(OSError, match="rrno 13") as error, writing(path):
        raise PermissionError(errno.EACCES, said)
    is_remote = path.startswith("s3:")
    assert (said in str(error.value)) == is_remote
    assert (path in str(error.value)) != is_remote


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_a_table_whose_disk_fails_names_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    project = Project(tmp_path)
    project.land("0.jsonl", [event("c", product(1))])

    def fails(storage: Storage, path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "open_output", fails)
        report = the(project.run())
    assert report.error is not None
    assert report.error.startswith(os.strerror(code))
    assert "run it again" in report.error
    project.run()
    assert project.rows() == [product(1)]


@pytest.mark.parametrize(
    "command", [["expire", "--keep-snapshots", "1", "--keep-for", "1ms"], ["trim-log", "--keep-log", "1ms"]]
)
def test_a_report_of_several_tables_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    project = Project(tmp_path)
    for number in range(3):
        project.land(f"{number}.jsonl", [event("c", product(1, str(number)))])
        project.run()
    if command[0] == "trim-log":  # cuts what no snapshot needs
        with pytest.raises(SystemExit):
            main(["expire", "--keep-snapshots", "1", "--keep-for", "1ms", "--config", str(tmp_path / "nevermore.yaml")])

    def fails(storage: Storage, path: str) -> None:
        raise OSError(errno.EIO, f"Error writing bytes to file. Detail: [errno 5] {BROKEN}")

    capsys.readouterr()
    monkeypatch.setattr(Storage, "open_output", fails)
    with pytest.raises(SystemExit) as end:
        main([*command, "--config", str(tmp_path / "nevermore.yaml")])
    said = "".join(capsys.readouterr())
    assert end.value.code == 1
    assert f"{BROKEN}: 'file://{tmp_path}" in said
    assert "repair or replace the disk" in said
    assert "rrno" not in said


def test_a_disk_that_fails_for_one_table_lets_others_be_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nevermore.yaml"
    path.write_text("tables:\n" + "".join(f"  shop.{n}: {{source: {{type: python}}, key: [id]}}\n" for n in ("a", "b")))
    project = open_project(path)
    for name in ("shop.a", "shop.b"):
        project.upsert(name, [{"id": 1}])

    def fails(catalog: object, config: object, name: str) -> object:
        if name == "shop.a":
            raise OSError(errno.EIO, BROKEN, "/d/f")
        return resync(catalog, config, name)  # type: ignore[arg-type]

    monkeypatch.setattr(replay, "resync", fails)
    with pytest.raises(SystemExit) as ended:
        main(["resync", "--all", "--config", str(path)])
    said = capsys.readouterr()
    assert ended.value.code == 1
    assert said.err.startswith(f"error: shop.a: {BROKEN}: '/d/f': repair or replace the disk")
    assert "shop.b: 1 row from 1 change" in said.out
