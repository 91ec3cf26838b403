"""How files of a published day become a snapshot, without Spark: rows are written where the commit is made."""

from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.errors import CommitConflictError, ConfigError
from nevermore.pipelines.iceberg.catalog import create_table
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from tests.pipelines.publish.amounts import COLUMNS, FIRST, NAME, SECOND, THIRD, Project


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
