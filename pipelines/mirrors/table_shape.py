"""Checks whether a mirror can be created as configured.

Key and partition columns must be known and have types that Iceberg allows for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from nevermore.pipelines.config.tables import RESERVED_NAMES, TableConfig, partition_field
from nevermore.pipelines.errors import ConfigError, SchemaConflictError
from nevermore.pipelines.iceberg.loaded_table import current_schema
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.scan_core import NestedField, PrimitiveType, ScanError, Schema, arrow_type
from nevermore.scan_core.metadata import parse_transform, parse_type

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

_OF_TIMES = "year", "month", "day", "hour"
PARTITION_BY = "nevermore.partition_by"
"""Table property: `partition_by` of the config when the table was created."""
KEY = "nevermore.key"
"""Table property: the columns that identify a row."""
IDENTITY = "nevermore.identity"
"""Table property: `identity` of the config when the table was created."""
SOFT_DELETE = "nevermore.soft_delete"
"""Table property: whether deleted rows stay in the table."""
ADOPTED = "nevermore.adopted"
"""Table property: the table was adopted, so its own types apply where the feed declares none."""
ADOPTED_SNAPSHOT = "nevermore.adopted-snapshot"
"""Table property: the snapshot whose rows are in no change log; empty if all rows are from the log."""
ADOPTED_ORDINAL = "nevermore.adopted-ordinal"
"""Table property: the last ordinal of the change log that the adopted rows contain."""


def check_shape(name: str, config: TableConfig, key: Sequence[str], row_types: Mapping[str, pa.DataType]) -> None:
    """Refuse a table that cannot be created.

    Args:
        name: name of the mirror.
        config: its config.
        key: columns that identify a row; not used with `identity: full`.
        row_types: Arrow type of every column of its rows; type null where all values so far are NULL.

    Raises:
        ConfigError: a column whose name is reserved, empty or holds NUL, a key or partition column without a known
            type, a transform that is not for its type, or a column to sort by that does not exist.
        SchemaConflictError: a key of a type that cannot identify a row, or too many columns.
    """
    # a run that finds nothing new loads neither a writer nor a scanner
    from nevermore.pipelines.iceberg.table_writer import check_key
    from nevermore.pipelines.jsonscan.members import MAX_COLUMNS

    if len(row_types) > MAX_COLUMNS:
        raise SchemaConflictError(
            f"{name}: more than {MAX_COLUMNS:,} columns: names of members of its events, such as {[*row_types][-1]}, seem to be "
            "data. None of the batch was applied; list the columns to keep under include, or leave some out with exclude"
        )
    _check_names(name, row_types)
    fields = iceberg_fields(pa.schema(list(row_types.items())))
    schema = Schema(0, with_declared(fields, config))
    partition_by = [partition_field(text) for text in config.partition_by]
    keyless = config.identity == "full"
    for column in [*(() if keyless else key), *(source for _, source in partition_by)]:
        if column not in schema.names:
            raise ConfigError(
                f"{name}: the type of column {column!r} is unknown: all values so far are NULL, or there are none; "
                f"declare it under types, e.g. types: {{{column}: string}}"
            )
    check_key(schema, [f.name for f in fields] if keyless else key)
    _check_sort(name, config, schema)
    for transform, column in partition_by:
        kind = schema.find(column).type
        try:
            parse_transform(transform).apply(pa.nulls(0, arrow_type(kind)), kind)
        except ScanError as error:
            raise ConfigError(
                f"{name}: partition_by {column!r}: {error}{_type_hint(config, transform, column)}"
            ) from error


def _check_names(table: str, row_types: Mapping[str, pa.DataType]) -> None:
    """Refuse names that tables, files or other engines do not support."""
    for column, kind in row_types.items():
        reason = next(filter(None, (why_no_name(column), *map(_why_no_member_name, _member_names(kind)))), None)
        if reason is None:
            continue
        raise ConfigError(
            f"{table}: column {column!r} cannot be in a table: {reason}; rename it with rename, or leave it out "
            "with exclude"
        )


def why_no_name(column: str) -> str | None:
    """The reason why a table cannot have a column with a name; None if it can."""
    return "Iceberg has a metadata column of that name" if column in RESERVED_NAMES else _why_no_member_name(column)


def _why_no_member_name(name: str) -> str | None:
    return "a name is empty or holds a NUL character" if not name or "\0" in name else None


def _member_names(kind: pa.DataType) -> Iterator[str]:
    """The names of struct members at any depth."""
    for i in range(kind.num_fields):
        child = kind.field(i)
        if pa.types.is_struct(kind):
            yield child.name
        yield from _member_names(child.type)


def _type_hint(config: TableConfig, transform: str, column: str) -> str:
    """A hint to declare a time, where the transform needs one and the feed does not declare it."""
    source = next((was for was, now in config.rename.items() if now == column), column)
    if transform not in _OF_TIMES or not {source, column}.isdisjoint(config.types):
        return ""
    return f"; if it contains times, declare it under types: {{{source}: timestamptz}}, or date, or timestamp without a zone"


def with_declared(fields: Sequence[NestedField], config: TableConfig) -> tuple[NestedField, ...]:
    """The columns, and those of `partition_by` and `sort_by` without values so far, with their declared `types`."""
    known = {f.name for f in fields}
    sources = dict.fromkeys((*(partition_field(text)[1] for text in config.partition_by), *config.sort_by))
    declared = [c for c in sources if c not in known and c in config.types]
    first = max(Schema(0, tuple(fields)).field_ids, default=0) + 1
    return (*fields, *(NestedField(first + i, c, parse_type(config.types[c])) for i, c in enumerate(declared)))


def shape_properties(key: Sequence[str], config: TableConfig) -> dict[str, str]:
    """Properties that record the config with which a table was created."""
    return {KEY: ",".join(key), PARTITION_BY: partition_text(config), IDENTITY: config.identity} | soft_delete_property(
        config
    )


def soft_delete_property(config: TableConfig) -> dict[str, str]:
    """The property that may change when a table is rebuilt from its log."""
    return {SOFT_DELETE: str(config.soft_delete).lower()}


def check_unchanged(
    name: str, config: TableConfig, *, log_name: str, logged_key: Sequence[str], table: "CatalogTable | None"
) -> None:
    """Refuse a config that contradicts the existing tables, before any event is read.

    Raises:
        ConfigError: they contradict; says what to do.
    """
    if config.key and logged_key and set(config.key) != set(logged_key):
        raise ConfigError(
            f"{name}: its key was ({', '.join(logged_key)}) and is now ({', '.join(config.key)}); {log_name} cannot be "
            f"read by another key: restore the old one, or drop {log_name} and {name} and ingest again"
        )
    if table is None:
        return
    if table.format_version > config.format_version:
        raise ConfigError(
            f"{name}: the table has format version {table.format_version}, which cannot be lowered; add format_version: "
            f"{table.format_version}"
        )
    made_by = table.metadata.properties
    made = made_by.get(PARTITION_BY)
    # the log of an adopted table does not contain its initial rows
    rebuild = f", or drop {name} (not {log_name}) and rebuild it with `nevermore resync {name}`"
    if made is not None and made != partition_text(config):
        raise ConfigError(
            f"{name}: partition_by was [{made}] when the table was created and is now [{partition_text(config)}]; restore "
            "the old one" + ("" if ADOPTED in made_by else rebuild)
        )
    if (identity := made_by.get(IDENTITY, config.identity)) != config.identity:
        raise ConfigError(
            f"{name}: identity was {identity} when the table was created and is now {config.identity}; restore the old one, "
            f"or drop {log_name} and {name} and ingest again"
        )
    wanted = soft_delete_property(config)[SOFT_DELETE]
    if (flagged := made_by.get(SOFT_DELETE, wanted)) != wanted:
        raise ConfigError(
            f"{name}: soft_delete was {flagged} when the table was created and is now {wanted}; restore the old one, or rebuild "
            f"the table from its log: nevermore resync {name}"
        )
    _check_sort(name, config, current_schema(table))


def _check_sort(name: str, config: TableConfig, schema: Schema) -> None:
    plain = [f.name for f in schema.fields if isinstance(f.type, PrimitiveType)]
    if unknown := [column for column in config.sort_by if column not in plain]:
        raise ConfigError(
            f"{name}: sort_by: {unknown[0]} is not a plain column of the table; choose from {', '.join(plain)}, or declare its type "
            "under types"
        )


def partition_text(config: TableConfig) -> str:
    """`partition_by` in a normalized spelling."""
    return ", ".join(f"{transform}({column})" for transform, column in map(partition_field, config.partition_by))
