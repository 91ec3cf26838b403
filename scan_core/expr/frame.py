"""The columns of one batch as expressions see them, and three-valued logic with failed rows as a fourth state."""

import datetime as dt
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.expr.bound import BoundExpr, Column, Literal, Member, walk
from nevermore.scan_core.expr.nodes import leaf_ids
from nevermore.scan_core.expr.vectors import Truth, Vector, minus, null_mask, union
from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.rows.buffers import Mask, boolean_array, numbers, validity

MIN_ROWS_PER_DISTINCT_VALUE = 2
"""A dictionary with more values than that per row costs more than it saves."""
_MIN_COST_TO_ENCODE_TEXT, _MIN_COST_TO_ENCODE_NUMBERS, _MIN_COST_TO_ENCODE_DECIMALS = 90.0, 30.0, 90.0
"""Expressions cheaper than this (in units of `kernels.py`) are evaluated faster than a dictionary is built."""
SAMPLE_ROWS, MAX_SAMPLE_ROWS, SAMPLED_SHARE, MIN_ROWS_PER_SAMPLED_VALUE = 1024, 16_384, 32, 8
"""A plain column is worth a dictionary if a sample of it repeats each value so often."""

Codes = npt.NDArray[np.integer[Any]]


class Frame:
    """Columns of `num_rows` rows by field id; results of repeated expressions are kept.

    `remembers`: results for distinct values are kept beyond the frame, and numbers with few distinct values have some.
    """

    def __init__(
        self,
        columns: Mapping[int, pa.Array],
        num_rows: int,
        repeated: frozenset[BoundExpr] = frozenset(),
        *,
        remembers: bool = False,
    ) -> None:
        self.num_rows = num_rows
        self.repeated = repeated
        self.remembers = remembers
        self.truths: dict[BoundExpr, Truth] = {}
        self.vectors: dict[BoundExpr, Vector] = {}
        self._columns = columns
        self._plain: dict[int, pa.Array] = {}
        self._by_dictionary: dict[tuple[int, bool], tuple[Frame, Codes] | None] = {}

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
        """The same columns and results, only the rows in `mask`; columns are filtered when asked for."""
        num_rows = int(np.count_nonzero(mask))
        narrowed = Frame(_Filtered(self._columns, mask), num_rows, self.repeated, remembers=self.remembers)
        for node, truth in self.truths.items():
            narrowed.truths[node] = truth.where(mask)
        for node, vector in self.vectors.items():
            narrowed.vectors[node] = vector.where(mask)
        return narrowed

    def by_dictionary(self, field_id: int, cost: float) -> "tuple[Frame, Codes] | None":
        """A frame of the column's distinct values, NULL last, and for each row which of them it has.

        None if the column is not there, or the batch has too many distinct values for what evaluating one costs.
        """
        array = self._columns.get(field_id)
        key = field_id, array is not None and cost >= _min_cost_to_encode(array.type)
        if key not in self._by_dictionary:
            self._by_dictionary[key] = self._encode(*key)
        return self._by_dictionary[key]

    def _encode(self, field_id: int, may_encode: bool) -> "tuple[Frame, Codes] | None":  # noqa: FBT001
        array = self._columns.get(field_id)
        if array is None:
            return None
        if not isinstance(array, pa.DictionaryArray):
            if not may_encode or not self._repeats_values(array):
                return None
            array = _encoded(array)
        distinct = len(array.dictionary)
        if (distinct + 1) * MIN_ROWS_PER_DISTINCT_VALUE > self.num_rows:
            return None
        values = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
        indices = array.indices
        codes = numbers(indices.fill_null(0) if indices.null_count else indices)
        if (present := validity(indices)) is not None:
            codes = np.where(present, codes, distinct)
        return Frame({field_id: values}, distinct + 1, self.repeated, remembers=self.remembers), codes

    def _repeats_values(self, array: pa.Array) -> bool:
        """Whether there are few distinct values, judged by a sample."""
        if self.num_rows < 4 * SAMPLE_ROWS or not (
            is_text(array.type) or (self.remembers and is_encodable_number(array.type))
        ):
            return False
        rows = min(max(self.num_rows // SAMPLED_SHARE, SAMPLE_ROWS), MAX_SAMPLE_ROWS)
        sample = array.slice(self.num_rows // 2, rows)
        return bool(pc.count_distinct(sample).as_py() * MIN_ROWS_PER_SAMPLED_VALUE <= rows)


def is_text(type_: pa.DataType) -> bool:
    """Strings and bytes."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_binary(type_))


def is_encodable_number(type_: pa.DataType) -> bool:
    """Numbers, dates, times and timestamps."""
    kinds = pa.types
    return bool(
        kinds.is_integer(type_)
        or kinds.is_floating(type_)
        or kinds.is_decimal(type_)
        or kinds.is_date32(type_)
        or kinds.is_time(type_)
        or kinds.is_timestamp(type_)
    )


def _min_cost_to_encode(type_: pa.DataType) -> float:
    if pa.types.is_decimal(type_):
        return _MIN_COST_TO_ENCODE_DECIMALS
    return _MIN_COST_TO_ENCODE_NUMBERS if is_encodable_number(type_) else _MIN_COST_TO_ENCODE_TEXT


def _encoded(array: pa.Array) -> pa.DictionaryArray:
    """The array by distinct values; floats by their bits: the two zeros are not one value."""
    kind = array.type
    if not pa.types.is_floating(kind):
        return array.dictionary_encode()
    found = array.view(pa.int64() if pa.types.is_float64(kind) else pa.int32()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(found.indices, found.dictionary.view(kind))


@dataclass(frozen=True, slots=True, eq=False)
class _Remembered:
    """Results of an expression for distinct values of the only column it reads."""

    values: pa.Array
    truth: Truth

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return int(self.values.nbytes) + 3 * len(self.values)


_REMEMBERED: BoundedCache[Hashable, _Remembered] = BoundedCache(lambda found: found.num_bytes)
"""What was computed for distinct values lately: the next row groups, files and scans mostly have the same ones."""
os.register_at_fork(after_in_child=_REMEMBERED.forget_threads)
_MAX_REMEMBERED_BYTES = 16 * 1024**2
_MAX_BYTES_OF_ONE = 4 * 1024**2
_MIN_REMEMBERED_VALUES = 256
"""Fewer are evaluated as fast as they are looked up."""


def remembered_truth(
    node: BoundExpr, frame: Frame, field_id: int, evaluate: Callable[[Frame], Truth], *, cost: float
) -> Truth:
    """Truth values of an expression for the distinct values in `frame`; only values that are no longer cached are evaluated."""
    array = frame.column(field_id)
    min_cost = _min_cost_to_encode(array.type)
    if (
        not frame.remembers
        or cost < min_cost
        or len(array) < _MIN_REMEMBERED_VALUES
        or pa.types.is_floating(array.type)
    ):
        return evaluate(frame)
    key = node, array.type, dt.datetime.now(dt.UTC).date()  # a time as text is one of today
    known = _REMEMBERED.find(key)
    if known is None:
        truth = evaluate(frame)
        _remember(key, _Remembered(array, truth))
        return truth
    if len(array) == len(known.values) and array.equals(known.values):
        return known.truth
    places = pc.index_in(array, known.values)
    new = null_mask(places)
    if new is None:
        return known.truth.at(np.asarray(places))
    fresh = array.filter(boolean_array(new))
    truth = evaluate(Frame({field_id: fresh}, len(fresh), frame.repeated))
    both = known.truth.followed_by(truth)
    if new.all():
        _remember(key, _Remembered(array, truth))  # the data have moved on
        return truth
    if known.num_bytes < _MAX_BYTES_OF_ONE:
        _remember(key, _Remembered(pa.concat_arrays([known.values, fresh]), both))
    at = np.where(new, len(known.values) + np.cumsum(new) - 1, np.asarray(places.fill_null(0)))
    return both.at(at)


def _remember(key: Hashable, found: _Remembered) -> None:
    if found.num_bytes < 2 * _MAX_BYTES_OF_ONE:
        _REMEMBERED.put(key, found, _MAX_REMEMBERED_BYTES)


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


@lru_cache(maxsize=256)
def repeated_parts(node: BoundExpr) -> frozenset[BoundExpr]:
    """Sub-expressions that occur more than once and are worth keeping."""
    seen: set[BoundExpr] = set()
    repeated: set[BoundExpr] = set()
    for part in walk(node):
        if isinstance(part, Column | Literal):
            continue
        (repeated if part in seen else seen).add(part)
    return frozenset(repeated)


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
