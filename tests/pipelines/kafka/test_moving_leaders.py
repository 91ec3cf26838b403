"""What Kafka calls retriable is waited for at every call, up to the time after which a broker counts as lost."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from nevermore.pipelines.config.sources import KafkaSource
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.sources import kafka
from nevermore.pipelines.sources.kafka import KafkaTopics

PASSING = {
    name: getattr(KafkaError, name)
    for name in (
        "UNKNOWN_TOPIC_OR_PART", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT", "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "NOT_CONTROLLER",
        "KAFKA_STORAGE_ERROR", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE", "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
    )
}  # fmt: skip
LASTING = {
    name: getattr(KafkaError, name)
    for name in ("TOPIC_AUTHORIZATION_FAILED", "INVALID_REQUEST", "_AUTHENTICATION", "_TRANSPORT")
}
CALLS = ("list_topics", "topic", "partition", "describe_topics", "list_offsets", "describe_configs", "consume")


class Cluster:
    """A cluster with a topic of two partitions, whose answer to a call is an error the first times."""

    def __init__(self, call: str, code: int, times: float) -> None:
        self.call, self.code, self.times = call, code, times
        self.asked = 0

    def _error(self, call: str) -> KafkaError | None:
        if call != self.call or self.asked >= self.times:
            return None
        self.asked += 1
        return KafkaError(self.code)

    def _answer(self, call: str, value: Any) -> Future[Any]:
        future: Future[Any] = Future()
        error = self._error(call)
        future.set_result(value) if error is None else future.set_exception(KafkaException(error))
        return future

    def list_topics(self, **_: Any) -> Any:
        if (error := self._error("list_topics")) is not None:
            raise KafkaException(error)
        parts = {n: SimpleNamespace(error=self._error("partition") if n else None) for n in range(2)}
        topic = SimpleNamespace(error=self._error("topic"), partitions=parts)
        return SimpleNamespace(cluster_id="c", topics={"t": topic})

    def describe_topics(self, *_: Any, **__: Any) -> Any:
        described = SimpleNamespace(topic_id="id", authorized_operations=[SimpleNamespace(name="READ")])
        return {"t": self._answer("describe_topics", described)}

    def list_offsets(self, asked: Any, **_: Any) -> Any:
        return {place: self._answer("list_offsets", SimpleNamespace(offset=1)) for place in asked}

    def describe_configs(self, asked: Any, **_: Any) -> Any:
        entries = {"cleanup.policy": "delete", "retention.ms": "3600000"}
        return {
            r: self._answer("describe_configs", {n: SimpleNamespace(value=v) for n, v in entries.items()})
            for r in asked
        }

    def consume(self, *_: Any) -> list[Any]:
        if (error := self._error("consume")) is not None:
            return [SimpleNamespace(error=lambda: error)]
        return [
            SimpleNamespace(
                error=lambda: None,
                topic=lambda: "t",
                partition=lambda: 0,
                offset=lambda: 0,
                value=lambda: b"v",
                key=lambda: None,
            )
        ]

    def assign(self, places: Any) -> None: ...
    def unassign(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KafkaTopics]]:
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += max(seconds, 1)

    monkeypatch.setattr(kafka, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))

    def made(call: str, code: int, times: float = 3) -> KafkaTopics:
        cluster = Cluster(call, code, times)
        topics = KafkaTopics(KafkaSource(type="kafka", brokers="b:1", topics=("t",)))
        consume = cluster.consume

        def ticking(count: int, seconds: float) -> list[Any]:
            sleep(1)
            return consume(count, seconds)

        cluster.consume = ticking  # type: ignore[method-assign]
        monkeypatch.setattr(topics, "_asking", lambda: cluster)
        monkeypatch.setattr(topics, "_connected", lambda _: cluster)
        topics.asked = cluster  # type: ignore[attr-defined]
        return topics

    return made


def use(topics: KafkaTopics, call: str) -> None:
    if call == "consume":
        found = list(topics._messages(topics._connected(0), {("t", 0): 0}, {("t", 0): 1}))
        assert [partition for partition, _ in found] == [("t", 0)]
        return
    cluster, facts = topics.facts()
    assert cluster == "c"
    assert facts["t"].low == {0: 1, 1: 1}
    assert facts["t"].retention_hours == 1


@pytest.mark.each(2)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_waited_for(connect: Callable[..., KafkaTopics], name: str, call: str) -> None:
    topics = connect(call, PASSING[name])
    use(topics, call)
    assert topics.asked.asked == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", CALLS)
def test_what_does_not_pass_in_time_is_an_error(connect: Callable[..., KafkaTopics], call: str) -> None:
    topics = connect(call, KafkaError.NOT_LEADER_FOR_PARTITION, float("inf"))
    with pytest.raises(SourceError, match=r"(?i)not leader|returned nothing for 60 s"):
        use(topics, call)
    assert topics.asked.asked > 20  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", [c for c in CALLS if c not in {"topic", "partition", "describe_configs"}])
@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_is_an_error_at_once(connect: Callable[..., KafkaTopics], name: str, call: str) -> None:
    topics = connect(call, LASTING[name], float("inf"))
    with pytest.raises(SourceError):
        use(topics, call)
    assert topics.asked.asked <= 2  # type: ignore[attr-defined]
