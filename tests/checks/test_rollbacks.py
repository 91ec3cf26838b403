"""A mirror or a change log that was set back is right for what it claims to hold, and no green check for all that."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from nevermore.checks.mirror_checks import NAME, checks_of, nothing_was_rolled_back, run_checks, snapshot_results
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import change_log_name, load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.positions import LAST_ORDINAL, LOG_ORDINAL
from tests.checks.mirror_tables import MirrorTables, mirror_equals_reference, shop
from tests.pipelines.project import Project, event

TABLE = "shop.products"


def fed(folder: Path) -> Project:
    project = Project(folder, {TABLE: {"key": ["id"]}})
    for number in (1, 2):
        project.land(f"{number}.jsonl", [event("c", {"id": number, "name": "a"})])
        assert project.run().exit_code == 0
    return project


def set_back(project: Project, name: str = TABLE) -> None:
    table = open_catalog(load(project.folder / "nevermore.yaml")).load_table(name)
    first = table.metadata.snapshots[-1].parent_snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()


def verdicts(project: Project) -> dict[str, bool]:
    config = load(project.folder / "nevermore.yaml")
    return {found.name: found.passed for found in run_checks(config, TABLE, checks_of(config, TABLE))}


def test_command_and_publications_see_a_mirror_that_was_set_back_until_it_is_whole_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = fed(tmp_path)
    config = load(tmp_path / "nevermore.yaml")
    (first, second) = project.table(TABLE).metadata.snapshots
    before = f"{project.table(TABLE).metadata_location}"
    assert all(r.passed for r in snapshot_results(config, TABLE, before).results.values())
    set_back(project)
    with pytest.raises(SystemExit) as exited:
        main(["check", TABLE, "--json", "--config", str(tmp_path / "nevermore.yaml")])
    assert exited.value.code == 1
    told = {found["check"]: found for found in map(orjson.loads, capsys.readouterr().out.splitlines())}
    assert [name for name, found in told.items() if not found["passed"]] == [NAME]
    assert f"snapshot {second.snapshot_id} has the changes up to 2" in told[NAME]["details"][0]
    assert f"the current snapshot {first.snapshot_id} only up to 1" in told[NAME]["details"][0]
    assert not snapshot_results(config, TABLE).results[NAME].passed
    assert project.run().exit_code == 0
    assert [row["id"] for row in project.rows()] == [1, 2]
    assert set(verdicts(project).values()) == {True}
    assert all(r.passed for r in snapshot_results(config, TABLE).results.values())


def test_results_kept_of_a_snapshot_do_not_hide_that_it_is_the_current_one_again(tmp_path: Path) -> None:
    project = fed(tmp_path)
    config = load(tmp_path / "nevermore.yaml")
    set_back(project)
    first = snapshot_results(config, TABLE)
    assert [name for name, found in first.results.items() if not found.passed] == [NAME]
    table = project.table(TABLE)
    table.manage_snapshots().set_current_snapshot(table.metadata.snapshots[-1].snapshot_id).commit()
    assert all(r.passed for r in snapshot_results(config, TABLE).results.values())
    set_back(project)
    assert not snapshot_results(config, TABLE).results[NAME].passed


@pytest.mark.slow
@pytest.mark.parametrize("grows", [False, True])
def test_a_change_log_that_was_set_back_fails(tmp_path: Path, *, grows: bool) -> None:
    project = fed(tmp_path)
    set_back(project, change_log_name(TABLE))
    if grows:  # the same ordinals, given to other changes
        project.land("3.jsonl", [event("c", {"id": 3, "name": "a"})])
        project.run()
    assert not verdicts(project)[NAME]


LOSSES: dict[str, Callable[[MirrorTables], Any]] = {
    "to the parent": lambda t: t.mirror.rollback(1002),
    "to the first snapshot": lambda t: t.mirror.rollback(1001),
    "without a log of snapshots": lambda t: (
        t.mirror.rollback(1001),
        t.mirror.edit(lambda document: document.update({"snapshot-log": []})),
    ),
    "a commit upon an older snapshot": lambda t: t.mirror.commit(parent=1001, summary={LOG_ORDINAL: "6"}),
    "the log": lambda t: (
        t.log.commit(summary={LAST_ORDINAL: str(t.ordinal)}),
        t.log.commit(parent=1001, summary={LAST_ORDINAL: "5"}),
    ),
    "a log that ends before the mirror": lambda t: t.log.commit(parent=1001, summary={LAST_ORDINAL: "5"}),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_changes_that_are_not_held_any_more_fail(tmp_path: Path, loss: str) -> None:
    tables, _ = shop(tmp_path)
    assert nothing_was_rolled_back(tables.subject()).passed
    LOSSES[loss](tables)
    found = nothing_was_rolled_back(tables.subject())
    assert not found.passed
    if loss == "to the parent":
        assert mirror_equals_reference(tables.subject()).passed


RIGHT: dict[str, Callable[[MirrorTables], Any]] = {
    "a branch that is ahead": lambda t: t.mirror.commit(branch="audit", parent=1003, summary={LOG_ORDINAL: "99"}),
    "a rollback that was applied again": lambda t: (
        t.mirror.rollback(1001),
        t.mirror.commit(parent=1001, summary={LOG_ORDINAL: str(t.ordinal)}),
    ),
    "a commit of others": lambda t: t.mirror.commit(operation="replace"),
    "a log that is ahead": lambda t: t.log.commit(summary={LAST_ORDINAL: "99"}),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_no_loss_passes(tmp_path: Path, case: str) -> None:
    tables, _ = shop(tmp_path)
    RIGHT[case](tables)
    found = nothing_was_rolled_back(tables.subject())
    assert found.details == []
    assert found.passed


def test_a_newest_snapshot_that_is_gone_is_told(tmp_path: Path) -> None:
    tables, _ = shop(tmp_path)
    tables.mirror.rollback(1002)
    tables.mirror.edit(lambda d: d.update(snapshots=[s for s in d["snapshots"] if s["snapshot-id"] != 1003]))
    found = nothing_was_rolled_back(tables.subject())
    assert found.passed
    assert "sequence number 3, now 2" in found.details[0]
