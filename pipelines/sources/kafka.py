"""Topics of a Kafka cluster as a source: reads all messages that exist now after a position, in batches of bounded size.

The position is the next offset of every partition. It is recorded by the commits of the change logs; the cluster keeps
nothing about what was read. Messages of aborted transactions are never returned.
"""

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from nevermore.pipelines.config.sources import KafkaSource
from nevermore.pipelines.decode.batches import CompleteEvents, RawEvents, SourceBatch, lost_events
from nevermore.pipelines.decode.feed import Decided
from nevermore.pipelines.decode.schema_registry import Unframed, unframed
from nevermore.pipelines.errors import ConfigError, PipelineError, PositionLostError, SourceError
from nevermore.pipelines.sources.files import OPEN_PAIR
from nevermore.pipelines.sources.live import Finding
from nevermore.pipelines.sources.table_position import parse_position
from nevermore.scan_core.io import require_package

VERSION = 1
_ANSWER_SECONDS = 15.0
"""How long the cluster may take to answer a question about its topics."""
_SILENCE_SECONDS = 60.0
"""A partition that returns neither messages nor its end for so long is taken for unreachable."""
_POLL_SECONDS = 0.1
_MAX_MESSAGES = 500_000
"""Messages in a batch: each takes some hundred bytes in addition to its content."""
_POLLED_MESSAGES = 10_000
_FIRST_POLLED_MESSAGES = 100
"""As long as nothing is known of their size."""
_QUEUE_SHARE = 4
"""Share of a batch that the client fetches ahead, and that is taken from it at a time."""
_MIN_QUEUE_KILOBYTES = 256
_MIN_FETCH_BYTES = 1 << 20
_FULL_QUEUE_MILLISECONDS = 10
"""How long the client waits once it has fetched enough ahead. Its default is a second, in which a small queue is read a hundred times."""
_UNANSWERED_MILLISECONDS = 40_000
"""A request without an answer is sent again through another connection after this time. The client's default is that after which we give up."""
_MAX_ANSWER_BYTES = 1_000_000_000
"""A message that is larger than a batch is a batch of its own, as large as brokers allow."""
_CREATED_AGAIN = (
    "was created again since it was read, so its offsets mean other messages; read the tables again (nevermore resync TABLE "
    "--from-source)"
)
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
"""A header of a message: there may be several with the same key, in an order."""
_COLUMNS: Mapping[str, tuple[Callable[[Any], Any], pa.DataType]] = {
    "topic": (lambda message: message.topic(), pa.string()),
    "partition": (lambda message: message.partition(), pa.int32()),
    "offset": (lambda message: message.offset(), pa.int64()),
    "timestamp": (lambda message: _microseconds(*message.timestamp()), pa.timestamp("us", "UTC")),
    "key": (lambda message: message.key(), pa.binary()),
    "headers": (lambda message: message.headers(), pa.list_(pa.field("element", _HEADER))),
}
"""What tables may have of a message: see `message_columns` of the source."""
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers answer that do not tell topics of the same name apart (before Kafka 2.8)."""
_SECRET = re.compile(r"password|secret|key|token|oauthbearer|jaas", re.IGNORECASE)

_library = partial(require_package, "confluent_kafka", "a source of type kafka", "nevermore-iceberg[kafka]")
"""The client, which is loaded only by those who read topics."""

_PASSING = frozenset(
    [
        "UNKNOWN_TOPIC_OR_PART",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "REQUEST_TIMED_OUT",
        "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "NOT_CONTROLLER",
        "KAFKA_STORAGE_ERROR",
        "FETCH_SESSION_ID_NOT_FOUND",
        "INVALID_FETCH_SESSION_EPOCH",
        "LISTENER_NOT_FOUND",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "OFFSET_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "THROTTLING_QUOTA_EXCEEDED",
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_ID",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
        "_WAIT_CACHE",
        "_NO_OFFSET",
    ]
)
"""Errors that Kafka calls retriable, and those of a client whose metadata is on its way."""
T = TypeVar("T")
Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages of one partition of a topic.

    Attributes:
        partition: topic and number of the partition.
        start: the first offset.
        stop: the offset after the last one; the cluster has decided about all transactions before it.
    """

    partition: Partition
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class KafkaPosition:
    """The position in the topics of a cluster.

    Attributes:
        cluster: identifier of the cluster.
        offsets: next offset of each partition that was read.
        ids: identifier of each topic that was read, another one after the topic was deleted and created again.
        decided: what was decided while reading up to here.
    """

    cluster: str
    offsets: Mapping[Partition, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    decided: Decided = field(default_factory=Decided)

    def to_json(self) -> str:
        """The position as JSON text."""
        topics: dict[str, dict[str, int]] = defaultdict(dict)
        for (topic, number), offset in sorted(self.offsets.items()):
            topics[topic][str(number)] = offset
        document = {
            "source": "kafka",
            "version": VERSION,
            "cluster": self.cluster,
            "topics": topics,
            **({"ids": dict(sorted(self.ids.items()))} if self.ids else {}),
            **self.decided.as_members(),
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "KafkaPosition":
        """Parse a position.

        Raises:
            PositionLostError: not a position of Kafka, or of an unknown version.
        """

        def read(document: dict[str, Any]) -> "KafkaPosition":
            return cls(
                cluster=document["cluster"],
                offsets={
                    (topic, int(number)): int(offset)
                    for topic, of_topic in document["topics"].items()
                    for number, offset in of_topic.items()
                },
                ids=dict(document.get("ids", {})),
                decided=Decided.of_members(document),
            )

        return parse_position(text, "kafka", "Kafka", VERSION, read)


@dataclass
class _Pending:
    """Messages that were received and not returned yet, by partition, and the next offsets of all partitions."""

    offsets: dict[Partition, int]
    messages: dict[Partition, list[Any]] = field(default_factory=lambda: defaultdict(list))
    size: int = 0
    count: int = 0

    def add(self, partition: Partition, messages: Sequence[Any], *, with_headers: bool) -> None:
        """Add messages of a partition as confluent-kafka returns them; `with_headers` counts the size of these."""
        self.messages[partition] += messages
        self.offsets[partition] = messages[-1].offset() + 1
        self.size += sum(len(message) + len(message.key() or b"") for message in messages)
        if with_headers:
            self.size += sum(len(name) + len(value or b"") for m in messages for name, value in m.headers() or ())
        self.count += len(messages)


@dataclass(frozen=True)
class _Ends:
    """What a cluster says about the topics of a source.

    Attributes:
        cluster: its identifier.
        ids: identifier of each topic, as far as the brokers have such.
        low: oldest offset of each partition.
        high: offset behind the last message of each partition that is not part of an open transaction.
        start: where a table that was never read begins.
    """

    cluster: str
    ids: Mapping[str, str]
    low: Mapping[Partition, int]
    high: Mapping[Partition, int]
    start: Mapping[Partition, int]


@dataclass(frozen=True)
class TopicFacts:
    """What the cluster says about a topic.

    Attributes:
        low: oldest offset of each partition.
        rights: names of the operations that are allowed, such as `READ`; empty if the cluster does not tell.
        is_compacted: whether the newest message of each key is kept; None if the user may not know.
        retention_hours: how long messages are kept; None if for ever, or if the user may not know.
    """

    low: Mapping[int, int]
    rights: frozenset[str]
    is_compacted: bool | None
    retention_hours: float | None


class KafkaTopics:
    """The topics of a source. Mutable: keeps the connection from one round to the next."""

    def __init__(self, source: KafkaSource) -> None:
        """Nothing is connected yet."""
        self.source = source
        self._consumer: Any = None
        self._admin: Any = None
        self._queue_kilobytes = 0
        self._polled = _FIRST_POLLED_MESSAGES
        self._faults: list[str] = []

    def batches(
        self,
        position: str | None,
        limit_bytes: int,
        complete: CompleteEvents | None = None,
        waiting: dict[str, int] | None = None,
        *,
        is_text: bool | None = None,
    ) -> Iterator[SourceBatch]:
        """Read all messages that exist now and follow a position.

        Partitions that were added to a topic since are read after the others: rows whose key they have now may have older
        changes there.

        Args:
            position: of all tables that read together; None to read the topics from their beginning.
            limit_bytes: size of the messages of a batch.
            complete: how many events of a partition are complete; the others wait for the next ones.
            waiting: receives the number of events that wait at the end, by reason.
            is_text: whether the events are text, which a frame of a schema registry may precede; None if that is not known.

        Raises:
            SourceError: the cluster cannot be reached, a topic does not exist, or messages that were not read yet have been
                removed.
            PositionLostError: the position belongs to another cluster, or to topics that were created again since.
        """
        known, turns = self._unread(position)
        for batch in self._read(known, turns, limit_bytes, complete, waiting, is_text=is_text):
            if batch.raw.num_events or batch.position_after.offsets != known.offsets:
                yield batch

    def _read(
        self,
        known: KafkaPosition,
        turns: Sequence[Mapping[Partition, tuple[int, int]]],
        limit_bytes: int,
        complete: CompleteEvents | None,
        waiting: dict[str, int] | None,
        *,
        is_text: bool | None,
        ends: Mapping[Partition, int] | None = None,
    ) -> Iterator[SourceBatch]:
        """Read from the first to the end offset of partitions, those of each turn after those before it.

        Once all is read, the next offsets are `ends`, unless events wait.
        """
        consumer = self._connected(limit_bytes)
        pending = _Pending(dict(known.offsets))
        for turn in turns:
            pending.offsets |= {partition: start for partition, (start, _) in turn.items()}
            unread = {partition: end for partition, (start, end) in turn.items() if start < end}
            for partition, messages in self._messages(consumer, pending.offsets, unread):
                pending.add(partition, messages, with_headers="headers" in self.source.message_columns)
                self._polled = min(
                    _POLLED_MESSAGES, limit_bytes * pending.count // (pending.size * _QUEUE_SHARE + 1) + 1
                )
                if pending.size >= limit_bytes or pending.count >= _MAX_MESSAGES:
                    batch, pending = self._batch(pending, known, complete, is_text=is_text)
                    yield batch
        pending.offsets |= ends or {}
        batch, pending = self._batch(pending, known, complete, is_text=is_text, is_end=True)
        if pending.count and waiting is not None:
            waiting[OPEN_PAIR] = pending.count
        yield batch

    def ranges(self, position: str | None) -> tuple[KafkaPosition, list[tuple[Partition, int, int]]]:
        """(the position, with the partitions that were added since; partition, first and end offset of what follows, in order).

        Transactions that are still open, and what follows them, come later.

        Raises:
            SourceError: as `batches`.
            PositionLostError: as `batches`.
        """
        known, turns = self._unread(position)
        found = [(partition, *ends) for turn in turns for partition, ends in sorted(turn.items())]
        offsets = {**known.offsets, **{partition: start for partition, start, _ in found}}
        return replace(known, offsets=offsets), [(p, start, end) for p, start, end in found if start < end]

    def _unread(self, position: str | None) -> tuple[KafkaPosition, list[dict[Partition, tuple[int, int]]]]:
        """(the position; first and end offset of what follows it in each partition, those before that are read first)."""
        ends = self._ends()
        known = self._known(position, ends)
        read_topics = {topic for topic, _ in known.offsets}
        added = {(topic, n) for topic, n in ends.low if topic in read_topics and (topic, n) not in known.offsets}
        if added:
            # What these have by now was sent after what moved to them, which the others have by then.
            ends = replace(ends, high={**self._ends().high, **{partition: ends.high[partition] for partition in added}})
        starts = self._starts(ends, known)
        turns = [{p: (starts[p], ends.high[p]) for p in sorted(turn)} for turn in (starts.keys() - added, added)]
        return replace(known, ids={**known.ids, **ends.ids}), turns

    def messages_between(
        self,
        given: OffsetRange,
        limit_bytes: int,
        complete: CompleteEvents | None = None,
        waiting: dict[str, int] | None = None,
        *,
        is_text: bool | None = None,
    ) -> Iterator[tuple[RawEvents, int]]:
        """Read the messages of a range: the same ones whenever it is called.

        Args:
            given: the range.
            limit_bytes: size of the messages of a batch.
            complete: as in `batches`.
            waiting: as in `batches`.
            is_text: as in `batches`.

        Yields:
            (events of a batch, the next offset after them).

        Raises:
            SourceError: as `batches`.
        """
        turn, ends = {given.partition: (given.start, given.stop)}, {given.partition: given.stop}
        for batch in self._read(KafkaPosition(""), [turn], limit_bytes, complete, waiting, is_text=is_text, ends=ends):
            yield batch.raw, batch.position_after.offsets[given.partition]

    def names(self) -> list[str]:
        """All topics of the cluster.

        Raises:
            SourceError: the cluster cannot be reached.
        """
        return sorted(self._listed().topics)

    def unread(self, position: str | None) -> int:
        """How many messages follow a position, as far as offsets tell; some may be marks of transactions.

        Raises:
            SourceError: as `batches`.
            PositionLostError: as `batches`.
        """
        ends = self._ends()
        starts = self._starts(ends, self._known(position, ends))
        return sum(max(ends.high[partition] - offset, 0) for partition, offset in starts.items())

    def has_news(self, position: str) -> bool:
        """Whether there are messages behind a position; asks for the ends of the partitions only.

        Raises:
            SourceError: as `batches`.
            PositionLostError: as `batches`.
        """
        ends = self._ends()
        known = self._known(position, ends)
        starts = self._starts(ends, known)
        return {**known.offsets, **starts} != known.offsets or any(ends.high[p] > at for p, at in starts.items())

    def news(self, positions: Collection[str | None]) -> str | None:
        """What is new for tables with these positions: a text that is another one when more has come; None if nothing is.

        Raises:
            SourceError: as `batches`.
            PositionLostError: as `batches`.
        """
        unread = {position: self.unread(position) for position in positions}
        new = {p: count for p, count in unread.items() if (count if p is None else self.has_news(p))}
        return ", ".join(sorted(f"{count} after {position}" for position, count in new.items())) or None

    def restart(self, position: str) -> str:
        """The position of a table that is read again from the oldest messages; it keeps what was decided for its events.

        Raises:
            SourceError: the cluster cannot be reached, or a topic does not exist.
        """
        ends = self._ends()
        return replace(KafkaPosition.from_json(position), cluster=ends.cluster, offsets={}, ids=ends.ids).to_json()

    def after_load(self, position: str) -> str:
        """The position of a table of which a full load has what the topics no longer have.

        It is that of before, but at the oldest messages of partitions and topics in which it means nothing any more.

        Raises:
            SourceError: the cluster cannot be reached, or a topic does not exist.
        """
        ends, known = self._ends(), KafkaPosition.from_json(position)
        is_same = known.cluster == ends.cluster
        same = {topic for topic, number in ends.ids.items() if is_same and known.ids.get(topic, number) == number}
        kept = {
            (topic, number): offset
            for (topic, number), offset in known.offsets.items()
            if (topic, number) not in ends.low
            or (topic in same and ends.low[topic, number] <= offset <= ends.high[topic, number])
        }
        offsets = {**(ends.low if known.offsets else {}), **(kept if is_same else {})}
        return replace(known, cluster=ends.cluster, offsets=offsets, ids=ends.ids).to_json()

    def facts(self) -> tuple[str, dict[str, TopicFacts]]:
        """The identifier of the cluster, and facts about each topic.

        Raises:
            SourceError: the cluster cannot be reached, or a topic does not exist.
        """
        ends = self._ends()
        names = list(dict.fromkeys(topic for topic, _ in ends.low))
        described = self._described(names, include_authorized_operations=True)
        rights = {
            name: frozenset(r.name for r in topic.authorized_operations or ()) for name, topic in described.items()
        }
        settings = self._settings(names)
        facts = {}
        for name in names:
            known = settings.get(name, {})
            policy = known.get("cleanup.policy")
            is_removed = policy is not None and "delete" in policy and int(known["retention.ms"]) >= 0
            facts[name] = TopicFacts(
                low={number: offset for (topic, number), offset in ends.low.items() if topic == name},
                rights=rights[name],
                is_compacted=None if policy is None else "compact" in policy,
                retention_hours=int(known["retention.ms"]) / 3_600_000 if is_removed else None,
            )
        return ends.cluster, facts

    def _settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Settings of those topics of which the user may know them."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]

        def ask() -> dict[str, dict[str, str]]:
            found: dict[str, dict[str, str]] = {}
            for resource, future in self._asking().describe_configs(asked, request_timeout=_ANSWER_SECONDS).items():
                try:
                    found[resource.name] = {name: entry.value for name, entry in future.result().items()}
                except _library().KafkaException as error:
                    if _may_pass(error.args[0]):
                        raise
                    continue  # a right of its own, which reading does not need
            return found

        return self._answered("cannot find the settings of the topics of the Kafka cluster", ask)

    def close(self) -> None:
        """Close the connections."""
        self._admin = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _connected(self, limit_bytes: int) -> Any:
        """The connection, made again for batches of another size, as the client fetches ahead by its settings."""
        queue = max(limit_bytes // 1024 // _QUEUE_SHARE, _MIN_QUEUE_KILOBYTES)
        if queue != self._queue_kilobytes:
            self.close()
        if self._consumer is None:
            self._queue_kilobytes = queue
            properties = {
                "group.id": "nevermore",  # required by the library; with explicit offsets, the group is never joined
                "fetch.max.bytes": max(queue * 1024, _MIN_FETCH_BYTES),
                "fetch.queue.backoff.ms": _FULL_QUEUE_MILLISECONDS,
                "socket.timeout.ms": _UNANSWERED_MILLISECONDS,
                "receive.message.max.bytes": _MAX_ANSWER_BYTES,
                **self._properties(),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": queue,
            }
            with self._refused():
                self._consumer = _library().Consumer(properties, logger=_silent_logger())
        return self._consumer

    def _asking(self) -> Any:
        """The connection for questions about topics and offsets."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            with self._refused():
                self._admin = AdminClient(self._properties(), logger=_silent_logger())
        return self._admin

    def _properties(self) -> dict[str, Any]:
        return {
            "client.id": "nevermore",
            **self.source.properties,
            "bootstrap.servers": self.source.brokers,
            "error_cb": lambda error: self._faults.append(error.str()),
        }

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except _library().KafkaException as error:
            raise ConfigError(f"properties of the Kafka source: {self._shown(_reason(error))}") from error

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Turn errors of the library into errors that say what could not be done and why."""
        try:
            yield
        except _library().KafkaException as error:
            self.close()
            seen = f" ({self._faults[-1]})" if self._faults else ""
            self._faults.clear()
            raise SourceError(self._shown(f"{what} at {self.source.brokers}: {_reason(error)}{seen}")) from error

    def _shown(self, text: str) -> str:
        """A text of the library without secrets of the properties."""
        for name, value in self.source.properties.items():
            if _SECRET.search(name) and isinstance(value, str) and value:
                text = text.replace(value, "***")
        return text

    def _answered(self, what: str, ask: Callable[[], T]) -> T:
        """The answer to a question; it is asked again while leaders move or metadata is on its way.

        Raises:
            SourceError: the cluster cannot be reached, refuses to answer, or is not ready for too long.
        """
        until = time.monotonic() + _SILENCE_SECONDS
        with self._reported(what):
            while True:
                try:
                    return ask()
                except _library().KafkaException as error:
                    if not _may_pass(error.args[0]) or time.monotonic() > until:
                        raise
                time.sleep(_POLL_SECONDS)

    def _listed(self) -> Any:
        def ask() -> Any:
            found = self._asking().list_topics(timeout=_ANSWER_SECONDS)
            for name, topic in found.topics.items():
                errors = (topic.error, *(partition.error for partition in topic.partitions.values()))
                waits = next((error for error in errors if error is not None and _may_pass(error)), None)
                if waits is not None and any(map(partial(_is_named, name), self.source.topics)):
                    raise _library().KafkaException(waits)
            return found

        return self._answered("cannot list the topics of the Kafka cluster", ask)

    def _described(self, names: Sequence[str], **options: Any) -> dict[str, Any]:
        from confluent_kafka import TopicCollection

        def ask() -> dict[str, Any]:
            asked = self._asking().describe_topics(
                TopicCollection(list(names)), request_timeout=_ANSWER_SECONDS, **options
            )
            return {name: future.result() for name, future in asked.items()}

        return self._answered("cannot find the topics of the Kafka cluster", ask)

    def _topics(self) -> tuple[str, dict[str, Any]]:
        """The identifier of the cluster, and the topics of the source."""
        found = self._listed()
        topics = {name: topic for name, topic in found.topics.items() if topic.error is None}
        chosen: dict[str, Any] = {}
        for wanted in self.source.topics:
            if wanted.startswith("^"):
                names = [name for name in topics if _is_named(name, wanted)]
                if not names:
                    raise SourceError(f"no topic of the Kafka cluster matches {wanted}")
            elif wanted in topics:
                names = [wanted]
            else:
                near = get_close_matches(wanted, topics, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise SourceError(f"the Kafka cluster at {self.source.brokers} has no topic {wanted}{hint}")
            chosen |= {name: topics[name] for name in names}
        return found.cluster_id, chosen

    def _ends(self) -> _Ends:
        """What the cluster says now; the oldest offsets are asked for last, so that nothing is removed unnoticed."""
        cluster, chosen = self._topics()
        partitions = sorted((name, number) for name, topic in chosen.items() for number in topic.partitions)
        ids = {name: str(topic.topic_id) for name, topic in self._described(list(chosen)).items()}
        from confluent_kafka.admin import OffsetSpec

        high = self._offsets(partitions, OffsetSpec.latest())
        newer = {}
        if self.source.start is not None:
            moment = OffsetSpec.for_timestamp(int(self.source.start.timestamp() * 1_000))
            found = self._offsets(partitions, moment)
            # Where nothing is as new, what comes next is.
            newer = {partition: high[partition] if offset < 0 else offset for partition, offset in found.items()}
        low = self._offsets(partitions, OffsetSpec.earliest())
        return _Ends(
            cluster=cluster,
            ids={name: own for name, own in ids.items() if own != _NO_TOPIC_ID},
            low=low,
            high={partition: max(offset, low[partition]) for partition, offset in high.items()},
            start={partition: max(newer.get(partition, 0), offset) for partition, offset in low.items()},
        )

    def _offsets(self, partitions: Sequence[Partition], wanted: Any) -> dict[Partition, int]:
        """An offset of each partition."""
        from confluent_kafka import IsolationLevel

        asked = {_library().TopicPartition(topic, number): wanted for topic, number in partitions}
        committed = IsolationLevel.READ_COMMITTED

        def ask() -> dict[Partition, int]:
            futures = self._asking().list_offsets(asked, isolation_level=committed, request_timeout=_ANSWER_SECONDS)
            return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}

        return self._answered("cannot find the offsets of partitions", ask)

    @staticmethod
    def _known(position: str | None, ends: _Ends) -> KafkaPosition:
        """A position, which must be one in these topics."""
        if position is None:
            return KafkaPosition(ends.cluster)
        known = KafkaPosition.from_json(position)
        if known.cluster != ends.cluster:
            raise PositionLostError(
                f"this is cluster {ends.cluster}, and the tables were read from cluster {known.cluster}, whose offsets mean "
                "other messages; use the former cluster, or read the tables again from this one (nevermore resync TABLE "
                "--from-source)"
            )
        again = sorted(name for name, own in ends.ids.items() if known.ids.get(name, own) != own)
        if again:
            raise PositionLostError(f"topic {again[0]} {_CREATED_AGAIN}")
        return known

    @staticmethod
    def _starts(ends: _Ends, known: KafkaPosition) -> dict[Partition, int]:
        """Where to read each partition from."""
        read_topics = {topic for topic, _ in known.offsets}
        starts = {}
        for (topic, number), low in ends.low.items():
            if topic not in read_topics:
                starts[topic, number] = ends.start[topic, number]
                continue
            offset = known.offsets.get((topic, number), 0)
            if offset < low:
                raise SourceError(
                    f"partition {number} of topic {topic}: the messages from offset {offset} to {low - 1} were removed before "
                    "they were read, so changes are lost; load the tables again (nevermore resync TABLE, with --snapshot-source "
                    "FILES, or with --from-source if the topic has all rows), and let the cluster keep messages for longer "
                    "(retention.ms)"
                )
            if offset > ends.high[topic, number]:
                raise PositionLostError(
                    f"topic {topic} {_CREATED_AGAIN}: partition {number} ends at offset {ends.high[topic, number]}, but was read "
                    f"up to {offset}"
                )
            starts[topic, number] = offset
        return starts

    def _messages(
        self, consumer: Any, offsets: dict[Partition, int], unread: Mapping[Partition, int]
    ) -> Iterator[tuple[Partition, Sequence[Any]]]:
        """Messages of partitions in turn, up to where they ended; moves `offsets` over ends without messages."""
        library = _library()
        left = dict(unread)
        if not left:
            return
        with self._reported("cannot read from the Kafka cluster"):
            consumer.assign([library.TopicPartition(t, n, offsets[t, n]) for t, n in left])
            try:
                heard = time.monotonic()
                while left:
                    found = consumer.consume(self._polled, _POLL_SECONDS)
                    for place, run in groupby(found, _place_of):
                        messages = list(run)
                        if place is None:
                            continue
                        heard = time.monotonic()
                        (partition, is_end), end = place, left.get(place[0], 0)
                        if is_end:
                            # behind the last message may be markers of transactions, which have offsets, too
                            offsets[partition] = max(offsets[partition], min(messages[0].offset(), end))
                        elif read := [message for message in messages if message.offset() < end]:
                            yield partition, read
                            heard = time.monotonic()  # while messages were worked on, nobody listened
                        if is_end or messages[-1].offset() + 1 >= end:
                            self._leave(consumer, left, partition)
                    if time.monotonic() - heard > _SILENCE_SECONDS:
                        raise self._silent(left)
            finally:
                consumer.unassign()

    @staticmethod
    def _leave(consumer: Any, left: dict[Partition, int], partition: Partition) -> None:
        """Read no more of a partition in this round."""
        if left.pop(partition, None) is not None and left:
            # Of what was paused, and is assigned again soon after, the client may never return anything.
            consumer.incremental_unassign([_library().TopicPartition(*partition)])

    def _silent(self, left: Mapping[Partition, int]) -> SourceError:
        topic, number = next(iter(left))
        seen = f" ({self._shown(self._faults[-1])})" if self._faults else ""
        return SourceError(
            f"partition {number} of topic {topic} has returned nothing for {_SILENCE_SECONDS:.0f} s{seen}; the broker that leads "
            "it does not answer: restart it; the next run continues where the tables are"
        )

    def _batch(
        self,
        pending: _Pending,
        known: KafkaPosition,
        complete: CompleteEvents | None,
        *,
        is_text: bool | None,
        is_end: bool = False,
    ) -> tuple[SourceBatch, _Pending]:
        """A batch of the messages whose group is complete, and the others."""

        def documents(messages: Sequence[Any]) -> Unframed:
            return unframed(pa.array([message.value() for message in messages], pa.binary()), is_text=is_text)

        chosen: list[Any] = []
        counts: list[int] = []
        left = _Pending({})
        for partition, messages in pending.messages.items():
            count = len(messages)
            if complete is not None and (found := complete(documents(messages).values)) is not None:
                count = count if is_end and found.may_end else found.num_events
            counts.append(count)
            chosen += messages[:count]
            if rest := messages[count:]:
                left.add(partition, rest, with_headers=False)
        if pending.count != left.count + len(chosen):
            raise lost_events(
                f"{pending.count} messages were read, but they are not all in the batch or left for the next one"
            )
        left.offsets = pending.offsets
        reached = pending.offsets | {partition: rest[0].offset() for partition, rest in left.messages.items()}
        names = [f"{topic}-{number}" for topic, number in pending.messages]
        codes = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        values, keys = documents(chosen), unframed(pa.array([m.key() for m in chosen], pa.binary()), is_text=is_text)
        columns = {
            name: pa.array(map(value, chosen), arrow)
            for what, name in self.source.message_columns.items()
            for value, arrow in (_COLUMNS[what],)
        }
        raw = RawEvents(
            source_file=pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string())),
            source_offset=pa.array([message.offset() for message in chosen], pa.int64()),
            documents=values.values,
            keys=keys.values,
            schema_ids=(values.ids, keys.ids),
            message=pa.table(columns) if columns else None,
        )
        return SourceBatch(raw, replace(known, offsets=reached)), left


def _place_of(message: Any) -> tuple[Partition, bool] | None:
    """(partition of a message, whether it is a mark of its end); None for what says nothing.

    Raises:
        KafkaException: it is an error.
    """
    error = message.error()
    if error is not None:
        errors = _library().KafkaError
        # The client looks for the coordinator of a group that is never joined, and goes on by itself when a leader has moved.
        if error.code() == errors.GROUP_AUTHORIZATION_FAILED or _may_pass(error):
            return None
        if error.code() != errors._PARTITION_EOF:  # noqa: SLF001  its public name
            raise _library().KafkaException(error)
    return (message.topic(), message.partition()), error is not None


def _may_pass(error: Any) -> bool:
    """Whether the cluster is not ready yet, so that the same question may be answered a moment later."""
    return error.name() in _PASSING


def _microseconds(kind: int, milliseconds: int) -> int | None:
    """The time of a message, since 1970; none if the message has none."""
    return milliseconds * 1_000 if kind else None


def _is_named(topic: str, wanted: str) -> bool:
    """Whether the name or pattern of a config means a topic."""
    return re.fullmatch(wanted, topic) is not None if wanted.startswith("^") else topic == wanted


def _silent_logger() -> Any:
    """Log lines of librdkafka as debug messages: what matters is part of the errors."""
    import logging

    logger = logging.getLogger(__name__)
    logger.addFilter(lambda record: record.levelno < logging.WARNING or logger.isEnabledFor(logging.DEBUG))
    return logger


def _reason(error: Exception) -> str:
    """What the library says went wrong."""
    found = error.args[0] if error.args else error
    return str(found.str()) if hasattr(found, "str") else str(found)


_SHORT_HOURS = 24.0
"""A retention that is shorter is overtaken by one failure over night."""
_NEEDED = ("READ", "DESCRIBE")


def findings(topics: KafkaTopics) -> Iterator[Finding]:
    """What can be said of the cluster and the topics without reading a message."""
    try:
        cluster, facts = topics.facts()
    except PipelineError as error:
        yield Finding("topics", "failed", str(error))
        return
    partitions = sum(len(fact.low) for fact in facts.values())
    yield Finding("topics", "ok", f"cluster {cluster}: {len(facts)} topics with {partitions} partitions")
    yield _rights(topics, facts)
    yield _retention(facts)


def _rights(topics: KafkaTopics, facts: Mapping[str, TopicFacts]) -> Finding:
    lacking = {name: [right for right in _NEEDED if right not in fact.rights] for name, fact in facts.items()}
    unreadable = {name: rights for name, rights in lacking.items() if rights and facts[name].rights}
    if unreadable:
        name, rights = next(iter(unreadable.items()))
        user = topics.source.properties.get("sasl.username")
        return Finding(
            "rights",
            "failed",
            f"topic {_shown(list(unreadable))}: {' and '.join(rights)} is missing: as an administrator, kafka-acls.sh --add "
            f"--allow-principal User:{user or 'NAME'} --operation Read --operation Describe --topic '{name}'",
        )
    unknown = [name for name, fact in facts.items() if not fact.rights]
    if unknown:
        return Finding(
            "rights", "warning", f"the cluster does not tell those of topic {_shown(unknown)}: reading shows them"
        )
    return Finding("rights", "ok", "all topics may be described and read")


def _retention(facts: Mapping[str, TopicFacts]) -> Finding:
    removed = [name for name, fact in facts.items() if any(fact.low.values()) and not fact.is_compacted]
    hours = {name: fact.retention_hours for name, fact in facts.items() if fact.retention_hours is not None}
    short = [name for name, known in hours.items() if known < _SHORT_HOURS]
    if short:
        return Finding(
            "retention",
            "warning",
            f"topic {_shown(short)} keeps messages for {hours[short[0]]:g} hours: changes are lost if nothing reads them for that "
            "long; set retention.ms to some days",
        )
    if removed:
        return Finding(
            "retention",
            "warning",
            f"topic {_shown(removed)} no longer has its oldest messages: a table that begins there lacks rows that did not change "
            "since, unless a snapshot follows; load them with nevermore resync TABLE --snapshot-source FILES",
        )
    unknown = [name for name, fact in facts.items() if fact.is_compacted is None]
    if unknown:
        return Finding("retention", "ok", f"not known for topic {_shown(unknown)}: DESCRIBE_CONFIGS is missing")
    least = min(hours.values(), default=None)
    kept = "messages are kept for ever" if least is None else f"messages are kept for {least / 24:,.1f} days or longer"
    return Finding("retention", "ok", f"{kept}; no topic lacks its beginning")


def _shown(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
