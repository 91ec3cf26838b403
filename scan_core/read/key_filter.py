"""Runtime filters as restrictions: which row groups, pages and rows have a join key."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
from xxhash import xxh64_intdigest

from nevermore.scan_core.columns.conversion import repeat
from nevermore.scan_core.columns.file_reader import RowGroup, StatisticsOf
from nevermore.scan_core.files.parquet.bloom import BloomTest, block_bits, is_comparable, plain_encoded
from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.joins.column_keys import ColumnKeys, KeyRanges
from nevermore.scan_core.joins.key_set import KeyLookup
from nevermore.scan_core.joins.request import RuntimeFilter
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.verdicts import Level, Match, domain_from_statistics
from nevermore.scan_core.read.file_statistics import FileStatistics, PageMatches
from nevermore.scan_core.read.projection import ColumnSource, Constant, FileProjection, FromFile, LazyColumns
from nevermore.scan_core.read.restriction import (
    ByPosition,
    Cause,
    Restriction,
    ValueSource,
    Verdict,
    Worth,
    values_of,
    worth_in_run,
)
from nevermore.scan_core.rows.selection import RowSelection, selected_count
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext

Hashes = npt.NDArray[np.uint64]

MAX_HASHED = 10_000
"""Of more keys, some pass almost any filter by chance."""
_MAX_BYTES = 64 * 1024**2
"""Of hashes: enough for many joins."""


def may_hold_any(test: BloomTest, keys: pa.Array, digest: str) -> bool | None:
    """False if certainly none of the keys is in the column chunk; None if the keys' encoding in the file is unknown.

    Args:
        test: of the column chunk.
        keys: in the table's type.
        digest: identity of the key set, for cached facts about it.
    """
    if not is_comparable(test.file_type, keys.type):
        return None
    if len(keys) > MAX_HASHED:
        return True
    key = digest, str(keys.type), test.physical_type, str(test.file_type)
    hashes = _HASHES.get(key, lambda: _hashes(keys, test), _MAX_BYTES)
    if hashes is None:
        return None
    places, masks = block_bits(hashes, len(test.filter_.blocks))
    return bool(((test.filter_.blocks[places] & masks) == masks).all(axis=1).any())


def _hashes(keys: pa.Array, test: BloomTest) -> Hashes | None:
    """Hashes of the keys in the file's encoding; None if the encoding is uncertain."""
    if pt.is_temporal(keys.type):
        keys = keys.cast(pa.int32() if keys.type.bit_width == 32 else pa.int64())
    hashes = list[int]()
    for value in keys.to_pylist():
        encodings = plain_encoded(value, test.file_type, test.physical_type)
        if encodings is None:
            return None
        hashes += map(xxh64_intdigest, encodings)
    return np.array(hashes, np.uint64)


_HASHES: BoundedCache[tuple[str, str, int, str], Hashes | None] = BoundedCache(lambda h: 0 if h is None else h.nbytes)
os.register_at_fork(after_in_child=_HASHES.forget_threads)


ValueTest = Callable[[Any], bool]

MAX_KEYS = 1_000
"""Maximum number of bitmaps: the union of more costs more than reading values."""
MAX_TESTED = 256
"""Maximum number of keys within the bounds that are looked up one by one: each takes microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyFilter(Restriction):
    """One runtime filter: ranges, which exclude no single rows, or a set of keys.

    Attributes:
        filter: the runtime filter of the scan. number: its position among the filters of the scan.
        keys: known keys of the join's other side.
        sources: of the columns that are compared, in the order of the keys.
        statistics: of the file.
        options: of the scan.
        metrics: counters to add to.
        worth: what it excluded so far in this run.
    """

    filter: RuntimeFilter
    number: int
    keys: KeyLookup | KeyRanges
    sources: Sequence[ColumnSource]
    statistics: FileStatistics
    options: ScanOptions
    metrics: ScanMetrics
    worth: Worth

    @property
    def cause(self) -> Cause:
        """Why rows are removed."""
        return Cause.RUNTIME_FILTER

    @property
    def key(self) -> object:
        """Its position among the filters of the scan."""
        return "runtime filter", self.number

    @property
    def first_guess(self) -> float:
        """A cost close to that of a delete set, which is looked up the same way; but a join usually lets fewer rows pass."""
        return 8.0 * len(self.sources)

    def row_group(self, group: RowGroup, level: Level) -> Match:
        """Decide by bounds, then by Bloom filters that exclude every key."""
        options, types = self.options, {field.field_id: field.type for field in self.filter.fields}
        if not options.switches.use_runtime_filters or not options.switches.prune_row_groups:
            return Match.MAYBE
        statistics_of = self.statistics.of(group, types)
        if level is Level.ROW_GROUPS and self._is_on(level):
            found = self.keys.match(statistics_of)
            self._record(level, group.num_rows, group.num_rows * (found is Match.NEVER))
            return found
        if level is not Level.BLOOM_FILTERS or not options.switches.use_bloom_filters:
            return Match.MAYBE
        if isinstance(self.keys, KeyRanges) or not self._is_on(level):
            return Match.MAYBE
        answers = _excluded_by_tests(self.keys, statistics_of, self.statistics.bloom_filters(group, types))
        if answers:
            self._record(level, group.num_rows, group.num_rows * any(answers))
        return Match.NEVER if any(answers) else Match.MAYBE

    def pages(self, group: RowGroup) -> PageMatches:
        """Decide by the bounds of pages."""
        unknown, options = PageMatches.unknown(group.num_rows), self.options
        if not options.switches.use_runtime_filters or not options.switches.prune_pages or not self._is_on(Level.PAGES):
            return unknown
        stretches = self.statistics.stretches(group, {field.field_id: field.type for field in self.filter.fields})
        if stretches is None:
            return unknown
        found = stretches.match_if_worthwhile(self.keys.match)
        self._record(Level.PAGES, group.num_rows, group.num_rows - selected_count(found.rows(Match.MAYBE)))
        return found

    def judges_rows(self) -> bool:
        """Ranges never judge rows; keys do if the result depends on them, or as long as it pays off."""
        return isinstance(self.keys, KeyLookup) and (self.filter.is_exact or self._is_on(Level.ROWS))

    def rows(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """A row stays if its columns are a key."""
        num_rows = selected_count(selection)
        if isinstance(self.keys, KeyRanges):
            return Verdict(np.ones(num_rows, np.bool_))
        if all(isinstance(source, Constant) for source in self.sources):
            row = [repeat(source.value, 1) for source in self.sources if isinstance(source, Constant)]
            keep = np.full(num_rows, bool(self.keys.contains(row)[0]))
        else:
            rows = [values_of(source, columns, selection) for source in self.sources]
            keep = self.keys.contains(rows)
        self._record(Level.ROWS, num_rows, num_rows - int(np.count_nonzero(keep)))
        return Verdict(keep)

    def _is_on(self, level: Level) -> bool:
        if not self.filter.decision.is_on(level):
            return False
        return self.worth.is_on(level)

    def _record(self, level: Level, num_rows: int, excluded: int) -> None:
        if level is Level.ROWS and self.filter.is_exact:
            return  # the result depends on the filter, which judges every row
        self.metrics.runtime_filters_switched_off += self.worth.record(level, num_rows, excluded)


def open_key_filters(
    task: FileScanTask,
    context: ScanContext,
    projection: FileProjection,
    statistics: FileStatistics,
    metrics: ScanMetrics,
) -> Iterator[Restriction]:
    """All runtime filters that are used; reads the bitmaps that answer one."""
    for number, filter_ in enumerate(context.runtime_filters):
        keys = filter_.keys
        if not _is_used(filter_, context):
            continue
        worth, options = worth_in_run(filter_.decision.run), context.options
        sources = [projection.leaf(f.field_id, f.type) for f in filter_.fields]
        known = keys if isinstance(keys, KeyRanges) else keys.lookup(options)
        by_bitmaps: Sequence[Restriction] = ()
        if (
            isinstance(known, KeyLookup)
            and options.switches.use_runtime_filters
            and filter_.decision.is_on(Level.BITMAPS)
        ):
            by_bitmaps = _answer_by_bitmaps(known, sources, task, context, metrics)
        if by_bitmaps:
            yield from by_bitmaps
        else:
            yield KeyFilter(filter_, number, known, sources, statistics, options, metrics, worth)


def key_sources(context: ScanContext, projection: FileProjection) -> list[ValueSource]:
    """Sources of the key columns of filters that judge rows.

    Tasks that share a row group divide its rows by this answer, so it must be the same for all of them.
    """
    return [
        projection.leaf(f.field_id, f.type)
        for filter_ in context.runtime_filters
        if _is_used(filter_, context) and not isinstance(filter_.keys, KeyRanges)
        for f in filter_.fields
    ]


def _excluded_by_tests(
    lookup: KeyLookup, statistics_of: StatisticsOf, tests: Callable[[int], ValueTest | None]
) -> list[bool]:
    """For each column with a usable Bloom filter: whether it excludes every key from the row group."""
    answers = [
        _excludes_all(column, lookup, number, statistics_of(column.field.field_id), test)
        for number, column in enumerate(lookup.columns)
        if (test := tests(column.field.field_id)) is not None
    ]
    return [answer for answer in answers if answer is not None]


def _excludes_all(
    column: ColumnKeys, lookup: KeyLookup, number: int, statistics: ColumnStatistics | None, test: ValueTest
) -> bool | None:
    if column.has_nan:
        return None
    known = domain_from_statistics(statistics, column.field.type)
    within = column.between(known.lower, known.upper)
    if within is not None and len(within) <= MAX_TESTED:
        return all(map(test, within))
    if isinstance(test, BloomTest):
        may_hold = may_hold_any(test, lookup.keys.columns[number], f"{lookup.keys.digest}/{number}")
        return None if may_hold is None else not may_hold
    return None


def _answer_by_bitmaps(
    lookup: KeyLookup,
    sources: Sequence[ColumnSource],
    task: FileScanTask,
    context: ScanContext,
    metrics: ScanMetrics,
) -> Sequence[ByPosition]:
    """The rows with a key by the bitmap index of the column; nothing if it has no index, or values cost less."""
    field, values = lookup.columns[0].field, lookup.columns[0].values
    has_index = any(blob.field_id == field.field_id and not blob.is_list for blob in task.bitmap_indexes)
    if len(sources) != 1 or not has_index or values is None or not 0 < len(values) <= MAX_KEYS:
        return ()
    if lookup.columns[0].has_nan or not isinstance(sources[0], FromFile):
        return ()
    from nevermore.scan_core.expr.bound import Column, InSet
    from nevermore.scan_core.read.predicate import find_answers, rows_of_answers

    conjunct = InSet(Column(field.field_id, field.name, field.type), frozenset(values))
    stages = find_answers([conjunct], {field.field_id: sources[0]}, task, context, metrics)
    return (rows_of_answers(stages, Cause.RUNTIME_FILTER),) if stages.answered else ()


def _is_used(filter_: RuntimeFilter, context: ScanContext) -> bool:
    return filter_.is_exact or context.options.switches.use_runtime_filters
