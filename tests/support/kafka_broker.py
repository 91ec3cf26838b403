"""A real Kafka broker on free ports of the loopback address, in a folder of its own, stopped at the end.

Its jars come from Maven Central, by the Ivy that PySpark ships, once per user and version.
"""

import base64
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pyspark
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tests.support.processes import free_port, wait_for

VERSION = "4.1.1"
USERS = {"reader": "reader-secret", "stranger": "stranger-secret"}
"""Of a secure broker, with their passwords."""


def jars() -> Path:
    """The folder with the broker's jars."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nevermore-tests"
    return fetch(cache, "org.apache.kafka", "kafka_2.13", VERSION, f"kafka-{VERSION}")


def fetch(cache: Path, group: str, artifact: str, version: str, name: str = "") -> Path:
    """The folder with a package of Maven Central and what it needs, fetched if it is not there.

    A test without it is skipped, in CI it fails.
    """
    folder = cache / (name or f"{artifact}-{version}")
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
        command = ["java", "-jar", str(ivy), "-dependency", group, artifact, version, "-confs", "default"]
        command += ["-cache", f"{made}/cache", "-retrieve", f"{made}/jars/[artifact]-[revision](-[classifier]).[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode or not any(Path(made, "jars").glob(f"{artifact}-*.jar")):
            reason = f"the jars of {artifact} {version} cannot be fetched from Maven Central: {done.stdout[-300:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        shutil.rmtree(folder, ignore_errors=True)
        Path(made, "jars").rename(folder)
    return folder


class KafkaBroker:
    """A running broker, which is its own controller."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None, *, is_secure: bool = False) -> None:
        self.folder = folder
        self.port, self.secure_port = free_port(), free_port()
        self._jars = jars()
        controller = free_port()
        self._settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(folder / "logs"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.check.interval.ms": "1000",
            "log.initial.task.delay.ms": "500",
            "auto.create.topics.enable": "false",
            **(settings or {}),
        }
        if is_secure:
            self._settings |= self._secured()
        self._process: subprocess.Popen[bytes] | None = None
        self._cluster = ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def secure_address(self) -> str:
        return f"localhost:{self.secure_port}"

    @property
    def authority(self) -> Path:
        """The certificate that signed that of the secure listener."""
        return self.folder / "authority.pem"

    def _secured(self) -> dict[str, str]:
        """A second listener with SASL and TLS, whose users have only the rights that they are given."""
        make_certificates(self.authority, self.folder / "server.pem")
        users = " ".join(f'user_{name}="{secret}"' for name, secret in USERS.items())
        listeners = {
            name: f"{self._settings[name]},SASL_SSL://localhost:{self.secure_port}"
            for name in ("listeners", "advertised.listeners")
        }
        return listeners | {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "server.pem"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
            ),
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def listen(self, port: int, *, advertised: int) -> None:
        """Listen at one more port, of which clients are told that it is another one, such as that of a proxy."""
        self._settings["listeners"] += f",BEHIND://127.0.0.1:{port}"
        self._settings["advertised.listeners"] += f",BEHIND://127.0.0.1:{advertised}"
        self._settings["listener.security.protocol.map"] += ",BEHIND:PLAINTEXT"

    def start(self) -> None:
        """Start, with the messages that were there before."""
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        if not self._cluster:
            # An identifier as Kafka's own tool makes it, which would start another JVM; none begins with a dash.
            self._cluster = base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
            self._java("kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", str(properties))
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(self._command("kafka.Kafka", str(properties)), stdout=log, stderr=log)
        process = self._process

        def is_open() -> bool:
            assert process.poll() is None, (self.folder / "broker.log").read_text()[-2_000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_for("Kafka", is_open)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        from confluent_kafka.admin import NewTopic

        if name in self.admin.list_topics().topics:  # of the same test with another engine
            self.delete_topic(name)
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.await_all(self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.await_all(self.admin.delete_topics([name]))
        wait_for("end of the topic", lambda: name not in self.admin.list_topics().topics)

    def add_partitions(self, name: str, count: int) -> None:
        """Let a topic have so many partitions."""
        from confluent_kafka.admin import NewPartitions

        self.await_all(self.admin.create_partitions([NewPartitions(name, count)]))
        wait_for("partitions", lambda: len(self.admin.list_topics(name).topics[name].partitions) == count)

    @cached_property
    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address})

    @staticmethod
    def await_all(futures: dict[Any, Any]) -> None:
        """Wait for what was asked of the admin client."""
        for future in futures.values():
            future.result(300)

    def produce(self, topic: str, messages: list[tuple[Any, Any]], partition: int = -1, **properties: Any) -> None:
        """Send (key, value) pairs of bytes, and wait until they are there."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, **properties})
        for key, value in messages:
            producer.produce(topic, value, key, partition)
            producer.poll(0)
        assert producer.flush(300) == 0

    def _java(self, *arguments: str) -> str:
        return subprocess.run(self._command(*arguments), capture_output=True, text=True, timeout=300, check=True).stdout

    def _command(self, *arguments: str) -> list[str]:
        return ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*", *arguments]


def make_certificates(authority: Path, server: Path) -> None:
    """A certificate of an authority, and one of localhost with its key, for a day."""
    key, own = rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 2048)
    now = datetime.now(UTC)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def certificate(name: str, public_key: rsa.RSAPublicKey, *extensions: x509.ExtensionType) -> bytes:
        made = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named("tests")).public_key(public_key)
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        for extension in extensions:
            made = made.add_extension(extension, critical=False)
        return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority.write_bytes(certificate("tests", key.public_key(), x509.BasicConstraints(ca=True, path_length=None)))
    text = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    server.write_bytes(text + certificate("localhost", own.public_key(), names) + authority.read_bytes())


@contextmanager
def running_broker(*, is_secure: bool = False, **settings: str) -> Iterator[KafkaBroker]:
    """A broker with settings of its own, names with underscores for dots."""
    folder = Path(tempfile.mkdtemp(prefix="kafka-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    named = {name.replace("_", "."): value for name, value in settings.items()}
    broker = KafkaBroker(folder, named, is_secure=is_secure)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)
