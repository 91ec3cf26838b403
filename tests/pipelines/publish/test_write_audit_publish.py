"""Rows are audited on a branch before anybody reads them: made current by one step, or kept there for a look."""

import datetime as dt
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nevermore.pipelines.config.published import PublishedPartition
from nevermore.pipelines.errors import CommitConflictError, PublishError
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.publish import publish_commit
from nevermore.pipelines.publish.audit import CheckFailedError
from nevermore.pipelines.publish.publish_commit import STAGED_PREFIX, Mode, Publication, PublishedTarget, StagedSnapshot
from nevermore.scan_core import open_table
from tests.pipelines.publish.amounts import COLUMNS, FIRST, NAME, SECOND, THIRD, Project

Row = tuple[int, int, int]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.publish("replace", FIRST, {1: 10})
    return made


class Audit:
    """Looks at what is staged, does something meanwhile, and says whether it is right."""

    def __init__(self, project: Project, meanwhile: Callable[[], Any] = lambda: None, *, is_red: bool = False) -> None:
        self.project = project
        self.meanwhile = meanwhile
        self.is_red = is_red
        self.staged: list[list[Row]] = []
        self.seen: list[list[Row]] = []

    def __call__(self, staged: StagedSnapshot) -> None:
        scan = open_table(self.project.table).scan().as_of_snapshot(staged.committed.snapshot_id)
        self.staged.append(sorted(tuple(row.values()) for row in scan.select("id", "amount").to_table().to_pylist()))  # type: ignore[arg-type]
        self.seen.append(self.project.rows)
        if len(self.staged) == 1:
            self.meanwhile()
        if self.is_red:
            raise CheckFailedError("red", [])


def branches(project: Project) -> list[str]:
    return [name for name in project.table.metadata.refs if name.startswith(STAGED_PREFIX)]


def check_tidy(project: Project) -> None:
    """No branch, and no file that no snapshot names."""
    assert branches(project) == []
    metadata = project.table.metadata
    line = {s.snapshot_id for s in metadata.snapshots}
    assert {entry.snapshot_id for entry in metadata.snapshot_log} <= line
    named = {p.removeprefix("file://") for p in project.table.inspect.all_files()["file_path"].to_pylist()}
    assert {str(p) for p in project.folder.rglob("published/data/**/*.parquet")} == named
    lists = {s.manifest_list.removeprefix("file://") for s in metadata.snapshots}
    manifests = {
        m.manifest_path.removeprefix("file://") for s in metadata.snapshots for m in s.manifests(project.table.io)
    }
    assert {str(p) for p in project.folder.rglob("published/metadata/*.avro")} == lists | manifests


@pytest.mark.parametrize("mode", ["replace", "append", "upsert"])
def test_rule_33_rows_are_seen_after_the_audit_and_not_before(project: Project, mode: Mode) -> None:
    audit = Audit(project)
    published = project.must_publish(mode, SECOND, {2: 20}, audit=audit)
    assert (audit.staged, audit.seen) == ([[(1, 10), (2, 20)]], [[(1, 1, 10)]])
    assert project.rows == [(1, 1, 10), (2, 2, 20)]
    assert project.table.metadata.current_snapshot_id == published.committed.snapshot_id
    assert len(project.table.metadata.snapshots) == 2  # the audited one itself
    check_tidy(project)


def test_rows_that_fail_leave_the_table_as_it_was_and_stay_on_their_branch(project: Project) -> None:
    before = project.table.metadata
    with pytest.raises(CheckFailedError):
        project.publish("replace", FIRST, {1: 11, 2: 20}, audit=Audit(project, is_red=True), run="bad")
    after = project.table.metadata
    assert project.rows == [(1, 1, 10)]
    assert (after.current_snapshot_id, after.current_schema_id) == (
        before.current_snapshot_id,
        before.current_schema_id,
    )
    (branch,) = branches(project)
    kept = open_table(project.table).scan().at_ref(branch).select("id", "amount").to_table().to_pylist()
    assert kept == [{"id": 1, "amount": 11}, {"id": 2, "amount": 20}]
    project.publish("replace", FIRST, {1: 12}, audit=Audit(project))
    assert (project.rows, branches(project)) == ([(1, 1, 12)], [branch])


def test_rule_33_a_commit_to_other_partitions_asks_for_no_other_audit(project: Project) -> None:
    audit = Audit(project, lambda: project.publish("replace", THIRD, {3: 30}, run="other"))
    project.publish("replace", SECOND, {2: 20}, audit=audit)
    assert len(audit.staged) == 1
    assert project.rows == [(1, 1, 10), (2, 2, 20), (3, 3, 30)]
    check_tidy(project)


@pytest.mark.parametrize("mode", ["replace", "append", "upsert"])
def test_rule_33_a_commit_to_the_same_partition_asks_for_another_audit(project: Project, mode: Mode) -> None:
    audit = Audit(project, lambda: project.publish("upsert", FIRST, {7: 70}, run="other", state="0"))
    project.publish(mode, FIRST, {1: 11}, audit=audit)
    assert len(audit.staged) == 2
    others = [] if mode == "replace" else [(1, 7, 70)]
    earlier = [(1, 1, 10)] if mode == "append" else []
    assert project.rows == [*earlier, (1, 1, 11), *others]
    assert audit.staged[1] == [row[1:] for row in project.rows]
    assert branches(project) == []


def test_what_is_of_no_use_any_more_goes_with_its_branch(project: Project) -> None:
    audit = Audit(project, lambda: project.publish("append", SECOND, {2: 20}, run="other"))
    with pytest.raises(CommitConflictError, match="another writer"):
        project.publish("append", SECOND, {2: 20}, audit=audit)
    assert project.rows == [(1, 1, 10), (2, 2, 20)]
    assert branches(project) == []
    assert len(project.table.metadata.snapshots) == 2
    assert not list(project.folder.rglob("published/data/**/run-*day=2026-01-02*"))


@pytest.mark.parametrize("is_red", [False, True])
def test_a_table_that_does_not_exist_has_no_rows_until_its_first_ones_are_right(
    tmp_path: Path, *, is_red: bool
) -> None:
    project = Project(tmp_path)
    audit = Audit(project, is_red=is_red)
    if is_red:
        with pytest.raises(CheckFailedError):
            project.publish("replace", FIRST, {1: 10}, audit=audit)
        assert project.rows == []
    audit.is_red = False
    project.publish("replace", FIRST, {1: 11}, audit=audit)
    assert (audit.seen[-1], project.rows) == ([], [(1, 1, 11)])


def test_a_new_column_is_seen_with_the_rows_that_have_it(project: Project) -> None:
    with pytest.raises(CheckFailedError):
        project.publish("replace", FIRST, {1: 11}, audit=Audit(project, is_red=True), column="bonus")
    assert open_table(project.table).schema.names == ("day", "id", "amount")
    project.publish("replace", SECOND, {2: 20}, audit=Audit(project), column="bonus")
    rows = open_table(project.table).scan().select("id", "amount", "bonus").to_table().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "amount": 10, "bonus": None}, {"id": 2, "amount": None, "bonus": 20}]


@pytest.mark.parametrize("is_audited", [True, False])
def test_branches_of_runs_that_ended_long_ago_go_with_the_next_commit(
    project: Project, monkeypatch: pytest.MonkeyPatch, *, is_audited: bool
) -> None:
    for run in ("red", "killed"):
        with pytest.raises(CheckFailedError):
            project.publish("replace", FIRST, {1: 11}, audit=Audit(project, is_red=True), run=run)
    project.publish("replace", FIRST, {1: 12}, audit=Audit(project) if is_audited else None, run="good")
    kept = branches(project)
    assert len(kept) == 2
    snapshots = {s.snapshot_id: s.timestamp_ms for s in project.table.metadata.snapshots}
    first, _ = sorted(snapshots[project.table.metadata.refs[name].snapshot_id] for name in kept)
    later = (first + 1) / 1000 + publish_commit.STAGED_KEPT_SECONDS
    monkeypatch.setattr(publish_commit, "time", SimpleNamespace(time=lambda: later))
    project.publish("replace", FIRST, {1: 13}, audit=Audit(project) if is_audited else None, run="good")
    assert len(branches(project)) == 1
    assert project.rows == [(1, 1, 13)]
    gone = snapshots.keys() - {s.snapshot_id for s in project.table.metadata.snapshots}
    assert [snapshots[number] for number in gone] == [first]


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_table_that_a_failed_run_created_is_dropped_unless_it_has_rows(tmp_path: Path, *, has_rows: bool) -> None:
    project = Project(tmp_path)

    def fail(*_: Any) -> Any:
        if has_rows:
            project.publish("append", FIRST, {1: 10}, run="other")
        raise PublishError("the job failed")

    target = PublishedTarget(project.catalog, NAME, iceberg_fields(COLUMNS), PublishedPartition.parse("day"))
    with pytest.raises(PublishError):
        Publication(target, None, lambda _: True).commit(fail, {})
    assert (project.table is not None) is has_rows
    folders = {path.parent.name for path in tmp_path.rglob("*.metadata.json")}
    assert folders == ({"metadata"} if has_rows else set())
    assert any(tmp_path.rglob("metadata")) is has_rows


def test_files_that_cannot_be_removed_do_not_hide_why_a_run_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)

    def fail(*_: Any) -> Any:
        raise PublishError("the job failed")

    def refuse(*_: Any) -> None:
        raise OSError("AWS Error ACCESS_DENIED during DeleteObject operation")

    target = PublishedTarget(project.catalog, NAME, iceberg_fields(COLUMNS), PublishedPartition.parse("day"))
    monkeypatch.setattr(Storage, "_remove", refuse)
    with pytest.raises(PublishError, match="the job failed"):
        Publication(target, None, lambda _: True).commit(fail, {})


def publish_days(folder: Path, days: int, *, is_new: bool) -> tuple[Project, list[Audit]]:
    project = Project(folder)
    if not is_new:
        project.publish("replace", dt.date(2026, 1, 31), {0: 0})
    audits = [Audit(Project(folder), lambda: time.sleep(0.2)) for _ in range(days)]

    def one(number: int) -> None:
        own = audits[number].project
        own.publish("replace", dt.date(2026, 1, 1 + number), {number: number}, audit=audits[number], run=f"run{number}")

    with ThreadPoolExecutor(days) as pool:
        list(pool.map(one, range(days)))
    return project, audits


def test_partitions_that_are_published_at_once_are_all_there(tmp_path: Path) -> None:
    project, audits = publish_days(tmp_path, 8, is_new=False)
    assert project.rows == [*((1 + n, n, n) for n in range(8)), (31, 0, 0)]
    assert [len(audit.staged) for audit in audits] == [1] * 8
    check_tidy(project)


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("_turn", range(5))
def test_partitions_that_are_published_at_once_again_and_again(tmp_path: Path, _turn: int, *, is_new: bool) -> None:
    project, _ = publish_days(tmp_path, 8, is_new=is_new)
    assert project.rows == [*((1 + n, n, n) for n in range(8)), *([] if is_new else [(31, 0, 0)])]
    assert branches(project) == []


@pytest.mark.parametrize("mode", ["replace", "append", "upsert"])
def test_properties_of_the_config_are_set_with_the_rows(mode: Mode, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.publish(mode, FIRST, {1: 10}, properties={"owner": "shop"})
    assert project.table.properties["owner"] == "shop"
    project.publish(mode, FIRST, {1: 11}, state="2", properties={"owner": "bookshop", "tier": "gold"})
    assert (project.table.properties["owner"], project.table.properties["tier"]) == ("bookshop", "gold")
