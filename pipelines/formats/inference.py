"""Which type a column without a declared one has, from the kinds of its values.

The first value decides the group (logical, number, text, object, list); values of another group are rejected by the
decoder. Integers are long, or decimal(38, 0) when one does not fit; a fraction anywhere makes them double.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.formats import json_kernels as kernels
from pipelines.formats import text_kernels
from pipelines.formats.json_scan import scan_arrays, scan_objects
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.placeholders import without
from pipelines.formats.plain_types import plain_type
from pipelines.formats.value_type import Encoding, ValueType, from_arrow

NOTHING = ValueType(pa.null())
MAX_INFERRED_MEMBERS = 200
"""An object with more member names is data, not structure: it stays JSON text."""
MAX_INFERRED_DEPTH = 16
SAFE_DIGITS = 18
"""Integers of so many characters always fit 64 bits."""

_GROUPS = np.zeros(kernels.ARRAY + 1, np.int8)
_GROUPS[[kernels.FALSE, kernels.TRUE]] = 1
_GROUPS[[kernels.INT, kernels.FLOAT]] = 2
_GROUPS[[kernels.STRING, kernels.ESCAPED]] = 3
_GROUPS[kernels.OBJECT] = 4
_GROUPS[kernels.ARRAY] = 5
_GIVEN, _NESTED = slice(kernels.FALSE, None), slice(kernels.OBJECT, None)


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """How objects are taken: as structs, or as their JSON text."""

    objects_as_text: bool = False


def infer_together(
    columns: list[SpanColumn | pa.Array], options: InferenceOptions, placeholders: tuple[bytes, ...]
) -> ValueType:
    """The type that one column has in several images of the same events."""
    spans = [without(column, placeholders) for column in columns if isinstance(column, SpanColumn)]
    if len(spans) < len(columns):
        return from_arrow(plain_type(next(c for c in columns if not isinstance(c, SpanColumn)).type))
    given = [column for column in spans if column.kinds[_GIVEN].any()]
    if len(given) > 1 and not any(column.kinds[_NESTED].any() for column in given):
        each = {infer(column, options) for column in given}
        if len(each) == 1:
            return each.pop()
    return infer(_joined(given or spans[:1]), options)


def infer(column: SpanColumn, options: InferenceOptions, depth: int = 0) -> ValueType:
    """The type of a column; type null when it has no value at all."""
    counts = np.bincount(_GROUPS, weights=column.kinds, minlength=6)[1:]
    present = np.flatnonzero(counts) + 1
    if len(present) == 0:
        return NOTHING
    group = present[0] if len(present) == 1 else _GROUPS[column.kind[int(np.argmax(column.has_value))]]
    if group == 1:
        return ValueType(pa.bool_())
    if group == 2:
        return ValueType(pa.float64()) if column.kinds[kernels.FLOAT] else _integers(column)
    if group == 3:
        return ValueType(pa.string())
    as_text = ValueType(pa.string(), Encoding.TEXT)
    if options.objects_as_text or depth >= MAX_INFERRED_DEPTH:
        return as_text
    nested = _struct(column, options, depth) if group == 4 else _list(column, options, depth)
    return as_text if nested is None else nested


def _integers(column: SpanColumn) -> ValueType:
    is_integer = column.of_kind(kernels.INT)
    if int((column.end - column.start).max(where=is_integer, initial=0)) <= SAFE_DIGITS:
        return ValueType(pa.int64())
    values = np.empty(len(column), np.int64)
    too_large = np.zeros(len(column), np.bool_)
    text_kernels.parse_integers(column.data, column.start, column.end, is_integer, values, too_large)
    return ValueType(pa.decimal128(38, 0) if too_large.any() else pa.int64())


def _struct(column: SpanColumn, options: InferenceOptions, depth: int) -> ValueType | None:
    objects = scan_objects(column.documents(kernels.OBJECT))
    if len(objects.names) > MAX_INFERRED_MEMBERS:
        return None
    members = tuple((name, infer(objects.column(name), options, depth + 1)) for name in objects.names)
    known = tuple((name, member) for name, member in members if not pa.types.is_null(member.arrow))
    if not known:
        return None
    return ValueType(pa.struct([pa.field(name, member.arrow) for name, member in known]), members=known)


def _list(column: SpanColumn, options: InferenceOptions, depth: int) -> ValueType | None:
    elements = scan_arrays(column.documents(kernels.ARRAY)).values
    if len(np.unique(_GROUPS[elements.kind[elements.has_value]])) > 1:
        return None
    element = infer(elements, options, depth + 1)
    if pa.types.is_null(element.arrow):
        return NOTHING
    return ValueType(pa.list_(pa.field("element", element.arrow)), members=(("element", element),))


def _joined(columns: list[SpanColumn]) -> SpanColumn:
    if len(columns) == 1:
        return columns[0]
    if len({id(c.data) for c in columns}) > 1:
        raise ValueError("images of one event share their bytes")
    return SpanColumn(
        columns[0].data,
        np.concatenate([c.start for c in columns]),
        np.concatenate([c.end for c in columns]),
        np.concatenate([c.kind for c in columns]),
    )
