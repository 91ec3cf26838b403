"""Two hundred tables in one feed: one read of it, bounded memory, and a table that fails stops no other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.pipelines.project import Project, event, product
from tests.support.memory import PEAK_BYTES

TABLES = 200
ROWS = 30
MEGABYTE = 1024**2
PROGRAM = f"""{PEAK_BYTES}
import json, sys
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once
run_once(load(sys.argv[2]))  # a first run pays for imports and compiled code
before = peak_bytes()
report = run_once(load(sys.argv[1]))
print(json.dumps({{"grown": peak_bytes() - before, **report.as_dict()}}))
"""


def project_in(folder: Path, limit: int) -> Project:
    folder.mkdir()
    project = Project(folder)
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
    entry = {"source": source, "key": ["id"], "memory_limit_bytes": limit}
    (folder / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {"shop.*": entry}}))
    return project


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["local"], indirect=True)  # whose memory is that of its own process
def test_two_hundred_tables_of_one_feed_stay_within_memory(tmp_path: Path) -> None:
    small = project_in(tmp_path / "small", 16 * MEGABYTE)
    small.land("1.jsonl", [event("c", product(1))])
    project = project_in(tmp_path / "many", 256 * MEGABYTE)
    text = "x" * 400
    for part in range(6):
        keys = range(part * ROWS, (part + 1) * ROWS)
        project.land(
            f"{part}.jsonl",
            (
                event("c", {"name": text} if t == 77 else product(key, f"{text}{key}"), table=f"t{t:03d}")
                for key in keys
                for t in range(TABLES)
            ),
        )
    landed = sum(f.stat().st_size for f in project.landing.iterdir())
    configs = [str(p.folder / "nevermore.yaml") for p in (project, small)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *configs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    failed = [t["table"] for t in report["tables"] if t["error"]]
    assert (len(report["tables"]), failed, report["exit_code"]) == (TABLES, ["shop.t077"], 1)
    for table in ("shop.t000", "shop.t199"):
        assert [r["id"] for r in project.rows(table)] == list(range(6 * ROWS))
    figures = f"{landed / MEGABYTE:.0f} MB landed, memory grew by {report['grown'] / MEGABYTE:.0f} MB"
    assert report["grown"] < 400 * MEGABYTE, figures


@pytest.mark.each(2)
@pytest.mark.parametrize("threads", [1, 4])
def test_tables_committed_side_by_side_fail_alone(threads: int, tmp_path: Path) -> None:
    project = Project(tmp_path)
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
    config = {"parallel_tables": threads, "tables": {"shop.*": {"source": source, "key": ["id"], "commit_rows": 40}}}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(config))
    for part in range(3):
        rows = ((f"t{t}", {"name": "no key"} if t == 3 else product(key)) for t in range(6) for key in range(30))
        project.land(f"{part}.jsonl", (event("u", row, table=table) for table, row in rows))
    report = project.run()
    assert {t.table[-1]: t.error is None for t in report.tables} == {str(t): t != 3 for t in range(6)}
    for t in (0, 1, 2, 4, 5):
        assert project.rows(f"shop.t{t}") == [product(key) for key in range(30)]
        assert len(project.rows(f"change_log.shop_t{t}", "ordinal")) == 90
