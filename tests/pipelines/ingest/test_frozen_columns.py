"""`schema_changes` decides whether events may change the columns of a table; what stops is not lost."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.project import Project, event, the


def project(folder: Path, mode: str, **settings: Any) -> Project:
    made = Project(folder, {"shop.products": {"key": ["id"], "schema_changes": mode, **settings}})
    made.land("1.jsonl", [event("c", {"id": 1, "name": "a"})])
    assert made.run().exit_code == 0
    return made


@pytest.mark.each(6)
@pytest.mark.parametrize(
    ("row", "seen"),
    [
        ({"id": 2, "name": "b", "price": 3}, "price long (new)"),
        ({"id": 2.5, "name": "b"}, None),
        ({"id": 2, "name": "b"}, ""),
        ({"id": 2, "name": None, "later": None}, ""),
        ({"id": 2}, ""),
    ],
    ids=["new", "clash", "same", "null", "fewer"],
)
def test_frozen_columns_stay(row: dict[str, Any], seen: str | None, tmp_path: Path) -> None:
    made = project(tmp_path, "freeze", max_quarantine_ratio=1)
    made.land("2.jsonl", [event("c", row)])
    for _ in range(2):  # it stops again
        found = the(made.run())
        if seen:
            assert found.error is not None
            assert seen in found.error
            assert "schema_changes: freeze" in found.error
        else:
            assert found.error is None
    assert list(made.rows()[0]) == ["id", "name"]
    if seen:
        made.write({"shop.products": {"key": ["id"], "schema_changes": "evolve"}})
        assert made.run().exit_code == 0
        assert made.rows() == [{"id": 1, "name": "a", "price": None}, {"id": 2, "name": "b", "price": 3}]
