"""The result of a Spark query written and committed as one business day of a published table.

Imports pyspark. Tasks write the files and report them (`publish_writer.py`); the driver names them in one snapshot.
"""

from collections.abc import Mapping
from datetime import date
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from pipelines.catalog import create_table, find_table
from pipelines.commit import Committed, RowDelta, partition_is, retry_conflicts
from pipelines.errors import ConfigError, PublishError, SchemaConflictError
from pipelines.file_metrics import WrittenFile
from pipelines.publish_writer import REPORT_SCHEMA, PublishTask, files_of
from pipelines.schema_evolution import evolve, iceberg_fields
from scan_core.schema import NestedField

_EPOCH = date(1970, 1, 1)


class DayReplacement:
    """Writes the rows of a day once, commits them as often as others are faster.

    Files are written anew only if the table's schema changed between two attempts.
    """

    def __init__(self, catalog: Any, name: str, result: DataFrame, partition: str) -> None:
        self._catalog = catalog
        self._name = name
        self._result = result
        self._columns = _columns(result, name)
        self._partition = partition
        self._written_for: tuple[NestedField, ...] | None = None
        self.files: list[WrittenFile] = []

    def commit(self, day: date, properties: Mapping[str, str]) -> Committed:
        """Replace the day.

        Raises:
            CommitConflictError: others were faster too often.
        """
        return retry_conflicts(lambda: self._attempt((day - _EPOCH).days, properties))

    def _attempt(self, day: int, properties: Mapping[str, str]) -> Committed:
        table = find_table(self._catalog, self._name) or create_table(
            self._catalog, self._name, self._columns, partition_by=[("identity", self._partition)]
        )
        delta = RowDelta(table)
        evolution = evolve(delta.schema, self._columns, table.metadata.last_column_id)
        if evolution.clashes:
            clash = evolution.clashes[0]
            raise ConfigError(
                f"published {self._name}: column {clash.column!r} is {clash.table_type} in the table and "
                f"{clash.feed_type} in the result: cast it, rename it, or drop the table"
            )
        if evolution.changed:
            delta.evolve(evolution.schema)
        if self._written_for != delta.schema.fields:
            self.files = _write(self._result, delta, self._name)
            self._written_for = delta.schema.fields
        remove = partition_is(delta.default_spec.spec_id, (day,))
        return delta.commit(self.files, properties, remove=remove, operation="overwrite")


def spark_message(error: Exception) -> str:
    """The part of Spark's message that a person needs: for a failed Python task, the error of the task itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _is_python_error(line)), lines[0] if lines else repr(error))


def _columns(result: DataFrame, name: str) -> tuple[NestedField, ...]:
    """The Iceberg columns of a result."""
    names = result.columns
    if twice := sorted({column for column in names if names.count(column) > 1}):
        raise ConfigError(f"published {name}: several columns are called {', '.join(twice)}: give them aliases")
    if void := [f.name for f in result.schema.fields if f.dataType.typeName() == "void"]:
        raise ConfigError(f"published {name}: column {void[0]!r} is NULL without a type: write cast(null as ...)")
    try:
        return iceberg_fields(to_arrow_schema(result.schema, timezone="UTC"))
    except (PySparkException, SchemaConflictError) as error:
        raise ConfigError(f"published {name}: {spark_message(error)}; cast it") from error


def _write(result: DataFrame, delta: RowDelta, name: str) -> list[WrittenFile]:
    task = PublishTask(delta.target, delta.default_spec)
    try:
        reports = result.mapInArrow(task, REPORT_SCHEMA).collect()
    except PySparkException as error:
        raise PublishError(f"published {name}: the Spark job failed: {spark_message(error)}") from error
    return files_of(bytes(report["report"]) for report in reports)


def _is_python_error(line: str) -> bool:
    name, _, rest = line.partition(":")
    return bool(rest) and name.endswith("Error") and " " not in name
