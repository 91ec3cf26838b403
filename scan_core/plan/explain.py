"""A plan as plain text and as a page in HTML.

It shows what is read, what was left out and why, and which deletes, indexes and runtime filters apply.
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.bitmaps.answers import Answer, Answers, Choice, answer_conjuncts, leaves
from nevermore.scan_core.bitmaps.column_index import is_indexable
from nevermore.scan_core.expr.bound import BoundExpr, Column, Member, walk
from nevermore.scan_core.expr.coercion import literal_text
from nevermore.scan_core.expr.kernels import judge
from nevermore.scan_core.expr.nodes import bound_text
from nevermore.scan_core.io.location import size_text
from nevermore.scan_core.joins.column_keys import KeyRanges
from nevermore.scan_core.joins.key_set import KeyLookup, KeySet
from nevermore.scan_core.joins.request import FilterDecision, RuntimeFilter
from nevermore.scan_core.model.errors import ScanError
from nevermore.scan_core.model.html import Bar, Html, bars, details, facts, grid, section
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.schema import ListType, NestedField, PrimitiveType, Type
from nevermore.scan_core.model.snapshot import PartitionSpec, Snapshot
from nevermore.scan_core.model.transforms import partition_types, partition_value
from nevermore.scan_core.plan.delete_index import DeleteFileIndex
from nevermore.scan_core.plan.file_pruner import PlanTrace, Pruned, total
from nevermore.scan_core.prune.verdicts import Level, Match
from nevermore.scan_core.read.predicate import Conjunct
from nevermore.scan_core.read.projection import FromFile, LazyColumns
from nevermore.scan_core.read.restriction import Adaptivity, values_of
from nevermore.scan_core.read.task import Scan, Select, open_task
from nevermore.scan_core.rows.selection import All, to_mask
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, FileScanTask, ScanContext

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

MAX_FILES = 200
"""Files that are listed; all of them are counted."""


def partition_text(
    spec: PartitionSpec, partition: Sequence[Any], field_paths: Mapping[int, Sequence[NestedField]]
) -> str:
    """The values of a partition by the names of its fields."""
    types = partition_types(spec, field_paths)
    parts = zip(spec.fields, partition, types, strict=False)
    return ", ".join(f"{field.name} = {_value(value, field.transform, type_)}" for field, value, type_ in parts)


def _value(canonical: Any, transform: str, type_: Type) -> str:
    value = partition_value(canonical, type_)
    if value is None:
        return "null"
    if isinstance(value, int):
        match transform:
            case "year":
                return str(1970 + value)
            case "month":
                return f"{1970 + value // 12:04}-{value % 12 + 1:02}"
            case "hour" if abs(value) < 10**7:  # within what Python's calendar has
                return f"{_EPOCH + dt.timedelta(hours=value):%Y-%m-%d %H}:00"
    if isinstance(type_, PrimitiveType) and type_.name in {
        "date",
        "timestamp",
        "timestamptz",
        "string",
        "time",
        "uuid",
    }:
        text = literal_text(value, type_)
        return text if type_.name == "string" else text[text.index("'") + 1 : -1] if "'" in text else text
    return f"X'{value.hex()}'" if isinstance(value, bytes) else str(value)


_MAX_PARTITIONS = 8
_MAX_GROUPS = 20


def explain_plan(
    context: ScanContext,
    snapshot: Snapshot | None,
    index: DeleteFileIndex,
    trace: PlanTrace,
    *,
    tasks: Sequence[FileScanTask],
    num_splits: int,
) -> Iterator[str]:
    """The lines of `ScanPlan.explain`."""
    yield f"scan of {context.table}"
    if snapshot is None:
        yield "  snapshot: none, the table is empty"
    else:
        yield (
            f"  snapshot: {snapshot.snapshot_id}, sequence number {snapshot.sequence_number}, "
            f"{snapshot.operation or 'unknown operation'}"
        )
    yield f"  columns: {', '.join(context.projection.names) or 'none'}"
    yield from _filter(context)
    if context.sample is not None:
        yield f"  sample: {100 * context.sample.fraction:g} % of the rows, by row position, seed {context.sample.seed}"
    if changed := context.options.changed():
        yield f"  options: {', '.join(f'{name} = {value}' for name, value in changed.items())}"
    yield f"  manifests: {trace.manifests_read} read, {total(trace.manifests)} left out"
    yield from _pruned(trace.manifests)
    size = int(index.tasks.data_files.sizes.sum())
    yield (
        f"  data files: {len(index.tasks)} to read of {trace.data_files_seen} listed, {size_text(size)}, "
        f"in {_count(num_splits, 'split')}"
    )
    yield from _pruned(trace.data_files)
    yield from _partitions(context, index)
    yield from _deletes(context, index, trace)
    yield from explain_filters(context)
    yield from _stages(tasks, context)
    yield from _advice(tasks, context)


def _filter(context: ScanContext) -> Iterator[str]:
    if context.predicate is None:
        yield "  filter: none"
        return
    yield f"  filter: {context.predicate.sql}"
    conjuncts = [bound_text(c) for c in context.predicate.conjuncts]
    if conjuncts != [context.predicate.sql]:
        yield "    every row of the result fulfils, even if statistics exclude data:"
        yield from (f"      {text}" for text in conjuncts or ["true: the filter keeps every row"])


def _partitions(context: ScanContext, index: DeleteFileIndex) -> Iterator[str]:
    counts = Counter({p: len(files) for p, files in index.tasks.data_files.partitions.items() if p[1]})
    for (spec_id, partition), count in counts.most_common(_MAX_PARTITIONS):
        spec = context.specs[spec_id]
        values = partition_text(spec, partition, context.field_paths)
        yield f"    partition {values} (spec {spec_id}): {_count(count, 'file')}"
    if len(counts) > _MAX_PARTITIONS:
        yield f"    and {_count(len(counts) - _MAX_PARTITIONS, 'more partition')}"


def _deletes(context: ScanContext, index: DeleteFileIndex, trace: PlanTrace) -> Iterator[str]:
    yield (
        f"  delete files: {index.num_delete_files} apply of {trace.delete_files_seen} listed "
        f"({sum(len(g.files) for g in index.groups)} equality, {len(index.position_files)} position, "
        f"{_count(len(index.vectors), 'deletion vector')})"
    )
    yield from _pruned(trace.delete_files)
    matched = index.tasks.deletes
    numbers = np.bincount(matched.combination_of, minlength=len(matched.combinations)).tolist()
    touched: Counter[int] = Counter()
    for groups, number in zip(matched.combinations, numbers, strict=True):
        touched.update({id(group): number for group in groups})
    for group in index.groups[:_MAX_GROUPS]:
        yield f"    {_group(context, group)}: may touch {_count(touched[id(group)], 'data file')}"
    if len(index.groups) > _MAX_GROUPS:
        yield f"    and {_count(len(index.groups) - _MAX_GROUPS, 'more equality-delete group')}"
    positioned = len(matched.position_files)
    if positioned:
        yield f"    position deletes by path and row position: touch {_count(positioned, 'data file')}"
    if index.vectors:
        yield f"    deletion vectors by row position: touch {_count(len(index.vectors), 'data file')}"
    if index.relocated_matches:
        found = index.relocated_matches
        whose = "delete names its data file" if found == 1 else "deletes name their data files"
        yield f"    {found} {whose} by another spelling of the path"
    has_deletes = matched.combination_of != 0
    has_deletes[[*matched.position_files, *matched.vectors]] = True
    free = int((~has_deletes).sum())
    if index.num_delete_files:
        yield f"    {_count(free, 'data file')} without deletes"


def _group(context: ScanContext, group: EqualityDeleteGroup) -> str:
    names = [".".join(f.name for f in context.field_paths[i]) for i in group.key_ids]
    first = group.files[0]
    spec = context.specs[first.spec_id]
    if spec.is_unpartitioned:
        scope = "everywhere"
    else:
        scope = f"in partition {partition_text(spec, first.partition, context.field_paths)} (spec {spec.spec_id})"
    rows = sum(f.record_count for f in group.files)
    numbers = sorted({f.data_sequence_number for f in group.files})
    since = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return (
        f"equality deletes on ({', '.join(names)}) {scope}: {_count(len(group.files), 'file')} with "
        f"{_count(rows, 'key')}, sequence number {since}; a key removes rows of data files with a lower number"
    )


def _pruned(pruned: dict[str, Pruned]) -> Iterator[str]:
    for reason, what in pruned.items():
        more = ", ..." if what.count > len(what.examples) else ""
        yield f"    left out by {reason}: {what.count} ({', '.join(map(_short, what.examples))}{more})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _short(path: str) -> str:
    return path.rpartition("/")[2] or path


_MIN_ROWS = 10_000
"""Fewer rows are filtered in less time than an index is opened."""
_MAX_DISTINCT = 10_000
_MIN_SAVED = 0.25
"""Share of the rows that an index would exclude before values are read."""


def _advice(tasks: Sequence[FileScanTask], context: ScanContext) -> Iterator[str]:
    """Columns without an index whose values must be read for the filter, although few distinct ones of them decide.

    Judged by one row group, of those that statistics do not exclude, of the largest file without such an index.
    """
    if context.predicate is None or not context.options.switches.use_bitmap_indexes:
        return
    if sum(task.data_file.record_count for task in tasks) < _MIN_ROWS:
        return
    largest = max(tasks, key=lambda task: task.data_file.record_count)
    plain = largest.with_deletes()
    reading, most_bytes = replace(context, runtime_filters=(), sample=None), context.options.memory_limit_bytes // 4
    try:
        with open_task(plain, reading, ScanMetrics(), Adaptivity(adaptive=False)) as reader:
            columns, plan = next(reader.row_groups(), (None, Scan()))
            if columns is None or not isinstance(plan, Select) or columns.row_group.num_bytes > most_bytes:
                return
            for step in plan.restrictions:
                if type(step) is Conjunct:
                    yield from _missing_index(step, columns, context)
    except ScanError:
        return  # reading the rows reports it


def _missing_index(conjunct: Conjunct, columns: LazyColumns, context: ScanContext) -> Iterator[str]:
    group = columns.row_group
    kinds = {n.type for n in walk(conjunct.expr) if isinstance(n, Column | Member)}
    if len(conjunct.columns) != 1 or len(kinds) != 1 or not is_indexable(next(iter(kinds))):
        return
    ((field_id, source),) = conjunct.columns.items()
    if not isinstance(source, FromFile) or isinstance(next(iter(kinds)), ListType):
        return
    values = values_of(source, columns, All(group.num_rows))
    num_distinct = pc.count_distinct(
        values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    ).as_py()
    possible = to_mask(conjunct.pages(group).rows(Match.MAYBE, Match.ALWAYS))
    passed = int((judge(conjunct.expr, {field_id: values}, group.num_rows).passed & possible).sum())
    saved = (int(possible.sum()) - passed) / max(group.num_rows, 1)
    if num_distinct > _MAX_DISTINCT or saved < _MIN_SAVED:
        return
    name = ".".join(f.name for f in context.field_paths[field_id])
    yield (
        f"  index that would help: a bitmap index of {name} (`nevermore index TABLE --columns {name}`) excludes "
        f"{saved:.0%} of the rows of a row group by {bound_text(conjunct.expr)} before values are read; statistics exclude "
        f"{1 - possible.mean():.0%} of them, and {name} has {_count(num_distinct, 'distinct value')} there"
    )


_MAX_FILES = 16
"""Indexed files whose directories are read to explain: the others are like them, or cost as much to look at."""


@dataclass(slots=True)
class _Group:
    """Files whose filter is split alike."""

    answers: Answers
    num_files: int = 0
    num_rows: int = 0
    rows_left: dict[BoundExpr, int] = field(default_factory=dict)


def _stages(tasks: Sequence[FileScanTask], context: ScanContext) -> Iterator[str]:
    """Describe what bitmap indexes answer; empty if no file of the plan has an index that the filter could use."""
    if context.predicate is None or not (indexed := [task for task in tasks if task.bitmap_indexes]):
        return
    conjuncts = context.predicate.conjuncts
    groups: dict[object, _Group] = {}
    for task in indexed[:_MAX_FILES]:
        answers = answer_conjuncts(conjuncts, task, context, ScanMetrics())
        group = groups.setdefault((tuple(answers.answered), answers.refused), _Group(answers))
        group.num_files += 1
        group.num_rows += task.data_file.record_count
        for choice in _choices(answers):
            group.rows_left[choice.node] = group.rows_left.get(choice.node, 0) + choice.true.num_rows
    yield f"  bitmap indexes: {len(indexed)} of {len(tasks)} data files have one on a column of the filter"
    for group in groups.values():
        yield from _group_lines(conjuncts, group)
    if len(indexed) > _MAX_FILES:
        yield f"    {len(indexed) - _MAX_FILES} more indexed files are looked at when they are read"
    if len(indexed) < len(tasks):
        yield f"    {_count(len(tasks) - len(indexed), 'data file')} without: matched on values alone"


def _group_lines(conjuncts: Sequence[BoundExpr], group: _Group) -> Iterator[str]:
    answers, files = group.answers, f"{group.num_files} data file{'s' if group.num_files != 1 else ''}"
    if answers.answered:
        yield f"    {files}: rows found by bitmap before anything is decoded:"
        for index, answer in answers.answered.items():
            yield f"      {bound_text(conjuncts[index])}  ({_shares(answer, group)})"
    rest = [i for i in range(len(conjuncts)) if i not in answers.answered]
    if rest:
        yield f"    {'the rows left' if answers.answered else f'{files}: all rows'}: matched on values:"
    yield from (f"      {bound_text(conjuncts[index])}" for index in rest)
    for choice in answers.declined:
        yield f"      not by bitmap, for values cost less: {bound_text(choice.node)} ({_values(choice)})"
    for reason in answers.refused:
        yield f"      index refused: {reason}"


def _shares(answer: Answer, group: _Group) -> str:
    found = []
    for leaf in leaves(answer):
        rows = group.rows_left.get(leaf.choice.node, 0)
        share = 100 * rows / group.num_rows if group.num_rows else 0.0
        found.append(f"{_values(leaf.choice)}, {share:.3g} % of rows")
    return "; ".join(found)


def _values(choice: Choice) -> str:
    entries = len(choice.true.entries)
    read = f"{entries} of {choice.num_values} values"
    return f"all but {read}" if choice.true.is_complement else read


def _choices(answers: Answers) -> list[Choice]:
    found = answers.answered.values()
    return list({leaf.choice.node: leaf.choice for answer in found for leaf in leaves(answer)}.values())


_MAX_RANGES = 4


def explain_filters(context: ScanContext) -> Iterator[str]:
    """Describe the runtime filters of a plan: keys, estimate, and where each filter is used."""
    for filter_ in context.runtime_filters:
        yield f"  {filter_.name}: {_keys(filter_, context)}"
        decision = filter_.decision
        if decision.share is not None:
            yield f"    expected to keep {100 * decision.share:.3g} % of the rows of the files left"
        yield f"    used for {', '.join(_used(filter_))}"
        for reason, levels in _off(decision).items():
            yield f"    not used for {', '.join(levels)}: {reason}"


def _keys(filter_: RuntimeFilter, context: ScanContext) -> str:
    keys = filter_.keys
    if isinstance(keys, KeyRanges):
        if keys.ranges is None:
            return "ranges of a column without known values"
        shown = ", ".join(f"{low!r} to {high!r}" for low, high in keys.ranges[:_MAX_RANGES])
        more = f" and {len(keys.ranges) - _MAX_RANGES} more" if len(keys.ranges) > _MAX_RANGES else ""
        number = f"{len(keys.ranges)} range{'s' * (len(keys.ranges) != 1)}"
        return f"{number} by the statistics of the other side: {shown}{more}"
    return f"{_count(keys.num_keys, 'distinct key')}, {_forms(keys, keys.lookup(context.options))}"


def _forms(keys: KeySet, lookup: KeyLookup) -> str:
    if keys.num_keys == 0:
        return "no row has one"
    parts = [
        f"{column.field.name} from {column.lower!r} to {column.upper!r}"
        for column in lookup.columns
        if column.lower is not None
    ]
    form = {"DenseIndex": "a table over close numbers", "HashedIndex": "a Bloom filter before exact hashes"}
    parts.append(f"looked up in {form.get(type(lookup.index).__name__, 'exact hashes in partitions')}")
    return ", ".join(parts)


def _used(filter_: RuntimeFilter) -> list[str]:
    levels = [level.value for level in Level if filter_.decision.is_on(level) and level is not Level.ROWS]
    if filter_.is_exact:
        return [*levels, "rows (exactly)"]
    if isinstance(filter_.keys, KeyRanges):
        levels = [level.value for level in (Level.FILES, Level.ROW_GROUPS, Level.PAGES)]
    elif filter_.decision.is_on(Level.ROWS):
        levels.append("rows (as long as it pays)")
    return levels or ["nothing"]


def _off(decision: FilterDecision) -> dict[str, list[str]]:
    """Levels that are switched off, by reason."""
    found: dict[str, list[str]] = {}
    for level, reason in decision.off:
        found.setdefault(reason, []).append(level.value)
    return found


def draw_plan(
    context: ScanContext,
    snapshot: Snapshot | None,
    index: DeleteFileIndex,
    trace: PlanTrace,
    *,
    tasks: Sequence[FileScanTask],
    text: str,
) -> Iterator[Html]:
    """The parts of a drawn plan; arguments as for `explain_plan`, and the plan as text."""
    num_bytes = int(index.tasks.data_files.sizes.sum())
    yield facts(
        [
            ("snapshot", "none" if snapshot is None else str(snapshot.snapshot_id)),
            ("columns", len(context.projection.names)),
            ("filter", "none" if context.predicate is None else f"{context.predicate.sql:.500}"),
            ("data files to read", f"{len(tasks):,} of {trace.data_files_seen:,} listed"),
            ("to read", size_text(num_bytes)),
            ("delete files that apply", f"{index.num_delete_files:,} of {trace.delete_files_seen:,} listed"),
            ("manifests", f"{trace.manifests_read:,} read, {total(trace.manifests):,} skipped"),
        ]
    )
    skipped = [_bar(reason, what) for reason, what in trace.data_files.items()]
    yield section(
        "Bytes of data files",
        bars([Bar("read", num_bytes, size_text(num_bytes), "read"), *skipped]),
    )
    excluded = [
        (kind, reason, what.count, size_text(what.num_bytes) if what.num_bytes else "")
        for kind, pruned in (
            ("manifests", trace.manifests),
            ("data files", trace.data_files),
            ("delete files", trace.delete_files),
        )
        for reason, what in pruned.items()
    ]
    if excluded:
        yield section("What was excluded, and by what", grid(("", "excluded by", "number", "size"), excluded))
    yield section("Files to read", _files(context, tasks))
    yield details("as text", text)


def _bar(reason: str, what: Pruned) -> Bar:
    noun = "file" if what.count == 1 else "files"
    return Bar(f"skipped by {reason}", what.num_bytes, f"{size_text(what.num_bytes)}, {what.count:,} {noun}", "skipped")


def _files(context: ScanContext, tasks: Sequence[FileScanTask]) -> Html:
    rows = [_row(context, task) for task in islice(tasks, MAX_FILES)]
    rest = len(tasks) - len(rows)
    headings = ("file", "partition", "rows", "size", "equality deletes", "position deletes", "vector")
    more = f"<p class=muted>and {rest:,} more files</p>" if rest > 0 else ""
    return grid(headings, rows, max_rows=MAX_FILES) + Html(more)


def _row(context: ScanContext, task: FileScanTask) -> Sequence[object]:
    file = task.data_file
    spec = context.specs[file.spec_id]
    partition = "" if spec.is_unpartitioned else partition_text(spec, file.partition, context.field_paths)
    newer = sum(
        delete.data_sequence_number > file.data_sequence_number
        for group in task.equality_deletes
        for delete in group.files
    )
    return (
        file.path.rpartition("/")[2],
        partition,
        file.record_count,
        size_text(file.file_size_bytes),
        newer,
        len(task.position_deletes),
        "" if task.deletion_vector is None else f"{task.deletion_vector.record_count:,} rows",
    )
