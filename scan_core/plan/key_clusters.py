"""Many equality deletes of one key set and scope -> clusters that share no data file, where key bounds tell them apart.

A task names a whole group, so that the index of a group is built once per process; of ten thousand delete files that
follow the keys, a data file needs a few. Clusters are bundled, since each has an index of its own.
"""

from collections.abc import Sequence

import numpy as np

from scan_core.plan.file_set import Indices
from scan_core.plan.key_bounds import KeyBounds

LEAST_FILES = 64
"""Delete files of a bundle: their keys are loaded in a few milliseconds, and a task that names them stays small."""


def key_clusters(pairs: Sequence[tuple[KeyBounds, KeyBounds]], num_deletes: int) -> tuple[Indices, Indices]:
    """The number of the cluster of each delete file and each data file; all 0 if they hang together.

    Args:
        pairs: for each key column with bounds, those of the delete files and of the data files that some may touch.
        num_deletes: how many delete files there are.
    """
    best = None
    for deletes, data in pairs:
        found = _by_column(deletes, data)
        if found is not None and (best is None or found[0].max() > best[0].max()):
            best = found
    num_data = len(pairs[0][1].known) if pairs else 0
    return best or (np.zeros(num_deletes, np.int64), np.zeros(num_data, np.int64))


def _by_column(deletes: KeyBounds, data: KeyBounds) -> tuple[Indices, Indices] | None:
    """None where bounds are missing, or NULL may be on both sides: then every delete may touch every file."""
    if not deletes.known.all() or not data.known.all():
        return None
    if deletes.may_have_null.any() and data.may_have_null.any():
        return None
    lower = np.concatenate([deletes.lower, data.lower])
    order = np.argsort(lower, kind="stable")
    reached = np.maximum.accumulate(np.concatenate([deletes.upper, data.upper])[order])
    begins = np.concatenate([[False], lower[order][1:] > reached[:-1]])
    is_delete = order < len(deletes.known)
    chains = np.cumsum(begins)
    files = np.bincount(chains, weights=is_delete).cumsum() - 1
    bundles = np.maximum(files, 0).astype(np.int64) // LEAST_FILES
    of_row = np.empty(len(order), np.int64)
    of_row[order] = np.unique(bundles[chains], return_inverse=True)[1]
    return of_row[: len(deletes.known)], of_row[len(deletes.known) :]
