"""Manifests sorted by partition, so that the plan of a scan with a filter on the partition reads few of them.

Every commit writes a manifest of the partitions that it touches. Commits merge small manifests in the order of their age, so
manifests of a table whose commits touch many partitions name files of all of them, and every plan reads every one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.commit import RowDelta, retry_conflicts
from nevermore.pipelines.iceberg.loaded_table import check_writable, refresh
from nevermore.pipelines.iceberg.manifests import (
    TARGET_BYTES,
    Listed,
    ManifestEntry,
    PartitionLayout,
    Record,
    SnapshotManifests,
    num_entries,
    of_one_kind,
)
from nevermore.pipelines.iceberg.positions import carried_positions
from nevermore.pipelines.wording import counted
from nevermore.scan_core import PrimitiveType
from nevermore.scan_core.metadata import decode_bound

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Snapshot, Table


_TARGET_PROPERTY = "commit.manifest.target-size-bytes"
MIN_GAIN = 0.1
"""Manifests that a scan of one partition reads must become smaller by this part."""
AUTO_TARGETS = 4
"""Unasked, such a scan must read more than this many full manifests."""
AUTO_SHARE = 3
"""Unasked, it must also read more than one in so many bytes of all manifests: a byte is then rewritten about as often."""


@dataclass(slots=True)
class ManifestReport:
    """What became of the manifests of a table. Mutable while it is made.

    Attributes:
        table: name of the table.
        snapshot_id: the new snapshot; None if nothing was changed.
        manifests_before: manifests that were replaced, or would be.
        manifests_after: the new ones.
        bytes_before: stored bytes of the replaced ones.
        bytes_after: stored bytes of the new ones.
        read_before: stored bytes of these manifests that a scan of one partition read, on average over the files.
        read_after: the same of the new ones.
        is_dry: whether nothing was to be changed.
    """

    table: str
    snapshot_id: int | None = None
    manifests_before: int = 0
    manifests_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    read_before: int = 0
    read_after: int = 0
    is_dry: bool = False

    @property
    def lines(self) -> Iterator[str]:
        """The report as text."""
        if not self.manifests_before:
            yield f"{self.table}: no manifests to rewrite"
            return
        verb = "would rewrite" if self.is_dry else "rewrote"
        yield (
            f"{self.table}: {verb} {counted(self.manifests_before, 'manifest')} of {self.bytes_before:,} bytes as "
            f"{self.manifests_after:,} of {self.bytes_after:,}"
        )
        yield f"  a scan of one partition reads {self.read_after:,} bytes of them, {self.read_before:,} before"


def arrange_manifests(table: "Table", *, is_automatic: bool = False, is_dry: bool = False) -> ManifestReport:
    """Sort the manifests of a table by partition, and merge small ones, in a `replace` snapshot with the same files.

    Args:
        table: table of a catalog; updated to show the snapshot.
        is_automatic: only if scans read many full manifests for one partition, and a good part of all.
        is_dry: report what would be done, and change nothing.

    Raises:
        SourceError: the table has a format version that is not written.
        ConfigError: the table's property of the size of manifests is no size.
        CommitConflictError: other writers kept changing the table.
        CommitUnknownError: it is unknown whether the commit has happened.
        MalformedTableError: a manifest is damaged.
    """
    check_writable(table)
    name = ".".join(table.name())
    target = _target_bytes(table, name)

    def attempt() -> ManifestReport:
        refresh(table)
        report = ManifestReport(name, is_dry=is_dry)

        def arrange(manifests: SnapshotManifests, base: "Snapshot | None") -> tuple[Listed, dict[str, str]]:
            listed = tuple(_arranged(manifests, base, target, report, is_automatic=is_automatic))
            counts = {"created": report.manifests_after, "replaced": report.manifests_before}
            named = {f"manifests-{what}": str(count) for what, count in counts.items()}
            return Listed(listed), {**carried_positions(table), **named}

        committed = RowDelta(table).rearrange(arrange, is_dry=is_dry)
        return replace(report, snapshot_id=None if committed is None else committed.snapshot_id)

    return retry_conflicts(attempt)


def _arranged(
    manifests: SnapshotManifests,
    base: "Snapshot | None",
    target_bytes: int,
    report: ManifestReport,
    *,
    is_automatic: bool,
) -> Iterator[Record]:
    """The manifests of a snapshot: those of a content and spec sorted into new ones of about `target_bytes`, where that pays.

    A manifest ends between two partitions if it can, so that a scan of one partition reads few of them.
    """
    for (content, spec_id), group in of_one_kind(manifests.live(base)).items():
        layout, total = manifests.layout(spec_id), sum(m["manifest_length"] for m in group)
        before = _bytes_per_partition(group, layout)
        is_wanted = not is_automatic or before > max(AUTO_TARGETS * target_bytes, total / AUTO_SHARE)
        new: list[Record] = []
        if len(group) > 1 and is_wanted:
            entries = sorted(chain(*manifests.live_entries(group)), key=_partition_order)
            most = max(1, target_bytes * len(entries) // total)
            new += (manifests.write_manifest(part, content, spec_id) for part in _parts(entries, most))
        after = _bytes_per_partition(new, layout) if new else 0.0
        if not new or after > (1 - MIN_GAIN) * before:
            manifests.discard(new)
            yield from group
            continue
        yield from new
        report.manifests_before += len(group)
        report.manifests_after += len(new)
        report.bytes_before += total
        report.bytes_after += sum(m["manifest_length"] for m in new)
        report.read_before += round(before)
        report.read_after += round(after)


def _target_bytes(table: "Table", name: str) -> int:
    text = str(table.properties.get(_TARGET_PROPERTY, TARGET_BYTES))
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise ConfigError(f"{name}: the table property {_TARGET_PROPERTY} is {text!r}, not a number of bytes above 0")
    return int(text)


def _partition_order(entry: ManifestEntry) -> tuple[Any, ...]:
    """Sorts files by partition, NULL first, then by age."""
    file = entry.file
    return (*((value is not None, value) for value in file.partition), file.data_sequence_number, file.path)


def _bytes_per_partition(manifests: Sequence[Record], layout: PartitionLayout) -> float:
    """Stored bytes of the manifests that a scan of one partition reads, on average over the files.

    Args:
        manifests: manifest-list entries of one content and spec.
        layout: the spec.
    """
    lengths = np.array([m["manifest_length"] for m in manifests], np.int64)
    ends = []
    for place, kind in enumerate(layout.types):
        ranges = [_range(m["partitions"], place, kind) for m in manifests]
        ranks = {end: rank for rank, end in enumerate(sorted({end for pair in ranges for end in pair}))}
        ends.append(np.array([[ranks[low], ranks[high]] for low, high in ranges]))
    read = np.zeros(len(manifests), np.int64)
    for index in range(len(manifests)):
        overlaps = np.ones(len(manifests), np.bool_)
        for pairs in ends:
            overlaps &= (pairs[:, 0] <= pairs[index, 1]) & (pairs[:, 1] >= pairs[index, 0])
        read[index] = lengths[overlaps].sum()
    return float(np.average(read, weights=[max(num_entries(m), 1) for m in manifests]))


def _range(summaries: Sequence[Record] | None, place: int, kind: PrimitiveType) -> tuple[tuple[Any, ...], ...]:
    """The lowest and highest value of a partition field in a manifest; all values if that is not known."""
    if summaries is None or place >= len(summaries):
        return (0,), (2,)
    summary = summaries[place]
    bounds = [decode_bound(summary[f"{end}_bound"], kind) for end in ("lower", "upper")]
    if None in bounds:  # only NULL or NaN, unless the writer left it out
        has_null, has_nan = summary["contains_null"], summary["contains_nan"]
        return (2,) if has_nan and not has_null else (0,), (0,) if has_null and not has_nan else (2,)
    low, high = ((1, bound) for bound in bounds)
    return (0,) if summary["contains_null"] else low, (2,) if summary["contains_nan"] else high


def _parts(entries: Iterable[ManifestEntry], most: int) -> Iterator[list[ManifestEntry]]:
    """Cut entries that are sorted by partition into parts of at most `most`, between two partitions if they can be."""
    held: list[ManifestEntry] = []
    for _, group in groupby(entries, key=lambda entry: entry.file.partition):
        members = list(group)
        if held and len(held) + len(members) > most:
            yield held
            held = []
        held += members
        while len(held) > most:
            yield held[:most]
            held = held[most:]
    if held:
        yield held
