"""What all assets share: their names, groups and pools, and the project as a resource."""

import re
from collections.abc import Collection
from typing import Any

import dagster as dg

from nevermore.pipelines.config.project import Config, change_log_name, load
from nevermore.pipelines.iceberg.catalog import expanded
from nevermore.pipelines.ingest.project import Project, open_project
from nevermore.pipelines.ingest.report import TableReport
from nevermore.scan_core import Scan

MIRRORS, PUBLISHED = "mirror", "published"
"""First parts of the keys of assets that have rows of a table."""


def change_log_key(table: str) -> dg.AssetKey:
    """`change_log/shop_products` of the table `shop.products`."""
    return dg.AssetKey(change_log_name(table).split("."))


def mirror_key(table: str) -> dg.AssetKey:
    """`mirror/shop/products` of the table `shop.products`."""
    return dg.AssetKey([MIRRORS, *table.split(".")])


def own_key(config: Config, table: str) -> dg.AssetKey | None:
    """The asset of the user's own project that writes a table and stands for its mirror, if the config names one."""
    own = getattr(getattr(config.tables.get(table), "source", None), "asset", None)
    return own and dg.AssetKey.from_user_string(own)


def rows_key(config: Config, table: str) -> dg.AssetKey:
    """The asset of the rows of a table: the user's own, or our mirror."""
    return own_key(config, table) or mirror_key(table)


def published_key(name: str) -> dg.AssetKey:
    """`published/shop/orders_daily` of the published table `shop.orders_daily`."""
    return dg.AssetKey([PUBLISHED, *name.split(".")])


def table_pool(table: str) -> str:
    """The pool that serialises everything that writes one table; the instance limits pools to 1."""
    return "table_" + re.sub(r"\W", "_", table)


class NevermoreResource(dg.ConfigurableResource):  # type: ignore[type-arg] # generic only for IO managers
    """The project whose nevermore.yaml is at `config_path`; every step reads the file again.

    Example: `dg.Definitions(assets=[...], resources={"shop": NevermoreResource(config_path="nevermore.yaml")})`, then in an
    asset with the parameter `shop: NevermoreResource`: `shop.upsert("shop.orders", rows)`.

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

    def open(self) -> Project:
        """The project, as `nevermore.open_project` opens it."""
        return open_project(self.config_path)

    def scan(self, name: str) -> Scan:
        """As `Project.scan`."""
        return self.open().scan(name)

    def duckdb(self, names: Collection[str] | None = None) -> Any:
        """As `Project.duckdb`."""
        return self.open().duckdb(names)

    def upsert(self, name: str, data: Any, **options: Any) -> TableReport:
        """As `Project.upsert`."""
        return self.open().upsert(name, data, **options)

    def delete(self, name: str, keys: Any, **options: Any) -> TableReport:
        """As `Project.delete`."""
        return self.open().delete(name, keys, **options)

    def replace(self, name: str, data: Any, where: str, **options: Any) -> TableReport:
        """As `Project.replace`."""
        return self.open().replace(name, data, where, **options)
