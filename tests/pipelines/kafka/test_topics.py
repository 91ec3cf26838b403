"""Topics of a real broker: nothing lost, nothing twice, whatever happens between two runs."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition

from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.sources import KafkaSource
from nevermore.pipelines.errors import CommitUnknownError, ConfigError, PipelineError, SourceError
from nevermore.pipelines.formats.registry import complete_events_of
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport
from nevermore.pipelines.ingest.table_ingest import TableIngest
from nevermore.pipelines.maintain.replay import resync_from_source
from nevermore.pipelines.sources.kafka import KafkaPosition, KafkaTopics, OffsetRange
from tests.pipelines.project import Event, Project, event, the
from tests.support.cut_proxy import cut_proxy
from tests.support.kafka_broker import KafkaBroker, running_broker
from tests.support.processes import free_port

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with running_broker() as found:
        yield found


class KafkaProject(Project):
    """A project whose tables are read from topics."""

    def __init__(self, folder: Path, broker: KafkaBroker, topics: str | list[str], **table: Any) -> None:
        self.broker = broker
        self.topics = topics
        self.more: dict[str, Any] = {}
        super().__init__(folder, {"shop.products": {"key": ["id"], **table}})

    def write(self, tables: dict[str, Any], **options: Any) -> None:
        source = {"type": "kafka", "brokers": self.broker.address, "topics": self.topics, "format": "debezium-json"}
        source |= self.more
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
    assert run_once(load(tmp_path / "nevermore.yaml")).found_nothing_new
    broker.produce("orders", [sent("d", 1), sent("c", 500, "z")])
    assert the(project.run()).events == {"d": 1, "c": 1}
    assert project.rows() == [row for row in expected if row["id"] != 1] + [{"id": 500, "name": "z"}]


def test_small_batches_and_new_partitions(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("grows", 1)
    project = KafkaProject(tmp_path, broker, "grows", memory_limit_bytes="1MiB")
    broker.produce("grows", [sent("c", i, "x" * 500) for i in range(1_000)])  # ten batches
    assert the(project.run()).events == {"c": 1_000}
    broker.add_partitions("grows", 3)
    for number in range(3):
        broker.produce("grows", [sent("c", 10_000 * (number + 1) + i) for i in range(20)], partition=number)
    assert the(project.run()).events == {"c": 60}
    assert len(project.rows()) == 1_060


@pytest.mark.parametrize("backoff", [None, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_client_that_has_fetched_enough_goes_on_at_once(
    broker: KafkaBroker, tmp_path: Path, backoff: int | None
) -> None:
    broker.create_topic("quick")
    broker.produce("quick", [(None, b"x" * 1_000)] * 10_000)
    project = KafkaProject(tmp_path, broker, "quick")
    project.more = {} if backoff is None else {"properties": {"fetch.queue.backoff.ms": backoff}}
    project.write({"shop.products": {}})
    source = load(tmp_path / "nevermore.yaml").tables["shop.products"].source
    began = time.monotonic()
    with closing(KafkaTopics(source)) as topics:
        assert sum(batch.raw.num_events for batch in topics.batches(None, 1024**2)) == 10_000
    assert (time.monotonic() - began < 5) == (
        backoff is None
    )  # 0.3 s on a quiet machine; 9 s with the default of the client


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_a_connection_that_falls_silent_is_replaced(tmp_path: Path) -> None:
    port = free_port()
    with cut_proxy(port) as proxy:
        broker = KafkaBroker(tmp_path)
        broker.listen(port, advertised=proxy.port)
        try:
            broker.start()
            broker.create_topic("silent")
            broker.produce("silent", [(None, b"x" * 1_000)] * 10_000)
            source = KafkaSource(type="kafka", brokers=f"127.0.0.1:{proxy.port}", topics="silent")
            with closing(KafkaTopics(source)) as topics:
                batches = topics.batches(None, 1024**2)
                first = next(batches).raw.num_events
                proxy.silence()
                assert first + sum(batch.raw.num_events for batch in batches) == 10_000
        finally:
            broker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_partitions_are_read_again_and_again_by_one_connection(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nevermore.pipelines.sources.kafka._SILENCE_SECONDS", 5.0)
    broker.create_topic("again", 3)
    for number, count in enumerate((5_000, 15_000, 30_000)):
        broker.produce("again", [(None, b"x" * 200)] * count, partition=number)
    source = KafkaSource(type="kafka", brokers=broker.address, topics="again")
    with closing(KafkaTopics(source)) as topics:
        for _ in range(5):
            assert sum(batch.raw.num_events for batch in topics.batches(None, 1024**2)) == 50_000


def test_messages_of_aborted_transactions_are_not_read(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("transactions")
    project = KafkaProject(tmp_path, broker, "transactions")
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "one"})
    producer.init_transactions(30)
    for key, commits in ((1, True), (2, False), (3, True), (4, False)):
        producer.begin_transaction()
        sent_key, value = sent("c", key)
        producer.produce("transactions", value, sent_key)
        producer.flush(300)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    assert the(project.run()).events == {"c": 2}
    assert [row["id"] for row in project.rows()] == [1, 3]
    position = KafkaPosition.from_json(str(the(project.run()).position))
    assert position.offsets["transactions", 0] == 8  # four messages, and a marker behind each


@pytest.mark.slow
def test_ranges_of_offsets_are_read_alike_every_time(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("ranges")
    source = load(KafkaProject(tmp_path, broker, "ranges").folder / "nevermore.yaml").tables["shop.products"].source
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "ranges"})
    producer.init_transactions(30)
    for count, commits in ((3, True), (4, False), (2, True), (1, False)):
        producer.begin_transaction()
        for number in range(count):
            producer.produce("ranges", f"{count}-{number}".encode())
        producer.flush(300)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    producer.begin_transaction()
    producer.produce("ranges", b"open")
    producer.flush(300)
    with closing(KafkaTopics(source)) as topics:
        _, found = topics.ranges(None)
        assert found == [
            (("ranges", 0), 0, 14)
        ]  # ten messages and a marker behind each transaction; none of the open one
        whole = ["3-0", "3-1", "3-2", "2-0", "2-1"]
        for step in (1, 2, 5, 14):
            read = []
            for start in range(0, 14, step):
                part = OffsetRange(("ranges", 0), start, min(start + step, 14))
                (batch,) = topics.messages_between(part, 1024**2)
                read += [document.decode() for document in batch[0].documents.to_pylist()]
                assert batch[1] == part.stop
            assert read == whole
    producer.abort_transaction(30)


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


@pytest.mark.slow
def test_topics_with_tables_of_one_name_become_one_mirror_only_if_the_config_says_so(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    broker.create_topic("a.same")
    project = KafkaProject(tmp_path, broker, "^[ab][.]same")
    project.write({"shop.*": {"key": ["id"]}})
    broker.produce("a.same", [sent("c", 1), sent("c", 2)])
    assert the(project.run()).events == {"c": 2}
    broker.create_topic("b.same")
    broker.produce("b.same", [sent("c", 1, "other"), sent("c", 3)])
    broker.produce("a.same", [sent("u", 2, "b")])
    for _ in range(2):
        assert "topics a.same and b.same both have events of shop.products" in str(the(project.run()).error)
        assert project.rows() == [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]
    project.more = {"merge_topics": True}
    project.write({"shop.*": {"key": ["id"]}})
    assert the(project.run()).events == {"c": 2, "u": 1}
    assert [row["id"] for row in project.rows()] == [1, 2, 3]
    assert the(project.run()).status == "nothing new"


def test_messages_with_the_frame_of_a_schema_registry(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("framed")
    project = KafkaProject(tmp_path, broker, "framed")
    frame = b"\0" + (7).to_bytes(4, "big")
    for number, count in enumerate((5, 4, 1)):  # Arrow slices an even number of values otherwise than an odd one
        broker.produce("framed", [(None, frame + sent("c", 10 * number + i)[1]) for i in range(count)])
        assert the(project.run()).events == {"c": count}


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


def test_a_load_goes_on_behind_messages_that_were_removed(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("short.loaded", 2)
    project = KafkaProject(tmp_path, broker, "short.loaded")
    broker.produce("short.loaded", [sent("c", i) for i in range(5)], partition=0)
    broker.produce("short.loaded", [sent("c", 50)], partition=1)
    project.run()
    broker.produce("short.loaded", [sent("c", i) for i in range(5, 20)], partition=0)
    broker.await_all(broker.admin.delete_records([TopicPartition("short.loaded", 0, 12)]))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"id": i, "name": "l"}) + "\n" for i in range(3, 10)))
    called(
        tmp_path,
        "resync",
        "shop.products",
        "--snapshot-source",
        str(tmp_path / "rows.jsonl"),
        "--snapshot-format",
        "rows",
    )
    assert [row["id"] for row in project.rows()] == [*range(3, 10)]
    assert the(project.run()).events == {"c": 8}
    assert [row["id"] for row in project.rows()] == [*range(3, 10), *range(12, 20)]


def called(folder: Path, *command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--config", str(folder / "nevermore.yaml")])
    assert not ended.value.code


@pytest.mark.slow
@pytest.mark.parametrize("messages", [2, 5, 50])
def test_a_topic_that_was_created_again_is_an_error_with_a_way_out(
    messages: int, broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = f"again{messages}"
    broker.create_topic(topic)
    project = KafkaProject(tmp_path, broker, topic)
    broker.produce(topic, [sent("c", i) for i in range(5)])
    project.run()
    broker.delete_topic(topic)
    broker.create_topic(topic)
    broker.produce(topic, [sent("c", 100 + i) for i in range(messages)])
    assert "was created again since it was read" in str(the(project.run()).error)
    assert len(project.rows()) == 5
    called(tmp_path, "resync", "shop.products", "--from-source")
    assert [row["id"] for row in project.rows()] == [100 + i for i in range(messages)]
    broker.produce(topic, [sent("d", 100)])
    assert the(project.run()).events == {"d": 1}


@pytest.mark.each(2)
@pytest.mark.parametrize("step", ["add", "end_reload"])
def test_topics_that_are_read_again_leave_the_rows_until_all_is_read(
    step: str, broker: KafkaBroker, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (step, engine) == ("add", "spark"):
        pytest.skip("tasks add what they have read in another way")
    topic = f"kept_{step}_{engine}"
    broker.create_topic(topic)
    project = KafkaProject(tmp_path, broker, topic)
    broker.produce(topic, [sent("c", i) for i in range(5)])
    project.run()
    before = project.rows()
    broker.produce(topic, [sent("u", i, "new") for i in range(5)])
    config = load(tmp_path / "nevermore.yaml")

    whole = getattr(TableIngest, step)

    def stopped(table: TableIngest, *given: Any) -> None:
        if given and set(given[0].counts) == {"t"}:  # the removal of all rows, with which the load begins
            whole(table, *given)
        else:
            raise CommitUnknownError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(TableIngest, step, stopped)
        with pytest.raises(SourceError, match="stopped"):
            resync_from_source(open_catalog(config), config, "shop.products")
    assert project.rows() == before
    assert project.run().exit_code == 0
    assert [row["name"] for row in project.rows()] == ["new"] * 5
    assert run_once(config).found_nothing_new


@pytest.mark.slow
def test_a_key_that_moved_to_a_new_partition_keeps_its_order(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("moved", 2)
    project = KafkaProject(tmp_path, broker, "moved", memory_limit_bytes="1MiB", commit_rows=50)
    broker.produce("moved", [sent("c", i) for i in range(10)], partition=1)
    project.run()
    broker.add_partitions("moved", 3)
    broker.produce("moved", [sent("u", i, "new" + "x" * 3_000) for i in range(10)], partition=2)
    for n in range(20):
        broker.produce("moved", [sent("u", i, f"old{n}" + "x" * 3_000) for i in range(10)], partition=1)
    read = [b"".join(filter(None, batch)) for batch in read_batches(project)]
    has_new = [b"new" in documents for documents in read]
    assert len(has_new) > 3
    assert has_new == sorted(has_new)
    assert not any(b"old" in documents for documents in read[has_new.index(True) + 1 :])
    assert the(project.run()).events == {"u": 210}
    assert {row["name"][:3] for row in project.rows()} == {"new"}


def read_batches(project: KafkaProject) -> list[list[bytes]]:
    """The messages that the next run will read, batch by batch."""
    topics = KafkaTopics(load(project.folder / "nevermore.yaml").tables["shop.products"].source)
    position = ChangeLog(open_catalog(load(project.folder / "nevermore.yaml")), "change_log.shop_products").position
    with closing(topics):
        return [batch.raw.documents.to_pylist() for batch in topics.batches(position, 1 << 15)]


def test_a_transaction_that_is_open_delays_only_what_is_behind_it(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("open", 2)
    project = KafkaProject(tmp_path, broker, "open")
    broker.produce("open", [sent("c", 1)], partition=0)
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "open"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("open", *reversed(sent("c", 2)), partition=0)
    producer.flush(300)
    broker.produce("open", [sent("c", 3)], partition=0)
    broker.produce("open", [sent("c", 4)], partition=1)
    assert the(project.run()).events == {"c": 2}
    assert [row["id"] for row in project.rows()] == [1, 4]
    assert the(project.run()).events == {}
    producer.commit_transaction(30)
    assert the(project.run()).events == {"c": 2}
    assert [row["id"] for row in project.rows()] == [1, 2, 3, 4]


def test_a_table_begins_at_a_time(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("timed", 3, retention_ms="-1")
    producer = Producer({"bootstrap.servers": broker.address})
    for key, (partition, millis) in enumerate([(0, 1_000), (0, 2_000), (0, 3_000), (1, 1_500), (1, 2_500), (2, 1_999)]):
        message_key, value = sent("c", key)
        producer.produce("timed", value, message_key, partition, timestamp=1_700_000_000_000 + millis)
    assert producer.flush(300) == 0
    project = KafkaProject(tmp_path, broker, "timed")
    config = (tmp_path / "nevermore.yaml").read_text()
    (tmp_path / "nevermore.yaml").write_text(
        config.replace("type: kafka", "type: kafka\n      start: 2023-11-14T22:13:22Z")
    )
    assert the(project.run()).events == {"c": 3}
    assert [row["id"] for row in project.rows()] == [1, 2, 4]
    producer.produce("timed", *reversed(sent("c", 9)), partition=2, timestamp=1)
    assert producer.flush(300) == 0
    assert the(project.run()).events == {"c": 1}  # time decides only where a table begins


def test_messages_that_are_larger_than_a_batch(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("large", max_message_bytes="20000000")
    project = KafkaProject(tmp_path, broker, "large", memory_limit_bytes="64MiB")
    large = {"message.max.bytes": 20_000_000}
    broker.produce("large", [sent("c", 1, "x" * 9_000_000), sent("c", 2), sent("c", 3, "y" * 15_000_000)], **large)
    assert the(project.run()).events == {"c": 3}
    assert [len(row["name"]) for row in project.rows()] == [9_000_000, 1, 15_000_000]


def test_keys_and_headers_of_any_kind(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("keys")
    project = KafkaProject(tmp_path, broker, "keys")
    frame = b"\0\0\0\0\7"
    keys = [
        b"\0",
        b"1",
        b"plain text",
        b"\xff\xfe",
        (7).to_bytes(8, "big"),
        frame + b'{"id": 4}',
        frame + b"\x0a",
        b"",
        None,
    ]
    producer = Producer({"bootstrap.servers": broker.address})
    for number, key in enumerate(keys):
        producer.produce("keys", sent("c", number)[1], key, headers={"trace": b"\xff", "none": None})
    assert producer.flush(300) == 0
    report = project.run()
    assert (the(report).events, the(report).quarantined) == ({"c": 9}, 0)


@pytest.mark.slow
def test_what_compaction_left_leads_to_the_same_rows(tmp_path: Path) -> None:
    with running_broker(log_cleaner_backoff_ms="100") as broker:
        compacted = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
        broker.create_topic("compacted", 2, **compacted, delete_retention_ms="0")
        for n in range(30):
            broker.produce("compacted", [sent("c" if n == 0 else "u", i, f"n{n}") for i in range(20)])
        broker.produce("compacted", [m for i in range(0, 20, 2) for m in (sent("d", i), tombstone(i))])
        reader = KafkaProject(tmp_path, broker, "compacted")
        for n in range(300):  # the newest segment is never compacted: write until the others are
            time.sleep(0.2)
            broker.produce("compacted", [sent("u", 1_000 + n, "z")], partition=n % 2)
            read = [document for batch in read_all(reader) for document in batch]
            if len(read) < 300 and not any(document and b'"n5"' in document for document in read):
                break
        assert len(read) < 300
        report = reader.run()
        assert report.exit_code == 0
        assert [row for row in reader.rows() if row["id"] < 1_000] == [
            {"id": i, "name": "n29"} for i in range(1, 20, 2)
        ]


def read_all(project: KafkaProject) -> list[list[bytes | None]]:
    topics = KafkaTopics(load(project.folder / "nevermore.yaml").tables["shop.products"].source)
    with closing(topics):
        return [batch.raw.documents.to_pylist() for batch in topics.batches(None, 1 << 20)]


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("isolation.level", "is set by the source"),
        ("queued.max.messages.kbytes", "is set by the source"),
        ("group.id", "no consumer group is used"),
        ("group.instance.id", "no consumer group is used"),
        ("enable.auto.commit", "no consumer group is used"),
        ("session.timeout.ms", "no consumer group is used"),
        ("partition.assignment.strategy", "no consumer group is used"),
        ("no.such.property", "No such configuration property"),
    ],
)
def test_properties_that_decide_what_is_read_are_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "nevermore.yaml").write_text(
        f"tables:\n  a.b:\n    source: {{type: kafka, brokers: 'x:1', topics: [t], properties: {{{name}: '5'}}}}\n"
    )
    with pytest.raises(PipelineError, match=message):
        raise_first_error(run_once(load(tmp_path / "nevermore.yaml")))


@pytest.mark.parametrize(
    "brokers", ["", "a:1,", ":9092", "a:0", "a:65536", "a:99999", "a:port", "a:9092 b:9092", "[::1", "a/b:1"]
)
def test_brokers_that_the_client_would_take_for_others_are_refused(brokers: str) -> None:
    with pytest.raises(ValueError, match="brokers must be like localhost:9092"):
        KafkaSource.model_validate({"type": "kafka", "brokers": brokers, "topics": "t"})
    for good in ("a", "a:1", "a.b-c_d:65535, [::1]:9092,SASL_SSL://x:1"):
        KafkaSource.model_validate({"type": "kafka", "brokers": good, "topics": "t"})


def raise_first_error(report: IngestReport) -> None:
    for table in report.tables:
        if table.error is not None:
            raise PipelineError(table.error)


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
    broker.delete_topic("init.shop.products")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--config", str(tmp_path / "nevermore.yaml"), "--json"])
    assert ended.value.code == 1


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_columns_of_the_message_are_those_of_the_message_that_wrote_the_row_last(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    names = {"topic": "t", "partition": "p", "offset": "o", "timestamp": "at", "key": "k", "headers": "h"}
    broker.create_topic("headed", 2)
    project = KafkaProject(tmp_path, broker, "headed")
    document = yaml.safe_load((tmp_path / "nevermore.yaml").read_text())
    document["tables"]["shop.products"]["source"]["message_columns"] = names
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(document))
    producer = Producer({"bootstrap.servers": broker.address})
    now = int(time.time()) - 10
    headers = [("a", b"1"), ("a", None), ("b", b"\xff")]
    for at, (message, of_message) in enumerate(
        [
            (sent("c", 1), headers),
            (sent("c", 2), None),
            (sent("u", 1, "b"), headers[2:]),
            (sent("d", 2), None),
            (sent("c", 3), []),
        ]
    ):
        key, value = message
        producer.produce("headed", value, key, 1, timestamp=now * 1_000 + at, headers=of_message)
    assert producer.flush(300) == 0
    report = project.run()
    assert (the(report).error, the(report).events) == (None, {"c": 3, "u": 1, "d": 1})
    at = datetime.fromtimestamp(now, UTC)
    place = {"t": "headed", "p": 1}
    later = {"at": at + timedelta(milliseconds=2), "k": b'{"id": 1}', "h": [{"key": "b", "value": b"\xff"}]}
    last = {"at": at + timedelta(milliseconds=4), "k": b'{"id": 3}', "h": None}
    assert project.rows() == [
        {"id": 1, "name": "b", **place, "o": 2, **later},
        {"id": 3, "name": "a", **place, "o": 4, **last},
    ]
    producer.produce("headed", sent("c", 4)[1], b"x", 0, headers=headers)
    assert producer.flush(300) == 0
    assert the(project.run()).error is None
    assert project.rows()[-1]["h"] == [{"key": key, "value": value} for key, value in headers]


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_a_column_of_the_message_with_the_name_of_another_is_refused(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("clash")
    project = KafkaProject(tmp_path, broker, "clash")
    document = yaml.safe_load((tmp_path / "nevermore.yaml").read_text())
    source = document["tables"]["shop.products"]["source"]
    broker.produce("clash", [sent("c", 1)])
    source["message_columns"] = {"topic": "name"}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(document))
    assert "message_columns: name is a column of the feed" in str(the(project.run()).error)
    source["message_columns"] = {"topic": "x", "key": "x"}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="a column name of its own"):
        load(tmp_path / "nevermore.yaml")
    source["message_columns"] = {"topic": "x"}
    document["tables"]["shop.products"]["ingest"] = {"engine": "spark"}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="Spark adds no message_columns"):
        load(tmp_path / "nevermore.yaml")
    del document["tables"]["shop.products"]["ingest"]
    document["tables"]["shop.products"] |= {"identity": "full"}
    del document["tables"]["shop.products"]["key"]
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="identity: full makes every column a key"):
        load(tmp_path / "nevermore.yaml")


def test_no_batch_ends_between_the_delete_and_the_insert_of_a_change_of_a_key(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    broker.create_topic("keys", 1)
    place = {"db": "shop", "table": "products", "txId": 7, "lsn": 9}
    deleted = {"op": "d", "before": {"id": 1, "name": None}, "after": None, "source": place, "ts_ms": 1}
    inserted = deleted | {"op": "c", "before": None, "after": {"id": 2, "name": "__debezium_unavailable_value"}}
    moved = [(b'{"id": 1}', json.dumps(deleted).encode()), tombstone(1), (b'{"id": 2}', json.dumps(inserted).encode())]
    broker.produce("keys", [sent("c", 1), *moved, sent("d", 2)])
    source = KafkaSource(type="kafka", brokers=broker.address, topics=("keys",), format="debezium-json")
    complete = complete_events_of("debezium-json", {})
    with closing(KafkaTopics(source)) as topics:
        topics._polled = 1
        batches = [batch.raw.source_offset.to_pylist() for batch in topics.batches(None, 1, complete)]
    assert [offset for batch in batches for offset in batch] == [0, 1, 2, 3, 4]
    assert all(batch[-1] not in {1, 2} for batch in batches if batch)
    project = KafkaProject(tmp_path, broker, "keys")
    project.run()
    assert project.rows() == []
