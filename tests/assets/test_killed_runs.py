"""Runs whose process is gone: they are failed, their slots are freed, and the next run goes on."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import requests
from dagster._core.launcher import WorkerStatus

from nevermore.assets.jobs import INGEST_JOB
from nevermore.assets.launcher import FOLDER, Launcher
from nevermore.assets.project import table_pool
from nevermore.pipelines.config.document import dagster_home
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog, sqlite_file
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.scan_core import open_table
from tests.assets.test_ui import child_of, group_of
from tests.support.processes import free_port, wait_for
from tests.support.shop_project import ShopProject, event, order

HOLDER = """
import sys, time
import dagster as dg
from nevermore.assets.launcher import hold
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    hold(instance, sys.argv[2])
    print("held", flush=True)
    time.sleep(600)
"""
LAUNCH = """mutation($job: JobOrPipelineSelector!) { launchRun(executionParams: {selector: $job, runConfigData: {}}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


@pytest.mark.slow
def test_the_launcher_sees_whether_the_process_of_a_run_is_there(tmp_path: Path) -> None:
    home = dagster_home(tmp_path)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        launcher = instance.run_launcher
        assert isinstance(launcher, Launcher)
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_settings["free_slots_after_run_end_seconds"] > 0

        def health(run_id: str) -> WorkerStatus:
            return launcher.check_run_worker_health(dg.DagsterRun(job_name="ingest_job", run_id=run_id)).status

        assert health("elsewhere") is WorkerStatus.RUNNING
        command = [sys.executable, "-c", HOLDER, str(home), "first"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            assert [health("first") for _ in range(3)] == [WorkerStatus.RUNNING] * 3
            process.kill()
        assert [health("first") for _ in range(3)] == [WorkerStatus.FAILED] * 3
        with subprocess.Popen([*command[:-1], "second"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            assert [path.name for path in (home / FOLDER).iterdir()] == ["second"]  # the first run is not known
            process.kill()


@contextmanager
def ui(project: ShopProject, port: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = {k: v for k, v in os.environ.items() if k not in {"NEVERMORE_CONFIG", "PYTHONPATH"}}
    command = [str(Path(sys.executable).parent / "nevermore"), "ui", "--dir", str(project.folder), "--port", str(port)]
    with (project.folder / "ui.log").open("a") as log, subprocess.Popen(
        command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=project.folder
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=300)


def launched(port: int, location: str) -> str | None:
    """The id of a run of the ingest job; None while the server starts."""
    job = {"repositoryLocationName": location, "repositoryName": "__repository__", "jobName": INGEST_JOB}
    try:
        answer = requests.post(
            f"http://127.0.0.1:{port}/graphql", json={"query": LAUNCH, "variables": {"job": job}}, timeout=60
        ).json()["data"]["launchRun"]
    except requests.RequestException:
        return None
    found = answer.get("run", {}).get("runId")
    assert found is None or isinstance(found, str)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("killed", ["run", "ui"])
def test_after_a_kill_the_run_is_failed_its_slots_are_free_and_another_run_ingests(
    killed: str, project: ShopProject
) -> None:
    run_once(project.config)
    project.land("orders", "3.jsonl", [event("c", "orders", after=order(8, 80.0, 2))])
    file, port = sqlite_file(project.config), free_port()
    assert file is not None
    with dg.DagsterInstance.from_config(str(dagster_home(project.folder))) as instance:

        def claimed() -> bool:
            return bool(instance.event_log_storage.get_concurrency_info(table_pool("shop.orders")).claimed_slots)

        def pid_of(run_id: str) -> int:
            events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
            (text,) = (e.message for e in events if "Started process for run" in e.message)
            return int("".join(filter(str.isdigit, text)))

        with ui(project, port) as process, closing(sqlite3.connect(file, isolation_level=None)) as database:
            run_id = wait_for("run", lambda: launched(port, project.folder.name))
            wait_for("lock", lambda: (instance.get_run_by_id(run_id) or Any).status is dg.DagsterRunStatus.STARTED)
            database.execute("BEGIN EXCLUSIVE")  # the steps wait for the catalog, with their slots
            wait_for("slot", claimed)
            if killed == "run":
                os.kill(pid_of(run_id), signal.SIGKILL)
            else:
                leader = child_of(process.pid)
                assert leader is not None
                everything = {process.pid, *group_of(leader), pid_of(run_id)}
                for pid in everything:
                    os.kill(pid, signal.SIGKILL)
            database.execute("ROLLBACK")
            if killed == "run":
                check(instance, run_id, claimed, project)
        if killed == "ui":
            assert claimed()
            run = instance.get_run_by_id(run_id)
            assert run is not None
            assert run.status is dg.DagsterRunStatus.STARTED
            with ui(project, port):
                check(instance, run_id, claimed, project)


def check(instance: dg.DagsterInstance, run_id: str, claimed: Any, project: ShopProject) -> None:
    """The killed run fails, its retry succeeds, and no slot stays claimed."""
    status = dg.DagsterRunStatus
    wait_for("failure", lambda: instance.get_runs(dg.RunsFilter([run_id], statuses=[status.FAILURE])), seconds=600)
    wait_for("retry", lambda: instance.get_runs(dg.RunsFilter(statuses=[status.SUCCESS])), seconds=600)
    wait_for("free slots", lambda: not claimed(), seconds=600)
    table = find_table(open_catalog(project.config), "shop.orders")
    assert open_table(table).scan().count() == 7
