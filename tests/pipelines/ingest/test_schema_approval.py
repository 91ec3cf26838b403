"""`schema_changes` decides whether events may change the columns of a table; what stops is not lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.cli.main import main
from tests.pipelines.project import Project, event, the


def project(folder: Path, mode: str, **settings: Any) -> Project:
    made = Project(folder, {"shop.products": {"key": ["id"], "schema_changes": mode, **settings}})
    made.land("1.jsonl", [event("c", {"id": 1, "name": "a"})])
    assert made.run().exit_code == 0
    return made


def approve(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["approve", "shop.products", "--config", str(folder / "nevermore.yaml"), "--json"])
    assert not ended.value.code
    approved: dict[str, str] = json.loads(capsys.readouterr().out)["approved"]
    return approved


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


def test_approved_columns_are_let_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = project(tmp_path, "approve")
    assert approve(tmp_path, capsys) == {}
    made.land("2.jsonl", [event("c", {"id": 2, "name": "b", "price": 3})])
    found = the(made.run())
    assert found.error is not None
    assert "nevermore approve shop.products" in found.error
    assert "price" not in made.rows()[0]
    assert approve(tmp_path, capsys) == {"price": "long"}
    assert approve(tmp_path, capsys) == {}
    assert made.run().exit_code == 0
    assert made.rows()[1] == {"id": 2, "name": "b", "price": 3}
    made.land("3.jsonl", [event("u", {"id": 2, "name": "b", "price": 3, "more": "x"})])
    assert the(made.run()).error is not None
    made.land("4.jsonl", [event("u", {"id": 2, "name": "b", "price": 3, "other": "x"})])
    assert approve(tmp_path, capsys) in ({"more": "string"}, {"more": "string", "other": "string"})
