"""Whether a mirror can be made as config asks: key and partition columns known, of types that they may have.

Asked before anything of a batch is committed, so what cannot become a table is not half written.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.config import TableConfig, partition_field
from pipelines.errors import ConfigError
from pipelines.tables.schema_evolution import iceberg_fields
from pipelines.tables.table_writer import check_key
from scan_core.errors import ScanError
from scan_core.schema import NestedField, Schema, arrow_type, parse_type
from scan_core.transforms import parse_transform

PARTITION_BY = "nevermore.partition_by"
"""Table property: what config said when the table was made."""
KEY = "nevermore.key"
"""Table property: the columns that identify a row."""
ADOPTED = "nevermore.adopted"
"""Table property: others made the table, so its own types count where the feed does not tell."""


def check_shape(name: str, config: TableConfig, key: Sequence[str], row_types: Mapping[str, pa.DataType]) -> None:
    """Refuse a table that could not be made.

    Args:
        name: of the mirror.
        config: of it.
        key: columns that identify a row; not used with `identity: full`.
        row_types: Arrow type of every column of its rows; type null where all values so far are NULL.

    Raises:
        ConfigError: a key or partition column without a known type, or a transform that is not for its type.
        SchemaConflictError: a key of a type that cannot identify a row.
    """
    fields = iceberg_fields(pa.schema(list(row_types.items())))
    schema = Schema(0, with_declared(fields, config))
    partition_by = [partition_field(text) for text in config.partition_by]
    keyless = config.identity == "full"
    for column in [*(() if keyless else key), *(source for _, source in partition_by)]:
        if column not in schema.names:
            raise ConfigError(
                f"{name}: the type of column {column!r} is unknown: all values so far are NULL, or it never came; give "
                f"it under types, e.g. types: {{{column}: string}}"
            )
    check_key(schema, [f.name for f in fields] if keyless else key)
    for transform, column in partition_by:
        kind = schema.find(column).type
        try:
            parse_transform(transform).apply(pa.nulls(0, arrow_type(kind)), kind)
        except ScanError as error:
            raise ConfigError(f"{name}: partition_by {column!r}: {error}") from error


def with_declared(fields: Sequence[NestedField], config: TableConfig) -> tuple[NestedField, ...]:
    """The columns, and those of `partition_by` that have no value yet, as config declares them under `types`."""
    known = {f.name for f in fields}
    sources = dict.fromkeys(partition_field(text)[1] for text in config.partition_by)
    declared = [c for c in sources if c not in known and c in config.types]
    first = max(Schema(0, tuple(fields)).field_ids, default=0) + 1
    return (*fields, *(NestedField(first + i, c, parse_type(config.types[c])) for i, c in enumerate(declared)))


def check_unchanged(
    name: str, config: TableConfig, *, log_name: str, logged_key: Sequence[str], table: Any | None
) -> None:
    """Refuse a config whose key or partitioning is not that of what is there already.

    Raises:
        ConfigError: what to do about it.
    """
    if config.key and logged_key and set(config.key) != set(logged_key):
        raise ConfigError(
            f"{name}: its key was ({', '.join(logged_key)}) and is now ({', '.join(config.key)}); {log_name} cannot be "
            f"read by another key: put the old one back, or drop {log_name} and {name} and ingest anew"
        )
    made = None if table is None else table.metadata.properties.get(PARTITION_BY)
    if made is not None and made != partition_text(config):
        raise ConfigError(
            f"{name}: partition_by was [{made}] when the table was made and is now [{partition_text(config)}]; put the "
            f"old one back, or drop {name} (not {log_name}) and make it anew with `nevermore resync {name}`"
        )


def partition_text(config: TableConfig) -> str:
    """`partition_by` in one spelling."""
    return ", ".join(f"{transform}({column})" for transform, column in map(partition_field, config.partition_by))
