"""The way from one snapshot to a later one, if so wished without the snapshots that say they changed no row."""

from collections.abc import Iterator
from itertools import pairwise

from scan_core.errors import SnapshotNotFoundError
from scan_core.metadata import TableMetadata
from scan_core.snapshot import Snapshot

_REPLACE = "replace"
"""The operation of snapshots that add and remove files without changing the table's rows, such as compactions."""

Stretch = tuple[Snapshot | None, Snapshot]


def earlier_snapshot(metadata: TableMetadata, earlier_id: int | None, later: Snapshot | None) -> Snapshot | None:
    """The snapshot with this id, from which `later` descends; None stands for the table before its first snapshot.

    Raises:
        SnapshotNotFoundError: there is no such snapshot, or `later` does not descend from it.
    """
    if earlier_id is None:
        return None
    earlier, _ = metadata.snapshot_for(snapshot_id=earlier_id)
    if earlier is None or later is None:
        raise SnapshotNotFoundError(f"{metadata.location} has no snapshot to compare with {earlier_id}")
    line = metadata.ancestors(later.snapshot_id)
    if any(s.snapshot_id == earlier_id for s in line):
        return earlier
    text = f"{metadata.location}: snapshot {later.snapshot_id} does not descend from {earlier_id}"
    if any(s.snapshot_id == later.snapshot_id for s in metadata.ancestors(earlier_id)):
        raise SnapshotNotFoundError(f"{text}, it is the other way round: swap them")
    if line[-1].parent_id is not None:
        raise SnapshotNotFoundError(
            f"{text}, as far as can be told: snapshot {line[-1].parent_id}, an ancestor, has expired"
        )
    raise SnapshotNotFoundError(f"{text}: they are on different branches, or the table was rolled back in between")


def stretches(
    metadata: TableMetadata, earlier: Snapshot | None, later: Snapshot, *, trust_rewrites: bool
) -> Iterator[Stretch]:
    """Pairs of snapshots whose differences add up to those between `earlier` and its descendant `later`.

    Args:
        metadata: of the table.
        earlier: None for the empty table before the first snapshot.
        later: a descendant of `earlier`, or `earlier` itself.
        trust_rewrites: leave out `replace` snapshots.
    """
    if earlier is None or not trust_rewrites:
        if earlier != later:
            yield earlier, later
        return
    start = earlier
    for before, after in pairwise(_line(metadata, earlier, later)):
        if after.operation == _REPLACE:
            if start != before:
                yield start, before
            start = after
    if start != later:
        yield start, later


def _line(metadata: TableMetadata, earlier: Snapshot, later: Snapshot) -> list[Snapshot]:
    """From `earlier` to `later`, both included."""
    newest_first = metadata.ancestors(later.snapshot_id)
    return newest_first[: newest_first.index(earlier) + 1][::-1]
