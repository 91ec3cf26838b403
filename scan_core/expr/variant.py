"""Values of type variant as JSON text: their binary form, and the columns into which writers shred parts of them.

After Parquet's VariantEncoding.md and VariantShredding.md. All values of a level are decoded at once: those of one type
become text by Arrow's casts, and texts of arrays and objects are joined from those of their elements.
"""

import base64
import json
import uuid

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from nevermore.scan_core.model.schema import MAX_TYPE_DEPTH
from nevermore.scan_core.rows.buffers import byte_slices, byte_spans, index_array, true_flags

Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_SHORT_TEXT, _OBJECT, _ARRAY = 1, 2, 3
"""Basic types besides 0, a primitive value."""
_LITERALS = ("null", "true", "false")
_DECIMALS = {8: pa.decimal32, 9: pa.decimal64, 10: pa.decimal128}
_MAX_SCALE = 38
_SCALED = 256
"""Scales are part of the type of a decimal: those of one scale are an array."""
_BINARY, _TEXT = 15, 16
_PIECE_BYTES = 1 << 22
_FIXED = {
    3: pa.int8(),
    4: pa.int16(),
    5: pa.int32(),
    6: pa.int64(),
    7: pa.float64(),
    11: pa.date32(),
    12: pa.timestamp("us", "UTC"),
    13: pa.timestamp("us"),
    14: pa.float32(),
    17: pa.time64("us"),
    18: pa.timestamp("ns", "UTC"),
    19: pa.timestamp("ns"),
    20: pa.binary(16),
}
"""Types of primitive values of fixed size, by their number."""


def variant_text(array: pa.StructArray) -> pa.StringArray:
    """The JSON text of each variant; NULL where the column is NULL.

    Numbers keep their digits. Dates, times and UUIDs are texts, bytes are in base64, NaN and infinities are texts.

    Raises:
        ValueError: bytes that are no variant.
    """
    return pa.concat_arrays(_pieces(array))


def _pieces(array: pa.StructArray) -> list[pa.StringArray]:
    """The texts, of few bytes at a time: offsets, counts and copies take many times the memory of the values."""
    if array.nbytes > _PIECE_BYTES and (half := len(array) // 2):
        return _pieces(array[:half]) + _pieces(array[half:])
    texts = _texts(array, array.field("metadata"), 0).fill_null("null")
    return [pc.if_else(array.is_valid(), texts, None)]


def _texts(node: pa.StructArray, metadata: pa.BinaryArray, depth: int) -> pa.StringArray:
    """The text of each value of a group of `value` and `typed_value`; NULL where neither has one."""
    members = {field.name: member for field, member in zip(node.type, node.flatten(), strict=True)}
    plain = _decoded(members.get("value", pa.nulls(len(node), pa.binary())), metadata, depth)
    if (typed := members.get("typed_value")) is None:
        return plain
    kind = typed.type
    if pt.is_struct(kind):
        # the value holds the members that have no column
        if pc.any(pc.and_(typed.is_valid(), pc.invert(pc.starts_with(plain, "{")))).as_py():
            raise ValueError("a shredded object whose rest is no object")
        rest = pc.utf8_slice_codeunits(plain, 1, -1)
        parts = [_joined(",", pc.if_else(pc.equal(rest, ""), None, rest))]
        for field, member in zip(kind, typed.flatten(), strict=True):
            key = json.dumps(field.name, ensure_ascii=False)
            parts.append(_joined(f",{key}:", _texts(member, metadata, depth + 1)))
        made = _joined("{", pc.utf8_slice_codeunits(_joined(*[part.fill_null("") for part in parts]), 1), "}")
    elif pt.is_list(kind):
        counts = np.asarray(typed.value_lengths().fill_null(0))
        owners = metadata.take(index_array(np.repeat(np.arange(len(typed)), counts)))
        made = _array(_texts(typed.flatten(), owners, depth + 1).fill_null("null"), counts)
    else:
        made = _json(typed)
    return pc.if_else(typed.is_valid(), made, plain)


def _joined(*parts: pa.Array | str) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")


def _array(texts: pa.StringArray, counts: Places, brackets: str = "[]") -> pa.StringArray:
    """Texts of as many elements each as `counts` tells."""
    lists = pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), texts)
    return _joined(brackets[0], pc.binary_join(lists, ","), brackets[1])


def _json(values: pa.Array) -> pa.StringArray:
    """Primitive values as JSON."""
    kind = values.type
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_decimal(kind):
        return values.cast(pa.string())
    if pt.is_floating(kind):
        texts = values.cast(pa.string())
        return pc.if_else(pc.is_finite(values), texts, _quoted(texts))
    if pt.is_binary(kind) or pt.is_fixed_size_binary(kind):  # value by value: JSON has none, so that they are rare
        text = base64.b64encode if pt.is_binary(kind) else lambda value: str(uuid.UUID(bytes=value))
        return _quoted(pa.array([None if value is None else text(value) for value in values.to_pylist()], pa.string()))
    if not pt.is_temporal(kind):
        return _quoted(values.cast(pa.string()))
    zone = "Z" if pt.is_timestamp(kind) and kind.tz else ""  # with a zone, Arrow writes some year for one out of range
    texts = (values.view(pa.timestamp(kind.unit)) if zone else values).cast(pa.string())
    if pc.any(pc.starts_with(texts, "<")).as_py():
        raise ValueError(f"a {kind} out of range")
    return _joined('"', texts, zone, '"')


def _bytes(array: pa.Array) -> tuple[Places, Bytes]:
    """(offsets, bytes) of a binary array, without the bytes of rows outside of a slice."""
    offsets, data = byte_spans(array)
    return offsets.astype(np.int64) - offsets[0], data[offsets[0] : offsets[-1]]


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    data = _bytes(texts)[1]
    special = data[(data < ord(" ")) | (data == ord('"')) | (data == ord("\\"))]
    for code in reversed(np.unique(special).tolist()):  # a backslash first: the others add some
        texts = pc.replace_substring(texts, chr(code), json.dumps(chr(code))[1:-1])
    return _joined('"', texts, '"')


def _decoded(values: pa.BinaryArray, metadata: pa.BinaryArray, depth: int) -> pa.StringArray:
    """The text of each binary value."""
    known = true_flags(values.is_valid())
    rows = np.flatnonzero(known)
    spans, data = _bytes(values)
    texts = _Values(data, *_bytes(metadata)).texts(spans[:-1][rows], spans[1:][rows], rows, depth)
    return texts.take(pa.array(np.cumsum(known) - 1, mask=~known))


class _Values:
    """Binary values, `data`, and the bytes of their rows' metadata, which have the keys of objects."""

    def __init__(self, data: Bytes, offsets: Places, names: Bytes) -> None:
        self._data = data
        self._offsets = offsets
        self._names = names
        self._left = len(data)

    def texts(self, starts: Places, ends: Places, rows: Places, depth: int) -> pa.StringArray:
        """The texts of values that begin at `starts` and end before `ends`."""
        self._left -= len(starts)  # each takes a byte at least
        if depth > MAX_TYPE_DEPTH or self._left < 0:
            raise ValueError(f"values within each other, or in more than {MAX_TYPE_DEPTH} levels")
        headers = _numbers(self._data, starts, 1, ends)
        kinds = np.where(headers & 3, 64 + (headers & 3), headers >> 2)
        decimal = np.flatnonzero((kinds >= min(_DECIMALS)) & (kinds <= max(_DECIMALS)))
        kinds[decimal] += _SCALED * _numbers(self._data, starts[decimal] + 1, 1, ends[decimal])
        order = np.argsort(kinds, kind="stable")
        found = [pa.array([], pa.string())]
        for kind in np.unique(kinds).tolist():
            chosen = np.flatnonzero(kinds == kind)
            given = starts[chosen] + 1, ends[chosen], headers[chosen] >> 2
            if kind in {64 + _OBJECT, 64 + _ARRAY}:
                found.append(self._nested(*given, rows[chosen], depth, is_object=kind == 64 + _OBJECT))
            else:
                found.append(self._primitive(kind, *given))
        return pa.concat_arrays(found).take(index_array(np.argsort(order)))

    def _primitive(self, kind: int, begins: Places, ends: Places, header: Places) -> pa.StringArray:
        scale, kind = divmod(kind, _SCALED)
        if kind < len(_LITERALS) and not scale:
            return pa.array([_LITERALS[kind]] * len(begins), pa.string())
        if kind == 64 + _SHORT_TEXT:
            return _quoted(_slices(self._data, begins, header, ends).cast(pa.string()))
        if kind in {_BINARY, _TEXT}:
            found = _slices(self._data, begins + 4, _numbers(self._data, begins, 4, ends), ends)
            return _json(found if kind == _BINARY else found.cast(pa.string()))
        if decimal := _DECIMALS.get(kind):
            fixed, wide, begins = decimal(1, scale), pa.decimal128(38, scale), begins + 1
        else:
            fixed = wide = _FIXED.get(kind)
        if fixed is None or scale > _MAX_SCALE:
            raise ValueError(f"the unknown type {kind}, or a decimal with a scale of {scale}")
        stored = _slices(self._data, begins, np.full(len(begins), fixed.bit_width // 8), ends).buffers()[2]
        return _json(pa.Array.from_buffers(fixed, len(begins), [None, stored]).cast(wide))

    def _nested(
        self, begins: Places, ends: Places, header: Places, rows: Places, depth: int, *, is_object: bool
    ) -> pa.StringArray:
        offset_bytes, id_bytes, large = 1 + (header & 3), np.zeros_like(header), header >> 2
        if is_object:
            id_bytes, large = 1 + (header >> 2 & 3), header >> 4
        count_bytes = np.where(large & 1, 4, 1)
        counts = _numbers(self._data, begins, count_bytes, ends)
        ids = begins + count_bytes
        offsets = ids + counts * id_bytes
        values = offsets + (counts + 1) * offset_bytes
        if (values > ends).any():
            raise ValueError("more elements than bytes")
        of = np.repeat(np.arange(len(begins)), counts)
        place = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = values[of] + _numbers(self._data, offsets[of] + place * offset_bytes[of], offset_bytes[of], ends[of])
        texts = self.texts(starts, ends[of], rows[of], depth + 1)
        if not is_object:
            return _array(texts, counts)
        keys = self._keys(rows[of], _numbers(self._data, ids[of] + place * id_bytes[of], id_bytes[of], ends[of]))
        return _array(_joined(_quoted(keys), ":", texts), counts, "{}")

    def _keys(self, rows: Places, ids: Places) -> pa.StringArray:
        """The key with this number in the metadata of each row."""
        names, begins, ends = self._names, self._offsets[rows], self._offsets[rows + 1]
        header = _numbers(names, begins, 1, ends)
        size, first = 1 + (header >> 6), begins + 1
        count = _numbers(names, first, size, ends)
        if (header & 15 != 1).any() or (ids >= count).any():
            raise ValueError("metadata of another version, or without a key of an object")
        start, stop = (_numbers(names, first + (ids + place) * size, size, ends) for place in (1, 2))
        return _slices(names, first + (count + 2) * size + start, stop - start, ends).cast(pa.string())


def _check(begins: Places, sizes: Places | int, ends: Places) -> None:
    if (begins + sizes > ends).any() or np.any(np.asarray(sizes) < 0):
        raise ValueError("a value that ends outside of its bytes")


def _numbers(data: Bytes, begins: Places, size: Places | int, ends: Places) -> Places:
    """Unsigned numbers of one to four bytes."""
    _check(begins, size, ends)
    found = np.zeros(len(begins), np.int64)
    for place in range(int(np.max(size, initial=0))):
        used = place < size
        found |= np.where(used, data[np.where(used, begins + place, 0)].astype(np.int64) << 8 * place, 0)
    return found


def _slices(data: Bytes, begins: Places, lengths: Places, ends: Places) -> pa.BinaryArray:
    _check(begins, lengths, ends)
    return byte_slices(data, begins, begins + lengths)
