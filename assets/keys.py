"""Names of assets, groups and pools. What an asset is called is decided here; what it does, elsewhere."""

import re

import dagster as dg

from pipelines.config import change_log_name

CHANGE_LOG_GROUP = "change_log"
MIRROR_GROUP = "mirror"
PUBLISHED_GROUP = "published"


def change_log_key(table: str) -> dg.AssetKey:
    """`change_log/shop_products` of the table `shop.products`."""
    return dg.AssetKey(change_log_name(table).split("."))


def mirror_key(table: str) -> dg.AssetKey:
    """`mirror/shop/products` of the table `shop.products`."""
    return dg.AssetKey([MIRROR_GROUP, *table.split(".")])


def published_key(name: str) -> dg.AssetKey:
    """`published/shop/orders_daily` of the published table `shop.orders_daily`."""
    return dg.AssetKey([PUBLISHED_GROUP, *name.split(".")])


def table_pool(table: str) -> str:
    """The pool that serialises everything that writes one table; the instance limits pools to 1."""
    return "table_" + re.sub(r"\W", "_", table)
