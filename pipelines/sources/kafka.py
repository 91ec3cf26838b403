"""Topics of a Kafka cluster as a source: reads all messages that exist now after a position, in batches of bounded size.

The position is the next offset of every partition. It is recorded by the commits of the change logs; the cluster keeps
nothing about what was read. Messages of aborted transactions are never returned.
"""

import json
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config.project import KafkaSource
from pipelines.decode.batches import BatchEnd, CompleteEvents, RawEvents
from pipelines.errors import ConfigError, PositionLostError, SourceError
from pipelines.sources.files import OPEN_PAIR
from pipelines.sources.live import parse_position
from scan_core import require_package

VERSION = 1
_ANSWER_SECONDS = 15.0
"""How long the cluster may take to answer a question about its topics."""
_SILENCE_SECONDS = 60.0
"""A partition that returns neither messages nor its end for so long is taken for unreachable."""
_POLL_SECONDS = 1.0
_MAX_MESSAGES = 500_000
"""Messages in a batch: each takes some hundred bytes in addition to its content."""
_POLLED_MESSAGES = 10_000
_QUEUE_SHARE = 4
"""Share of a batch that the client fetches ahead."""
_MIN_QUEUE_KILOBYTES = 256
_FRAME_BYTES = 5
"""A zero byte and the number of the schema, which serializers with a schema registry put before the JSON text."""

_library = partial(require_package, "confluent_kafka", "a source of type kafka", "nevermore-iceberg[kafka]")
"""The client, which is loaded only by those who read topics."""

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class KafkaPosition:
    """The position in the topics of a cluster.

    Attributes:
        cluster: identifier of the cluster.
        offsets: next offset of each partition that was read.
        claims: see `Decided`, as `encodings` and `format`.
    """

    cluster: str
    offsets: Mapping[Partition, int] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)
    encodings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    format: str = ""

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
            **({"claims": dict(self.claims)} if self.claims else {}),
            **({"encodings": {n: dict(e) for n, e in self.encodings.items()}} if self.encodings else {}),
            **({"format": self.format} if self.format else {}),
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
                claims=dict(document.get("claims", {})),
                encodings={name: dict(known) for name, known in document.get("encodings", {}).items()},
                format=document.get("format", ""),
            )

        return parse_position(text, "kafka", "Kafka", VERSION, read)


@dataclass(frozen=True)
class KafkaBatch:
    """Messages and the position after them; see `FileBatch`."""

    raw: RawEvents
    position_after: KafkaPosition
    end: BatchEnd = BatchEnd.ANYWHERE
    continues: bool = False


@dataclass
class _Pending:
    """Messages that were received and not returned yet, by partition; `offsets` are the next ones of all partitions."""

    offsets: dict[Partition, int]
    values: dict[Partition, list[bytes | None]] = field(default_factory=lambda: defaultdict(list))
    keys: dict[Partition, list[bytes | None]] = field(default_factory=lambda: defaultdict(list))
    places: dict[Partition, list[int]] = field(default_factory=lambda: defaultdict(list))
    size: int = 0
    count: int = 0

    def add(self, message: Any) -> None:
        """Add a message as confluent-kafka returns it."""
        partition = message.topic(), message.partition()
        value, key = message.value(), message.key()
        self.values[partition].append(value)
        self.keys[partition].append(key)
        self.places[partition].append(message.offset())
        self.offsets[partition] = message.offset() + 1
        self.size += len(value or b"") + len(key or b"")
        self.count += 1

    def without_first(self, counts: Mapping[Partition, int]) -> "_Pending":
        """What is left after so many messages of each partition were taken."""
        left = _Pending(self.offsets)
        for partition, places in self.places.items():
            begin = counts.get(partition, 0)
            if begin < len(places):
                left.values[partition] = self.values[partition][begin:]
                left.keys[partition] = self.keys[partition][begin:]
                left.places[partition] = places[begin:]
                parts = (*left.values[partition], *left.keys[partition])
                left.size += sum(len(part or b"") for part in parts)
                left.count += len(places) - begin
        return left


class KafkaTopics:
    """The topics of a source. Mutable: keeps the connection from one round to the next."""

    def __init__(self, source: KafkaSource) -> None:
        """Nothing is connected yet."""
        self.source = source
        self._consumer: Any = None
        self._queue_kilobytes = 0
        self._faults: list[str] = []

    def batches(
        self,
        position: str | None,
        limit_bytes: int,
        complete: CompleteEvents | None = None,
        waiting: dict[str, int] | None = None,
        *,
        is_text: bool = False,
    ) -> Iterator[KafkaBatch]:
        """Read all messages that exist now and follow a position.

        Args:
            position: of all tables that read together; None to read the topics from their beginning.
            limit_bytes: size of the messages of a batch.
            complete: how many events of a partition are complete; the others wait for the next ones.
            waiting: receives the number of events that wait at the end, by reason.
            is_text: the events are text, which a frame of a schema registry may precede.

        Raises:
            SourceError: the cluster cannot be reached, a topic does not exist, or messages that were not read yet have been
                removed.
            PositionLostError: the position belongs to another cluster, or to topics that were created again since.
        """
        consumer = self._connected(limit_bytes)
        cluster, partitions = self._partitions(consumer)
        known = KafkaPosition(cluster) if position is None else KafkaPosition.from_json(position)
        self._check_cluster(cluster, known)
        offsets, unread = self._starts(consumer, partitions, known)
        pending = _Pending(offsets)
        for message in self._messages(consumer, offsets, unread):
            pending.add(message)
            if pending.size >= limit_bytes or pending.count >= _MAX_MESSAGES:
                batch, pending = self._batch(pending, known, complete, is_text=is_text)
                yield batch
        batch, pending = self._batch(pending, known, complete, is_text=is_text)
        if pending.count and waiting is not None:
            waiting[OPEN_PAIR] = pending.count
        if batch.raw.num_events or batch.position_after.offsets != known.offsets:
            yield batch

    def names(self) -> list[str]:
        """All topics of the cluster.

        Raises:
            SourceError: the cluster cannot be reached.
        """
        consumer = self._consumer or self._connected(0)
        with self._reported("cannot list the topics of the Kafka cluster"):
            return sorted(consumer.list_topics(timeout=_ANSWER_SECONDS).topics)

    def unread(self, position: str | None) -> int:
        """How many messages follow a position, as far as offsets tell; some may be marks of transactions.

        Raises:
            SourceError: as `batches`.
            PositionLostError: as `batches`.
        """
        consumer = self._consumer or self._connected(0)
        cluster, partitions = self._partitions(consumer)
        known = KafkaPosition(cluster) if position is None else KafkaPosition.from_json(position)
        self._check_cluster(cluster, known)
        offsets, ends = self._starts(consumer, partitions, known)
        return sum(end - offsets[partition] for partition, end in ends.items())

    def has_news(self, position: str) -> bool:
        """Whether there are messages behind a position; asks for the ends of the partitions only.

        Raises:
            SourceError: as `batches`.
            PositionLostError: as `batches`.
        """
        consumer = self._consumer or self._connected(0)
        cluster, partitions = self._partitions(consumer)
        known = KafkaPosition.from_json(position)
        if known.cluster != cluster:
            return True  # reading it says what is wrong
        offsets, unread = self._starts(consumer, partitions, known)
        return bool(unread) or offsets != known.offsets

    def news(self, positions: Collection[str | None]) -> str | None:
        """What is new for tables with these positions: a text that is another one when more has come; None if nothing is.

        Raises:
            SourceError: as `batches`.
            PositionLostError: as `batches`.
        """
        unread = {position: self.unread(position) for position in positions}
        new = {p: count for p, count in unread.items() if (count if p is None else self.has_news(p))}
        return ", ".join(sorted(f"{count} after {position}" for position, count in new.items())) or None

    def close(self) -> None:
        """Close the connection."""
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
            confluent_kafka = _library()
            properties = {
                "client.id": "nevermore",
                "group.id": "nevermore",  # required by the library; with explicit offsets, the group is never joined
                **self.source.properties,
                "bootstrap.servers": self.source.brokers,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": queue,
                "error_cb": lambda error: self._faults.append(error.str()),
            }
            try:
                self._consumer = confluent_kafka.Consumer(properties, logger=_silent_logger())
            except confluent_kafka.KafkaException as error:
                raise ConfigError(f"properties of the Kafka source: {_reason(error)}") from error
        return self._consumer

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Turn errors of the library into errors that say what could not be done and why."""
        try:
            yield
        except _library().KafkaException as error:
            self.close()
            seen = f" ({self._faults[-1]})" if self._faults else ""
            self._faults.clear()
            raise SourceError(f"{what} at {self.source.brokers}: {_reason(error)}{seen}") from error

    def _partitions(self, consumer: Any) -> tuple[str, list[Partition]]:
        """The identifier of the cluster, and all partitions of the topics."""
        with self._reported("cannot list the topics of the Kafka cluster"):
            found = consumer.list_topics(timeout=_ANSWER_SECONDS)
        topics = {name: topic for name, topic in found.topics.items() if topic.error is None}
        chosen: dict[str, Any] = {}
        for wanted in self.source.topics:
            if wanted.startswith("^"):
                names = [name for name in topics if re.fullmatch(wanted, name)]
                if not names:
                    raise SourceError(f"no topic of the Kafka cluster matches {wanted}")
            elif wanted in topics:
                names = [wanted]
            else:
                near = get_close_matches(wanted, topics, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise SourceError(f"the Kafka cluster at {self.source.brokers} has no topic {wanted}{hint}")
            chosen |= {name: topics[name] for name in names}
        return found.cluster_id, sorted((name, number) for name, topic in chosen.items() for number in topic.partitions)

    @staticmethod
    def _check_cluster(cluster: str, known: KafkaPosition) -> None:
        if known.cluster != cluster:
            raise PositionLostError(
                f"this is cluster {cluster}, and the tables were read from cluster {known.cluster}, whose offsets mean other "
                "messages; use the former cluster, or other table names"
            )

    def _starts(
        self, consumer: Any, partitions: Sequence[Partition], known: KafkaPosition
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Where to read each partition from; of those with more messages, where they end now."""
        read_topics = {topic for topic, _ in known.offsets}
        offsets, unread = dict(known.offsets), {}
        for topic, number in partitions:
            with self._reported(f"cannot find the offsets of partition {number} of topic {topic}"):
                partition = _library().TopicPartition(topic, number)
                low, high = consumer.get_watermark_offsets(partition, timeout=_ANSWER_SECONDS)
            next_offset = known.offsets.get((topic, number), 0 if topic in read_topics else low)
            if next_offset < low:
                raise SourceError(
                    f"partition {number} of topic {topic}: the messages from offset {next_offset} to {low - 1} were removed before "
                    "they were read, so changes are lost; load the tables again (nevermore resync), and let the cluster keep "
                    "messages for longer (retention.ms)"
                )
            if next_offset > high:
                raise PositionLostError(
                    f"partition {number} of topic {topic} ends at offset {high}, but was read up to {next_offset}: the topic was "
                    "created again; use another topic or other table names"
                )
            offsets[topic, number] = next_offset
            if next_offset < high:
                unread[topic, number] = high
        return offsets, unread

    def _messages(self, consumer: Any, offsets: dict[Partition, int], unread: Mapping[Partition, int]) -> Iterator[Any]:
        """Messages of all partitions, at least up to where they ended; moves `offsets` over ends without messages."""
        library = _library()
        left = dict(unread)
        with self._reported("cannot read from the Kafka cluster"):
            consumer.assign([library.TopicPartition(t, n, offsets[t, n]) for t, n in left])
            try:
                heard = time.monotonic()
                while left:
                    found = consumer.consume(_POLLED_MESSAGES, _POLL_SECONDS)
                    if found:
                        heard = time.monotonic()
                    elif time.monotonic() - heard > _SILENCE_SECONDS:
                        raise self._silent(left)
                    for message in found:
                        partition = message.topic(), message.partition()
                        if (error := message.error()) is None:
                            yield message
                            if message.offset() + 1 >= left.get(partition, 0):
                                left.pop(partition, None)
                        elif error.code() == library.KafkaError._PARTITION_EOF:  # noqa: SLF001  its public name
                            # behind the last message may be markers of transactions, which have offsets, too
                            offsets[partition] = max(offsets[partition], message.offset())
                            left.pop(partition, None)
                        else:
                            raise library.KafkaException(error)
            finally:
                consumer.unassign()

    def _silent(self, left: Mapping[Partition, int]) -> SourceError:
        topic, number = next(iter(left))
        seen = f" ({self._faults[-1]})" if self._faults else ""
        return SourceError(
            f"partition {number} of topic {topic} has returned nothing for {_SILENCE_SECONDS:.0f} s{seen}; a transaction of a "
            "producer that has not ended delays all messages behind it"
        )

    def _batch(
        self, pending: _Pending, known: KafkaPosition, complete: CompleteEvents | None, *, is_text: bool
    ) -> tuple[KafkaBatch, _Pending]:
        """A batch of the messages whose group is complete, and the others."""
        parts: list[tuple[Partition, pa.Array, pa.Array, list[int]]] = []
        counts: dict[Partition, int] = {}
        for partition, values in pending.values.items():
            documents = _unframed(pa.array(values, pa.binary())) if is_text else pa.array(values, pa.binary())
            found = None if complete is None else complete(documents)
            count = counts[partition] = len(values) if found is None else found.num_events
            keys = pa.array(pending.keys[partition][:count], pa.binary())
            parts.append((partition, documents.slice(0, count), keys, pending.places[partition][:count]))
        left = pending.without_first(counts)
        reached = pending.offsets | {partition: places[0] for partition, places in left.places.items()}
        names = [f"{topic}-{number}" for (topic, number), *_ in parts]
        codes = np.repeat(np.arange(len(parts), dtype=np.int32), [len(places) for *_, places in parts])
        raw = RawEvents(
            source_file=pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string())),
            source_offset=pa.array([offset for *_, places in parts for offset in places], pa.int64()),
            documents=pa.concat_arrays([*(documents for _, documents, *_ in parts), pa.array([], pa.binary())]),
            keys=pa.concat_arrays([*(keys for _, _, keys, _ in parts), pa.array([], pa.binary())]),
            ingested_at=datetime.now(UTC),
        )
        return KafkaBatch(raw, replace(known, offsets=reached)), left


def _unframed(documents: pa.Array) -> pa.Array:
    """JSON texts without the frame of a schema registry: no JSON text begins with a zero byte."""
    is_framed = pc.equal(pc.binary_slice(documents, 0, 1), b"\0")
    if not pc.any(is_framed).as_py():
        return documents
    return pc.if_else(is_framed, pc.binary_slice(documents, _FRAME_BYTES), documents)


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
