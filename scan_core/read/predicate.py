"""The predicate of a scan in one data file: each conjunct is a restriction, and so are the rows that bitmap indexes answer.

What conjuncts mean is in `expr/` and `prune/`. Loaded only where there is a predicate: expressions and their kernels are a quarter
of the engine.

Columns whose filters removed rows only after their values were read are remembered for later processes: a bitmap index would have
paid for them. Numbers of rows are kept, and no values. What a killed process had not stored yet is lost, and of two processes that
store at the same time one wins: all of it only guides choices.
"""

import atexit
import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from nevermore.scan_core.columns.file_reader import RowGroup, StatisticsOf
from nevermore.scan_core.expr.bound import BoundExpr, Column, Comparison, InSet, Member, narrowed, walk
from nevermore.scan_core.expr.kernels import cost_of, evaluation_error, judge
from nevermore.scan_core.expr.nodes import BoundPredicate, leaf_ids
from nevermore.scan_core.io.private_files import PrivateFolder, UnsafeFileError, cache_folder, held_folder
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.schema import ListType, MapType, Type
from nevermore.scan_core.model.snapshot import DataFile
from nevermore.scan_core.prune.verdicts import ExcludesOf, Level, Match, match_conjuncts
from nevermore.scan_core.read.file_statistics import FileStatistics, PageMatches
from nevermore.scan_core.read.projection import (
    METADATA_IDS,
    Constant,
    FileProjection,
    FromFile,
    LazyColumns,
    MetadataSource,
    metadata_fields,
    partition_member,
)
from nevermore.scan_core.read.restriction import (
    ByPosition,
    Cause,
    Restriction,
    ValueSource,
    Verdict,
    Worth,
    file_columns_of,
    values_of,
)
from nevermore.scan_core.rows.selection import All, Mask, RowSelection, selected_count
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext

if TYPE_CHECKING:
    from nevermore.scan_core.bitmaps.answers import Answers


MIN_REMOVED = 10_000
"""Rows removed late in a table that are worth a file."""
_SECONDS_BETWEEN = 5.0
_FOLDER = "filters"
_MAX_TABLES = 1_000
_MAX_COLUMNS = 256
_MAX_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class LateFilter:
    """What the filters on one column removed by value.

    Attributes:
        field_id: of the column or struct member.
        rows: rows that were judged by value.
        removed: rows among them that were removed.
    """

    field_id: int
    rows: int
    removed: int


class _Recorder:
    """Counts of this process that are not stored yet."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, dict[int, list[int]]] = {}
        self._stored_at = 0.0

    def add(self, table: str, field_id: int, rows: int, removed: int) -> None:
        with self._lock:
            counted = self._counts.setdefault(table, defaultdict(lambda: [0, 0]))[field_id]
            counted[0] += rows
            counted[1] += removed
            due = counted[1] >= MIN_REMOVED and time.monotonic() - self._stored_at >= _SECONDS_BETWEEN
        if due:
            self.store()

    def store(self) -> None:
        with self._lock:
            worth = [t for t, c in self._counts.items() if sum(removed for _, removed in c.values()) >= MIN_REMOVED]
            waiting = {table: self._counts.pop(table) for table in worth}
            self._stored_at = time.monotonic()
        folder = _folder() if waiting else None
        if folder is None:
            return
        for table, counts in waiting.items():
            try:
                _merge(folder, table, counts)
            except (OSError, UnsafeFileError):
                return  # a scan does not fail for want of a note
        folder.keep_latest(_MAX_TABLES)

    def forget(self) -> None:
        """Forget the counts in a forked process; its parent stores them."""
        self._lock = Lock()
        self._counts = {}


_RECORDER = _Recorder()
os.register_at_fork(after_in_child=_RECORDER.forget)
atexit.register(_RECORDER.store)


def record_late_filter(table: str, field_id: int, rows: int, removed: int) -> None:
    """Count rows of a table that a filter on one column judged, and removed, by value."""
    _RECORDER.add(table, field_id, rows, removed)


def late_filters(table: str) -> list[LateFilter]:
    """The columns of a table, by its location, whose filters removed many rows by value; those that removed most first."""
    _RECORDER.store()
    folder = _folder()
    counts = {} if folder is None else _read(folder, _name(table), table)
    found = [LateFilter(i, rows, removed) for i, (rows, removed) in counts.items() if removed >= MIN_REMOVED]
    return sorted(found, key=lambda f: (-f.removed, f.field_id))


def _folder() -> PrivateFolder | None:
    root = cache_folder()
    try:
        return None if root is None else held_folder(root).folder(_FOLDER)
    except (OSError, UnsafeFileError):
        return None


def _name(table: str) -> str:
    return f"{hashlib.sha256(table.rstrip('/').encode()).hexdigest()[:32]}.json"


def _merge(folder: PrivateFolder, table: str, counts: dict[int, list[int]]) -> None:
    known = _read(folder, _name(table), table)
    for field_id, (rows, removed) in counts.items():
        before = known.get(field_id, (0, 0))
        known[field_id] = before[0] + rows, before[1] + removed
    kept = sorted(known.items(), key=lambda item: -item[1][1])[:_MAX_COLUMNS]
    with folder.replace(_name(table)) as file:
        file.write(json.dumps({"table": table, "columns": {str(i): list(c) for i, c in kept}}).encode())


def _read(folder: PrivateFolder, name: str, table: str) -> dict[int, tuple[int, int]]:
    """Counts by field id; none where the file is missing or not as we write it."""
    try:
        with folder.read(name) as file:
            content = json.loads(file.read(_MAX_BYTES))
        if content["table"] != table:
            return {}
        return {int(i): (int(rows), int(removed)) for i, (rows, removed) in content["columns"].items()}
    except (OSError, UnsafeFileError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


_READ_COST = 4.0
"""Cost of reading a column, in the units of `expr/kernels.py`: about a nanosecond per row."""


@dataclass(frozen=True, slots=True, eq=False)
class Conjunct(Restriction):
    """One conjunct of the predicate.

    Attributes:
        predicate: the conjunct alone.
        index: its place in the predicate.
        columns: where the values of each column or struct member come from, by id.
        types: of those that statistics tell of.
        equated: those compared for equality, so that single values can be excluded.
        table: location of the table.
    """

    predicate: BoundPredicate
    index: int
    columns: Mapping[int, ValueSource]
    types: Mapping[int, Type]
    equated: Mapping[int, Type]
    statistics: FileStatistics
    options: ScanOptions
    worth: Worth
    table: str

    @property
    def cause(self) -> Cause:
        """Why rows are removed."""
        return Cause.PREDICATE

    @property
    def expr(self) -> BoundExpr:
        """The expression that must be true."""
        return self.predicate.conjuncts[0]

    @property
    def key(self) -> object:
        """Its position in the predicate."""
        return ("predicate", self.index)

    @property
    def first_guess(self) -> float:
        """The cost of reading its columns and evaluating it; delete sets run after cheap conjuncts."""
        return guess_cost(self.expr, len(self.columns))

    @property
    def collection_id(self) -> int | None:
        """The list or map of the file that is all it reads; None if it reads anything else."""
        if len(self.columns) != 1:
            return None
        ((field_id, source),) = self.columns.items()
        types = {n.type for n in walk(self.expr) if isinstance(n, Column | Member) and n.field_id == field_id}
        is_collection = all(isinstance(type_, ListType | MapType) for type_ in types)
        return source.index if is_collection and isinstance(source, FromFile) else None

    @property
    def file_columns(self) -> Collection[int]:
        """The columns of its expression."""
        return {index for source in self.columns.values() for index in file_columns_of(source)}

    def row_group(self, group: RowGroup, level: Level) -> Match:
        """Decide by bounds; if these leave an equality or IN list undecided, by Bloom filters."""
        options, statistics = self.options, self.statistics
        if not options.switches.prune_row_groups:
            return Match.MAYBE
        known = statistics.of(group, self.types)
        if level is Level.ROW_GROUPS:
            return self.match(known)
        if level is not Level.BLOOM_FILTERS or not options.switches.use_bloom_filters or not self.equated:
            return Match.MAYBE
        found = self.match(known, statistics.bloom_filters(group, self.equated))
        return found if found is Match.NEVER else Match.MAYBE

    def pages(self, group: RowGroup) -> PageMatches:
        """Decide by page bounds, as long as they exclude enough in this file."""
        unknown = PageMatches.unknown(group.num_rows)
        if not self.options.switches.prune_pages or not self.worth.is_on(Level.PAGES):
            return unknown
        stretches = self.statistics.stretches(group, self.types)
        if stretches is None:
            return unknown
        found = stretches.match_if_worthwhile(self.match)
        if self.options.switches.use_bloom_filters and self.equated:
            found = stretches.tested(found, self.match)
        self.worth.record(Level.PAGES, group.num_rows, group.num_rows - selected_count(found.rows(Match.MAYBE)))
        return found

    def rows(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """A row stays if the conjunct is true; false and NULL are not."""
        values = {i: values_of(source, columns, selection) for i, source in self.columns.items()}
        outcome = judge(self.expr, values, selected_count(selection))
        if outcome.failed is None:
            return Verdict(outcome.passed)
        return Verdict(outcome.passed | outcome.failed, outcome.failed, evaluation_error(self.expr, outcome))

    def record_late(self, rows_in: int, removed: int) -> None:
        """Remember for columns of the file what an index of one of them could have removed."""
        if self.options.record_filters and len(self.columns) == 1:
            ((field_id, source),) = self.columns.items()
            if isinstance(source, FromFile):
                record_late_filter(self.table, field_id, rows_in, removed)

    def match(self, statistics_of: StatisticsOf, excludes_of: ExcludesOf | None = None) -> Match:
        """Whether the conjunct is true for no row so described, for all, or perhaps for some."""
        return match_conjuncts(self.predicate, statistics_of, excludes_of)[0]


def open_conjuncts(
    context: ScanContext, data_file: DataFile, projection: FileProjection, statistics: FileStatistics
) -> list[Conjunct]:
    """The conjuncts of a scan with their columns in one data file; MalformedTableError if a required one is missing."""
    predicate = context.predicate or BoundPredicate("true", ())
    conjuncts = tuple(map(narrowed, predicate.conjuncts))
    return [
        Conjunct(
            BoundPredicate("", (conjunct,)),
            index,
            {i: _source(i, conjunct, context, data_file, projection) for i in leaf_ids(conjunct)},
            *_types(conjunct),
            statistics,
            context.options,
            Worth.in_file(),
            context.table,
        )
        for index, conjunct in enumerate(conjuncts)
    ]


def guess_cost(expr: BoundExpr, num_columns: int) -> float:
    """Nanoseconds per row to read columns and evaluate a conjunct."""
    return _READ_COST * num_columns + cost_of(expr)


def _types(conjunct: BoundExpr) -> tuple[Mapping[int, Type], Mapping[int, Type]]:
    """Types of the columns and members that have statistics, and of those that are compared for equality, by id."""
    types = {
        node.field_id: node.type
        for node in walk(conjunct)
        if isinstance(node, Column | Member)
        and node.field_id not in METADATA_IDS  # bounds do not cover inherited values
    }
    equated = {
        node.field_id: types[node.field_id]
        for part in walk(conjunct)
        if isinstance(part, InSet) or (isinstance(part, Comparison) and part.operator in {"=", "<=>"})
        for node in walk(part)
        if isinstance(node, Column | Member) and node.field_id in types
    }
    return types, equated


def _source(
    field_id: int, conjunct: BoundExpr, context: ScanContext, data_file: DataFile, projection: FileProjection
) -> ValueSource:
    """The source of a column or member, in the type of the schema that the predicate is bound to."""
    node = next(n for n in walk(conjunct) if isinstance(n, Column | Member) and n.field_id == field_id)
    if field_id in METADATA_IDS:
        field = metadata_fields(context.specs, context.field_paths)[node.name]
        return MetadataSource(field, data_file, projection, context.specs)
    member = partition_member(field_id, data_file, context.specs[data_file.spec_id], node.type)
    return projection.leaf(field_id, node.type) if member is None else Constant(member)


def answer_by_bitmaps(
    conjuncts: Sequence[Conjunct], task: FileScanTask, context: ScanContext, metrics: ScanMetrics
) -> Sequence[Restriction]:
    """The conjuncts that remain to be evaluated after bitmap indexes, and the rows that these select.

    Reads the bitmaps that are of use. Columns that do not come from the file, but from its partition or a default, are
    not matched by its index.
    """
    sources = {i: source for conjunct in conjuncts for i, source in conjunct.columns.items()}
    found = find_answers([conjunct.expr for conjunct in conjuncts], sources, task, context, metrics)
    left: list[Restriction] = [conjunct for conjunct in conjuncts if conjunct.index not in found.answered]
    return [*left, rows_of_answers(found, Cause.PREDICATE)] if found.answered else left


def find_answers(
    conjuncts: Sequence[BoundExpr],
    sources: Mapping[int, ValueSource],
    task: FileScanTask,
    context: ScanContext,
    metrics: ScanMetrics,
) -> "Answers":
    """Answer conjuncts, whose columns come from `sources`, by the bitmap indexes of a data file as far as possible."""
    from_file = {i for i, source in sources.items() if isinstance(source, FromFile)}
    blobs = tuple(blob for blob in task.bitmap_indexes if blob.field_id in from_file)
    from nevermore.scan_core.bitmaps.answers import answer_conjuncts  # loaded on demand: few tables have indexes

    return answer_conjuncts(conjuncts, replace(task, bitmap_indexes=blobs), context, metrics)


def rows_of_answers(answers: "Answers", cause: Cause) -> ByPosition:
    """The rows for which everything that bitmaps answer is true."""

    def find(row_group: RowGroup) -> RowSelection:
        found = np.ones(row_group.num_rows, np.bool_)
        for answer in answers.answered.values():
            found = found & answer.truth(row_group.first_row_position, row_group.num_rows).true
            if not found.any():
                break
        return All(row_group.num_rows) if found.all() else Mask(found)

    return ByPosition(cause, Level.BITMAPS, find)
