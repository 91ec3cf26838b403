"""Which manifests of a table a commit merges, so that many small commits leave few manifests at little cost each.

Manifests are tiered by their number of entries: `FAN_IN` of a tier become one of the next, so an entry is copied once
per tier. No commit copies more than `MOST_ENTRIES`, unless there are too many manifests for a reader.
"""

from collections.abc import Iterable, Sequence

from pipelines.tables.manifest_avro import Record

FAN_IN = 8
MOST_ENTRIES = 300
"""Of one merge: some tens of milliseconds."""
MOST_MANIFESTS = 100
"""Beyond this, as Iceberg's `commit.manifest.min-count-to-merge`, readers matter more than one slow commit."""
TARGET_BYTES = 8 * 1024**2
"""As Iceberg's `commit.manifest.target-size-bytes`: manifests of half of it are left alone."""


def to_merge(manifests: Iterable[Record]) -> list[list[Record]]:
    """Groups of manifests, each of one content and spec, to be merged into one; all others stay."""
    groups: dict[tuple[int, int], list[Record]] = {}
    for manifest in manifests:
        if manifest["manifest_length"] < TARGET_BYTES // 2:
            groups.setdefault((manifest["content"], manifest["partition_spec_id"]), []).append(manifest)
    return [chosen for group in groups.values() if (chosen := _chosen(group))]


def _chosen(group: Sequence[Record]) -> list[Record]:
    """The lowest full tier of a group."""
    tiers: dict[int, list[Record]] = {}
    for manifest in group:
        tiers.setdefault(_tier(_entries(manifest)), []).append(manifest)
    for tier in sorted(tiers):
        found = tiers[tier]
        if len(found) >= FAN_IN and sum(map(_entries, found[-FAN_IN:])) <= MOST_ENTRIES:
            return found[-FAN_IN:]
    return sorted(group, key=_entries)[:FAN_IN] if len(group) > MOST_MANIFESTS else []


def _entries(manifest: Record) -> int:
    counts = (manifest["added_files_count"], manifest["existing_files_count"], manifest["deleted_files_count"])
    return sum(count or 0 for count in counts) if None not in counts else MOST_ENTRIES


def _tier(entries: int) -> int:
    tier = 0
    while entries >= FAN_IN:
        entries //= FAN_IN
        tier += 1
    return tier
