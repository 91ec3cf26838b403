"""Evaluates expressions by bitmaps: the rows of a row group for which an expression is true, or unknown.

Three-valued, as everywhere: a leaf is an expression over one indexed column, evaluated once per distinct value and once
for NULL; AND, OR and NOT combine masks of rows.

Conjuncts that bitmaps answer as a whole select rows by position before anything is decoded; all others, such as an OR across
an indexed and another column, are evaluated on values. The choice is made per file from what exists and what it costs: the
union of very many bitmaps loses against the values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.bitmaps.column_index import ColumnIndex, open_column_index, row_mask
from nevermore.scan_core.expr.bound import (
    And,
    BoundExpr,
    Call,
    Column,
    IsNull,
    Literal,
    Member,
    Not,
    Or,
    children,
    walk,
)
from nevermore.scan_core.expr.kernels import cost_of, truth_values
from nevermore.scan_core.expr.nodes import leaf_ids
from nevermore.scan_core.expr.vectors import Truth, conjunction, disjunction, negation
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError, UnsupportedError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.schema import ListType, Type, arrow_type
from nevermore.scan_core.rows.buffers import Mask
from nevermore.scan_core.rows.selection import RoaringPositions
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext

BITMAP_COST = 15_000.0
BITMAP_BYTE_COST = 1.5
"""Nanoseconds to read, check and decode a bitmap, and each of its bytes."""

READ_COST, DECODE_COST, MAX_VALUE_COST = 50_000.0, 3.0, 5.0
"""Nanoseconds to read a column chunk, to decode a value, and at most to evaluate one: costly expressions are evaluated
once per distinct value, and a column with an index has few of them."""
MAX_ROWS = 1 << 25
"""Of bitmaps for one expression: sparse ones are decoded to eight bytes a row."""
MAX_ANSWERED_SHARE = 0.1
"""A conjunct that keeps a larger part of the rows is left to values if others are: a more selective one may have to run
first, and does so faster on whole columns."""
_FAR_APART = 5_000
"""Surviving rows at least this far apart are in different pages; the pages between them are not decoded."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Rows of some directory entries, or of all others: whichever takes less to read.

    `num_rows` are those that are meant, `rows_read` those in the bitmaps of `entries`.
    """

    entries: tuple[int, ...]
    is_complement: bool
    num_rows: int
    rows_read: int
    cost: float


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """An expression over one indexed column, by the entries for which it is true or unknown."""

    node: BoundExpr
    index: ColumnIndex
    true: Entries
    unknown: Entries

    @property
    def num_values(self) -> int:
        """Distinct values of the column, NULL not counted."""
        return len(self.index.directory.values)


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A choice whose bitmaps are read. `unknown` is None where NULL need not be distinguished from false."""

    choice: Choice
    true: tuple[RoaringPositions, ...]
    unknown: tuple[RoaringPositions, ...] | None

    def truth(self, first_row: int, num_rows: int) -> Truth:
        """Truth values of the rows [first_row, first_row + num_rows) of the file."""
        choice = self.choice
        true = _mask(choice.true, self.true, first_row, num_rows)
        if self.unknown is None:
            return Truth(true)
        unknown = _mask(choice.unknown, self.unknown, first_row, num_rows)
        return Truth(true, unknown & ~true if choice.index.blob.is_list else unknown)


@dataclass(frozen=True, slots=True, eq=False)
class Combined:
    """AND, OR or NOT of answers."""

    operator: str
    operands: tuple["Answer", ...]

    def truth(self, first_row: int, num_rows: int) -> Truth:
        """Truth values of the rows [first_row, first_row + num_rows) of the file."""
        parts = [o.truth(first_row, num_rows) for o in self.operands]
        if self.operator == "not":
            return negation(parts[0])
        return reduce(conjunction if self.operator == "and" else disjunction, parts)


Answer = Leaf | Combined


def choose_entries(node: BoundExpr, index: ColumnIndex, column_type: Type) -> Choice | None:
    """The entries for which an expression over this column alone is true or unknown; None if the entries do not determine it.

    Args:
        node: reads no other column.
        index: of the column.
        column_type: of the column as `node` is bound to it; its values are converted.
    """
    if index.blob.is_list:
        return _choose_of_list(node, index)
    values = _values_and_null(index, column_type)
    if values is None:
        return None
    truth = truth_values(node, {index.blob.field_id: values}, len(values))
    if truth.failed is not None and truth.failed.any():
        return None  # whether a failing row matters depends on the other filters: rows are evaluated, then
    unknown = truth.unknown if truth.unknown is not None else np.zeros(len(values), np.bool_)
    return Choice(node, index, _entries(index, truth.true), _entries(index, unknown))


def read_leaf(choice: Choice, metrics: ScanMetrics, *, nulls: bool) -> Leaf:
    """Read the bitmaps of a choice; without `nulls`, unknown rows are reported as false.

    Raises:
        MalformedTableError: one of them is damaged.
        MissingFileError: the index file is gone.
    """
    true = choice.index.bitmaps(choice.true.entries, metrics)
    return Leaf(choice, true, choice.index.bitmaps(choice.unknown.entries, metrics) if nulls else None)


def combine(operator: str, operands: Sequence[Answer]) -> Answer:
    """`and`, `or` or `not` of answers."""
    return operands[0] if len(operands) == 1 and operator != "not" else Combined(operator, tuple(operands))


def leaves(answer: Answer) -> list[Leaf]:
    """The leaves of an answer."""
    match answer:
        case Leaf():
            return [answer]
        case Combined(_, operands):
            return [leaf for operand in operands for leaf in leaves(operand)]
        case _:
            assert_never(answer)


def most_rows(answer: Answer) -> int:
    """Upper bound of the number of rows of the file that are true."""
    match answer:
        case Leaf(choice):
            return choice.true.num_rows
        case Combined("and", operands):
            return min(map(most_rows, operands))
        case Combined("or", operands):
            return sum(map(most_rows, operands))
        case Combined(_, operands):
            return leaves(operands[0])[0].choice.index.directory.num_rows
        case _:
            assert_never(answer)


def _choose_of_list(node: BoundExpr, index: ColumnIndex) -> Choice | None:
    directory = index.directory
    chosen = np.zeros(len(directory.values) + 2, np.bool_)
    unknown = chosen.copy()
    match node:
        case IsNull(Column() | Member()):
            chosen[directory.null_entry] = True
        case Call("array_contains", (Column() | Member() as operand, Literal(value))) if value is not None:
            if not isinstance(operand.type, ListType):
                return None
            found = _position_of(value, index, operand.type.element.type)
            if found is not None:
                chosen[found] = True
            unknown[[directory.null_entry, directory.null_element_entry]] = True
        case _:
            return None
    return Choice(node, index, _listed(index, chosen), _listed(index, unknown))


def _position_of(value: Any, index: ColumnIndex, element_type: Type) -> int | None:
    """The entry of a constant as literals hold it: dates and times as integers."""
    values = _values_and_null(index, element_type)
    if values is None:
        return None
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    found = pc.index(values, pa.scalar(value, values.type)).as_py()
    return None if found < 0 else int(found)


def _values_and_null(index: ColumnIndex, column_type: Type) -> pa.Array | None:
    """The distinct values in the type that the predicate is bound to, and NULL."""
    values, wanted = index.directory.values, arrow_type(column_type)
    if values.type != wanted:
        if not _is_promoted(values.type, wanted):
            return None
        try:
            values = values.cast(wanted)
        except pa.ArrowInvalid:
            return None
    return pa.concat_arrays([values, pa.nulls(1, wanted)])


def _is_promoted(before: pa.DataType, now: pa.DataType) -> bool:
    """Whether the type of a column was changed so that every value stays as it is."""
    types = pa.types
    return bool(
        (types.is_integer(before) and types.is_integer(now))
        or (types.is_floating(before) and types.is_floating(now) and before.bit_width <= now.bit_width)
        or (types.is_decimal(before) and types.is_decimal(now) and before.scale == now.scale)
        or (types.is_date(before) and types.is_timestamp(now))
    )


def _entries(index: ColumnIndex, chosen: Mask) -> Entries:
    """The rows of chosen entries of a column where each row has exactly one: directly, or as those of no other."""
    direct, others = _listed(index, chosen), _listed(index, ~chosen)
    if direct.cost <= others.cost:
        return direct
    return Entries(others.entries, True, index.directory.num_rows - others.num_rows, others.num_rows, others.cost)


def _listed(index: ColumnIndex, chosen: Mask) -> Entries:
    directory = index.directory
    entries = np.flatnonzero(chosen)
    entries = entries[directory.cardinalities[entries] > 0]
    begins = np.concatenate([[directory.num_bytes], directory.ends[:-1]])
    num_bytes = int((directory.ends[entries] - begins[entries]).sum())
    cost = BITMAP_COST * len(entries) + BITMAP_BYTE_COST * num_bytes
    num_rows = int(directory.cardinalities[entries].sum())
    return Entries(tuple(entries.tolist()), False, num_rows, num_rows, cost)


def _mask(chosen: Entries, bitmaps: tuple[RoaringPositions, ...], first_row: int, num_rows: int) -> Mask:
    mask = row_mask(bitmaps, first_row, num_rows)
    return ~mask if chosen.is_complement else mask


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The conjuncts of a predicate in one data file that bitmaps answer, by index, cheapest first.

    Attributes:
        answered: what the bitmaps say.
        refused: why indexes are not used, one reason for each.
        declined: choices that would cost more than matching values.
    """

    answered: Mapping[int, Answer] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    declined: tuple[Choice, ...] = ()

    @property
    def indexes_used(self) -> int:
        """How many columns are matched by their bitmaps."""
        return len({leaf.choice.index.blob for answer in self.answered.values() for leaf in leaves(answer)})


def answer_conjuncts(
    conjuncts: Sequence[BoundExpr], task: FileScanTask, context: ScanContext, metrics: ScanMetrics
) -> Answers:
    """Decide for one data file, and read the bitmaps that are needed.

    Indexes that are damaged or gone are counted in `metrics` and ignored: they never make a scan fail.
    """
    if not task.bitmap_indexes or not context.options.switches.use_bitmap_indexes:
        return Answers()
    chooser = _Chooser(task, context, metrics)
    answered: dict[int, Answer] = {}
    for index in sorted(range(len(conjuncts)), key=lambda i: chooser.guess(conjuncts[i])):
        answer = chooser.answer(conjuncts[index], nulls=False)
        if answer is not None:
            answered[index] = answer
            chooser.narrowed_by(answer)
    if len(answered) < len(conjuncts):
        answered = {i: a for i, a in answered.items() if most_rows(a) <= MAX_ANSWERED_SHARE * chooser.num_rows}
    found = Answers(answered, tuple(chooser.refused), tuple(chooser.declined.values()))
    metrics.bitmap_indexes_used += found.indexes_used
    return found


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
