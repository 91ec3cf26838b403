"""Text of spans, spans of text, and bytes that are written as text; how decoders build arrays from NumPy."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats import binary_kernels, row_kernels, text_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.value_type import Encoding

Mask = NDArray[np.bool_]
Decoded = tuple[pa.Array, Mask]
"""A column and the mask of values that are none (NULL in the column)."""

TEXT_KINDS = (kernels.STRING, kernels.ESCAPED)
NUMBER_KINDS = (kernels.INT, kernels.FLOAT)


def text(column: SpanColumn, wanted: Mask) -> Decoded:
    """The wanted spans as strings without escapes, NULL elsewhere; the mask marks lone surrogates."""
    count = len(column)
    ready = column.ready
    if ready is not None and ready.what == row_kernels.TEXT and np.array_equal(wanted, column.of_kind(*ready.kinds)):
        valid = wanted & ~ready.bad if ready.bad.any() else wanted
        return binary_array(pa.string(), ready.offsets, ready.text, valid), ready.bad.copy()
    offsets = np.empty(count + 1, np.int32)
    lengths = np.where(wanted, column.end - column.start, 0)
    data = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    bad = np.zeros(count, np.bool_)
    used = text_kernels.gather_text(column.data, column.start, column.end, column.kind, wanted, offsets, data, bad)
    valid = wanted & ~bad if bad.any() else wanted
    return binary_array(pa.string(), offsets, data[:used], valid), bad


def json_text(column: SpanColumn) -> Decoded:
    """Each value's JSON text as the feed wrote it; a string is itself."""
    return text(column, column.has_value)


def spans_of_text(words: pa.Array) -> SpanColumn:
    """A string array as a span column of strings, NULL where it is NULL."""
    count = len(words)
    if count == 0:
        nothing = np.zeros(0, np.int32)
        return SpanColumn(np.zeros(0, np.uint8), nothing, nothing, np.zeros(0, np.int8))
    _, offsets, values = words.buffers()
    places, data = views(offsets, values, count, words.offset)
    kind = np.where(np.asarray(words.is_valid()), kernels.STRING, kernels.NULL).astype(np.int8)
    return SpanColumn(data, places[:-1], places[1:], kind)


def text_bytes(words: pa.StringArray, encoding: Encoding) -> Decoded:
    """Bytes of texts in base64, hex, or Latin-1 (one character a byte)."""
    kernel = {
        Encoding.BASE64: binary_kernels.decode_base64,
        Encoding.HEX: binary_kernels.decode_hex,
        Encoding.LATIN1: binary_kernels.encode_latin1,
    }[encoding]
    if len(words) == 0:
        return pa.array([], pa.binary()), np.zeros(0, np.bool_)
    _, offsets, values = words.buffers()
    valid = np.asarray(words.is_valid())
    source_offsets, source = views(offsets, values, len(words), words.offset)
    out_offsets = np.empty(len(words) + 1, np.int32)
    out = np.empty(int(source_offsets[-1] - source_offsets[0]) + 4, np.uint8)
    bad = np.zeros(len(words), np.bool_)
    used = kernel(source_offsets, source, valid, out_offsets, out, bad)
    return binary_array(pa.binary(), out_offsets, out[:used], valid & ~bad), bad


def base64_bytes(words: pa.StringArray) -> Decoded:
    """Bytes of base64 texts."""
    return text_bytes(words, Encoding.BASE64)


def true_mask(array: pa.Array) -> Mask:
    """A boolean array as a mask, NULL as false."""
    return np.asarray(pc.fill_null(array, False), np.bool_)


def inverse(valid: Mask) -> Mask | None:
    """The mask of NULLs for `pa.array`; None if there are none."""
    return None if valid.all() else ~valid


def null_mask(valid: Mask) -> pa.BooleanArray | None:
    """The mask of NULLs for nested arrays; None if there are none."""
    return None if valid.all() else pa.array(~valid)


def bitmap(valid: Mask) -> pa.Buffer | None:
    """A validity bitmap; None if all are valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def binary_array(arrow: pa.DataType, offsets: NDArray[np.int32], data: NDArray[np.uint8], valid: Mask) -> pa.Array:
    """A string or binary array of these buffers."""
    return pa.Array.from_buffers(arrow, len(valid), [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)])


def views(
    offsets: pa.Buffer, values: pa.Buffer | None, count: int, first: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets and bytes of a binary array as NumPy arrays."""
    data = np.zeros(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
    return np.frombuffer(offsets, np.int32)[first : first + count + 1], data
