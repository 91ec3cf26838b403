"""What values an expression can have, given what is known of its columns.

A domain promises only what it excludes: every value, NULL, NaN or failure that it does not admit cannot occur. That one
rule keeps pruning sound; everything unknown admits everything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from scan_core.expr.coercion import FLOATING, name_of
from scan_core.read.file_reader import ColumnStatistics
from scan_core.schema import Type

MIN_TRUNCATED_LENGTH = 16
"""Writers cut bounds of strings off at 16 characters or more; some forget to round the upper one up (rule 20)."""
_TEXT = frozenset({"string", "binary", "fixed"})


@dataclass(frozen=True, slots=True)
class Domain:
    """The values an expression may have.

    Attributes:
        lower: no value that is neither NULL nor NaN is smaller; None if unknown.
        upper: no such value is larger; None if unknown.
        may_be_value: may it be something else than NULL and NaN?
        may_be_null: may it be NULL?
        may_be_nan: may it be NaN?
        may_fail: may evaluating it fail?
        excludes: is a single value certainly not among the values? (buckets, Bloom filters, dictionaries)
    """

    lower: Any = None
    upper: Any = None
    may_be_value: bool = True
    may_be_null: bool = True
    may_be_nan: bool = True
    may_fail: bool = False
    excludes: Callable[[Any], bool] | None = None

    @property
    def only_value(self) -> Any:
        """The one value that is neither NULL nor NaN, None if there may be several."""
        return self.lower if self.lower is not None and self.lower == self.upper else None

    @property
    def may_be_anything_but_null(self) -> bool:
        """Can a row have a value or NaN?"""
        return self.may_be_value or self.may_be_nan


def unknown(type_: Type, *, may_fail: bool = False) -> Domain:
    """Anything that the type holds."""
    return Domain(may_be_nan=name_of(type_) in FLOATING, may_fail=may_fail)


def constant(value: Any) -> Domain:
    """Exactly one value, or NULL."""
    if value is None:
        return Domain(may_be_value=False, may_be_nan=False)
    if value != value:  # noqa: PLR0124  # NaN differs from itself
        return Domain(may_be_value=False, may_be_null=False)
    return Domain(value, value, may_be_null=False, may_be_nan=False)


def of_statistics(statistics: ColumnStatistics | None, type_: Type) -> Domain:
    """What statistics of a file, row group or page tell about a column of this type."""
    if statistics is None:
        return unknown(type_)
    lower, upper = statistics.lower, statistics.upper
    if lower is None or upper is None or not lower <= upper:  # one alone, or the wrong way round: not to be believed
        lower = upper = None
    if upper is not None and name_of(type_) in _TEXT and len(upper) >= MIN_TRUNCATED_LENGTH:
        upper = prefix_end(upper)
    may_be_nan = name_of(type_) in FLOATING and statistics.nan_count != 0
    empty = (statistics.null_count or 0) + (statistics.nan_count or 0)
    return Domain(
        lower,
        upper,
        may_be_value=lower is not None or statistics.value_count is None or empty < statistics.value_count,
        may_be_null=statistics.null_count != 0,
        may_be_nan=may_be_nan,
    )


def believed(statistics: ColumnStatistics | None, type_: Type) -> ColumnStatistics | None:
    """Statistics with the bounds that `of_statistics` takes from them."""
    if statistics is None:
        return None
    known = of_statistics(statistics, type_)
    return replace(statistics, lower=known.lower, upper=known.upper)


def intersection(left: Domain, right: Domain) -> Domain:
    """What both admit, where both describe the same rows."""
    lower = right.lower if left.lower is None else left.lower if right.lower is None else max(left.lower, right.lower)
    upper = right.upper if left.upper is None else left.upper if right.upper is None else min(left.upper, right.upper)
    excludes = left.excludes or right.excludes
    if left.excludes is not None and right.excludes is not None:
        first, second = left.excludes, right.excludes

        def excludes(value: Any) -> bool:
            return first(value) or second(value)

    may_be_value = (
        left.may_be_value and right.may_be_value and not (lower is not None and upper is not None and lower > upper)
    )
    return Domain(
        lower,
        upper,
        may_be_value,
        left.may_be_null and right.may_be_null,
        left.may_be_nan and right.may_be_nan,
        left.may_fail or right.may_fail,
        excludes,
    )


def union(domains: Iterable[Domain]) -> Domain:
    """What any of them admits."""
    parts = list(domains)
    valued = [d for d in parts if d.may_be_value]
    lowers, uppers = [d.lower for d in valued], [d.upper for d in valued]
    return Domain(
        min(lowers) if lowers and None not in lowers else None,
        max(uppers) if uppers and None not in uppers else None,
        bool(valued),
        any(d.may_be_null for d in parts),
        any(d.may_be_nan for d in parts),
        any(d.may_fail for d in parts),
    )


def without_null(domain: Domain) -> Domain:
    """The same, where the row is not NULL."""
    return replace(domain, may_be_null=False)


def prefix_end(prefix: Any) -> Any:
    """A string or byte string that no longer one with this prefix exceeds; None if there is none."""
    if isinstance(prefix, bytes):
        trimmed = prefix.rstrip(b"\xff")
        return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
    trimmed_text = prefix.rstrip("\U0010ffff")
    if not trimmed_text:
        return None
    following = ord(trimmed_text[-1]) + 1
    return trimmed_text[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)
