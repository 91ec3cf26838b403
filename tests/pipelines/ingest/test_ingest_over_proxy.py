"""Ingestion into a REST catalog behind a proxy: whatever it answers, changes are applied once and no file is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nevermore.pipelines.iceberg import commit
from tests.pipelines.project import Project, event, product, the
from tests.support.rest_catalog import Fault, FaultyCatalog, serving_catalog


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyCatalog]:
    monkeypatch.setattr(commit, "PAUSE_SECONDS", 0.01)
    with serving_catalog(tmp_path) as found:
        yield found


@pytest.fixture
def project(tmp_path: Path, server: FaultyCatalog) -> Project:
    made = Project(tmp_path)
    with (tmp_path / "nevermore.yaml").open("a") as config:
        config.write(f"catalog: {server.properties}\n")
    return made


@pytest.mark.each(4)
@pytest.mark.parametrize("fault", ["repeated", "done-504", "lost-504", "done-closed"])
def test_changes_are_applied_once(fault: Fault, project: Project, server: FaultyCatalog) -> None:
    for number in range(3):
        server.faults += [fault, fault]  # of the change log, and of the mirror
        project.land(f"{number}.jsonl", [event("u", product(1, f"v{number}")), event("c", product(10 + number))])
        assert the(project.run()).status == "applied"
    assert project.rows() == [product(1, "v2"), *(product(10 + number, "a") for number in range(3))]
    assert project.run().found_nothing_new


def test_a_run_after_one_that_could_not_know_applies_what_is_left(project: Project, server: FaultyCatalog) -> None:
    project.land("0.jsonl", [event("c", product(1))])
    server.faults.append("down")
    assert "nothing was removed" in (the(project.run()).error or "")
    server.is_down = False
    project.land("1.jsonl", [event("u", product(1, "new")), event("c", product(2))])
    assert the(project.run()).status == "applied"
    assert project.rows() == [product(1, "new"), product(2)]
