"""Turns an existing table into a mirror: checks it, then records the change of its log from which it is maintained.

Its rows, ids, specs and sort orders do not change. From then on it is written like any other mirror.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import TABLE_PROPERTIES, find_table
from nevermore.pipelines.iceberg.commit import RowDelta, commit, retry_conflicts, upgrade
from nevermore.pipelines.iceberg.loaded_table import current_schema, open_current
from nevermore.pipelines.iceberg.row_shape import python_rows, without_extensions
from nevermore.pipelines.iceberg.table_writer import check_key
from nevermore.pipelines.mirrors.table_shape import (
    ADOPTED,
    ADOPTED_ORDINAL,
    ADOPTED_SNAPSHOT,
    partition_text,
    shape_properties,
)
from nevermore.pipelines.wording import counted

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

MAX_SHOWN_KEYS = 20


@dataclass(frozen=True, slots=True)
class Adopted:
    """A table that has become a mirror.

    Attributes:
        table: its name.
        num_rows: its number of rows.
        key: columns that identify a row.
        applied_ordinal: last ordinal of the change log that counts as applied.
        snapshot_id: snapshot of the commit that records it.
    """

    table: str
    num_rows: int
    key: tuple[str, ...]
    applied_ordinal: int
    snapshot_id: int


def adopt(
    catalog: "Catalog", config: Config, name: str, *, skip_log: bool = False, upgrade_format: bool = False
) -> Adopted:
    """Turn an existing table into a mirror.

    Args:
        catalog: catalog of the table.
        config: config of the project.
        name: name of the table and of its entry in the config.
        skip_log: whether its rows contain all changes logged so far, so that only later ones are applied.
        upgrade_format: whether to upgrade a table of format version 1 to version 2.

    Raises:
        ConfigError: no such entry, or its key or partitioning differs from the table's.
        SourceError: there is no such table, it is already a mirror or has an unsupported version, its key is not
            unique, or without a key its rows may already contain changes of the log.
    """
    settings = config.table(name)
    table = find_table(catalog, name)
    if table is None:
        raise SourceError(f"the catalog has no table {name} to adopt; nevermore ingest creates one")
    if positions.newest_property(table, positions.LOG_ORDINAL) is not None:
        raise SourceError(f"{name} is already a mirror: {change_log_name(name)} is applied to it")
    _check_version(table, name, settings, upgrade_format=upgrade_format)
    key = _key(table, name, settings)
    _check_partitioning(table, name, settings)
    num_rows = _check_rows(table, name, key)
    log = ChangeLog(catalog, change_log_name(name))
    ordinal = log.ready_ordinal if skip_log else 0
    if settings.identity == "full" and log.last_ordinal > ordinal:
        raise SourceError(
            f"{name} has no key, so a change that its rows hold already would count once more: {log.name} has "
            f"{log.last_ordinal:,}; if the rows hold them all, adopt it with --skip-log"
        )
    if table.format_version == 1:
        upgrade(table, 2)
    properties = {k: v for k, v in TABLE_PROPERTIES.items() if k != "format-version"}
    properties |= {**shape_properties(key, settings), ADOPTED: "true"}
    commit(table, [], [{"action": "set-properties", "updates": properties}])

    def attempt() -> int:
        table.refresh()
        reached = {positions.LOG_ORDINAL: str(ordinal)}
        if log.snapshot_id is not None:
            reached[positions.LOG_SNAPSHOT] = str(log.snapshot_id)
        delta = RowDelta(table)
        # Set with this commit, so that it names the snapshot on which the first change builds.
        adopted = str(table.metadata.current_snapshot_id or "")
        delta.set_properties({ADOPTED_SNAPSHOT: adopted, ADOPTED_ORDINAL: str(ordinal)})
        return delta.commit([], reached, operation="append").snapshot_id

    return Adopted(name, num_rows, key, ordinal, retry_conflicts(attempt))


def _check_version(table: "Table", name: str, settings: TableConfig, *, upgrade_format: bool) -> None:
    if table.format_version == 1 and not upgrade_format:
        raise SourceError(
            f"{name} has format version 1, which has no delete files; --upgrade makes it version 2, which readers of "
            "version 1 alone cannot read"
        )
    if table.format_version > max(settings.format_version, 2):
        raise SourceError(
            f"{name} has format version {table.format_version}, but its config has format_version: {settings.format_version}; "
            "versions 2 and 3 are written"
        )


def _key(table: "Table", name: str, settings: TableConfig) -> tuple[str, ...]:
    if settings.identity == "full":
        return ()
    schema = current_schema(table)
    declared = [f.name for f in schema.fields if f.field_id in schema.identifier_field_ids]
    key = settings.key or tuple(declared)
    if not key:
        raise ConfigError(f"{name}: neither config nor table states what identifies a row; declare it: key: [...]")
    check_key(schema, key)
    return tuple(key)


def _check_partitioning(table: "Table", name: str, settings: TableConfig) -> None:
    schema = table.schema()
    fields = [f"{f.transform}({schema.find_column_name(f.source_id)})" for f in table.spec().fields]
    own = ", ".join(text for text in fields if not text.startswith("void("))
    if settings.partition_by and partition_text(settings) != own:
        raise ConfigError(
            f"{name} is partitioned by [{own}], but the config has partition_by [{partition_text(settings)}]; an adopted "
            "table keeps its partitioning: correct partition_by, or leave it out"
        )


def _check_rows(table: "Table", name: str, key: Sequence[str]) -> int:
    """Count the rows. A key shared by several rows is refused: its next change would delete all but one of them."""
    scan = open_current(table).scan()
    if not key:
        return int(scan.count())
    keys = without_extensions(scan.select(*key).to_table())
    labels = [f"c{i}" for i in range(len(key))]  # Arrow treats a name that begins with a dot as a path
    by_key = keys.select(list(key)).rename_columns(labels).group_by(labels).aggregate([([], "count_all")])
    shared = by_key.filter(pc.greater(by_key.column("count_all"), 1))
    if shared.num_rows:
        shown = ", ".join(_shown(row) for row in python_rows(shared.select(labels).slice(0, MAX_SHOWN_KEYS)))
        raise SourceError(
            f"{name} has {counted(shared.num_rows, 'key')} ({', '.join(key)}) with several rows, so a key identifies no row; "
            f"declare another key, or identity: full. Keys: {shown}"
        )
    return int(keys.num_rows)


def _shown(row: dict[str, Any]) -> str:
    values = [str(value) for value in row.values()]
    return values[0] if len(values) == 1 else f"({', '.join(values)})"
