"""Converts Arrow columns of files and messages to a wanted type and reports the values that do not fit.

Also converts values to another type where nothing is lost, and truncates times that are finer than microseconds and
counts them. JSON spans are converted in `json_columns.py`.
"""

from collections.abc import Callable, Iterator
from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.decode import casting, json_columns
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.json_columns import (
    TEXT_KINDS,
    Decoded,
    any_element,
    decimals_of_bytes,
    null_mask,
    of_own_scales,
    spans_of_text,
    text,
    true_mask,
    whole_numbers,
)
from nevermore.pipelines.decode.value_types import Encoding, ValueType, is_bytes
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_arrays, scan_objects, scan_pairs
from nevermore.pipelines.jsonscan.spans import SpanColumn
from nevermore.scan_core import Mask


def decode(array: pa.Array, wanted: ValueType) -> Decoded:
    """Convert the column to `wanted`; also return the mask of values that do not fit (NULL there)."""
    array, arrow = plain(array), wanted.arrow
    held = array.type
    if pa.types.is_null(held):
        return pa.nulls(len(array), arrow), np.zeros(len(array), np.bool_)
    if pa.types.is_string(held):
        if pa.types.is_string(arrow):
            return array, np.zeros(len(array), np.bool_)
        return json_columns.decode(spans_of_text(array), wanted)
    if pa.types.is_nested(held):
        return _nested(array, wanted)
    if wanted.encoding is Encoding.BASE64 and pa.types.is_string(arrow) and is_bytes(held):
        values = of_own_scales(array.cast(pa.binary()), repeat(wanted.scale), wanted)
        return values, np.asarray(array.is_valid()) & ~np.asarray(values.is_valid())
    if pa.types.is_decimal(arrow) and is_bytes(held):
        return decimals_of_bytes(array.cast(pa.binary()), arrow, wanted.scale)
    if pa.types.is_temporal(arrow) and pa.types.is_integer(held):
        return _times(array, wanted)
    if _is_date(held) and _is_date(arrow):
        return casting.from_times(array, arrow, wanted.infinite)
    if pa.types.is_time64(held) and is_finer(held, arrow):
        nanos = np.asarray(array.view(pa.int64()).fill_null(0))
        return pa.array(nanos // _NANOS, mask=np.asarray(array.is_null())).view(arrow), np.zeros(len(array), np.bool_)
    return cast_each(array, arrow)


def _is_date(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_date(arrow) or pa.types.is_timestamp(arrow))


def _nested(array: pa.Array, wanted: ValueType) -> Decoded:
    held, arrow = array.type, wanted.arrow
    if wanted.encoding is Encoding.SCALED and pa.types.is_struct(held):
        return _scaled(array, wanted)
    if pa.types.is_struct(arrow) and pa.types.is_struct(held):
        return _structs(array, arrow, lambda part, at: decode(part, wanted.members[at][1]), is_whole=False)
    if pa.types.is_map(arrow) and pa.types.is_map(held):
        return _maps(array, wanted)
    if pa.types.is_list(arrow) and _is_list(held):
        return _lists(array, wanted)
    return pa.nulls(len(array), arrow), np.asarray(array.is_valid())


def plain(array: pa.Array) -> pa.Array:
    """The array without a dictionary, and with offsets of 32 bits."""
    if pa.types.is_dictionary(array.type):
        # PyArrow decodes no dictionary of views, as Polars has for Enum and Categorical
        return pa.DictionaryArray.from_arrays(array.indices, plain(array.dictionary)).dictionary_decode()
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        return array.cast(pa.string())
    if pa.types.is_large_binary(array.type) or pa.types.is_binary_view(array.type):
        return array.cast(pa.binary())
    return array


def single(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array, which is not copied if it is one already."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def is_finer(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether nanosecond times are stored as microseconds, which truncates them."""
    timestamps = pa.types.is_timestamp(held) and pa.types.is_timestamp(wanted)
    times = pa.types.is_time64(held) and pa.types.is_time64(wanted)
    return bool((timestamps or times) and held.unit == "ns" and wanted.unit == "us")


def _times(array: pa.Array, wanted: ValueType) -> Decoded:
    valid = np.asarray(array.is_valid())
    values, outside = cast_each(array, pa.int64())
    numbers = np.asarray(values.fill_null(0))
    result, bad = casting.from_integers(numbers, valid & ~outside, wanted.arrow, wanted.encoding, wanted.infinite)
    return result, bad | outside


def _scaled(array: pa.StructArray, wanted: ValueType) -> Decoded:
    """Numbers that each state their own scale."""
    members = [array.type.get_field_index(name) for name in ("scale", "value")]
    if min(members) < 0 or not is_bytes(array.type.field(members[1]).type):
        return pa.nulls(len(array), wanted.arrow), np.asarray(array.is_valid())
    scales, unscaled = (array.flatten()[at] for at in members)
    values = of_own_scales(unscaled.cast(pa.binary()), cast_each(scales, pa.int64())[0].to_pylist(), wanted)
    return values, np.asarray(array.is_valid()) & ~np.asarray(values.is_valid())


def _structs(
    array: pa.StructArray, arrow: pa.StructType, convert: Callable[[pa.Array, int], Decoded], *, is_whole: bool
) -> Decoded:
    """Structs with converted members; one is wrong if a member is, and with `is_whole` if it has another one.

    Args:
        array: the structs.
        arrow: their type afterwards.
        convert: converts a member, which may be missing, to that of this number.
        is_whole: whether the type must have all members.
    """
    held = {field.name: member for field, member in zip(array.type, array.flatten(), strict=True)}
    bad = np.zeros(len(array), np.bool_)
    arrays = []
    for number, field in enumerate(arrow):
        part, wrong = convert(held.pop(field.name, pa.nulls(len(array))), number)
        arrays.append(part)
        bad |= wrong
    for member in held.values() if is_whole else ():
        bad |= np.asarray(member.is_valid())
    valid = np.asarray(array.is_valid()) & ~bad
    return pa.StructArray.from_arrays(arrays, fields=list(arrow), mask=null_mask(valid)), bad


def _lists(array: pa.Array, wanted: ValueType) -> Decoded:
    array = array.cast(pa.list_(array.type.value_type)) if not pa.types.is_list(array.type) else array
    return _of_elements(array, *decode(array.values, wanted.members[0][1]), wanted.arrow)


def _of_elements(array: pa.ListArray, values: pa.Array, wrong: Mask, arrow: pa.DataType) -> Decoded:
    """Lists with converted elements; a list is wrong if one of its elements is."""
    bad = _any_inside(array, wrong)
    mask = null_mask(np.asarray(array.is_valid()) & ~bad)
    return pa.ListArray.from_arrays(_offsets(array), values, type=arrow, mask=mask), bad


def _maps(array: pa.MapArray, wanted: ValueType) -> Decoded:
    keys, wrong_keys = decode(array.keys, wanted.members[0][1])
    items, wrong_items = decode(array.items, wanted.members[1][1])
    bad = _any_inside(array, wrong_keys | wrong_items)
    if bad.any():
        # A key that does not fit is NULL, which maps do not allow, so only the valid rows are assembled.
        good = np.flatnonzero(~bad)
        kept, _ = _maps(array.take(pa.array(good)), wanted)
        places = np.zeros(len(array), np.int64)
        places[good] = np.arange(len(good))
        return kept.take(pa.array(places, mask=bad)), bad
    mask = null_mask(np.asarray(array.is_valid()))
    return pa.MapArray.from_arrays(_offsets(array), keys, items, type=wanted.arrow, mask=mask), bad


def _offsets(array: "pa.ListArray | pa.MapArray") -> pa.Array:
    """Offsets as an array without an offset of its own, which cannot be combined with a mask."""
    return pa.array(np.asarray(array.offsets))


def _any_inside(array: "pa.ListArray | pa.MapArray", wrong: Mask) -> Mask:
    result: Mask = any_element(wrong, np.asarray(array.offsets)) & np.asarray(array.is_valid())
    return result


def _is_list(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow))


_NANOS = 1_000
_COARSE_CHARACTERS = 26
"""Length of a timestamp with six fractional digits and no zone: only longer text can have more."""
_NATURAL_NANOS = 10**17
"""From this value on, integers without a declared unit are nanoseconds (see `temporal.from_integers`)."""


def count_cut(column: "SpanColumn | pa.Array", wanted: ValueType) -> int:
    """Count the values of a column, at every depth, that lose digits when converted to `wanted`."""
    if wanted.members:
        return sum(count_cut(part, type_) for part, type_ in _parts(column, wanted))
    if not _is_micros(wanted.arrow):
        return 0
    if isinstance(column, SpanColumn):
        return _of_numbers(column, wanted) + _of_text(column)
    if is_finer(column.type, wanted.arrow):
        column = column.view(pa.int64())
    elif wanted.encoding is not Encoding.NANOS or not pa.types.is_integer(column.type):
        return 0
    values = np.asarray(column.fill_null(0))
    return int((values % _NANOS != 0).sum())


def _parts(column: "SpanColumn | pa.Array", wanted: ValueType) -> Iterator[tuple["SpanColumn | pa.Array", ValueType]]:
    """The members of structs, elements of lists and values of maps that may have times, with their types."""
    for name, type_ in wanted.members:
        if not type_.members and not _is_micros(type_.arrow):
            continue
        if isinstance(column, SpanColumn):
            if pa.types.is_struct(wanted.arrow):
                yield scan_objects(column.documents(kernels.OBJECT), (name,), learn=False).column(name), type_
            elif pa.types.is_list(wanted.arrow):
                yield scan_arrays(column.documents(kernels.ARRAY)).values, type_
            elif name == "value":
                pairs = scan_pairs(column.documents(kernels.OBJECT)).values
                yield pairs.take(np.arange(1, len(pairs), 2)), type_
        elif pa.types.is_struct(column.type) and (at := column.type.get_field_index(name)) >= 0:
            yield column.flatten()[at], type_
        elif pa.types.is_map(column.type):
            yield (column.keys if name == "key" else column.items), type_
        elif _is_list(column.type):
            yield column.flatten(), type_


def _is_micros(arrow: pa.DataType) -> bool:
    return bool((pa.types.is_timestamp(arrow) or pa.types.is_time64(arrow)) and arrow.unit == "us")


def _of_numbers(column: SpanColumn, wanted: ValueType) -> int:
    if wanted.encoding not in {Encoding.NANOS, Encoding.NATURAL}:
        return 0
    if wanted.encoding is Encoding.NATURAL and int((column.end - column.start).max(initial=0)) < len(
        str(_NATURAL_NANOS)
    ):
        return 0
    values, valid, _ = whole_numbers(column)
    fine = valid & (values % _NANOS != 0)
    if wanted.encoding is Encoding.NATURAL:
        fine &= (np.abs(values) >= _NATURAL_NANOS) & pa.types.is_timestamp(wanted.arrow)
    return int(fine.sum())


def _of_text(column: SpanColumn) -> int:
    long = column.of_kind(*TEXT_KINDS) & (column.end - column.start > _COARSE_CHARACTERS)
    rows = np.flatnonzero(long)
    if not len(rows):
        return 0
    words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
    return int(true_mask(pc.match_substring_regex(words, r"\.\d{6}\d*[1-9]")).sum())


def fitted(array: pa.Array, arrow: pa.DataType) -> Decoded:
    """Convert the array to `arrow`; also return the mask of values that do not fit (NULL there)."""
    held = array.type
    if held == arrow or pa.types.is_null(held):
        return array.cast(arrow), np.zeros(len(array), np.bool_)
    if pa.types.is_struct(held) and pa.types.is_struct(arrow):
        return _structs(array, arrow, lambda part, at: fitted(part, arrow.field(at).type), is_whole=True)
    if pa.types.is_list(held) and pa.types.is_list(arrow):
        return _of_elements(array, *fitted(array.values, arrow.value_type), arrow)
    if is_number(held) and is_number(arrow):
        return _numbers(array, arrow)
    is_midnight = pa.types.is_date(held) and pa.types.is_timestamp(arrow) and arrow.tz is None
    if is_midnight or (is_bytes(held) and is_bytes(arrow)):
        return cast_each(array, arrow)
    return pa.nulls(len(array), arrow), np.asarray(array.is_valid())


def is_number(arrow: pa.DataType) -> bool:
    """Whether the type is an integer, decimal, float, or a boolean taken as 0 and 1."""
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


def _without(array: pa.Array, mask: Mask) -> pa.Array:
    return pc.if_else(pa.array(mask), pa.scalar(None, array.type), array) if mask.any() else array
