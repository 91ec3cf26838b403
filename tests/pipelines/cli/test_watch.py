"""`nevermore run` is watched from outside: metrics, health, alerts, log lines and spans, over real HTTP."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from nevermore.pipelines.cli.watch import CheckRound, Watch, _outcomes
from nevermore.pipelines.config.project import AlertsConfig, load
from nevermore.pipelines.ingest.report import IngestReport
from tests.pipelines.project import Project, event, product
from tests.support.processes import free_port, wait_for

Run = Callable[..., tuple[int, str, str]]


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A web server that keeps what is posted to it: (path, body)."""
    posted: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", posted
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def running(project: Project, *words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    log = project.folder / "errors.log"
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "--log-format", "json", "run", "--interval", "0.2"]
    with log.open("w") as errors, subprocess.Popen(
        [*command, "--config", str(project.folder / "nevermore.yaml"), *words],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=errors, text=True,
    ) as process:  # fmt: skip
        try:
            yield process, log
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=300)


def json_lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def metric(text: str, name: str, *labels: str) -> float | None:
    found = [line for line in text.splitlines() if line.startswith(name) and all(label in line for label in labels)]
    return float(found[0].rpartition(" ")[2]) if found else None


@pytest.mark.slow
def test_run_serves_metrics_and_health_logs_json_and_alerts_on_failures(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "max_quarantine_ratio": 0.1}})
    project.land("1.jsonl", [event("c", product(i)) for i in range(1, 6)])
    config, port = tmp_path / "nevermore.yaml", free_port()
    url = f"http://127.0.0.1:{port}"
    with receiver() as (webhook, posted):
        config.write_text(f"{config.read_text()}alerts: {{webhook: '{webhook}/secret-hook'}}\n")
        with running(project, "--listen", f"127.0.0.1:{port}", "--json") as (process, log):

            def page(path: str) -> requests.Response | None:
                try:
                    return requests.get(f"{url}{path}", timeout=60)
                except requests.ConnectionError:
                    assert process.poll() is None, log.read_text()
                    return None

            def counted() -> str | None:
                found = page("/metrics")
                return found.text if found and metric(found.text, "nevermore_events_total") == 5.0 else None

            text = wait_for("counts", counted)
            assert metric(text, "nevermore_events_total", 'op="c"', 'table="shop.products"') == 5.0
            assert requests.get(f"{url}/nothing", timeout=60).status_code == 404
            # the round that counted the events may not have ended yet
            wait_for("success", lambda: requests.get(f"{url}/readyz", timeout=60).status_code == 200)
            assert requests.get(f"{url}/readyz", timeout=60).json()["status"] == "ok"

            def lag() -> float | None:
                return metric(str(counted()), "nevermore_lag_seconds", 'table="shop.products"')

            wait_for("the state of the table", lambda: lag() is not None)
            assert lag() == 0.0

            project.land("2.jsonl", ["{broken" for _ in range(5)])
            wait_for("failure", lambda: requests.get(f"{url}/readyz", timeout=60).status_code == 503)
            alive = requests.get(f"{url}/healthz", timeout=60)
            assert (alive.status_code, alive.json()["status"]) == (200, "failing")
            assert alive.json()["tables"]["shop.products"]["error"]
            wait_for("alert", lambda: posted)
        assert process.returncode == 0
    path, body = posted[0]
    message = json.loads(body)
    assert path == "/secret-hook"
    assert (message["event"], message["table"]) == ("table_failed", "shop.products")
    assert "secret-hook" not in body.decode()
    assert len(posted) == 1, "the same failure is told once"
    lines = json_lines(log)
    applied = next(line for line in lines if line["message"].startswith("applied 5 events"))
    assert applied["table"] == "shop.products"
    assert applied["run"] == message["run_id"]
    assert applied["snapshot"] == project.snapshots()["shop.products"]
    assert any(line["level"] == "error" and line["table"] == "shop.products" for line in lines)


@pytest.mark.slow
def test_collector_gets_spans_and_metrics(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.land("1.jsonl", [event("c", product(1))])
    with receiver() as (url, posted):
        with running(project, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_METRIC_EXPORT_INTERVAL="300") as (process, log):
            wait_for("metrics", lambda: "/v1/metrics" in {path for path, _ in posted})
            assert process.poll() is None, log.read_text()
        bodies = {path: b"".join(body for at, body in posted if at == path) for path, _ in posted}
    assert b"nevermore.table" in bodies["/v1/traces"]
    assert b"shop.products" in bodies["/v1/traces"]
    assert b"nevermore.events" in bodies["/v1/metrics"]


@pytest.mark.parametrize("listen", ["here", "127.0.0.1:", "127.0.0.1:99999", "192.0.2.1:9464"])
def test_addresses_that_cannot_be_listened_on_are_one_message(run: Run, tmp_path: Path, listen: str) -> None:
    project = Project(tmp_path)
    code, output, errors = run("run", "--config", project.folder / "nevermore.yaml", "--listen", listen, "--json")
    assert (code, output) == (2, "")
    assert listen in json.loads(errors)["error"]


def test_a_slot_is_told_once_until_it_is_well_again(tmp_path: Path) -> None:
    source = {"type": "postgres", "dsn": f"postgresql://nobody@127.0.0.1:{free_port()}/none", "slot": "orders_slot"}
    (tmp_path / "nevermore.yaml").write_text(json.dumps({"tables": {"shop.orders": {"source": source}}}))
    with receiver() as (webhook, posted):
        config = load(tmp_path / "nevermore.yaml").model_copy(update={"alerts": AlertsConfig(webhook=webhook)})
        watch = Watch(config, "a-run", 1.0)
        for _ in range(2):
            watch.after_round(IngestReport((), {}, 0.0))
            watch._looked_at = float("-inf")
        watch.end()
        watch.post_alerts()
    (message,) = [json.loads(body) for _, body in posted]
    assert (message["event"], message["table"], message["run_id"]) == ("slot_warns", "orders_slot", "a-run")
    assert "orders_slot" in message["text"]


def test_an_error_of_checks_is_told_beside_the_results_that_they_have() -> None:
    result = {"table": "shop.a", "name": "key_is_unique", "passed": True}
    said = io.BytesIO(json.dumps(result).encode() + b"\nerror: shop.b: the folder for temporary files is full\n")
    done, text = _outcomes(1, said)
    assert done == CheckRound("shop.a", 1, ())
    assert text == "checks did not end (exit code 1): error: shop.b: the folder for temporary files is full"
