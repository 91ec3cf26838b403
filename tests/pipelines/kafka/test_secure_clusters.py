"""A cluster that asks for TLS and passwords, and gives its users no more rights than the page says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from nevermore.pipelines.cli.main import main
from tests.pipelines.project import Project, event, the
from tests.support.kafka_broker import USERS, KafkaBroker, running_broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TOPIC = "secure"


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with running_broker(is_secure=True) as found:
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upserts = [
            UserScramCredentialUpsertion(name, credentials, secret.encode(), b"salt") for name, secret in USERS.items()
        ]
        found.await_all(found.admin.alter_user_scram_credentials(upserts))
        found.create_topic(TOPIC, 2)
        found.produce(TOPIC, [(b"k", event("c", {"id": i}).encode()) for i in range(5)])
        rights = [AclOperation.READ, AclOperation.DESCRIBE]
        found.await_all(found.admin.create_acls([_right("reader", right) for right in rights]))
        yield found


def _right(user: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        TOPIC,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


class SecureProject(Project):
    """A project that reads a secure topic as a user."""

    def __init__(self, folder: Path, broker: KafkaBroker, user: str, mechanism: str, **properties: str) -> None:
        self.source = {
            "type": "kafka",
            "brokers": broker.secure_address,
            "topics": TOPIC,
            "format": "debezium-json",
            "properties": {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": "${KAFKA_PASSWORD}",
                "ssl.ca.location": str(broker.authority),
                **properties,
            },
        }
        super().__init__(folder)

    def write(self, tables: dict[str, Any], **options: Any) -> None:  # noqa: ARG002 - there are none
        document = {"tables": {name: {"source": self.source, **table} for name, table in tables.items()}}
        (self.folder / "nevermore.yaml").write_text(yaml.safe_dump(document))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_user_with_the_rights_of_the_page_reads(
    mechanism: str,
    broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", USERS["reader"])
    project = SecureProject(tmp_path, broker, "reader", mechanism)
    assert the(project.run()).events == {"c": 5}
    assert the(project.run()).error is None
    found = doctored(tmp_path, capsys)
    assert [finding["status"] for finding in found if finding["what"] == "rights"] == ["ok"]
    assert USERS["reader"] not in json.dumps(found)


@pytest.mark.parametrize(
    ("user", "secret", "properties", "message"),
    [
        ("reader", "Xq-mistaken", {}, "uthentication"),
        ("nobody", "Xq-mistaken", {}, "uthentication"),
        ("stranger", "stranger-secret", {}, "has no topic secure"),
        ("reader", "reader-secret", {"ssl.ca.location": "/nowhere/ca.pem"}, "ssl.ca.location"),
        ("reader", "reader-secret", {"security.protocol": "SASL_PLAINTEXT"}, "cannot list the topics"),
    ],
)
def test_what_a_cluster_refuses_is_one_message_without_secrets(
    user: str,
    secret: str,
    properties: dict[str, str],
    message: str,
    broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", secret)
    project = SecureProject(tmp_path, broker, user, "SCRAM-SHA-512", **properties)
    error = str(the(project.run()).error)
    assert message in error
    found = doctored(tmp_path, capsys, code=1)
    printed = json.dumps(found) + error + caplog.text + "".join(capsys.readouterr())
    assert secret not in printed


def test_a_right_to_describe_is_not_enough_and_is_told(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.await_all(broker.admin.create_acls([_right("stranger", AclOperation.DESCRIBE)]))
    monkeypatch.setenv("KAFKA_PASSWORD", USERS["stranger"])
    try:
        project = SecureProject(tmp_path, broker, "stranger", "PLAIN")
        assert "authorization failed" in str(the(project.run()).error)
        (rights,) = (finding for finding in doctored(tmp_path, capsys, code=1) if finding["what"] == "rights")
        assert rights["status"] == "failed"
        assert "READ" in rights["found"]
    finally:
        broker.await_all(broker.admin.delete_acls([_filter("stranger")]))


def _filter(user: str) -> Any:
    from confluent_kafka.admin import AclBindingFilter

    return AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        f"User:{user}",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def doctored(folder: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> list[dict[str, str]]:
    """What `nevermore doctor` finds."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--config", str(folder / "nevermore.yaml"), "--json"])
    assert (ended.value.code or 0) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
