"""The values of one key column of a delete index that lie between two bounds, where they are few: to be asked for one by one.

Whether such a value is in a row group is told by the Bloom filter of the file; which bounds matter by its statistics.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from scan_core.deletes.dense_index import DenseIndex
from scan_core.deletes.equality import EqualityIndex
from scan_core.deletes.hashed_index import HashedIndex
from scan_core.deletes.key_summary import SIGN_BIT, KeySummary
from scan_core.index.key_columns import BytesColumn
from scan_core.read.file_reader import ColumnStatistics

MOST_VALUES = 256
"""Asking a Bloom filter for more takes longer than probing a row group."""
_MOST_STORED = 4_096
_MOST_SLOTS = 1 << 20


def few_values(
    index: EqualityIndex, column: int, threshold: int, statistics: ColumnStatistics | None
) -> list[Any] | None:
    """All values of a key column within the bounds of the statistics; None if unknown, too many, or NULL among them.

    Args:
        index: of a delete set.
        column: which of its key columns.
        threshold: ranks above it delete; of tables over close integers the others are left out.
        statistics: of the column in a row group, in the table's type.
    """
    summary = index.summaries[column]
    if statistics is None or (summary.has_null and statistics.null_count != 0):
        return None
    lower, upper = statistics.lower, statistics.upper
    if isinstance(lower, int) and isinstance(upper, int) and _is_number(summary.kind):
        if isinstance(index, DenseIndex):
            return _of_table(index, lower, upper, threshold)
        return _of_summary(summary, lower, upper)
    if isinstance(index, HashedIndex) and index.columns and isinstance(found := index.columns[column], BytesColumn):
        return _of_strings(found, summary.kind, lower, upper)
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))


def _of_table(index: DenseIndex, lower: int, upper: int, threshold: int) -> list[Any] | None:
    begin, end = max(lower - index.lower, 0), min(upper - index.lower + 1, len(index.ranks) - 1)
    if end - begin > _MOST_SLOTS:
        return None
    places = np.flatnonzero(index.ranks[begin : max(end, begin)] > threshold)
    return _few(places + (index.lower + begin))


def _of_summary(summary: KeySummary, lower: int, upper: int) -> list[Any] | None:
    if summary.buckets is None or summary.shift:
        return None  # a bucket stands for several keys
    low, high = lower + SIGN_BIT - summary.base, upper + SIGN_BIT - summary.base
    if high < 0:
        return []
    begin = np.searchsorted(summary.buckets, np.uint64(max(low, 0)))
    end = np.searchsorted(summary.buckets, np.uint64(high), side="right")
    if end - begin > MOST_VALUES:
        return None
    return [int(bucket) + summary.base - SIGN_BIT for bucket in summary.buckets[begin:end].tolist()]


def _of_strings(column: BytesColumn, kind: pa.DataType, lower: Any, upper: Any) -> list[Any] | None:
    if column.num_rows > _MOST_STORED:
        return None
    if not pa.types.is_string(kind) and not pa.types.is_binary(kind):
        return None
    stored = {bytes(column.data[begin:end]) for begin, end in pairwise(column.offsets.tolist())}
    try:
        values: set[Any] = {v.decode() for v in stored} if pa.types.is_string(kind) else stored
    except UnicodeDecodeError:
        return None
    known = [v for v in values if (lower is None or v >= lower) and (upper is None or v <= upper)]
    return known if len(known) <= MOST_VALUES else None


def _few(values: Any) -> list[Any] | None:
    return values.tolist() if len(values) <= MOST_VALUES else None
