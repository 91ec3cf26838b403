"""A feed with data in the names of its members: a table has a limit of columns, however they come."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nevermore.pipelines.jsonscan import members
from tests.pipelines.project import Project, event, the

LIMIT = 50


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(members, "MAX_COLUMNS", LIMIT)
    return Project(tmp_path)


def one_each(count: int) -> list[str]:
    return [event("c", {"id": i, f"c{i}": 1}) for i in range(count)]


def test_columns_up_to_the_limit_are_added(project: Project) -> None:
    project.land("1.jsonl", one_each(30))
    assert project.run().exit_code == 0
    project.land("2.jsonl", one_each(LIMIT - 1)[30:])
    assert project.run().exit_code == 0
    assert len(project.rows()[0]) == LIMIT


@pytest.mark.parametrize("in_runs", [1, 2])
def test_a_table_that_would_get_more_columns_stops_with_one_message(project: Project, in_runs: int) -> None:
    events = one_each(80)
    (project.folder / "nevermore.yaml").write_text(
        (project.folder / "nevermore.yaml").read_text().replace("options: {}", "options: {batch_bytes: 1500}")
    )
    for run in range(in_runs):
        project.land(f"{run}.jsonl", events[run::in_runs])
    report = project.run()
    assert report.exit_code == 1
    message = str(the(report).error)
    assert message.startswith(f"shop.products: more than {LIMIT} columns: names of members of its events, such as c")
    assert "include" in message


def test_columns_that_are_left_out_do_not_count(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"], "include": ["id", "c1"]}}, batch_bytes=1500)
    project.land("1.jsonl", one_each(80))
    assert project.run().exit_code == 0
    assert project.rows()[:2] == [{"id": 0, "c1": None}, {"id": 1, "c1": 1}]


def test_an_event_with_more_columns_is_rejected_alone(project: Project) -> None:
    project.land("1.jsonl", [*one_each(9), event("c", {f"n{i}": 1 for i in range(80)} | {"id": 77})])
    report = project.run()
    assert report.exit_code == 3
    assert the(report).quarantined == 1
    assert len(project.rows()) == 9


def test_rows_of_files_with_more_columns_stop_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_COLUMNS", LIMIT)
    made = Project(tmp_path)
    path = tmp_path / "nevermore.yaml"
    document = yaml.safe_load(path.read_text())
    document["tables"]["shop.products"]["source"] = {"type": "files", "path": "landing/*.parquet", "format": "rows"}
    document["tables"]["shop.products"]["source"]["options"] = {"no_op": "u"}
    path.write_text(yaml.safe_dump(document))
    for number in range(2):
        names = {f"c{number}_{i}": [1] for i in range(30)}
        pq.write_table(pa.table({"id": [number], **names}), made.landing / f"{number}.parquet")
    assert f"more than {LIMIT} columns" in str(the(made.run()).error)
