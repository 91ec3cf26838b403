"""Keys that a caller gives: as a table, as distinct values of columns, and as text for other processes."""

import base64
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from nevermore.scan_core.joins.column_keys import KeyField
from nevermore.scan_core.joins.key_set import as_column_values
from nevermore.scan_core.model.errors import OptionError


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
    if hasattr(keys, "__arrow_c_array__"):
        return pa.table({"k0": pa.array(keys)})
    return pa.RecordBatchReader.from_stream(keys).read_all()


def _array(values: Any, name: str) -> pa.Array:
    if isinstance(values, list) and any(isinstance(v, UUID) for v in values):
        values = [v.bytes if isinstance(v, UUID) else v for v in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise OptionError(f"keys of column {name!r}: {error}") from error


_CODEC = "zstd"


def to_bytes(table: pa.Table) -> bytes:
    """An Arrow stream, compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=_CODEC)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> pa.Table:
    """The table in the bytes that `to_bytes` gave.

    Raises:
        OptionError: not such bytes.
    """
    try:
        return pa.ipc.open_stream(data).read_all()
    except (pa.ArrowException, OSError) as error:
        raise OptionError(f"keys of a runtime filter cannot be read: {error}") from error


def to_text(table: pa.Table) -> str:
    """The bytes in characters that every option can hold."""
    return base64.b85encode(to_bytes(table)).decode("ascii")


def from_text(text: str) -> pa.Table:
    """The table in the text that `to_text` gave.

    Raises:
        OptionError: not such text.
    """
    try:
        return from_bytes(base64.b85decode(text))
    except ValueError as error:
        raise OptionError(f"keys of a runtime filter cannot be read: {error}") from error
