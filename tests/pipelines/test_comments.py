"""Descriptions of a config become comments of Iceberg tables and columns, which other engines show."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.publish.refresh import publish
from tests.pipelines.project import Project, event, the

DESCRIBED = {
    "key": ["id"],
    "description": "What is **sold**.",
    "column_descriptions": {
        "id": "Number of the product.",
        "size.height": "In centimetres.",
        "prices.element.amount": "In euros.",  # or prices.amount
    },
}
ROW = {"id": 1, "size": {"height": 2, "width": 3}, "prices": [{"amount": 4}], "name": "a"}


def docs(project: Project, name: str = "shop.products") -> dict[str, str]:
    schema = project.table(name).schema()
    return {schema.find_column_name(i): schema.find_field(i).doc for i in schema.field_ids if schema.find_field(i).doc}


def describe(project: Project, **settings: Any) -> None:
    project.write({"shop.products": DESCRIBED | settings})


@pytest.mark.parametrize("version", [2, 3])
def test_a_mirror_has_the_comments_of_the_config(tmp_path: Path, version: int) -> None:
    project = Project(tmp_path, {"shop.products": DESCRIBED | {"format_version": version}})
    project.land("1.jsonl", [event("c", ROW)])
    assert project.run().exit_code == 0
    assert docs(project) == DESCRIBED["column_descriptions"]
    log = "change_log.shop_products"
    assert docs(project, log) == {f"after.{name}": text for name, text in DESCRIBED["column_descriptions"].items()}
    for name in ("shop.products", log):
        assert project.table(name).properties["comment"] == DESCRIBED["description"]
    schemas = len(project.table("shop.products").metadata.schemas)
    project.land("2.jsonl", [event("c", ROW | {"id": 2})])
    assert project.run().exit_code == 0
    assert len(project.table("shop.products").metadata.schemas) == schemas
    assert project.rows()[1] == ROW | {"id": 2}


@pytest.mark.parametrize("new_data", [[], [event("u", ROW | {"name": "b"})], [event("u", ROW | {"added": 1})]])
def test_a_changed_config_changes_them(tmp_path: Path, new_data: list[str]) -> None:
    project = Project(tmp_path, {"shop.products": DESCRIBED})
    project.land("1.jsonl", [event("c", ROW)])
    project.run()
    snapshots = project.snapshots()
    other = {"id": "Another.", "name": "New."}
    describe(project, column_descriptions=other, description="Other.", properties={"owner": "sales"})
    project.land("2.jsonl", new_data or [event("d", ROW | {"id": 9})])
    assert project.run().exit_code == 0
    assert docs(project) == DESCRIBED["column_descriptions"] | other
    properties = project.table("shop.products").properties
    assert (properties["comment"], properties["owner"]) == ("Other.", "sales")
    assert set(snapshots) == set(project.snapshots())


def test_a_new_column_is_described_with_its_first_rows(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", ROW)])
    project.run()
    project.land("2.jsonl", [event("c", ROW | {"id": 2, "colour": "red"})])
    assert project.run().exit_code == 0
    project.write({"shop.products": {"key": ["id"], "column_descriptions": {"colour": "As painted."}}})
    project.land("3.jsonl", [event("c", ROW | {"id": 3})])
    assert project.run().exit_code == 0
    assert docs(project) == {"colour": "As painted."}


@pytest.mark.parametrize("column", ["nmae", "size.depth"])
def test_a_description_of_an_unknown_column_is_refused(tmp_path: Path, column: str) -> None:
    project = Project(tmp_path, {"shop.products": DESCRIBED | {"column_descriptions": {column: "?"}}})
    project.land("1.jsonl", [event("c", ROW)])
    message = str(the(project.run()).error)
    assert f"column_descriptions: the table has no column {column}" in message
    describe(project)
    assert project.run().exit_code == 0
    assert project.rows() == [ROW]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_published_table_has_them_too(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.land("1.jsonl", [event("c", ROW)])
    project.run()
    path = tmp_path / "nevermore.yaml"

    def write(**settings: Any) -> None:
        entry = {"sql": "select id, name from shop.products", "column_descriptions": {"name": "As printed."}}
        path.write_text(
            yaml.safe_dump(yaml.safe_load(path.read_text()) | {"published": {"shop.names": entry | settings}})
        )

    write(description="All names.")
    publish(load(path), "shop.names")
    assert docs(project, "shop.names") == {"name": "As printed."}
    assert project.table("shop.names").properties["comment"] == "All names."
    write(description="Names.", sql="select id, name, 1 as n from shop.products", column_descriptions={"n": "One."})
    publish(load(path), "shop.names")
    assert docs(project, "shop.names") == {"name": "As printed.", "n": "One."}
    assert project.table("shop.names").properties["comment"] == "Names."
    assert len(project.rows("shop.names")) == 1
