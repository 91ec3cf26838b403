"""How files of a published day become a snapshot, without Spark: rows are written where the commit is made."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.catalog import create_table, find_table, open_catalog
from pipelines.config import parse
from pipelines.errors import CommitConflictError, ConfigError
from pipelines.published.appended import SOURCES, appended, remembered
from pipelines.published.commit import Mode, Publication, Published, PublishedTarget
from pipelines.published.partition import PublishedPartition
from pipelines.published.state import PARTITIONS, partitions_json
from pipelines.tables.commit import RowDelta
from pipelines.tables.schema_evolution import iceberg_fields
from pipelines.tables.table_writer import write_rows
from scan_core import open_table

NAME = "shop.published"
FIRST, SECOND, THIRD = (dt.date(2026, 1, day) for day in (1, 2, 3))
COLUMNS = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("amount", pa.int64())])


class Project:
    """A catalog with one published table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = parse("tables: {shop.orders: {source: {path: none}, key: [id]}}", folder / "nevermore.yaml")
        self.catalog = open_catalog(config)

    def publish(
        self, mode: Mode, day: dt.date, rows: Mapping[int, int], *, state: str = "1", key: tuple[str, ...] = ("id",)
    ) -> Published | None:
        """Publish amounts by id as a day's rows, made from a state of the mirrors; None for a repeated append."""
        done = appended(self.table, state)
        if mode == "append" and (done.is_all or day.isoformat() in done.keys):
            return None
        target = PublishedTarget(
            self.catalog, NAME, iceberg_fields(COLUMNS), PublishedPartition.parse("day"), mode, key
        )
        table = pa.table([[day] * len(rows), list(rows), list(rows.values())], schema=COLUMNS)
        publication = Publication(
            target,
            {(day - dt.date(1970, 1, 1)).days},
            lambda table: appended(table, state) == done,
            remembered(state, [day.isoformat()]) if mode == "append" else {},
        )
        told = {SOURCES: state, PARTITIONS: partitions_json([day.isoformat()])}
        return publication.commit(lambda delta: write_rows(table, delta.target, delta.default_spec), told)

    def must_publish(self, mode: Mode, day: dt.date, rows: Mapping[int, int], **options: Any) -> Published:
        published = self.publish(mode, day, rows, **options)
        assert published is not None
        return published

    @property
    def table(self) -> Any:
        return find_table(self.catalog, NAME)

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        rows = open_table(self.table).scan().to_table().to_pylist()
        return sorted((row["day"].day, row["id"], row["amount"]) for row in rows)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


# -- append ------------------------------------------------------------------------------------------------------------


def test_a_day_is_appended_once_per_state_of_the_mirrors(project: Project) -> None:
    assert project.publish("append", FIRST, {1: 10})
    assert project.publish("append", FIRST, {1: 10}) is None
    assert project.publish("append", SECOND, {1: 10})
    assert project.publish("append", FIRST, {1: 11}, state="2")
    assert project.publish("append", FIRST, {1: 10}) is None
    assert project.rows == [(1, 1, 10), (1, 1, 11), (2, 1, 10)]


def test_a_day_without_rows_is_remembered_as_appended(project: Project) -> None:
    assert [project.publish("append", FIRST, {}) is None for _ in range(2)] == [False, True]


def test_what_expired_snapshots_appended_is_not_appended_again(project: Project) -> None:
    first = project.must_publish("append", FIRST, {1: 10})
    project.publish("append", SECOND, {2: 20})
    project.table.maintenance.expire_snapshots().by_id(first.committed.snapshot_id).commit()
    assert len(project.table.metadata.snapshots) == 1
    assert project.publish("append", FIRST, {1: 10}) is None


def test_what_a_tag_keeps_beyond_expired_snapshots_is_not_appended_again(project: Project) -> None:
    first, second, _ = (project.must_publish("append", day, {1: 10}) for day in (FIRST, SECOND, THIRD))
    snapshots = project.table.manage_snapshots()
    snapshots.create_tag(first.committed.snapshot_id, "kept").commit()
    project.table.maintenance.expire_snapshots().by_id(second.committed.snapshot_id).commit()
    assert project.publish("append", FIRST, {1: 10}) is None
    assert project.rows == [(1, 1, 10), (2, 1, 10), (3, 1, 10)]


def test_what_was_rolled_back_is_appended_again(project: Project) -> None:
    kept = project.must_publish("append", FIRST, {1: 10}).committed.snapshot_id
    project.publish("append", SECOND, {2: 20})
    project.table.manage_snapshots().rollback_to_snapshot(kept).commit()
    assert project.publish("append", SECOND, {2: 20}) is not None
    assert project.rows == [(1, 1, 10), (2, 2, 20)]


# -- upsert ------------------------------------------------------------------------------------------------------------


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


def test_a_key_that_cannot_be_one_is_refused(project: Project) -> None:
    with pytest.raises(ConfigError, match="key column 'ident' is not in the table"):
        project.publish("upsert", FIRST, {1: 10}, key=("ident",))


# -- replace -----------------------------------------------------------------------------------------------------------


def test_a_table_that_was_upserted_can_be_replaced(project: Project) -> None:
    project.publish("upsert", FIRST, {1: 10, 2: 20})
    project.publish("upsert", FIRST, {1: 11, 3: 30})
    project.publish("upsert", SECOND, {5: 50})
    project.publish("replace", FIRST, {1: 12, 2: 22})
    assert project.rows == [(1, 1, 12), (1, 2, 22), (2, 5, 50)]


def test_a_day_is_replaced_only_where_it_is_a_partition(project: Project) -> None:
    create_table(project.catalog, NAME, iceberg_fields(COLUMNS))
    with pytest.raises(ConfigError, match="the table is partitioned by nothing, not by day"):
        project.publish("replace", FIRST, {1: 10})
    project.publish("append", FIRST, {1: 10})
    assert project.rows == [(1, 1, 10)]


def test_files_are_removed_where_another_writer_leaves_a_table_that_does_not_fit(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.publish("replace", FIRST, {1: 10})
    before = {str(path) for path in project.folder.rglob("published/data/**/*.parquet")}

    def commit(*_: Any, **__: Any) -> Any:
        with project.table.update_spec() as spec:
            spec.remove_field("day")
        raise CommitConflictError("another writer")

    monkeypatch.setattr(RowDelta, "commit", commit)
    with pytest.raises(ConfigError, match="no part of it can be replaced"):
        project.publish("replace", FIRST, {1: 11})
    assert {str(path) for path in project.folder.rglob("published/data/**/*.parquet")} == before
