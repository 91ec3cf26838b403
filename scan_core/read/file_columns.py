"""The columns of a Parquet file as Arrow sees them, struct members among them; files of one schema share theirs.

Which leaf columns of the file each of them is made of is told here, where their bytes lie by `footer.py`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from scan_core.bounded_cache import BoundedCache
from scan_core.read.file_reader import field_id_of
from scan_core.read.struct_members import Way, leaf_ranges, members_of

_REMEMBERED_SCHEMAS = 64


@dataclass(frozen=True, slots=True, eq=False)
class FileColumns:
    """The columns of one schema.

    Attributes:
        arrow_schema: with field ids as metadata.
        ways: the way to each column: top-level ones first, then struct members, which are columns of their own.
        numbers: of columns, by their ways.
        fields: of each column.
        leaves: for each column the indices of its leaf columns.
        ranges: the same by the ways.
        num_leaves: of all columns.
        string_columns: top-level columns of strings, which may be worth reading as dictionaries.
        has_field_ids: some field at some depth has an id.
    """

    arrow_schema: pa.Schema
    ways: tuple[Way, ...]
    numbers: Mapping[Way, int]
    fields: tuple[pa.Field, ...]
    leaves: tuple[range, ...]
    ranges: Mapping[Way, range]
    num_leaves: int
    string_columns: tuple[int, ...]
    has_field_ids: bool


def file_columns(schema: pa.Schema) -> FileColumns:
    """The columns of a schema.

    Raises:
        MalformedTableError: a field id that is no number.
    """
    leaves = leaf_ranges(schema)
    members = members_of(schema, leaves)
    ways = (*((i,) for i in range(len(schema))), *(way for way, _, _ in members))
    all_leaves = (*leaves, *(found for _, _, found in members))
    return FileColumns(
        schema,
        ways,
        {way: number for number, way in enumerate(ways)},
        (*schema, *(field for _, field, _ in members)),
        all_leaves,
        dict(zip(ways, all_leaves, strict=True)),
        leaves[-1].stop if leaves else 0,
        tuple(i for i, f in enumerate(schema) if pt.is_string(f.type) or pt.is_large_string(f.type)),
        any(_has_id(field) for field in schema),
    )


COLUMNS: BoundedCache[bytes, FileColumns] = BoundedCache()
"""Of the schemas seen last, by what the footer says of them."""
os.register_at_fork(after_in_child=COLUMNS.forget_threads)


def known_columns(identity: bytes, read_schema: Callable[[], pa.Schema]) -> FileColumns:
    """The columns of the schema with this identity, found if they are not known; two threads may both find them."""
    known = COLUMNS.find(identity)
    return COLUMNS.put(identity, file_columns(read_schema()), _REMEMBERED_SCHEMAS) if known is None else known


def _has_id(field: pa.Field) -> bool:
    if field_id_of(field) is not None:
        return True
    return pt.is_nested(field.type) and any(_has_id(field.type.field(i)) for i in range(field.type.num_fields))
