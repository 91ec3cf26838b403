"""How many messages of a topic reach a committed change log and mirror per second of CPU time?

A broker of its own holds narrow Debezium events (5 columns) in topics of 4 partitions, as JSON, Avro and Protobuf. Compared with
the same events in a file of JSON lines, and with the client alone, which only receives the messages.
"""

import json
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.ingest_decode import serializers, updates
from benchmarks.race import chosen
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once
from tests.support.kafka_broker import running_broker

EVENTS, PARTITIONS, ROUNDS = 500_000, 4, 3


def events() -> list[dict[str, Any]]:
    """Updates of 200,000 keys."""
    random = np.random.default_rng(3)
    keys = random.integers(0, 200_000, EVENTS).tolist()
    return [
        {
            "op": "u",
            "before": None,
            "after": {"id": key, "name": f"n{key % 977}", "city": "Oslo", "qty": i % 97, "price": i / 8},
            "source": {"table": "items", "ts_ms": 1_700_000_000_000 + i},
            "ts_ms": 1_700_000_000_000 + i,
        }
        for i, key in enumerate(keys)
    ]


def messages(made: list[dict[str, Any]], folder: Path) -> dict[str, list[bytes]]:
    """The events by format; those that have a schema, 1 in the folder, have all members of Debezium's source."""
    origin = updates(0)["source"]
    by_format = {"debezium-json": [json.dumps(event).encode() for event in made]}
    for kind in ("debezium-protobuf", "debezium-avro"):
        serialize = serializers(folder)[kind]
        by_format[kind] = [serialize({**event, "source": {**origin, **event["source"]}}) for event in made]
    return by_format


def ingested(source: dict[str, object]) -> None:
    """One run in an empty project."""
    folder = Path(tempfile.mkdtemp())
    try:
        document = {"tables": {"shop.items": {"source": source, "key": ["id"]}}}
        (folder / "nevermore.yaml").write_text(yaml.safe_dump(document))
        report = run_once(load(folder / "nevermore.yaml"))
        assert sum(table.events.total() for table in report.tables) == EVENTS, report
    finally:
        shutil.rmtree(folder)


def received(address: str) -> None:
    """The client alone, with the messages in JSON."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "b", "enable.partition.eof": True})
    consumer.assign([TopicPartition("debezium-json", number, 0) for number in range(PARTITIONS)])
    count = ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 1.0):
            ended += message.error() is not None
            count += message.error() is None and message.value() is not None
    consumer.close()
    assert count == EVENTS


def seconds(run: Callable[[], None]) -> tuple[float, float]:
    """(CPU, wall) seconds of this process."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - began


def main() -> None:
    """Print the figures."""
    made = events()
    with running_broker() as broker, tempfile.TemporaryDirectory() as landing:
        folder = Path(landing)
        candidates: dict[str, Callable[[], None]] = {}
        for kind, of_format in messages(made, folder).items():
            broker.create_topic(kind, PARTITIONS)
            producer = Producer(
                {"bootstrap.servers": broker.address, "linger.ms": 20, "queue.buffering.max.messages": 10**6}
            )
            for event, message in zip(made, of_format, strict=True):
                producer.produce(kind, message, str(event["after"]["id"]).encode())
            assert producer.flush(120) == 0
            topic: dict[str, object] = {"type": "kafka", "brokers": broker.address, "topics": kind, "format": kind}
            if kind != "debezium-json":
                topic["options"] = {"schemas": landing}
            candidates[f"topic of {kind} to change log and mirror"] = lambda source=topic: ingested(source)
        (folder / "1.jsonl").write_bytes(b"\n".join(json.dumps(event).encode() for event in made) + b"\n")
        files: dict[str, object] = {"type": "files", "path": f"{landing}/*.jsonl", "format": "debezium-json"}
        candidates["file of JSON lines to change log and mirror"] = lambda: ingested(files)
        candidates["client alone"] = lambda: received(broker.address)
        best: dict[str, tuple[float, float]] = {}
        for _ in range(ROUNDS):
            for name, run in candidates.items():
                found = seconds(run)
                best[name] = min(best.get(name, found), found)
        for name, (cpu, wall) in best.items():
            print(f"{name}: {EVENTS / cpu:,.0f} events per second of CPU time, {EVENTS / wall:,.0f} per second")


if __name__ == "__main__":
    chosen(__doc__)
    main()
