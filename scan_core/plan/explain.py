"""A plan in plain text, for people: what is read, what was left out by what, which deletes apply and how."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from scan_core.plan.delete_index import DeleteFileIndex
from scan_core.plan.partition_text import partition_text
from scan_core.plan.trace import PlanTrace, Pruned, total
from scan_core.snapshot import Snapshot
from scan_core.split import EqualityDeleteGroup, ScanContext

_MOST_PARTITIONS = 8
_MOST_GROUPS = 20


def explain_plan(
    context: ScanContext, snapshot: Snapshot | None, index: DeleteFileIndex, trace: PlanTrace, num_splits: int
) -> str:
    """The text of `ScanPlan.explain`."""
    return "\n".join(_lines(context, snapshot, index, trace, num_splits))


def _lines(
    context: ScanContext, snapshot: Snapshot | None, index: DeleteFileIndex, trace: PlanTrace, num_splits: int
) -> Iterator[str]:
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
    yield f"  manifests: {trace.manifests_read} read, {total(trace.manifests)} left out"
    yield from _pruned(trace.manifests)
    size = int(index.tasks.data_files.sizes.sum())
    yield (
        f"  data files: {len(index.tasks)} to read of {trace.data_files_seen} listed, {_bytes(size)}, "
        f"in {_count(num_splits, 'split')}"
    )
    yield from _pruned(trace.data_files)
    yield from _partitions(context, index)
    yield from _deletes(context, index, trace)


def _filter(context: ScanContext) -> Iterator[str]:
    if context.predicate is None:
        yield "  filter: none"
        return
    from scan_core.expr.text import bound_text

    yield f"  filter: {context.predicate.sql}"
    conjuncts = [bound_text(c) for c in context.predicate.conjuncts]
    if conjuncts != [context.predicate.sql]:
        yield "    every row of the result fulfils, whatever is left out by statistics:"
        yield from (f"      {text}" for text in conjuncts or ["true: the filter keeps every row"])


def _partitions(context: ScanContext, index: DeleteFileIndex) -> Iterator[str]:
    counts = Counter({p: len(files) for p, files in index.tasks.data_files.partitions.items() if p[1]})
    for (spec_id, partition), count in counts.most_common(_MOST_PARTITIONS):
        spec = context.specs[spec_id]
        values = partition_text(spec, partition, context.field_paths)
        yield f"    partition {values} (spec {spec_id}): {_count(count, 'file')}"
    if len(counts) > _MOST_PARTITIONS:
        yield f"    and {len(counts) - _MOST_PARTITIONS} more partitions"


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
    for group in index.groups[:_MOST_GROUPS]:
        yield f"    {_group(context, group)}: may touch {_count(touched[id(group)], 'data file')}"
    if len(index.groups) > _MOST_GROUPS:
        yield f"    and {len(index.groups) - _MOST_GROUPS} more equality-delete groups"
    positioned = len(matched.position_files)
    if positioned:
        yield f"    position deletes by path and row position: touch {positioned} data files"
    if index.vectors:
        yield f"    deletion vectors by row position: touch {len(index.vectors)} data files"
    if index.relocated_matches:
        yield f"    {index.relocated_matches} deletes name their data file by another spelling of its path"
    has_deletes = matched.combination_of != 0
    has_deletes[[*matched.position_files, *matched.vectors]] = True
    free = int((~has_deletes).sum())
    if index.num_delete_files:
        yield f"    {free} data files are free of deletes"


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


def _bytes(size: int) -> str:
    number = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{size} bytes" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
