"""What a source tells of its tables becomes their mirrors: tables without rows have columns, too."""

from typing import Any

import pytest

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.loaded_table import current_schema, open_current
from nevermore.pipelines.ingest.feed_run import apply_logs, run_once
from tests.pipelines.postgres.conftest import Shop as PostgresShop
from tests.pipelines.sources.conftest import Shop


@pytest.fixture
def shop(empty_shop: Shop) -> Shop:
    empty_shop.sql("CREATE TABLE items (id int PRIMARY KEY, a varchar(20), price numeric(10,2))")
    if isinstance(empty_shop, PostgresShop):
        empty_shop.sql("CREATE PUBLICATION pub FOR TABLE items")
    return empty_shop


def columns(config: Config, name: str = "shop.items") -> dict[str, str]:
    table = find_table(open_catalog(config), name)
    return {} if table is None else {f.name: str(f.type) for f in current_schema(table).fields}


def rows(config: Config, name: str = "shop.items") -> list[dict[str, Any]]:
    found = open_current(open_catalog(config).load_table(name)).scan().to_table()
    return sorted(found.to_pylist(), key=lambda row: str(row["id"]))


ITEMS = {"id": "int", "a": "string", "price": "decimal(10, 2)"}
VARIANTS: dict[str, dict[str, Any]] = {
    "key": {},
    "whole rows": {"identity": "full"},
    "soft deletes": {"soft_delete": True},
    "partitions": {"partition_by": ["bucket(4, id)"], "sort_by": ["price"]},
    "renamed": {"rename": {"a": "label"}, "exclude": ["price"]},
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_table_without_rows_gets_its_mirror(shop: Shop, settings: dict[str, Any]) -> None:
    if "identity" in settings and isinstance(shop, PostgresShop):
        shop.sql("ALTER TABLE items REPLICA IDENTITY FULL")
    config = shop.config("items", **settings)
    for _ in range(2):
        shop.ingest(config)
        wanted = {"id": "int", "label": "string"} if "rename" in settings else ITEMS
        assert columns(config) == wanted
        assert rows(config) == []
    shop.sql("INSERT INTO items VALUES (1, 'x', 1.5), (2, 'y', NULL)", "DELETE FROM items WHERE id = 2")
    shop.ingest(config)
    assert [row["id"] for row in rows(config)] == ([1, 2] if "soft_delete" in settings else [1])
    assert columns(config) == wanted | ({"_deleted": "boolean"} if "soft_delete" in settings else {})


def test_mirror_without_rows_can_be_created_from_its_log(shop: Shop) -> None:
    config = shop.config("items")
    run_once(config, log_only=True)
    assert columns(config) == {}
    apply_logs(config)
    assert columns(config) == ITEMS


def test_shape_of_a_table_without_rows_is_checked_before_anything_is_written(shop: Shop) -> None:
    config = shop.config("items", partition_by=["day(a)"])
    (table,) = run_once(config).tables
    assert "partition_by" in str(table.error)
    assert find_table(open_catalog(config), "change_log.shop_items") is None
    shop.ingest(shop.config("items"))
