"""A schema registry on a port of this machine: the part of Confluent's API that serializers and readers use.

Confluent's own server is not in Maven Central. What it does with a schema is not needed here: schemas are kept as they are
registered, and compatibility is not checked.
"""

import json
import ssl
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.kafka_broker import make_certificates


@dataclass
class SchemaServer:
    """What tests know of the server.

    Attributes:
        url: its address.
        authority: file with the certificate of the authority that signed its own, if it has one.
        user: `name:secret` that it asks for.
        schemas: what was registered, by id from 1.
        subjects: ids of the versions of each subject.
        asked: paths that were asked for.
        is_down: whether it answers 503.
    """

    url: str = ""
    authority: Path | None = None
    user: str | None = None
    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    is_down: bool = False

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Register a schema; the same one gets the same id."""
        made = {"schema": schema, "schemaType": kind, "references": list(references)}
        if made not in self.schemas:
            self.schemas.append(made)
        number = self.schemas.index(made) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, number: int, *, is_serialized: bool) -> dict[str, Any]:
        """A schema as it is given out: Protobuf as text, unless it is asked for as a descriptor."""
        found = dict(self.schemas[number - 1])
        if found["schemaType"] == "AVRO":
            del found["schemaType"]
        if found.get("schemaType") == "PROTOBUF":
            b64decode(found["schema"], validate=True)
            if not is_serialized:
                found["schema"] = 'syntax = "proto3";'
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        self._handled({})

    def do_POST(self) -> None:
        self._handled(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _handled(self, body: dict[str, Any]) -> None:
        known: SchemaServer = self.server.known
        address = urlsplit(self.path)
        known.asked.append(self.path)
        if known.is_down:
            return self._send(503, {"error_code": 50301, "message": "no leader"})
        expected = known.user and f"Basic {b64encode(known.user.encode()).decode()}"
        if expected and self.headers.get("Authorization") != expected:
            return self._send(401, {"error_code": 401, "message": "Unauthorized"})
        is_serialized = parse_qs(address.query).get("format") == ["serialized"]
        parts = [unquote(part) for part in address.path.split("/") if part]
        match parts:
            case ["schemas", "ids", number] if int(number) <= len(known.schemas):
                return self._send(200, known.answer(int(number), is_serialized=is_serialized))
            case ["subjects", subject, *_] if self.command == "POST":
                number = known.register(
                    subject, body["schema"], body.get("schemaType", "AVRO"), body.get("references") or ()
                )
                version = known.subjects[subject].index(number) + 1
                return self._send(200, {**body, "subject": subject, "id": number, "version": version})
            case ["subjects", subject, "versions", version] if subject in known.subjects:
                at = -1 if version in {"latest", "-1"} else int(version) - 1
                number = known.subjects[subject][at]
                found = known.answer(number, is_serialized=is_serialized)
                return self._send(200, {**found, "subject": subject, "id": number, "version": at + 1})
            case _:
                return self._send(404, {"error_code": 40403, "message": "Schema not found"})

    def _send(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving_schemas(folder: Path | None = None, *, user: str | None = None) -> Iterator[SchemaServer]:
    """An empty registry, stopped at the end; with certificates in `folder`, if one is given."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    known = SchemaServer(f"http://127.0.0.1:{server.server_port}", user=user)
    if folder is not None:
        known.authority, own = folder / "authority.pem", folder / "registry.pem"
        make_certificates(known.authority, own)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        known.url = f"https://localhost:{server.server_port}"
    server.known = known  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
