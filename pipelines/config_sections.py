"""nevermore.yaml as a whole: its catalog, its tables by name, and what must hold between them.

What one table may say is in `table_section.py`; reading the file and saying where something is wrong is the business of
`config.py`.
"""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pipelines.config_values import Cron, Section, placed
from pipelines.errors import ConfigError
from pipelines.published.sections import PublishedConfig
from pipelines.spark_section import SparkConfig
from pipelines.table_section import TableConfig

DEFAULT_PARALLEL_TABLES = 2
"""Half of the work is Python, which runs one thread at a time."""
ALL_TABLES = ".*"
"""Ends the name of an entry that stands for all tables of its feed."""
_TABLE_NAME = re.compile(r"[^.\x00-\x1f/\\]+(\.[^.\x00-\x1f/\\]+)+")
LONGEST_TABLE_NAME = 200
"""Bytes: change logs put all of it into one folder name, with a prefix, and folder names end at 255."""


def is_table_name(name: str) -> bool:
    """Whether a table can have this name, namespaces included."""
    return _TABLE_NAME.fullmatch(name) is not None and len(name.encode()) <= LONGEST_TABLE_NAME


class CatalogConfig(BaseModel):
    """Which Iceberg catalog: `type` and whatever properties PyIceberg knows for it pass through."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "nevermore"
    type: Literal["sql", "rest", "hive", "glue", "dynamodb", "in-memory"] = "sql"
    uri: str | None = None
    warehouse: str | None = None

    @property
    def properties(self) -> dict[str, str]:
        """Everything as PyIceberg takes it: text by name."""
        given = self.model_dump(exclude={"name"}, exclude_none=True)
        return {name: str(value) for name, value in given.items()}


class Config(Section):
    """A whole nevermore.yaml, with paths resolved against its folder.

    Attributes:
        catalog: where tables are.
        tables: mirrors by name.
        published: tables made from them.
        spark: where and how Spark runs.
        ingest_schedule: cron expression, in UTC, of when Dagster applies what is new, running by default; without it every five minutes, once the schedule is switched on.
        tables_elsewhere: whether a run may write tables of the catalog that lie outside of `warehouse` while that has files of them, too, as in a copied project.
        parallel_tables: so many tables of a feed are folded, written and committed at the same time.
        patterns: entries of `tables` called `namespace.*`: mirrors that are known once their feed has carried them.
        path: of the file.
    """

    catalog: CatalogConfig = CatalogConfig()
    tables: dict[str, TableConfig]
    published: dict[str, PublishedConfig] = Field(default_factory=dict)
    spark: SparkConfig = SparkConfig()
    ingest_schedule: Cron | None = None
    tables_elsewhere: Literal["refuse", "allow"] = "refuse"
    parallel_tables: Annotated[int, Field(ge=1)] = DEFAULT_PARALLEL_TABLES
    patterns: dict[str, TableConfig] = Field(default_factory=dict, exclude=True)
    path: Path = Field(default=Path("nevermore.yaml"), exclude=True)

    @field_validator("tables", "published")
    @classmethod
    def _are_table_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not is_table_name(name):
                raise placed(
                    f"{name!r} must be namespace.table, of at most {LONGEST_TABLE_NAME} bytes, without slashes and control "
                    "characters",
                    name,
                )
            if set(name.removesuffix(ALL_TABLES)) & set("*?["):
                what = "the only pattern is namespace.*, narrowed by include_tables, exclude_tables"
                raise placed(what, name)
        return value

    @model_validator(mode="after")
    def _has_options_where_they_mean_something(self) -> "Config":
        for name, table in self.tables.items():
            is_pattern = name.endswith(ALL_TABLES)
            if not is_pattern and (table.include_tables or table.exclude_tables):
                what = "include_tables and exclude_tables are for entries namespace.*"
                raise placed(what, "tables", name)
            if is_pattern and table.source_table is not None:
                what = "source_table is for one table; use include_tables"
                raise placed(what, "tables", name, "source_table")
        return self

    @model_validator(mode="after")
    def _has_distinct_logs(self) -> "Config":
        logs: dict[str, str] = {}
        for name in self.tables:
            other = logs.setdefault(change_log_name(name), name)
            if other != name:
                what = f"would share the change log {change_log_name(name)} with {other}; rename one of them"
                raise placed(what, "tables", name)
        if both := sorted(set(self.tables) & set(self.published)):
            what = f"{both[0]} is the name of a mirror, too; a published table needs a name of its own"
            raise placed(what, "published", both[0])
        return self

    @property
    def folder(self) -> Path:
        """The folder of the config file, against which its paths are resolved."""
        return self.path.parent

    def table(self, name: str) -> TableConfig:
        """The config of a mirror.

        Raises:
            ConfigError: no such entry; names the nearest.
        """
        if name in self.tables:
            return self.tables[name]
        if (pattern := name.rpartition(".")[0] + ALL_TABLES) in self.patterns and not name.endswith(ALL_TABLES):
            return self.patterns[pattern]
        near = get_close_matches(name, sorted(self.tables), n=1, cutoff=0.0)
        hint = f"did you mean {near[0]}?" if near else "the config has no tables"
        raise ConfigError(f"no table {name!r} in {self.path.name}; {hint}")


def change_log_name(table: str) -> str:
    """`change_log.shop_products` for `shop.products`."""
    return "change_log." + table.replace(".", "_")


def quarantine_name(table: str) -> str:
    """`quarantine.shop_products` for `shop.products`."""
    return "quarantine." + table.replace(".", "_")
