import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import FeedRun
from nevermore.pipelines.ingest.feeds import Feed
from tests.pipelines.project import Project, event, product, the


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


# -- several runs ---------------------------------------------------------------------------------------------------


def test_each_run_applies_what_landed_since(project: Project) -> None:
    project.land("1.jsonl", [event("c", product(1)), event("c", product(2))])
    first = project.run()
    project.land("2.jsonl", [event("u", product(2, "B")), event("d", product(1)), event("c", product(3))])
    second = project.run()
    assert project.rows() == [product(2, "B"), product(3)]
    assert (the(first).events, the(second).events) == ({"c": 2}, {"u": 1, "d": 1, "c": 1})
    assert the(second).delete_rows == 2
    assert the(second).status == "applied"


def test_pattern_that_never_matched_a_file_is_no_success_until_one_lands(project: Project) -> None:
    report = project.run()
    assert report.exit_code == 1
    assert "no file matches" in (the(report).error or "")
    project.land("1.jsonl", [event("c", product(1))])
    assert project.run().exit_code == 0
    (project.landing / "1.jsonl").unlink()
    report = project.run()
    assert report.exit_code == 0
    assert report.found_nothing_new


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_reading_has_ended_when_a_run_stops_within_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, batches = [], Feed.batches

    def watched(*given: Any) -> Iterator[Any]:
        try:
            yield from batches(*given)
            ended.append("at the end")
        finally:
            ended.append("left")

    def fail(*_: Any) -> None:
        raise SourceError("stopped")

    monkeypatch.setattr(Feed, "batches", watched)
    monkeypatch.setattr(FeedRun, "_take", fail)
    project.write({"shop.products": {"key": ["id"]}}, batch_rows=1)
    project.land("1.jsonl", [event("c", product(i)) for i in range(9)])
    gc.disable()  # what only a collection ends could disturb a later reading by the same connection
    try:
        assert project.run().exit_code == 1
    finally:
        gc.enable()
    assert ended == ["left"]


def test_growing_file_is_read_from_where_it_was_left(project: Project) -> None:
    lines = [event("c", product(i)) for i in range(4)]
    project.land("1.jsonl", lines[:2])
    project.run()
    project.land("1.jsonl", lines)
    assert the(project.run()).events == {"c": 2}
    assert [r["id"] for r in project.rows()] == [0, 1, 2, 3]


def test_large_input_is_applied_in_several_commits_by_this_process_and_in_one_by_spark(
    project: Project, engine: str
) -> None:
    project.write({"shop.products": {"key": ["id"], "commit_rows": 3}})
    for file in range(3):
        project.land(f"{file}.jsonl", [event("u", product(i, f"v{file}")) for i in range(4)])
    seen: list[int] = []
    report = project.run(progress=lambda table: seen.append(table.mirror_commits))
    commits = the(report).mirror_commits
    assert commits == 1 if engine == "spark" else commits >= 2
    assert seen[-1] == commits
    assert project.rows() == [product(i, "v2") for i in range(4)]


# -- quarantine -----------------------------------------------------------------------------------------------------


def test_broken_events_go_to_quarantine_and_the_rest_goes_on(project: Project) -> None:
    project.land(
        "1.jsonl", [event("c", product(1)), "{not json", event("c", {"name": "no key"}), event("c", product(2))]
    )
    report = project.run()
    assert report.exit_code == 3
    assert [r["id"] for r in project.rows()] == [1, 2]
    kept = project.rows("quarantine.shop_products", "source_offset")
    assert [r["source_offset"] for r in kept] == [2, 3]
    assert kept[0]["raw"].rstrip() == b"{not json"
    assert "id" in kept[1]["reason"]
    assert the(report).quarantined == the(report).rejected == 2


def test_event_is_quarantined_once(project: Project) -> None:
    project.land("1.jsonl", [event("c", product(1)), "{not json"])
    project.run()
    catalog = open_catalog(load(project.folder / "nevermore.yaml"))
    for name in ("change_log.shop_products", "shop.products"):
        catalog.drop_table(name)
        shutil.rmtree(project.folder / "warehouse" / name.replace(".", "/"))
    report = project.run()
    assert (report.exit_code, the(report).quarantined, the(report).rejected) == (0, 0, 1)
    assert len(project.rows("quarantine.shop_products", "source_offset")) == 1


MAXWELL = (
    '{"database": "s", "table": "products", "type": "insert", "ts": 1, "xid": 1, "commit": true, "data": {"id": 1}}'
)
CANAL = (
    '{"data": [{"id": "1"}], "database": "s", "table": "products", "type": "INSERT", "isDdl": false, "ts": 1, "es": 1}'
)


@pytest.mark.parametrize(
    ("said", "lines", "found"),
    [
        ("debezium-json", [MAXWELL], "maxwell-json"),
        ("dms", [MAXWELL], "maxwell-json"),
        ("maxwell-json", [CANAL], "canal-json"),
        ("wal2json", [event("c", product(1))], "debezium-json"),
    ],
)
def test_a_wrong_format_names_the_one_that_the_events_look_like(
    project: Project, said: str, lines: list[str], found: str
) -> None:
    source = {"type": "files", "path": "landing/*.jsonl", "format": said}
    project.write({"shop.products": {"key": ["id"], "source": source}})
    project.land("1.jsonl", lines)
    report = the(project.run())
    assert f"the events look like {found}, but the config says {said}" in str(report.error)


def test_too_many_rejected_events_stop_the_batch(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"], "max_quarantine_ratio": 0.3}})
    project.land("1.jsonl", [event("c", product(1)), event("c", product(2)), "{not json"])
    report = project.run()
    assert report.exit_code == 1
    assert "1 of 3 events were rejected" in str(the(report).error)
    assert project.table("shop.products") is None
    assert project.table("quarantine.shop_products") is None
    project.write({"shop.products": {"key": ["id"], "max_quarantine_ratio": 0.5}})
    assert project.run().exit_code == 3
    assert len(project.rows()) == 2


# -- several tables -------------------------------------------------------------------------------------------------


def test_one_feed_fills_many_tables(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"]}, "shop.orders": {"key": ["id"]}, "shop.unused": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1)), event("c", product(7), table="orders")])
    report = project.run()
    assert report.exit_code == 0
    assert [r["id"] for r in project.rows("shop.products")] == [1]
    assert [r["id"] for r in project.rows("shop.orders")] == [7]
    assert project.run().found_nothing_new
    project.land("2.jsonl", [event("d", product(7), table="orders")])
    project.run()
    assert project.rows("shop.orders") == []
    assert [r["id"] for r in project.rows("shop.products")] == [1]


def test_failing_table_does_not_hold_up_the_others_and_catches_up_later(project: Project) -> None:
    tables = {"shop.products": {"key": ["nokey"]}, "shop.orders": {"key": ["id"]}}
    project.write(tables)
    project.land("1.jsonl", [event("c", product(1)), event("c", product(7), table="orders")])
    report = project.run()
    assert report.exit_code == 1
    assert [t.status for t in report.tables] == ["failed", "applied"]
    tables["shop.products"]["key"] = ["id"]
    project.write(tables)
    project.land("2.jsonl", [event("c", product(2)), event("c", product(8), table="orders")])
    assert project.run().exit_code == 0
    assert [r["id"] for r in project.rows("shop.products")] == [1, 2]
    assert [r["id"] for r in project.rows("shop.orders")] == [7, 8]


def test_broken_event_of_a_shared_feed_goes_to_the_quarantine_of_the_feed(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"]}, "shop.orders": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1)), "{not json", event("c", product(7), table="orders")])
    report = project.run()
    assert report.exit_code == 3
    assert report.unassigned == 1
    assert [r["raw"].rstrip() for r in project.rows("quarantine.feed_of_shop_products", "source_offset")] == [
        b"{not json"
    ]
    project.write({"shop.products": {"key": ["id"], "max_quarantine_ratio": 0}, "shop.orders": {"key": ["id"]}})
    project.land("2.jsonl", ["{not json", "{nor this"])
    assert project.run().exit_code == 1


def test_only_the_tables_asked_for_are_run(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"]}, "shop.orders": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1)), event("c", product(7), table="orders")])
    report = project.run(tables=["shop.orders"])
    assert [t.table for t in report.tables] == ["shop.orders"]
    assert project.table("shop.products") is None
    project.run()
    assert [r["id"] for r in project.rows("shop.products")] == [1]


# -- wrong config ---------------------------------------------------------------------------------------------------


def test_unknown_format_is_refused_before_anything_is_made(project: Project) -> None:
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-jsn"}
    project.write({"shop.products": {"source": source, "key": ["id"]}})
    with pytest.raises(ConfigError, match=r"source of shop\.products: unknown format .*did you mean debezium-json"):
        project.run()
    assert not (project.folder / "warehouse").exists()


def test_two_tables_that_take_one_table_of_a_feed_are_refused(project: Project) -> None:
    project.write({name: {"key": ["id"], "source_table": "products"} for name in ("shop.a", "shop.b")})
    with pytest.raises(ConfigError, match=r"shop\.a and shop\.b both take source_table products"):
        project.run()


def test_rename_to_the_name_of_another_column_is_refused(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"], "rename": {"name": "id"}}})
    project.land("1.jsonl", [event("c", {"id": 1, "name": "x"})])
    (table,) = project.run().tables
    assert table.error is not None
    assert "rename: columns id and name of the feed would both become id" in table.error
    project.write({"shop.products": {"key": ["id"], "rename": {"name": "title"}}})
    project.run()
    assert project.rows() == [{"id": 1, "title": "x"}]


def test_unknown_table_is_refused(project: Project) -> None:
    with pytest.raises(ConfigError, match=r"no table 'shop\.nothing'"):
        project.run(tables=["shop.nothing"])


def test_missing_folder_fails_with_its_name(project: Project) -> None:
    source = {"type": "files", "path": "nowhere/*.jsonl", "format": "debezium-json"}
    project.write({"shop.products": {"source": source, "key": ["id"]}})
    report = project.run()
    assert report.exit_code == 1
    assert "nowhere" in str(the(report).error)


# -- crashes --------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """What no handler of the product catches."""


def crash_at(project: Project, point: str, time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until `point` is reached for the `time`-th time, and no further."""
    reached: list[str] = []

    def stop(here: str) -> None:
        reached.append(here)
        if reached.count(point) == time:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(storage, "reached", stop)
        with pytest.raises(Crash):
            project.run()


@pytest.mark.each(12)
@pytest.mark.parametrize(
    ("point", "time"),
    [
        *((name, time) for name in ("after-files", "after-manifests", "after-commit") for time in (1, 2, 3)),
        ("before-acknowledgement", 1),
    ],
    ids=lambda value: {1: "quarantine", 2: "log", 3: "mirror"}.get(value, value),
)
def test_rule_29_crash_at_any_point_loses_nothing_and_applies_nothing_twice(
    project: Project, point: str, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.land("1.jsonl", [event("c", product(i)) for i in range(3)])
    project.run()
    project.land("2.jsonl", [event("u", product(1, "B")), "{not json", event("d", product(2)), event("c", product(9))])
    crash_at(project, point, time, monkeypatch)
    assert project.rows() in ([product(i) for i in range(3)], [product(0), product(1, "B"), product(9)])
    assert project.run().exit_code in {0, 3}
    assert project.rows() == [product(0), product(1, "B"), product(9)]
    log = project.rows("change_log.shop_products", "ordinal")
    assert [r["ordinal"] for r in log] == list(range(1, 7))
    assert len(project.rows("quarantine.shop_products", "source_offset")) == 1
    assert project.run().found_nothing_new


def test_rule_29_process_that_dies_is_followed_by_one_that_finishes(project: Project, engine_program: str) -> None:
    project.land("1.jsonl", [event("c", product(1))])
    program = f"{engine_program}import sys; from nevermore.pipelines.config.project import load; from nevermore.pipelines.ingest.feed_run import run_once; "
    done = subprocess.run(
        [sys.executable, "-c", program + "run_once(load(sys.argv[1]))", str(project.folder / "nevermore.yaml")],
        env={**os.environ, storage.VARIABLE: "after-commit:2"},
        capture_output=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == storage.EXIT_CODE, done.stderr.decode()
    assert project.rows() == [product(1)]
    assert project.run().found_nothing_new


# -- which table an event is for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_table_takes_its_own_events_however_they_are_cut_into_batches(project: Project, batch_rows: int) -> None:
    project.write({"shop.products": {"key": ["id"]}}, batch_rows=batch_rows)
    project.land("1.jsonl", [event("c", product(1)), event("c", product(7), table="orders"), event("c", product(2))])
    assert project.run().skipped == {"other table": 1}
    assert [r["id"] for r in project.rows()] == [1, 2]
    project.land("2.jsonl", [event("c", product(8), table="orders")])
    project.run()
    assert [r["id"] for r in project.rows()] == [1, 2]


def test_only_table_of_a_feed_takes_the_first_name_that_comes_and_stays_with_it(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1), table="products2")])
    assert project.run().exit_code == 0
    project.land("2.jsonl", [event("c", product(2), table="orders"), event("c", product(3), table="products2")])
    assert project.run().skipped == {"other table": 1}
    assert [r["id"] for r in project.rows()] == [1, 3]
    project.land("3.jsonl", [event("c", product(4))])
    report = project.run()
    assert report.exit_code == 1
    assert "source_table" in str(the(report).error)


def test_event_without_a_table_of_a_feed_of_several_is_rejected(project: Project) -> None:
    loose = {"key": ["id"], "max_quarantine_ratio": 1}
    project.write({"shop.products": loose, "shop.orders": loose})
    project.land("1.jsonl", ['{"op":"c","before":null,"after":{"id":1}}', event("c", product(2))])
    report = project.run()
    assert (report.exit_code, report.unassigned) == (3, 1)
    (held,) = project.rows("quarantine.feed_of_shop_products", "source_offset")
    assert "names no table" in held["reason"]
    assert [r["id"] for r in project.rows()] == [2]


def test_event_without_a_table_does_not_take_the_place_of_the_name_in_a_feed_of_one(project: Project) -> None:
    project.write({"stock.products": {"key": ["id"]}})
    project.land("1.jsonl", ['{"op":"c","before":null,"after":{"id":1,"name":"a"}}', event("c", product(2))])
    assert project.run().exit_code == 0
    assert [r["id"] for r in project.rows("stock.products")] == [1, 2]


def test_broken_event_of_a_replaced_file_is_quarantined_beside_the_earlier_one(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"], "max_quarantine_ratio": 1}})
    project.land("1.jsonl", ["{bad"])
    project.run()
    project.land("1.jsonl", ["{other"])
    assert project.run().exit_code == 3
    held = project.rows("quarantine.shop_products", "source_offset")
    assert sorted(r["raw"].rstrip() for r in held) == [b"{bad", b"{other"]
