"""What one column can be in each of many files: the domains of `domain.py` as arrays, for comparisons with constants.

Lower and upper ends are Arrow arrays, NULL where unknown. A domain promises only what it excludes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.prune.column_facts import (
    FLOATING,
    TEXT_LIKE,
    Bounds,
    Counts,
    array_of,
    in_order,
)
from scan_core.prune.domain import MIN_TRUNCATED_LENGTH, Domain
from scan_core.rows.buffers import boolean_array, index_array, numbers, true_flags
from scan_core.schema import PrimitiveType

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class DomainColumn:
    """A domain for each file; `excludes` tells of a single value in which files it is certainly not."""

    type: PrimitiveType
    lower: Any
    upper: Any
    may_be_value: Flags
    may_be_null: Flags
    may_be_nan: Flags
    excludes: Callable[[Any], Flags] | None = None

    @property
    def has_one_value(self) -> Flags:
        """Where all values are equal."""
        return true_flags(pc.equal(self.lower, self.upper))


def unknown_column(type_: PrimitiveType, count: int) -> DomainColumn:
    """Anything that the type holds."""
    nothing, everything = array_of([None] * count, type_), np.ones(count, np.bool_)
    return DomainColumn(
        type_, nothing, nothing, everything, everything, np.full(count, type_.name in FLOATING, np.bool_)
    )


def of_counts_and_bounds(
    type_: PrimitiveType, bounds: tuple[Bounds, Bounds], counts: Counts
) -> tuple[DomainColumn, Flags]:
    """As `domain.of_statistics`, and which files are odd."""
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


def narrowed(column: DomainColumn, domains: Sequence[Domain | None], codes: npt.NDArray[Any]) -> DomainColumn:
    """As `domain.intersection` with one of `domains` for each file, None for one that says nothing.

    Raises:
        NoColumnError: a domain has ends that fit no column.
    """
    known = [Domain(may_be_nan=column.type.name in FLOATING) if d is None else d for d in domains]
    places = index_array(codes)
    lower = pc.max_element_wise(array_of([d.lower for d in known], column.type).take(places), column.lower)
    upper = pc.min_element_wise(array_of([d.upper for d in known], column.type).take(places), column.upper)
    is_empty = true_flags(pc.greater(lower, upper))
    return DomainColumn(
        column.type,
        lower,
        upper,
        _each(known, "may_be_value")[codes] & column.may_be_value & ~is_empty,
        _each(known, "may_be_null")[codes] & column.may_be_null,
        _each(known, "may_be_nan")[codes] & column.may_be_nan,
        _excludes(known, codes),
    )


def _each(domains: Sequence[Domain], name: str) -> Flags:
    return np.fromiter((getattr(d, name) for d in domains), np.bool_, len(domains))


def _excludes(domains: Sequence[Domain], codes: npt.NDArray[Any]) -> Callable[[Any], Flags] | None:
    if all(d.excludes is None for d in domains):
        return None

    def excludes(value: Any) -> Flags:
        each = (d.excludes is not None and d.excludes(value) for d in domains)
        flags: Flags = np.fromiter(each, np.bool_, len(domains))[codes]
        return flags

    return excludes


def _where(chosen: Flags, values: Any) -> Any:
    """The values, NULL where they are not chosen."""
    if chosen.all():
        return values
    return pc.if_else(boolean_array(chosen), values, pa.nulls(1, values.type)[0])


def _past_truncated(upper: Any, type_: PrimitiveType) -> tuple[Any, Flags]:
    """Long ends one step up, as `prefix_end` does; odd are those that do not end in a byte to be counted up."""
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
