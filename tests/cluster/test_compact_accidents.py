"""Executors and the driver are killed while Spark compacts: no row changes, nothing is half done, and a second run finishes."""

import os
import signal
from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.positions import LOG_ORDINAL
from nevermore.pipelines.ingest.feed_run import run_once
from tests.cluster.standalone import StandaloneCluster
from tests.cluster.test_ingest_accidents import SPARK, cluster, make, wait_for
from tests.cluster.test_killed_driver import SECONDS, start

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["cluster"]
NAME = "shop.products"


@pytest.mark.parametrize("order", [(), ("--sort", "name")])
@pytest.mark.parametrize("victim", ["executors", "driver"])
def test_rows_stay_and_a_second_run_finishes(
    victim: str, order: tuple[str, ...], cluster: StandaloneCluster, tmp_path: Path
) -> None:
    project = make(tmp_path / "project", spark={"master": cluster.url, **SPARK})
    assert run_once(load(project.folder / "nevermore.yaml")).exit_code == 0
    rows, before = project.rows(), project.table(NAME).metadata.current_snapshot_id
    config = str(project.folder / "nevermore.yaml")
    options = ("--all", *order, "--engine", "spark", "--target-size", "1MiB", "--config", config)
    arguments = ("nevermore.pipelines.cli.main", "compact", NAME, *options)
    process = start(*arguments)
    written = lambda: list(project.folder.rglob("compact-*.parquet"))  # noqa: E731  a name for what is asked twice
    wait_for(written, process)
    if victim == "driver":
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert project.rows() == rows
        assert project.table(NAME).metadata.current_snapshot_id == before
        process = start(*arguments)
    else:
        for pid in cluster.executors():
            os.kill(pid, signal.SIGKILL)
    assert process.wait(SECONDS) == 0
    assert project.rows() == rows
    table = project.table(NAME)
    assert table.current_snapshot().summary[LOG_ORDINAL]
    assert not any(task.has_deletes for task in scan_core.open_table(table).scan().plan().tasks)
    assert (
        start(
            "nevermore.pipelines.cli.main", "orphans", NAME, "--older-than", "1s", "--delete", "--config", config
        ).wait()
        == 0
    )
    live = {task.data_file.path.rpartition("/")[2] for task in scan_core.open_table(table).scan().plan().tasks}
    assert {path.name for path in written()} == live
    assert project.rows() == rows
