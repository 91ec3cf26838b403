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


def test_truncate_alone_in_a_run_empties_a_table_without_a_key(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full"}})
    project.land("0.jsonl", [event("t")])
    assert project.run().skipped == {"truncate of a table without rows": 1}
    project.land("1.jsonl", [event("c", {"id": 1}), event("c", {"id": 1})])
    project.run()
    project.land("2.jsonl", [event("t"), event("t")])  # the same file twice were a re-delivery
    report = the(project.run())
    assert (report.error, report.events, project.rows()) == (None, {"t": 2}, [])


def test_events_that_do_not_tell_their_key_are_of_the_key_that_is_logged(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {}})
    project.land("1.jsonl", [f'{{"id": {key}}}\t{event("c", {"id": key})}' for key in (1, 2)])
    project.run()
    project.land("2.jsonl", [event("t")])
    assert the(project.run()).events == {"t": 1}
    project.land("3.jsonl", [event("c", {"id": 3})])
    assert the(project.run()).error is None
    assert project.rows() == [{"id": 3}]
