"""Rows of a file in the order of some of their columns: ascending, NULL last, uuid by its bytes."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import SchemaConflictError
from scan_core.schema import PrimitiveType, Schema


def check_order(rows: pa.Table, names: Sequence[str], schema: Schema) -> None:
    """Refuse columns that do not exist, or that have no order.

    Raises:
        SchemaConflictError: names the columns that may be chosen.
    """
    for name in names:
        if name not in rows.column_names or not isinstance(schema.find(name).type, PrimitiveType):
            raise SchemaConflictError(
                f"rows cannot be sorted by {name!r}: choose from the plain columns {', '.join(rows.column_names)}"
            )


def in_order(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows sorted by these columns."""
    keys = rows.select(list(names))
    if keys.num_columns == 1 and _is_ascending(keys.column(0)):
        return rows
    # By place: Arrow takes a name that begins with a point for a path.
    plain = keys.cast(pa.schema([pa.field(f.name, _sortable(f.type)) for f in keys.schema]))
    labels = [f"c{i}" for i in range(keys.num_columns)]
    return rows.take(pc.sort_indices(plain.rename_columns(labels), [(label, "ascending") for label in labels]))


def _is_ascending(column: pa.ChunkedArray) -> bool:
    """Whether integers come in order already, as keys that a source counts up do; False for all else."""
    if column.null_count or not pa.types.is_integer(column.type):
        return False
    values = column.to_numpy()
    return bool((values[1:] >= values[:-1]).all())


def _sortable(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
