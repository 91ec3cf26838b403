"""What all assets share: their names, groups and pools, and the project as a resource."""

import re

import dagster as dg

from nevermore.pipelines.config.project import Config, change_log_name, load
from nevermore.pipelines.iceberg.catalog import expanded

CHANGE_LOGS, MIRRORS, PUBLISHED = "change_log", "mirror", "published"
"""First parts of asset keys."""


def change_log_key(table: str) -> dg.AssetKey:
    """`change_log/shop_products` of the table `shop.products`."""
    return dg.AssetKey(change_log_name(table).split("."))


def mirror_key(table: str) -> dg.AssetKey:
    """`mirror/shop/products` of the table `shop.products`."""
    return dg.AssetKey([MIRRORS, *table.split(".")])


def published_key(name: str) -> dg.AssetKey:
    """`published/shop/orders_daily` of the published table `shop.orders_daily`."""
    return dg.AssetKey([PUBLISHED, *name.split(".")])


def table_pool(table: str) -> str:
    """The pool that serialises everything that writes one table; the instance limits pools to 1."""
    return "table_" + re.sub(r"\W", "_", table)


class Project(dg.ConfigurableResource):  # type: ignore[type-arg] # generic only for IO managers
    """The project whose nevermore.yaml is at `config_path`; every step reads the file again.

    Attributes:
        config_path: the nevermore.yaml.
        spark_master: where published tables are made, as `spark-submit --master`, instead of what the config says.
    """

    config_path: str
    spark_master: str | None = None

    def config(self) -> Config:
        """The validated config, with the tables that its patterns stand for by now.

        Raises:
            ConfigError: the file is missing or invalid.
        """
        return expanded(load(self.config_path))
