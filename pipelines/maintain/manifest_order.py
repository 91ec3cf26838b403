"""Manifests sorted by partition, so that the plan of a scan with a filter on the partition reads few of them.

Every commit writes a manifest of the partitions that it touches. Commits merge small manifests in the order of their age, so
manifests of a table whose commits touch many partitions name files of all of them, and every plan reads every one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nevermore.pipelines.config.tables import DEFAULT_MEMORY_LIMIT_BYTES
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.commit import Committed, RowDelta, retry_conflicts
from nevermore.pipelines.iceberg.loaded_table import check_writable, refresh
from nevermore.pipelines.iceberg.manifests import TARGET_BYTES, Arranged
from nevermore.pipelines.iceberg.positions import carried_positions
from nevermore.pipelines.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nevermore.pipelines.iceberg.catalog import Table


_TARGET_PROPERTY = "commit.manifest.target-size-bytes"
MIN_GAIN = 0.1
"""Manifests that a scan of one partition reads must become smaller by this part."""
AUTO_TARGETS = 4
"""Unasked, such a scan must read more than this many full manifests."""
ENTRIES_SHARE = 4
"""Divides the memory limit for entries that are sorted; the others are for manifests that are read and written meanwhile."""
AUTO_SHARE = 3
"""Unasked, it must also read more than one in so many bytes of all manifests: a byte is then rewritten about as often."""


@dataclass(frozen=True, slots=True)
class ManifestReport:
    """What became of the manifests of a table.

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
    snapshot_id: int | None
    manifests_before: int
    manifests_after: int
    bytes_before: int
    bytes_after: int
    read_before: int
    read_after: int
    is_dry: bool

    @property
    def lines(self) -> "Iterator[str]":
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


def arrange_manifests(
    table: "Table",
    *,
    is_automatic: bool = False,
    is_dry: bool = False,
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
) -> ManifestReport:
    """Sort the manifests of a table by partition, and merge small ones, in a `replace` snapshot with the same files.

    Args:
        table: table of a catalog; updated to show the snapshot.
        is_automatic: only if scans read many full manifests for one partition, and a good part of all.
        is_dry: report what would be done, and change nothing.
        memory_limit_bytes: maximum memory for entries of manifests; beyond it, manifests are read several times.

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

    def pays(before: float, total: int, after: float | None) -> bool:
        if is_automatic and before <= max(AUTO_TARGETS * target, total / AUTO_SHARE):
            return False
        return after is None or after <= (1 - MIN_GAIN) * before

    limit = max(1, memory_limit_bytes // ENTRIES_SHARE)

    def attempt() -> tuple[Arranged, Committed | None]:
        refresh(table)
        return RowDelta(table).arrange(target, pays, limit, carried_positions(table), is_dry=is_dry)

    done, committed = retry_conflicts(attempt)
    return ManifestReport(
        name,
        None if committed is None else committed.snapshot_id,
        done.replaced,
        done.new,
        done.replaced_bytes,
        done.new_bytes,
        round(done.bytes_before),
        round(done.bytes_after),
        is_dry,
    )


def _target_bytes(table: "Table", name: str) -> int:
    text = str(table.properties.get(_TARGET_PROPERTY, TARGET_BYTES))
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise ConfigError(f"{name}: the table property {_TARGET_PROPERTY} is {text!r}, not a number of bytes above 0")
    return int(text)
