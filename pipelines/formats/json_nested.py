"""Structs, lists and maps from spans; their leaves are decoded by the function they are given."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.formats import json_kernels as kernels
from pipelines.formats.json_scan import scan_arrays, scan_objects
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.span_text import Decoded, Mask, null_mask, spans_of_text
from pipelines.formats.value_type import ValueType

Decode = Callable[[SpanColumn, ValueType], Decoded]


def structs(column: SpanColumn, wanted: ValueType, decode: Decode) -> Decoded:
    """Objects as structs; members that the type lacks are left out."""
    names = [name for name, _ in wanted.members]
    objects = scan_objects(column.documents(kernels.OBJECT), names, learn=False)
    bad = column.has_value & ~objects.is_object
    arrays = []
    for name, member in wanted.members:
        array, wrong = decode(objects.column(name), member)
        arrays.append(array)
        bad |= wrong
    valid = column.has_value & ~bad
    fields = [wanted.arrow.field(i) for i in range(wanted.arrow.num_fields)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=null_mask(valid)), bad


def lists(column: SpanColumn, wanted: ValueType, decode: Decode) -> Decoded:
    """Lists; one wrong element makes its list wrong."""
    elements = scan_arrays(column.documents(kernels.ARRAY))
    values, wrong = decode(elements.values, wanted.members[0][1])
    bad = column.has_value & (elements.status != kernels.OK)
    bad |= _any_element(wrong, elements.offsets)
    offsets = pa.array(elements.offsets)
    return pa.ListArray.from_arrays(offsets, values, type=wanted.arrow, mask=null_mask(column.has_value & ~bad)), bad


def maps(column: SpanColumn, wanted: ValueType, decode: Decode) -> Decoded:
    """Objects whose member names are keys, or lists of [key, value] pairs: each value tells by itself."""
    key_type, value_type = wanted.members[0][1], wanted.members[1][1]
    as_pairs = column.of_kind(kernels.ARRAY)
    if as_pairs.any() and column.kinds[kernels.OBJECT]:
        pairs_of, wrong_pairs = maps(column.without(~as_pairs), wanted, decode)
        objects_of, wrong_objects = maps(column.without(as_pairs), wanted, decode)
        both = pa.concat_arrays([objects_of, pairs_of])
        places = np.arange(len(column)) + np.where(as_pairs, len(column), 0)
        return both.take(pa.array(places)), wrong_pairs | wrong_objects
    if as_pairs.any():
        pairs = scan_arrays(column.documents(kernels.ARRAY))
        inner = scan_arrays(pairs.values.documents(kernels.ARRAY))
        is_pair = np.diff(inner.offsets) == 2
        bad = column.has_value & (pairs.status != kernels.OK)
        bad |= _any_element(~is_pair, pairs.offsets)
        if bad.any():
            good = np.flatnonzero(~bad & column.has_value)
            kept, _ = maps(column.take(good), wanted, decode)
            places = np.full(len(column), -1, np.int64)
            places[good] = np.arange(len(good))
            return kept.take(pa.array(places, mask=places < 0)), bad
        keys, values = (
            inner.values.take(np.arange(0, inner.offsets[-1], 2)),
            inner.values.take(np.arange(1, inner.offsets[-1], 2)),
        )
        offsets = pairs.offsets
    else:
        objects = scan_objects(column.documents(kernels.OBJECT))
        bad = column.has_value & ~objects.is_object
        rows, slots = np.nonzero((objects.kind != kernels.MISSING).T & objects.is_object[:, None])
        names = pa.array(objects.names, pa.string()).take(pa.array(slots))
        keys = spans_of_text(names)
        values = SpanColumn(
            objects.data, objects.start[slots, rows], objects.end[slots, rows], objects.kind[slots, rows]
        )
        offsets = np.zeros(len(column) + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=len(column)), out=offsets[1:])
    key_array, wrong_keys = decode(keys, key_type)
    value_array, wrong_values = decode(values, value_type)
    bad |= _any_element(wrong_keys | wrong_values | ~np.asarray(key_array.is_valid()), offsets)
    if bad.any():
        good = np.flatnonzero(~bad & column.has_value)
        kept, _ = maps(column.take(good), wanted, decode)
        places = np.full(len(column), -1, np.int64)
        places[good] = np.arange(len(good))
        return kept.take(pa.array(places, mask=places < 0)), bad
    valid = column.has_value
    return pa.MapArray.from_arrays(
        pa.array(offsets), key_array, value_array, type=wanted.arrow, mask=null_mask(valid)
    ), bad


def _any_element(wrong: Mask, offsets: NDArray[np.int32]) -> Mask:
    """Rows with at least one wrong element."""
    before = np.zeros(len(wrong) + 1, np.int64)
    np.cumsum(wrong, out=before[1:])
    rows: Mask = before[offsets[1:]] > before[offsets[:-1]]
    return rows
