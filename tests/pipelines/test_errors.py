"""Errors in the words of a user: what failed, where, and what to do."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from nevermore.pipelines.errors import explained
from nevermore.pipelines.iceberg.storage import Storage
from tests.pipelines.project import Project, event, product, the

FULL, BROKEN = os.strerror(errno.ENOSPC), os.strerror(errno.EIO)
CASES = {
    "full": (OSError(errno.ENOSPC, FULL, "/d/f"), f"{FULL}: '/d/f': free space there and run it again"),
    "broken": (OSError(errno.EIO, BROKEN, "/d/f"), f"{BROKEN}: '/d/f': repair or replace the disk and run it again"),
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


def test_an_unexpected_error_is_not_explained() -> None:
    assert explained(ValueError("a fault")) is None


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
