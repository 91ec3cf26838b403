"""Which filters of an engine a scan applies exactly, and which the engine has to apply itself.

An engine that pushes filters must know of each whether every row it gets fulfils it: applying it again is waste, not
applying it at all is wrong. A filter is either applied as a whole and exactly, or handed back untouched.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scan_core.errors import ColumnNotFoundError, PredicateError
from scan_core.expr.normalize import may_fail

if TYPE_CHECKING:
    from scan_core.scan import Scan


@dataclass(frozen=True)
class PushedFilters:
    """What became of filters.

    Attributes:
        scan: the scan, narrowed by the filters in `applied`.
        applied: filters that every row of `scan` fulfils.
        left: filters that `scan` knows nothing of, each with the reason.
    """

    scan: "Scan"
    applied: tuple[str, ...]
    left: Mapping[str, str]


def push_filters(scan: "Scan", filters: Iterable[str]) -> PushedFilters:
    """Narrow `scan` by as many of `filters` as it applies exactly.

    As soon as one filter is left, so are those that can fail, such as casts: a row that the one removes must not fail
    the query in another.

    Args:
        scan: what is read.
        filters: SQL conditions, all of which rows must fulfil.
    """
    left: dict[str, str] = {}
    fallible: list[str] = []
    wanted = tuple(dict.fromkeys(filters))
    for text in wanted:
        try:
            predicate = replace(scan, predicates=(text,)).predicate
        except (PredicateError, ColumnNotFoundError) as error:
            left[text] = str(error)
        else:
            if predicate is not None and any(map(may_fail, predicate.conjuncts)):
                fallible.append(text)
    if left:
        reason = f"it can fail, perhaps on a row that a filter not applied here removes: {next(iter(left))}"
        left |= dict.fromkeys(fallible, reason)
    applied = tuple(text for text in wanted if text not in left)
    for text in applied:
        scan = scan.where(text)
    return PushedFilters(scan, applied, left)
