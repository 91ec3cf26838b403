"""Messages of Confluent's own serializers, through a broker and a registry to the rows of a mirror."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tests.pipelines.formats.protobuf_events import class_of, envelope, field, file, message
from tests.pipelines.kafka.test_topics import KafkaProject
from tests.pipelines.project import the
from tests.support.kafka_broker import KafkaBroker, running_broker
from tests.support.schema_registry import SchemaServer, serving_schemas

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # Confluent's client leaves its connections to the garbage collector.
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:The httpx module is deprecated"
    ),
]
SECRET = "registry-secret"  # noqa: S105 - of a test


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with running_broker() as found:
        yield found


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SchemaServer]:
    with serving_schemas(tmp_path, user=f"reader:{SECRET}") as found:
        yield found


ROW = message(
    "Row",
    field("id", 1, "int64"),
    field("name", 2, "string", "optional"),
    field("at", 3, "google.protobuf.Timestamp"),
    field("price", 4, "confluent.type.Decimal"),
)


def project_of(folder: Path, broker: KafkaBroker, registry: SchemaServer, topic: str, kind: str) -> KafkaProject:
    project = KafkaProject(folder, broker, topic, max_quarantine_ratio=1)
    options = {"registry": registry.url, "registry_ca": str(registry.authority), "registry_user": registry.user}
    project.write({"shop.products": {"key": ["id"], "max_quarantine_ratio": 1}}, **options)
    config = folder / "nevermore.yaml"
    config.write_text(config.read_text().replace("format: debezium-json", f"format: {kind}"))
    return project


def client(registry: SchemaServer) -> Any:
    """Confluent's client of registries."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient(
        {"url": registry.url, "ssl.ca.location": str(registry.authority), "basic.auth.user.info": registry.user}
    )


def serialized(
    registry: SchemaServer, topic: str, made: FileDescriptorProto, name: str, values: list[Any]
) -> list[bytes]:
    """Messages of Confluent's serializer, which registers their schema; `values` are arguments of the class."""
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    of_class = class_of(made, name)
    serializer = ProtobufSerializer(of_class, client(registry), {"use.deprecated.format": False})
    return [serializer(of_class(**value), SerializationContext(topic, MessageField.VALUE)) for value in values]


def test_protobuf_of_confluents_serializer(broker: KafkaBroker, registry: SchemaServer, tmp_path: Path) -> None:
    broker.create_topic("protobuf")
    project = project_of(tmp_path, broker, registry, "protobuf", "debezium-protobuf")
    first = {"id": 1, "name": "a", "at": datetime(2020, 1, 1, tzinfo=UTC), "price": {"value": b"\x7b", "scale": 1}}
    source = {"db": "d", "schema": "shop", "table": "products"}
    events = [
        {"op": "c", "after": first, "source": source},
        {"op": "c", "after": {"id": 2**53 + 1}, "source": source},
        {"op": "u", "before": {"id": 1}, "after": {"id": 1, "name": ""}, "source": source},
    ]
    messages = serialized(registry, "protobuf", envelope(ROW), "Envelope", events)
    broker.produce("protobuf", [(None, m) for m in messages])
    report = project.run()
    assert (the(report).events, the(report).quarantined, the(report).error) == ({"c": 2, "u": 1}, 0, None)
    empty = {"at": None, "price": None}
    assert project.rows() == [{"id": 1, "name": "", **empty}, {"id": 2**53 + 1, "name": None, **empty}]
    changed = envelope(message("Row", *(f for f in map(_copy, ROW.field)), field("city", 5, "string", "optional")))
    events = [
        {"op": "c", "after": {"id": 3, "city": "Oslo", "price": {"value": b"\x05", "scale": 0}}, "source": source}
    ]
    broken = b"\0\0\0\0\x63\0abc"
    messages = serialized(registry, "protobuf", changed, "Envelope", events)
    broker.produce("protobuf", [(None, m) for m in [broken, *messages, messages[0][:-3], None]])
    report = project.run()
    assert (the(report).events, the(report).quarantined, report.skipped) == ({"c": 1}, 2, {"tombstone": 1})
    (row,) = (row for row in project.rows() if row["id"] == 3)
    assert row == {"id": 3, "name": None, "at": None, "price": Decimal(5), "city": "Oslo"}


def _copy(of_field: Any) -> Any:
    copied = type(of_field).FromString(of_field.SerializeToString())
    copied.ClearField("oneof_index")
    return copied


def test_a_registry_that_is_away_or_refuses_stops_the_run_and_tells_no_secret(
    broker: KafkaBroker, registry: SchemaServer, tmp_path: Path
) -> None:
    broker.create_topic("away")
    project = project_of(tmp_path, broker, registry, "away", "debezium-protobuf")
    made = file(message("Row", field("id", 1, "int64")))
    broker.produce("away", [(None, m) for m in serialized(registry, "away", made, "Row", [{"id": 1}])])
    right = registry.user
    registry.user = "reader:other"
    assert "check registry_user or registry_token" in str(the(project.run()).error)
    registry.user, registry.is_down = right, True
    report = project.run()
    assert "HTTP 503" in str(the(report).error)
    assert SECRET not in str(report)
    registry.is_down = False
    assert the(project.run()).events == {"u": 1}
    assert project.rows() == [{"id": 1}]


def test_json_of_confluents_serializer_has_the_types_of_its_schema(
    broker: KafkaBroker, registry: SchemaServer, tmp_path: Path
) -> None:
    broker.create_topic("json")
    project = project_of(tmp_path, broker, registry, "json", "debezium-json")
    of_clients = client(registry)
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    at = {"type": "integer", "title": "io.debezium.time.MicroTimestamp", "connect.type": "int64"}
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "at": at}}
    nullable = {"oneOf": [{"type": "null"}, row]}
    schema = {"title": "Envelope", "type": "object", "properties": {"op": {"type": "string"}, "after": nullable}}
    serializer = JSONSerializer(json.dumps(schema), of_clients, lambda value, _: value)
    context = SerializationContext("json", MessageField.VALUE)
    messages = [serializer({"op": "c", "after": {"id": n, "at": n}}, context) for n in range(3)]
    broker.produce("json", [(None, m) for m in [*messages, b"\0\0\0\0\x63{}"]])
    report = project.run()
    assert (the(report).events, the(report).quarantined, the(report).error) == ({"c": 3}, 1, None)
    # Debezium's timestamps have no zone.
    assert [row["at"].replace(tzinfo=UTC) for row in project.rows()] == [
        datetime(1970, 1, 1, 0, 0, 0, n, tzinfo=UTC) for n in range(3)
    ]
