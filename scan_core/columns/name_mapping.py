"""Field ids for files that carry none: `schema.name-mapping.default` applied to a file's schema.

Only files without any field id are mapped; what has ids is never looked up by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from scan_core.columns.file_reader import FIELD_ID_KEY
from scan_core.model.errors import MalformedTableError
from scan_core.model.schema import MAX_TYPE_DEPTH


def apply_name_mapping(schema: pa.Schema, mapping: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """The schema with the mapping's ids as field metadata, at every depth; unmapped fields stay without.

    Raises:
        MalformedTableError: a mapping that is not of the form the specification gives.
    """
    try:
        return pa.schema(_mapped_fields(list(schema), mapping, 0))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MalformedTableError(f"schema.name-mapping.default is malformed: {error!r}") from error


def _mapped_fields(
    fields: Sequence[pa.Field], mapping: Sequence[Mapping[str, Any]] | None, depth: int
) -> list[pa.Field]:
    if depth > MAX_TYPE_DEPTH:
        raise MalformedTableError(f"schema.name-mapping.default nests deeper than {MAX_TYPE_DEPTH} levels")
    by_name = {name: entry for entry in mapping or () for name in entry.get("names", ())}
    return [_mapped_field(field, by_name.get(field.name), depth) for field in fields]


def _mapped_field(field: pa.Field, entry: Mapping[str, Any] | None, depth: int) -> pa.Field:
    nested = entry.get("fields") if entry else None
    result = field.with_type(_mapped_type(field.type, nested, depth + 1))
    if entry is None or (field_id := entry.get("field-id")) is None:
        return result.with_metadata(None)
    return result.with_metadata({FIELD_ID_KEY: str(int(field_id)).encode()})


def _mapped_type(data_type: pa.DataType, mapping: Sequence[Mapping[str, Any]] | None, depth: int) -> pa.DataType:
    if pt.is_struct(data_type):
        members = [data_type.field(i) for i in range(data_type.num_fields)]
        return pa.struct(_mapped_fields(members, mapping, depth))
    if pt.is_list(data_type) or pt.is_large_list(data_type):
        element = _mapped_fields([data_type.value_field.with_name("element")], mapping, depth)[0]
        element = element.with_name(data_type.value_field.name)
        return pa.large_list(element) if pt.is_large_list(data_type) else pa.list_(element)
    if pt.is_map(data_type):
        key, value = _mapped_fields(
            [data_type.key_field.with_name("key"), data_type.item_field.with_name("value")], mapping, depth
        )
        return pa.map_(key.with_name(data_type.key_field.name), value.with_name(data_type.item_field.name))
    return data_type
