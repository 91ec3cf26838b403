"""What a caller may give as keys (lists, arrays, tables, scans), as the distinct key rows of some columns.

A row with a NULL in any column matches nothing and is dropped here, as is what cannot be a value of its column.
"""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from scan_core.joins.column_keys import KeyField
from scan_core.joins.key_types import as_column_values
from scan_core.model.errors import OptionError


def key_table(keys: Any, names: Sequence[str]) -> pa.Table:
    """Keys as a table with one column per name, in their own types.

    Args:
        keys: of one column a sequence of values or an Arrow array; of several a sequence of tuples; or anything that is
            or exports an Arrow table: its columns of these names, or all of them in order.
        names: of the key columns.

    Raises:
        OptionError: no keys, or not as many columns as names.
    """
    if isinstance(keys, str | bytes) or (not isinstance(keys, Iterable) and not hasattr(keys, "__arrow_c_stream__")):
        raise OptionError(f"keys must be a list, an Arrow array or table, or a scan, not {type(keys).__name__}")
    if isinstance(keys, pa.RecordBatch):
        keys = pa.Table.from_batches([keys])
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return _named([keys], names)
    if not isinstance(keys, pa.Table) and hasattr(keys, "__arrow_c_stream__"):
        keys = _exported(keys)
    if isinstance(keys, pa.Table):
        if set(names) <= set(keys.column_names):
            return _named([keys.column(name) for name in names], names)
        return _named(keys.columns, names)
    if len(names) == 1:
        return _named([_array(keys if hasattr(keys, "dtype") else list(keys), names[0])], names)
    rows = list(keys)
    if not rows:
        return _named([pa.nulls(0) for _ in names], names)
    if {len(row) if isinstance(row, tuple | list) else 1 for row in rows} != {len(names)}:
        raise OptionError(f"keys of the columns {', '.join(names)} must be tuples of {len(names)} values")
    return _named([_array(list(part), name) for part, name in zip(zip(*rows, strict=True), names, strict=True)], names)


def distinct_keys(keys: pa.Table, columns: Sequence[KeyField], names: Sequence[str]) -> tuple[pa.Array, ...]:
    """The distinct key rows as values of the columns; one array per column, none with NULL.

    Raises:
        OptionError: keys of another kind than their column.
    """
    arrays = [
        as_column_values(keys.column(index).combine_chunks(), name, column.type)
        for index, (name, column) in enumerate(zip(names, columns, strict=True))
    ]
    labels = [f"k{i}" for i in range(len(arrays))]
    rows = pa.table(dict(zip(labels, arrays, strict=True))).drop_null()
    if len(labels) == 1:
        return (_whole(rows.column(0).unique()),)
    return tuple(_whole(c) for c in rows.group_by(labels).aggregate([]).columns)


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _named(columns: Sequence[pa.Array | pa.ChunkedArray], names: Sequence[str]) -> pa.Table:
    if len(columns) != len(names):
        raise OptionError(f"keys have {len(columns)} columns, but {len(names)} are to be matched: {', '.join(names)}")
    return pa.table({f"k{i}": column for i, column in enumerate(columns)})


def _exported(keys: Any) -> pa.Table:
    found = pa.RecordBatchReader.from_stream(keys).read_all() if not hasattr(keys, "__arrow_c_array__") else None
    if found is None:
        array = pa.array(keys)
        return pa.table({"k0": array})
    return found


def _array(values: Any, name: str) -> pa.Array:
    if isinstance(values, list) and any(isinstance(v, UUID) for v in values):
        values = [v.bytes if isinstance(v, UUID) else v for v in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise OptionError(f"keys of column {name!r}: {error}") from error
