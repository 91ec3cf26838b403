"""Indexes of the config, from landed events through the CLI to scans that use them."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.assets.metadata import mirror_metadata
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.cli.terminal import describe_publication
from nevermore.pipelines.config.project import load, parse
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.replay import resync
from nevermore.pipelines.maintain.retention import expire_all
from nevermore.pipelines.publish.refresh import publish
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.parts import late_filters
from tests.pipelines.project import Event, Project, event, the
from tests.support.bitmap_indexes import bitmaps_for_nothing

INDEX = {"bitmap": ["status"], "every_rows": 1}


def order(key: int, status: str = "paid") -> Event:
    return {"id": key, "status": status, "note": f"n{key}"}


def orders_in(folder: Path, index: dict[str, Any] | None = None, **options: Any) -> Project:
    return Project(folder, {"shop.orders": {"key": ["id"], "index": index or INDEX, **options}})


def land(project: Project, name: str, keys: range, op: str = "c") -> None:
    project.land(name, (event(op, order(k, ["paid", "open", "lost"][k % 3]), table="orders") for k in keys))


def scan(project: Project, where: str | None = None) -> tuple[int, scan_core.ScanMetrics]:
    found = scan_core.open_table(project.table("shop.orders")).scan()
    found = found if where is None else found.where(where)
    with bitmaps_for_nothing():
        return found.count(), found.metrics


def test_each_commit_indexes_its_new_files_alone(tmp_path: Path) -> None:
    project = orders_in(tmp_path)
    land(project, "1.jsonl", range(30))
    report = the(project.run())
    assert report.indexes is not None
    assert (report.indexes.built, report.indexes.warnings) == (1, ())
    land(project, "2.jsonl", range(30, 60))
    land(project, "3.jsonl", range(10), "d")
    report = the(project.run())
    assert report.indexes is not None
    assert report.indexes.built == 1
    count, metrics = scan(project, "status = 'paid'")
    assert count == len([k for k in range(10, 60) if k % 3 == 0])
    assert metrics.bitmap_indexes_used == 2
    assert scan(project)[0] == 50
    metadata = project.table("shop.orders").metadata
    files = {Path(p.statistics_path.removeprefix("file://")) for p in metadata.statistics}
    assert {*next(iter(files)).parent.glob("*.puffin")} == files  # replaced files are gone
    assert the(project.run()).indexes is None


def test_indexes_wait_for_enough_rows(tmp_path: Path) -> None:
    project = orders_in(tmp_path, {"bitmap": ["status"], "every_rows": 50})
    land(project, "1.jsonl", range(30))
    first = the(project.run()).indexes
    assert first is not None
    assert (first.built, first.waiting_rows) == (0, 30)
    assert [*first.lines] == ["30 rows and deletes are not in the indexes yet; they are updated after 50 (every_rows)"]
    land(project, "2.jsonl", range(30, 60))
    second = the(project.run()).indexes
    assert second is not None
    assert (second.built, second.waiting_rows) == (2, 0)
    land(project, "3.jsonl", range(60, 61))
    third = the(project.run()).indexes
    assert third is not None
    assert (third.built, third.waiting_rows) == (0, 1)


def test_rows_of_expired_snapshots_count_as_enough(tmp_path: Path) -> None:
    project = orders_in(tmp_path, {"bitmap": ["status"], "every_rows": 1000})
    for number in range(2):
        land(project, f"{number}.jsonl", range(number * 30, number * 30 + 30))
        update = the(project.run()).indexes
        expire_all_but(project, 1)
    land(project, "2.jsonl", range(60, 61))
    update = the(project.run()).indexes
    assert update is not None
    assert update.built == 3


def expire_all_but(project: Project, count: int) -> None:
    config = load(project.folder / "nevermore.yaml")
    time.sleep(0.003)
    overrides = RetentionConfig(keep_snapshots=count, keep_for=0.001)
    assert all(done.error is None for done in expire_all(open_catalog(config), config, overrides=overrides))


def test_an_index_that_fails_is_a_warning_and_the_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = orders_in(tmp_path, {"bitmap": ["statu", "status"], "every_rows": 1})
    land(project, "1.jsonl", range(30))
    report = project.run()
    update = the(report).indexes
    assert update is not None
    assert report.exit_code == 0
    assert update.built == 1
    (warning,) = update.warnings
    assert warning.startswith("index.bitmap: ")
    assert "'statu'" in warning
    land(project, "2.jsonl", range(30, 60))
    monkeypatch.setattr("nevermore.pipelines.iceberg.index_upkeep.build_indexes", lambda *_, **__: 1 / 0)
    report = project.run()
    update = the(report).indexes
    assert update is not None
    assert (report.exit_code, update.built) == (0, 0)
    assert update.warnings[1] == "ZeroDivisionError: division by zero"
    assert scan(project)[0] == 60
    assert report.as_dict()["tables"][0]["indexes"]["warnings"] == update.warnings


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{}", "no index is chosen: add bitmap"),
        ("{bitmaps: [a]}", "did you mean 'bitmap'?"),
        ("{bitmap: [a], max_values: 0}", "max_values"),
        ("{blooms: [a]}", "unknown key 'blooms'"),
        ("[status]", "index"),
        ("{bitmap: {a: b}}", "bitmap"),
    ],
)
def test_mistakes_in_the_config_are_refused(index: str, message: str) -> None:
    text = f"tables:\n  shop.orders:\n    source: {{path: a.jsonl}}\n    key: [id]\n    index: {index}\n"
    with pytest.raises(ConfigError, match=r"nevermore\.yaml:5: ") as raised:
        parse(text)
    assert message in str(raised.value)


def test_the_command_updates_what_the_config_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        output, errors = capsys.readouterr()
        assert not ended.value.code, errors
        return output

    project = orders_in(tmp_path, {"bitmap": ["status"]})
    monkeypatch.chdir(tmp_path)
    land(project, "1.jsonl", range(30))
    assert "shop.orders: 30 rows and deletes are not in the indexes yet" in run("ingest")
    assert "1 index built, 0 kept, 0 skipped" in run("index", "shop.orders")
    land(project, "2.jsonl", range(5), "d")
    assert json.loads(run("ingest", "--json"))["tables"][0]["indexes"]["waiting_rows"] == 5
    project.write({"shop.orders": {"key": ["id"], "index": INDEX}})
    land(project, "3.jsonl", range(30, 40))
    output = run("ingest")
    assert "shop.orders: indexes updated in" in output
    assert "1 bitmap index built" in output
    with bitmaps_for_nothing():
        assert "bitmap indexes: 2 of 2 data files" in run("explain", "shop.orders", "--where", "status = 'paid'")
        assert run("scan", "shop.orders", "--where", "status = 'paid'", "--count").strip() == "12"


def test_bloom_filters_are_written_for_the_columns_of_the_config(tmp_path: Path) -> None:
    project = orders_in(tmp_path, {"bloom": ["note", "nothing"]})
    land(project, "1.jsonl", range(0, 200, 2))
    update = the(project.run()).indexes
    assert update is not None
    assert update.warnings == ("index.bloom: the table has no column 'nothing'; it has id, status, note",)
    count, metrics = scan(project, "note = 'n101'")
    assert (count, metrics.row_groups_pruned_by_bloom_filters) == (0, 1)
    text = "published:\n  a.b:\n    sql: select 1\n    index: {bloom: [x]}\n"
    with pytest.raises(ConfigError, match=r"yaml:4: .*options: bloom_filters"):
        parse(text)


@pytest.mark.spark
def test_publications_and_checks_use_the_indexes_and_keep_their_own(tmp_path: Path, spark: SparkSession) -> None:
    project = orders_in(tmp_path)
    path = tmp_path / "nevermore.yaml"
    document = yaml.safe_load(path.read_text())
    sql = "select id, status from shop.orders where status = 'paid'"
    kept = {"bitmap": ["id"], "every_rows": 1}
    document["published"] = {"shop.paid": {"sql": sql, "index": kept, "options": {"reader": "python"}}}
    path.write_text(yaml.safe_dump(document))
    land(project, "1.jsonl", range(30))
    project.run()
    land(project, "2.jsonl", range(9), "d")
    assert the(project.run()).indexes is not None
    with bitmaps_for_nothing():
        report = publish(load(path), "shop.paid", auditor=None)
    assert report.rows == 7
    metrics = report.reads["shop.orders"].metrics
    assert metrics.bitmap_indexes_used == 1
    assert report.indexes is not None
    assert (report.indexes.built, report.indexes.warnings) == (1, ())
    assert "1 bitmap index built" in describe_publication(report, with_reasons=False)
    published = scan_core.open_table(project.table("shop.paid")).scan().where("id = 9")
    with bitmaps_for_nothing():
        assert (published.count(), published.metrics.bitmap_indexes_used) == (1, 1)


def test_auto_indexes_the_columns_whose_filters_removed_many_rows_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = orders_in(tmp_path, {"bitmap": "auto", "every_rows": 1})
    land(project, "1.jsonl", range(20_000))
    update = the(project.run()).indexes
    assert update is not None
    assert (update.built, update.chosen, update.warnings) == (0, (), ())
    opened = scan_core.open_table(project.table("shop.orders"))
    (advice,) = [line for line in opened.scan().where("status = 'paid'").explain().splitlines() if "would help" in line]
    assert "a bitmap index of status (`nevermore index TABLE --columns status`) excludes 67% of the rows" in advice
    assert "statistics exclude 0% of them, and status has 3 distinct values there" in advice
    assert "would help" not in opened.scan().where("id < 50").explain()  # bounds of pages answer it
    assert "would help" not in opened.scan().where("note = 'n77'").explain()  # too many values
    off = ScanOptions(record_filters=False)
    assert opened.scan().with_options(off).where("note <> 'n7'").where("status = 'lost'").count() == 6666
    assert late_filters(opened.location) == []
    assert opened.scan().where("status in ('paid', 'open') and id >= 0").count() == 13_334
    assert late_filters(opened.location) == []  # removed fewer than are worth a note
    assert opened.scan().where("status = 'paid'").count() == 6667
    (found,) = late_filters(opened.location)
    assert (found.field_id, found.rows, found.removed) == (2, 40_000, 19_999)
    land(project, "2.jsonl", range(20_000, 20_010))
    update = the(project.run()).indexes
    assert update is not None
    assert (update.built, update.chosen) == (2, ("status",))
    assert "2 bitmap indexes of status built" in next(iter(update.lines))
    assert (
        "would help" not in scan_core.open_table(project.table("shop.orders")).scan().where("status = 'paid'").explain()
    )
    (note,) = (tmp_path / "cache" / "nevermore" / "filters").iterdir()
    assert json.loads(note.read_text())["columns"] == {"2": [40_000, 19_999]}
    note.write_text("[1")
    assert late_filters(opened.location) == []


def test_a_rebuilt_mirror_has_its_indexes_and_bloom_filters(tmp_path: Path) -> None:
    project = orders_in(tmp_path, {"bitmap": ["status"], "bloom": ["note"], "every_rows": 1})
    land(project, "1.jsonl", range(0, 200, 2))
    project.run()
    config = load(tmp_path / "nevermore.yaml")
    update = resync(open_catalog(config), config, "shop.orders").indexes
    assert update is not None
    assert (update.built, update.warnings) == (1, ())
    assert scan(project, "status = 'paid'")[1].bitmap_indexes_used == 1
    assert scan(project, "note = 'n101'")[1].row_groups_pruned_by_bloom_filters == 1
    assert len(project.table("shop.orders").metadata.statistics) == 1


@pytest.mark.each(3)
@pytest.mark.parametrize("seed", range(3))
def test_indexed_rows_stay_equal_over_many_commits_and_no_file_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("nevermore.pipelines.iceberg.bitmap_indexes._ALWAYS_COPIED_BYTES", 0)
    chance = random.Random(seed)
    kept = chance.choice([1, 3, 100])
    index = {"bitmap": ["status", "note"], "every_rows": chance.choice([1, 60])}
    project = orders_in(tmp_path, {**index, "max_values": 40})
    for step in range(9):
        first = chance.randrange(0, 80)
        land(project, f"{step}.jsonl", range(first, first + chance.choice([3, 30, 90])), chance.choice("ccud"))
        update = the(project.run()).indexes
        assert update is None or not update.warnings
        if chance.random() < 0.2:
            config = load(tmp_path / "nevermore.yaml")
            resync(open_catalog(config), config, "shop.orders")
        if project.table("shop.orders") is None:
            continue
        expire_all_but(project, kept)
        table = project.table("shop.orders")
        opened = scan_core.open_table(table).scan()
        wanted = opened.with_options(ScanOptions.without_optimisations())
        for where in ("status = 'paid'", "note in ('n7', 'n50', 'n81') or status <> 'open'"):
            with bitmaps_for_nothing():
                found = opened.where(where)
                assert sorted(found.to_table()["id"].to_pylist()) == sorted(
                    wanted.where(where).to_table()["id"].to_pylist()
                )
                assert found.metrics.bitmap_indexes_refused == 0
        named = {Path(s.statistics_path.removeprefix("file://")) for s in table.metadata.statistics}
        assert {*(tmp_path / "warehouse").rglob("*-index.puffin")} == named
        assert len(named) <= 6


def test_all_tables_of_a_feed_are_indexed_side_by_side_and_dagster_tells(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.*": {"key": ["id"], "index": INDEX}})
    for number in range(2):
        rows = (event("c", order(k), table=f"t{k % 4}") for k in range(100 * number, 100 * number + 100))
        project.land(f"{number}.jsonl", rows)
        report = project.run()
    updates = [table.indexes for table in report.tables]
    assert [(u.built, u.warnings) for u in updates if u is not None] == [(1, ())] * 4
    config = load(tmp_path / "nevermore.yaml")
    for table in report.tables:
        assert scan_core.open_table(project.table(table.table)).scan().count() == 50
        values = mirror_metadata(config, table)
        assert values["index warnings"] == 0
        assert "1 bitmap index built" in values["indexes"]
