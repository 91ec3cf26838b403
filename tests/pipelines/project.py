"""A project of landed events and mirrors, as tests drive it: a folder, its config, runs, and rows as DuckDB reads them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport, TableReport

Event = dict[str, Any]


def event(op: str, row: Event | None = None, *, before: Event | None = None, table: str = "products") -> str:
    """A Debezium JSON event without envelope."""
    after = None if op == "d" else row
    old = row if op == "d" else before
    return json.dumps({"op": op, "before": old, "after": after, "source": {"db": "shop", "table": table}, "ts_ms": 1})


class Project:
    """A folder with a config and landed files."""

    def __init__(self, folder: Path, tables: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.landing = folder / "landing"
        self.landing.mkdir()
        self.write(tables or {"shop.products": {"key": ["id"]}})

    def write(self, tables: dict[str, Any], **options: Any) -> None:
        source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json", "options": options}
        defaults = {"source": source, "deletes": "equality"}  # so that tests see the deletes as commits write them
        document = {"tables": {name: {**defaults, **table} for name, table in tables.items()}}
        (self.folder / "nevermore.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    def land(self, name: str, lines: Iterable[str]) -> None:
        (self.landing / name).write_text("".join(f"{line}\n" for line in lines))

    def run(self, **arguments: Any) -> IngestReport:
        return run_once(load(self.folder / "nevermore.yaml"), **arguments)

    def table(self, name: str) -> Any:
        return find_table(open_catalog(load(self.folder / "nevermore.yaml")), name)

    def rows(self, name: str = "shop.products", *order: str) -> list[Event]:
        table = self.table(name)
        assert table is not None, f"no table {name}"
        found = live_rows(table.metadata_location.removeprefix("file://"))
        return list(found.sort_by([(column, "ascending") for column in order or ("id",)]).to_pylist())

    def snapshots(self) -> dict[str, int | None]:
        catalog = open_catalog(load(self.folder / "nevermore.yaml"))
        names = [name for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace)]
        return {".".join(name): catalog.load_table(name).metadata.current_snapshot_id for name in names}


def product(key: int, name: str = "a") -> Event:
    return {"id": key, "name": name}


def the(report: IngestReport) -> TableReport:
    (table,) = report.tables
    return table
