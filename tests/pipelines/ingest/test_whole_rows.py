"""Tables without a key whose feed states its columns, which come and go within one batch."""

import json
from pathlib import Path
from typing import Any

from tests.pipelines.project import Project, the

ID = {"field": "id", "type": "int64"}
NAME = {"field": "name", "type": "string", "optional": True}
CITY = {"field": "city", "type": "string", "optional": True}


def with_schema(
    op: str, fields: list[dict[str, Any]], *, after: dict[str, Any] | None = None, before: dict[str, Any] | None = None
) -> str:
    images = [{"field": name, "type": "struct", "optional": True, "fields": fields} for name in ("before", "after")]
    schema = {"type": "struct", "fields": [*images, {"field": "op", "type": "string"}]}
    payload = {"op": op, "before": before, "after": after, "source": {"db": "shop", "table": "products"}}
    return json.dumps({"schema": schema, "payload": payload})


def test_a_column_that_comes_and_one_that_goes_refuse_no_event(tmp_path: Path) -> None:
    old, new, left = [ID, NAME], [ID, NAME, CITY], [ID, CITY]
    lines = [
        with_schema("c", old, after={"id": 1, "name": "a"}),
        with_schema("c", old, after={"id": 1, "name": "a"}),
        with_schema("c", old, after={"id": 2, "name": "b"}),
        with_schema("d", old, before={"id": 2, "name": "b"}),
        with_schema(
            "u", new, before={"id": 1, "name": "a", "city": None}, after={"id": 1, "name": "a", "city": "Oslo"}
        ),
        with_schema("c", new, after={"id": 3, "name": "c", "city": "Moss"}),
        with_schema("d", left, before={"id": 3, "city": "Moss"}),
        with_schema("c", left, after={"id": 4, "city": "Moss"}),
    ]
    project = Project(tmp_path, {"shop.products": {"identity": "full"}})
    project.land("1.jsonl", lines)
    report = the(project.run())
    assert (report.error, report.rejected, report.missed_removals) == (None, 0, 0)
    assert project.rows("shop.products", "id", "city") == [
        {"id": 1, "name": "a", "city": "Oslo"},
        {"id": 1, "name": "a", "city": None},
        {"id": 4, "name": None, "city": "Moss"},
    ]
