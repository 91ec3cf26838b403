"""Events that are small but have many different members: decoded in parts, so that their columns do not fill the memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.jsonscan import members
from tests.pipelines.project import Project, event, the


@pytest.fixture(autouse=True)
def _few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many columns x rows as bytes, however few these are."""
    monkeypatch.setattr(members, "MIN_CELLS", 1)


def project_of(folder: Path, lines: list[str], kind: str, threads: int = 1, **options: Any) -> Project:
    project = Project(folder)
    source = {"type": "files", "path": "landing/*.jsonl", "format": kind, "options": options}
    tables = {"shop.products": {"source": source, "key": ["id"]}}
    (folder / "nevermore.yaml").write_text(yaml.safe_dump({"threads": threads, "tables": tables}))
    project.land("1.jsonl", lines)
    return project


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_with_few_of_many_columns_lose_none(tmp_path: Path, threads: int) -> None:
    rows = [{"id": n, f"c{n % 70}": n} for n in range(600)]
    project = project_of(tmp_path, [json.dumps(row) for row in rows], "rows", threads, no_op="u")
    report = the(project.run())
    assert (report.error, report.rejected, report.log_commits) == (None, 0, 1)
    found = project.rows()
    assert [{k: v for k, v in row.items() if v is not None} for row in found] == rows
    assert len(found[0]) == 71


def test_rows_before_and_after_an_update_are_decoded_together(tmp_path: Path) -> None:
    old = [{"_op": "update_preimage", "id": n, f"c{n % 70}": n} for n in range(400)]
    new = [{"_op": "update_postimage", "id": n + 1_000, f"c{n % 70}": n} for n in range(400)]
    inserts = [{"_op": "c", **{k: v for k, v in row.items() if k != "_op"}} for row in old]
    pairs = [json.dumps(row) for pair in zip(old, new, strict=True) for row in pair]
    project = project_of(tmp_path, [*map(json.dumps, inserts), *pairs], "rows")
    assert the(project.run()).error is None
    assert [row["id"] for row in project.rows()] == [n + 1_000 for n in range(400)]


def test_objects_in_lists_keep_all_members(tmp_path: Path) -> None:
    first = event("c", {"id": 0, "l": [{f"m{n}": n for n in range(90)}]})
    others = [event("c", {"id": n, "l": [{}, {"m1": n}]}) for n in range(1, 500)]
    project = project_of(tmp_path, [first, *others], "debezium-json")
    report = the(project.run())
    assert (report.error, report.rejected) == (None, 0)
    found = project.rows()
    assert found[0]["l"] == [{f"m{n}": n for n in range(90)}]
    assert found[7]["l"][1]["m1"] == 7


def test_a_single_event_that_takes_too_much_goes_to_quarantine(tmp_path: Path) -> None:
    first = event("c", {"id": 0, "l": [{f"m{n}": n for n in range(90)}]})
    wide = event("c", {"id": 1, "l": [*({} for _ in range(60_000)), {f"m{n}": n for n in range(90)}]})
    project = project_of(tmp_path, [first, wide, event("c", {"id": 2, "l": []})], "debezium-json")
    report = the(project.run())
    assert (report.error, report.rejected) == (None, 1)
    assert [row["id"] for row in project.rows()] == [0, 2]
