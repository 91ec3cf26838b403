"""Bounds of one key column over many files, as columns, and which files' key ranges are disjoint (SEMANTICS rule 20).

Values are mapped to numbers that keep their order, loosely where they do not fit: equal numbers say nothing. Strings
and bytes by their first eight bytes, unsigned (so do UUIDs); an upper bound counts as a prefix, since some writers cut
it off without rounding it up. Unknown means overlapping.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scan_core.metadata.bulk_manifests import EntryColumns
from scan_core.model.schema import PrimitiveType
from scan_core.model.single_value import decode_bound
from scan_core.model.snapshot import ContentFile
from scan_core.prune.facts import FLOATING, NoColumnError, bounds_of, counts_of, in_order
from scan_core.rows.buffers import numbers

Numbers = npt.NDArray[Any]
Booleans = npt.NDArray[np.bool_]

_PREFIX_BYTES = 8
_TEXT_LIKE = frozenset({"string", "binary", "fixed", "uuid"})
_FLOATING = frozenset({"float", "double", "decimal"})


class KeyBounds(NamedTuple):
    """Of one column in each of some files; `lower` and `upper` mean nothing where `known` is False."""

    lower: Numbers
    upper: Numbers
    known: Booleans
    may_have_null: Booleans


def key_bounds(files: Sequence[ContentFile], field_id: int, key_type: PrimitiveType, *, nan_matters: bool) -> KeyBounds:
    """Bounds of a column in each file.

    Args:
        files: data files or delete files.
        field_id: the column.
        key_type: its type today; bounds written before a promotion are promoted.
        nan_matters: bounds of a float column count only where the file is known to hold no NaN (SEMANTICS rule 12).
    """
    dtype = _dtype(key_type)
    lower, upper = np.zeros(len(files), dtype), np.zeros(len(files), dtype)
    known = np.zeros(len(files), np.bool_)
    may_have_null = np.ones(len(files), np.bool_)
    must_lack_nan = nan_matters and key_type.name in {"float", "double"}
    for index, file in enumerate(files):
        may_have_null[index] = file.null_count(field_id) != 0
        if must_lack_nan and file.nan_value_counts.get(field_id) != 0:
            continue
        low = decode_bound(file.lower_bounds.get(field_id), key_type)
        high = decode_bound(file.upper_bounds.get(field_id), key_type)
        if low is None or high is None or low > high:
            continue
        try:
            lower[index], upper[index] = _number(low, key_type, b"\0"), _number(high, key_type, b"\xff")
        except OverflowError:
            continue
        known[index] = True
    return KeyBounds(lower, upper, known, may_have_null)


def key_bounds_of_columns(
    columns: EntryColumns,
    rows: Numbers,
    file_at: Callable[[int], ContentFile],
    field_id: int,
    key_type: PrimitiveType,
    *,
    nan_matters: bool,
) -> KeyBounds:
    """As `key_bounds`, of files that are columns.

    Args:
        columns: entries of manifests.
        rows: which of them.
        file_at: one of those as an object, by its place in `rows`, for the few that columns cannot tell of.
        field_id: the column.
        key_type: its type today.
        nan_matters: as there.
    """
    try:
        lower, upper = bounds_of(columns, rows, field_id, key_type)
    except NoColumnError:
        return key_bounds([file_at(i) for i in range(len(rows))], field_id, key_type, nan_matters=nan_matters)
    counts = counts_of(columns, rows, field_id)
    believed = in_order(lower.values, upper.values)
    if nan_matters and key_type.name in FLOATING:
        believed &= counts.nans.known & (counts.nans.values == 0)
    found = KeyBounds(
        _order_numbers(lower.values, key_type, 0),
        _order_numbers(upper.values, key_type, 0xFF),
        believed,
        ~counts.nulls.known | (counts.nulls.values != 0),
    )
    odd = np.flatnonzero(lower.is_odd | upper.is_odd | counts.is_odd | (key_type.name == "decimal"))
    if len(odd):
        single = key_bounds([file_at(i) for i in odd.tolist()], field_id, key_type, nan_matters=nan_matters)
        for whole, part in zip(found, single, strict=True):
            whole[odd] = part
    return found


def disjoint(many: KeyBounds, one: KeyBounds, index: int) -> Booleans:
    """For each file of `many`: no key of it can equal a key of file `index` of `one` in this column."""
    if not one.known[index]:
        return np.zeros(len(many.known), np.bool_)
    apart: Booleans = (many.lower > one.upper[index]) | (many.upper < one.lower[index])
    apart &= many.known
    if one.may_have_null[index]:
        apart &= ~many.may_have_null
    return apart


def _dtype(key_type: PrimitiveType) -> Any:
    if key_type.name in _TEXT_LIKE:
        return np.uint64
    return np.float64 if key_type.name in _FLOATING else np.int64


def _number(value: Any, key_type: PrimitiveType, padding: bytes) -> Any:
    if key_type.name in _TEXT_LIKE:
        data = value.encode() if isinstance(value, str) else value
        return int.from_bytes(data[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, padding), "big")
    return float(value) if key_type.name in _FLOATING else int(value)


def _order_numbers(values: Any, key_type: PrimitiveType, padding: int) -> Numbers:
    """As `_number` gives them, each writable."""
    if key_type.name not in _TEXT_LIKE:
        return numbers(values).astype(_dtype(key_type))
    offsets = np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, 8 * values.offset)
    stored = values.buffers()[2]
    data = np.frombuffer(stored, np.uint8) if stored is not None else np.zeros(0, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    prefixes = np.full((len(values), _PREFIX_BYTES), padding, np.uint8)
    for place in range(_PREFIX_BYTES):
        reaches = lengths > place
        prefixes[reaches, place] = data[starts[reaches] + place]
    return prefixes.view(">u8")[:, 0].astype(np.uint64)
