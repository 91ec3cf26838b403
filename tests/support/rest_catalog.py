"""A REST catalog on a port of this machine, over an SQL catalog, whose answers to commits go wrong as asked.

It is as a proxy or load balancer would leave it: a request is done and told to have failed, done twice, or not at all.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest

from nevermore.pipelines.errors import CommitConflictError
from nevermore.pipelines.iceberg.loaded_table import metadata_location, storage_of
from nevermore.pipelines.iceberg.metadata_swap import commit_to_database

Fault = Literal[
    "repeated",
    "done-504",
    "done-503",
    "done-closed",
    "lost-504",
    "lost-closed",
    "lost-409",
    "late-504",
    "then-504",
    "down",
]
"""Of one commit: done and asked for again; done and told to have failed; not done; done some time later, at the latest
when a commit meets `then-504`. `lost-409` is told to be a conflict, as by a catalog that locks its tables. `down` does it and answers nobody any more."""


@dataclass
class FaultyCatalog:
    """What tests know of the server.

    Attributes:
        properties: by which a catalog is opened.
        known: the catalog behind it.
        faults: of the next commits, in order.
        commits: requests for a commit so far.
        is_down: whether nobody is answered.
        lent: properties of the object store that are given with each table, and to nobody else.
        late: what is still on its way.
    """

    properties: dict[str, str]
    known: Catalog
    faults: list[Fault] = field(default_factory=list)
    commits: int = 0
    is_down: bool = False
    lent: Mapping[str, str] = field(default_factory=dict)
    late: list[Callable[[], Any]] = field(default_factory=list)

    def happen_late(self) -> None:
        """Do the commits that were late, as far as the table still fits."""
        for done in self.late:
            with suppress(CommitFailedException):
                done()
        self.late.clear()


@contextmanager
def serving_catalog(
    folder: Path, *, warehouse: str | None = None, lent: Mapping[str, str] | None = None
) -> Iterator[FaultyCatalog]:
    """An empty catalog with its warehouse in `folder`, or in an object store for which it lends rights; stopped at the end."""
    place = warehouse or f"file://{folder}/warehouse"
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/rest.db", "warehouse": place, **(lent or {})}
    known = load_catalog("known", **properties)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    uri = f"http://127.0.0.1:{server.server_port}"
    catalog = FaultyCatalog({"type": "rest", "uri": uri}, known, lent=lent or {})
    server.faulty = catalog  # type: ignore[attr-defined]
    server.lock = threading.Lock()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield catalog
    finally:
        server.shutdown()
        thread.join()
        known.close()
        server.server_close()
        known.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    @property
    def _faulty(self) -> FaultyCatalog:
        found: FaultyCatalog = self.server.faulty
        return found

    def do_GET(self) -> None:
        self._handled(self._get)

    def do_HEAD(self) -> None:
        self._handled(self._get)

    def do_POST(self) -> None:
        self._handled(self._post)

    def _handled(self, handle: Any) -> None:
        if self._faulty.is_down:
            self.close_connection = True
            return
        with self.server.lock:
            try:
                handle([part for part in self.path.partition("?")[0].split("/") if part][1:])
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                self._refuse(404, f"{type(error).__name__.removesuffix('Error')}Exception", str(error))
            except TableAlreadyExistsError as error:
                self._refuse(409, "AlreadyExistsException", str(error))

    def _get(self, parts: list[str]) -> None:
        known = self._faulty.known
        match parts:
            case ["config"]:
                self._answer(200, {"defaults": {}, "overrides": {}})
            case ["namespaces", namespace]:
                self._answer(200, {"namespace": [namespace], "properties": known.load_namespace_properties(namespace)})
            case ["namespaces", namespace, "tables"]:
                names = [{"namespace": [namespace], "name": name[-1]} for name in known.list_tables(namespace)]
                self._answer(200, {"identifiers": names})
            case ["namespaces", namespace, "tables", name]:
                self._table(known.load_table((namespace, name)))

    def _post(self, parts: list[str]) -> None:
        known = self._faulty.known
        body = self.rfile.read(int(self.headers["Content-Length"]))
        match parts:
            case ["namespaces"]:
                known.create_namespace(tuple(json.loads(body)["namespace"]))
                self._answer(200, {"namespace": json.loads(body)["namespace"], "properties": {}})
            case ["namespaces", namespace, "tables"]:
                asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
                made = known.create_table(
                    (namespace, asked.name),
                    schema=asked.table_schema,
                    partition_spec=asked.partition_spec,  # type: ignore[arg-type] # our client always sends one
                    properties=asked.properties,
                )
                self._table(made)
            case ["namespaces", namespace, "tables", name]:
                self._commit(namespace, name, body)

    def _commit(self, namespace: str, name: str, body: bytes) -> None:
        faulty = self._faulty
        faulty.commits += 1
        fault = faulty.faults.pop(0) if faulty.faults else None
        request = CommitTableRequest.model_validate_json(body)

        def done() -> Any:
            return _committed(faulty.known, (namespace, name), request, json.loads(body))

        if fault == "late-504":
            faulty.late.append(done)
        elif fault == "then-504":
            faulty.happen_late()
        elif fault is None or not fault.startswith("lost"):
            try:
                response = done()
                if fault == "repeated":
                    done()
            except CommitFailedException as error:
                return self._refuse(409, "CommitFailedException", str(error))
            if fault is None:
                return self._answer(200, response)
        faulty.is_down = fault == "down"
        if fault.endswith(("closed", "down")):
            self.close_connection = True
            return None
        return self._refuse(int(fault[-3:]), "GatewayTimeout", "the catalog takes long")

    def _table(self, table: Any) -> None:
        self._answer(200, _content(table) | {"config": dict(self._faulty.lent)})

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self._answer(status, {"error": {"message": message, "type": kind, "code": status}})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        pass


def _committed(known: Catalog, name: tuple[str, str], request: CommitTableRequest, asked: dict[str, Any]) -> Any:
    table = known.load_table(name)
    if max(table.format_version, *(u.get("format-version", 0) for u in asked["updates"])) < 3:
        response = known.commit_table(table, request.requirements, request.updates)
        return json.loads(response.model_dump_json(by_alias=True))
    place = metadata_location(table)
    try:  # PyIceberg itself writes no tables of version 3
        commit_to_database(table, asked["requirements"], asked["updates"], storage_of(table), place)
    except CommitConflictError as error:
        raise CommitFailedException(str(error)) from error
    return _content(known.load_table(name))


def _content(table: Any) -> dict[str, Any]:
    with table.io.new_input(table.metadata_location).open() as file:
        return {"metadata-location": table.metadata_location, "metadata": json.load(file)}
