"""Opening catalogs and creating what is in them, while others do the same."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

from pipelines.config.project import load
from pipelines.iceberg.catalog import create_table, open_catalog
from scan_core.model.schema import NestedField, PrimitiveType
from tests.pipelines.project import Project

OPENERS = 6


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
