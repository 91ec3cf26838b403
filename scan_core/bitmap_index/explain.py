"""The stages of a filter in words: what bitmap indexes answer, what is matched on values, and why not otherwise."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scan_core.bitmap_index.answers import Answer, Choice, leaves
from scan_core.bitmap_index.stages import Stages, split_stages
from scan_core.expr.bound import BoundExpr
from scan_core.expr.text import bound_text
from scan_core.metrics import ScanMetrics
from scan_core.split import FileScanTask, ScanContext

_MOST_FILES = 16
"""Indexed files whose directories are read to explain: the others are like them, or cost as much to look at."""


@dataclass(slots=True)
class _Group:
    """Files whose filter is split alike."""

    stages: Stages
    num_files: int = 0
    num_rows: int = 0
    rows_left: dict[BoundExpr, int] = field(default_factory=dict)


def explain_stages(tasks: Sequence[FileScanTask], context: ScanContext) -> Iterator[str]:
    """Lines for `explain()`; none where no file of the plan has an index that the filter could use."""
    indexed = [task for task in tasks if task.bitmap_indexes]
    if not indexed or context.predicate is None:
        return
    conjuncts = context.predicate.conjuncts
    groups: dict[object, _Group] = {}
    for task in indexed[:_MOST_FILES]:
        stages = split_stages(conjuncts, task, context, ScanMetrics())
        key = (tuple(stages.answered), tuple(map(_mixed_key, stages.mixed.items())), stages.refused)
        group = groups.setdefault(key, _Group(stages))
        group.num_files += 1
        group.num_rows += task.data_file.record_count
        for choice in _choices(stages):
            group.rows_left[choice.node] = group.rows_left.get(choice.node, 0) + choice.true.num_rows
    yield f"  bitmap indexes: {len(indexed)} of {len(tasks)} data files have one on a column of the filter"
    for group in groups.values():
        yield from _group_lines(conjuncts, group)
    if len(indexed) > _MOST_FILES:
        yield f"    {len(indexed) - _MOST_FILES} more indexed files are looked at when they are read"
    if len(indexed) < len(tasks):
        yield f"    {len(tasks) - len(indexed)} data files without: stage 2 alone, every part on values"


def _group_lines(conjuncts: Sequence[BoundExpr], group: _Group) -> Iterator[str]:
    stages, files = group.stages, f"{group.num_files} data file{'s' if group.num_files != 1 else ''}"
    if stages.answered:
        yield f"    {files}: stage 1, rows found by bitmap before anything is decoded:"
        for index, answer in stages.answered.items():
            yield f"      {bound_text(conjuncts[index])}  ({_shares(answer, group)})"
    rest = [i for i in range(len(conjuncts)) if i not in stages.answered]
    head = "the rows left" if stages.answered else f"{files}: all rows"
    if rest:
        yield f"    {head}: stage 2, matched on values:"
    for index in rest:
        text = bound_text(conjuncts[index])
        parts = stages.mixed.get(index, {})
        if conjuncts[index] in parts:
            yield f"      {text}, by row position ({_shares(parts[conjuncts[index]], group)})"
        elif parts:
            known = "; ".join(f"{bound_text(node)} ({_shares(answer, group)})" for node, answer in parts.items())
            yield f"      {text}, by row position first where bitmaps tell: {known}"
        else:
            yield f"      {text}"
    for choice in stages.declined:
        yield f"      not by bitmap, for values cost less: {bound_text(choice.node)} ({_values(choice)})"
    for reason in stages.refused:
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


def _choices(stages: Stages) -> list[Choice]:
    answers = [*stages.answered.values(), *(a for parts in stages.mixed.values() for a in parts.values())]
    return list({leaf.choice.node: leaf.choice for answer in answers for leaf in leaves(answer)}.values())


def _mixed_key(item: tuple[int, object]) -> object:
    index, parts = item
    return index, frozenset(parts) if isinstance(parts, dict) else parts
