"""Changes of a table's columns that the config does not let through at once: `schema_changes: freeze | approve`."""

import json
from collections.abc import Mapping

import pyarrow as pa

from pipelines.changes.change_log import ChangeLog
from pipelines.config.tables import TableConfig
from pipelines.decode.column_types import widened
from pipelines.errors import SchemaConflictError
from pipelines.iceberg.schema_evolution import iceberg_type

PENDING = "nevermore.schema-changes.pending"
"""Property of a change log: columns with the types that events want them to have, as JSON."""
APPROVED = "nevermore.schema-changes.approved"


def check_schema_change(
    name: str, config: TableConfig, log: ChangeLog, known: Mapping[str, pa.DataType], row_type: pa.StructType
) -> None:
    """Refuse rows that would change the columns of a table, unless the config or an approval allows it.

    Args:
        name: the table.
        config: its settings.
        log: its change log, which records what waits for approval.
        known: columns so far; without any, these are the first rows.
        row_type: columns of the new rows.

    Raises:
        SchemaConflictError: names the columns, and what to do.
    """
    if config.schema_changes == "evolve" or not known:
        return
    wanted = _changes(known, row_type)
    approved = _read(log, APPROVED) if config.schema_changes == "approve" else {}
    refused = {column: kind for column, kind in wanted.items() if approved.get(column) != kind}
    if not refused:
        return
    seen = ", ".join(
        f"{column} {kind} (so far {_text(known[column])})" if column in known else f"{column} {kind} (new)"
        for column, kind in refused.items()
    )
    if config.schema_changes == "freeze":
        do = "leave new columns out with exclude, keep types with types, or allow changes (schema_changes: approve or evolve)"
    else:
        do = f"look at it, then let it through: nevermore approve {name}"
        if _read(log, PENDING) != refused:
            log.set_properties({PENDING: json.dumps(refused)})
    raise SchemaConflictError(
        f"{name}: events change its columns: {seen}. schema_changes: {config.schema_changes} stops the table before them, and "
        f"none of the batch was applied; {do}"
    )


def approve(log: ChangeLog) -> dict[str, str]:
    """Let the changes through for which the table stopped; returns the columns with their types.

    Raises:
        CommitConflictError: an ingester appended in the meantime.
    """
    pending = _read(log, PENDING)
    if pending:
        log.set_properties({APPROVED: json.dumps({**_read(log, APPROVED), **pending}), PENDING: "{}"})
    return pending


def _read(log: ChangeLog, name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(log.property(name) or "{}")
    return found


def _changes(known: Mapping[str, pa.DataType], row_type: pa.StructType) -> dict[str, str]:
    """Columns that are new or wider, with their types; columns without values so far have none."""
    found = {}
    for column in row_type:
        if pa.types.is_null(column.type) or known.get(column.name) == column.type:
            continue
        if column.name in known:
            before = pa.struct([pa.field(column.name, known[column.name])])
            united = widened(before, pa.struct([column]))
            if united is not None and pa.struct(list(united)) == before:
                continue
        found[column.name] = _text(column.type)
    return found


def _text(kind: pa.DataType) -> str:
    return str(iceberg_type(kind))
