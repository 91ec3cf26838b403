"""Rows of a published table that take the place of those with their key: who deletes what, without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.errors import CommitConflictError, ConfigError
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_rows
from tests.pipelines.publish.amounts import COLUMNS, FIRST, SECOND, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_rows_take_the_place_of_those_with_their_key_as_often_as_one_likes(project: Project) -> None:
    assert project.must_publish("upsert", FIRST, {1: 10, 2: 20}).delete_files == ()
    for _ in range(2):
        project.publish("upsert", FIRST, {2: 21, 3: 30})
        assert project.rows == [(1, 1, 10), (1, 2, 21), (1, 3, 30)]


def test_a_row_that_moves_to_another_day_leaves_its_old_one(project: Project) -> None:
    project.publish("upsert", FIRST, {1: 10, 2: 20})
    project.publish("upsert", SECOND, {1: 12})
    assert project.rows == [(1, 2, 20), (2, 1, 12)]


def test_a_key_with_the_day_in_it_is_deleted_in_that_day_alone(project: Project) -> None:
    project.publish("upsert", FIRST, {1: 10}, key=("day", "id"))
    for _ in range(2):
        project.publish("upsert", SECOND, {1: 12}, key=("day", "id"))
    assert project.rows == [(1, 1, 10), (2, 1, 12)]


def test_deletes_of_an_attempt_that_lost_are_removed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.publish("upsert", FIRST, {1: 10})
    before = RowDelta.commit
    conflicts = [CommitConflictError("another writer")]

    def commit(delta: RowDelta, *arguments: Any, **options: Any) -> Any:
        if conflicts:
            raise conflicts.pop()
        return before(delta, *arguments, **options)

    monkeypatch.setattr(RowDelta, "commit", commit)
    project.publish("upsert", FIRST, {1: 11})
    known = {p.removeprefix("file://") for p in project.table.inspect.all_files()["file_path"].to_pylist()}
    assert {str(p) for p in project.folder.rglob("published/data/**/*.parquet")} == known
    assert len(known) == 3
    assert project.rows == [(1, 1, 11)]


def deletes_of(project: Project) -> list[tuple[int, bool]]:
    """Rows of each delete file, and whether it lies in a partition, by size."""
    found = project.table.inspect.delete_files().to_pylist()
    return sorted((f["record_count"], "/day=" in f["file_path"]) for f in found)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table is too large to be looked up."""
    monkeypatch.setattr("nevermore.pipelines.mirrors.delete_scope.AFFORDABLE_ROWS", -1)
    monkeypatch.setattr("nevermore.pipelines.mirrors.delete_scope.AFFORDABLE_RATIO", 0)


@pytest.mark.usefixtures("large")
def test_keys_that_no_file_can_have_are_not_deleted(project: Project) -> None:
    project.publish("upsert", FIRST, {1: 10, 2: 20, 3: 30})
    published = project.must_publish("upsert", SECOND, {2: 21, 9: 90})
    assert [file.record_count for file in published.files] == [2]
    assert deletes_of(project) == [(1, False)]  # of 9, no file can have it; in another day 2 is deleted by a global one
    assert project.rows == [(1, 1, 10), (1, 3, 30), (2, 2, 21), (2, 9, 90)]


def test_keys_with_the_day_in_them_are_deleted_in_that_day(project: Project) -> None:
    for amount in (10, 11):
        project.publish("upsert", FIRST, {1: amount, 2: amount}, key=("day", "id"))
    assert deletes_of(project) == [(2, True)]
    assert project.rows == [(1, 1, 11), (1, 2, 11)]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("key", [("id",), ("day", "id")])
def test_keys_that_another_writer_brings_meanwhile_are_deleted_too(
    key: tuple[str, ...], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.publish("upsert", FIRST, {1: 10}, key=key)
    before = RowDelta.commit
    others = [{5: 50, 6: 60}]

    def commit(delta: RowDelta, *arguments: Any, **options: Any) -> Any:
        if others:
            project.publish("upsert", FIRST, others.pop(), key=key)
        return before(delta, *arguments, **options)

    monkeypatch.setattr(RowDelta, "commit", commit)
    project.publish("upsert", FIRST, {1: 11, 5: 51}, key=key)
    assert project.rows == [(1, 1, 11), (1, 5, 51), (1, 6, 60)]
    named = {p.removeprefix("file://") for p in project.table.inspect.all_files()["file_path"].to_pylist()}
    assert {str(p) for p in project.folder.rglob("published/data/**/*.parquet")} == named


@pytest.mark.usefixtures("large")
def test_deletes_in_a_day_do_not_reach_what_another_writer_brings_under_another_spec(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.publish("upsert", FIRST, {1: 10}, key=("day", "id"))
    before = RowDelta.commit
    others = [1]

    def commit(delta: RowDelta, *arguments: Any, **options: Any) -> Any:
        if others:
            others.clear()
            other = RowDelta(project.table)
            rows = pa.table([[FIRST] * 2, [1, 2], [12, 22]], schema=COLUMNS)
            other.commit(write_rows(rows, other.target, other.unpartitioned_spec()), {})
        return before(delta, *arguments, **options)

    monkeypatch.setattr(RowDelta, "commit", commit)
    project.publish("upsert", FIRST, {1: 11}, key=("day", "id"))
    assert project.rows == [(1, 1, 11), (1, 2, 22)]


def test_a_key_that_cannot_be_one_is_refused(project: Project) -> None:
    with pytest.raises(ConfigError, match="key column 'ident' is not in the table"):
        project.publish("upsert", FIRST, {1: 10}, key=("ident",))
