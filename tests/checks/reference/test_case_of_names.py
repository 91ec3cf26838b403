"""Names that differ in case alone are two columns: the reference in DuckDB, which knows no case, must not mix them."""

from pathlib import Path

import pytest

from nevermore.checks.mirror_checks import run_checks
from nevermore.pipelines.config.project import load
from tests.pipelines.project import Project, event

CHECKS = ["no_deleted_row_reappears", "mirror_equals_reference", "key_is_unique"]


@pytest.mark.parametrize("key", ["id", "ID"])
def test_columns_that_differ_in_case_alone_are_compared_each_with_itself(tmp_path: Path, key: str) -> None:
    project = Project(tmp_path, {"shop.products": {"key": [key]}})
    first = {"id": 1, "ID": 2, "at": {"x": "a", "X": "b"}}
    second = {"id": 3, "ID": 4, "at": {"x": "c", "X": "d"}}
    project.land("1.jsonl", [event("c", first), event("c", second), event("d", first)])
    project.run()
    assert project.rows() == [second]
    results = run_checks(load(project.folder / "nevermore.yaml"), "shop.products", CHECKS)
    assert [(result.name, result.passed, result.details) for result in results] == [(name, True, []) for name in CHECKS]
