"""The columns of one batch as expressions see them: by field id, decoded, narrowed or by dictionary, each once."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa

from scan_core.expr.bound import BoundExpr, Column, Literal, Member, walk
from scan_core.expr.vectors import BoolMask, Truth, Vector

MIN_ROWS_PER_DISTINCT_VALUE = 2
"""A dictionary with more values than that per row costs more than it saves."""


class Frame:
    """Columns of `num_rows` rows by field id; results of repeated expressions are kept."""

    def __init__(
        self, columns: Mapping[int, pa.Array], num_rows: int, repeated: frozenset[BoundExpr] = frozenset()
    ) -> None:
        self.num_rows = num_rows
        self.repeated = repeated
        self.truths: dict[BoundExpr, Truth] = {}
        self.vectors: dict[BoundExpr, Vector] = {}
        self._columns = columns
        self._plain: dict[int, pa.Array] = {}
        self._by_dictionary: dict[int, tuple[Frame, np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}

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

    def narrow(self, mask: BoolMask) -> "Frame":
        """The same columns, only the rows in `mask`; filtered when asked for."""
        return Frame(_Filtered(self._columns, mask), int(np.count_nonzero(mask)), self.repeated)

    def by_dictionary(self, field_id: int) -> tuple["Frame", np.ndarray[tuple[int], np.dtype[np.int64]]] | None:
        """A frame of the column's distinct values, NULL last, and for each row which of them it has.

        None if the column is not dictionary-encoded, or its dictionary is no smaller than the batch.
        """
        array = self._columns.get(field_id)
        if not isinstance(array, pa.DictionaryArray):
            return None
        distinct = len(array.dictionary)
        if (distinct + 1) * MIN_ROWS_PER_DISTINCT_VALUE > self.num_rows:
            return None
        if field_id not in self._by_dictionary:
            values = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
            indices = array.indices
            codes = np.asarray(indices.fill_null(0) if indices.null_count else indices)
            if indices.null_count:
                codes = np.where(np.asarray(indices.is_valid()), codes, distinct)
            self._by_dictionary[field_id] = Frame({field_id: values}, distinct + 1, self.repeated), codes
        return self._by_dictionary[field_id]


class _Filtered(Mapping[int, pa.Array]):
    """Columns filtered by a mask, each when first asked for."""

    def __init__(self, columns: Mapping[int, pa.Array], mask: BoolMask) -> None:
        self._columns, self._mask = columns, pa.array(mask)
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
    """The id of the only column an expression reads, None if it reads several, none, or members of a struct."""
    if isinstance(node, Column | Literal):
        return None  # nothing to gain
    ids = set()
    for part in walk(node):
        if isinstance(part, Member):
            return None
        if isinstance(part, Column):
            ids.add(part.field_id)
    return ids.pop() if len(ids) == 1 else None


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
