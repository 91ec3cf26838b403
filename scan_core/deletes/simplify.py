"""Keys that need no lookup of their own, because another delete set removes every row they could remove.

A delete of (a, b) is covered by a delete of (a) that is not older and reaches at least as far (rule 8c). Which groups
may cover which is stated by the planner, so that every data file of a scan sees the same keys.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from scan_core.deletes.delete_keys import DeleteKeys
from scan_core.deletes.equality import EqualityIndex, find_deleted


@dataclass(frozen=True, slots=True)
class Cover:
    """The index of a group whose key columns are some of those of another, and whose scope holds the other's."""

    key_ids: tuple[int, ...]
    index: EqualityIndex


def without_covered(
    parts: Iterable[DeleteKeys], key_ids: Sequence[int], covers: Sequence[Cover], *, use_numba: bool = True
) -> Iterator[DeleteKeys]:
    """The keys that no cover deletes with the same or a higher sequence number."""
    for part in parts:
        covered = np.zeros(part.num_rows, np.bool_)
        for cover in covers:
            columns = [part.columns[key_ids.index(i)] for i in cover.key_ids]
            not_older = bisect_left(cover.index.sequence_numbers, part.sequence_number)
            covered |= find_deleted(cover.index, columns, not_older, use_numba=use_numba)
        if covered.any():
            kept = pa.array(~covered)
            yield DeleteKeys(part.sequence_number, tuple(c.filter(kept) for c in part.columns))
        else:
            yield part
