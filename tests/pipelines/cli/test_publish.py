"""`nevermore publish`: mistakes are told in one line before Spark starts; reports say what was made and why."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.cli.arguments import LOGGERS_OF_PROGRESS, log_progress
from nevermore.pipelines.cli.terminal import describe_publication
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.publish.refresh_report import PartitionWritten, PublishReport
from tests.support.shop_project import ShopProject

Run = Callable[..., tuple[int, str, str]]

CONFIG = """
tables:
  shop.orders: {source: {type: files, path: "landing/*.jsonl", format: debezium-json}, key: [id]}
published:
  shop.daily: {partition: day, sql: "select day, id from shop.orders"}
  shop.hourly: {partition: hour(at), sql: "select at, id from shop.orders where at >= :partition_start"}
  shop.whole: {sql: "select count(*) as n from shop.orders"}
  shop.appended: {partition: day, mode: append, sql: "select day, id from shop.orders"}
  shop.since: {partition: day, start: "2026-01-02", sql: "select day, id from shop.orders"}
  shop.cities: {partition: value(city), values: [Oslo, Moss], sql: "select city, id from shop.orders"}
"""


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (("", ""), ["shop.dayly"], "no published table 'shop.dayly'; did you mean shop.daily?"),
        (("", ""), ["shop.daily", "--partition", "2026-13-01"], "'2026-13-01' is not a valid day; write it as 2026-01-31"),
        (("", ""), ["shop.hourly", "--partition", "2026-01-31"], "'2026-01-31' is not a valid hour; write it as 2026-01-31T13"),
        (("", ""), ["shop.daily", "--partition", "2026-01-02..2026-01-01"], "the last day is before the first"),
        (("", ""), ["shop.since", "--partition", "2026-01-01..2026-01-03"], "partition 2026-01-01 is before start: 2026-01-02"),
        (("", ""), ["shop.hourly", "--partition", "2999-01-01T00"], "2999-01-01T00 is in the future, and the SQL uses its"),
        (("", ""), ["shop.cities", "--partition", "oslo"], "no partition 'oslo' among its values; did you mean Oslo?"),
        (("", ""), ["shop.whole", "--partition", "2026-01-01"], "shop.whole has no partitions: leave out --partition"),
        (("", ""), ["--partition", "2026-01-01"], "--partition applies to a single table; specify which"),
        (("", ""), ["shop.daily", "--full", "--partition", "2026-01-01"], "--full makes all partitions"),
        (("", ""), ["shop.appended", "--full"], "shop.appended has mode: append, so --full would add existing rows again"),
        ((":partition_start", ":partition_strat"), [], "no parameter :partition_strat; did you mean :partition_start?"),
        (("select count(*) as n", "select count(* as n"), [], "published shop.whole: "),
        (("select day, id from shop.orders", "delete from shop.orders"), [], "sql must be one query"),
        (("hour(at)", "week(at)"), [], "'week(at)' is not a partition of a published table"),
        (("mode: append", "mode: append, incremental: true"), [], "incremental tables always replace partitions"),
        (("partition: day, sql", "partition: day, values: [a], sql"), [], "values applies only to a table with partition: value(column)"),
        (("partition: day, sql", "partition: day, start: '2026', sql"), [], "'2026' is not a valid day"),
        (("partition: day, sql", "partition: day, parameters: {partition: 1}, sql"), [], "parameters: partition is reserved for the partition"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_no_traceback(
    tmp_path: Path, run: Run, change: tuple[str, str], words: list[str], message: str
) -> None:
    config = tmp_path / "nevermore.yaml"
    config.write_text(CONFIG.replace(*change) if change[0] else CONFIG)
    code, output, errors = run("publish", *words, "--config", config)
    assert (code, output) == (2, "")
    assert message in errors
    assert "Traceback" not in errors


def test_a_mirror_that_fails_its_checks_is_told_line_by_line_with_what_to_do(tmp_path: Path, run: Run) -> None:
    project = ShopProject(tmp_path)
    project.land_orders()
    run_once(project.config)
    delta = RowDelta(find_table(open_catalog(project.config), "shop.orders"))
    rows = pa.table({"id": [99], "amount": [1e6], "day": pa.nulls(1, pa.date32())})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    code, output, errors = run("publish", "--config", project.path)
    assert (code, output) == (1, "")
    first, fails, *statements, last = errors.strip().splitlines()
    assert first == "error: published shop.daily reads a mirror that is wrong, so nothing is published:"
    assert fails == "  shop.orders fails mirror_equals_reference"
    assert statements[0] == "    1 returned row not in its change log"
    assert any("id=99: alive in" in line for line in statements)
    assert last.startswith("`nevermore check shop.orders` shows the rows")
    assert "--unchecked publishes anyway" in last


def _report(partitions: tuple[str, ...] | None, **changes: object) -> PublishReport:
    fields: dict[str, object] = {
        "name": "shop.daily", "partitions": partitions, "reason": "changed: shop.orders", "why": {}, "changed_rows": {},
        "rows": 1200, "data_files": 2, "bytes_written": 5, "snapshot_id": 7,
    }  # fmt: skip
    return PublishReport(**(fields | changes))  # type: ignore[arg-type]


def test_what_was_made_and_why_isdescribe_publication() -> None:
    assert describe_publication(_report(None), with_reasons=False) == (
        "shop.daily: built all partitions (changed: shop.orders): 1,200 rows in 2 files, snapshot 7"
    )
    assert describe_publication(_report(("2026-01-01",)), with_reasons=False).startswith(
        "shop.daily: built partition 2026-01-01 ("
    )
    unchanged = _report((), is_unchanged=True, reason="no mirror changed")
    assert describe_publication(unchanged, with_reasons=True) == "shop.daily: up to date, no mirror changed"


def test_a_dry_run_tells_the_reason_of_each_partition() -> None:
    why = {"2026-01-01": ("shop.orders",), "2026-01-02": ("made alone since the last run", "shop.orders")}
    report = _report(("2026-01-01", "2026-01-02"), why=why, changed_rows={"shop.orders": 3}, is_dry=True)
    assert describe_publication(report, with_reasons=True).splitlines() == [
        "shop.daily: would build 2 partitions (changed: shop.orders)",
        "  shop.orders: 3 rows added or removed",
        "  2026-01-01: shop.orders",
        "  2026-01-02: made alone since the last run, shop.orders",
    ]


@pytest.mark.spark
def test_explain_shows_what_a_publication_would_make_and_how_it_reads(
    tmp_path: Path, run: Run, spark: SparkSession
) -> None:
    project = ShopProject(tmp_path)
    project.land_orders()
    run_once(project.config)
    words = ("explain", "shop.daily", "--config", project.path)
    code, output, errors = run(*words)
    assert (code, errors) == (0, "")
    snapshot = find_table(open_catalog(project.config), "shop.orders").metadata.current_snapshot_id
    reason = "few rows, which it reads before tasks would have started"
    assert output.splitlines() == [
        "shop.daily: would build all partitions (the table is empty)",
        f"  read shop.orders, snapshot {snapshot}, by the driver: {reason}",
        "    columns: amount, day",
        output.splitlines()[3],
    ]
    assert output.splitlines()[3].startswith("    data files: 1 of 1, with 6 rows in ")
    assert find_table(open_catalog(project.config), "shop.daily") is None
    found = json.loads(run(*words, "--partition", "2026-01-01", "--json")[1])["explain"]
    assert (found["dry_run"], found["partitions"]) == (True, ["2026-01-01"])
    assert found["reads"]["shop.orders"]["where"] == "`day` = date '2026-01-01'"
    assert found["reads"]["shop.orders"]["reader"] == f"driver: {reason}"

    assert run("publish", "--config", project.path, "--unchecked")[0] == 0
    lines = run(*words)[1].splitlines()
    assert lines[:2] == [
        "shop.daily: up to date, no mirror changed",
        "shop.daily: would build all partitions (a full build was asked for)",
    ]
    assert run(*words, "--where", "orders > 3")[1].startswith("scan of ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("shop.daily", "--where", "n > 1"), "it cannot be used together with --where"),
        (("shop.orders",), "it cannot be used for shop.orders, which is not under `published` in the config"),
    ],
)
def test_only_a_publication_is_explained_by_partition(
    tmp_path: Path, run: Run, words: tuple[str, ...], message: str
) -> None:
    project = ShopProject(tmp_path)
    code, output, errors = run("explain", *words, "--partition", "2026-01-01", "--config", project.path)
    assert (code, output) == (2, "")
    assert message in errors


def test_all_of_a_report_is_json() -> None:
    found = json.loads(json.dumps(_report(("2026-01-01",), why={"2026-01-01": ("shop.orders",)}).as_dict()))
    assert (found["made"], found["partitions"], found["why"]) == (
        "partitions", ["2026-01-01"], {"2026-01-01": ["shop.orders"]}
    )  # fmt: skip


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_that_spark_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_terminal: bool
) -> None:
    logger = logging.getLogger("nevermore.pipelines.publish")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    before = list(logger.handlers)
    try:
        log_progress()
        logging.getLogger("nevermore.pipelines.publish.refresh").info("shop.daily: making 2 partitions")
    finally:
        for name in LOGGERS_OF_PROGRESS:
            other = logging.getLogger(name)
            other.setLevel(logging.NOTSET)
            other.handlers = [h for h in other.handlers if h in before]
    assert capsys.readouterr().err == ("shop.daily: making 2 partitions\n" if is_terminal else "")


def test_tables_that_a_run_without_names_leaves_out_are_named(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "nevermore.yaml"
    config.write_text(CONFIG)
    monkeypatch.setattr("nevermore.pipelines.publish.refresh.publish", lambda _, name, **__: _report((), name=name))
    monkeypatch.setattr("nevermore.pipelines.iceberg.catalog.check_catalog", lambda _: None)
    code, output, _ = run("publish", "--config", config)
    assert code == 0
    assert "shop.appended: left out, mode: append adds rows to a partition only on request" in output
    code, output, _ = run("publish", "--json", "--config", config)
    *made, left_out = map(json.loads, output.splitlines())
    assert (left_out["name"], left_out["made"], left_out["left_out"]) == ("shop.appended", "nothing", True)
    assert not any("left_out" in report for report in made)
    code, output, _ = run("publish", "shop.daily", "--config", config)
    assert "left out" not in output


def test_partitions_that_are_empty_now_are_warned_of() -> None:
    report = _report(("2026-01-01", "2026-01-02"), written={"2026-01-02": PartitionWritten(3, 1, 90)})
    assert (
        "warning: the SQL returns no rows for 2026-01-01: published empty, without any earlier rows"
        in describe_publication(report, with_reasons=False)
    )
    assert report.as_dict()["empty_partitions"] == ["2026-01-01"]
