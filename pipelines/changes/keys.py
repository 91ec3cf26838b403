"""Keys of changes: equal keys as equal integers, sets of keys, and the keys that changes touch.

NULL equals NULL everywhere here.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.arrow_columns import plain
from nevermore.pipelines.errors import SchemaConflictError
from nevermore.pipelines.iceberg.row_shape import encode_rows, member, single_array
from nevermore.scan_core import Mask

Codes = NDArray[np.int64]
_INTEGERS = (pa.int32(), pa.int64())


def encode_keys(columns: Sequence[pa.ChunkedArray | pa.Array]) -> tuple[Codes, int]:
    """Encode rows of key columns as integers: (code per row, upper limit of the codes).

    Raises:
        SchemaConflictError: a column has a type that keys cannot have (float, double, struct, list, map).
    """
    check_key_types(columns)
    if not columns:
        raise SchemaConflictError("a key needs at least one column")
    first, count = columns[0], len(columns[0])
    if len(columns) == 1 and first.type in _INTEGERS and count and not first.null_count:
        values = np.asarray(first)
        low, high = int(values.min()), int(values.max())
        # Dense numbers are codes themselves: a dictionary would take a fifth of a mirror's time.
        if high - low < 4 * count:
            return (values - low).astype(np.int64), high - low + 1
    return encode_rows(columns)


def check_key_types(columns: Sequence[pa.ChunkedArray | pa.Array]) -> None:
    """Refuse types that keys cannot have.

    Raises:
        SchemaConflictError: float, double, struct, list or map.
    """
    for column in columns:
        if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
            raise SchemaConflictError(
                f"a key column has type {column.type}: float, double, struct, list and map cannot be keys; choose another "
                "key or cast the column"
            )


def same_rows(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> NDArray[np.bool_]:
    """Rows in which two sequences of columns are equal in every column; NULL equals NULL."""
    same = np.ones(len(left[0]), np.bool_)
    for a, b in zip(left, right, strict=True):
        if pa.types.is_null(a.type):
            continue
        equal = pc.equal(a, b)
        if equal.null_count:
            both_null = pc.and_(pc.is_null(a), pc.is_null(b))
            equal = pc.or_(pc.fill_null(equal, False), both_null)
        same &= np.asarray(equal, np.bool_)
    return same


Positions = NDArray[np.int64]


class KeySet:
    """A set of rows of key columns; `find` looks up equal ones."""

    def __init__(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> None:
        """`columns` have one length; the first of several equal rows is the one that is found."""
        self._values: list[pa.Array] = []
        codes: Positions = np.zeros(len(columns[0]) if columns else 0, np.int64)
        self._ranks: list[Positions] = []
        for column in columns:
            values = pc.unique(_plain(column))
            own = _codes(_plain(column), values)
            self._values.append(values)
            combined = codes * len(values) + own
            ranks = np.unique(combined)
            self._ranks.append(ranks)
            codes = np.searchsorted(ranks, combined)
        self._rows = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
        self._rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)

    def find(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> Positions:
        """For each row of these columns, the first equal row of the set, or -1."""
        count = len(columns[0])
        codes: Positions = np.zeros(count, np.int64)
        alive: NDArray[np.bool_] = np.full(count, len(self._rows) > 0)
        for column, values, ranks in zip(columns, self._values, self._ranks, strict=True):
            own = _codes(_plain(column), values)
            alive &= own >= 0
            combined = codes * max(1, len(values)) + own
            codes = np.searchsorted(ranks, combined)
            codes[codes == len(ranks)] = 0
            alive &= ranks[codes] == combined if len(ranks) else False
        found: Positions = np.full(count, -1, np.int64)
        found[alive] = self._rows[codes[alive]]
        return found


def _plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    array = single_array(column)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return plain(array)


def _codes(column: pa.Array, values: pa.Array) -> Positions:
    """Index of each value in `values`, -1 if missing; NULL is a value like any other."""
    if not column.type.equals(values.type):
        column = column.cast(values.type)
    found = pc.fill_null(pc.index_in(column, value_set=values), -1)
    return np.asarray(found).astype(np.int64)


def keys_touched(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """The keys before each change, followed by the keys after each; for a delete these are the same."""
    before = [member(changes.column("key"), n) for n in key]
    gone = pc.is_null(changes.column("after"))
    after = [pc.if_else(gone, b, member(changes.column("after"), n)) for n, b in zip(key, before, strict=True)]
    return pa.concat_tables([pa.table(side, names=list(key)) for side in (before, after)], promote_options="permissive")


def touched_by(changes: pa.Table, keys: KeySet, key: Sequence[str]) -> Mask:
    """The changes with one of some keys, before or after the change."""
    return np.logical_or(*np.split(keys.find(keys_touched(changes, key).columns) >= 0, 2))


def num_to_truncate(changes: pa.Table) -> int:
    """Number of changes up to the last truncate; 0 without any."""
    places = np.flatnonzero(np.asarray(pc.equal(changes.column("op"), "t")))
    return int(places[-1]) + 1 if len(places) else 0
