"""A producer writes in transactions while an ingester and its connections to the broker are killed: `python -m tests.pipelines.kafka.soak`.

The producer remembers where each message of a committed transaction is. The change logs say which offsets each snapshot of a
mirror contains, so that its rows must be exactly those that these messages lead to. At the end the mirrors have all of them.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer

from nevermore.pipelines.config.project import Config, change_log_name, load
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current, storage_of
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.compact import compact_mirror
from nevermore.scan_core import open_table
from tests.pipelines.project import Event, event
from tests.support.cut_proxy import CutProxy, cut_proxy
from tests.support.kafka_broker import KafkaBroker
from tests.support.processes import free_port
from tests.support.soaking import run_as_command

TOPIC, PARTITIONS = "kills", 3
TABLES = ("products", "orders")
KEYS = 300
LARGE = 4_000
"""Changes of some transactions; others have at most 40."""


@dataclass
class Message:
    """A change of a row, and where the broker has it. Mutable: the broker tells the place later."""

    table: str
    row: int
    now: Event | None
    partition: int = -1
    offset: int = -1

    def delivered(self, error: object, message: Any) -> None:
        assert error is None, error
        self.partition, self.offset = message.partition(), message.offset()


class Writer(threading.Thread):
    """Sends changes in transactions, some of which it aborts. Each key has its partition."""

    def __init__(self, broker: KafkaBroker, seed: int) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.committed: list[Message] = []
        self.rows: dict[str, dict[int, Event]] = {table: {} for table in TABLES}
        self.stop = threading.Event()
        self.counts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._random = random.Random(seed)

    def run(self) -> None:
        try:
            producer = Producer(
                {"bootstrap.servers": self.broker.address, "transactional.id": "writer", "linger.ms": 1}
            )
            producer.init_transactions(60)
            while not self.stop.is_set():
                self._transaction(producer)
                time.sleep(self._random.random() * 0.02)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            self.failure = error

    def _transaction(self, producer: Producer) -> None:
        rows = {table: dict(found) for table, found in self.rows.items()}
        producer.begin_transaction()
        count = LARGE if self._random.random() < 0.01 else self._random.randint(1, 40)
        aborts = self._random.random() < 0.2
        sent = [self._change(producer, rows, aborts=aborts) for _ in range(count)]
        if aborts:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            self.rows = rows
            self.committed += sent
        self.counts["aborted" if aborts else "transactions"] += 1

    def _change(self, producer: Producer, rows: dict[str, dict[int, Event]], *, aborts: bool) -> Message:
        table, key = self._random.choice(TABLES), self._random.randrange(KEYS)
        before = rows[table].pop(key, None)
        now = None
        if before is not None and self._random.random() < 0.3:
            text = event("d", before, table=table)
        else:
            now = {"id": key, "name": f"n{self._random.randrange(10**6)}"}
            rows[table][key] = now
            text = event("c" if before is None else "u", now, before=before, table=table)
        message = Message(table, key, now)
        name = json.dumps({"id": key}).encode()
        while True:
            try:
                producer.produce(TOPIC, text.encode(), name, on_delivery=None if aborts else message.delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if now is None:
            producer.produce(TOPIC, None, name)
        return message


class Soak:
    """A run: a topic with its producer, an ingester that is killed again and again."""

    def __init__(self, broker: KafkaBroker, proxy: CutProxy, folder: Path, seed: int) -> None:
        self.folder = folder
        self.proxy = proxy
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.writer = Writer(broker, seed)
        source = {"type": "kafka", "brokers": f"127.0.0.1:{proxy.port}", "topics": TOPIC, "format": "debezium-json"}
        table = {"source": source, "key": ["id"], "commit_rows": 500, "memory_limit_bytes": "32MiB"}
        document = {"tables": {f"shop.{name}": table for name in TABLES}, "maintenance": {"keep_snapshots": 100_000}}
        path = folder / "nevermore.yaml"
        path.write_text(yaml.safe_dump(document))
        self.config: Config = load(path)

    def ingester(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-c",
            "from nevermore.pipelines.cli.main import main; main()",
            "run",
            "--interval",
            "0.2",
        ]
        return subprocess.Popen(
            [*command, "--config", str(self.config.path)],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "ingester.log").open("ab"),
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )

    def commits(self) -> int:
        """Commits of all change logs and mirrors so far."""
        return sum(1 for _ in self.folder.rglob("*.metadata.json"))

    def disturb(self) -> None:
        if self.random.random() < 0.1:
            self.proxy.close()
            self.counts["times that connections were cut"] += 1
        name = f"shop.{self.random.choice(TABLES)}"
        if self.random.random() < 0.03 and open_catalog(self.config).table_exists(name):
            self.counts["compactions"] += compact_mirror(self.config, name) is not None

    def run(self, seconds: float) -> dict[str, Any]:
        self.writer.start()
        ends = time.monotonic() + seconds
        process = self.ingester()
        due, most = time.monotonic() + 15, self.commits() + 8
        try:
            while time.monotonic() < ends:
                time.sleep(0.3)
                assert self.writer.failure is None, self.writer.failure
                self.disturb()
                if process.poll() is not None:
                    self.counts["ingester ended by itself"] += 1
                    process = self.ingester()
                if time.monotonic() > due or self.commits() >= most:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    self.counts["kills"] += 1
                    process = self.ingester()
                    due = time.monotonic() + self.random.uniform(1, 25)
                    most = self.commits() + self.random.randrange(1, 20)
        finally:
            self.writer.stop.set()
            self.writer.join()
            process.send_signal(signal.SIGTERM)
            process.wait(300)
        assert self.writer.failure is None, self.writer.failure
        return self.check()

    def check(self) -> dict[str, Any]:
        """Compare the mirrors with what was sent, each of their snapshots included."""
        report = run_once(self.config)
        assert not [table.error for table in report.tables if table.error], report
        catalog = open_catalog(self.config)
        for name in TABLES:
            assert not catalog.table_exists(f"quarantine.shop_{name}")
            rows = open_current(catalog.load_table(f"shop.{name}")).scan().to_table().to_pylist()
            found = {row["id"]: row for row in rows}
            assert len(found) == len(rows)
            wanted = self.writer.rows[name]
            assert found == wanted, [
                (k, found.get(k), wanted.get(k)) for k in {*found, *wanted} if found.get(k) != wanted.get(k)
            ][:5]
            self.counts["snapshots checked"] += self.check_snapshots(catalog, name)
        assert self.counts["snapshots checked"], "no snapshot was seen"
        command = [sys.executable, "-c", "from nevermore.pipelines.cli.main import main; main()", "check"]
        subprocess.run([*command, "--config", str(self.config.path)], check=True, capture_output=True, timeout=600)
        return {**self.writer.counts, "changes": len(self.writer.committed), **self.counts}

    def check_snapshots(self, catalog: Any, name: str) -> int:
        """Each snapshot has the rows that the messages before its offsets lead to."""
        log = catalog.load_table(change_log_name(f"shop.{name}"))
        storage = storage_of(log)
        offsets: dict[int, dict[str, int]] = {}
        for snapshot in log.metadata.snapshots:
            properties = positions.summary_properties(snapshot)
            position = positions.position_in(properties, storage)
            if position is not None and positions.LAST_ORDINAL in properties:
                ordinal = int(properties[positions.LAST_ORDINAL])
                offsets.setdefault(ordinal, json.loads(position)["topics"].get(TOPIC, {}))
        sent = sorted((m for m in self.writer.committed if m.table == name), key=lambda m: (m.partition, m.offset))
        mirror = catalog.load_table(f"shop.{name}")
        checked = 0
        for snapshot in mirror.metadata.snapshots:
            reached = offsets.get(int(positions.summary_properties(snapshot).get(positions.LOG_ORDINAL, "0")))
            if reached is None:
                continue
            wanted: dict[int, Event] = {}
            for message in sent:  # a key is in one partition
                if message.offset < reached.get(str(message.partition), 0):
                    wanted.pop(message.row, None)
                    wanted |= {} if message.now is None else {message.row: message.now}
            scan = open_table(mirror.metadata_location).scan().as_of_snapshot(snapshot.snapshot_id)
            assert {row["id"]: row for row in scan.to_table().to_pylist()} == wanted, (
                name,
                snapshot.snapshot_id,
                reached,
            )
            checked += 1
        return checked


def soak(seconds: float, seed: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="nevermore-soak-"))  # stays after a failure, with the log of the ingester
    port = free_port()
    with ExitStack() as stack:
        proxy = stack.enter_context(cut_proxy(port))
        broker = KafkaBroker(folder)
        broker.listen(port, advertised=proxy.port)
        stack.callback(broker.stop)
        broker.start()
        broker.create_topic(TOPIC, PARTITIONS)
        result = Soak(broker, proxy, folder, seed).run(seconds)
    shutil.rmtree(folder)
    return result


if __name__ == "__main__":
    run_as_command(soak, __doc__)
