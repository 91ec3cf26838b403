"""The shared fixture tables: where they lie, and what each snapshot must hold."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
