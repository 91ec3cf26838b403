"""Catalogs and stores that cannot be used: every command says in plain words what, where and what to do, and no secret."""

import json
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore import open_project
from nevermore.pipelines.errors import ConfigError, in_plain_words
from tests.pipelines.project import event
from tests.support.object_server import properties_of, serving
from tests.support.postgres_server import postgres, programs_or_skip

Run = Callable[..., tuple[int, str, str]]
SECRET = "sEcret9"  # noqa: S105 - of nothing
OF_LIBRARIES = (
    "psycopg2.",
    "sqlite3.",
    "sqlalche.me",
    "sqlalchemy.exc",
    "Traceback",
    "HTTPConnection",
    "pydantic",
    "Error(",
)


class Handler(BaseHTTPRequestHandler):
    """Answers with one status, or with a page that is no answer of a catalog; what opens it may succeed."""

    server: Any

    def do_GET(self) -> None:
        status, body = self.server.status, {"error": {"message": "told by it", "type": "SomeException", "code": 1}}
        if self.server.opens and "config" in self.path:
            status, body = 200, {"defaults": {}, "overrides": {}}
        data = json.dumps(body).encode() if status != 200 or self.server.opens else b"<html>Log in</html>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_POST = do_HEAD = do_GET  # noqa: N815 - their names in the base class

    def log_message(self, *_: Any) -> None:
        pass


class Places:
    """Addresses of this machine at which something is wrong."""

    def __init__(self, stack: ExitStack) -> None:
        self.server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        stack.callback(self.server.server_close)
        stack.callback(thread.join)
        stack.callback(self.server.shutdown)
        self.http = f"127.0.0.1:{self.server.server_port}"
        unused, silent = (stack.enter_context(closing(socket.socket())) for _ in range(2))
        unused.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        self.refuses, self.is_silent = (f"127.0.0.1:{s.getsockname()[1]}" for s in (unused, silent))


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(stack)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres(programs_or_skip()) as running:
        yield f"127.0.0.1:{running.port}"


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with serving() as endpoint:
        yield endpoint


def project(folder: Path, catalog: dict[str, str]) -> Path:
    (folder / "landing").mkdir()
    (folder / "landing" / "a.jsonl").write_text(event("c", {"id": 1}) + "\n")
    source: dict[str, Any] = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
    document: dict[str, Any] = {"catalog": {"warehouse": str(folder / "warehouse"), **catalog}}
    document["tables"] = {"shop.products": {"source": source, "key": ["id"]}}
    path = folder / "nevermore.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def said(run: Run, path: Path, *needed: str, commands: tuple[str, ...] = ("scan", "ingest", "doctor")) -> None:
    """Each command fails with one message that has these words."""
    for command in commands:
        words = (command, "shop.products") if command == "scan" else (command,)
        code, output, errors = run(*words, "--config", path)
        assert code in {1, 2}, (command, output, errors)
        as_json = run(*words, "--config", path, "--json")
        assert as_json[0] == code
        for text in (output + errors, (as_json[1] + as_json[2]).replace('\\"', '"')):
            assert [word for word in needed if word not in text] == [], (command, text)
            assert [word for word in (SECRET, *OF_LIBRARIES) if word in text] == [], (command, text)


POSTGRES = {
    "user": ("nobody:sEcret9@{server}/postgres", ['role "nobody" does not exist', "correct the user and the password"]),
    "database": ("postgres:sEcret9@{server}/none", ['database "none" does not exist', "create the database"]),
    "tls": ("postgres:sEcret9@{server}/postgres?sslmode=require", ["does not support SSL", "sslmode"]),
    "port": ("postgres:sEcret9@{refuses}/postgres", ["Connection refused", "correct host and port"]),
    "host": ("postgres:sEcret9@no.such.host.invalid/postgres", ["no.such.host.invalid", "correct it in the config"]),
    "silence": ("postgres:sEcret9@{silent}/postgres", ["timeout expired", "firewall"]),
    "silence, with options": ("postgres:sEcret9@{silent}/postgres?sslmode=disable", ["timeout expired", "firewall"]),
    "silence, with a limit": ("postgres:sEcret9@{silent}/postgres?connect_timeout=3", ["timeout expired", "firewall"]),
}


@pytest.mark.parametrize(
    "name", [name if name == "database" else pytest.param(name, marks=pytest.mark.slow) for name in POSTGRES]
)
def test_a_catalog_in_postgresql(
    run: Run, tmp_path: Path, places: Places, server: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("nevermore.scan_core.io.catalog.CONNECT_SECONDS", 2)
    address, needed = POSTGRES[name]
    address = address.format(server=server, refuses=places.refuses, silent=places.is_silent)
    said(run, project(tmp_path, {"type": "sql", "uri": f"postgresql+psycopg2://{address}"}), *needed)


@pytest.mark.parametrize(
    ("uri", "needed"),
    [
        ("mysql+oursql://a:sEcret9@127.0.0.1/x", ["mysql.oursql", "there is no such driver"]),
        ("informix://a:sEcret9@127.0.0.1/x", ["informix", "there is no such driver"]),
        ("postgres 127", ["not an address", "postgresql+psycopg2://"]),
    ],
)
def test_a_database_without_a_driver(run: Run, tmp_path: Path, uri: str, needed: list[str]) -> None:
    said(run, project(tmp_path, {"type": "sql", "uri": uri}), *needed)


def test_a_damaged_file_of_sqlite(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"not a database" * 1000)
    path = project(tmp_path, {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"})
    said(run, path, str(tmp_path / "c.db"), "damaged", "nevermore recover")


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_database_without_the_tables_of_a_catalog(run: Run, tmp_path: Path, server: str, database: str) -> None:
    uri = f"sqlite:///{tmp_path}/c.db" if database == "sqlite" else f"postgresql+psycopg2://postgres@{server}/postgres"
    path = project(tmp_path, {"type": "sql", "uri": uri, "init_catalog_tables": "false"})
    (tmp_path / "c.db").touch()
    commands = ("scan", "ingest", "doctor", "status", "tables", "recover")
    said(run, path, "has no tables of an Iceberg catalog", "init_catalog_tables", commands=commands)
    with pytest.raises(ConfigError, match="cannot be opened: the database has no tables of an Iceberg catalog"):
        open_project(path).scan("shop.products")


@pytest.mark.slow
def test_a_locked_file_of_sqlite(run: Run, tmp_path: Path) -> None:
    path = project(tmp_path, {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"})
    assert run("ingest", "--config", path)[0] == 0
    with closing(sqlite3.connect(tmp_path / "c.db", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        said(run, path, str(tmp_path / "c.db"), "holds a lock", "wait until it ends", commands=("scan", "ingest"))


STATUSES = {
    401: "correct the token",
    403: "lacks the right",
    404: "nothing at this address",
    419: "has expired",
    429: "too many requests",
    500: "overloaded, restarting or broken",
    503: "overloaded, restarting or broken",
}


@pytest.mark.each(2)
@pytest.mark.parametrize("status", STATUSES)
def test_a_rest_catalog_that_answers_with_an_error(run: Run, tmp_path: Path, places: Places, status: int) -> None:
    places.server.status, places.server.opens = status, False
    path = project(tmp_path, {"type": "rest", "uri": f"http://{places.http}", "token": SECRET})
    said(run, path, f"http://{places.http}/v1/config", f"answered {status}", "told by it", STATUSES[status])


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403, 419, 500, 503])
def test_a_rest_catalog_that_fails_once_it_is_open(run: Run, tmp_path: Path, places: Places, status: int) -> None:
    places.server.status, places.server.opens = status, True
    path = project(tmp_path, {"type": "rest", "uri": f"http://{places.http}", "token": SECRET})
    said(run, path, f"http://{places.http}/v1/", f"answered {status}", STATUSES[status])
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "warehouse" not in line))
    said(run, path, f"http://{places.http}/v1/", f"answered {status}", STATUSES[status], commands=("doctor",))


CREDENTIAL = {"credential": f"me:{SECRET}", "oauth2-server-uri": "http://{http}/tokens"}
REST = {
    "credential": (200, "http://{http}", CREDENTIAL, ["not as an Iceberg REST catalog"]),
    "wrong credential": (401, "http://{http}", CREDENTIAL, ["answered 401", "credential"]),
    "login page": (200, "http://{http}", {"token": SECRET}, ["not as an Iceberg REST catalog", "login page"]),
    "port": (200, "http://{refuses}", {}, ["{refuses}", "nothing answers"]),
    "host": (200, "http://no.such.host.invalid", {}, ["no.such.host.invalid", "name of the host"]),
    "tls": (200, "https://{http}", {}, ["https://{http}", "speaks no TLS"]),
    "silence": (200, "http://{silent}", {}, ["{silent}", "does not answer in time", "firewall"]),
    "silence of tokens": (
        200,
        "http://{http}",
        {"credential": f"me:{SECRET}", "oauth2-server-uri": "http://{silent}/tokens"},
        ["{silent}", "does not answer in time"],
    ),
    "no scheme": (200, "{http}", {}, ["not an address", "https://HOST"]),
}


@pytest.mark.each(6)
@pytest.mark.parametrize("name", REST)
def test_a_rest_catalog_that_cannot_be_reached(
    run: Run, tmp_path: Path, places: Places, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("nevermore.scan_core.io.catalog.ANSWER_SECONDS", 0.2)
    status, uri, more, needed = REST[name]
    places.server.status, places.server.opens = status, False
    at = {"http": places.http, "refuses": places.refuses, "silent": places.is_silent}
    path = project(tmp_path, {"type": "rest", "uri": uri.format(**at), **{k: v.format(**at) for k, v in more.items()}})
    said(run, path, *(word.format(**at) for word in needed))


@pytest.mark.parametrize(
    ("endpoint", "needed"),
    [
        (None, ["none-such", "NO_SUCH_BUCKET"]),
        pytest.param("refuses", ["NETWORK_CONNECTION", "{refuses}"], marks=pytest.mark.slow),
    ],
)
def test_a_warehouse_in_an_object_store(
    run: Run, tmp_path: Path, places: Places, store: str, endpoint: str | None, needed: list[str]
) -> None:
    address = store if endpoint is None else f"http://{places.refuses}"
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": "s3://none-such/warehouse"}
    words = (word.format(refuses=places.refuses.rpartition(":")[2]) for word in needed)
    said(run, project(tmp_path, {**catalog, **properties_of(address)}), *words, commands=("ingest", "doctor"))


def test_errors_of_this_package_and_of_programs_are_not_explained() -> None:
    assert in_plain_words(ValueError("database is locked")) is None
    assert in_plain_words(OSError("Connection refused")) == "Connection refused"  # the system's own words are
