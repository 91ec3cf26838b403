import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product as product_of
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.pipelines.cli.watch import CheckRound
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, everything
from nevermore.pipelines.iceberg.positions import LOG_ORDINAL
from nevermore.pipelines.ingest import quarantine_replay
from nevermore.pipelines.maintain import replay
from nevermore.pipelines.publish.publish_commit import PARTITIONS
from nevermore.pipelines.publish.state import SOURCE
from nevermore.scan_core import NestedField, PrimitiveType

Run = Callable[..., tuple[int, str, str]]
Event = dict[str, Any]

CONFIG = """
tables:
  shop.products:
    source: {type: files, path: "landing/*.jsonl", format: debezium-json}
    key: [id]
    types: {id: long, price: "%s"}
    commit_interval: 100ms
    deletes: equality
"""


def event(op: str, row: Event, before: Event | None = None) -> str:
    after, old = (None, row) if op == "d" else (row, before)
    return json.dumps({"op": op, "before": old, "after": after, "source": {"table": "products"}, "ts_ms": 1}) + "\n"


class Project:
    """A folder with a config, landed files and the command."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder = folder
        self.config = folder / "nevermore.yaml"
        self.run = run
        (folder / "landing").mkdir()
        self.types("decimal(10,2)")

    def types(self, price: str) -> None:
        self.config.write_text(CONFIG % price)

    def land(self, name: str, *lines: str) -> None:
        (self.folder / "landing" / name).write_text("".join(lines))

    def call(self, *words: object) -> tuple[int, Any, str]:
        """(exit code, JSON document, standard error)."""
        code, output, errors = self.run(*words, "--config", self.config, "--json")
        return code, json.loads(output) if output.strip() else None, errors

    def ingest(self, *lines: str, name: str = "1.jsonl") -> int:
        self.land(name, *lines)
        return self.call("ingest")[0]

    def rows(self) -> list[Event]:
        code, output, errors = self.run("scan", "shop.products", "--config", self.config, "--format", "jsonl")
        assert code == 0, errors
        return sorted((json.loads(line) for line in output.splitlines()), key=lambda r: r["id"])

    def spoil(self) -> None:
        """Empty the mirror behind the pipeline's back."""
        table = find_table(open_catalog(load(self.config)), "shop.products")
        RowDelta(table).commit([], {}, remove=everything)


def product(key: int, price: Any = "1.00") -> Event:
    return {"id": key, "price": price}


@pytest.fixture
def project(tmp_path: Path, run: Run) -> Project:
    return Project(tmp_path, run)


BROKEN = "{ no json\n"


def test_one_published_table_with_bad_sql_fails_its_own_check_and_no_other_command(project: Project) -> None:
    with project.config.open("a") as config:
        config.write('published:\n  shop.bad: {sql: "selct x"}\n  shop.good: {sql: "select id from shop.products"}\n')
    assert project.ingest(event("c", product(1))) == 0
    assert project.call("status")[0] == 0
    code, output, errors = project.run("check", "--config", project.config)
    assert (code, errors) == (1, "")
    assert "FAILED  shop.bad  published_equals_duckdb" in output
    assert "published shop.bad: " in output
    assert "nothing  shop.good  published_equals_duckdb" in output
    assert output.count("does not exist yet") == 1


# -- status ---------------------------------------------------------------------------------------------------------


def test_status_of_a_project_that_was_never_run_makes_nothing(project: Project) -> None:
    before = sorted(project.folder.rglob("*"))
    assert project.call("status")[1][0]["position"] is None
    assert project.run("status", "--config", project.config)[:2] == (0, "shop.products: nothing ingested yet\n")
    assert sorted(project.folder.rglob("*")) == before


def test_nothing_waits_if_the_whole_log_has_only_deletes(project: Project) -> None:
    assert project.ingest(event("d", product(1)), event("d", product(2))) == 0
    (table,) = project.call("status")[1]
    assert (table["logged"], table["applied"], table["waiting"], table["lag_seconds"]) == (2, 2, 0, 0.0)
    assert "waiting" not in project.run("status", "--config", project.config)[1]
    said = project.run("resync", "shop.products", "--config", project.config)[1]
    assert said.startswith("shop.products: 0 rows from 2 changes, snapshot ")
    assert project.run("check", "--config", project.config)[0] == 0
    assert project.ingest(event("c", product(3))) == 0
    assert project.run("check", "--config", project.config)[0] == 0
    assert project.call("scan", "shop.products")[1]["id"] == 3


def test_changes_wait_for_a_mirror_that_does_not_exist_yet(project: Project) -> None:
    from nevermore.pipelines.ingest.feed_run import run_once

    project.land("1.jsonl", event("c", product(1)), event("d", product(2)))
    run_once(load(project.config), log_only=True)
    assert project.call("status")[1][0]["waiting"] == 2


def test_a_check_says_once_that_a_mirror_does_not_exist_yet(project: Project) -> None:
    assert project.ingest(event("d", product(1))) == 0
    code, output, errors = project.run("check", "--config", project.config)
    assert (code, output, errors) == (
        0,
        "nothing  shop.products: it does not exist yet, so there is nothing to compare\n",
        "",
    )
    code, output, _ = project.run("check", "--config", project.config, "--json")
    assert (code, len(output.splitlines())) == (0, 11)


def test_status_tells_where_the_source_is_in_words(project: Project) -> None:
    project.ingest(event("c", {"id": 1, "price": "1.00"}), event("c", {"id": 2, "price": "1.00"}))
    project.ingest(event("c", {"id": 3, "price": "1.00"}), name="2.jsonl")
    (table,) = project.call("status")[1]
    assert table["place"].startswith("2.jsonl, 1 line; 2 files in all; all that landed by 20")
    assert (table["kind"], table["position"]["source"]) == ("mirror", "files")
    assert "position    2.jsonl, 1 line" in project.run("status", "--config", project.config)[1]


def test_names_that_no_table_can_have_are_refused(project: Project) -> None:
    assert project.ingest(event("c", product(1))) == 0
    commands = (["scan"], ["describe"], ["why", "--key", "id=1"], ["verify"], ["index", "--columns", "id"])
    names = ("products", "shop.", ".products", "shop..products", " ", "-", "a b.products", "PRODUCTS")
    for words, name in product_of(commands, names):
        code, output, errors = project.run(words[0], name, *words[1:], "--config", project.config)
        assert (code, output) == (1, ""), words
        assert errors.startswith(f"error: no table {name!r} in the catalog of "), errors
        if name.casefold().endswith("products"):
            assert "did you mean" in errors
            assert "shop.products" in errors


def test_counts_of_one_are_singular(project: Project) -> None:
    assert project.ingest(event("c", product(1))) == 0
    output = project.run("status", "--config", project.config)[1]
    assert "shop.products: 1 change logged, applied 1\n" in output
    assert "delete debt 0 delete rows in 0 files on 1 row in 1 file (0%)" in output


def test_status_tells_positions_debt_and_commits(project: Project) -> None:
    project.ingest(event("c", product(1)), event("c", product(2)))
    project.ingest(event("u", product(1, "2.00")), event("d", product(2)), name="2.jsonl")
    code, (table,), _ = project.call("status", "shop.products")
    assert code == 0
    assert (table["logged"], table["applied"], table["waiting"], table["lag_seconds"]) == (4, 4, 0, 0.0)
    assert (table["delete_rows"], table["delete_files"], table["rows_written"]) == (2, 1, 3)
    assert [c["operation"] for c in table["commits"]] == ["overwrite", "append"]
    assert project.run("status", "--config", project.config)[1].startswith("shop.products: 4 changes logged, applied 4")


def test_status_of_a_published_table_of_which_a_mirror_was_dropped(project: Project) -> None:
    with project.config.open("a") as config:
        config.write('published:\n  shop.ids: {sql: "select id from shop.products"}\n')
    project.ingest(event("c", product(1)))
    catalog = open_catalog(load(project.config))
    published = create_table(catalog, "shop.ids", [NestedField(1, "id", PrimitiveType("long"))])
    RowDelta(published).commit([], {PARTITIONS: '["*"]', f"{SOURCE}shop.products": "1"})
    assert project.call("status")[1][1]["behind"] == ["shop.products"]
    catalog.drop_table(("shop", "products"))
    code, (_, table), errors = project.call("status")
    assert (code, table["behind"], errors) == (0, [], "")


def test_status_tells_how_much_of_the_log_waits(project: Project) -> None:
    from nevermore.pipelines.ingest.feed_run import run_once

    project.ingest(event("c", product(1)))
    project.land("2.jsonl", event("c", product(2)))
    run_once(load(project.config), log_only=True)
    (table,) = project.call("status")[1]
    assert (table["logged"], table["applied"], table["waiting"]) == (2, 1, 1)
    assert table["lag_seconds"] > 0
    lines = project.run("status", "--config", project.config)[1].splitlines()
    assert re.fullmatch(r"shop.products: 2 changes logged, applied 1, 1 waiting, \d+ s behind the log", lines[0])
    assert re.fullmatch(r"  log written \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", lines[2])


@pytest.mark.parametrize("words", [["status"], ["resync"], ["replay"], ["quarantine", "show"], ["run"]])
def test_unknown_table_is_a_usage_error_that_names_the_nearest(words: list[str], project: Project) -> None:
    code, _, errors = project.call(*words, "shop.product")
    assert code == 2
    assert "did you mean shop.products?" in errors


# -- resync ---------------------------------------------------------------------------------------------------------


def test_resync_makes_a_spoilt_mirror_anew_in_one_snapshot(project: Project) -> None:
    project.ingest(event("c", product(1)), event("c", product(2)), event("d", product(2)), event("c", product(3)))
    right = project.rows()
    project.spoil()
    assert project.rows() == []
    code, done, errors = project.call("resync", "shop.products")
    assert (code, done["num_rows"], done["num_changes"]) == (0, 2, 4), errors
    assert project.rows() == right
    table = find_table(open_catalog(load(project.config)), "shop.products")
    assert table.current_snapshot().summary[LOG_ORDINAL] == "4"
    assert len(table.metadata.snapshots) == 3
    assert find_table(open_catalog(load(project.config)), "shop.products__resync") is None
    assert [folder.name for folder in (project.folder / "warehouse" / "shop").iterdir()] == ["products"]
    project.ingest(event("u", product(3, "9.00")), name="2.jsonl")
    assert project.rows() == [right[0], {**right[1], "price": "9.00"}]


def test_resync_makes_a_dropped_mirror(project: Project) -> None:
    project.ingest(event("c", product(1)))
    open_catalog(load(project.config)).drop_table("shop.products")
    assert project.call("resync", "shop.products")[0] == 0
    assert [r["id"] for r in project.rows()] == [1]


def test_resync_without_a_log_fails(project: Project) -> None:
    code, _, errors = project.call("resync", "shop.products")
    assert code == 1
    assert "ingest first" in errors


# -- replay ---------------------------------------------------------------------------------------------------------


def test_replay_mends_the_keys_of_a_range_and_keeps_later_changes(project: Project) -> None:
    project.ingest(event("c", product(1)), event("c", product(2)), event("c", product(3)))
    project.ingest(event("u", product(1, "5.00")), event("d", product(2)), event("d", product(3)), name="2.jsonl")
    project.ingest(event("c", product(3, "7.00")), name="3.jsonl")
    project.spoil()
    code, done, errors = project.call("replay", "shop.products", "--from", "1", "--to", "2")
    assert code == 0, errors
    assert (done["first"], done["last"], done["num_changes"]) == (1, 2, 4)
    assert project.rows() == [product(1, "5.00")]
    assert project.call("replay", "shop.products", "--all")[1]["num_changes"] == 7
    assert project.rows() == [product(1, "5.00"), product(3, "7.00")]
    assert project.call("status")[1][0]["applied"] == 7


def test_replay_takes_times(project: Project) -> None:
    project.ingest(event("c", product(1)))
    assert project.call("replay", "shop.products", "--from", "2020-01-01T00:00:00")[1]["num_changes"] == 1
    code, _, errors = project.call("replay", "shop.products", "--from", "2999-01-01")
    assert code == 1
    assert "no change" in errors


def test_replay_says_why_it_ends_with_the_code_of_a_quarantine(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.ingest(event("c", product(1)))
    applied = replay.replay
    monkeypatch.setattr(replay, "replay", lambda *arguments: replace(applied(*arguments), quarantined=1))
    code, _, errors = project.run("replay", "shop.products", "--all", "--config", project.config)
    assert (code, errors.strip()) == (3, "shop.products: 1 event went to quarantine")


def test_replay_refuses_nonsense_and_truncates(project: Project) -> None:
    assert project.call("replay", "shop.products", "--all")[0] == 1
    project.ingest(event("c", product(1)), json.dumps({"op": "t", "source": {"table": "products"}, "ts_ms": 1}) + "\n")
    code, _, errors = project.call("replay", "shop.products", "--from", "soon")
    assert (code, "neither an ordinal nor" in errors) == (2, True)
    code, _, errors = project.call("replay", "shop.products", "--all")
    assert (code, "nevermore resync" in errors) == (1, True)


# -- quarantine -----------------------------------------------------------------------------------------------------


def test_quarantine_lists_and_shows_events(project: Project) -> None:
    assert project.call("quarantine", "list")[1] == [{"table": "shop.products", "events": 0, "reasons": {}}]
    assert project.ingest(event("c", product(1)), BROKEN, event("c", product(2))) == 3
    _, (listed), _ = project.call("quarantine", "list")
    assert listed[0]["events"] == 1
    _, (shown,), _ = project.call("quarantine", "show", "shop.products")
    assert (shown["raw"], shown["source_offset"]) == (BROKEN, 2)
    assert "1 event\n" in project.run("quarantine", "list", "--config", project.config)[1]


def test_quarantine_replay_applies_what_a_mended_config_can_decode(project: Project) -> None:
    project.types("decimal(4,2)")
    lines = [event("c", product(1)), event("c", product(2, "12345.00")), event("c", product(3)), BROKEN]
    assert project.ingest(*lines) == 3
    project.types("decimal(10,2)")
    code, done, errors = project.call("quarantine", "replay", "shop.products")
    assert code == 3, errors
    assert (done["applied"], done["superseded"], done["rejected"]) == (1, 0, 1)
    assert project.rows() == [product(1), product(2, "12345.00"), product(3)]
    assert project.call("quarantine", "list")[1][0]["events"] == 1
    again = project.call("quarantine", "replay", "shop.products")[1]
    assert (again["applied"], again["rejected"]) == (0, 1)
    assert project.call("ingest")[1]["tables"][0]["status"] == "nothing new"


def test_quarantine_replay_never_brings_an_old_row_back(project: Project) -> None:
    project.types("decimal(4,2)")
    assert project.ingest(event("c", product(1, "12345.00")), event("u", product(1)), event("c", product(2))) == 3
    project.types("decimal(10,2)")
    code, done, _ = project.call("quarantine", "replay", "shop.products")
    assert (code, done["applied"], done["superseded"]) == (3, 0, 1)
    assert project.rows() == [product(1), product(2)]


@pytest.mark.parametrize(("first", "second"), [("b.jsonl", "a.jsonl"), ("a.jsonl", "a.jsonl")])
def test_quarantine_replay_leaves_alone_what_a_late_or_replaced_file_has_changed(
    first: str, second: str, project: Project
) -> None:
    project.types("decimal(4,2)")
    assert project.ingest(event("c", product(2)), event("c", product(1, "12345.00")), name=first) == 3
    assert project.ingest(event("u", product(1)), event("c", product(3)), event("c", product(4)), name=second) == 0
    project.types("decimal(10,2)")
    code, done, errors = project.call("quarantine", "replay", "shop.products")
    assert (code, done["applied"], done["superseded"]) == (3, 0, 1), errors
    assert project.rows() == [product(i) for i in (1, 2, 3, 4)]


def test_quarantine_replay_tries_the_bytes_it_holds_not_the_line_of_a_file_that_was_replaced(project: Project) -> None:
    project.types("decimal(4,2)")
    assert project.ingest(event("c", product(1)), event("c", product(2, "12345.00"))) == 3
    assert project.ingest(event("c", product(3)), event("c", product(4)), event("c", product(5))) == 0
    project.types("decimal(10,2)")
    code, done, errors = project.call("quarantine", "replay", "shop.products")
    assert (code, done["applied"], done["known"]) == (0, 1, 0), errors
    assert project.rows() == [product(1), product(2, "12345.00"), *(product(i) for i in (3, 4, 5))]
    assert project.call("quarantine", "list")[1][0]["events"] == 0


def test_quarantine_replay_that_died_after_logging_applies_nothing_twice(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.types("decimal(4,2)")
    assert project.ingest(event("c", product(1)), event("c", product(2, "12345.00"))) == 3
    project.types("decimal(10,2)")
    with monkeypatch.context() as dying:
        dying.setattr(quarantine_replay, "_take_out", lambda *_: (_ for _ in ()).throw(PipelineError("died")))
        assert project.call("quarantine", "replay", "shop.products")[0] == 1
    code, done, errors = project.call("quarantine", "replay", "shop.products")
    assert (code, done["applied"], done["known"]) == (0, 0, 1), errors
    assert project.call("status")[1][0]["logged"] == 2
    assert project.rows() == [product(1), product(2, "12345.00")]


def test_quarantine_replay_of_nothing_fails(project: Project) -> None:
    assert "ingest first" in project.call("quarantine", "replay", "shop.products")[2]
    project.ingest(event("c", {"id": 1, "price": "1.00"}))
    assert "no event of it was ever rejected" in project.call("quarantine", "replay", "shop.products")[2]
    code, _, errors = project.call("quarantine", "show")
    assert (code, "needs a table" in errors) == (2, True)


# -- properties -----------------------------------------------------------------------------------------------------


def test_properties_of_the_config_are_set_with_the_next_commit(project: Project) -> None:
    def configure(properties: str) -> None:
        project.types("decimal(10,2)")
        project.config.write_text(project.config.read_text() + f"    properties: {properties}\n")

    def found() -> dict[str, str]:
        return project.call("describe", "shop.products")[1]["properties"]  # type: ignore[no-any-return]

    configure("{owner: shop, is_public: true}")
    project.ingest(event("c", product(1)))
    assert (found()["owner"], found()["is_public"]) == ("shop", "true")
    configure("{owner: bookshop, write.parquet.compression-codec: zstd}")
    project.ingest(event("c", product(2)), name="2.jsonl")
    assert (found()["owner"], found()["write.parquet.compression-codec"]) == ("bookshop", "zstd")
    for wrong in ("{nevermore.key: x}", "{format-version: 3}"):
        configure(wrong)
        code, _, errors = project.call("status")
        assert (code, "nevermore.yaml:9" in errors) == (2, True), errors


# -- run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_applies_what_arrives_until_it_is_told_to_stop(number: signal.Signals, project: Project) -> None:
    project.land("1.jsonl", event("c", product(1)))
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "run", "--config", str(project.config), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["tables"][0]["events"] == {"c": 1}
        project.land("2.jsonl", event("c", product(2)))
        assert json.loads(process.stdout.readline())["tables"][0]["events"] == {"c": 1}
        time.sleep(0.1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, errors.decode()
    assert [r["id"] for r in project.rows()] == [1, 2]


@pytest.mark.slow
def test_run_reports_a_lasting_failure_once_and_its_end(project: Project) -> None:
    command = [
        sys.executable,
        "-m",
        "nevermore.pipelines.cli.main",
        "run",
        "--config",
        str(project.config),
        "--interval",
        "0.05",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        time.sleep(0.5)
        project.land("1.jsonl", event("c", product(1)))
        second = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=300)[1] == ""
    assert "shop.products failed: no file matches" in first
    assert "1 event" in second
    assert "shop.products snapshot" in second


@pytest.mark.slow
def test_run_checks_mirrors_beside_it_and_goes_on_when_one_fails(project: Project) -> None:
    project.ingest(event("c", product(1)), event("c", product(2)), name="1.jsonl")
    mirror = find_table(open_catalog(load(project.config)), "shop.products")
    assert mirror is not None
    before = scan_core.open_table(mirror).scan().where("id = 1").to_table()
    project.ingest(event("d", product(1)), name="2.jsonl")
    text = project.config.read_text()
    project.config.write_text(text.replace("key: [id]", "key: [id]\n    checks: {every: 1ms}"))
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "run", "--config", str(project.config), "--json"]
    with subprocess.Popen([*command, "--interval", "0.1"], stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None

        def next_check() -> Any:
            assert process.stdout is not None
            for line in process.stdout:
                if "checked" in (found := json.loads(line)):
                    return found["checked"]
            return None

        project.land("3.jsonl", event("c", product(3)))
        good = next_check()
        mirror.refresh().append(
            before.cast(mirror.schema().as_arrow())
        )  # as a script would that knows nothing of the log
        project.land("4.jsonl", event("c", product(4)))
        bad = next_check()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
    assert (good["table"], good["failed"]) == ("shop.products", [])
    assert good["passed"] > 5
    failed = {check["check"]: check for check in bad["failed"]}
    assert set(failed) >= {"no_deleted_row_reappears", "mirror_equals_reference"}
    assert failed["no_deleted_row_reappears"]["offending_keys"] == [{"id": 1}]
    assert "nevermore why shop.products --key id=1" in " ".join(failed["no_deleted_row_reappears"]["reproduce"])
    assert process.returncode == 0


def test_checks_of_a_run_are_told_to_people_with_what_to_do() -> None:
    wrong = {"check": "key_is_unique", "severity": "block", "details": ["1 key twice"], "reproduce": ["nevermore why"]}
    slow = {"check": "scans_are_fast", "severity": "warn", "details": ["slow"], "reproduce": []}
    assert CheckRound("shop.a", 9, ()).lines == ["shop.a: 9 checks passed"]
    assert CheckRound("shop.a", 7, (wrong, slow)).lines == [
        "shop.a: FAILED key_is_unique: 1 key twice",
        "  to see more: nevermore why",
        "shop.a: WARNING scans_are_fast: slow",
    ]


@pytest.mark.slow
def test_run_expires_snapshots_as_the_config_says(project: Project) -> None:
    for number in range(4):
        project.ingest(event("u", product(1, f"{number}.00")), name=f"{number}.jsonl")
    text = project.config.read_text()
    project.config.write_text(text + "maintenance: {keep_snapshots: 2, keep_for: 1ms, expire_every: 1h}\n")
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "run", "--config", str(project.config), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        done = [json.loads(process.stdout.readline())["expired"] for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
    assert [(one["table"], len(one["expired"])) for one in done] == [
        ("shop.products", 2),
        ("change_log.shop_products", 2),
    ]
    assert len(project.call("snapshots", "shop.products")[1]) == 2


@pytest.mark.slow
def test_run_gives_a_sign_of_life_while_nothing_comes(project: Project) -> None:
    project.land("1.jsonl", event("c", product(1)))
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "run", "--config", str(project.config), "--json"]
    with subprocess.Popen([*command, "--heartbeat", "0.2"], stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        kinds = []
        while kinds[-3:] != ["round", "heartbeat", "heartbeat"]:
            kinds.append("heartbeat" if "heartbeat" in json.loads(process.stdout.readline()) else "round")
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=300)[0]
    assert (process.returncode, kinds.count("round")) == (0, 1)
    assert all("heartbeat" in json.loads(line) for line in rest.splitlines())


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (["status"], 0),
        (["quarantine", "list"], 0),
        (["check"], 1),
        (["check", "shop.products"], 1),
        (["tables"], 0),
        (["describe", "shop.products"], 1),
        (["quarantine", "show", "shop.products"], 1),
        (["quarantine", "replay", "shop.products"], 1),
        (["replay", "shop.products", "--all"], 1),
        (["replay", "shop.products"], 2),
        (["replay", "shop.products", "--all", "--from", "1"], 2),
        (["resync", "shop.products"], 1),
        (["adopt", "shop.products"], 1),
        (["scan", "shop.products", "--count"], 1),
        (["why", "shop.products", "--key", "id=1"], 1),
    ],
)
def test_command_on_a_config_without_catalog_makes_none(
    words: list[str], exit_code: int, tmp_path: Path, run: Run
) -> None:
    project = Project(tmp_path, run)
    before = sorted(tmp_path.rglob("*"))
    code, _, errors = run(*words, "--config", project.config)
    assert code == exit_code, errors
    assert "Traceback" not in errors
    assert sorted(tmp_path.rglob("*")) == before
