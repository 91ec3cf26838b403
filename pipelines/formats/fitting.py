"""Values of one type in a column of another, where no promotion covers the change: only those that lose nothing.

Numbers stay the same number, dates become midnight; any other change of kind fits no value at all.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.formats.casting import cast_each
from pipelines.formats.span_text import Decoded, Mask, null_mask, true_mask


def fitted(array: pa.Array, arrow: pa.DataType) -> Decoded:
    """The array as `arrow`, and the mask of values that are none (NULL there)."""
    held = array.type
    if held == arrow or pa.types.is_null(held):
        return array.cast(arrow), np.zeros(len(array), np.bool_)
    if pa.types.is_struct(held) and pa.types.is_struct(arrow):
        return _structs(array, arrow)
    if pa.types.is_list(held) and pa.types.is_list(arrow):
        return _lists(array, arrow)
    if is_number(held) and is_number(arrow):
        return _numbers(array, arrow)
    is_midnight = pa.types.is_date(held) and pa.types.is_timestamp(arrow) and arrow.tz is None
    if is_midnight or (_is_bytes(held) and _is_bytes(arrow)):
        return cast_each(array, arrow)
    return pa.nulls(len(array), arrow), np.asarray(array.is_valid())


def is_number(arrow: pa.DataType) -> bool:
    """Integers, decimals, floats, and truth as 0 and 1."""
    types = pa.types
    return bool(
        types.is_integer(arrow) or types.is_decimal(arrow) or types.is_floating(arrow) or types.is_boolean(arrow)
    )


def _numbers(array: pa.Array, arrow: pa.DataType) -> Decoded:
    if pa.types.is_boolean(arrow):
        whole, bad = cast_each(array, pa.int64())
        bad = bad | true_mask(pc.and_(pc.not_equal(whole, 0), pc.not_equal(whole, 1)))
        return _without(whole, bad).cast(arrow), bad
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int64())
    held = array.type
    values, bad = cast_each(array, arrow)
    if not pa.types.is_floating(held) and not pa.types.is_floating(arrow):
        return values, bad
    back, changed = cast_each(values, held)
    bad = bad | changed | true_mask(pc.not_equal(back, array))
    if pa.types.is_floating(held):
        bad &= ~true_mask(pc.is_nan(array)) | ~np.asarray(values.is_valid())
    return _without(values, bad), bad


def _structs(array: pa.StructArray, arrow: pa.StructType) -> Decoded:
    members = {array.type.field(i).name: member for i, member in enumerate(array.flatten())}
    fields = [arrow.field(i) for i in range(arrow.num_fields)]
    bad = np.zeros(len(array), np.bool_)
    arrays = []
    for field in fields:
        part, wrong = fitted(members.get(field.name, pa.nulls(len(array), pa.null())), field.type)
        arrays.append(part)
        bad |= wrong
    for name, member in members.items():
        if arrow.get_field_index(name) < 0:
            bad |= np.asarray(member.is_valid())
    valid = np.asarray(array.is_valid()) & ~bad
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=null_mask(valid)), bad


def _lists(array: pa.ListArray, arrow: pa.ListType) -> Decoded:
    offsets = np.asarray(array.offsets)
    values, wrong = fitted(array.values, arrow.value_type)
    before = np.concatenate([[0], np.cumsum(wrong)])
    valid = np.asarray(array.is_valid())
    bad = (before[offsets[1:]] > before[offsets[:-1]]) & valid
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=arrow, mask=null_mask(valid & ~bad)), bad


def _without(array: pa.Array, mask: Mask) -> pa.Array:
    return pc.if_else(pa.array(mask), pa.scalar(None, array.type), array) if mask.any() else array


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_binary(arrow) or pa.types.is_fixed_size_binary(arrow))
