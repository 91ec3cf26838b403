"""What people see of an asset before its first run: group, owners, tags, kinds, description, and where it is configured.

Everything comes from the config alone, so that definitions load without a network, a table or Spark.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import quote

import dagster as dg
from sqlglot.errors import SqlglotError

from checks.data_docs import page_of
from pipelines.config.project import Config
from pipelines.errors import ConfigError
from pipelines.publish.query import published_query
from scan_core.spark import DIALECT

Layer = Literal["change_log", "mirror", "published"]
LAYER = "nevermore/layer"
"""Tag of every asset, for selections: `tag:nevermore/layer=mirror`."""
_KINDS: dict[Layer, set[str]] = {
    "change_log": {"iceberg", "parquet"},
    "mirror": {"iceberg", "parquet"},
    "published": {"iceberg", "spark", "sql"},
}


def labels(config: Config, name: str, layer: Layer, table: str, what: str) -> dict[str, Any]:
    """Arguments of an asset or its spec.

    Args:
        config: the project.
        name: entry of `tables` or `published`.
        layer: kind of the table.
        table: its name in the catalog.
        what: one sentence about every table of this kind, which follows the description in the config.
    """
    entry = config.published[name] if layer == "published" else config.tables[name]
    described = [entry.description.strip()] if entry.description else []
    freshness = entry.freshness
    return {
        "group_name": entry.group or group_of(name),
        "owners": list(entry.owners),
        "tags": {LAYER: layer, **entry.tags},
        "kinds": _KINDS[layer],
        "description": "\n\n".join([*described, what]),
        "metadata": {
            "dagster/table_name": table,
            "dagster/storage_kind": "iceberg",
            "dagster/code_references": _code_references(config, name),
            **(
                {"data docs": _data_docs(config, name)}
                if layer != "change_log" and entry.checks.has_expectations
                else {}
            ),
        },
        "freshness_policy": None
        if freshness is None
        else dg.FreshnessPolicy.time_window(fail_window=timedelta(seconds=freshness)),
    }


def group_of(name: str) -> str:
    """The group of a table without one in the config: its namespace, with the characters that Dagster allows."""
    namespace = name.rpartition(".")[0]
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in namespace)


def formatted_sql(config: Config, name: str) -> str:
    """The SQL of a published table with one clause per line; as written where it cannot be parsed."""
    written = config.published[name].sql.strip()
    try:
        return str(published_query(config, name).tree.sql(dialect=DIALECT, pretty=True))
    except (ConfigError, SqlglotError):
        return written


def _data_docs(config: Config, name: str) -> dg.MetadataValue[Any]:
    """Where the page of a table's expectations is: an address if the config has one, otherwise the file."""
    if config.docs.url is None:
        return dg.MetadataValue.path(str(config.docs.folder_of(config.path) / page_of(name)))
    return dg.MetadataValue.url(f"{config.docs.url.rstrip('/')}/{quote(page_of(name))}")


def _code_references(config: Config, name: str) -> dg.CodeReferencesMetadataValue:
    """The entry in the config file."""
    path, line = config.path, config.line(name)
    with preview_features():
        reference = dg.LocalFileCodeReference(file_path=str(path), line_number=line, label=f"{path.name}:{line}")
        return dg.CodeReferencesMetadataValue(code_references=[reference])


@contextmanager
def preview_features() -> Iterator[None]:
    """Use what Dagster calls beta or preview: links to code, backfill policies, partitions of checks; nothing else does this."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        warnings.simplefilter("ignore", dg.PreviewWarning)
        yield
