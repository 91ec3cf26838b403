"""Topics of a real broker: nothing lost, nothing twice, whatever happens between two runs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition

from pipelines.cli.main import main
from pipelines.config.project import load
from pipelines.ingest.feed_run import found_nothing_new, run_once
from pipelines.sources.kafka import KafkaPosition
from tests.pipelines.project import Event, Project, event, the
from tests.support.kafka_broker import KafkaBroker, running_broker

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with running_broker() as found:
        yield found


class KafkaProject(Project):
    """A project whose tables are read from topics."""

    def __init__(self, folder: Path, broker: KafkaBroker, topics: str | list[str], **table: Any) -> None:
        self.broker = broker
        self.topics = topics
        super().__init__(folder, {"shop.products": {"key": ["id"], **table}})

    def write(self, tables: dict[str, Any], **options: Any) -> None:
        source = {"type": "kafka", "brokers": self.broker.address, "topics": self.topics, "format": "debezium-json"}
        if options:
            source["options"] = options
        document = {"tables": {name: {"source": source, **table} for name, table in tables.items()}}
        (self.folder / "nevermore.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def sent(op: str, key: int, name: str = "a", **more: Any) -> tuple[bytes, bytes]:
    """Key and value of a message."""
    row: Event = {"id": key, "name": name, **more}
    return json.dumps({"id": key}).encode(), event(op, row, before=row if op == "u" else None).encode()


def tombstone(key: int) -> tuple[bytes, None]:
    return json.dumps({"id": key}).encode(), None


def test_changes_of_several_partitions_are_applied_once_and_in_order(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("orders", 4)
    project = KafkaProject(tmp_path, broker, "orders")
    assert the(project.run()).status == "nothing new"
    broker.produce("orders", [sent("c", i) for i in range(200)])
    broker.produce("orders", [sent("u", i, f"b{i}") for i in range(0, 200, 2)])
    broker.produce("orders", [m for i in range(0, 200, 10) for m in (sent("d", i), tombstone(i))])
    report = project.run()
    assert report.exit_code == 0
    assert the(report).events == {"c": 200, "u": 100, "d": 20}
    assert report.skipped == {"tombstone": 20}
    expected = [{"id": i, "name": f"b{i}" if i % 2 == 0 else "a"} for i in range(200) if i % 10]
    assert project.rows() == expected
    before = project.snapshots()
    assert the(project.run()).events == {}
    assert project.snapshots() == before
    assert found_nothing_new(load(tmp_path / "nevermore.yaml")) is not None
    broker.produce("orders", [sent("d", 1), sent("c", 500, "z")])
    assert found_nothing_new(load(tmp_path / "nevermore.yaml")) is None
    assert the(project.run()).events == {"d": 1, "c": 1}
    assert project.rows() == [row for row in expected if row["id"] != 1] + [{"id": 500, "name": "z"}]


def test_small_batches_and_new_partitions(broker: KafkaBroker, tmp_path: Path) -> None:
    from confluent_kafka.admin import NewPartitions

    broker.create_topic("grows", 1)
    project = KafkaProject(tmp_path, broker, "grows", memory_limit_bytes="1MiB")
    broker.produce("grows", [sent("c", i, "x" * 500) for i in range(1_000)])  # ten batches
    assert the(project.run()).events == {"c": 1_000}
    broker.await_all(broker.admin.create_partitions([NewPartitions("grows", 3)]))
    for _ in range(50):  # the other brokers' view of the topic follows
        if len(broker.admin.list_topics("grows").topics["grows"].partitions) == 3:
            break
        time.sleep(0.1)
    for number in range(3):
        broker.produce("grows", [sent("c", 10_000 * (number + 1) + i) for i in range(20)], partition=number)
    assert the(project.run()).events == {"c": 60}
    assert len(project.rows()) == 1_060


def test_messages_of_aborted_transactions_are_not_read(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("transactions")
    project = KafkaProject(tmp_path, broker, "transactions")
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "one"})
    producer.init_transactions(30)
    for key, commits in ((1, True), (2, False), (3, True), (4, False)):
        producer.begin_transaction()
        sent_key, value = sent("c", key)
        producer.produce("transactions", value, sent_key)
        producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    assert the(project.run()).events == {"c": 2}
    assert [row["id"] for row in project.rows()] == [1, 3]
    position = KafkaPosition.from_json(str(the(project.run()).position))
    assert position.offsets["transactions", 0] == 8  # four messages, and a marker behind each


def test_several_tables_in_a_topic_and_several_topics_of_a_pattern(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("many.a", 2)
    broker.create_topic("many.b")
    project = KafkaProject(tmp_path, broker, "^many[.].*")
    project.write({"shop.*": {"key": ["id"]}})
    broker.produce("many.a", [(None, event("c", {"id": i}, table=f"t{i % 3}").encode()) for i in range(30)])
    broker.produce("many.b", [(None, event("c", {"id": i}, table="t9").encode()) for i in range(5)])
    report = project.run()
    assert {table.table: table.events["c"] for table in report.tables} == {
        "shop.t0": 10,
        "shop.t1": 10,
        "shop.t2": 10,
        "shop.t9": 5,
    }


def test_messages_with_the_frame_of_a_schema_registry(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("framed")
    project = KafkaProject(tmp_path, broker, "framed")
    frame = b"\0" + (7).to_bytes(4, "big")
    broker.produce("framed", [(None, frame + sent("c", i)[1]) for i in range(5)])
    assert the(project.run()).events == {"c": 5}


def test_what_cannot_be_decoded_goes_to_quarantine_with_its_place(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("poison")
    project = KafkaProject(tmp_path, broker, "poison", max_quarantine_ratio=1)
    broker.produce("poison", [sent("c", 1), (b"k", b"\xff\xfe"), (b"k", b"{"), (None, b""), sent("c", 2)])
    report = project.run()
    assert the(report).events == {"c": 2}
    assert the(report).quarantined == 2
    assert report.skipped == {"blank line": 1}
    assert report.exit_code == 3


def test_messages_that_were_removed_before_they_were_read_are_an_error(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("short")
    project = KafkaProject(tmp_path, broker, "short")
    broker.produce("short", [sent("c", i) for i in range(5)])
    assert the(project.run()).events == {"c": 5}
    broker.produce("short", [sent("c", i) for i in range(5, 20)])
    broker.await_all(broker.admin.delete_records([TopicPartition("short", 0, 12)]))
    report = project.run()
    assert report.exit_code == 1
    assert "messages from offset 5 to 11 were removed before they were read" in str(the(report).error)
    assert len(project.rows()) == 5


def test_a_topic_that_was_created_again_is_an_error(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("again")
    project = KafkaProject(tmp_path, broker, "again")
    broker.produce("again", [sent("c", i) for i in range(5)])
    project.run()
    broker.await_all(broker.admin.delete_topics(["again"]))
    time.sleep(1)
    broker.create_topic("again")
    broker.produce("again", [sent("c", i) for i in range(2)])
    assert "was created again" in str(the(project.run()).error)


def test_unknown_topics_and_brokers_are_one_message(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("products")
    project = KafkaProject(tmp_path, broker, "product")
    assert "has no topic product; did you mean products?" in str(the(project.run()).error)
    project.topics = "^none.*"
    project.write({"shop.products": {"key": ["id"]}})
    assert "no topic of the Kafka cluster matches ^none.*" in str(the(project.run()).error)


@pytest.mark.slow
def test_a_broker_that_is_away_and_comes_back(tmp_path: Path) -> None:
    with running_broker() as broker:
        broker.create_topic("away")
        project = KafkaProject(tmp_path, broker, "away")
        broker.produce("away", [sent("c", 1)])
        project.run()
        broker.stop()
        assert "cannot list the topics of the Kafka cluster" in str(the(project.run()).error)
        broker.start()
        broker.produce("away", [sent("c", 2)])
        assert the(project.run()).events == {"c": 1}
        assert [row["id"] for row in project.rows()] == [1, 2]


def test_properties_that_decide_what_is_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "nevermore.yaml").write_text(
        "tables:\n  a.b:\n    source: {type: kafka, brokers: 'x:1', topics: [t], properties: {isolation.level: read_uncommitted}}\n"
    )
    with pytest.raises(Exception, match=r"isolation\.level is set by the source"):
        run_once(load(tmp_path / "nevermore.yaml"))


def test_the_config_of_a_cluster_runs_as_written(
    broker: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("init.shop.products", 2)
    broker.create_topic("init.empty")
    broker.produce("init.shop.products", [sent("c", i) for i in range(20)])
    address = f"kafka://{broker.address}/init.shop.products,init.empty"
    with pytest.raises(SystemExit) as ended:
        main(["init", "--from", address, "--dir", str(tmp_path), "--json"])
    assert not ended.value.code
    told = json.loads(capsys.readouterr().out)
    (table,) = told["tables"]
    assert table["key"] == ["id"]
    assert "init.empty: there are no events yet" in told["steps"][0]
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--config", str(tmp_path / "nevermore.yaml"), "--json"])
    assert not ended.value.code
    assert "20 to read" in capsys.readouterr().out
    report = run_once(load(tmp_path / "nevermore.yaml"))
    assert the(report).events == {"c": 20}
    broker.await_all(broker.admin.delete_topics(["init.shop.products"]))
    time.sleep(1)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--config", str(tmp_path / "nevermore.yaml"), "--json"])
    assert ended.value.code == 1
