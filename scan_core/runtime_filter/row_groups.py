"""What is known of a row group or page against the keys of a runtime filter: none, some or all of its rows have a key."""

from collections.abc import Callable
from typing import Any

from scan_core.prune.domain import of_statistics
from scan_core.prune.match import Match
from scan_core.read.bloom_filter import BloomTest
from scan_core.read.dictionary_test import DictionaryTest
from scan_core.read.file_reader import ColumnStatistics
from scan_core.runtime_filter.bloom_keys import may_hold_any
from scan_core.runtime_filter.column_keys import ColumnKeys
from scan_core.runtime_filter.key_ranges import KeyRanges
from scan_core.runtime_filter.key_set import KeyLookup

StatisticsOf = Callable[[int], ColumnStatistics | None]
ValueTest = Callable[[Any], bool]

MOST_TESTED = 256
"""Of more keys within the bounds, single values are not looked for one by one: a search takes microseconds."""


def match_lookup(lookup: KeyLookup, statistics_of: StatisticsOf) -> Match:
    """NEVER: no row so described has a key; ALWAYS: every row has one; MAYBE: look."""
    known = [statistics_of(column.field.field_id) for column in lookup.columns]
    if not all(column.may_hold(k) for column, k in zip(lookup.columns, known, strict=True)):
        return Match.NEVER
    only = known[0]
    if len(known) == 1 and only is not None and only.null_count == 0 and lookup.holds_all(only.lower, only.upper):
        return Match.ALWAYS
    return Match.MAYBE


def match_ranges(ranges: KeyRanges, statistics_of: StatisticsOf) -> Match:
    """NEVER: no row so described lies in a range; otherwise MAYBE."""
    return Match.MAYBE if ranges.may_hold(statistics_of(ranges.field.field_id)) else Match.NEVER


def excluded_by_test(
    lookup: KeyLookup, statistics_of: StatisticsOf, tests: Callable[[int], ValueTest | None]
) -> bool | None:
    """Whether a Bloom filter or dictionary of the row group excludes every key of some column; None without any."""
    answers = [
        _excludes_all(column, lookup, number, statistics_of(column.field.field_id), test)
        for number, column in enumerate(lookup.columns)
        if (test := tests(column.field.field_id)) is not None
    ]
    known = [answer for answer in answers if answer is not None]
    return any(known) if known else None


def _excludes_all(
    column: ColumnKeys, lookup: KeyLookup, number: int, statistics: ColumnStatistics | None, test: ValueTest
) -> bool | None:
    if column.has_nan:
        return None
    known = of_statistics(statistics, column.field.type)
    within = column.between(known.lower, known.upper)
    if within is not None and len(within) <= MOST_TESTED:
        return all(map(test, within))
    if isinstance(test, BloomTest):
        may_hold = may_hold_any(test, lookup.keys.columns[number], f"{lookup.keys.digest}/{number}")
        return None if may_hold is None else not may_hold
    if isinstance(test, DictionaryTest) and len(lookup.columns) == 1:
        values = test.integers(lookup.keys.columns[0].type)
        return None if values is None else not lookup.contains([values]).any()
    return None
