"""Opening catalogs and creating what is in them, while others do the same."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import create_table, open_catalog, open_to_look, sqlite_file
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
