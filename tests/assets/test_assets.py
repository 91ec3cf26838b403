"""Each asset and check run as a user would in CI: `dagster.materialize` over a folder of event files."""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from nevermore.assets.definitions import change_log_assets, mirror_asset
from nevermore.assets.project import NevermoreResource as Project
from nevermore.assets.project import change_log_key, mirror_key
from nevermore.checks.asset_checks import check_metadata, check_result, mirror_asset_checks
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feed_run import apply_logs, run_once
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.scan_core import open_table
from tests.support.shop_project import ShopProject

ORDERS = "shop.orders"
PEOPLE = ("shop.customers", "shop.suppliers")
OF_TABLE = (
    "should_meet_expectations",
    "manifests_match_files",
    "nothing_was_rolled_back",
    "log_is_complete",
    "no_key_is_stale",
    "quarantine_is_small",
    "schema_matches",
    "scans_are_fast",
)
CHECKS = ("no_deleted_row_reappears", "mirror_equals_reference", "key_is_unique", *OF_TABLE)


def _run(
    project: ShopProject, assets: Iterable[Any], *, succeeds: bool = True, selection: Any = None
) -> dg.ExecuteInProcessResult:
    result = dg.materialize(
        list(assets),
        resources={"project": Project(config_path=str(project.path))},
        raise_on_error=False,
        selection=selection,
    )
    assert result.success is succeeds
    return result


def _metadata(result: dg.ExecuteInProcessResult, key: dg.AssetKey) -> dict[str, Any]:
    (found,) = [m for m in result.get_asset_materialization_events() if m.asset_key == key]
    return {name: value.value for name, value in found.materialization.metadata.items()}


def _verdicts(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {e.check_name: e.passed for e in result.get_asset_check_evaluations()}


def _orders(project: ShopProject) -> list[tuple[int, float]]:
    table = find_table(open_catalog(project.config), ORDERS)
    rows = open_table(table).scan().to_table().sort_by("id").to_pylist()
    return [(row["id"], row["amount"]) for row in rows]


_ALIVE = [(2, 25.0), (3, 30.0), (4, 40.0), (5, 50.0), (6, 60.0), (7, 70.0)]


def test_a_change_log_holds_every_event_and_says_so(project: ShopProject) -> None:
    result = _run(project, [change_log_assets([ORDERS], project.config)])
    metadata = _metadata(result, change_log_key(ORDERS))
    assert metadata["events"] == 9
    assert (metadata["events: create"], metadata["events: update"], metadata["events: delete"]) == (7, 1, 1)
    assert (metadata["status"], metadata["quarantined"]) == ("applied", 0)
    assert metadata["dagster/row_count"] == 9
    assert metadata["bytes in log"] > 0
    assert int(metadata["snapshot id"]) > 0
    assert find_table(open_catalog(project.config), ORDERS) is None


def test_a_second_run_finds_nothing_new_and_changes_nothing(project: ShopProject) -> None:
    assets = [change_log_assets([ORDERS], project.config), mirror_asset(ORDERS, project.config)]
    first, second = _run(project, assets), _run(project, assets)
    for key in (change_log_key(ORDERS), mirror_key(ORDERS)):
        assert _metadata(second, key)["status"] == "nothing new"
        assert _metadata(second, key)["snapshot id"] == _metadata(first, key)["snapshot id"]


def test_tables_of_one_source_are_read_in_one_step_and_can_be_chosen(project: ShopProject) -> None:
    assets = change_log_assets(PEOPLE, project.config)
    result = _run(project, [assets], selection=dg.AssetSelection.assets(change_log_key("shop.customers")))
    assert _metadata(result, change_log_key("shop.customers"))["events"] == 3
    both = _run(project, [assets])
    assert _metadata(both, change_log_key("shop.customers"))["status"] == "nothing new"
    assert _metadata(both, change_log_key("shop.suppliers"))["events"] == 1


def test_a_mirror_holds_the_rows_that_are_alive_and_says_what_it_wrote(project: ShopProject) -> None:
    assets = [change_log_assets([ORDERS], project.config), mirror_asset(ORDERS, project.config)]
    result = _run(project, assets)
    metadata = _metadata(result, mirror_key(ORDERS))
    assert _orders(project) == _ALIVE
    assert (metadata["dagster/row_count"], metadata["rows written"], metadata["commits"]) == (6, 6, 1)
    assert [column.name for column in metadata["dagster/column_schema"].columns] == ["id", "amount", "day"]


def test_a_later_batch_writes_delete_files_and_the_mirror_counts_what_they_remove(project: ShopProject) -> None:
    second = project.folder / "landing" / "orders" / "2.jsonl"
    held_back = second.read_text()
    second.unlink()
    assets = [change_log_assets([ORDERS], project.config), mirror_asset(ORDERS, project.config)]
    _run(project, assets)
    second.write_text(held_back)
    metadata = _metadata(_run(project, assets), mirror_key(ORDERS))
    assert _orders(project) == _ALIVE
    assert metadata["delete files written"] == 1
    assert metadata["dead rows"] == 2
    assert metadata["removals that found no row"] == 0


def test_a_broken_event_goes_to_quarantine_and_the_rest_goes_on(project: ShopProject) -> None:
    project.land("orders", "3.jsonl", ["{broken"])
    result = _run(project, [change_log_assets([ORDERS], project.config)])
    assert _metadata(result, change_log_key(ORDERS))["quarantined"] == 1


def failure_message(result: dg.ExecuteInProcessResult) -> str:
    """What the UI shows of the only step that failed: a message, and no frames of code."""
    (failure,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    error = failure.step_failure_data.error
    assert error is not None
    assert (error.stack, error.cause, error.context) == ([], None, None)
    return error.message


def test_a_failing_table_fails_its_step_and_not_that_of_others(project: ShopProject) -> None:
    project.land("orders", "3.jsonl", ['{"op": broken}'] * 10)
    assets = [change_log_assets(PEOPLE, project.config), change_log_assets([ORDERS], project.config)]
    result = _run(project, assets, succeeds=False)
    assert "more than max_quarantine_ratio" in failure_message(result)
    assert _metadata(result, change_log_key("shop.customers"))["status"] == "applied"


@pytest.mark.parametrize("table", [ORDERS, *PEOPLE])
def test_every_check_of_a_right_mirror_passes_and_tells_what_it_compared(project: ShopProject, table: str) -> None:
    run_once(project.config)
    result = _run(project, _checked(project, table))
    assert _verdicts(result) == dict.fromkeys(CHECKS, True)
    evaluations = {e.check_name: e for e in result.get_asset_check_evaluations()}
    assert evaluations["key_is_unique"].metadata["rows in table"].value > 0
    assert evaluations["key_is_unique"].blocking


def test_checks_of_a_table_that_was_never_ingested_have_nothing_to_compare(tmp_path: Path) -> None:
    project = ShopProject(tmp_path)
    assert _verdicts(_run(project, _checked(project, ORDERS))) == dict.fromkeys(CHECKS, True)


def test_a_deleted_row_that_reappears_fails_its_check_blocks_what_follows_and_is_named(project: ShopProject) -> None:
    run_once(project.config)
    _write_behind_the_log(project, [{"id": 1, "amount": 10.0, "day": None}])

    @dg.asset(deps=[mirror_key(ORDERS)])
    def downstream() -> None: ...

    result = _run(project, [*_checked(project, ORDERS), downstream], succeeds=False)
    verdicts = _verdicts(result)
    assert [name for name in CHECKS if verdicts[name]] == ["key_is_unique", *OF_TABLE]
    evaluations = {e.check_name: e for e in result.get_asset_check_evaluations()}
    assert evaluations["no_deleted_row_reappears"].metadata["offending keys"].value == [{"id": 1}]
    assert not [e for e in result.get_asset_materialization_events() if e.asset_key == downstream.key]
    first, command = failure_message(result).splitlines()
    assert first.endswith("shop.orders fails no_deleted_row_reappears, mirror_equals_reference")
    assert command.startswith("to see more: nevermore why shop.orders --key id=1 ")


def test_a_key_that_occurs_twice_fails_its_check(project: ShopProject) -> None:
    run_once(project.config)
    _write_behind_the_log(project, [{"id": 3, "amount": 30.0, "day": None}])
    verdicts = _verdicts(_run(project, _checked(project, ORDERS), succeeds=False))
    assert [name for name in CHECKS if verdicts[name]] == ["no_deleted_row_reappears", *OF_TABLE]


def test_checks_can_be_run_one_by_one(project: ShopProject) -> None:
    run_once(project.config)
    only = dg.AssetCheckKey(mirror_key(ORDERS), "key_is_unique")
    result = _run(project, _checked(project, ORDERS), selection=dg.AssetSelection.checks(only))
    assert _verdicts(result) == {"key_is_unique": True}


def _checked(project: ShopProject, table: str) -> Sequence[Any]:
    return [mirror_asset(table, project.config), mirror_asset_checks(table, mirror_key(table), project.config)]


def _write_behind_the_log(project: ShopProject, rows: list[dict[str, Any]]) -> None:
    """Rows that no change accounts for, in the mirror's newest snapshot, with the position of the one before."""
    apply_logs(project.config)
    table = find_table(open_catalog(project.config), ORDERS)
    assert table is not None
    delta = RowDelta(table)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    files = write_rows(pa.table(columns), delta.target, delta.default_spec)
    delta.commit(files, {})


def test_values_that_browsers_would_show_as_others_are_text() -> None:
    keys = [
        {
            "id": 2**53 + 1,
            "small": 7,
            "part": Decimal("1.50"),
            "ratio": math.nan,
            "list": [-(2**60), True, None],
        }
    ]
    shown = check_metadata({}, keys)["offending keys"].value
    assert shown == [
        {
            "id": "9007199254740993",
            "small": 7,
            "part": "1.50",
            "ratio": "nan",
            "list": ["-1152921504606846976", True, None],
        }
    ]


def test_a_failed_check_shows_its_first_statements_and_keeps_all_of_them() -> None:
    shown = check_result(CheckResult("c", passed=False, compared={"rows": 2}, details="abde"), mirror_key("s.t"))
    assert shown.description == "2 rows; a; b; 2 more in the details"
    assert shown.metadata["details"].value == "- a\n- b\n- d\n- e"
    short = check_result(CheckResult("c", passed=False, details=["a", "b"]), mirror_key("s.t"))
    assert short.description == "a; b"
    assert "details" not in short.metadata
