"""Mirrors that began as tables of others are compared with their own first rows, folded with the change log."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from nevermore.checks.equality import ROW_CHECKS, MirrorRows
from nevermore.checks.mirror_checks import checks_of, mirror_subject, run_checks
from nevermore.checks.reference.sql_columns import private_database
from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.errors import AdoptedRowsError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.adoption import adopt
from nevermore.pipelines.maintain.replay import resync, resync_from
from nevermore.pipelines.publish.audit import CheckResult
from tests.pipelines.project import Project, event

NAME = "shop.products"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "stock", IntegerType(), required=False),
)
ROWS = [{"id": i, "name": f"n{i}", "stock": 10 * i} for i in (1, 2, 3)]
KEYED: dict[str, Any] = {"key": ["id"]}


def project_of(folder: Path, config: dict[str, Any] | None = None, rows: list[dict[str, Any]] = ROWS) -> Project:
    """A project whose mirror PyIceberg made and wrote."""
    project = Project(folder, {NAME: config or KEYED})
    catalog = open_catalog(config_of(project))
    catalog.create_namespace("shop")
    table = catalog.create_table(NAME, SCHEMA)
    if rows:
        table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))
    return project


def config_of(project: Project) -> Config:
    return load(project.folder / "nevermore.yaml")


def take(project: Project, *, skip_log: bool = False) -> None:
    adopt(open_catalog(config_of(project)), config_of(project), NAME, skip_log=skip_log)


def feed(project: Project, *lines: str) -> None:
    number = len(list(project.landing.iterdir()))
    project.land(f"{number}.jsonl", lines)
    report = project.run()
    assert report.exit_code == 0, report.as_dict()


def changed(key: int, **row: Any) -> str:
    return event("u", {"id": key, "name": "new", "stock": 7} | row)


def checked(project: Project) -> list[CheckResult]:
    config = config_of(project)
    return list(run_checks(config, NAME, checks_of(config, NAME)))


def assert_all_pass(project: Project, num_rows: int) -> None:
    results = checked(project)
    assert [r for r in results if not r.passed or r.details] == []
    compared = next(r.compared for r in results if r.name == "mirror_equals_reference")
    assert set(compared.values()) == {num_rows}
    assert compared["rows by log"] == num_rows


def expire(project: Project, snapshot_id: int) -> None:
    project.table(NAME).maintenance.expire_snapshots().by_id(snapshot_id).commit()


def first_snapshot(project: Project) -> int:
    return int(project.table(NAME).metadata.snapshots[0].snapshot_id)


def two_changes(project: Project) -> None:
    """Row 1 goes, row 2 becomes row 4."""
    before = {"id": 2, "name": "n2", "stock": 20}
    feed(project, event("d", {"id": 1}), event("u", before | {"id": 4}, before=before))
    assert [r["id"] for r in project.rows()] == [3, 4]


def test_rows_that_no_change_touched_are_those_of_the_adopted_snapshot(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    take(project)
    two_changes(project)
    assert_all_pass(project, 2)


@pytest.mark.parametrize("config", [KEYED, KEYED | {"soft_delete": True}, {"identity": "full"}], ids=str)
def test_adopted_rows_are_folded_in_every_mode(config: dict[str, Any], tmp_path: Path) -> None:
    project = project_of(tmp_path, config)
    take(project)
    feed(project, event("d", ROWS[0]), event("u", ROWS[1] | {"name": "new"}, before=ROWS[1]), event("c", ROWS[0]))
    feed(project, event("d", ROWS[2]))
    results = checked(project)
    assert [r for r in results if not r.passed or r.details] == []
    assert results[min(1, len(results) - 1)].compared["rows by log"] == 2


def test_adopted_row_gives_what_a_change_did_not_send(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    take(project)
    feed(project, changed(1, name="__debezium_unavailable_value"))
    assert [r["name"] for r in project.rows()] == ["n1", "n2", "n3"]
    assert_all_pass(project, 3)


def test_columns_and_types_may_grow_after_the_adoption(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    take(project)
    feed(project, changed(2, stock=5_000_000_000, colour="red"))
    assert_all_pass(project, 3)


def test_columns_that_the_feed_does_not_know_are_compared(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    take(project)
    feed(project, event("u", {"id": 2, "name": "new"}), event("c", {"id": 9, "name": "new"}))
    assert_all_pass(project, 4)


@pytest.mark.parametrize("rows", [ROWS, []], ids=["rows", "empty"])
def test_adoption_alone_is_compared(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    project = project_of(tmp_path, rows=rows)
    take(project)
    project.land("1.jsonl", [])
    assert project.run().exit_code == 0
    assert all(r.passed for r in checked(project))
    feed(project, event("t"), changed(5))
    assert_all_pass(project, 1)


def test_changes_that_the_adopted_rows_hold_already_are_not_folded_again(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    project.land("1.jsonl", [changed(1), event("d", {"id": 3})])
    project.run(log_only=True)
    take(project, skip_log=True)
    feed(project, changed(2))
    assert [r["name"] for r in project.rows()] == ["n1", "new", "n3"]
    assert_all_pass(project, 3)


def test_lost_adopted_row_fails_the_check(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    take(project)
    two_changes(project)
    subject = mirror_subject(config_of(project), NAME)
    assert subject is not None
    with private_database() as database:
        lost = MirrorRows(subject, database)
        lost.__dict__["engine"] = replace(lost.engine, sql=f"(FROM {lost.engine.sql} OFFSET 1)")
        lost.__dict__["files"] = lost.engine
        found = ROW_CHECKS["mirror_equals_reference"](lost)
    assert not found.passed
    assert found.details == ["1 row of its change log not returned"]


def test_expired_adopted_snapshot_is_told_and_the_files_are_still_compared(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    take(project)
    two_changes(project)
    snapshot = first_snapshot(project)
    expire(project, snapshot)
    found = {r.name: r for r in checked(project)}
    assert all(r.passed for r in found.values())
    (text,) = found["mirror_equals_reference"].details
    assert text.startswith("not compared: ")
    assert f"snapshot {snapshot}" in text
    assert "expired" in text
    assert found["mirror_equals_reference"].compared == {"rows from engine": 2, "rows in files": 2}
    assert found["no_deleted_row_reappears"].compared["keys deleted in log"] == 2


def test_table_adopted_before_its_snapshot_was_remembered_is_not_compared(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    take(project)
    two_changes(project)
    with project.table(NAME).transaction() as change:
        change.remove_properties("nevermore.adopted-snapshot")
    (found,) = (r for r in checked(project) if r.details)
    assert found.passed
    assert found.details[0].startswith("not compared: ")


def test_resync_that_would_lose_adopted_rows_is_refused_until_a_full_load_replaces_them(tmp_path: Path) -> None:
    project = project_of(tmp_path)
    take(project)
    two_changes(project)
    config = config_of(project)
    with pytest.raises(AdoptedRowsError, match="--snapshot-source") as refused:
        resync(open_catalog(config), config, NAME)
    assert refused.value.exit_code == 2
    assert [r["id"] for r in project.rows()] == [3, 4]

    load_file = tmp_path / "load.jsonl"
    load_file.write_text("\n".join(event("r", {"id": i, "name": "l", "stock": 1}) for i in (3, 8)))
    resync_from(open_catalog(config), config, NAME, (str(load_file),))
    assert_all_pass(project, 2)
    resync(open_catalog(config), config, NAME)
    assert [r["id"] for r in project.rows()] == [3, 8]
    expire(project, first_snapshot(project))
    assert_all_pass(project, 2)
