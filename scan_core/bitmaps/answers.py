"""Evaluates expressions by bitmaps: the rows of a row group for which an expression is true, or unknown.

Three-valued, as everywhere: a leaf is an expression over one indexed column, evaluated once per distinct value and once
for NULL; AND, OR and NOT combine masks of rows. Which leaves are worth reading is decided in `stages.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.bitmaps.column_index import ColumnIndex, row_mask
from scan_core.expr.bound import BoundExpr, Call, Column, IsNull, Literal, Member
from scan_core.expr.evaluate import truth_values
from scan_core.expr.frame import conjunction, disjunction, negation
from scan_core.expr.vectors import Truth
from scan_core.model.metrics import ScanMetrics
from scan_core.model.schema import ListType, Type, arrow_type
from scan_core.rows.buffers import Mask
from scan_core.rows.roaring import RowPositions

BITMAP_COST = 15_000.0
BITMAP_BYTE_COST = 1.5
"""Nanoseconds to read, check and decode a bitmap, and each of its bytes."""


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
    true: tuple[RowPositions, ...]
    unknown: tuple[RowPositions, ...] | None

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


def _mask(chosen: Entries, bitmaps: tuple[RowPositions, ...], first_row: int, num_rows: int) -> Mask:
    mask = row_mask(bitmaps, first_row, num_rows)
    return ~mask if chosen.is_complement else mask
