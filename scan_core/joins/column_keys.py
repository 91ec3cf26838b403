"""The keys of one column, summarised for pruning: bounds, single values if few, or ranges that contain the keys."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import StatisticsOf
from nevermore.scan_core.keys.columns import is_integer_like, signed_values
from nevermore.scan_core.keys.lookup import KeySummary
from nevermore.scan_core.model.schema import Type, arrow_type
from nevermore.scan_core.prune.verdicts import Domain, Match, domain_from_statistics

MAX_VALUES = 4_096
"""Above this, single values are not kept in addition to the summary: testing each would cost more than it excludes."""


@dataclass(frozen=True, slots=True)
class KeyField:
    """A column, or struct member by its dotted name, that keys are compared with."""

    field_id: int
    name: str
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class ColumnKeys:
    """The keys of one column.

    Attributes:
        field: the column.
        lower: least key that is not NaN, as `ColumnStatistics` represents values; None without any.
        upper: greatest such key.
        has_nan: is NaN a key?
        values: all keys except NaN, ascending; None if there are too many.
        numbers: all keys of an integer-like column in ascending order, else None.
        summary: where they lie on a line.
    """

    field: KeyField
    lower: Any
    upper: Any
    has_nan: bool
    values: list[Any] | None
    numbers: npt.NDArray[np.int64] | None
    summary: KeySummary

    def meets(self, known: Domain) -> bool:
        """False only if no value of the domain is a key; NULL never is."""
        if self.has_nan and known.may_be_nan:
            return True
        if self.lower is None or not known.overlaps(self.lower, self.upper):
            return False
        if self.values is None:
            return self.summary.meets_range(known.lower, known.upper)
        start, end = _places(self.values, known.lower, known.upper)
        return start < end and (known.excludes is None or not all(map(known.excludes, self.values[start:end])))

    def between(self, lower: Any, upper: Any) -> list[Any] | None:
        """The keys within the bounds, None for no bound; None if single keys are not held."""
        if self.values is None:
            return None
        start, end = _places(self.values, lower, upper)
        return self.values[start:end]

    def count_between(self, lower: int, upper: int) -> int | None:
        """How many keys of an integer-like column lie within the bounds; None of other columns."""
        if self.numbers is None:
            return None
        begin, end = np.searchsorted(self.numbers, [max(lower, -(2**63)), min(upper, 2**63 - 1)])
        return int(end - begin) + int(end < len(self.numbers) and int(self.numbers[end]) == upper)


def _places(values: list[Any], lower: Any, upper: Any) -> tuple[int, int]:
    """The slice of ascending values that lie within the bounds, None for no bound."""
    start = 0 if lower is None else bisect_left(values, lower)
    return start, len(values) if upper is None else bisect_right(values, upper)


def column_keys(field: KeyField, keys: pa.Array, summary: KeySummary) -> ColumnKeys:
    """Summarise the keys of one column.

    Args:
        field: the column.
        keys: its keys, repeats allowed, none NULL.
        summary: of the index over them.
    """
    has_nan = False
    if pt.is_floating(keys.type):
        is_nan = pc.is_nan(keys)
        has_nan = bool(pc.any(is_nan).as_py())
        keys = keys.filter(pc.invert(is_nan)) if has_nan else keys
    if len(keys) == 0:
        return ColumnKeys(field, None, None, has_nan, [], None, summary)
    distinct = keys.unique()
    ordered = distinct.take(pc.array_sort_indices(distinct))
    ends = engine_values(ordered.take(pa.array([0, len(ordered) - 1])))
    values = engine_values(ordered) if len(ordered) <= MAX_VALUES else None
    numbers = None
    if is_integer_like(ordered.type) and not pt.is_decimal(ordered.type):
        numbers = signed_values(ordered).astype(np.int64)
    return ColumnKeys(field, ends[0], ends[1], has_nan, values, numbers, summary)


def engine_values(array: pa.Array) -> list[Any]:
    """The values as `ColumnStatistics` represents them: dates, times and timestamps as integers."""
    kind = array.type
    if pt.is_date32(kind) or pt.is_time32(kind):
        array = array.cast(pa.int32())
    elif pt.is_temporal(kind):
        array = array.cast(pa.int64())
    values: list[Any] = array.to_pylist()
    return values


def engine_array(values: list[Any], column_type: Type) -> pa.Array:
    """An Arrow array of values in the form that `engine_values` gives."""
    kind = arrow_type(column_type)
    if pt.is_date32(kind) or pt.is_time32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    return pa.array(values, pa.int64()).cast(kind) if pt.is_temporal(kind) else pa.array(values, kind)


MAX_RANGES = 16
"""More describe the other side better, but every file and page is compared with each."""


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Ranges, both ends included, ascending and disjoint, of values as `ColumnStatistics` represents them.

    None: nothing is known.
    """

    field: KeyField
    ranges: tuple[tuple[Any, Any], ...] | None

    @property
    def fields(self) -> tuple[KeyField, ...]:
        """The column, as a tuple of one."""
        return (self.field,)

    def meets(self, known: Domain) -> bool:
        """False only if no value of the domain lies in a range; NULL never does."""
        return self.ranges is None or known.may_be_nan or any(known.overlaps(low, high) for low, high in self.ranges)

    def match(self, statistics_of: StatisticsOf) -> Match:
        """NEVER: no row within these statistics lies in a range; otherwise MAYBE."""
        return Match.MAYBE if may_hold(self, statistics_of) else Match.NEVER


def may_hold(column: ColumnKeys | KeyRanges, statistics_of: StatisticsOf) -> bool:
    """False only if no value within the statistics of the column can be one of its keys."""
    statistics = statistics_of(column.field.field_id)
    return statistics is None or column.meets(domain_from_statistics(statistics, column.field.type))


def merge_ranges(ranges: Iterable[tuple[Any, Any]], most: int = MAX_RANGES) -> tuple[tuple[Any, Any], ...]:
    """Merge ranges until at most the given number remains, closing the narrowest gaps first; ascending and disjoint."""
    found: list[tuple[Any, Any]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    while len(found) > most:
        at = min(range(len(found) - 1), key=lambda i: _gap(found[i][1], found[i + 1][0]))
        found[at : at + 2] = [(found[at][0], found[at + 1][1])]
    return tuple(found)


def _gap(low: Any, high: Any) -> float:
    """An estimate of the distance between two values."""
    if isinstance(low, int | float | Decimal):
        return float(high) - float(low)
    first, second = (v.encode() if isinstance(v, str) else bytes(v) for v in (low, high))
    same = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    return float(int.from_bytes(second[same : same + 8].ljust(8, b"\0"), "big")
                 - int.from_bytes(first[same : same + 8].ljust(8, b"\0"), "big")) / 256.0**same if same < 100 else 0.0  # fmt: skip
