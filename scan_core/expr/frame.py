"""The columns of one batch as expressions see them, and three-valued logic with failed rows as a fourth state."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.expr.bound import BoundExpr, Column, Literal, Member
from nevermore.scan_core.expr.nodes import leaf_ids
from nevermore.scan_core.expr.vectors import Truth, minus, union
from nevermore.scan_core.rows.buffers import Mask, boolean_array, numbers, validity

MIN_ROWS_PER_DISTINCT_VALUE = 2
"""A dictionary with more values than that per row costs more than it saves."""
Codes = npt.NDArray[np.integer[Any]]


class Frame:
    """Columns of `num_rows` rows by field id."""

    def __init__(
        self,
        columns: Mapping[int, pa.Array],
        num_rows: int,
    ) -> None:
        self.num_rows = num_rows
        self._columns = columns
        self._plain: dict[int, pa.Array] = {}
        self._by_dictionary: dict[int, tuple[Frame, Codes] | None] = {}

    def __contains__(self, field_id: int) -> bool:
        return field_id in self._columns

    def column(self, field_id: int) -> pa.Array:
        """A column or struct member without dictionary encoding.

        Raises:
            KeyError: the caller did not provide it.
        """
        if field_id not in self._plain:
            array = self._columns[field_id]
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            self._plain[field_id] = array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array
        return self._plain[field_id]

    def narrow(self, mask: Mask) -> "Frame":
        """The same columns, only the rows in `mask`; columns are filtered when asked for."""
        num_rows = int(np.count_nonzero(mask))
        return Frame(_Filtered(self._columns, mask), num_rows)

    def by_dictionary(self, field_id: int) -> "tuple[Frame, Codes] | None":
        """A frame of the distinct values of a dictionary-encoded column, NULL last, and for each row which of them it has.

        None if the column is not there or not encoded, or the batch has many distinct values.
        """
        if field_id not in self._by_dictionary:
            self._by_dictionary[field_id] = self._encoded(field_id)
        return self._by_dictionary[field_id]

    def _encoded(self, field_id: int) -> "tuple[Frame, Codes] | None":
        array = self._columns.get(field_id)
        if not isinstance(array, pa.DictionaryArray):
            return None
        distinct = len(array.dictionary)
        if (distinct + 1) * MIN_ROWS_PER_DISTINCT_VALUE > self.num_rows:
            return None
        values = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
        indices = array.indices
        codes = numbers(indices.fill_null(0) if indices.null_count else indices)
        if (present := validity(indices)) is not None:
            codes = np.where(present, codes, distinct)
        return Frame({field_id: values}, distinct + 1), codes


class _Filtered(Mapping[int, pa.Array]):
    """Columns filtered by a mask, each when first asked for."""

    def __init__(self, columns: Mapping[int, pa.Array], mask: Mask) -> None:
        self._columns, self._mask = columns, boolean_array(mask)
        self._filtered: dict[int, pa.Array] = {}

    def __getitem__(self, field_id: int) -> pa.Array:
        if field_id not in self._filtered:
            self._filtered[field_id] = self._columns[field_id].filter(self._mask)
        return self._filtered[field_id]

    def __iter__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@lru_cache(maxsize=4096)
def sole_column(node: BoundExpr) -> int | None:
    """The id of the only column or struct member that an expression reads.

    None if it reads several, or is itself a column, a member or a constant.
    """
    if isinstance(node, Column | Member | Literal):
        return None
    ids = leaf_ids(node)
    return next(iter(ids)) if len(ids) == 1 else None


def conjunction(left: Truth, right: Truth) -> Truth:
    """Left AND right."""
    true = left.true & right.true
    if left.unknown is None and left.failed is None and right.unknown is None and right.failed is None:
        return Truth(true)
    possible = not_false(left) & not_false(right)
    failed = union(left.failed, right.failed)
    failed = None if failed is None else failed & possible
    unknown = minus(possible & ~true, failed)
    return Truth(true, unknown, failed, left.reason or right.reason)


def disjunction(left: Truth, right: Truth) -> Truth:
    """Left OR right."""
    true = left.true | right.true
    failed = minus(union(left.failed, right.failed), true)
    unknown = minus(minus(union(left.unknown, right.unknown), true), failed)
    return Truth(true, unknown, failed, left.reason or right.reason)


def negation(truth: Truth) -> Truth:
    """NOT; the operand must distinguish NULL from false."""
    return Truth(~not_false(truth), truth.unknown, truth.failed, truth.reason)


def not_false(truth: Truth) -> Mask:
    """Rows that are true, unknown or failed: another operand of AND still matters for them."""
    dead = union(truth.unknown, truth.failed)
    return truth.true if dead is None else truth.true | dead


def scatter(part: Truth, rows: Mask, *, otherwise: bool) -> Truth:
    """Truth values of the rows in a mask, put back among all rows; the others hold `otherwise`."""
    true = np.full(len(rows), otherwise)
    true[rows] = part.true
    return Truth(true, _scatter(part.unknown, rows), _scatter(part.failed, rows), part.reason)


def _scatter(part: Mask | None, rows: Mask) -> Mask | None:
    if part is None:
        return None
    result = np.zeros(len(rows), dtype=np.bool_)
    result[rows] = part
    return result
