"""The options in the documentation are those of the config: every key, its default, what it means."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from nevermore.pipelines.config.checks import ChecksConfig, PublishedChecksConfig
from nevermore.pipelines.config.project import AlertsConfig, SparkConfig
from nevermore.pipelines.config.published import PublishedConfig, PublishedOptions
from nevermore.pipelines.config.sources import FilesSource, KafkaSource, MysqlSource, PostgresSource
from nevermore.pipelines.config.tables import IndexConfig, IngestConfig, MaintenanceConfig, RetentionConfig, TableConfig

DOCS = Path(__file__).parents[2] / "docs"
UNITS = {
    "commit_interval": "60s",
    "every": "1h",
    "spark_above_bytes": "10GiB",
    "frame_bytes": "256MiB",
    "memory_bytes": "512MiB",
    "convert_after": "5m",
    "memory_limit_bytes": "1GiB",
    "target_file_bytes": "256MiB",
    "target_file_size": "256MiB",
    "keep_for": "5d",
    "orphan_age": "3d",
}


def reference(section: type[Any]) -> str:
    """The table of a section's options, from its docstring and defaults."""
    text = inspect.getdoc(section) or ""
    attributes = text.partition("Attributes:\n")[2]
    meanings = {
        m[1]: " ".join(m[2].split()) for m in re.finditer(r"^    (\w+): (.*(?:\n     +.*)*)", attributes, re.MULTILINE)
    }
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, field in section.model_fields.items():
        rows.append(f"| `{name}` | {_default(name, field)} | {meanings.get(name, '')} |")
    return "\n".join(rows)


def _default(name: str, field: Any) -> str:
    value = field.default_factory() if field.default_factory is not None else field.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ((), {}) or isinstance(value, BaseModel):
        return ""
    return f"`{UNITS.get(name, str(value).lower() if isinstance(value, bool) else value)}`"


@pytest.mark.parametrize(
    ("section", "page"),
    [
        (TableConfig, "ingesting.md"),
        (ChecksConfig, "checks.md"),
        (PublishedChecksConfig, "checks.md"),
        (FilesSource, "ingesting.md"),
        (IndexConfig, "indexes.md"),
        (IngestConfig, "ingesting.md"),
        (KafkaSource, "kafka.md"),
        (MysqlSource, "mysql.md"),
        (PostgresSource, "postgresql.md"),
        (MaintenanceConfig, "keep-a-mirror-fast.md"),
        (RetentionConfig, "keep-a-mirror-fast.md"),
        (PublishedConfig, "publishing.md"),
        (PublishedOptions, "spark.md"),
        (SparkConfig, "spark.md"),
        (AlertsConfig, "dagster.md"),
    ],
)
def test_every_option_is_documented_as_it_is(section: type[Any], page: str) -> None:
    wanted = reference(section)
    assert "|  |\n" not in wanted + "\n", "an option without a meaning in its docstring"
    assert wanted in (DOCS / page).read_text(), f"docs/{page} lacks this table:\n{wanted}"
