"""Record batches as Spark's Arrow reader wants them: exactly the declared types, names and nullability.

Spark checks only the first batch of a task and crashes or misreads on the others, so every batch is conformed. No
pyspark here: the target is an Arrow schema.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.errors import UnsupportedError

_HEX = np.array([list(f"{value:02x}".encode()) for value in range(256)], dtype=np.uint8)
_UUID_GROUPS = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16))
"""Byte ranges between the hyphens of a UUID's text."""


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with the columns, types and nullability of `schema`, by position.

    Args:
        batch: of the table's types; its columns are in the order of `schema`.
        schema: what Spark was told.

    Raises:
        UnsupportedError: a column cannot become the declared type without loss.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [_conform_array(array, field) for array, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conform_array(array: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == field.type:
        return array
    if array.type == pa.binary(16) and pa.types.is_string(field.type):
        return uuid_text(array)
    if pa.types.is_nested(field.type):
        return _conform_nested(array, field)
    try:
        return pc.cast(array, field.type, safe=True)
    except pa.ArrowException as error:
        raise UnsupportedError(f"column {field.name!r}: {array.type} does not fit Spark's {field.type}") from error


def _conform_nested(array: pa.Array, field: pa.Field) -> pa.Array:
    """Rebuild children under the declared type; offsets and null masks stay as they are."""
    target = field.type
    mask = pc.is_null(array) if array.null_count else None
    if pa.types.is_struct(target):
        # StructArray.field() honours the slice's offset but not the parent's nulls, which `mask` brings back.
        members = [_conform_array(array.field(i), target.field(i)) for i in range(target.num_fields)]
        return pa.StructArray.from_arrays(members, fields=list(target), mask=mask)
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])  # from_arrays takes no mask with sliced offsets
    offsets = array.offsets
    if pa.types.is_map(target):
        keys = _conform_array(array.keys, target.key_field)
        items = _conform_array(array.items, target.item_field)
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)
    values = _conform_array(array.values, target.value_field)
    return pa.ListArray.from_arrays(offsets, values, type=target, mask=mask)


def uuid_text(array: pa.Array) -> pa.Array:
    """Sixteen-byte values as lower-case text with hyphens, NULL kept."""
    num_rows = len(array)
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint8) if num_rows else np.empty(0, dtype=np.uint8)
    values = raw[array.offset * 16 : (array.offset + num_rows) * 16].reshape(num_rows, 16)
    digits = _HEX[values].reshape(num_rows, 32)
    text = np.full((num_rows, 36), ord("-"), dtype=np.uint8)
    for hyphens, (first, last) in enumerate(_UUID_GROUPS):
        text[:, 2 * first + hyphens : 2 * last + hyphens] = digits[:, 2 * first : 2 * last]
    offsets = np.arange(0, 36 * (num_rows + 1), 36, dtype=np.int32)
    validity = pc.is_valid(array).buffers()[1] if array.null_count else None
    return pa.StringArray.from_buffers(num_rows, pa.py_buffer(offsets), pa.py_buffer(text), validity)
