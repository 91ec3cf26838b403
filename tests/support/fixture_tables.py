"""The shared fixture tables: where they lie, and what each snapshot must hold."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from tests.conftest import find_shared

FOLDERS = ("fixtures", "fixtures_java")


@dataclass(frozen=True)
class FixtureTable:
    """One table of a folder; `facts` is its entry in expected.json."""

    folder: Path
    name: str
    facts: Mapping[str, Any]

    @property
    def metadata(self) -> str:
        return str(self.folder / self.name / self.facts["metadata"])

    @property
    def relocate(self) -> dict[str, str]:
        return {self.facts["location"]: str(self.folder / self.name)}

    def columns(self, snapshot: str) -> list[str]:
        return list(self.facts.get("columns_by_snapshot", {}).get(snapshot, self.facts["columns"]))


@cache
def fixture_tables() -> dict[str, FixtureTable]:
    """All fixture tables by name; none where the shared folder is missing."""
    shared = find_shared()
    tables = {}
    for folder in FOLDERS if shared else ():
        root = shared / folder
        for name, facts in json.loads((root / "expected.json").read_text()).items():
            tables[name] = FixtureTable(root, name, facts)
    return tables


def snapshots() -> list[tuple[str, str]]:
    """(table, snapshot id) of every snapshot of every table."""
    return [(name, s) for name, t in fixture_tables().items() for s in t.facts["rows_by_snapshot"]]


def moved(value: Any, old: str, new: str) -> Any:
    """A document with another prefix in every text."""
    if isinstance(value, dict):
        return {k: moved(v, old, new) for k, v in value.items()}
    if isinstance(value, list):
        return [moved(v, old, new) for v in value]
    return value.replace(old, new) if isinstance(value, str) else value


def copied(fixture: Path, folder: Path, location: str) -> Path:
    """A copy of a table whose metadata, manifests and Parquet position deletes say where the copy is."""
    shutil.copytree(fixture, folder)
    for path in sorted((folder / "metadata").glob("*.avro"), key=lambda path: path.name.startswith("snap-")):
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            schema, facts = reader.writer_schema, dict(reader.metadata)
            rows = [moved(row, location, str(folder)) for row in reader]
        for row in rows:
            if "manifest_length" in row:
                row["manifest_length"] = Path(row["manifest_path"]).stat().st_size
        facts = {k: v for k, v in facts.items() if not k.startswith("avro.")}
        with path.open("wb") as file:
            fastavro.writer(file, schema, rows, codec="deflate", metadata=facts)
    for path in (folder / "metadata").glob("*.metadata.json"):
        path.write_text(json.dumps(moved(json.loads(path.read_text()), location, str(folder))))
    for path in folder.rglob("*.parquet"):
        names = pq.read_schema(path).names
        if names[:2] == ["file_path", "pos"]:
            rows = pq.read_table(path)
            paths = [text.replace(location, str(folder)) for text in rows["file_path"].to_pylist()]
            pq.write_table(rows.set_column(0, rows.schema.field(0), pa.array(paths)), path)
    return folder
