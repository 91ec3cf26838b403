"""Columns of exact digits and bytes from spans: decimals in all modes of Debezium, binary, fixed, uuid."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats import binary_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.formats.casting import cast_each
from pipelines.formats.connect_schema import MAX_DIGITS
from pipelines.formats.json_scalars import only, whole_numbers
from pipelines.formats.json_scan import scan_objects
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.span_text import (
    NUMBER_KINDS,
    TEXT_KINDS,
    Decoded,
    Mask,
    base64_bytes,
    bitmap,
    text,
    text_bytes,
    true_mask,
    views,
)
from pipelines.formats.value_type import Encoding, ValueType

Scales = NDArray[np.int64]

_FEW_SCALES = 8
"""Of a batch: so many are each decoded by themselves."""

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_MAYBE_BASE64 = r"^([0-9A-Za-z+/]{4})+$"


def decimals(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Numbers and numeric text exactly; base64 of the unscaled value; a struct of scale and value."""
    if wanted.encoding is Encoding.SCALED or column.kinds[kernels.OBJECT]:
        return _scaled_decimals(column, wanted)
    usable = column.of_kind(*NUMBER_KINDS, *TEXT_KINDS)
    words, broken = text(column, usable)
    is_text = column.of_kind(*TEXT_KINDS)
    base64 = is_text if wanted.encoding is Encoding.BASE64 else np.zeros(len(column), np.bool_)
    if wanted.encoding is Encoding.NATURAL and is_text.any():
        undecided = is_text & ~_can_only_be_number(words)
        usable, words = usable & ~undecided, pc.if_else(pa.array(undecided), pa.scalar(None, pa.string()), words)
    bad = (column.has_value & ~usable) | broken
    if not base64.any():
        values, wrong = cast_each(words, wanted.arrow)
        return values, bad | wrong
    unscaled, wrong_base64 = _unscaled(pc.if_else(pa.array(base64), words, pa.scalar(None, pa.string())), wanted)
    plain, wrong_number = cast_each(pc.if_else(pa.array(base64), pa.scalar(None, pa.string()), words), wanted.arrow)
    return pc.coalesce(unscaled, plain), bad | wrong_base64 | wrong_number


def _can_only_be_number(words: pa.StringArray) -> Mask:
    """Which texts are numbers and no base64: "10.50", but not "1234", which both may be. Each tells by itself."""
    return true_mask(pc.match_substring_regex(words, _NUMBER)) & ~true_mask(
        pc.match_substring_regex(words, _MAYBE_BASE64)
    )


def _unscaled(words: pa.StringArray, wanted: ValueType) -> Decoded:
    """Base64 of big-endian two's complement integers as decimals."""
    data, bad = base64_bytes(words)
    values, wrong = decimals_of_bytes(data, wanted.arrow, wanted.scale)
    return values, bad | wrong


def decimals_of_bytes(data: pa.BinaryArray, arrow: pa.DataType, scale: "int | Scales | None" = None) -> Decoded:
    """Big-endian two's complement integers as decimals.

    Args:
        data: the unscaled values.
        arrow: the decimal type wanted.
        scale: of the unscaled values, of all or of each; None is that of the type. Any integer of 64 bits is one:
            what the type cannot hold is marked as wrong.
    """
    if len(data) == 0:
        return pa.array([], arrow), np.zeros(0, np.bool_)
    if scale is None or (isinstance(scale, int) and scale == arrow.scale):
        exact, bad = _integers_of_bytes(data, arrow.scale)
        fitting, too_large = cast_each(exact, arrow)
        return fitting, bad | too_large
    scales = np.broadcast_to(np.asarray(scale, np.int64), len(data))
    different = np.unique(scales)
    if len(different) <= _FEW_SCALES and different[0] >= 0 and different[-1] <= MAX_DIGITS:
        return _of_few_scales(data, arrow, scales, different.tolist())
    whole, bad = _integers_of_bytes(data, 0)
    # As text with an exponent, which keeps scales without bounds from Arrow's arithmetic; it costs ten times as much.
    scaled, wrong = cast_each(
        pc.binary_join_element_wise(whole.cast(pa.string()), pa.array(-scales).cast(pa.string()), "E"), arrow
    )
    return scaled, bad | wrong


def _of_few_scales(data: pa.BinaryArray, arrow: pa.DataType, scales: Scales, different: list[int]) -> Decoded:
    values, bad = pa.nulls(len(data), arrow), np.zeros(len(data), np.bool_)
    for scale in different:
        of_scale = scales == scale
        rows = pa.array(np.flatnonzero(of_scale))
        exact, none = _integers_of_bytes(data.take(rows), scale)
        fitting, wrong = cast_each(exact, arrow)
        values = pc.replace_with_mask(values, pa.array(of_scale), fitting)
        bad[of_scale] = none | wrong
    return values, bad


def _integers_of_bytes(data: pa.BinaryArray, scale: int) -> Decoded:
    """Big-endian two's complement integers as decimals of 38 digits."""
    bad = np.zeros(len(data), np.bool_)
    valid = np.asarray(data.is_valid())
    numbers = np.zeros((len(data), 16), np.uint8)
    _, offsets, values = data.buffers()
    binary_kernels.widen_integers(*views(offsets, values, len(data), data.offset), valid, numbers, bad)
    valid &= ~bad
    widest = pa.decimal128(38, scale)
    exact = pa.Array.from_buffers(widest, len(data), [bitmap(valid), pa.py_buffer(numbers)])
    largest = pa.scalar(Decimal(f"{10**38 - 1}E{-scale}"), widest)
    outside = true_mask(pc.or_(pc.greater(exact, largest), pc.less(exact, pc.negate(largest))))
    if outside.any():
        bad |= outside
        exact = pc.if_else(pa.array(outside), pa.scalar(None, widest), exact)
    return exact, bad


def _scaled_decimals(column: SpanColumn, wanted: ValueType) -> Decoded:
    objects = scan_objects(column.documents(kernels.OBJECT), ("scale", "value"), learn=False)
    scales, given, _ = whole_numbers(objects.column("scale"))
    written = objects.column("value")
    words, broken = text(written, given & written.of_kind(*TEXT_KINDS))
    data, no_base64 = base64_bytes(words)
    values, wrong = decimals_of_bytes(data, wanted.arrow, np.where(given, scales, 0))
    bad = column.has_value & ~(objects.is_object & given & np.asarray(words.is_valid()))
    bad |= broken | no_base64 | wrong
    plain = column.has_value & ~column.of_kind(kernels.OBJECT)
    if plain.any():
        encoding = Encoding.NATURAL if wanted.encoding is Encoding.SCALED else wanted.encoding
        others, wrong = decimals(only(column, plain), replace(wanted, encoding=encoding))
        values, bad = pc.coalesce(values, others), np.where(plain, wrong, bad)
    return values, bad


def binaries(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Bytes from base64 (or as the encoding says); a uuid from its usual text."""
    usable = column.of_kind(*TEXT_KINDS)
    words, broken = text(column, usable)
    bad = (column.has_value & ~usable) | broken
    encoding = wanted.encoding
    if encoding is Encoding.NATURAL and wanted.arrow == pa.binary(16):
        dashed = pc.match_substring(words, "-")
        nothing = pa.scalar(None, pa.string())
        as_hex, no_hex = text_bytes(pc.if_else(dashed, words, nothing), Encoding.HEX)
        data, no_base64 = text_bytes(pc.if_else(dashed, nothing, words), Encoding.BASE64)
        data, wrong = pc.coalesce(as_hex, data), no_hex | no_base64
    else:
        data, wrong = text_bytes(words, Encoding.BASE64 if encoding is Encoding.NATURAL else encoding)
    if pa.types.is_binary(wanted.arrow):
        return data, bad | wrong
    wrong |= true_mask(pc.not_equal(pc.binary_length(data), wanted.arrow.byte_width))
    fitting = pc.if_else(pa.array(wrong), pa.scalar(None, pa.binary()), data)
    return fitting.cast(wanted.arrow), bad | wrong
