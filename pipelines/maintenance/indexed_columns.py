"""The columns that an index is asked for, by name, and whether their types can have one."""

from collections.abc import Sequence

from pipelines.errors import ConfigError
from scan_core.bitmap_index.layout import is_indexable
from scan_core.schema import ListType, NestedField, PrimitiveType, Schema, StructType


def indexed_fields(schema: Schema, columns: Sequence[str], *, case_sensitive: bool) -> dict[str, NestedField]:
    """The columns by the names asked for.

    Raises:
        ConfigError: a column whose type cannot be indexed, or no column.
    """
    if not columns:
        raise ConfigError("name the columns to index with --columns")
    found: dict[str, NestedField] = {}
    for name in columns:
        column = schema.find(name, case_sensitive=case_sensitive)
        path = schema.path(column.field_id)
        if not all(isinstance(f.type, StructType) for f in path[:-1]):
            raise ConfigError(f"column {name!r} lies inside a list or map: index the list itself")
        element = column.type.element.type if isinstance(column.type, ListType) else column.type
        if not is_indexable(element):
            raise ConfigError(
                f"column {name!r} of type {column.type} cannot have a bitmap index; "
                "strings, integers, booleans, dates, times, uuids, bytes and lists of them can"
            )
        found[name] = column
    return found


def value_type_of(column: NestedField) -> PrimitiveType:
    """The type of the values that an index has bitmaps of: those of a list, one by one."""
    found = column.type.element.type if isinstance(column.type, ListType) else column.type
    assert isinstance(found, PrimitiveType)  # noqa: S101 - checked before anything was read
    return found
