"""Statistics of one column in many files as Arrow arrays, the domains they give, and the verdicts of many files at once.

The rules are those of `verdicts.py`; here is how columns of bounds compare themselves with constants.
"""

import decimal
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.expr.nodes import BoundPredicate
from nevermore.scan_core.metadata.bulk_manifests import LOWER, NANS, NULLS, UPPER, VALUES, EntryColumns, Numbers
from nevermore.scan_core.model.schema import PrimitiveType, Schema, Type
from nevermore.scan_core.model.statistics import NARROW, TICKS_PER_DAY, text_of, unscaled_value
from nevermore.scan_core.native.compiled import kernel_or_plain
from nevermore.scan_core.prune.verdicts import (
    MAX_MEMBERS_TESTED,
    MIN_TRUNCATED_LENGTH,
    Domain,
    outcomes,
    prefix_end,
    sorted_values,
    takes_only_columns,
)
from nevermore.scan_core.rows.buffers import (
    Mask,
    boolean_array,
    byte_spans,
    index_array,
    numbers,
    true_flags,
    validity,
    validity_bitmap,
)

TEXT_LIKE = frozenset({"string", "binary", "fixed", "uuid"})
FLOATING = frozenset({"float", "double"})
INTEGRAL = frozenset({"int", "long", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_MAX_DECIMAL_BYTES = 32
_INT64 = np.iinfo(np.int64)
_MAX_ROWS = 1 << 60
"""Sums of counts up to it fit into 64 bits."""
_MAX_TESTS = 64
"""A longer IN list on a bucketed column is tested file by file."""


class NoColumnError(ValueError):
    """Values that have no place in a column of 64-bit integers, doubles or bytes."""


class Spans(NamedTuple):
    """Where values begin in `data`, or numbers, and how many bytes they have; -1 where there is none."""

    data: npt.NDArray[np.uint8]
    starts: Numbers
    lengths: Numbers


class Bounds(NamedTuple):
    """One bound of each file, NULL where it is unknown, and the files whose bounds fit no column."""

    values: Any
    is_odd: Mask


class Count(NamedTuple):
    """A count for each file, and a mask of the files for which it is known."""

    values: Numbers
    known: Mask


class Counts(NamedTuple):
    """Counts of a column in each file; `is_odd` marks files that claim more rows than are possible."""

    nulls: Count
    nans: Count
    values: Count
    is_odd: Mask


def column_kind(type_: PrimitiveType) -> pa.DataType:
    """The representation of bounds of a type. Raises: NoColumnError: there is none."""
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
    # a constant may be wider than the column, such as a float compared with a decimal of 38 digits
    is_float, is_decimal = isinstance(value, float), isinstance(value, decimal.Decimal)
    if is_float != (type_.name in FLOATING) or is_decimal != (type_.name == "decimal"):
        raise NoColumnError(f"{value!r:.60} is no {type_}")
    if type_.name == "decimal":
        return unscaled_value(value, type_.parameters[1])
    return value if type_.name in FLOATING else int(value)


def bounds_of(columns: EntryColumns, rows: Numbers, field_id: int, type_: PrimitiveType) -> tuple[Bounds, Bounds]:
    """The lower and the upper bound of a column in some files.

    Raises:
        NoColumnError: the type has bounds of no such kind.
    """
    kind = column_kind(type_)
    lower, upper = (_found(columns, slot, rows, field_id) for slot in (LOWER, UPPER))
    return _decoded(lower, type_, kind), _decoded(upper, type_, kind)


def in_order(lower: Any, upper: Any) -> Mask:
    """A mask of the files for which both ends are known, and the lower one is not above the upper one."""
    if lower.type == pa.large_binary():
        import pyarrow.compute as pc

        return true_flags(pc.less_equal(lower, upper))
    found: Mask = numbers(lower) <= numbers(upper)
    for valid in (validity(lower), validity(upper)):
        found = found if valid is None else found & valid
    return found


def counts_of(columns: EntryColumns, rows: Numbers, field_id: int) -> Counts:
    """Counts of a column in some files, as `ContentFile.null_count` and `value_count` return them."""
    records = columns.record_counts[rows]
    nulls, nans, values = (_found(columns, slot, rows, field_id) for slot in (NULLS, NANS, VALUES))
    has_nulls, has_nans, has_values = (part.lengths >= 0 for part in (nulls, nans, values))
    is_odd = records > _MAX_ROWS
    for part in (nulls, nans, values):
        is_odd |= np.abs(part.starts) > _MAX_ROWS
    missing = np.maximum(records - values.starts, 0)
    return Counts(
        Count(nulls.starts + missing, has_nulls & has_values),
        Count(nans.starts, has_nans),
        Count(np.maximum(values.starts, records), has_values),
        is_odd,
    )


def _found(columns: EntryColumns, slot: int, rows: Numbers, field_id: int) -> Spans:
    """Positions of the bytes of a field in maps, or its number itself."""
    found, lengths = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
    maps, data = columns.statistics.get(slot), np.zeros(0, np.uint8)
    if maps is not None:
        offsets, data = byte_spans(maps)
        places = offsets[rows].astype(np.int64), offsets[1:][rows].astype(np.int64)
        of_bytes = slot in {LOWER, UPPER}
        kernel = kernel_or_plain("find_in_pairs", len(data))
        kernel(data, len(data), *places, len(rows), field_id, of_bytes, found, lengths)
    return Spans(data, found, lengths)


def _decoded(spans: Spans, type_: PrimitiveType, kind: pa.DataType) -> Bounds:
    name = type_.name
    if name in TEXT_LIKE:
        return _text(spans, name)
    data = spans.data
    if name == "decimal":
        return _decimals(spans)
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


def _decimals(spans: Spans) -> Bounds:
    """Decode big-endian decimals of minimal length, at most eight bytes."""
    data, starts, lengths = spans
    known = (lengths > 0) & (lengths <= _MAX_DECIMAL_BYTES)
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


def _text(spans: Spans, name: str) -> Bounds:
    known = spans.lengths >= 0
    if name == "uuid":
        known = spans.lengths == 16
    starts, lengths = np.where(known, spans.starts, 0), np.where(known, spans.lengths, 0)
    places = zip(starts.tolist(), lengths.tolist(), strict=True)
    block = spans.data.tobytes()
    parts = [block[start : start + length] for start, length in places]
    if name == "string" and text_of(b"\n".join(parts)) is None:  # a separator inside a character would break it
        known &= np.fromiter((text_of(part) is not None for part in parts), np.bool_, len(parts))
        parts = [part if is_known else b"" for part, is_known in zip(parts, known.tolist(), strict=True)]
    return Bounds(_binary_array(parts, known), np.zeros(len(parts), np.bool_))


def _fixed(data: Any, starts: Numbers, size: int) -> Any:
    """A fixed number of bytes from each start, one row each."""
    return np.ascontiguousarray(data[starts[:, None] + np.arange(size)])


def _array(values: Numbers, known: Mask, kind: pa.DataType) -> Any:
    buffers = [validity_bitmap(known), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _binary_array(parts: list[bytes], known: Mask) -> Any:
    """The byte strings as one array, NULL where unknown."""
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    buffers = [validity_bitmap(known), pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.large_binary(), len(parts), buffers)


@dataclass(frozen=True, slots=True, eq=False)
class DomainColumn:
    """A domain for each file; `excludes` returns the files that certainly do not hold a value."""

    type: PrimitiveType
    lower: Any
    upper: Any
    may_be_value: Mask
    may_be_null: Mask
    may_be_nan: Mask
    excludes: Callable[[Any], Mask] | None = None

    @property
    def may_fail(self) -> bool:
        """Reading a column does not fail."""
        return False

    @property
    def may_be_anything_but_null(self) -> Mask:
        """A mask of the files in which a row can have a value or NaN."""
        return self.may_be_value | self.may_be_nan

    def relations_to(self, other: Domain) -> tuple[Mask, Mask, Mask]:
        """See `Domain.relations_to`; the other is a constant."""
        nowhere = np.zeros(len(self.may_be_null), np.bool_)
        if other.may_be_nan:
            return self.may_be_value, self.may_be_nan, nowhere
        if not other.may_be_value:
            return nowhere, nowhere, nowhere
        scalar = as_scalar(other.lower, self.type)
        below, above = true_flags(pc.less(self.upper, scalar)), true_flags(pc.greater(self.lower, scalar))
        less = self.may_be_value & ~true_flags(pc.greater_equal(self.lower, scalar))
        greater = self.may_be_value & ~true_flags(pc.less_equal(self.upper, scalar))
        equal = self.without_excluded(self.may_be_value & ~below & ~above, other.lower)
        return less, equal, greater | self.may_be_nan

    def without_excluded(self, possible: Mask, value: Any) -> Mask:
        """See `Domain.without_excluded`."""
        return possible if self.excludes is None else possible & ~self.excludes(value)

    def membership(self, values: frozenset[Any]) -> tuple[Mask, Mask]:
        """See `Domain.membership`.

        Raises:
            NoColumnError: too many values to test each, or one that fits no column.
        """
        members = sorted_values(values)
        stored = [as_scalar(v, self.type).as_py() for v in members]
        lowers, uppers = self.lower.to_pylist(), self.upper.to_pylist()
        starts = np.fromiter((0 if v is None else bisect_left(stored, v) for v in lowers), np.int64, len(lowers))
        all_ends = (len(stored) if v is None else bisect_right(stored, v) for v in uppers)
        ends = np.fromiter(all_ends, np.int64, len(uppers))
        hit = self.may_be_value & (starts < ends)
        if self.excludes is not None:
            if len(members) > _MAX_TESTS:
                raise NoColumnError("a long list on a bucketed column")
            possible = ends - starts > MAX_MEMBERS_TESTED
            for index, value in enumerate(members):
                possible |= (starts <= index) & (index < ends) & ~self.excludes(value)
            hit &= possible
        listed = set(stored)
        is_listed = np.fromiter((v in listed for v in lowers), np.bool_, len(lowers))
        return hit, self.may_be_value & ~(true_flags(pc.equal(self.lower, self.upper)) & is_listed)

    def prefixed(self, prefix: str) -> tuple[Mask, Mask]:
        """See `Domain.prefixed`.

        Raises:
            NoColumnError: not a column of text.
        """
        if self.type.name != "string":
            raise NoColumnError(str(self.type))
        stored, end = prefix.encode(), prefix_end(prefix) if prefix else None
        hit = self.may_be_value & ~true_flags(pc.less(self.upper, as_scalar(prefix, self.type)))
        if end is not None:
            hit &= ~true_flags(pc.greater_equal(self.lower, as_scalar(end, self.type)))
        inside = true_flags(pc.starts_with(self.lower, stored)) & true_flags(pc.starts_with(self.upper, stored))
        return hit, self.may_be_value & ~inside & bool(prefix)


def unknown_column(type_: PrimitiveType, count: int) -> DomainColumn:
    """A column of which nothing is known in `count` files: any value of the type, or NULL."""
    nothing, everything = array_of([None] * count, type_), np.ones(count, np.bool_)
    return DomainColumn(
        type_, nothing, nothing, everything, everything, np.full(count, type_.name in FLOATING, np.bool_)
    )


def column_from_statistics(
    type_: PrimitiveType, bounds: tuple[Bounds, Bounds], counts: Counts
) -> tuple[DomainColumn, Mask]:
    """The column form of `domains.domain_from_statistics`, and the files whose bounds fit no column."""
    lower, upper = bounds
    nulls, nans, values, is_odd = counts
    is_odd = is_odd | lower.is_odd | upper.is_odd
    believed = in_order(lower.values, upper.values)
    low, high = _where(believed, lower.values), _where(believed, upper.values)
    if type_.name in TEXT_LIKE - {"uuid"}:
        high, is_odd_end = _past_truncated(high, type_)
        is_odd |= is_odd_end
    empty = np.where(nulls.known, nulls.values, 0) + np.where(nans.known, nans.values, 0)
    may_be_nan = np.zeros(len(believed), np.bool_)
    if type_.name in FLOATING:
        may_be_nan = ~nans.known | (nans.values != 0)
    return (
        DomainColumn(
            type_,
            low,
            high,
            may_be_value=believed | ~values.known | (empty < values.values),
            may_be_null=~nulls.known | (nulls.values != 0),
            may_be_nan=may_be_nan,
        ),
        is_odd,
    )


def narrow_by_partitions(
    column: DomainColumn, domains: Sequence[Domain | None], codes: npt.NDArray[Any]
) -> DomainColumn:
    """The intersection with one of `domains` for each file; None for a file whose partition says nothing.

    Raises:
        NoColumnError: a domain has ends that fit no column.
    """
    known = [Domain(may_be_nan=column.type.name in FLOATING) if d is None else d for d in domains]
    places = index_array(codes)
    lower = pc.max_element_wise(array_of([d.lower for d in known], column.type).take(places), column.lower)
    upper = pc.min_element_wise(array_of([d.upper for d in known], column.type).take(places), column.upper)
    is_empty = true_flags(pc.greater(lower, upper))  # bounds and partition contradict each other: no row has a value
    return DomainColumn(
        column.type,
        lower,
        upper,
        _each(known, "may_be_value")[codes] & column.may_be_value & ~is_empty,
        _each(known, "may_be_null")[codes] & column.may_be_null,
        _each(known, "may_be_nan")[codes] & column.may_be_nan,
        _excludes(known, codes),
    )


def _each(domains: Sequence[Domain], name: str) -> Mask:
    return np.fromiter((getattr(d, name) for d in domains), np.bool_, len(domains))


def _excludes(domains: Sequence[Domain], codes: npt.NDArray[Any]) -> Callable[[Any], Mask] | None:
    if all(d.excludes is None for d in domains):
        return None

    def excludes(value: Any) -> Mask:
        each = (d.excludes is not None and d.excludes(value) for d in domains)
        flags: Mask = np.fromiter(each, np.bool_, len(domains))[codes]
        return flags

    return excludes


def _where(chosen: Mask, values: Any) -> Any:
    """The chosen values; NULL elsewhere."""
    if chosen.all():
        return values
    return pc.if_else(boolean_array(chosen), values, pa.nulls(1, values.type)[0])


def _past_truncated(upper: Any, type_: PrimitiveType) -> tuple[Any, Mask]:
    """Increment the last byte of long bounds, as `prefix_end` does; the mask marks those where that is not enough."""
    lengths = pc.utf8_length(upper.cast(pa.large_string())) if type_.name == "string" else pc.binary_length(upper)
    is_long = (numbers(lengths) >= MIN_TRUNCATED_LENGTH) & true_flags(pc.is_valid(upper))
    if not is_long.any():
        return upper, is_long
    offsets = np.frombuffer(upper.buffers()[1], np.int64, len(upper) + 1, upper.offset * 8)
    data = np.frombuffer(upper.buffers()[2], np.uint8).copy()
    lasts = offsets[1:][is_long] - 1
    most = 0x7E if type_.name == "string" else 0xFE
    is_odd = np.zeros(len(is_long), np.bool_)
    is_odd[is_long] = data[lasts] > most
    data[lasts[data[lasts] <= most]] += 1
    buffers = [upper.buffers()[0], upper.buffers()[1], pa.py_buffer(data)]
    return pa.Array.from_buffers(upper.type, len(upper), buffers, offset=upper.offset), is_odd


class FileVerdicts(NamedTuple):
    """The files that hold no row of the result, and those that the columns cannot decide, which are matched one by one."""

    never: Mask
    undecidable: Mask


def match_columns(
    predicate: BoundPredicate,
    columns: EntryColumns,
    rows: Numbers,
    domains: Mapping[int, Mapping[int, Domain]],
    schema: Schema,
) -> FileVerdicts:
    """The column form of `partitions.match_file`, for some files.

    Args:
        predicate: bound to the schema in force.
        columns: of a manifest.
        rows: which of its files.
        domains: by partition code, what the partition says about columns, by field id.
        schema: for the types of columns.
    """
    facts = _Facts(columns, rows, domains, schema)
    nowhere = np.zeros(len(rows), np.bool_)
    never = undecidable = nowhere
    for conjunct in predicate.conjuncts:
        facts.is_odd = nowhere
        if not takes_only_columns(conjunct):
            undecidable = ~nowhere
            continue
        try:
            never = never | ~(outcomes(conjunct, facts.of).true | facts.is_odd)
            undecidable = undecidable | facts.is_odd
        except NoColumnError:
            undecidable = ~nowhere
    return FileVerdicts(never, undecidable & ~never)


@dataclass(slots=True)
class _Facts:
    """Domains of columns; `is_odd` collects the files whose statistics do not fit the columns that were read."""

    columns: EntryColumns
    rows: Numbers
    domains: Mapping[int, Mapping[int, Domain]]
    schema: Schema
    is_odd: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    _known: dict[int, tuple[DomainColumn, Mask]] = field(default_factory=dict)

    def of(self, field_id: int, type_: Type) -> DomainColumn:
        """The known facts about one column in each file."""
        if field_id not in self._known:
            self._known[field_id] = self._column(field_id, type_)
        column, is_odd = self._known[field_id]
        self.is_odd = self.is_odd | is_odd
        return column

    def _column(self, field_id: int, type_: Type) -> tuple[DomainColumn, Mask]:
        if not isinstance(type_, PrimitiveType):
            raise NoColumnError(str(type_))
        column, is_odd = self._by_statistics(field_id, type_)
        codes = self.columns.partition_codes[self.rows]
        by_code = [self.domains.get(code, {}).get(field_id) for code in range(len(self.columns.partitions))]
        return (column if not any(by_code) else narrow_by_partitions(column, by_code, codes)), is_odd

    def _by_statistics(self, field_id: int, type_: PrimitiveType) -> tuple[DomainColumn, Mask]:
        stored = self.schema.field(field_id).type if field_id in self.schema else None
        if not isinstance(stored, PrimitiveType):
            return unknown_column(type_, len(self.rows)), np.zeros(len(self.rows), np.bool_)
        bounds = bounds_of(self.columns, self.rows, field_id, stored)
        return column_from_statistics(type_, bounds, counts_of(self.columns, self.rows, field_id))
