"""Debt: what scans lose is counted as the table is, and what maintenance would do is what it then does."""

import json
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from nevermore.assets.project import NevermoreResource as DagsterProject
from nevermore.assets.project import mirror_key
from nevermore.checks.asset_checks import mirror_asset_checks
from nevermore.pipelines.config.project import Config, load, parse
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, everything
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.maintain import compact as compaction
from nevermore.pipelines.maintain import debt as module
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.maintain.debt import debt_of, debts_of_all
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded
from tests.pipelines.project import Project, event, product

NAME = "shop.products"
ONE_TABLE = "tables: {shop.t: {source: {path: x.jsonl, format: debezium-json}, key: [id]}}"


@pytest.fixture
def project(tmp_path: Any) -> Project:
    """Ten commits, each updates the three rows and deletes or creates a fourth."""
    project = Project(tmp_path, {NAME: {"key": ["id"]}})
    for number in range(10):
        op = "c" if number % 2 == 0 else "d"
        rows = [event("u", product(key, f"v{number}")) for key in range(3)]
        project.land(f"{number}.jsonl", [*rows, event(op, product(9, f"v{number - number % 2}"))])
        assert project.run().exit_code == 0
    return project


def config_of(project: Project, **maintenance: Any) -> Config:
    path = project.folder / "nevermore.yaml"
    if maintenance:
        path.write_text(path.read_text() + f"maintenance: {json.dumps(maintenance)}\n")
    return load(path)


def table_of(config: Config) -> Any:
    return find_table(open_catalog(config), NAME)


def test_debt_is_counted_and_maintenance_does_what_it_says(project: Project) -> None:
    config = config_of(project, keep_snapshots=1, keep_for="1ms")
    catalog = open_catalog(config)
    (debt,) = debts_of_all(catalog, config)
    table = table_of(config)
    summary = table.current_snapshot().summary
    assert debt.snapshot_id == table.metadata.current_snapshot_id
    assert (debt.data_files, debt.small_files, debt.snapshots) == (10, 10, 10)
    assert (debt.rows, debt.dead_rows) == (35, 32)
    assert debt.delete_files == int(summary["total-delete-files"])
    assert debt.delete_rows == int(summary["total-equality-deletes"])
    assert debt.manifests == len(table.current_snapshot().manifests(table.io))
    assert 0 < debt.share < 1
    assert debt.saved_seconds == pytest.approx(debt.lost_seconds)
    done = compact(table, CompactSettings.of(table, config))
    assert (done.files_before, done.bytes_before, done.delete_files_dropped, done.dead_rows_removed) == (
        debt.compact_files,
        debt.compact_bytes,
        debt.dropped_deletes,
        debt.dead_rows,
    )
    after = debt_of(table, config)
    assert (after.data_files, after.dead_rows, after.delete_files) == (1, 0, 0)
    assert (after.lost_seconds, after.share, after.compact_files, after.is_too_much) == (0, 0, 0, False)


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("transform", "shown"),
    [("day", "2026-03-05"), ("month", "2026-03"), ("year", "2026"), ("hour", "2026-03-05 07:00")],
)
def test_partitions_are_named_as_people_write_them(tmp_path: Any, transform: str, shown: str) -> None:
    catalog = catalog_in(tmp_path)
    table = new_table(catalog, {"id": "long", "at": "timestamp"}, (transform, "at"))
    delta = RowDelta(table)
    rows = pa.table({"id": [1], "at": pa.array([datetime(2026, 3, 5, 7, 8)], pa.timestamp("us"))})  # noqa: DTZ001
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    (found,) = debt_of(reloaded(catalog), parse(ONE_TABLE, tmp_path / "nevermore.yaml")).partitions
    assert found.partition == f"at_{transform} = {shown}"


def test_partitions_of_which_scans_lose_most_come_first(tmp_path: Any) -> None:
    project = Project(tmp_path, {NAME: {"key": ["id", "name"], "partition_by": ["name"]}})
    for number in range(4):
        project.land(f"{number}.jsonl", [event("c", product(number, "many")), event("u", product(number // 3, "few"))])
        assert project.run().exit_code == 0
    config = config_of(project)
    debt = debt_of(table_of(config), config)
    assert {one.partition for one in debt.partitions} == {"name = 'few'", "name = 'many'"}
    assert debt.partitions[0].lost_seconds >= debt.partitions[1].lost_seconds
    assert sum(one.data_files for one in debt.partitions) == debt.data_files
    assert sum(one.dead_rows for one in debt.partitions) == debt.dead_rows
    assert any("name = 'few':" in line for line in debt.lines)


def test_a_table_without_rows_has_none(project: Project) -> None:
    config = config_of(project)
    RowDelta(table_of(config)).commit([], {}, remove=everything)
    (debt,) = debts_of_all(open_catalog(config), config, [NAME])
    assert (debt.data_files, debt.share, debt.is_too_much, debt.snapshots) == (0, 0.0, False, 11)
    assert "nothing to compact" in "\n".join(debt.lines)


@pytest.mark.slow
@pytest.mark.parametrize(("max_debt", "passes"), [(0.01, False), (1, True)])
def test_the_check_warns_above_the_threshold_of_the_config(
    max_debt: float, passes: object, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (compaction, module):
        monkeypatch.setattr(place, "MIN_NOTICED_SECONDS", 0.0)
    config = config_of(project, max_debt=max_debt)
    assert next(debt_of(table_of(config), config).lines).endswith("more than max_debt (1%)") != passes
    check = mirror_asset_checks(NAME, mirror_key(NAME), config)
    result = dg.Definitions(
        asset_checks=[check],
        resources={"project": DagsterProject(config_path=str(config.path))},
        jobs=[dg.define_asset_job("only", selection=dg.AssetSelection.checks(check))],
    ).resolve_job_def("only")
    evaluations = result.execute_in_process().get_asset_check_evaluations()
    found = next(one for one in evaluations if one.check_name == "scans_are_fast")
    assert (found.passed, found.severity) == (passes, dg.AssetCheckSeverity.WARN)
    assert found.metadata["dead rows"].value == 32


def test_the_command(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    from nevermore.pipelines.cli.main import main

    def call(*words: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["debt", *words, "--config", str(project.folder / "nevermore.yaml")])
        return ended.value.code, *capsys.readouterr()

    code, text, _ = call()
    assert code in (0, None)
    assert "10, 10 of them small; 35 rows, 32 of them dead" in text
    assert "would rewrite 10 files" in text
    code, text, _ = call(NAME, "--json")
    (document,) = json.loads(text)
    assert (document["dead_rows"], document["is_too_much"]) == (32, False)
    code, _, errors = call("shop.product")
    assert code == 2
    assert NAME in errors
