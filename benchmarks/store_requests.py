"""How many requests does each command send to an object store?

A store takes tens of milliseconds for each and counts them on its bill. The server is moto's, on this machine.
"""

import logging
import sys
import tempfile
import threading
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from tests.pipelines.project import event, product
from tests.support.object_server import properties_of, store_of

COMMITS = 3
TABLE = "shop.products"
COMMANDS = {"scan": ["scan", TABLE], "check": ["check", TABLE], "idle": ["ingest"]}


@contextmanager
def counting_store() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Address of an empty store, and the (kind, object) of each request so far."""
    app, asked = DomainDispatcherApplication(create_backend_app), list[tuple[str, str]]()

    def counted(environ: Mapping[str, Any], start: Any) -> Any:
        kind, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        is_upload = "upload" in query.lower()
        is_list = kind == "GET" and "list-type" in query
        asked.append(("UPLOAD" if is_upload else "LIST" if is_list else kind, environ["PATH_INFO"].rpartition("/")[2]))
        return app(environ, start)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, counted, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def requests_of_commands(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """The requests of an ingest of five changes, a scan and a check of a table of three commits, and an ingest of nothing."""
    found = {}
    with counting_store() as (address, asked):
        properties = properties_of(address)
        store = store_of(properties)
        store.create_dir("counted/landing")
        source = {"type": "files", "path": "s3://counted/landing/*.jsonl", "format": "debezium-json"}
        catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "s3://counted/warehouse", **properties}
        config = folder / "nevermore.yaml"
        config.write_text(
            yaml.safe_dump(
                {"catalog": catalog, "tables": {TABLE: {"source": source, "key": ["id"], "deletes": "equality"}}}
            )
        )
        load(config)
        for number in range(COMMITS):
            rows = [product(key, f"v{number}") for key in range(5)]
            with store.open_output_stream(f"counted/landing/{number:03}.jsonl") as stream:
                stream.write("".join(f"{event('u' if number else 'c', row)}\n" for row in rows).encode())
            found["ingest"] = _requests(asked, ["ingest"], config)
        for name, command in COMMANDS.items():
            found[name] = _requests(asked, command, config)
    return found


def _requests(asked: list[tuple[str, str]], command: list[str], config: Path) -> list[tuple[str, str]]:
    asked.clear()
    with suppress(SystemExit):
        main([*command, "--config", str(config)])
    return list(asked)


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as place:
        for name, requests in requests_of_commands(Path(place)).items():
            print(f"{name:8}{len(requests):4} requests: {dict(Counter(kind for kind, _ in requests))}", file=sys.stderr)
