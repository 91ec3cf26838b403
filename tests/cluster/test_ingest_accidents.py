"""Executors and the driver are killed while Spark ingests: rows and change log are those of the local engine, every change once."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once
from tests.cluster.standalone import StandaloneCluster
from tests.cluster.test_killed_driver import SECONDS, start
from tests.pipelines.project import Project, event, product

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

FILES, EVENTS, KEYS = 8, 4_000, 5_000
SPARK = {
    "conf": {
        "spark.driver.memory": "1g",
        "spark.executor.memory": "768m",
        "spark.sql.shuffle.partitions": 4,
        "spark.task.maxFailures": 8,
        "spark.ui.enabled": False,
    }
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, worker_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), [worker_path]) as running:
        yield running


def make(folder: Path, **more: Any) -> Project:
    """A project whose files have every key several times, some of them deleted in the end."""
    folder.mkdir()
    project = Project(folder)
    for number in range(FILES):
        rows = ((number * EVENTS + i) * 7919 % KEYS for i in range(EVENTS))
        events = (event("d" if i % 5 == 0 else "u", product(i, f"{number}-{i}")) for i in rows)
        (project.landing / f"{number}.jsonl").write_text("\n".join(events) + "\n")
    source = {
        "type": "files",
        "path": "landing/*.jsonl",
        "format": "debezium-json",
        "options": {"batch_bytes": 128 * 1024},
    }
    table = {"source": source, "key": ["id"], **more.pop("table", {})}
    (folder / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {"shop.products": table}, **more}))
    return project


def content(project: Project) -> dict[str, list[str]]:
    """Rows of the mirror and of its log, with their ordinals, without times of the run."""
    found = {}
    for name in project.snapshots():
        rows = live_rows(project.table(name).metadata_location.removeprefix("file://")).to_pylist()
        found[name] = sorted(str({k: v for k, v in row.items() if k != "ingested_at"}) for row in rows)
    return found


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    project = make(tmp_path_factory.mktemp("local") / "project")
    assert run_once(load(project.folder / "nevermore.yaml")).exit_code == 0
    return content(project)


def wait_for(is_so: Any, process: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert process.poll() is None, "it ended before it could be disturbed"
        assert time.monotonic() < deadline
        time.sleep(0.05)


OVERTAKING = {"spark.speculation": True, "spark.speculation.interval": "50ms", "spark.speculation.quantile": 0.1}
"""A task is begun again elsewhere as soon as it is slower than others."""


def test_tasks_that_are_overtaken_change_nothing(
    cluster: StandaloneCluster, truth: dict[str, list[str]], tmp_path: Path
) -> None:
    spark = {"master": cluster.url, "conf": {**SPARK["conf"], **OVERTAKING}}
    project = make(tmp_path / "project", table={"ingest": {"engine": "spark"}}, spark=spark)
    process = start("nevermore.pipelines.cli.main", "ingest", "--config", str(project.folder / "nevermore.yaml"))
    wait_for(cluster.executors, process)
    rounds = 0
    while process.poll() is None and rounds < 5:
        for pid in cluster.executors()[:1]:
            os.kill(pid, signal.SIGSTOP)  # its tasks are begun elsewhere, and end both
            time.sleep(2)
            os.kill(pid, signal.SIGCONT)
        time.sleep(1)
        rounds += 1
    assert process.wait(SECONDS) == 0
    assert rounds
    assert content(project) == truth


@pytest.mark.parametrize("victim", ["executors", "driver"])
def test_what_is_ingested_is_right(
    victim: str, cluster: StandaloneCluster, truth: dict[str, list[str]], tmp_path: Path
) -> None:
    project = make(tmp_path / "project", table={"ingest": {"engine": "spark"}}, spark={"master": cluster.url, **SPARK})
    arguments = ("nevermore.pipelines.cli.main", "ingest", "--config", str(project.folder / "nevermore.yaml"))
    process = start(*arguments)
    written = lambda: list(project.folder.rglob("*.parquet"))  # noqa: E731  a name for what is asked twice
    wait_for(written, process)
    if victim == "driver":
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = start(*arguments)
    else:
        for pid in cluster.executors():
            os.kill(pid, signal.SIGKILL)
    assert process.wait(SECONDS) == 0
    assert content(project) == truth
