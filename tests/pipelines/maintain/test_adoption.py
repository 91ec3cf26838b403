"""Tables that others made, kept as mirrors from then on."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, NestedField, StringType, TimestampType

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError, PipelineError, SourceError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.adoption import adopt
from tests.pipelines.project import Project, event

SCHEMA = Schema(
    NestedField(7, "name", StringType(), required=False),
    NestedField(3, "id", IntegerType(), required=True),
    NestedField(12, "seen", TimestampType(), required=False),
)
ROWS = [{"name": f"n{i}", "id": i, "seen": None} for i in range(6)]


def project_with_table(
    folder: Path, rows: list[dict[str, Any]] = ROWS, *, properties: dict[str, str] | None = None, **options: Any
) -> Project:
    """A project, and a table that PyIceberg has made and written, with ids and orders of its own."""
    config = options.pop("config", {"key": ["id"]})
    project = Project(folder, {"shop.products": config})
    catalog = open_catalog(load(folder / "nevermore.yaml"))
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.products", SCHEMA, properties=properties or {}, **options)
    for half in (rows[::2], rows[1::2]):
        table.append(pa.Table.from_pylist(half, table.schema().as_arrow()))
    return project


def adopted(project: Project, **options: bool) -> Any:
    config = load(project.folder / "nevermore.yaml")
    return adopt(open_catalog(config), config, "shop.products", **options)


def changes(project: Project) -> None:
    project.land(
        "1.jsonl",
        [
            event("u", {"id": 1, "name": "changed", "seen": "2026-01-02T03:04:05"}),
            event("d", {"id": 2, "name": None}),
            event("c", {"id": 9, "name": "new", "seen": None}),
        ],
    )


def assert_changed(project: Project) -> None:
    report = project.run()
    assert report.exit_code == 0, report.as_dict()
    found = {r["id"]: r["name"] for r in project.rows()}
    assert found == {0: "n0", 1: "changed", 3: "n3", 4: "n4", 5: "n5", 9: "new"}
    assert str(next(r["seen"] for r in project.rows() if r["id"] == 1)) == "2026-01-02 03:04:05"


def test_table_of_pyiceberg_is_kept_from_then_on(tmp_path: Path) -> None:
    project = project_with_table(tmp_path)
    changes(project)
    error = str(project.run().tables[0].error)
    assert "nevermore adopt shop.products" in error
    assert "drops all present rows: nevermore resync shop.products" in error
    done = adopted(project)
    assert (done.num_rows, done.key, done.applied_ordinal) == (6, ("id",), 0)
    assert_changed(project)


@pytest.mark.parametrize("kind", ["partitioned", "sorted", "by name"])
def test_specs_and_sort_orders_stay(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "partitioned": {"partition_spec": PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "id"))},
        "sorted": {"sort_order": SortOrder(SortField(3, IdentityTransform()))},
        "by name": {"partition_spec": PartitionSpec(PartitionField(7, 1000, IdentityTransform(), "name"))},
    }[kind]
    project = project_with_table(tmp_path, **options)
    adopted(project)
    changes(project)
    assert_changed(project)
    assert project.run().found_nothing_new


def test_version_1_is_refused_or_upgraded(tmp_path: Path) -> None:
    project = project_with_table(tmp_path, properties={"format-version": "1"})
    with pytest.raises(SourceError, match="--upgrade"):
        adopted(project)
    assert project.table("shop.products").format_version == 1
    adopted(project, upgrade_format=True)
    changes(project)
    assert_changed(project)


def test_rows_that_hold_the_log_already_are_not_given_it_again(tmp_path: Path) -> None:
    project = project_with_table(tmp_path)
    changes(project)
    project.run(log_only=True)
    assert adopted(project, skip_log=True).applied_ordinal == 3
    project.run()
    assert len(project.rows()) == 6


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("config", "rows", "error", "message"),
    [
        ({"key": ["id"]}, [*ROWS, ROWS[1]], SourceError, r"1 key \(id\) with several rows.*Keys: 1$"),
        ({}, ROWS, ConfigError, "key: "),
        ({"key": ["nr"]}, ROWS, PipelineError, "nr"),
        ({"key": ["id"], "partition_by": ["name"]}, ROWS, ConfigError, r"\[\], but the config has .*identity\(name\)"),
    ],
    ids=["shared key", "no key", "unknown key", "other partitioning"],
)
def test_what_cannot_be_a_mirror_is_refused_and_stays(
    config: dict[str, Any], rows: list[dict[str, Any]], error: type[Exception], message: str, tmp_path: Path
) -> None:
    project = project_with_table(tmp_path, rows, config=config)
    before = project.table("shop.products").metadata_location
    with pytest.raises(error, match=message):
        adopted(project)
    assert project.table("shop.products").metadata_location == before


def test_mirror_is_not_adopted_twice(tmp_path: Path) -> None:
    project = project_with_table(tmp_path)
    adopted(project)
    with pytest.raises(SourceError, match="already"):
        adopted(project)


def test_another_partitioning_is_not_to_be_had_by_dropping_adopted_rows(tmp_path: Path) -> None:
    project = project_with_table(tmp_path)
    adopted(project)
    project.write({"shop.products": {"key": ["id"], "partition_by": ["name"]}})
    error = str(project.run().tables[0].error)
    assert "restore the old one" in error
    assert "resync" not in error


def test_table_without_key_keeps_its_equal_rows(tmp_path: Path) -> None:
    project = project_with_table(tmp_path, [*ROWS, ROWS[1]], config={"identity": "full"})
    adopted(project)
    project.land("1.jsonl", [event("d", ROWS[1])])
    assert project.run().exit_code == 0
    assert [r["id"] for r in project.rows()] == [0, 1, 2, 3, 4, 5]
