"""A mirror that is rolled back becomes the same again by the next ingest; what would not is refused."""

import json
import shutil
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import change_log_name
from nevermore.pipelines.iceberg.commit import RowDelta, everything
from nevermore.pipelines.iceberg.positions import LOG_ORDINAL, newest_property
from nevermore.pipelines.iceberg.table_writer import write_rows
from tests.pipelines.iceberg_tables import catalog_in, new_table
from tests.pipelines.project import Project, event, product

NAME = "shop.products"
LOG = change_log_name(NAME)


@pytest.fixture
def project(tmp_path: Any) -> Project:
    project = Project(tmp_path, {NAME: {"key": ["id"]}})
    for number in range(4):
        land(project, number)
    return project


def land(project: Project, number: int) -> None:
    project.land(f"{number}.jsonl", [event("u", product(key, f"v{number}")) for key in (1, 2, 10 + number)])
    assert project.run().exit_code == 0


def call(project: Project, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--config", str(project.folder / "nevermore.yaml"), "--json"])
    output, errors = capsys.readouterr()
    return int(ended.value.code or 0), json.loads(output) if output.strip() else None, errors


def snapshots(project: Project, name: str = NAME) -> list[int]:
    return [s.snapshot_id for s in project.table(name).metadata.snapshots]


def current(project: Project, name: str = NAME) -> int | None:
    return project.table(name).metadata.current_snapshot_id


def test_the_next_ingest_applies_the_later_changes_again(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    rows, ids, log = project.rows(), snapshots(project), current(project, LOG)
    code, told, _ = call(project, capsys, "rollback", NAME, "--to", str(ids[1]), "--dry-run")
    assert (code, told["undone"], told["lost"], told["repeated"]) == (0, [ids[3], ids[2]], [], 6)
    assert current(project) == ids[3]
    code, told, _ = call(project, capsys, "rollback", NAME, "--to", str(ids[1]))
    assert (code, told["snapshot_id"], told["is_dry"], current(project)) == (0, ids[1], False, ids[1])
    assert [row["id"] for row in project.rows()] == [1, 2, 10, 11]
    assert newest_property(project.table(NAME), LOG_ORDINAL) == "6"
    assert current(project, LOG) == log
    land(project, 4)
    assert [r for r in project.rows() if r["id"] in (12, 13)] == [r for r in rows if r["id"] in (12, 13)]
    assert [row["id"] for row in project.rows()] == [1, 2, 10, 11, 12, 13, 14]
    with pytest.raises(SystemExit) as ended:
        main(["check", NAME, "--config", str(project.folder / "nevermore.yaml")])
    assert not ended.value.code


def test_commits_of_others_are_undone_and_named(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    rows, last = project.rows(), current(project)
    spoilt = RowDelta(project.table(NAME)).commit([], {}, remove=everything).snapshot_id
    stamp = project.table(NAME).metadata.snapshots[-1].timestamp_ms
    code, told, _ = call(project, capsys, "rollback", NAME, "--before", str(stamp))
    assert (code, told["snapshot_id"], told["lost"], told["repeated"]) == (0, last, [spoilt], 0)
    assert project.run().exit_code == 0
    assert project.rows() == rows


def test_what_an_ingest_would_not_repeat_is_refused(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    first = str(snapshots(project)[0])
    for words, message in (
        ((NAME, "--to", "1"), "has no snapshot 1 among the ancestors"),
        ((NAME, "--before", "2001-01-01"), "has no snapshot before 2001-01-01"),
        ((NAME,), "either --to SNAPSHOT or --before TIME"),
        ((NAME, "--to", first, "--before", "2001-01-01"), "either --to SNAPSHOT or --before TIME"),
        (("shop.product", "--to", first), NAME),
    ):
        code, told, errors = call(project, capsys, "rollback", *words)
        assert (code != 0, told) == (True, None)
        assert message in errors
    table = project.table(NAME)
    assert call(project, capsys, "resync", NAME)[0] == 0
    code, _, errors = call(project, capsys, "rollback", NAME, "--to", first)
    assert (code != 0, "as a resync does" in errors) == (True, True)
    code, _, _ = call(project, capsys, "rollback", NAME, "--to", str(current(project)))
    assert code == 0
    assert project.table(NAME).metadata_location != table.metadata_location


def test_a_log_that_lost_changes_is_refused(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    RowDelta(project.table(LOG)).commit([], {}, remove=everything)
    code, _, errors = call(project, capsys, "rollback", NAME, "--to", str(snapshots(project)[0]))
    assert (code != 0, "has 0 of the 9 changes after ordinal 3" in errors) == (True, True)


def test_a_snapshot_without_a_position_is_refused(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project = Project(tmp_path, {NAME: {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1))])
    delta = RowDelta(new_table(catalog_in(tmp_path), {"id": "long", "name": "string"}, name=NAME))
    rows = pa.table({"id": [7], "name": ["of another"]})
    first = delta.commit(write_rows(rows, delta.target, delta.default_spec), {}).snapshot_id
    assert call(project, capsys, "adopt", NAME)[0] == 0
    project.run()
    assert [row["id"] for row in project.rows()] == [1, 7]
    code, _, errors = call(project, capsys, "rollback", NAME, "--to", str(first))
    assert (code != 0, "records which changes of the log it contains" in errors) == (True, True), errors
    assert [row["id"] for row in project.rows()] == [1, 7]


@pytest.mark.parametrize("is_dry", [False, True])
@pytest.mark.parametrize("choice", ["--to", "--before"])
def test_a_mirror_without_its_log_or_without_a_table_is_refused_for_what_it_lacks(
    project: Project, capsys: pytest.CaptureFixture[str], choice: str, *, is_dry: bool
) -> None:
    before = current(project)
    words = [
        choice,
        str(snapshots(project)[1]) if choice == "--to" else "2100-01-01",
        *(["--dry-run"] if is_dry else []),
    ]
    log = project.table(LOG)
    log.catalog.drop_table(LOG)
    shutil.rmtree(log.location().removeprefix("file://"))
    code, _, errors = call(project, capsys, "rollback", NAME, *words)
    assert (code, current(project)) == (1, before)
    assert (
        f"{NAME} has no change log, from which an ingest would apply the later changes again: {LOG} is not in" in errors
    )
    project.write({"shop.others": {"key": ["id"]}})
    code, _, errors = call(project, capsys, "rollback", "shop.others", *words)
    assert code == 1
    assert "shop.others does not exist yet: ingest first" in errors
