"""Opening catalogs and creating what is in them, while others do the same."""

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import (
    create_table,
    metadata_location,
    open_catalog,
    open_to_look,
    sqlite_file,
)
from nevermore.pipelines.iceberg.metadata_swap import swap_location
from nevermore.scan_core.model.schema import NestedField, PrimitiveType
from tests.pipelines.project import Project

OPENERS = 6


@pytest.mark.parametrize("kind", ["folder", "FIFO", "text"])
def test_what_is_no_database_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    project = Project(tmp_path)
    project.write({"shop.products": {"key": ["id"]}})
    config = load(tmp_path / "nevermore.yaml")
    file = sqlite_file(config)
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "folder":
            file.mkdir()
        case "FIFO":
            os.mkfifo(file)
        case _:
            file.write_text("no database " * 100)
    for opener in (open_catalog, open_to_look):
        with pytest.raises(ConfigError) as refused:
            opener(config)
        assert str(file) in str(refused.value)
        assert "http" not in str(refused.value)
        assert ("is not a regular file" if kind != "text" else "is no SQLite database") in str(refused.value)


def test_new_catalog_and_table_are_made_once_by_several_at_the_same_time(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write({"shop.products": {"key": ["id"]}})
    config = load(tmp_path / "nevermore.yaml")
    together = Barrier(OPENERS)

    def made(_: int) -> Any:
        together.wait()
        catalog = open_catalog(config)
        return create_table(catalog, "shop.products", [NestedField(1, "id", PrimitiveType("long"))])

    with ThreadPoolExecutor(OPENERS) as threads:
        tables = list(threads.map(made, range(OPENERS)))
    assert len({table.metadata.table_uuid for table in tables}) == 1


def test_no_connection_to_the_database_is_left_to_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 warns of such a connection, and whatever keeps it keeps the file locked."""
    opened: list[sqlite3.Connection] = []

    class Recorded(sqlite3.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            opened.append(self)

    connect = partial(sqlite3.connect, factory=Recorded)
    monkeypatch.setattr("sqlite3.dbapi2.connect", connect)
    monkeypatch.setattr("sqlite3.connect", connect)
    project = Project(tmp_path)
    project.write({"shop.products": {"key": ["id"]}})
    config = load(tmp_path / "nevermore.yaml")
    table = create_table(open_catalog(config), "shop.products", [NestedField(1, "id", PrimitiveType("long"))])
    other = table.metadata_location.replace("00000-", "00001-")
    assert swap_location(open_catalog(config), ("shop", "products"), table.metadata_location, other)
    assert metadata_location(open_to_look(config), "shop.products") == other
    assert len(opened) > 2
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("select 1")
