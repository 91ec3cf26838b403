"""Two-stage filtering: which conjuncts the bitmaps of a data file answer, and which are matched on values.

Stage 1 prunes row positions before anything is decoded. A conjunct that only bitmaps and values together can answer,
such as an OR across both, goes to stage 2 as a whole; there its answered parts are matched by row position first. The
choice is made per file from what exists and what it costs: the union of very many bitmaps loses against the values.
(Druid, "Two-stage filtering", https://github.com/apache/druid/issues/2742.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from scan_core.bitmaps.answers import Answer, Choice, Leaf, choose_entries, combine, leaves, most_rows, read_leaf
from scan_core.bitmaps.column_index import ColumnIndex, open_column_index
from scan_core.expr.bound import And, BoundExpr, Column, Member, Not, Or, children, walk
from scan_core.expr.kernels import cost_of
from scan_core.expr.nodes import leaf_ids
from scan_core.model.errors import MalformedTableError, MissingFileError, UnsupportedError
from scan_core.model.metrics import ScanMetrics
from scan_core.model.schema import Type
from scan_core.split.tasks import FileScanTask, ScanContext

READ_COST, DECODE_COST, MAX_VALUE_COST = 50_000.0, 3.0, 5.0
"""Nanoseconds to read a column chunk, to decode a value, and at most to evaluate one: costly expressions are evaluated
once per distinct value, and a column with an index has few of them."""
MAX_ROWS = 1 << 25
"""Of bitmaps for one expression: sparse ones are decoded to eight bytes a row."""
MAX_OF_STAGE_1 = 0.1
"""A conjunct that keeps a larger part of the rows competes with those on values, by row position: a more selective one
may have to run first, and does so faster on whole columns."""
_FAR_APART = 5_000
"""Surviving rows at least this far apart are in different pages; the pages between them are not decoded."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """The conjuncts of a predicate in one data file, by index.

    Attributes:
        answered: stage 1, cheapest first.
        mixed: stage 2, for each conjunct the parts that bitmaps answer.
        refused: why indexes are not used, one reason for each.
        declined: choices that would cost more than matching values.
    """

    answered: Mapping[int, Answer] = field(default_factory=dict)
    mixed: Mapping[int, Mapping[BoundExpr, Answer]] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    declined: tuple[Choice, ...] = ()

    @property
    def indexes_used(self) -> int:
        """How many columns are matched by their bitmaps."""
        answers = [*self.answered.values(), *(a for parts in self.mixed.values() for a in parts.values())]
        return len({leaf.choice.index.blob for answer in answers for leaf in leaves(answer)})


def split_stages(
    conjuncts: Sequence[BoundExpr], task: FileScanTask, context: ScanContext, metrics: ScanMetrics
) -> Stages:
    """Decide for one data file, and read the bitmaps that stage 1 and stage 2 need.

    Indexes that are damaged or gone are counted in `metrics` and ignored: they never make a scan fail.
    """
    if not task.bitmap_indexes or not context.options.switches.use_bitmap_indexes:
        return Stages()
    chooser = _Chooser(task, context, metrics)
    answered: dict[int, Answer] = {}
    mixed: dict[int, Mapping[BoundExpr, Answer]] = {}
    for index in sorted(range(len(conjuncts)), key=lambda i: chooser.guess(conjuncts[i])):
        answer = chooser.answer(conjuncts[index], nulls=False)
        if answer is not None:
            answered[index] = answer
            chooser.narrowed_by(answer)
    if len(answered) < len(conjuncts):
        for index in [i for i, answer in answered.items() if most_rows(answer) > MAX_OF_STAGE_1 * chooser.num_rows]:
            mixed[index] = {conjuncts[index]: answered.pop(index)}
    for index, conjunct in enumerate(conjuncts):
        if index not in answered and index not in mixed and (parts := chooser.parts(conjunct)):
            mixed[index] = parts
    stages = Stages(answered, mixed, tuple(chooser.refused), tuple(chooser.declined.values()))
    metrics.bitmap_indexes_used += stages.indexes_used
    return stages


class _Chooser:
    """Answers expressions from the indexes of one data file."""

    def __init__(self, task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> None:
        self._io = context.io
        self._metrics = metrics
        self.num_rows = task.data_file.record_count
        self._blobs = {blob.field_id: blob for blob in task.bitmap_indexes}
        self._indexes: dict[int, ColumnIndex | None] = {}
        self._choices: dict[BoundExpr, Choice | None] = {}
        self._read: dict[tuple[BoundExpr, bool], Leaf | None] = {}
        self._share_left = 1.0
        self.refused: list[str] = []
        self.declined: dict[BoundExpr, Choice] = {}

    def guess(self, conjunct: BoundExpr) -> float:
        """Estimated cost of the bitmaps: cheap conjuncts go first and show how many rows are left for costly ones."""
        return sum(choice.true.cost for node in _candidates(conjunct) if (choice := self._choice(node)) is not None)

    def narrowed_by(self, answer: Answer) -> None:
        """Record that fewer rows remain for the conjuncts that follow."""
        if isinstance(answer, Leaf) and self.num_rows:
            self._share_left *= answer.choice.true.num_rows / self.num_rows

    def answer(self, node: BoundExpr, *, nulls: bool) -> Answer | None:
        """The answer of bitmaps to an expression; None if they cannot answer all of it, or cost more than its values."""
        if (leaf := self._leaf(node, nulls=nulls)) is not None:
            return leaf
        if not isinstance(node, And | Or | Not):
            return None
        needs_nulls = nulls or isinstance(node, Not)
        operands: list[Answer] = []
        for operand in children(node):
            answer = self.answer(operand, nulls=needs_nulls)
            if answer is None:
                return None
            operands.append(answer)
        return combine(type(node).__name__.lower(), operands)

    def parts(self, node: BoundExpr) -> dict[BoundExpr, Answer]:
        """The largest operands of AND, OR and NOT that bitmaps answer; elsewhere values are needed, not truths."""
        if (answer := self.answer(node, nulls=True)) is not None:
            return {node: answer}
        if not isinstance(node, And | Or | Not):
            return {}
        return {part: answer for operand in children(node) for part, answer in self.parts(operand).items()}

    def _leaf(self, node: BoundExpr, *, nulls: bool) -> Leaf | None:
        choice = self._choice(node)
        if choice is None:
            return None
        cost = choice.true.cost + (choice.unknown.cost if nulls else 0.0)
        if cost > self._cost_of_values(node) or max(choice.true.rows_read, choice.unknown.rows_read) > MAX_ROWS:
            self.declined[node] = choice
            return None
        if (node, nulls) not in self._read:
            self._read[node, nulls] = self._guarded(lambda: read_leaf(choice, self._metrics, nulls=nulls))
        return self._read[node, nulls]

    def _choice(self, node: BoundExpr) -> Choice | None:
        if node not in self._choices:
            self._choices[node] = self._choose(node)
        return self._choices[node]

    def _choose(self, node: BoundExpr) -> Choice | None:
        ids = leaf_ids(node)
        if len(ids) != 1:
            return None
        (field_id,) = ids
        index = self._index(field_id)
        return None if index is None else choose_entries(node, index, _type_of(node, field_id))

    def _index(self, field_id: int) -> ColumnIndex | None:
        if field_id not in self._indexes:
            blob = self._blobs.get(field_id)
            self._indexes[field_id] = (
                None
                if blob is None
                else self._guarded(lambda: open_column_index(blob, self.num_rows, self._io, self._metrics))
            )
        return self._indexes[field_id]

    def _guarded(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (MalformedTableError, MissingFileError, UnsupportedError) as error:
            self._metrics.bitmap_indexes_refused += 1
            self.refused.append(str(error))
            return None

    def _cost_of_values(self, node: BoundExpr) -> float:
        share = min(1.0, self._share_left * _FAR_APART)
        return READ_COST + self.num_rows * share * (DECODE_COST + min(cost_of(node), MAX_VALUE_COST))


def _candidates(node: BoundExpr) -> list[BoundExpr]:
    """The parts of an expression over one column each, the largest ones."""
    if len(leaf_ids(node)) == 1:
        return [node]
    return [part for operand in children(node) for part in _candidates(operand)]


def _type_of(node: BoundExpr, field_id: int) -> Type:
    return next(n.type for n in walk(node) if isinstance(n, Column | Member) and n.field_id == field_id)
