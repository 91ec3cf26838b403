from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.replay import resync
from tests.pipelines.project import Project, event, the


def project_of(folder: Path, **table: Any) -> Project:
    return Project(folder, {"shop.products": {"key": ["id"], **table}})


def change_config(project: Project, **table: Any) -> None:
    project.write({"shop.products": {"key": ["id"], **table}})


def failed(project: Project) -> str:
    """What the table's run says, which fails."""
    error = the(project.run()).error
    assert error is not None
    return error


@pytest.mark.parametrize("settings", [{"partition_by": ["region"]}, {"key": ["id", "region"]}])
def test_column_of_nulls_that_the_table_needs_asks_for_its_type(tmp_path: Path, settings: dict[str, Any]) -> None:
    project = project_of(tmp_path, **settings)
    project.land("1.jsonl", [event("c", {"id": 1, "region": None, "n": 1})])
    assert "type of column 'region' is unknown" in failed(project)
    assert project.snapshots() == {}
    change_config(project, **settings, types={"region": "string"})
    assert the(project.run()).error is None
    project.land(
        "2.jsonl", [event("u", {"id": 1, "region": None, "n": 2}), event("c", {"id": 2, "region": "A", "n": 1})]
    )
    assert the(project.run()).error is None
    assert project.rows() == [{"id": 1, "region": None, "n": 2}, {"id": 2, "region": "A", "n": 1}]


def test_partition_column_that_never_came_is_made_as_declared(tmp_path: Path) -> None:
    project = project_of(tmp_path, partition_by=["region"], types={"region": "string"})
    project.land("1.jsonl", [event("c", {"id": 1})])
    assert the(project.run()).error is None
    assert project.rows() == [{"id": 1, "region": None}]


def test_sorting_by_a_column_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    project = project_of(tmp_path, sort_by=["id", "region"])
    project.land("1.jsonl", [event("c", {"id": 2, "s": {"a": 1}, "region": None}), event("c", {"id": 1})])
    assert "sort_by: region is not a plain column of the table; choose from id" in failed(project)
    change_config(project, sort_by=["s"])
    assert "sort_by: s is not a plain column" in failed(project)
    assert project.snapshots() == {}
    change_config(project, sort_by=["region", "id"], types={"region": "string"})
    assert the(project.run()).error is None
    assert project.rows() == [{"id": 1, "s": None, "region": None}, {"id": 2, "s": {"a": 1}, "region": None}]


def test_transform_for_another_type_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    project = project_of(tmp_path, partition_by=["day(n)"])
    project.land("1.jsonl", [event("c", {"id": 1, "n": 1})])
    assert "day is not defined for type long" in failed(project)
    assert project.snapshots() == {}
    change_config(project)
    assert the(project.run()).error is None
    assert project.rows() == [{"id": 1, "n": 1}]


def test_days_of_a_column_without_a_type_ask_for_it(tmp_path: Path) -> None:
    project = project_of(tmp_path, partition_by=["days(at)"], rename={"t": "at"})
    project.land("1.jsonl", [event("c", {"id": 1, "t": "2026-01-31T10:00:00Z"})])
    assert failed(project).endswith(
        "day is not defined for type string; if it contains times, declare it under types: {t: timestamptz}, or date, or "
        "timestamp without a zone"
    )
    change_config(project, partition_by=["days(at)"], rename={"t": "at"}, types={"t": "timestamptz"})
    assert the(project.run()).error is None


def test_rule_25_illegal_key_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    project = project_of(tmp_path, key=["x"])
    project.land("1.jsonl", [event("c", {"id": 1, "x": 1.5})])
    assert "has type double" in failed(project)
    assert project.snapshots() == {}
    change_config(project)
    assert the(project.run()).error is None
    assert project.rows() == [{"id": 1, "x": 1.5}]


def test_changed_key_says_what_to_do(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    project.land("1.jsonl", [event("c", {"id": 1, "code": "a"})])
    project.run()
    change_config(project, key=["code"])
    error = failed(project)
    assert "its key was (id) and is now (code)" in error
    assert "change_log.shop_products" in error


def test_changed_partitioning_says_what_to_do(tmp_path: Path) -> None:
    project = project_of(tmp_path, partition_by=["region"])
    project.land("1.jsonl", [event("c", {"id": 1, "region": "a"})])
    project.run()
    change_config(project, partition_by=["identity(region)"])
    assert the(project.run()).error is None
    change_config(project, partition_by=["bucket(2, id)"])
    assert "partition_by was [identity(region)]" in failed(project)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": [], "identity": "full"}, "identity was key when the table was created and is now full"),
        ({"soft_delete": True}, "soft_delete was false when the table was created and is now true"),
        ({"sort_by": ["nope"]}, "sort_by: nope is not a plain column of the table; choose from id, name"),
    ],
)
def test_config_that_does_not_fit_the_mirror_is_told_before_an_event_comes(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    project = project_of(tmp_path)
    project.land("1.jsonl", [event("c", {"id": 1, "name": "a"})])
    project.run()
    change_config(project, **change)
    report = project.run()
    assert report.exit_code == 2
    assert message in str(the(report).error)


def test_soft_delete_is_turned_on_and_off_by_making_the_mirror_anew(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    project.land("1.jsonl", [event("c", {"id": 1}), event("c", {"id": 2}), event("d", {"id": 1})])
    project.run()
    for is_soft, rows in (
        (True, [{"id": 1, "_deleted": True}, {"id": 2, "_deleted": False}]),
        (False, [{"id": 2, "_deleted": None}]),
    ):
        change_config(project, soft_delete=is_soft)
        assert "nevermore resync shop.products" in failed(project)
        config = load(project.folder / "nevermore.yaml")
        resync(open_catalog(config), config, "shop.products")
        assert project.run().exit_code == 0
        assert project.rows() == rows
