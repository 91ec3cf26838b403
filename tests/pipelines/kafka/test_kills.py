"""A producer writes on in transactions, of which it aborts some, while the ingester is killed: the mirror ends as the topic says."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from confluent_kafka import KafkaException, Producer

from pipelines.config.project import load
from pipelines.ingest.feed_run import run_once
from tests.pipelines.project import Event, Project, event, the
from tests.support.kafka_broker import KafkaBroker, running_broker

SECONDS = 60
TOPIC, PARTITIONS = "kills", 3


class Writer(threading.Thread):
    """Sends changes in transactions, some of which it aborts; `rows` are those of all committed ones."""

    def __init__(self, broker: KafkaBroker, seed: int) -> None:
        super().__init__()
        self.broker = broker
        self.random = random.Random(seed)
        self.rows: dict[int, Event] = {}
        self.stop = threading.Event()
        self.counts = {"committed": 0, "aborted": 0}

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.broker.address, "transactional.id": "writer", "linger.ms": 1})
        producer.init_transactions(60)
        while not self.stop.is_set():
            rows = dict(self.rows)
            producer.begin_transaction()
            for _ in range(self.random.randint(1, 40)):
                self._change(producer, rows)
            try:
                if self.random.random() < 0.2:
                    producer.abort_transaction(60)
                    self.counts["aborted"] += 1
                    continue
                producer.commit_transaction(60)
                self.rows = rows
                self.counts["committed"] += 1
            except KafkaException as error:
                raise AssertionError(f"a commit failed: {error}") from error
            time.sleep(0.005)

    def _change(self, producer: Producer, rows: dict[int, Event]) -> None:
        key = self.random.randrange(300)
        if key in rows and self.random.random() < 0.3:
            text = event("d", rows.pop(key))
        else:
            row = {"id": key, "name": f"n{self.random.randrange(10**6)}"}
            text = event("u" if key in rows else "c", row, before=rows.get(key))
            rows[key] = row
        producer.produce(TOPIC, text.encode(), json.dumps({"id": key}).encode())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_lose_and_double_nothing(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with running_broker() as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        project = Project(tmp_path)
        source = {"type": "kafka", "brokers": broker.address, "topics": TOPIC, "format": "debezium-json"}
        table = {"source": source, "key": ["id"], "commit_interval": "0.2s", "commit_rows": 200}
        (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {"shop.products": table}}))
        writer = Writer(broker, seed)
        writer.start()
        kills = 0
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                command = [sys.executable, "-c", "from pipelines.cli.main import main; main()", "run"]
                process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(chance.uniform(2, 9))
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
        finally:
            writer.stop.set()
            writer.join(120)
        assert kills > 3
        assert min(writer.counts.values()) > 10
        report = run_once(load(tmp_path / "nevermore.yaml"))
        assert the(report).error is None
        assert project.rows() == [writer.rows[key] for key in sorted(writer.rows)]
        checked = [sys.executable, "-c", "from pipelines.cli.main import main; main()", "check"]
        subprocess.run(checked, cwd=tmp_path, check=True, capture_output=True, timeout=240)
