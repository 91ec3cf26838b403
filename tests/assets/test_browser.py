"""The UI as people use it: a backfill is clicked in a browser, and a broken config is one clear message."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.processes import free_port, wait_for
from tests.support.shop_project import ShopProject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOCATION = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
    __typename ... on PythonError { message } } } } } }"""
BACKFILLS = """{ partitionBackfillsOrError { ... on PartitionBackfills { results {
    id status numPartitions title } } } }"""
MATERIALIZED = """{ assetNodeOrError(assetKey: {path: ["published", "shop", "orders_daily"]}) { ... on AssetNode {
    assetMaterializations { partition runId } } } }"""


def chromium() -> str:
    """The browser of this machine; without one CI fails and others skip."""
    pytest.importorskip("playwright", reason="pip install playwright")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is missing: .ci/ensure-chromium installs it")
        pytest.skip("chromium is missing")
    return found


class Ui:
    """The web server of `nevermore ui`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, query: str) -> Any:
        """The answer's data; None while the server starts."""
        try:
            return requests.post(f"{self.url}/graphql", json={"query": query}, timeout=60).json()["data"]
        except requests.RequestException:
            return None

    def location(self) -> Any:
        """What Dagster made of the definitions; None while it loads them."""
        found = self.ask(LOCATION)
        entries = found["workspaceOrError"]["locationEntries"] if found else []
        return entries[0]["locationOrLoadError"] if entries else None


@contextmanager
def nevermore_ui(project: Path) -> Iterator[Ui]:
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if k != "NEVERMORE_CONFIG"}
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "ui", "--dir", str(project), "--port", str(port)]
    with (project / "ui.log").open("w") as log, subprocess.Popen(
        command, env=environment, stdout=log, stderr=subprocess.STDOUT
    ) as process:  # fmt: skip
        try:
            yield Ui(port)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=300)


def test_a_broken_config_is_one_message_with_file_and_line(tmp_path: Path) -> None:
    project = ShopProject(tmp_path)
    text = project.path.read_text().replace("partition:", "partiton:")
    project.path.write_text(text)
    with nevermore_ui(tmp_path) as ui:
        found = wait_for("definitions", ui.location)
    assert found["__typename"] == "PythonError"
    line = text.partition("partiton:")[0].count("\n") + 1
    wanted = f"{project.path}:{line}: unknown key 'partiton'; did you mean 'partition'?"
    assert found["message"].strip() == f"nevermore.assets.definitions.ConfigFileError: {wanted}"


def materializations(ui: Ui) -> Any:
    return ui.ask(MATERIALIZED)["assetNodeOrError"]["assetMaterializations"]


@pytest.mark.spark
def test_a_backfill_is_clicked_and_makes_its_days(demo_project: Path) -> None:
    from playwright.sync_api import sync_playwright

    executable = chromium()
    with nevermore_ui(demo_project) as ui, sync_playwright() as playwright:
        wait_for("definitions", ui.location)
        before = ui.ask(BACKFILLS)["partitionBackfillsOrError"]["results"]
        first_runs = {event["runId"] for event in materializations(ui)}
        assert before == []
        browser = playwright.chromium.launch(executable_path=executable, headless=True, args=FLAGS)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.set_default_timeout(120_000)
            page.goto(f"{ui.url}/assets/published/shop/orders_daily?view=partitions", wait_until="domcontentloaded")
            page.get_by_role("button", name="Materialize").first.click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_role("button", name="All", exact=True).click()
            dialog.get_by_role("button", name="Launch backfill").click()
            dialog.wait_for(state="hidden")
        finally:
            browser.close()

        def ended() -> Any:
            new = ui.ask(BACKFILLS)["partitionBackfillsOrError"]["results"]
            return new[0] if new and new[0]["status"] not in {"REQUESTED", "FAILING", "CANCELING"} else None

        backfill = wait_for("end of the backfill", ended, seconds=1000)
        assert backfill["status"] == "COMPLETED_SUCCESS"
        days = {event["partition"] for event in materializations(ui) if event["runId"] not in first_runs}
        assert (
            len(days) == backfill["numPartitions"] > 31
        )  # of the last 90 days, which the dialog shows, in several runs
