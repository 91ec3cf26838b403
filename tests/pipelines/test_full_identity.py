from pathlib import Path

from tests.pipelines.project import Project, event, the


def test_rule_28_rows_without_a_new_column_are_found(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full", "max_quarantine_ratio": 1.0}})
    old = {"id": 1, "a": "x"}
    project.land("1.jsonl", [event("c", old), event("c", old)])
    project.run()
    project.land("2.jsonl", [event("c", {"id": 2, "a": "x", "z": 5}), event("d", {**old, "z": None})])
    assert the(project.run()).error is None
    assert project.rows() == [{**old, "z": None}, {"id": 2, "a": "x", "z": 5}]
    project.land("3.jsonl", [event("d", {**old, "z": 7})])
    assert the(project.run()).error is None
    assert len(project.rows()) == 2


def test_rule_28_column_that_is_not_sent_is_null_in_the_identity(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full", "max_quarantine_ratio": 1.0}})
    project.land("1.jsonl", [event("c", {"id": 1, "z": 5}), event("c", {"id": 1, "z": None})])
    project.run()
    project.land("2.jsonl", [event("d", {"id": 1})])
    assert the(project.run()).error is None
    assert project.rows() == [{"id": 1, "z": 5}]
