"""Watches `nevermore run`: metrics, `/metrics`, `/healthz` and `/readyz` over HTTP, alerts to a webhook, and regular checks.

What is counted comes from the reports of rounds; lag and debt come from table metadata, at most every 30 seconds. Mirrors are
checked by `nevermore check --changed` in a process of its own: a check takes memory and time that the next round of events does
not have to wait for, and the rows that a run wrote are better not judged in its own process.
"""

import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import ConfigError, PipelineError
from nevermore.pipelines.iceberg.catalog import expanded, open_to_look
from nevermore.pipelines.iceberg.checked_catalog import open_existing
from nevermore.pipelines.maintain.status import SlotStatus, TableStatus, slot_status, status
from nevermore.pipelines.watch import OTLP_VARIABLE, export_spans, post, shown
from nevermore.pipelines.wording import counted
from nevermore.scan_core import ScanError
from nevermore.scan_core.io import require_package

if TYPE_CHECKING:
    from opentelemetry.metrics import Observation

    from nevermore.pipelines.ingest.report import IngestReport, TableReport


STATE_SECONDS = 30.0
"""Least seconds between two looks at the metadata of all tables."""
STALLED_SECONDS = 300.0
"""Seconds without a finished round, above the interval, after which the process counts as stalled."""
_COUNTERS = {"commits": "{commit}", "rows_written": "{row}", "bytes_written": "By", "failed_rounds": "{round}"}
_GAUGES = {
    "lag_seconds": ("s", "age of the mirror relative to its change log"),
    "waiting": ("{change}", "changes in the log that are not in the mirror"),
    "delete_debt": ("1", "delete rows per row in data files"),
    "quarantined": ("{event}", "events in quarantine"),
    "slot_held_bytes": ("By", "log that the server keeps for a replication slot"),
    "slot_lag_bytes": ("By", "log of a replication slot that is not confirmed"),
}
_log = logging.getLogger(__name__)

END_SECONDS = 10.0


@dataclass
class Watch:
    """What is known of the tables of a continuous run; shared by its thread, the server and exporters.

    Attributes:
        config: the project.
        run: a name of this process in logs.
        interval: longest seconds between two rounds.
    """

    config: Config
    run: str
    interval: float
    errors: dict[str, str] = field(default_factory=dict)
    succeeded_at: dict[str, float] = field(default_factory=dict)
    states: dict[str, TableStatus] = field(default_factory=dict)
    round_at: float = field(default_factory=time.monotonic)
    rounds: int = 0
    late: set[str] = field(default_factory=set)
    slots: list[SlotStatus] = field(default_factory=list)
    _counters: dict[str, Any] = field(default_factory=dict)
    _looked_at: float = float("-inf")
    _alerts: "queue.SimpleQueue[dict[str, Any] | None]" = field(default_factory=queue.SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def after_round(self, report: "IngestReport") -> None:
        """Count what a round did, and say what changed."""
        now = time.monotonic()
        with self._lock:
            self.round_at, self.rounds = now, self.rounds + 1
            for table in report.tables:
                self._take(table, now)
        if now - self._looked_at >= STATE_SECONDS:
            self._look(now)

    def _take(self, table: "TableReport", now: float) -> None:
        name, known = table.table, self.errors.get(table.table)
        facts = {"table": name, "snapshot": table.snapshot_id}
        if table.error is None:
            self.succeeded_at[name] = now
            if self.errors.pop(name, None) is not None:
                self._say("table_recovered", name, f"{name} is ingested again")
            if table.status != "nothing new":
                _log.info("applied %d events in %d commits", table.events.total(), table.mirror_commits, extra=facts)
        else:
            self.succeeded_at.setdefault(name, now)
            self.errors[name] = table.error
            if known != table.error:
                _log.error("failed: %s", table.error, extra=facts)
                self._say("table_failed", name, f"{name} failed: {table.error}")
        if table.quarantined:
            self._say("events_quarantined", name, f"{name}: {counted(table.quarantined, 'event')} went to quarantine")
        self._count("events", dict(table.events), name)
        numbers = (table.mirror_commits, table.data_rows, table.written_bytes, int(table.error is not None))
        for what, number in zip(_COUNTERS, numbers, strict=True):
            self._count(what, {"": number}, name)

    def _count(self, what: str, numbers: dict[str, int], table: str) -> None:
        counter = self._counters.get(what)
        for op, number in numbers.items():
            if counter is not None and number:
                counter.add(number, {"table": table, **({"op": op} if op else {})})

    def _look(self, now: float) -> None:
        self._looked_at = now
        self._look_at_slots()
        try:
            catalog = open_to_look(self.config)
            found = status(catalog, expanded(self.config, catalog))
        except (ScanError, PipelineError) as error:
            _log.warning("the state of the tables cannot be read: %s", error)
            return
        with self._lock:
            self.states = {state.table: state for state in found}
        most = None if self.config.alerts is None else self.config.alerts.max_lag
        late = set() if most is None else {name for name in self.states if self.lag_of(name, now) > most}
        for name in late - self.late:
            self._say("table_lags", name, f"{name} is {self.lag_of(name, now):,.0f} s behind")
        self.late = late

    def _look_at_slots(self) -> None:
        """Tell of each replication slot once that holds too much log, was lost, or cannot be asked about."""
        before = {slot.slot for slot in self.slots if slot.warning is not None}
        found = slot_status(self.config)
        for slot in found:
            if slot.warning is not None and slot.slot not in before:
                self._say("slot_warns", slot.slot, f"replication slot {slot.slot}: {slot.warning}")
        with self._lock:
            self.slots = found

    def lag_of(self, table: str, now: float) -> float:
        """Seconds that a mirror is behind: its log, or the last round that could read its source, whichever is more."""
        state = self.states.get(table)
        behind = 0.0 if state is None or state.lag_seconds is None else state.lag_seconds
        return max(behind, now - self.succeeded_at[table] if table in self.errors else 0.0)

    def _say(self, event: str, table: str, text: str) -> None:
        if (alerts := self.config.alerts) is not None:
            self._alerts.put({"text": shown(alerts.webhook, text), "event": event, "table": table, "run_id": self.run})

    def post_alerts(self) -> None:
        """Post alerts until None is queued; ingestion does not wait for it."""
        while (message := self._alerts.get()) is not None:
            try:
                if self.config.alerts is not None:
                    post(self.config.alerts.webhook, message)
            except PipelineError as error:
                _log.warning("%s", error)

    def end(self) -> None:
        """Let `post_alerts` end after what is queued."""
        self._alerts.put(None)

    def health(self) -> dict[str, Any]:
        """For `/healthz` and `/readyz`."""
        with self._lock:
            age = time.monotonic() - self.round_at
            stalled = age > STALLED_SECONDS + self.interval
            tables = {name: {"error": self.errors.get(name)} for name in sorted(self.succeeded_at)}
            state = "stalled" if stalled else "failing" if self.errors else "ok"
            return {"status": state, "run": self.run, "rounds": self.rounds, "last_round_seconds": round(age, 1)} | {
                "tables": tables
            }

    def instrument(self, meter: Any) -> None:
        """Create the instruments of OpenTelemetry."""
        for name, unit in {"events": "{event}", **_COUNTERS}.items():
            self._counters[name] = meter.create_counter(f"nevermore.{name}", unit=unit)
        for name, (unit, text) in _GAUGES.items():
            meter.create_observable_gauge(
                f"nevermore.{name}", [partial(self._observed, name)], unit=unit, description=text
            )

    def _observed(self, name: str, _: object) -> "Iterator[Observation]":
        from opentelemetry.metrics import Observation

        with self._lock:
            slots, states, now = self.slots, self.states, time.monotonic()
        if name.startswith("slot_"):
            found = [({"slot": slot.slot}, getattr(slot, name.removeprefix("slot_"))) for slot in slots]
        else:
            found = [
                ({"table": table}, self.lag_of(table, now) if name == "lag_seconds" else getattr(state, name))
                for table, state in states.items()
            ]
        yield from (Observation(value, labels) for labels, value in found if value is not None)


@contextmanager
def watching(config: Config, listen: str | None, interval: float) -> Iterator[Watch]:
    """Watch a run: serve HTTP on `listen` (`HOST:PORT`), export to a collector where its variable is set, post alerts.

    Raises:
        ConfigError: `listen` is not an address, or cannot be listened on.
        MissingPackageError: a package of the extra `watch` is missing.
    """
    watch = Watch(config, uuid4().hex[:12], interval)
    export_spans()
    readers = list(_readers(is_served=listen is not None))
    provider = None
    if readers:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource

        provider = MeterProvider(readers, resource=Resource.create({"service.name": "nevermore"}))
        watch.instrument(provider.get_meter("nevermore"))
    server = None if listen is None else _serve(watch, listen)
    poster = threading.Thread(target=watch.post_alerts, name="alerts", daemon=True)
    poster.start()
    try:
        yield watch
    finally:
        watch.end()
        poster.join(timeout=60)
        if server is not None:
            server.shutdown()
            server.server_close()
        if provider is not None:
            provider.shutdown()


def _readers(*, is_served: bool) -> Iterable[Any]:
    if is_served:
        require_package("opentelemetry.exporter.prometheus", "--listen", "nevermore-iceberg[watch]")
        from opentelemetry.exporter.prometheus import PrometheusMetricReader

        yield PrometheusMetricReader()
    if os.environ.get(OTLP_VARIABLE):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        yield PeriodicExportingMetricReader(OTLPMetricExporter())


def _serve(watch: Watch, listen: str) -> ThreadingHTTPServer:
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"--listen {listen!r} is not an address: write HOST:PORT, such as 127.0.0.1:9464")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

                self._answer(200, CONTENT_TYPE_LATEST, generate_latest())
            elif path in {"/healthz", "/readyz"}:
                health = watch.health()
                is_bad = health["status"] == "stalled" or (path == "/readyz" and health["status"] != "ok")
                self._answer(503 if is_bad else 200, "application/json", json.dumps(health).encode())
            else:
                self._answer(404, "text/plain", b"/metrics, /healthz and /readyz are here\n")

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not logged: probes come every few seconds."""

    try:
        server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(port)), Handler)
    except OSError as error:
        raise ConfigError(f"--listen {listen}: {error.strerror or error}; give a free address as HOST:PORT") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


@dataclass(frozen=True, slots=True)
class CheckRound:
    """What `nevermore check` has found in a mirror.

    Attributes:
        table: the mirror.
        passed: number of checks that passed.
        failed: the others, as `nevermore check --json` prints them.
    """

    table: str
    passed: int
    failed: tuple[Mapping[str, Any], ...]

    @property
    def lines(self) -> list[str]:
        """Lines for people."""
        if not self.failed:
            return [f"{self.table}: {self.passed} checks passed"]
        shown = []
        for check in self.failed:
            outcome = "FAILED" if check["severity"] == "block" else "WARNING"
            shown.append(f"{self.table}: {outcome} {check['check']}: {'; '.join(check['details'])}")
            shown += [f"  to see more: {command}" for command in check["reproduce"]]
        return shown


class RegularChecks:
    """Checks the mirrors to which events were applied, as often as their config says, one process at a time."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._checked: dict[str, float] = {}
        self._changed: set[str] = set()
        self._running: tuple[subprocess.Popen[bytes], IO[bytes]] | None = None

    def after_round(self, committed: Iterable[str]) -> Iterator[CheckRound | str]:
        """Begin the checks that are due, given the mirrors of new commits; yield what checks that have ended found."""
        self._changed.update(committed)
        if self._running is not None:
            process, output = self._running
            if process.poll() is None:
                return
            self._running = None
            yield from _outcomes(process.returncode, output)
        if due := self._due():
            self._begin(due)

    def end(self) -> None:
        """Stop a check that still runs: what it would find, the next one finds."""
        if self._running is None:
            return
        process, output = self._running
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.close()

    def _due(self) -> list[str]:
        if not self._changed:
            return []
        now, found = time.monotonic(), []
        try:
            tables = expanded(self._config, open_existing(self._config)).tables
        except PipelineError:  # the run itself reports it, and goes on
            return []
        for name in sorted(self._changed & set(tables)):
            every = tables[name].checks.every
            if every != "off" and now >= self._checked.get(name, self._began) + every:
                found.append(name)
                self._checked[name] = now
        self._changed.difference_update(found)
        return found

    def _begin(self, tables: list[str]) -> None:
        command = [sys.executable, "-P", "-m", "nevermore.pipelines.cli.main", "check", *tables, "--changed", "--json"]
        command += ["--config", str(self._config.path), *(["--alert"] if self._config.alerts is not None else [])]
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it is read
        self._running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output), output  # noqa: S603 - our own interpreter


def _outcomes(code: int, output: IO[bytes]) -> Iterator[CheckRound | str]:
    output.seek(0)
    found: dict[str, list[Mapping[str, Any]]] = {}
    other = []
    with output:
        for line in output:
            try:
                document = orjson.loads(line)
                found.setdefault(document["table"], []).append(document)
            except (ValueError, KeyError, TypeError):
                other.append(line.decode(errors="replace").strip())
    for table, checks in found.items():
        failed = [check for check in checks if not check["passed"]]
        yield CheckRound(table, len(checks) - len(failed), tuple(failed))
    said = " ".join(other[-3:])
    if code not in {0, 1} or "error: " in said:
        yield f"checks did not end (exit code {code}): {said}"
