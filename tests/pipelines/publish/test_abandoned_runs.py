"""What runs leave behind that were killed: removed by a later run of the table, and never what anybody needs."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.errors import PublishError
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes
from nevermore.pipelines.publish import abandoned_runs
from nevermore.pipelines.publish.abandoned_runs import FOLDER, RunRecord, condemn_abandoned, remove_abandoned
from nevermore.pipelines.publish.publish_commit import Publication, PublishedTarget
from tests.pipelines.publish.amounts import COLUMNS, FIRST, NAME, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.publish("replace", FIRST, {1: 10})
    return made


def write(project: Project, run: str) -> tuple[RowDelta, list[Any]]:
    """Files of a run, in a partition and outside of any; nobody has committed them yet."""
    delta = RowDelta(project.table)
    keys = pa.table([[FIRST], [7]], schema=pa.schema(list(COLUMNS)[:2]))
    both = (delta.default_spec, delta.unpartitioned_spec())
    return delta, [f for spec in both for f in write_deletes(keys, delta.target, spec, [1, 2], prefix=run)]


def record(project: Project, run: str, **told: Any) -> Path:
    """A record of a run, as a process that has ended left it on this machine, but for what is told."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    made = RunRecord.begin(project.table, run)
    path = Path(made.path.removeprefix("file://"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"process": ended.pid} | told))
    return path


def remove_dead(project: Project) -> int:
    """As a run does around its commit."""
    return remove_abandoned(project.table, condemn_abandoned(project.table))


def files_of(project: Project, run: str) -> int:
    return len(list(project.folder.rglob(f"{run}-*.parquet")))


def test_files_of_a_process_that_is_gone_are_removed_and_others_stay(project: Project) -> None:
    for run in ("dead", "deader"):
        write(project, run)
    dead = record(project, "dead")
    assert remove_dead(project) == 2
    assert (files_of(project, "dead"), files_of(project, "deader")) == (0, 2)
    assert not dead.exists()
    assert remove_dead(project) == 0
    assert project.rows == [(1, 1, 10)]


def test_files_that_a_snapshot_names_stay_even_if_it_is_not_the_current_one(project: Project) -> None:
    delta, files = write(project, "dead")
    write(project, "dead")
    delta.commit(files, {})
    project.publish("replace", FIRST, {1: 11})
    path = record(project, "dead")
    assert remove_dead(project) == 2
    assert files_of(project, "dead") == 2
    assert not path.exists()
    named = project.table.inspect.all_files()["file_path"].to_pylist()
    assert all(Path(p.removeprefix("file://")).exists() for p in named)


def test_files_of_runs_that_may_live_stay_until_they_are_old(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("mine", "elsewhere", "unknown"):
        write(project, run)
    mine = RunRecord.begin(project.table, "mine")
    record(project, "elsewhere", machine="another")
    record(project, "unknown", machine="")
    (Path(mine.path.removeprefix("file://")).parent / "broken.json").write_text("{")
    assert remove_dead(project) == 0
    record(project, "elsewhere", machine="another", started=time.time() - abandoned_runs.ABANDONED_AFTER_SECONDS - 1)
    assert remove_dead(project) == 2
    assert (files_of(project, "mine"), files_of(project, "elsewhere"), files_of(project, "unknown")) == (2, 0, 2)
    mine.check(RowDelta(project.table).storage)
    monkeypatch.setattr(abandoned_runs, "ABANDONED_AFTER_SECONDS", -1.0)
    assert remove_dead(project) == 4
    with pytest.raises(PublishError, match="run mine took more than"):
        mine.check(RowDelta(project.table).storage)


def test_a_run_that_was_condemned_finds_out_before_its_files_go(project: Project) -> None:
    delta, _ = write(project, "dead")
    path = record(project, "dead")
    run = next(abandoned_runs._records(project.table, delta.storage))
    run.check(delta.storage)
    first = condemn_abandoned(project.table)
    with pytest.raises(PublishError, match="run dead took more than"):
        run.check(delta.storage)
    assert (files_of(project, "dead"), path.exists()) == (2, False)
    again = condemn_abandoned(project.table)  # by a later run: the first was killed before its commit
    assert [(r.run, r.is_condemned) for r in again] == [("dead", True)] == [(r.run, r.is_condemned) for r in first]
    assert remove_abandoned(project.table, again) == 2
    assert list(path.parent.iterdir()) == []


def test_a_run_whose_process_is_hidden_lives(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, "hidden")
    record(project, "hidden", process=1)
    monkeypatch.setattr(abandoned_runs, "_began", lambda _: "")
    assert remove_dead(project) == 0
    assert files_of(project, "hidden") == 2


@pytest.mark.parametrize("error", [PermissionError("not now"), ValueError("cannot read header")])
def test_what_cannot_be_removed_now_is_left_to_a_later_run(
    error: Exception, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, "dead")
    path = record(project, "dead")

    def fail(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(abandoned_runs, "read_manifest_list", fail)
        assert remove_dead(project) == 0
    assert (files_of(project, "dead"), path.parent.name, len(list(path.parent.iterdir()))) == (2, FOLDER, 1)
    assert remove_dead(project) == 2


def test_a_new_table_that_another_run_writes_to_is_not_dropped_by_one_that_fails(tmp_path: Path) -> None:
    project = Project(tmp_path)
    records: list[RunRecord] = []

    def fail(delta: RowDelta, _: Any) -> Any:
        records.append(RunRecord.begin(delta.table, "other"))
        raise PublishError("the job failed")

    target = PublishedTarget(project.catalog, NAME, iceberg_fields(COLUMNS), None)
    with pytest.raises(PublishError):
        Publication(target, None, lambda _: True).commit(fail, {})
    assert project.table is not None
    records[0].end(RowDelta(project.table).storage)
    target.drop_unused()
    assert project.table is None
