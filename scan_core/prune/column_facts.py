"""What manifests say of one column in many files at once: bounds as Arrow arrays, counts as numbers.

Bounds are decoded as `single_value.py` decodes one, into 64-bit integers, doubles or bytes, which order as the values
do. Where that is not possible a file is *odd*: it must be looked at by itself.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.manifest_columns import LOWER, NANS, NULLS, UPPER, VALUES, EntryColumns, Numbers, Spans
from scan_core.native.compiled import load
from scan_core.rows.buffers import boolean_array, numbers, true_flags, validity
from scan_core.schema import PrimitiveType
from scan_core.single_value import NARROW, TICKS_PER_DAY, unscaled_value

Flags = npt.NDArray[np.bool_]

TEXT_LIKE = frozenset({"string", "binary", "fixed", "uuid"})
FLOATING = frozenset({"float", "double"})
INTEGRAL = frozenset({"int", "long", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_MOST_DECIMAL_BYTES = 32
_INT64 = np.iinfo(np.int64)
_MOST_ROWS = 1 << 60
"""Sums of counts up to it fit into 64 bits."""


class NoColumnError(ValueError):
    """Values that have no place in a column of 64-bit integers, doubles or bytes."""


class Bounds(NamedTuple):
    """One bound of each file, NULL where it is unknown, and which files are odd."""

    values: Any
    is_odd: Flags


class Count(NamedTuple):
    """A count of each file, and where it is known."""

    values: Numbers
    known: Flags


class Counts(NamedTuple):
    """What is counted of a column in each file; odd are files that claim more rows than there can be."""

    nulls: Count
    nans: Count
    values: Count
    is_odd: Flags


def column_kind(type_: PrimitiveType) -> pa.DataType:
    """How bounds of a type are held.

    Raises:
        NoColumnError: in no way.
    """
    name = type_.name
    if name in INTEGRAL or name in {"boolean", "decimal"}:
        return pa.int64()
    if name in FLOATING:
        return pa.float64()
    if name in TEXT_LIKE:
        return pa.large_binary()
    raise NoColumnError(f"bounds of {type_}")


def array_of(values: Sequence[Any], type_: PrimitiveType) -> Any:
    """Values of the type as `Bounds` hold them; None is NULL.

    Raises:
        NoColumnError: one does not fit.
    """
    kind = column_kind(type_)
    known = np.fromiter((v is not None for v in values), np.bool_, len(values))
    found = np.zeros(len(values), np.float64 if type_.name in FLOATING else np.int64)
    try:
        if type_.name in TEXT_LIKE:
            return _binary_array([b"" if v is None else _bytes_of(v) for v in values], known)
        for i in np.flatnonzero(known).tolist():
            found[i] = _number_of(values[i], type_)
    except (ValueError, OverflowError) as error:
        raise NoColumnError(f"a bound of {type_}: {error}") from error
    return _array(found, known, kind)


def as_scalar(value: Any, type_: PrimitiveType) -> Any:
    """A value of the type as `Bounds` hold it; `pa.scalar` would import pandas.

    Raises:
        NoColumnError: it does not fit.
    """
    return array_of([value], type_)[0]


def _bytes_of(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _number_of(value: Any, type_: PrimitiveType) -> int | float:
    if type_.name == "decimal":
        return unscaled_value(value, type_.parameters[1])
    if type_.name in FLOATING and not isinstance(value, float):
        raise NoColumnError(f"{value!r:.60} is no {type_}")
    return value if type_.name in FLOATING else int(value)


def bounds_of(columns: EntryColumns, rows: Numbers, field_id: int, type_: PrimitiveType) -> tuple[Bounds, Bounds]:
    """The lower and the upper bound of a column in some files.

    Raises:
        NoColumnError: the type has bounds of no such kind.
    """
    kind = column_kind(type_)
    lower, upper = (_found(columns, slot, rows, field_id) for slot in (LOWER, UPPER))
    return _decoded(columns.block, lower, type_, kind), _decoded(columns.block, upper, type_, kind)


def in_order(lower: Any, upper: Any) -> Flags:
    """Where both ends are known, and the lower one is not above the upper one."""
    if lower.type == pa.large_binary():
        import pyarrow.compute as pc

        return true_flags(pc.less_equal(lower, upper))
    found: Flags = numbers(lower) <= numbers(upper)
    for valid in (validity(lower), validity(upper)):
        found = found if valid is None else found & valid
    return found


def counts_of(columns: EntryColumns, rows: Numbers, field_id: int) -> Counts:
    """Of a column in some files, as `ContentFile.null_count` and `value_count` tell them."""
    records = columns.record_counts[rows]
    nulls, nans, values = (_found(columns, slot, rows, field_id) for slot in (NULLS, NANS, VALUES))
    has_nulls, has_nans, has_values = (part.lengths >= 0 for part in (nulls, nans, values))
    is_odd = records > _MOST_ROWS
    for part in (nulls, nans, values):
        is_odd |= np.abs(part.starts) > _MOST_ROWS
    missing = np.maximum(records - values.starts, 0)
    return Counts(
        Count(nulls.starts + missing, has_nulls & has_values),
        Count(nans.starts, has_nans),
        Count(np.maximum(values.starts, records), has_values),
        is_odd,
    )


def _found(columns: EntryColumns, slot: int, rows: Numbers, field_id: int) -> Spans:
    """Where a map has the bytes of a field, or its number instead of a place."""
    found, lengths = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
    spans = columns.statistics.get(slot)
    if spans is not None:
        data = np.frombuffer(columns.block, np.uint8)
        starts, counts = (np.ascontiguousarray(part[rows], np.int64) for part in spans)
        of_bytes = slot in {LOWER, UPPER}
        load()["find_in_pairs"](data, len(data), starts, counts, len(rows), field_id, of_bytes, found, lengths)
    return Spans(found, lengths)


def _decoded(block: bytes, spans: Spans, type_: PrimitiveType, kind: pa.DataType) -> Bounds:
    name = type_.name
    if name in TEXT_LIKE:
        return _text(block, spans, name)
    data = np.frombuffer(block, np.uint8)
    if name == "decimal":
        return _decimals(data, spans)
    if name == "boolean":
        values, known = np.zeros(len(spans.starts), np.int64), spans.lengths == 1
        values[known] = data[spans.starts[known]] != 0
        return Bounds(_array(values, known, kind), np.zeros(len(known), np.bool_))
    four, eight = spans.lengths == 4, spans.lengths == 8
    dtypes = ("<f4", "<f8") if name in FLOATING else ("<i4", "<i8")
    values = np.zeros(len(four), dtypes[1])
    values[eight] = _fixed(data, spans.starts[eight], 8).view(dtypes[1]).reshape(-1)
    with np.errstate(invalid="ignore"):  # NaN of any payload is unknown
        values[four] = _fixed(data, spans.starts[four], 4).view(dtypes[0]).reshape(-1)
    known = four | eight
    if name in FLOATING:
        known &= ~np.isnan(values)
    elif name in NARROW:
        known &= values.astype(np.int32) == values
    elif (per_day := TICKS_PER_DAY.get(name)) is not None:
        known &= eight | (np.abs(values) <= _INT64.max // per_day)
        values[four & known] *= per_day
    return Bounds(_array(values, known, kind), np.zeros(len(known), np.bool_))


def _decimals(data: Any, spans: Spans) -> Bounds:
    """Big-endian and as short as may be, of at most eight bytes."""
    starts, lengths = spans
    known = (lengths > 0) & (lengths <= _MOST_DECIMAL_BYTES)
    is_odd = known & (lengths > 8)
    known &= ~is_odd
    values = np.zeros(len(starts), np.int64)
    for length in np.unique(lengths[known]).tolist():
        rows = known & (lengths == length)
        stored = _fixed(data, starts[rows], length)
        padded = np.where(stored[:, :1] > 127, 255, 0).astype(np.uint8).repeat(8, axis=1)
        padded[:, 8 - length :] = stored
        values[rows] = padded.view(">i8")[:, 0]
    return Bounds(_array(values, known, pa.int64()), is_odd)


def _text(block: bytes, spans: Spans, name: str) -> Bounds:
    known = spans.lengths >= 0
    if name == "uuid":
        known = spans.lengths == 16
    starts, lengths = np.where(known, spans.starts, 0), np.where(known, spans.lengths, 0)
    places = zip(starts.tolist(), lengths.tolist(), strict=True)
    parts = [block[start : start + length] for start, length in places]
    if name == "string" and not _is_text(b"\n".join(parts)):  # a separator inside a character would break it
        known &= np.fromiter(map(_is_text, parts), np.bool_, len(parts))
        parts = [part if is_known else b"" for part, is_known in zip(parts, known.tolist(), strict=True)]
    return Bounds(_binary_array(parts, known), np.zeros(len(parts), np.bool_))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fixed(data: Any, starts: Numbers, size: int) -> Any:
    """So many bytes from each start on, a row each."""
    return np.ascontiguousarray(data[starts[:, None] + np.arange(size)])


def _array(values: Numbers, known: Flags, kind: pa.DataType) -> Any:
    bitmap = None if known.all() else boolean_array(known).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def _binary_array(parts: list[bytes], known: Flags) -> Any:
    """The byte strings as one array, NULL where unknown."""
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    bitmap = None if known.all() else boolean_array(known).buffers()[1]
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.large_binary(), len(parts), buffers)
