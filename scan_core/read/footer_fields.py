"""How the fields of a Parquet footer are read that take most of it: row groups, and in them columns that repeat.

What a column says in one row group it mostly says in the next, byte for byte, so that it is known again.
"""

from typing import Any

from scan_core.read.thrift import (
    LIST,
    STRUCT,
    ReadField,
    Struct,
    ThriftError,
    read_list_header,
    read_struct,
    read_value,
)

_REPEATING_FIELDS = (2, 3, 13, 16)
"""Of column metadata: encodings, path, encoding statistics, size statistics."""


def row_groups_reader() -> ReadField:
    """Reads the row groups of one footer."""
    columns: list[ReadField] = []

    def read_columns(data: bytes, position: int, kind: int, depth: int) -> tuple[list[Struct], int]:
        size, position = structs_at(data, position, kind)
        found = []
        for index in range(size):
            if index == len(columns):
                columns.append(_column_reader())
            column, position = columns[index](data, position, STRUCT, depth + 1)
            found.append(column)
        return found, position

    def read_groups(data: bytes, position: int, kind: int, depth: int) -> tuple[list[Struct], int]:
        size, position = structs_at(data, position, kind)
        found = []
        for _ in range(size):
            group, position = read_struct(data, position, depth + 1, {1: read_columns})
            found.append(group)
        return found, position

    return read_groups


def structs_at(data: bytes, position: int, kind: int) -> tuple[int, int]:
    """How many structs the list at `position` has, and where the first one begins.

    Raises:
        ThriftError: it is no list of structs.
    """
    if kind != LIST:
        raise ThriftError(f"a list has the wire type {kind}")
    size, element, position = read_list_header(data, position)
    if size and element != STRUCT:
        raise ThriftError(f"structs have the wire type {element}")
    return size, position


def read_encoded(data: bytes, position: int, kind: int, depth: int) -> tuple[bytes, int]:
    """The bytes of a value, whatever it says."""
    _, end = read_value(data, position, kind, depth)
    return data[position:end], end


def _column_reader() -> ReadField:
    inside = {field_id: _remembering() for field_id in _REPEATING_FIELDS}

    def read_metadata(data: bytes, position: int, kind: int, depth: int) -> tuple[Any, int]:
        if kind != STRUCT:
            raise ThriftError(f"column metadata has the wire type {kind}")
        return read_struct(data, position, depth + 1, inside)

    readers: dict[int, ReadField] = {3: read_metadata}
    return lambda data, position, _, depth: read_struct(data, position, depth, readers)


def _remembering() -> ReadField:
    """Reads a value, and knows it again by its bytes: an encoded value is never the beginning of another."""
    raw, value, wire = b"", None, 0

    def read(data: bytes, position: int, kind: int, depth: int) -> tuple[Any, int]:
        nonlocal raw, value, wire
        if wire == kind and data.startswith(raw, position):
            return value, position + len(raw)
        value, end = read_value(data, position, kind, depth)
        raw, wire = data[position:end], kind
        return value, end

    return read
