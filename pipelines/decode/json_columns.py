"""Converts JSON spans to Arrow columns of a wanted type and reports the values that do not fit.

Covers text, booleans, numbers, decimals, binary values, times, structs, lists and maps. Values that are already in
Arrow columns are converted in `arrow_columns.py`; the wanted type is chosen in `column_types.py`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode import casting
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.feed_schemas import MAX_DIGITS
from nevermore.pipelines.decode.value_types import DATE_STYLES, Encoding, ValueType
from nevermore.pipelines.jsonscan import text_kernels
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_arrays, scan_objects, scan_pairs
from nevermore.pipelines.jsonscan.spans import SpanColumn, from_binary
from nevermore.scan_core import Mask

Decoded = tuple[pa.Array, Mask]
"""A column and the mask of values that do not fit (NULL in the column)."""

TEXT_KINDS = (kernels.STRING, kernels.ESCAPED)
NUMBER_KINDS = (kernels.INT, kernels.FLOAT)


def text(column: SpanColumn, wanted: Mask) -> Decoded:
    """The wanted spans as unescaped strings, NULL elsewhere; the mask marks lone surrogates."""
    count = len(column)
    offsets = np.empty(count + 1, np.int32)
    lengths = np.where(wanted, column.end - column.start, 0)
    data = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    bad = np.zeros(count, np.bool_)
    used = text_kernels.gather_text(column.data, column.start, column.end, column.kind, wanted, offsets, data, bad)
    valid = wanted & ~bad if bad.any() else wanted
    return binary_array(pa.string(), offsets, data[:used], valid), bad


def json_text(column: SpanColumn) -> Decoded:
    """Each value's JSON text as the feed wrote it; strings are returned as they are."""
    return text(column, column.has_value)


def spans_of_text(words: pa.Array) -> SpanColumn:
    """A string array as a span column of strings, NULL where it is NULL."""
    found = from_binary(words)
    kind = np.where(found.present, kernels.STRING, kernels.NULL).astype(np.int8)
    return SpanColumn(found.data, found.start, found.end, kind)


def text_bytes(words: pa.StringArray, encoding: Encoding = Encoding.BASE64) -> Decoded:
    """Decode texts in base64, hex, or Latin-1 (one character a byte) to bytes."""
    how = (Encoding.BASE64, Encoding.HEX, Encoding.LATIN1).index(encoding)  # as `text_kernels` numbers them
    if len(words) == 0:
        return pa.array([], pa.binary()), np.zeros(0, np.bool_)
    _, offsets, values = words.buffers()
    valid = np.asarray(words.is_valid())
    source_offsets, source = views(offsets, values, len(words), words.offset)
    out_offsets = np.empty(len(words) + 1, np.int32)
    out = np.empty(int(source_offsets[-1] - source_offsets[0]) + 4, np.uint8)
    bad = np.zeros(len(words), np.bool_)
    used = text_kernels.decode_bytes(how, source_offsets, source, valid, out_offsets, out, bad)
    return binary_array(pa.binary(), out_offsets, out[:used], valid & ~bad), bad


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


SAFE_DIGITS = 15
"""Integers of at most this many characters are exact as doubles."""
SHORTEST_UNDERFLOW = 5
"""No nonzero number of at most this many characters becomes zero: 1e-400 has six."""


def integers(column: SpanColumn) -> tuple[NDArray[np.int64], Mask]:
    """Integers, also in text, and the mask of them: for positions and times, where other values are ignored."""
    values, valid, _ = whole_numbers(column)
    return values, valid


def strings(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Text; objects and lists as their JSON text; numbers and booleans only where the config requests a string."""
    if column.kinds[[*NUMBER_KINDS, kernels.TRUE, kernels.FALSE]].any() and not wanted.explicit:
        usable = column.of_kind(*TEXT_KINDS, kernels.OBJECT, kernels.ARRAY)
    else:
        usable = column.has_value
    values, bad = text(column, usable)
    return values, bad | (column.has_value & ~usable)


def booleans(column: SpanColumn, _wanted: ValueType) -> Decoded:
    """Booleans, also as 0 and 1 and in the words that databases write."""
    known = column.of_kind(kernels.TRUE, kernels.FALSE)
    values = column.kind == kernels.TRUE
    others = column.has_value & ~known
    if not others.any():
        return pa.array(values, mask=inverse(known)), others
    words, _ = text(column, others)
    folded = pc.ascii_lower(words)
    true = true_mask(pc.is_in(folded, pa.array(["1", "true", "t", "y", "yes"])))
    false = true_mask(pc.is_in(folded, pa.array(["0", "false", "f", "n", "no"])))
    return pa.array(values | true, mask=inverse(known | true | false)), others & ~true & ~false


def typed_integers(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Integers of the wanted width; an int that widens becomes a long where a value needs it."""
    values, valid, bad = whole_numbers(column, truth=wanted.arrow.bit_width <= 32)
    if wanted.arrow.bit_width < 64:
        limits = np.iinfo(wanted.arrow.to_pandas_dtype())
        outside = valid & ((values < limits.min) | (values > limits.max))
        if wanted.widens and outside.any():
            return pa.array(values, mask=inverse(valid)), bad
        bad, valid = bad | outside, valid & ~outside
    array = pa.array(values, mask=inverse(valid))
    return (array if wanted.arrow == pa.int64() else array.cast(wanted.arrow, safe=False)), bad


def whole_numbers(column: SpanColumn, *, truth: bool = False) -> tuple[NDArray[np.int64], Mask, Mask]:
    """(values, valid, wrong): integers, whole numbers in other notations, and text of integers."""
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
        whole, is_whole = _odd_whole_numbers(column, odd & column.of_kind(*NUMBER_KINDS))
        values = np.where(is_whole, whole, values)
        odd &= ~is_whole
        usable = usable | is_whole
    return values, usable & ~odd, odd


def _odd_whole_numbers(column: SpanColumn, candidates: Mask) -> tuple[NDArray[np.int64], Mask]:
    """Numbers such as 5.0 and 1e3, which are integers in another notation."""
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


def floats(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Doubles and floats nearest to the value, also from text (NaN, Infinity); wrong where the number would change.

    Fractions are rounded as doubles always are. Integers that no double holds, and numbers that would become infinite
    or zero, would change.
    """
    usable = column.of_kind(*NUMBER_KINDS, *TEXT_KINDS)
    words, broken = text(column, usable)
    parsed, wrong = cast_each(words, pa.float64())
    values = np.asarray(parsed.fill_null(0.0))
    bad = (column.has_value & ~usable) | broken | wrong
    if wanted.arrow == pa.float32():
        with np.errstate(over="ignore"):
            bad |= usable & np.isfinite(values) & ~np.isfinite(values.astype(np.float32))
    bad |= _other_numbers(column, values, usable & ~bad)
    usable = usable & ~bad
    array = pa.array(values, mask=inverse(usable))
    return (array if wanted.arrow == pa.float64() else array.cast(wanted.arrow, safe=False)), bad


def _other_numbers(column: SpanColumn, values: NDArray[np.float64], usable: Mask) -> Mask:
    """Mask of values whose nearest double is another number than the digits state."""
    strange: Mask = np.isinf(values) | (values == 0)
    large = column.of_kind(kernels.INT)
    if not strange.any() and not large.any():
        return strange
    lengths = column.end - column.start
    large &= usable & (lengths > SAFE_DIGITS)
    strange &= usable & (np.isinf(values) | (lengths > SHORTEST_UNDERFLOW))
    result: Mask = large | strange
    rows = np.flatnonzero(result)
    if not len(rows):
        return result
    words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
    nearest = pa.array(values[rows])
    said = pc.match_substring_regex(words, r"(?i)^[+-]?inf|^[+-]?[0.]+(e|$)")
    # Writers print whole doubles by their shortest digits, which are right although their value differs a little.
    digits, unknown = cast_each(words, pa.decimal128(38, 0))
    shown, _ = cast_each(nearest.cast(pa.string()), pa.decimal128(38, 0))
    same = true_mask(pc.equal(digits, shown)) & ~unknown
    exact, too_large = cast_each(digits, pa.int64())
    as_double = np.asarray(exact.fill_null(0)).astype(np.float64)
    whole = np.abs(as_double) < 2.0**63
    back = np.where(whole, as_double, 0.0).astype(np.int64)
    same |= whole & ~too_large & ~unknown & (back == np.asarray(exact.fill_null(0)))
    result[rows] = np.where(strange[rows], ~true_mask(said), ~same)
    return result


def temporals(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Dates, times and timestamps from text or integers."""
    is_text = column.of_kind(*TEXT_KINDS)
    if is_text.any():
        words, _ = text(column, is_text)
        styled = wanted.encoding in DATE_STYLES
        read = (
            casting.from_style(words, wanted.arrow, wanted.encoding, wanted.infinite)
            if styled
            else casting.from_text(words, wanted.arrow, wanted.infinite)
        )
        from_text, bad = read
        numbers = column.has_value & ~is_text
        if not numbers.any():
            return from_text, bad
        from_number, wrong = temporals(only(column, numbers), wanted)
        return pc.coalesce(from_text, from_number), bad | wrong
    values, valid, none = whole_numbers(column)
    array, outside = casting.from_integers(values, valid, wanted.arrow, wanted.encoding, wanted.infinite)
    return array, none | outside


def only(column: SpanColumn, mask: Mask) -> SpanColumn:
    """The column with null wherever `mask` is false."""
    return SpanColumn(column.data, column.start, column.end, np.where(mask, column.kind, np.int8(kernels.NULL)))


_EXACT = Context(MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_MAX_DIGITS = 2**17
"""Digits of a number on either side of its point, as many as PostgreSQL has, so that a scale alone makes no huge text."""

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_MAYBE_BASE64 = r"^([0-9A-Za-z+/]{4})+$"


def decimals(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Exact decimals from numbers and numeric text, base64 of the unscaled value, or a struct of scale and value."""
    if column.kinds[kernels.OBJECT]:
        return scaled(column, wanted)
    usable = column.of_kind(*NUMBER_KINDS, *TEXT_KINDS)
    words, broken = text(column, usable)
    is_text = column.of_kind(*TEXT_KINDS)
    base64 = is_text if wanted.encoding is Encoding.BASE64 else np.zeros(len(column), np.bool_)
    nothing = pa.scalar(None, pa.string())
    if wanted.encoding is Encoding.NATURAL and is_text.any():
        undecided = is_text & ~_can_only_be_number(words)
        usable, words = usable & ~undecided, pc.if_else(pa.array(undecided), nothing, words)
    bad = (column.has_value & ~usable) | broken
    if not base64.any():
        values, wrong = cast_each(words, wanted.arrow)
        return values, bad | wrong
    unscaled, wrong_base64 = _unscaled(pc.if_else(pa.array(base64), words, nothing), wanted)
    plain, wrong_number = cast_each(pc.if_else(pa.array(base64), nothing, words), wanted.arrow)
    return pc.coalesce(unscaled, plain), bad | wrong_base64 | wrong_number


def _can_only_be_number(words: pa.StringArray) -> Mask:
    """Texts that are numbers and not base64: "10.50", but not "1234", which may be both. Each is judged by itself."""
    return true_mask(pc.match_substring_regex(words, _NUMBER)) & ~true_mask(
        pc.match_substring_regex(words, _MAYBE_BASE64)
    )


def _unscaled(words: pa.StringArray, wanted: ValueType) -> Decoded:
    """Base64 of big-endian two's complement integers as decimals."""
    data, bad = text_bytes(words)
    values, wrong = decimals_of_bytes(data, wanted.arrow, wanted.scale)
    return values, bad | wrong


def decimals_of_bytes(data: pa.BinaryArray, arrow: pa.DataType, scale: int | None = None) -> Decoded:
    """Big-endian two's complement integers as decimals.

    Args:
        data: the unscaled values.
        arrow: the decimal type wanted.
        scale: scale of the unscaled values; None is that of the type. It may be any integer of 64 bits: values that the
            type cannot hold are marked as wrong.
    """
    if len(data) == 0:
        return pa.array([], arrow), np.zeros(0, np.bool_)
    if scale is None or 0 <= scale <= MAX_DIGITS:
        exact, bad = _integers_of_bytes(data, arrow.scale if scale is None else scale)
        fitting, too_large = cast_each(exact, arrow)
        return fitting, bad | too_large
    whole, bad = _integers_of_bytes(data, 0)
    # Text with an exponent keeps unbounded scales away from Arrow's arithmetic; it costs ten times as much.
    fitting, wrong = cast_each(pc.binary_join_element_wise(whole.cast(pa.string()), str(-scale), "E"), arrow)
    return fitting, bad | wrong


def of_own_scales(data: pa.BinaryArray, scales: Iterable[int | None], wanted: ValueType) -> pa.Array:
    """Big-endian two's complement integers, each with a scale of its own; NULL for those that `wanted` does not hold.

    As text, they have all their digits and no exponent, as PostgreSQL writes them.
    """
    texts = [
        None
        if unscaled is None or scale is None or abs(scale) > _MAX_DIGITS or len(unscaled) > _MAX_DIGITS
        else format(_EXACT.scaleb(Decimal(int.from_bytes(unscaled, signed=True)), -scale), "f")
        for unscaled, scale in zip(data.to_pylist(), scales, strict=False)
    ]
    return decode(spans_of_text(pa.array(texts, pa.string())), replace(wanted, encoding=Encoding.PLAIN))[0]


def _integers_of_bytes(data: pa.BinaryArray, scale: int) -> Decoded:
    """Big-endian two's complement integers as decimals of 38 digits."""
    bad = np.zeros(len(data), np.bool_)
    valid = np.asarray(data.is_valid())
    numbers = np.zeros((len(data), 16), np.uint8)
    _, offsets, values = data.buffers()
    text_kernels.widen_integers(*views(offsets, values, len(data), data.offset), valid, numbers, bad)
    valid &= ~bad
    widest = pa.decimal128(38, scale)
    exact = pa.Array.from_buffers(widest, len(data), [bitmap(valid), pa.py_buffer(numbers)])
    largest = pa.scalar(Decimal(f"{10**38 - 1}E{-scale}"), widest)
    outside = true_mask(pc.or_(pc.greater(exact, largest), pc.less(exact, pc.negate(largest))))
    if outside.any():
        bad |= outside
        exact = pc.if_else(pa.array(outside), pa.scalar(None, widest), exact)
    return exact, bad


def scaled(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Numbers from structs of scale and value, or as the others are written."""
    objects = scan_objects(column.documents(kernels.OBJECT), ("scale", "value"), learn=False)
    scales, given, _ = whole_numbers(objects.column("scale"))
    words, _ = text(objects.column("value"), objects.column("value").of_kind(*TEXT_KINDS))
    values = of_own_scales(text_bytes(words)[0], pa.array(scales, mask=~given).to_pylist(), wanted)
    encoding = Encoding.NATURAL if wanted.encoding is Encoding.SCALED else wanted.encoding
    others, _ = decode(only(column, ~column.of_kind(kernels.OBJECT)), replace(wanted, encoding=encoding))
    values = pc.coalesce(values, others)
    return values, column.has_value & ~np.asarray(values.is_valid())


def exact_text(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Decimals of one scale as text, from base64 of the unscaled values or numbers."""
    words, _ = text(column, column.of_kind(*TEXT_KINDS))
    others, _ = text(column, column.of_kind(*NUMBER_KINDS))
    values = pc.coalesce(of_own_scales(text_bytes(words)[0], repeat(wanted.scale), wanted), others)
    return values, column.has_value & ~np.asarray(values.is_valid())


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


def structs(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Objects as structs; members that a declared type lacks are left out, and wrong if the type is inferred."""
    names = [name for name, _ in wanted.members]
    objects = scan_objects(column.documents(kernels.OBJECT), names, learn=wanted.inferred)
    bad = column.has_value & ~objects.is_object
    for name in objects.names[len(names) :]:
        bad |= objects.column(name).has_value
    arrays = []
    for name, member in wanted.members:
        array, wrong = decode(objects.column(name), member)
        arrays.append(array)
        bad |= wrong
    valid = column.has_value & ~bad
    fields = list(wanted.arrow)
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=null_mask(valid)), bad


def lists(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Lists; one wrong element makes its list wrong."""
    elements = scan_arrays(column.documents(kernels.ARRAY))
    values, wrong = decode(elements.values, wanted.members[0][1])
    bad = column.has_value & (elements.status != kernels.OK)
    bad |= any_element(wrong, elements.offsets)
    offsets = pa.array(elements.offsets)
    return pa.ListArray.from_arrays(offsets, values, type=wanted.arrow, mask=null_mask(column.has_value & ~bad)), bad


def maps(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Maps from objects, whose member names are keys, or from lists of [key, value] pairs; decided for each value."""
    key_type, value_type = wanted.members[0][1], wanted.members[1][1]
    as_pairs = column.of_kind(kernels.ARRAY)
    if as_pairs.any() and column.kinds[kernels.OBJECT]:
        pairs_of, wrong_pairs = maps(column.without(~as_pairs), wanted)
        objects_of, wrong_objects = maps(column.without(as_pairs), wanted)
        both = pa.concat_arrays([objects_of, pairs_of])
        places = np.arange(len(column)) + np.where(as_pairs, len(column), 0)
        return both.take(pa.array(places)), wrong_pairs | wrong_objects
    if as_pairs.any():
        pairs = scan_arrays(column.documents(kernels.ARRAY))
        inner = scan_arrays(pairs.values.documents(kernels.ARRAY))
        bad = column.has_value & (pairs.status != kernels.OK)
        bad |= any_element(np.diff(inner.offsets) != 2, pairs.offsets)
        if bad.any():
            return _good_maps(column, wanted, bad), bad
        members, offsets = inner.values, pairs.offsets
    else:
        objects = scan_pairs(column.documents(kernels.OBJECT))
        bad = column.has_value & (objects.status != kernels.OK)
        members, offsets = objects.values, objects.offsets // 2
    key_array, wrong_keys = decode(members.take(np.arange(0, len(members), 2)), key_type)
    value_array, wrong_values = decode(members.take(np.arange(1, len(members), 2)), value_type)
    wrong = wrong_keys | wrong_values | ~np.asarray(key_array.is_valid()) | _repeated(key_array, offsets)
    bad |= any_element(wrong, offsets)
    if bad.any():
        return _good_maps(column, wanted, bad), bad
    valid = column.has_value
    return pa.MapArray.from_arrays(
        pa.array(offsets), key_array, value_array, type=wanted.arrow, mask=null_mask(valid)
    ), bad


def _repeated(keys: pa.Array, offsets: NDArray[np.int32]) -> Mask:
    """Keys that occurred before in the same map."""
    map_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    codes = np.asarray(keys.dictionary_encode().indices.fill_null(-1)).astype(np.int64)
    _, first = np.unique(map_of * (len(keys) + 1) + codes, return_index=True)
    repeated = np.ones(len(keys), np.bool_)
    repeated[first] = False
    return repeated


def _good_maps(column: SpanColumn, wanted: ValueType, bad: Mask) -> pa.MapArray:
    """Only the valid maps: a key that does not fit is NULL, which maps do not allow."""
    good = np.flatnonzero(~bad & column.has_value)
    kept, _ = maps(column.take(good), wanted)
    places = np.full(len(column), -1, np.int64)
    places[good] = np.arange(len(good))
    return kept.take(pa.array(places, mask=places < 0))


def any_element(wrong: Mask, offsets: NDArray[np.int32]) -> Mask:
    """Rows with at least one wrong element."""
    before = np.zeros(len(wrong) + 1, np.int64)
    np.cumsum(wrong, out=before[1:])
    rows: Mask = before[offsets[1:]] > before[offsets[:-1]]
    return rows


def decode(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Convert the column to `wanted`; also return the mask of values that do not fit (NULL there)."""
    arrow = wanted.arrow
    if pa.types.is_null(arrow):
        return pa.nulls(len(column)), column.has_value.copy()
    if wanted.encoding is Encoding.TEXT:
        return json_text(column)
    if wanted.encoding is Encoding.SCALED:
        return scaled(column, wanted)
    if wanted.encoding is Encoding.BASE64 and pa.types.is_string(arrow):
        return exact_text(column, wanted)
    for is_type, decoder in _DECODERS:
        if is_type(arrow):
            return decoder(column, wanted)
    raise TypeError(f"there is no decoder for {arrow}")


_DECODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[SpanColumn, ValueType], Decoded]], ...] = (
    (pa.types.is_integer, typed_integers),
    (pa.types.is_floating, floats),
    (pa.types.is_string, strings),
    (pa.types.is_boolean, booleans),
    (pa.types.is_decimal, decimals),
    (pa.types.is_temporal, temporals),
    (pa.types.is_binary, binaries),
    (pa.types.is_fixed_size_binary, binaries),
    (pa.types.is_struct, structs),
    (pa.types.is_map, maps),
    (pa.types.is_list, lists),
)
