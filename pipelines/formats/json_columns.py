"""From span columns to Arrow columns of a wanted type, with the mask of values that are none.

A value that does not fit is never rounded, cut or replaced in silence: it is marked and the caller rejects its event.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats import json_kernels as kernels
from pipelines.formats import temporal, text_kernels
from pipelines.formats.casting import cast_each
from pipelines.formats.json_spans import SpanColumn, scan_arrays, scan_objects
from pipelines.formats.value_type import Encoding, ValueType

Mask = NDArray[np.bool_]
Decoded = tuple[pa.Array, Mask]

TEXT_KINDS = (kernels.STRING, kernels.ESCAPED)
LONGEST_EXACT_DOUBLE = 17
"""Sign, point and 15 digits."""
NUMBER_KINDS = (kernels.INT, kernels.FLOAT)


def decode(column: SpanColumn, wanted: ValueType) -> Decoded:
    """The column as `wanted`, and the mask of values that cannot be one (NULL there)."""
    arrow = wanted.arrow
    if pa.types.is_null(arrow):
        return pa.nulls(len(column)), column.has_value.copy()
    if wanted.encoding is Encoding.TEXT:
        return json_text(column)
    return _decoder(arrow)(column, wanted)


def text(column: SpanColumn, wanted: Mask) -> Decoded:
    """The wanted spans as strings without escapes, NULL elsewhere; the mask marks lone surrogates."""
    count = len(column)
    offsets = np.empty(count + 1, np.int32)
    lengths = np.where(wanted, column.end - column.start, 0)
    data = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    bad = np.zeros(count, np.bool_)
    used = text_kernels.gather_text(column.data, column.start, column.end, column.kind, wanted, offsets, data, bad)
    valid = wanted & ~bad if bad.any() else wanted
    return _binary_array(pa.string(), offsets, data[:used], valid), bad


def integers(column: SpanColumn) -> tuple[NDArray[np.int64], Mask]:
    """Integers, also in text, and where there is one: for positions and times, where anything else counts as none."""
    values, valid, _ = _int64(column)
    return values, valid


def json_text(column: SpanColumn) -> Decoded:
    """Each value's JSON text as the feed wrote it; a string is itself."""
    return text(column, column.has_value)


def _decoder(arrow: pa.DataType) -> Callable[[SpanColumn, ValueType], Decoded]:
    checks: tuple[tuple[Callable[[pa.DataType], bool], Callable[[SpanColumn, ValueType], Decoded]], ...] = (
        (pa.types.is_integer, _integers),
        (pa.types.is_floating, _floats),
        (pa.types.is_string, _strings),
        (pa.types.is_boolean, _booleans),
        (pa.types.is_decimal, _decimals),
        (pa.types.is_temporal, _temporals),
        (pa.types.is_binary, _binaries),
        (pa.types.is_fixed_size_binary, _binaries),
        (pa.types.is_struct, _structs),
        (pa.types.is_map, _maps),
        (pa.types.is_list, _lists),
    )
    return next(decoder for check, decoder in checks if check(arrow))


def _strings(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Text; objects and lists as their JSON text; numbers and booleans only where config asks for a string."""
    if column.kinds[[*NUMBER_KINDS, kernels.TRUE, kernels.FALSE]].any() and not wanted.explicit:
        usable = column.of_kind(*TEXT_KINDS, kernels.OBJECT, kernels.ARRAY)
    else:
        usable = column.has_value
    values, bad = text(column, usable)
    return values, bad | (column.has_value & ~usable)


def _booleans(column: SpanColumn, _wanted: ValueType) -> Decoded:
    known = column.of_kind(kernels.TRUE, kernels.FALSE)
    values = column.kind == kernels.TRUE
    others = column.has_value & ~known
    if not others.any():
        return pa.array(values, mask=_inverse(known)), others
    words, _ = text(column, others)
    folded = pc.ascii_lower(words)
    true = _mask(pc.is_in(folded, pa.array(["1", "true", "t", "y", "yes"])))
    false = _mask(pc.is_in(folded, pa.array(["0", "false", "f", "n", "no"])))
    return pa.array(values | true, mask=_inverse(known | true | false)), others & ~true & ~false


def _integers(column: SpanColumn, wanted: ValueType) -> Decoded:
    values, valid, bad = _int64(column, truth=wanted.arrow.bit_width <= 32)
    if wanted.arrow.bit_width < 64:
        limits = np.iinfo(wanted.arrow.to_pandas_dtype())
        outside = valid & ((values < limits.min) | (values > limits.max))
        if wanted.widens and outside.any():
            return pa.array(values, mask=_inverse(valid)), bad
        bad, valid = bad | outside, valid & ~outside
    array = pa.array(values, mask=_inverse(valid))
    return (array if wanted.arrow == pa.int64() else array.cast(wanted.arrow, safe=False)), bad


def _int64(column: SpanColumn, *, truth: bool = False) -> tuple[NDArray[np.int64], Mask, Mask]:
    """(values, where there is one, where it is none): integers, whole numbers written otherwise, text of integers."""
    usable = column.of_kind(kernels.INT, *TEXT_KINDS)
    values = np.empty(len(column), np.int64)
    bad = np.zeros(len(column), np.bool_)
    text_kernels.parse_integers(column.data, column.start, column.end, usable, values, bad)
    if truth and column.kinds[[kernels.TRUE, kernels.FALSE]].any():
        logical = column.of_kind(kernels.TRUE, kernels.FALSE)
        values[logical] = column.kind[logical] == kernels.TRUE
        usable = usable | logical
    odd = bad | (column.has_value & ~usable)
    if odd.any():
        whole, is_whole = _whole_numbers(column, odd & column.of_kind(*NUMBER_KINDS))
        values = np.where(is_whole, whole, values)
        odd &= ~is_whole
        usable = usable | is_whole
    return values, usable & ~odd, odd


def _whole_numbers(column: SpanColumn, candidates: Mask) -> tuple[NDArray[np.int64], Mask]:
    """Numbers such as 5.0 and 1e3 that are integers all the same."""
    values = np.zeros(len(column), np.int64)
    found = np.zeros(len(column), np.bool_)
    rows = np.flatnonzero(candidates)
    if len(rows):
        words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
        exact, bad = cast_each(words, pa.decimal128(38, 0))
        integers, too_large = cast_each(exact, pa.int64())
        fits = ~bad & ~too_large
        values[rows[fits]] = np.asarray(integers.filter(pa.array(fits)))
        found[rows[fits]] = True
    return values, found


def _floats(column: SpanColumn, wanted: ValueType) -> Decoded:
    usable = column.of_kind(*NUMBER_KINDS, *TEXT_KINDS)
    values = np.empty(len(column), np.float64)
    # Longer numbers have more digits than one exact multiplication can take.
    slow = usable & (column.end - column.start > LONGEST_EXACT_DOUBLE)
    text_kernels.parse_doubles(column.data, column.start, column.end, usable & ~slow, values, slow)
    bad = column.has_value & ~usable
    if slow.any():
        rows = np.flatnonzero(slow)
        words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
        parsed, wrong = cast_each(words, pa.float64())
        values[rows] = np.asarray(parsed.fill_null(0.0))
        bad[rows[wrong]] = True
        usable = usable & ~bad
    array = pa.array(values, mask=_inverse(usable))
    return (array if wanted.arrow == pa.float64() else array.cast(wanted.arrow, safe=False)), bad


def _decimals(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Numbers and numeric text exactly; base64 of the unscaled value; a struct of scale and value."""
    if wanted.encoding is Encoding.SCALED:
        return _scaled_decimals(column, wanted)
    usable = column.of_kind(*NUMBER_KINDS, *TEXT_KINDS)
    words, broken = text(column, usable)
    is_text = column.of_kind(*TEXT_KINDS)
    base64 = np.zeros(len(column), np.bool_)
    if wanted.encoding is Encoding.BASE64:
        base64 = is_text
    elif is_text.any():
        numeric = _mask(pc.match_substring_regex(words, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"))
        # One text that is no number means that the feed writes base64: then "1234" is base64 too.
        base64 = is_text if (is_text & ~numeric).any() else base64
    bad = (column.has_value & ~usable) | broken
    if not base64.any():
        values, wrong = cast_each(words, wanted.arrow)
        return values, bad | wrong
    unscaled, wrong_base64 = _unscaled(pc.if_else(pa.array(base64), words, pa.scalar(None, pa.string())), wanted.arrow)
    plain, wrong_number = cast_each(pc.if_else(pa.array(base64), pa.scalar(None, pa.string()), words), wanted.arrow)
    return pc.coalesce(unscaled, plain), bad | wrong_base64 | wrong_number


def _unscaled(words: pa.StringArray, arrow: pa.DataType) -> Decoded:
    """Base64 of big-endian two's complement integers as decimals of this type's scale."""
    data, bad = base64_bytes(words)
    valid = np.asarray(data.is_valid())
    numbers = np.zeros((len(data), 16), np.uint8)
    _, offsets, values = data.buffers()
    text_kernels.widen_integers(*_views(offsets, values, len(data)), valid, numbers, bad)
    valid &= ~bad
    widest = pa.decimal128(38, arrow.scale)
    exact = pa.Array.from_buffers(widest, len(data), [_bitmap(valid), pa.py_buffer(numbers)])
    fitting, too_large = cast_each(exact, arrow)
    return fitting, bad | too_large


def _scaled_decimals(column: SpanColumn, wanted: ValueType) -> Decoded:
    objects = scan_objects(column.documents(kernels.OBJECT), ("scale", "value"), learn=False)
    scales, given, _ = _int64(objects.column("scale"))
    scales = np.where(given, scales, 0)
    values = pa.nulls(len(column), wanted.arrow)
    bad = column.has_value & ~(objects.is_object & given)
    for scale in np.unique(scales[given]):
        rows = given & (scales == scale)
        words, _ = text(objects.column("value"), rows & objects.column("value").of_kind(*TEXT_KINDS))
        part, wrong = _unscaled(words, pa.decimal128(38, int(np.clip(scale, -38, 38))))
        rescaled, lossy = cast_each(part, wanted.arrow)
        values = pc.coalesce(values, rescaled)
        bad |= rows & (wrong | lossy | ~np.asarray(words.is_valid()))
    plain = column.has_value & ~column.of_kind(kernels.OBJECT)
    if plain.any():
        natural = ValueType(wanted.arrow)
        others, wrong = _decimals(_only(column, plain), natural)
        values, bad = pc.coalesce(values, others), np.where(plain, wrong, bad)
    return values, bad


def _temporals(column: SpanColumn, wanted: ValueType) -> Decoded:
    is_text = column.of_kind(*TEXT_KINDS)
    if is_text.any():
        words, _ = text(column, is_text)
        from_text, bad = temporal.from_text(words, wanted.arrow)
        numbers = column.has_value & ~is_text
        if not numbers.any():
            return from_text, bad
        from_number, wrong = _temporals(_only(column, numbers), wanted)
        return pc.coalesce(from_text, from_number), bad | wrong
    values, valid, none = _int64(column)
    array, outside = temporal.from_integers(values, valid, wanted.arrow, wanted.encoding)
    return array, none | outside


def _binaries(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Bytes from base64 (or as the encoding says); a uuid from its usual text."""
    usable = column.of_kind(*TEXT_KINDS)
    words, broken = text(column, usable)
    bad = (column.has_value & ~usable) | broken
    encoding = wanted.encoding
    if encoding is Encoding.NATURAL:
        dashed = wanted.arrow == pa.binary(16) and _mask(pc.match_substring(words, "-")).any()
        encoding = Encoding.HEX if dashed else Encoding.BASE64
    data, wrong = text_bytes(words, encoding)
    if pa.types.is_binary(wanted.arrow):
        return data, bad | wrong
    wrong |= _mask(pc.not_equal(pc.binary_length(data), wanted.arrow.byte_width))
    fitting = pc.if_else(pa.array(wrong), pa.scalar(None, pa.binary()), data)
    return fitting.cast(wanted.arrow), bad | wrong


def text_bytes(words: pa.StringArray, encoding: Encoding) -> Decoded:
    """Bytes of texts in base64, hex, or Latin-1 (one character a byte)."""
    kernel = {
        Encoding.BASE64: text_kernels.decode_base64,
        Encoding.HEX: text_kernels.decode_hex,
        Encoding.LATIN1: text_kernels.encode_latin1,
    }[encoding]
    if len(words) == 0:
        return pa.array([], pa.binary()), np.zeros(0, np.bool_)
    _, offsets, values = words.buffers()
    valid = np.asarray(words.is_valid())
    source_offsets, source = _views(offsets, values, len(words), words.offset)
    out_offsets = np.empty(len(words) + 1, np.int32)
    out = np.empty(int(source_offsets[-1] - source_offsets[0]) + 4, np.uint8)
    bad = np.zeros(len(words), np.bool_)
    used = kernel(source_offsets, source, valid, out_offsets, out, bad)
    return _binary_array(pa.binary(), out_offsets, out[:used], valid & ~bad), bad


def base64_bytes(words: pa.StringArray) -> Decoded:
    """Bytes of base64 texts."""
    return text_bytes(words, Encoding.BASE64)


def _structs(column: SpanColumn, wanted: ValueType) -> Decoded:
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
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=_null_mask(valid)), bad


def _lists(column: SpanColumn, wanted: ValueType) -> Decoded:
    elements = scan_arrays(column.documents(kernels.ARRAY))
    values, wrong = decode(elements.values, wanted.members[0][1])
    bad = column.has_value & (elements.status != kernels.OK)
    bad |= _any_element(wrong, elements.offsets)
    offsets = pa.array(elements.offsets)
    return pa.ListArray.from_arrays(offsets, values, type=wanted.arrow, mask=_null_mask(column.has_value & ~bad)), bad


def _maps(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Objects whose member names are keys, or lists of [key, value] pairs."""
    key_type, value_type = wanted.members[0][1], wanted.members[1][1]
    if column.kinds[kernels.ARRAY]:
        pairs = scan_arrays(column.documents(kernels.ARRAY))
        inner = scan_arrays(pairs.values.documents(kernels.ARRAY))
        is_pair = np.diff(inner.offsets) == 2
        bad = column.has_value & (pairs.status != kernels.OK)
        bad |= _any_element(~is_pair, pairs.offsets)
        if bad.any():
            good = np.flatnonzero(~bad & column.has_value)
            kept, _ = _maps(column.take(good), wanted)
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
        kept, _ = _maps(column.take(good), wanted)
        places = np.full(len(column), -1, np.int64)
        places[good] = np.arange(len(good))
        return kept.take(pa.array(places, mask=places < 0)), bad
    valid = column.has_value
    return pa.MapArray.from_arrays(
        pa.array(offsets), key_array, value_array, type=wanted.arrow, mask=_null_mask(valid)
    ), bad


def spans_of_text(words: pa.Array) -> SpanColumn:
    """A string array as a span column of strings, NULL where it is NULL."""
    count = len(words)
    if count == 0:
        nothing = np.zeros(0, np.int32)
        return SpanColumn(np.zeros(0, np.uint8), nothing, nothing, np.zeros(0, np.int8))
    _, offsets, values = words.buffers()
    places, data = _views(offsets, values, count, words.offset)
    kind = np.where(np.asarray(words.is_valid()), kernels.STRING, kernels.NULL).astype(np.int8)
    return SpanColumn(data, places[:-1], places[1:], kind)


def _only(column: SpanColumn, mask: Mask) -> SpanColumn:
    return SpanColumn(column.data, column.start, column.end, np.where(mask, column.kind, np.int8(kernels.NULL)))


def _any_element(wrong: Mask, offsets: NDArray[np.int32]) -> Mask:
    """Rows with at least one wrong element."""
    before = np.zeros(len(wrong) + 1, np.int64)
    np.cumsum(wrong, out=before[1:])
    rows: Mask = before[offsets[1:]] > before[offsets[:-1]]
    return rows


def _mask(array: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(array, False), np.bool_)


def _inverse(valid: Mask) -> Mask | None:
    return None if valid.all() else ~valid


def _null_mask(valid: Mask) -> pa.BooleanArray | None:
    return None if valid.all() else pa.array(~valid)


def _bitmap(valid: Mask) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _binary_array(arrow: pa.DataType, offsets: NDArray[np.int32], data: NDArray[np.uint8], valid: Mask) -> pa.Array:
    return pa.Array.from_buffers(arrow, len(valid), [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)])


def _views(
    offsets: pa.Buffer, values: pa.Buffer | None, count: int, first: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    data = np.zeros(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
    return np.frombuffer(offsets, np.int32)[first : first + count + 1], data
