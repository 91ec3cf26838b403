"""Finds and deletes files in the folders of a table that nothing names: what killed runs and failed commits left behind."""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import PipelineError, describe
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.storage import StoredFile
from nevermore.pipelines.maintain.retention import (
    MaintainedTable,
    OpenedTable,
    Show,
    file_name,
    live_files,
    maintained_tables,
    manifests_of,
    opened,
    statistics_files,
)
from nevermore.pipelines.wording import counted, counts
from nevermore.scan_core import MissingFileError, ScanError, Table
from nevermore.scan_core.io import parse_location, size_text
from nevermore.scan_core.metadata import parse_metadata, read_document

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog

_METADATA_FILE = re.compile(r"(?P<table>.*)/metadata/[^/]*\.metadata\.json(\.gz)?")
_HINT = "version-hint.text"
_MAX_LISTED = 20
_UNITS = (("d", 86400.0), ("h", 3600.0), ("m", 60.0))
_OWN_RECORDS = "/nevermore-"
"""Beginning of the names of folders next to the manifests, such as that with results of checks."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """The orphan files of a table.

    Attributes:
        table: name of the table.
        files: paths of the orphan files.
        orphan_bytes: their size.
        kept: number of all other files in the folders of the table, by the reason for keeping them.
        are_deleted: whether the orphans were deleted.
        older_than_seconds: minimum age of an orphan.
        seconds: time taken.
        error: why nothing was found out; nothing was deleted.
    """

    table: str
    files: tuple[str, ...] = ()
    orphan_bytes: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    are_deleted: bool = False
    older_than_seconds: float = 0.0
    seconds: float = 0.0
    error: str | None = None

    @property
    def lines(self) -> Iterator[str]:
        """What was found and what stays, as text."""
        if self.error is not None:
            yield f"{self.table}: failed: {self.error}"
            return
        done = "deleted" if self.are_deleted else "not deleted, --delete deletes them"
        size = f" of {size_text(self.orphan_bytes)} {done}" if self.files else ""
        kept = f"{counted(sum(self.kept.values()), 'file')} kept ({counts(self.kept)})"
        what = f"{counted(len(self.files), 'orphan file')} older than {_duration(self.older_than_seconds)}"
        yield f"{self.table}: {what}{size}; {kept}"
        yield from (f"  {path}" for path in self.files[:_MAX_LISTED])
        if len(self.files) > _MAX_LISTED:
            yield f"  and {len(self.files) - _MAX_LISTED:,} more; --json lists all"


def _duration(seconds: float) -> str:
    unit, length = next(((u, n) for u, n in _UNITS if seconds >= n and seconds % n == 0), ("s", 1.0))
    return f"{seconds / length:g}{unit}"


def orphans_of_all(
    catalog: "Catalog",
    config: Config,
    names: Collection[str] | None = None,
    *,
    overrides: RetentionConfig | None = None,
    delete: bool = False,
    show: Show = lambda _: None,
) -> Iterator[Orphans]:
    """Find the orphan files of the tables of a config; an error of one table does not stop the others.

    Args:
        catalog: the catalog of the config.
        config: which tables, and how old orphans are.
        names: only these entries of the config; all if empty.
        overrides: options that replace those of the config.
        delete: delete the files.
        show: receives what is being done.

    Raises:
        ConfigError: an unknown name.
    """
    for target in maintained_tables(catalog, config, names, overrides):
        try:
            yield orphans(catalog, target, target.settings.orphan_age, delete=delete, show=show)
        except (PipelineError, ScanError, OSError) as error:
            yield Orphans(target.name, error=describe(error).removeprefix(f"{target.name}: "))


def orphans(
    catalog: "Catalog",
    target: MaintainedTable,
    older_than_seconds: float,
    *,
    delete: bool = False,
    show: Show = lambda _: None,
) -> Orphans:
    """Find the orphan files of one table, and delete them if wanted.

    A file is an orphan if it is older than the limit, and neither the current metadata nor any version that was current
    within the limit reaches it.

    Raises:
        SourceError: the table does not exist, or its files may not be deleted.
        ScanError: metadata of the table cannot be read, so that it is unknown what it reaches; nothing was deleted.
    """
    began = time.monotonic()
    limit = time.time() - older_than_seconds
    first = opened(catalog, target.name)
    show(f"{target.name}: listing files")
    # Listed before the metadata is read: what is committed in between is named, what is written later is not listed.
    listed = [file for folder in first.folders for file in first.storage.list_files(folder, recursive=True)]
    found = opened(catalog, target.name)
    show(f"{target.name}: comparing {counted(len(listed), 'file')} with the metadata")
    named = _named(found, limit)
    others = _nested_tables(listed, found)
    kept: Counter[str] = Counter()
    doomed = []
    for file in listed:
        reason = _reason(file, found, limit, named=named, others=others)
        if reason is None:
            doomed.append(file)
        else:
            kept[reason] += 1
    if delete:
        show(f"{target.name}: deleting {counted(len(doomed), 'file')}")
        found.storage.remove([file.path for file in doomed])
    return Orphans(
        table=target.name,
        files=tuple(file.path for file in doomed),
        orphan_bytes=sum(file.size_bytes for file in doomed),
        kept=dict(kept),
        are_deleted=delete,
        older_than_seconds=older_than_seconds,
        seconds=time.monotonic() - began,
    )


def _reason(
    file: StoredFile,
    table: OpenedTable,
    limit: float,
    *,
    named: Collection[str],
    others: tuple[str, ...],
) -> str | None:
    """Why a file stays; None for an orphan."""
    name = file_name(file.path)
    if name in named:
        return "named by metadata"
    if file.path.startswith(others):
        return "of another table"
    inside = next((file.path.removeprefix(f) for f in table.folders if file.path.startswith(f)), file.path)
    if any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in inside.split("/")):
        return "hidden"  # by the convention of Hadoop, other programs' marks
    if name == _HINT or _OWN_RECORDS in inside:
        return "record"
    if file.modified is None or file.modified.timestamp() >= limit:
        return "too young"
    return None


def _nested_tables(listed: Collection[StoredFile], table: OpenedTable) -> tuple[str, ...]:
    """Folders of other tables in the folders of a table."""
    own = {str(parse_location(folder)).rstrip("/") for folder in table.folders}
    found = {match["table"] for file in listed if (match := _METADATA_FILE.fullmatch(file.path)) is not None}
    return tuple(f"{folder}/" for folder in found if str(parse_location(folder)).rstrip("/") not in own)


def names_reached(table: OpenedTable) -> set[str]:
    """Names of the files that the current metadata of a table reaches."""
    return _named(table, float("inf"))


def _named(table: OpenedTable, limit: float) -> set[str]:
    """Names of the files that the metadata reaches, now or in a version that was current after a time."""
    names = {*_names_in(table.document, table.table.metadata_path)}
    snapshots = dict(table.table.metadata.snapshots)
    manifests = {m.path: m for m in manifests_of(list(snapshots.values()), table.table)}
    names |= {*map(file_name, manifests)}
    names |= {file_name(file.path) for file in live_files(list(manifests.values()), table.table)}
    log = table.document.get("metadata-log") or []
    ends = [*(entry["timestamp-ms"] for entry in log[1:]), table.document["last-updated-ms"]]
    for entry, end in zip(log, ends[: len(log)], strict=True):  # the first version of a table has no log
        if end < limit * 1000:
            continue
        # What a version names may have been deleted by the expiry of its snapshots; what is still there, readers may use.
        try:
            document = read_document(entry["metadata-file"], table.table.io)
        except MissingFileError:
            continue
        names.update(_names_in(document, entry["metadata-file"]))
        earlier = _parsed(document, entry["metadata-file"], table.table)
        more = [s for i, s in earlier.metadata.snapshots.items() if i not in snapshots]
        snapshots |= {s.snapshot_id: s for s in more}
        added = [m for m in manifests_of(more, earlier, are_required=False) if m.path not in manifests]
        manifests |= {m.path: m for m in added}
        names |= {file_name(m.path) for m in added}
        names |= {file_name(file.path) for file in live_files(added, earlier, are_required=False)}
    return names


def _parsed(document: Mapping[str, Any], path: str, table: Table) -> Table:
    import orjson

    return Table(parse_metadata(orjson.dumps(document), path), path, table.io)


def _names_in(document: Mapping[str, Any], path: str) -> Iterator[str]:
    """Names of the files that a metadata document names itself, and its own."""
    yield file_name(path)
    for entry in document.get("metadata-log") or []:
        yield file_name(entry["metadata-file"])
    for snapshot in document.get("snapshots") or []:
        for named in (snapshot.get("manifest-list"), (snapshot.get("summary") or {}).get(positions.POSITION_FILE)):
            if named:
                yield file_name(named)
    for _, named in statistics_files(document):
        yield file_name(named)
