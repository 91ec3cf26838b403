"""What a source tells of its tables becomes their mirrors: tables without rows have columns, too."""

from decimal import Decimal
from typing import Any

import pytest

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.loaded_table import current_schema, open_current
from nevermore.pipelines.ingest.feed_run import apply_logs, run_once
from nevermore.pipelines.maintain.replay import resync, resync_from_source
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


@pytest.mark.each(10)
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


GONE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "key": ({}, []),
    "renamed in the config": ({"rename": {"a": "label"}}, []),
    "soft deletes": ({"soft_delete": True}, ["a"]),
}


@pytest.mark.each(12)
@pytest.mark.parametrize("change", ["DROP COLUMN a", "RENAME COLUMN a TO b"], ids=["dropped", "renamed"])
@pytest.mark.parametrize("way", GONE)
def test_columns_that_the_source_no_longer_has_are_dropped_by_a_resync(way: str, change: str, shop: Shop) -> None:
    settings, kept = GONE[way]
    shop.sql("INSERT INTO items VALUES (1, 'x', 1.5), (2, 'y', NULL)")
    config = shop.config("items", **settings)
    shop.ingest(config)
    shop.sql(f"ALTER TABLE items {change}", "INSERT INTO items (id) VALUES (3)")
    shop.ingest(config)
    before = columns(config).keys()
    assert {"a", "label"} & before
    resync_from_source(open_catalog(config), config, "shop.items")
    now = {"id", "price", *(["b"] if "RENAME" in change else []), *kept}
    assert columns(config).keys() - {"_deleted"} == now
    shop.sql("INSERT INTO items (id) VALUES (4)")
    shop.ingest(config)
    assert [row["id"] for row in rows(config)] == [1, 2, 3, 4]
    if "RENAME" in change:
        assert [row["b"] for row in rows(config)] == ["x", "y", None, None]
    resync(open_catalog(config), config, "shop.items")
    assert columns(config).keys() - {"_deleted"} == now
    earlier = open_catalog(config).load_table("shop.items").metadata.schemas
    assert any({"a", "label"} & set(schema.column_names) for schema in earlier)


def test_a_column_that_comes_back_after_a_resync_has_only_new_values(shop: Shop) -> None:
    shop.sql("INSERT INTO items VALUES (1, 'x', 1.5)")
    config = shop.config("items")
    shop.ingest(config)
    shop.sql("ALTER TABLE items DROP COLUMN a")
    shop.ingest(config)
    resync_from_source(open_catalog(config), config, "shop.items")
    shop.sql("ALTER TABLE items ADD COLUMN a int", "INSERT INTO items (id, a) VALUES (2, 7)")
    shop.ingest(config)
    assert columns(config) == {"id": "int", "price": "decimal(10, 2)", "a": "int"}
    assert [row["a"] for row in rows(config)] == [None, 7]


@pytest.mark.each(4)
@pytest.mark.parametrize(
    "settings", [{"partition_by": ["truncate(3, a)"]}, {"sort_by": ["a"]}], ids=["partition", "order"]
)
def test_a_column_of_the_layout_that_the_source_no_longer_has_is_named(shop: Shop, settings: dict[str, Any]) -> None:
    shop.sql("INSERT INTO items VALUES (1, 'x', 1.5)")
    config = shop.config("items", **settings)
    shop.ingest(config)
    shop.sql("ALTER TABLE items DROP COLUMN a")
    shop.ingest(config)
    with pytest.raises(SourceError, match=r"column 'a'|sort_by: a is not"):
        resync_from_source(open_catalog(config), config, "shop.items")
    assert rows(config) == [{"id": 1, "a": "x", "price": Decimal("1.50")}]
