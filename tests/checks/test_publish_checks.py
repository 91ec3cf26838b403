"""What a publication asks for before it reads a mirror: kept results, missing ones found out, red ones refused."""

import datetime as dt
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.checks import mirror_checks
from nevermore.checks.kept_results import FOLDER
from nevermore.checks.manifest_facts import NAME as MANIFESTS
from nevermore.checks.manifest_facts import compare_manifests
from nevermore.checks.mirror_checks import checks_of, run_checks, snapshot_results
from nevermore.checks.published_equality import ProjectAuditor, published_equals_duckdb, staged_manifests_match_files
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.publish.audit import CHECKS, UNCHECKED, CheckFailedError, CheckResult, StagedRows
from nevermore.pipelines.publish.publish_commit import StagedSnapshot
from nevermore.pipelines.publish.refresh import publish
from nevermore.scan_core import open_table
from nevermore.scan_core.metadata.manifest_list import snapshot_manifests
from tests.pipelines.publish.amounts import FIRST, SECOND
from tests.pipelines.publish.amounts import Project as Amounts
from tests.support.avro_edit import rewrite_avro
from tests.support.shop_project import ShopProject, event, order
from tests.support.spark_session import SPARK_TEST

ORDERS, NAME = "shop.orders", "shop.daily"


@pytest.fixture
def project(tmp_path: Path) -> ShopProject:
    project = ShopProject(tmp_path)
    project.land_orders()
    run_once(project.config)
    return project


def mirror(project: ShopProject) -> Any:
    return find_table(open_catalog(project.config), ORDERS)


def write_behind_the_log(project: ShopProject, **row: Any) -> None:
    delta = RowDelta(mirror(project))
    rows = pa.table({name: [value] for name, value in {"id": 99, "amount": 1e6, "day": None, **row}.items()})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})


def audit(project: ShopProject) -> list[CheckResult]:
    scan = open_table(mirror(project)).scan()
    return list(ProjectAuditor().mirrors(project.config, {ORDERS: scan}))


def files(project: ShopProject) -> list[Path]:
    return sorted(project.folder.rglob(f"{FOLDER}/*.json"))


def test_a_mirror_that_fails_its_checks_is_not_published(project: ShopProject) -> None:
    snapshots = len(mirror(project).metadata.snapshots)
    write_behind_the_log(project)
    with pytest.raises(CheckFailedError, match=r"shop\.orders fails mirror_equals_reference") as refused:
        publish(project.config, NAME, auditor=ProjectAuditor())
    assert "--unchecked" in str(refused.value)
    assert [v.name for v in refused.value.verdicts if not v.passed] == ["mirror_equals_reference"]
    assert find_table(open_catalog(project.config), NAME) is None
    assert len(mirror(project).metadata.snapshots) == snapshots + 1  # results are no commits


@SPARK_TEST[0]
@pytest.mark.usefixtures("spark")
def test_what_is_published_unchecked_says_so_and_the_check_of_the_mirror_fails(project: ShopProject) -> None:
    write_behind_the_log(project, day=dt.date(2026, 1, 1))
    report = publish(project.config, NAME)
    assert (report.is_unchecked, report.as_dict()["checks"]) == (True, [])
    table = find_table(open_catalog(project.config), NAME)
    assert table is not None
    assert table.metadata.current_snapshot().summary.additional_properties[CHECKS] == UNCHECKED
    assert published_equals_duckdb(project.config, NAME).passed  # the mirror's own files have the fourth row
    (found,) = run_checks(project.config, "shop.orders", ["mirror_equals_reference"])
    assert not found.passed


def test_results_are_kept_beside_the_mirror_and_found_out_once_per_snapshot(
    project: ShopProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(verdict.passed for verdict in audit(project))
    (kept,) = files(project)
    assert kept.name.startswith(f"{mirror(project).metadata.current_snapshot_id}-")
    with monkeypatch.context() as patch:
        patch.setattr(mirror_checks, "MIRROR_CHECKS", dict.fromkeys(mirror_checks.MIRROR_CHECKS))  # nothing to call
        assert all(verdict.passed for verdict in audit(project))
    kept.write_text("{")
    assert all(verdict.passed for verdict in audit(project))
    assert kept not in files(project)


def test_a_verdict_does_not_hold_for_a_manifest_list_that_was_edited_in_place(project: ShopProject) -> None:
    project.land("orders", "3.jsonl", [event("d", "orders", before=order(3, 30.0, 2))])
    run_once(project.config)
    assert all(verdict.passed for verdict in audit(project))
    path = mirror(project).metadata.current_snapshot().manifest_list.removeprefix("file://")
    rewrite_avro(path, lambda rows, _: rows.remove(next(row for row in rows if row["content"] == 1)))
    verdicts = audit(project)  # the deletes are gone, and the snapshot has the same id
    assert not all(verdict.passed for verdict in verdicts), verdicts


def test_a_check_by_hand_is_the_result_that_a_publication_finds(project: ShopProject) -> None:
    write_behind_the_log(project)
    config = project.config
    found = {result.name: result.passed for result in run_checks(config, ORDERS, checks_of(config, ORDERS))}
    (kept,) = files(project)
    assert {v.name: v.passed for v in audit(project)} == found | {"no_key_is_stale": True}
    assert files(project) == [kept]


def test_after_a_green_snapshot_only_the_keys_that_changed_are_compared(project: ShopProject) -> None:
    audit(project)
    green = mirror(project).metadata.current_snapshot_id
    project.land("orders", "3.jsonl", [
        event("u", "orders", before=order(3, 30.0, 2), after=order(3, 33.0, 1)),
        event("d", "orders", before=order(4, 40.0, 1)),
        event("c", "orders", after=order(8, 80.0, 2)),
    ])  # fmt: skip
    run_once(project.config)
    kept = snapshot_results(project.config, ORDERS)
    assert (kept.since, {r.passed for r in kept.results.values()}) == (green, {True})
    assert kept.results["mirror_equals_reference"].compared == {
        "keys changed": 3, "rows from engine": 2, "rows by log": 2
    }  # fmt: skip


@pytest.mark.each(3)
@pytest.mark.parametrize(
    ("row", "is_in_log", "failed"),
    [
        ({"id": 99}, False, {"mirror_equals_reference"}),
        ({"id": 4}, True, {"mirror_equals_reference", "no_deleted_row_reappears"}),
        ({"id": 8, "amount": 80.0, "day": None}, True, {"mirror_equals_reference", "key_is_unique"}),
    ],
    ids=["a key that did not change", "a key that was deleted", "a key that came"],
)
def test_rows_that_came_behind_the_log_fail_and_keys_that_the_log_did_not_change_need_all_rows(
    project: ShopProject, row: dict[str, Any], failed: set[str], *, is_in_log: bool
) -> None:
    audit(project)
    project.land("orders", "3.jsonl", [
        event("d", "orders", before=order(4, 40.0, 1)), event("c", "orders", after=order(8, 80.0, 2))
    ])  # fmt: skip
    run_once(project.config)
    write_behind_the_log(project, **row)
    kept = snapshot_results(project.config, ORDERS)
    assert (kept.since is not None) is is_in_log
    assert {name for name, result in kept.results.items() if not result.passed} == failed
    assert kept.results["mirror_equals_reference"].offending_keys[0]["id"] == row["id"]


def test_all_rows_are_compared_again_after_a_day(project: ShopProject, monkeypatch: pytest.MonkeyPatch) -> None:
    audit(project)
    project.land("orders", "3.jsonl", [event("c", "orders", after=order(8, 80.0, 2))])
    run_once(project.config)
    monkeypatch.setattr(mirror_checks, "FULL_CHECK_AFTER_SECONDS", -1.0)
    assert snapshot_results(project.config, ORDERS).since is None


# -- manifests of published tables --------------------------------------------------------------------------------------

LIES: dict[str, tuple[int, Callable[[Any], None], str]] = {
    "rows": (0, lambda f: f.update(record_count=f["record_count"] + 1), "expected 2 rows by its manifest, found 1"),
    "bytes": (0, lambda f: f.update(file_size_in_bytes=1), "but 1 by its manifest"),
    "partition": (0, lambda f: f["partition"].update(dict.fromkeys(f["partition"], 1)), "rows contradict"),
    "bound": (0, lambda f: [b.update(value=b"\x63" + b["value"][1:]) for b in f["lower_bounds"]], "between"),
    "rows of deletes": (
        1,
        lambda f: f.update(record_count=f["record_count"] + 1),
        "expected 2 rows by its manifest, found 1",
    ),
    "bound of deletes": (1, lambda f: [b.update(value=b"\x63" + b["value"][1:]) for b in f["lower_bounds"]], "between"),
}


def lie(table: Any, snapshot_id: int, kind: str) -> None:
    """Let the first manifest that a snapshot added say another thing of its first live file."""
    content, say, _ = LIES[kind]
    snapshot = open_table(table).metadata.snapshots[snapshot_id]
    path = next(
        m.path for m in snapshot_manifests(snapshot, open_table(table).io)
        if m.content == content and m.sequence_number == snapshot.sequence_number
    )  # fmt: skip
    rewrite_avro(
        path.removeprefix("file://"), lambda rows, _: say(next(r["data_file"] for r in rows if r["status"] != 2))
    )


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in {"partition", "rows of deletes"} else pytest.mark.slow) for kind in LIES],
)
def test_a_manifest_that_lies_of_staged_rows_keeps_them_from_being_published(tmp_path: Path, kind: str) -> None:
    amounts = Amounts(tmp_path)
    amounts.publish("upsert", FIRST, {1: 10})
    amounts.publish("upsert", SECOND, {2: 19})
    found = []

    def audit(staged: StagedSnapshot, *, is_lying: bool = True) -> None:
        if is_lying:
            lie(staged.table, staged.committed.snapshot_id, kind)
        rows = StagedRows(
            name="shop.published", mode="upsert", staged=staged, keys=None, values=None, query="", sources={}
        )
        found.append(staged_manifests_match_files(rows))
        if not found[-1].passed:
            raise CheckFailedError("red", [])

    amounts.publish("upsert", SECOND, {2: 20}, audit=partial(audit, is_lying=False))
    assert (found[0].passed, found[0].compared) == (True, {"data files": 1, "delete files": 1})
    with pytest.raises(CheckFailedError):
        amounts.publish("upsert", SECOND, {2: 21}, audit=audit)
    assert [text for text in found[1].details if LIES[kind][2] in text], found[1].details
    assert amounts.rows == [(1, 1, 10), (2, 2, 20)]
    table = open_table(amounts.table)
    assert compare_manifests(table, table.metadata.current_snapshot).passed
    lie(amounts.table, table.metadata.current_snapshot_id or 0, kind)
    assert not compare_manifests(open_table(amounts.table), table.metadata.current_snapshot).passed


class Lying(ProjectAuditor):
    """Asks all checks, after a manifest of the staged rows was damaged."""

    def rows(self, config: Config, staged: StagedRows) -> Sequence[CheckResult]:
        lie(staged.staged.table, staged.staged.committed.snapshot_id, "partition")
        return super().rows(config, staged)


@pytest.mark.slow
@SPARK_TEST[0]
@pytest.mark.usefixtures("spark")
def test_a_publication_and_the_command_ask_manifests_of_the_published_table(
    project: ShopProject, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckFailedError, match="manifests_match_files") as refused:
        publish(project.config, NAME, auditor=Lying())
    assert MANIFESTS in {v.name for v in refused.value.verdicts if not v.passed and v.table == NAME}
    report = publish(project.config, NAME, auditor=ProjectAuditor())
    assert [v.passed for v in report.checks if v.table == NAME] == [True, True, True]

    def checked() -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["check", NAME, "--config", str(project.path)])
        return int(ended.value.code or 0), capsys.readouterr().out

    code, output = checked()
    assert (code, "passed  shop.daily  manifests_match_files  2 data files, 0 delete files" in output) == (0, True)
    assert report.snapshot_id is not None
    lie(find_table(open_catalog(project.config), NAME), report.snapshot_id, "rows")
    code, output = checked()
    assert (code, "FAILED  shop.daily  manifests_match_files" in output) == (1, True)
