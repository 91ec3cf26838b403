"""Leaves delete keys out of an index if no row of a semi join has them.

A row with another key is not in the result whether it is deleted or not. Only filters that the result depends on narrow
deletes, and only by key columns (SEMANTICS rule 8b).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from scan_core.joins.key_set import KeyLookup, KeySet
from scan_core.keys.summary import DeleteKeys
from scan_core.model.metrics import ScanMetrics
from scan_core.split.tasks import EqualityDeleteGroup, ScanContext

_LEAST_RATIO = 8
"""Delete keys per key of the join: with fewer, an index that later scans find in the cache is worth more."""


@dataclass(frozen=True, slots=True, eq=False)
class DeleteNarrowing:
    """Keys of a join, with the positions of their columns among the key columns of a delete set."""

    lookup: KeyLookup
    places: tuple[int, ...]
    use_numba: bool

    @property
    def digest(self) -> str:
        """What an index depends on that was narrowed so."""
        return f"{self.lookup.keys.digest} {self.places}"

    def keys_left(self, parts: Iterable[DeleteKeys], metrics: ScanMetrics) -> Iterator[DeleteKeys]:
        """The delete keys that rows of the result may have."""
        for part in parts:
            keep = self.lookup.contains([part.columns[p] for p in self.places], use_numba=self.use_numba)
            metrics.delete_keys_left_out += part.num_rows - int(np.count_nonzero(keep))
            kept = pa.array(keep)
            yield DeleteKeys(part.sequence_number, tuple(column.filter(kept) for column in part.columns))


def narrowing_of(
    group: EqualityDeleteGroup, kinds: Sequence[pa.DataType], context: ScanContext, *, use_numba: bool
) -> DeleteNarrowing | None:
    """The first semi join that leaves few keys of a delete set; None if none does.

    Args:
        group: the delete set.
        kinds: of its key columns, as they are loaded.
        context: of the scan.
        use_numba: allow compiled kernels.
    """
    if not context.options.switches.use_runtime_filters or not context.options.switches.prune_deletes:
        return None
    rows = sum(file.record_count for file in group.files)
    for filter_ in context.runtime_filters:
        keys = filter_.newest() if filter_.is_exact else None
        if not isinstance(keys, KeySet) or keys.num_keys * _LEAST_RATIO > rows:
            continue
        if not all(f.field_id in group.key_ids for f in filter_.fields):
            continue
        places = tuple(group.key_ids.index(f.field_id) for f in filter_.fields)
        if all(kinds[p] == column.type for p, column in zip(places, keys.columns, strict=True)):
            return DeleteNarrowing(keys.lookup(context.options), places, use_numba)
    return None
