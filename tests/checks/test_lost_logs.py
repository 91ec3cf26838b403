"""A mirror whose change log was dropped cannot be checked any more, which is no green check."""

from pathlib import Path

from nevermore.checks.mirror_checks import checks_of, run_checks, snapshot_results
from nevermore.pipelines.config.project import change_log_name, load
from nevermore.pipelines.iceberg.catalog import open_catalog
from tests.pipelines.project import Project, event

NAME = "shop.products"


def test_a_mirror_without_its_log_fails_every_check(tmp_path: Path) -> None:
    project = Project(tmp_path, {NAME: {"key": ["id"]}})
    project.land("1.jsonl", [event("c", {"id": 1, "name": "a"})])
    assert project.run().exit_code == 0
    config = load(tmp_path / "nevermore.yaml")
    assert all(found.passed for found in run_checks(config, NAME, checks_of(config, NAME)))
    open_catalog(config).drop_table(change_log_name(NAME))
    found = list(run_checks(config, NAME, checks_of(config, NAME)))
    assert [result.passed for result in found] == [False] * len(checks_of(config, NAME))
    assert all(change_log_name(NAME) in result.details[0] for result in found)
    assert not any(result.passed for result in snapshot_results(config, NAME).results.values())
