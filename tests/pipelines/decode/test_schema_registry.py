"""The registry client against a real HTTP server that speaks the Confluent API."""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.decode import schema_registry
from nevermore.pipelines.decode.avro import complete_document
from nevermore.pipelines.decode.schema_registry import (
    RegistryConfig,
    SchemaFolder,
    SchemaKind,
    SchemaRegistry,
    UnknownSchemaError,
)
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.scan_core.metadata import parse_record


@dataclass
class Server:
    """A registry: answers by path, what was asked, and how often it fails first."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)
    failures: int = 0
    status: int = 200
    url: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked[self.path] += 1
            state.headers.append(dict(self.headers))
            if state.failures:
                state.failures -= 1
                return self._send(503, {"error_code": 50301, "message": "no leader"})
            if state.status != 200:
                return self._send(state.status, {"error_code": state.status, "message": "no"})
            if self.path not in state.answers:
                return self._send(404, {"error_code": 40403, "message": "Schema not found"})
            return self._send(200, state.answers[self.path])

        def _send(self, status: int, document: Any) -> None:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def client(server: Server, **options: Any) -> SchemaRegistry:
    return SchemaRegistry(RegistryConfig(server.url, **options))


RECORD = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}


def test_unknown_schema_is_asked_for_again_only_after_a_while(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = client(server)
    for _ in range(3):
        with pytest.raises(UnknownSchemaError, match="no schema 8"):
            registry.schema(8, SchemaKind.AVRO)
    assert server.asked["/schemas/ids/8"] == 1
    monkeypatch.setattr(schema_registry, "UNKNOWN_SECONDS", 0.0)
    server.answers["/schemas/ids/8"] = {"schema": json.dumps(RECORD)}
    assert json.loads(registry.schema(8, SchemaKind.AVRO).text) == RECORD


def test_threads_ask_for_each_schema_once(server: Server) -> None:
    server.answers |= {f"/schemas/ids/{n}": {"schema": json.dumps(RECORD)} for n in range(5)}
    registry = client(server)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(registry.schema(n % 5, SchemaKind.AVRO).text))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert set(server.asked.values()) == {1}


def test_schema_is_asked_for_once(server: Server) -> None:
    server.answers["/schemas/ids/7"] = {"schema": json.dumps(RECORD)}
    registry = client(server)
    assert json.loads(registry.schema(7, SchemaKind.AVRO).text) == RECORD
    registry.schema(7, SchemaKind.AVRO)
    assert server.asked == {"/schemas/ids/7": 1}


def test_kept_schemas_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "MAX_KEPT_SCHEMAS", 2)
    server.answers |= {f"/schemas/ids/{i}": {"schema": json.dumps(RECORD)} for i in range(3)}
    registry = client(server)
    for i in (0, 1, 0, 2, 0, 1):
        registry.schema(i, SchemaKind.AVRO)
    assert server.asked == {"/schemas/ids/0": 1, "/schemas/ids/1": 2, "/schemas/ids/2": 1}


def test_passing_failures_are_tried_again(server: Server) -> None:
    server.answers["/schemas/ids/7"] = {"schema": json.dumps(RECORD)}
    server.failures = 2
    assert client(server).schema(7, SchemaKind.AVRO)
    assert server.asked["/schemas/ids/7"] == 3


def test_a_registry_that_keeps_failing_is_an_error_with_its_answer(server: Server) -> None:
    server.failures = 99
    with pytest.raises(SourceError, match=r"HTTP 503.*no leader"):
        client(server, retries=1).schema(7, SchemaKind.AVRO)


def test_unknown_id_is_told_apart_from_a_failure(server: Server) -> None:
    with pytest.raises(UnknownSchemaError, match="no schema 7"):
        client(server).schema(7, SchemaKind.AVRO)


def test_address_without_a_registry_is_a_failure_and_no_unknown_id(server: Server) -> None:
    server.status = 404
    with pytest.raises(SourceError, match="check the address") as raised:
        client(server).schema(7, SchemaKind.AVRO)
    assert not isinstance(raised.value, UnknownSchemaError)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_access_says_what_to_check(status: int, server: Server) -> None:
    server.status = status
    with pytest.raises(SourceError, match="registry_user or registry_token"):
        client(server).schema(7, SchemaKind.AVRO)


def test_credentials_are_sent(server: Server) -> None:
    server.answers["/schemas/ids/7"] = {"schema": json.dumps(RECORD)}
    client(server, user="me:secret").schema(7, SchemaKind.AVRO)
    client(server, token="abc").schema(7, SchemaKind.AVRO)  # noqa: S106 - a test
    assert [h["Authorization"] for h in server.headers] == ["Basic bWU6c2VjcmV0", "Bearer abc"]


def test_nobody_there_is_an_error_that_names_the_address() -> None:
    with pytest.raises(SourceError, match="cannot fetch schema 7 from the schema registry"):
        SchemaRegistry(RegistryConfig("http://127.0.0.1:9", retries=0)).schema(7, SchemaKind.AVRO)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>welcome</html>", "as a schema registry does"),
        ({"message": "x"}, "as a schema registry does"),
        ({"schema": "syntax = 'proto3';", "schemaType": "PROTOBUF"}, "set format: debezium-protobuf"),
    ],
)
def test_other_answers_are_refused(answer: Any, message: str, server: Server) -> None:
    server.answers["/schemas/ids/7"] = answer
    with pytest.raises(SourceError, match=message):
        client(server).schema(7, SchemaKind.AVRO)


def test_referenced_schemas_are_put_in_place_once(server: Server) -> None:
    inner = {"type": "record", "name": "shop.Inner", "fields": [{"name": "x", "type": "shop.Deep"}]}
    deep = {"type": "record", "name": "shop.Deep", "fields": [{"name": "y", "type": "long"}]}
    fields = [{"name": n, "type": ["null", "shop.Inner"]} for n in ("before", "after")]
    server.answers = {
        "/schemas/ids/7": {
            "schema": json.dumps({"type": "record", "name": "e", "fields": fields}),
            "references": [{"name": "shop.Inner", "subject": "inner", "version": 2}],
        },
        "/subjects/inner/versions/2": {
            "schema": json.dumps(inner),
            "references": [{"name": "shop.Deep", "subject": "deep", "version": 1}],
        },
        "/subjects/deep/versions/1": {"schema": json.dumps(deep)},
    }
    parsed = parse_record(json.loads(complete_document(client(server).schema(7, SchemaKind.AVRO))))
    assert [str(f.type.meant) for f in parsed] == ["struct<x: struct<y: int64 not null> not null>"] * 2


def test_folder_gives_schemas_by_id(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(RECORD))
    assert json.loads(SchemaFolder(tmp_path).schema(7, SchemaKind.AVRO).text) == RECORD
    with pytest.raises(UnknownSchemaError, match=r"8\.avsc"):
        SchemaFolder(tmp_path).schema(8, SchemaKind.AVRO)
    with pytest.raises(ConfigError, match="no folder"):
        SchemaFolder(tmp_path / "none").schema(7, SchemaKind.AVRO)


def test_schema_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.avsc")
    (tmp_path / "2.avsc").mkdir()
    (tmp_path / "3.avsc").write_bytes(b"\xff\xfe")
    (tmp_path / "4.avsc").symlink_to("4.avsc")
    for schema_id in (1, 2, 3, 4):
        with pytest.raises(ConfigError, match=rf"schemas: .*/{schema_id}\.avsc (is not a plain file|cannot be read)"):
            SchemaFolder(tmp_path).schema(schema_id, SchemaKind.AVRO)
