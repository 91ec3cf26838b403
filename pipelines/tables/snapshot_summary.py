"""The counts in a snapshot's summary: what a commit added and removed, and the totals after it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pipelines import own_version
from pipelines.tables.file_metrics import FileContent, WrittenFile
from pipelines.tables.manifest_writer import ManifestEntry


@dataclass(frozen=True, slots=True)
class _File:
    content: FileContent
    rows: int
    size: int
    partition: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Files that enter and leave a table with one snapshot."""

    added: tuple[_File, ...]
    removed: tuple[_File, ...]

    @classmethod
    def of(cls, added: Sequence[WrittenFile], removed: Iterable[tuple[int, ManifestEntry]]) -> "Change":
        """From files written, and manifest entries removed with their spec ids."""
        return cls(
            tuple(_File(f.content, f.record_count, f.file_size_bytes, (f.spec_id, *f.partition)) for f in added),
            tuple(
                _File(
                    FileContent(e.data_file["content"]),
                    e.data_file["record_count"],
                    e.data_file["file_size_in_bytes"],
                    (spec_id, *e.data_file["partition"].values()),
                )
                for spec_id, e in removed
            ),
        )

    @property
    def operation(self) -> Literal["append", "overwrite", "delete"]:
        """What the snapshot calls itself (rule 24)."""
        adds_data = any(f.content is FileContent.DATA for f in self.added)
        if self.removed or any(f.content is not FileContent.DATA for f in self.added):
            return "overwrite" if adds_data else "delete"
        return "append"


def summarise(change: Change, previous: Mapping[str, str] | None, properties: Mapping[str, str]) -> dict[str, str]:
    """The summary of a snapshot: counts of `change`, totals from those of the parent, and `properties`."""
    counts = {**_counts(change.added, "added", "added"), **_counts(change.removed, "removed", "deleted")}
    partitions = {f.partition for f in (*change.added, *change.removed)}
    summary = {name: str(count) for name, count in counts.items() if count}
    if partitions:
        summary["changed-partition-count"] = str(len(partitions))
    for total, added, removed in _TOTALS:
        before = "0" if previous is None else previous.get(total)
        if before is not None:
            summary[total] = str(int(before) + counts[added] - counts[removed])
    return {**summary, "engine-name": "nevermore", "engine-version": _own_version(), **properties}


@cache
def _own_version() -> str:
    return own_version()


_TOTALS = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


def _counts(files: Sequence[_File], verb: str, data_verb: str) -> dict[str, int]:
    def of(content: FileContent) -> list[_File]:
        return [f for f in files if f.content is content]

    data, positions, equality = (of(c) for c in FileContent)
    return {
        f"{data_verb}-data-files": len(data),
        f"{data_verb}-records": sum(f.rows for f in data),
        f"{verb}-files-size": sum(f.size for f in files),
        f"{verb}-delete-files": len(positions) + len(equality),
        f"{verb}-position-delete-files": len(positions),
        f"{verb}-equality-delete-files": len(equality),
        f"{verb}-position-deletes": sum(f.rows for f in positions),
        f"{verb}-equality-deletes": sum(f.rows for f in equality),
    }
