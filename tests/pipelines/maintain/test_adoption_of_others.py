"""Tables that Flink wrote, with its own equality deletes, kept as mirrors from then on."""

import json
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.adoption import adopt
from tests.pipelines.project import Project, event
from tests.support.fixture_tables import copied


def project_with(folder: Path, shared: Path, name: str, key: list[str] | None = None) -> Project:
    expected = json.loads((shared / "fixtures" / "expected.json").read_text())[name]
    project = Project(folder, {"lake.products": {"key": key or [], "source_table": "products"}})
    table = copied(shared / "fixtures" / name, folder / "flink", expected["location"])
    catalog = open_catalog(load(folder / "nevermore.yaml"))
    catalog.create_namespace("lake")
    catalog.register_table("lake.products", str(table / expected["metadata"]))
    return project


def adopted(project: Project) -> Any:
    config = load(project.folder / "nevermore.yaml")
    return adopt(open_catalog(config), config, "lake.products")


def test_table_that_flink_upserted_into_goes_on_as_a_mirror(tmp_path: Path, shared_dir: Path) -> None:
    project = project_with(tmp_path, shared_dir, "flink_upsert")
    done = adopted(project)
    assert (done.key, done.num_rows) == (("id",), 2)
    project.land(
        "1.jsonl", [event("u", {"id": 2, "data": "ours"}), event("d", {"id": 1}), event("c", {"id": 3, "data": "new"})]
    )
    assert project.run().exit_code == 0
    assert project.rows("lake.products") == [{"id": 2, "data": "ours"}, {"id": 3, "data": "new"}]


def test_partitioned_table_of_flink_keeps_its_partitioning_and_its_key(tmp_path: Path, shared_dir: Path) -> None:
    project = project_with(tmp_path, shared_dir, "flink_upsert_partitioned")
    done = adopted(project)
    assert done.key == ("s", "d")
    before = project.rows("lake.products", "s", "d")
    first, second = before[0], before[1]
    lines = [
        event("u", {"i": 77, "s": first["s"], "d": first["d"].isoformat()}),
        event("d", {"s": second["s"], "d": second["d"].isoformat()}),
    ]
    project.land("1.jsonl", lines)
    report = project.run()
    assert report.exit_code == 0, report.as_dict()
    assert project.rows("lake.products", "s", "d") == [first | {"i": 77}, *before[2:]]


@pytest.mark.parametrize("name", ["flink_upsert", "flink_upsert_partitioned"])
def test_adoption_changes_no_row_of_what_others_wrote(name: str, tmp_path: Path, shared_dir: Path) -> None:
    expected = json.loads((shared_dir / "fixtures" / "expected.json").read_text())[name]
    project = project_with(tmp_path, shared_dir, name)
    adopted(project)
    found = sorted(
        json.dumps(list(r.values()), default=str) for r in project.rows("lake.products", expected["columns"][0])
    )
    assert found == sorted(json.dumps(row) for row in expected["rows_by_snapshot"][expected["current"]])
