"""Several writers on one table, in processes of their own: every change is applied once, whoever else commits (rule 29)."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.commit import RowDelta, everything, retry_conflicts
from nevermore.pipelines.iceberg.positions import LOG_ORDINAL
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.scan_core import open_table
from tests.pipelines.project import Project, event, product

PROGRAM = """
import sys
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once
report = run_once(load(sys.argv[1]))
print(report.as_dict())
sys.exit(report.exit_code)
"""
TOUCH = """
import os, sys, time
from collections.abc import Callable, Iterator
from pathlib import Path
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.config.project import load
catalog = open_catalog(load(sys.argv[1]))
done, parent = 0, os.getppid()
while os.getppid() == parent and (done < 2 or not Path(sys.argv[2]).exists()):
    try:
        with find_table(catalog, "shop.products").transaction() as change:
            change.set_properties({"touched": str(done)})
        done += 1
        print(done, flush=True)
        time.sleep(0.1)
    except Exception as error:
        assert "Commit" in type(error).__name__, error
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    found.write({"shop.products": {"key": ["id"], "commit_rows": 50}}, batch_rows=50)
    return found


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(project: Project, engine_program: str) -> Iterator[Start]:
    """Starts a program beside the test; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str = PROGRAM, *arguments: object) -> "subprocess.Popen[str]":
        command = [
            sys.executable,
            "-c",
            engine_program + program,
            str(project.folder / "nevermore.yaml"),
            *map(str, arguments),
        ]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def land(project: Project, files: int, rows: int = 100) -> dict[int, dict[str, Any]]:
    """Files of updates of a few keys; what the last one leaves."""
    last: dict[int, dict[str, Any]] = {}
    for number in range(files):
        rows_of_file = [product(i % 17, f"{number}.{i}") for i in range(rows)]
        project.land(f"{number:03d}.jsonl", [event("u", row) for row in rows_of_file])
        last |= {row["id"]: row for row in rows_of_file}
    return last


def assert_exactly_once(project: Project, last: dict[int, dict[str, Any]], changes: int) -> None:
    assert run_once(load(project.folder / "nevermore.yaml")).exit_code == 0
    assert project.rows() == [last[key] for key in sorted(last)]
    log = project.rows("change_log.shop_products", "ordinal")
    assert [r["ordinal"] for r in log] == list(range(1, changes + 1))
    assert len({(r["source_file"], r["source_offset"]) for r in log}) == changes


@pytest.mark.timeout(600)
def test_rule_29_two_ingesters_of_one_table_apply_every_change_once(project: Project, start: Start) -> None:
    last = land(project, 6)
    runs = [start() for _ in range(2)]
    for run in runs:
        output, errors = run.communicate(timeout=500)
        assert run.returncode in {0, 1}, errors
        assert run.returncode == 0 or "another ingester" in output, output + errors
    assert_exactly_once(project, last, 600)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rule_29_ingest_goes_on_beside_a_writer_of_properties(project: Project, start: Start) -> None:
    last = land(project, 1)
    assert run_once(load(project.folder / "nevermore.yaml")).exit_code == 0
    last |= land(project, 6)
    ended = project.folder / "ended"
    other = start(TOUCH, ended)
    assert other.stdout is not None
    assert other.stdout.readline() == "1\n"
    report = run_once(load(project.folder / "nevermore.yaml"))
    ended.touch()
    output, errors = other.communicate(timeout=500)
    assert other.returncode == 0, errors
    assert output
    assert report.exit_code == 0, report.as_dict()
    assert_exactly_once(project, last, 600)


def compact(project: Project) -> None:
    """What other engines' compaction does: all live rows in new files, old files gone, no word on positions."""
    table = project.table("shop.products")

    def attempt() -> None:
        table.refresh()
        delta = RowDelta(table)
        files = write_rows(open_table(table).scan().to_table(), delta.target, delta.default_spec)
        delta.commit(files, {}, remove=everything, operation="replace")

    retry_conflicts(attempt)


def test_rule_29_position_survives_a_foreign_compaction(project: Project) -> None:
    last = land(project, 2)
    project.run()
    compact(project)
    assert LOG_ORDINAL not in project.table("shop.products").current_snapshot().summary.additional_properties
    assert project.run().found_nothing_new
    project.land("9.jsonl", [event("u", product(3, "after")), event("d", product(4))])
    last[3] = product(3, "after")
    del last[4]
    assert_exactly_once(project, last, 202)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rule_29_compaction_in_the_midst_of_an_ingest_loses_nothing(project: Project, start: Start) -> None:
    last = land(project, 1)
    project.run()
    last |= land(project, 8)
    run = start()
    compactions = 0
    while run.poll() is None and compactions < 100:
        time.sleep(0.2)
        compact(project)
        compactions += 1
    output, errors = run.communicate(timeout=500)
    assert run.returncode == 0, output + errors
    assert compactions
    assert_exactly_once(project, last, 800)


def test_rule_29_position_survives_expiry_and_appends_by_pyiceberg(project: Project) -> None:
    last = land(project, 2)
    project.run()
    table = project.table("shop.products")
    table.append(pa.table({"id": pa.array([900], pa.int64()), "name": ["foreign"]}))
    ids = [s.snapshot_id for s in table.metadata.snapshots]
    expiring = [i for i in ids[:-2] if i != table.metadata.current_snapshot_id]
    table.maintenance.expire_snapshots().by_ids(expiring).commit()
    last[900] = product(900, "foreign")
    project.land("9.jsonl", [event("u", product(900, "ours"))])
    last[900] = product(900, "ours")
    assert_exactly_once(project, last, 201)


def test_rule_29_expiry_of_every_position_stops_the_table_instead_of_starting_again(project: Project) -> None:
    land(project, 1)
    project.run()
    table = project.table("shop.products")
    table.append(pa.table({"id": pa.array([900], pa.int64()), "name": ["foreign"]}))
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.metadata.snapshots[:-1]]).commit()
    project.land("9.jsonl", [event("u", product(1, "new"))])
    (report,) = project.run().tables
    assert report.exit_code == 1
    assert "none records which changes" in str(report.error)
