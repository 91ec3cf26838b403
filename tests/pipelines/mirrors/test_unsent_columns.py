"""Columns that an event did not send, and what stands beside them in the event."""

from pathlib import Path

from tests.pipelines.project import Project, event, product, the


def test_old_row_that_holds_the_key_alone_says_nothing_of_a_column_that_was_not_sent(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.land("1.jsonl", [event("c", product(1, "long"))])
    project.run()
    moved = product(2, "__debezium_unavailable_value")
    project.land("2.jsonl", [event("u", moved, before={"id": 1, "name": None})])
    assert the(project.run()).rejected == 0
    assert project.rows() == [product(2, "long")]


def test_old_row_that_has_a_column_that_was_not_sent_gives_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.land("1.jsonl", [event("u", product(2, "__debezium_unavailable_value"), before=product(1, "long"))])
    assert the(project.run()).rejected == 0
    assert project.rows() == [product(2, "long")]
