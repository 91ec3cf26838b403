"""Tables by their names in catalogs that are servers: REST and Glue on loopback, Hive as far as its configuration."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.catalog import Catalog, CatalogType, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from nevermore.scan_core.model.errors import TableNotFoundError
from nevermore.scan_core.scan import open_table
from tests.support.object_server import serving

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture(autouse=True)
def _no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _fill(catalog: Catalog) -> None:
    catalog.create_namespace("a")
    catalog.create_table("a.items", schema=ROWS.schema).append(ROWS)


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Properties of a REST catalog: as much of the protocol as loading a table takes, over a SQL catalog."""
    known = load_catalog(
        "known", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    _fill(known)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if self.headers.get("Authorization") != "Bearer secret":
                return self._answer(401, _error(401, "NotAuthorizedException", "who are you?"))
            if path == "/v1/config":
                return self._answer(200, {"defaults": {}, "overrides": {"from-server": "yes"}})
            try:
                table = known.load_table(tuple(path.split("/")[i] for i in (3, 5)))
            except NoSuchTableError as error:
                return self._answer(404, _error(404, "NoSuchTableException", str(error)))
            content = {"metadata-location": table.metadata_location, "config": {"of-table": "5"}}
            return self._answer(200, content | {"metadata": json.loads(table.metadata.model_dump_json())})

        def _answer(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}", "token": "secret"}
    server.shutdown()
    thread.join()
    server.server_close()
    known.close()


def _error(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}


def test_a_table_of_a_rest_catalog_is_read_by_its_name(rest: dict[str, str]) -> None:
    table = open_table("lake.a.items", properties=rest)
    assert table.scan().to_table().equals(ROWS)
    assert table.io.properties["of-table"] == "5"
    assert table.io.properties["from-server"] == "yes"


def test_what_a_rest_catalog_refuses_is_one_message(rest: dict[str, str]) -> None:
    with pytest.raises(TableNotFoundError, match=r"catalog 'lake' has no table 'a\.gone'"):
        open_table("lake.a.gone", properties=rest)
    with pytest.raises(TableNotFoundError, match=r"cannot open a catalog 'lake': UnauthorizedError: .*who are you"):
        open_table("lake.a.items", properties=rest | {"token": "wrong"})
    with pytest.raises(TableNotFoundError, match="cannot open a catalog 'lake': ConnectionError"):
        open_table("lake.a.items", properties=rest | {"uri": "http://127.0.0.1:9"})


@pytest.fixture
def glue(tmp_path: Path) -> Iterator[dict[str, str]]:
    with serving() as endpoint:
        properties = {
            "type": "glue",
            "glue.endpoint": endpoint,
            "glue.region": "us-east-1",
            "glue.access-key-id": "key",
            "glue.secret-access-key": "secret",
            "warehouse": f"file://{tmp_path}/warehouse",
        }
        _fill(load_catalog("lake", **properties))
        yield properties


def test_a_table_of_a_glue_catalog_is_read_by_its_name_or_refused_in_one_message(glue: dict[str, str]) -> None:
    assert open_table("lake.a.items", properties=glue).scan().to_table().equals(ROWS)
    with pytest.raises(TableNotFoundError, match=r"catalog 'lake' has no table 'a\.gone'"):
        open_table("lake.a.gone", properties=glue)
    with pytest.raises(
        TableNotFoundError, match=r"catalog 'lake' cannot load the table 'a\.items': EndpointConnection"
    ):
        open_table("lake.a.items", properties=glue | {"glue.endpoint": "http://127.0.0.1:9"})


def test_the_properties_of_a_hive_catalog_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, dict[str, str]]] = []

    def connect(name: str, properties: dict[str, str]) -> Any:
        seen.append((name, properties))
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setitem(pyiceberg.catalog.AVAILABLE_CATALOGS, CatalogType.HIVE, connect)
    properties = {"type": "hive", "uri": "thrift://metastore:9083", "s3.endpoint": "http://s3"}
    with pytest.raises(TableNotFoundError, match="ConnectionRefusedError: nobody listens"):
        open_table("lake.a.items", properties=properties)
    ((name, passed),) = seen
    assert name == "lake"
    assert properties.items() <= passed.items()
