"""Rows of partitioned mirrors whose events do not tell where the mirror's row is: no copy may be left behind."""

from pathlib import Path

import pytest

from nevermore.checks.mirror_checks import run_checks
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.replay import replay
from tests.pipelines.project import Event, Project, event

KEY_IS_UNIQUE = "key_is_unique"


@pytest.fixture(params=["looked up", "too large to look up"])
def project(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Project:
    if request.param == "too large to look up":
        monkeypatch.setattr("nevermore.pipelines.mirrors.delete_scope.AFFORDABLE_ROWS", 0)
        monkeypatch.setattr("nevermore.pipelines.mirrors.delete_scope.AFFORDABLE_RATIO", 0)
    table = {"key": ["id"], "partition_by": ["region"], "max_quarantine_ratio": 1.0}
    return Project(tmp_path, {"shop.products": table})


def row(region: str, n: int | str) -> Event:
    return {"id": 1, "region": region, "n": n}


def land(project: Project, *events: str) -> None:
    name = f"{len(list(project.landing.iterdir())):03d}.jsonl"
    project.land(name, events)
    project.run()


def assert_keys_are_unique(project: Project) -> None:
    config = load(project.folder / "nevermore.yaml")
    (result,) = run_checks(config, "shop.products", [KEY_IS_UNIQUE])
    assert result.passed, result.details


def test_rule_27_update_that_comes_again_leaves_one_row(project: Project) -> None:
    update = event("u", row("B", 2), before=row("A", 1))
    land(project, event("c", row("A", 1)), update)
    land(project, update, event("c", {"id": 9, "region": "Z", "n": 1}))
    assert project.rows() == [row("B", 2), {"id": 9, "region": "Z", "n": 1}]
    assert_keys_are_unique(project)


def test_rule_27_update_after_a_refused_one_leaves_one_row(project: Project) -> None:
    land(project, event("c", row("A", 1)))
    land(project, event("u", row("B", "no number"), before=row("A", 1)))
    land(project, event("u", row("B", 3), before=row("B", 2)))
    assert project.rows() == [row("B", 3)]
    assert_keys_are_unique(project)


def test_rule_27_replay_leaves_one_row(project: Project) -> None:
    land(project, event("c", row("A", 1)))
    land(project, event("u", row("B", 2), before=row("A", 1)))
    land(project, event("u", row("C", 3), before=row("B", 2)))
    config = load(project.folder / "nevermore.yaml")
    replay(open_catalog(config), config, "shop.products", "2", "3")
    assert project.rows() == [row("C", 3)]
    assert_keys_are_unique(project)


def test_rule_27_delete_whose_before_image_is_defaults_removes_the_row(project: Project) -> None:
    land(project, event("c", row("A", 1)))
    land(project, event("d", row("", 0)))
    assert project.rows() == []
    assert_keys_are_unique(project)
