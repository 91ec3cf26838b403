"""Expires old snapshots of a table and deletes the files that only they reached.

The new metadata is committed first, then files are deleted. Files that remain after an interruption are named by nothing and
are found by `orphans.py`.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from nevermore.pipelines.config.project import Config, change_log_name, quarantine_name
from nevermore.pipelines.config.published import PublishedConfig
from nevermore.pipelines.config.tables import RetentionConfig, TableConfig
from nevermore.pipelines.errors import CommitConflictError, ConfigError, PipelineError, SourceError, describe
from nevermore.pipelines.iceberg import positions, storage
from nevermore.pipelines.iceberg.catalog import expanded, find_table
from nevermore.pipelines.iceberg.checked_catalog import open_existing
from nevermore.pipelines.iceberg.commit import commit, retry_conflicts
from nevermore.pipelines.iceberg.loaded_table import data_location, metadata_location, storage_of
from nevermore.pipelines.ingest.feeds import feeds_of
from nevermore.pipelines.publish.state import STATE, base_of
from nevermore.pipelines.wording import counted, counts
from nevermore.scan_core import (
    DataFile,
    DeleteFile,
    MissingFileError,
    ScanError,
    Snapshot,
    Table,
    TableMetadata,
    open_table,
)
from nevermore.scan_core.io import file_size, is_within, parse_location, relocate, size_text
from nevermore.scan_core.metadata import (
    ManifestFile,
    read_data_manifests,
    read_document,
    snapshot_manifests,
)
from nevermore.scan_core.parts import INDEX_SUFFIX

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

Show = Callable[[str], None]
Kind = Literal["data files", "delete files", "manifests", "manifest lists", "statistics files", "position files"]
_MANIFESTS_AT_ONCE = 64
"""Manifests whose entries are held in memory together."""
_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """A table of the catalog, with the entry of the config that it belongs to."""

    name: str
    entry: str
    settings: RetentionConfig


def maintained_tables(
    catalog: "Catalog",
    config: Config,
    names: Collection[str] | None = None,
    overrides: RetentionConfig | None = None,
) -> Iterator[MaintainedTable]:
    """The tables of entries of a config that exist: mirrors with their change logs and quarantines, and published tables.

    Events of a feed that belong to none of its tables are in a quarantine of their own, which belongs to any of them.

    Raises:
        ConfigError: an unknown name.
    """
    config = expanded(config, catalog)
    overrides = overrides or RetentionConfig()
    known: dict[str, TableConfig | PublishedConfig] = {**config.tables, **config.published}
    for name in names or ():
        if name not in known:
            config.table(name)  # names the nearest mirror
    for entry, section in known.items():
        if names and entry not in names:
            continue
        tables = [entry] if entry in config.published else [entry, change_log_name(entry), quarantine_name(entry)]
        for name in tables:
            if find_table(catalog, name) is not None:
                yield MaintainedTable(name, entry, overrides.under(section.maintenance))
    for feed in feeds_of(config, [*config.tables, *config.patterns]):
        chosen = [name for name in feed.wanted if not names or name in names]
        if chosen and find_table(catalog, feed.quarantine) is not None:
            yield MaintainedTable(feed.quarantine, chosen[0], overrides.under(feed.settings[0].maintenance))


@dataclass(frozen=True, slots=True)
class Expiry:
    """What was expired, or would be.

    Attributes:
        table: name of the table.
        expired: ids of the expired snapshots, oldest first.
        kept: number of snapshots that stay, by the first reason for it.
        files: number of deleted files by kind.
        deleted_bytes: their size.
        elsewhere: files that only expired snapshots reached and that are not in the folders of the table; they stay.
        is_dry: whether nothing was changed.
        seconds: time taken.
        error: why it failed; the table is unchanged, unless snapshots are named above.
    """

    table: str
    expired: tuple[int, ...] = ()
    kept: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    deleted_bytes: int = 0
    elsewhere: tuple[str, ...] = ()
    is_dry: bool = False
    seconds: float = 0.0
    error: str | None = None

    @property
    def has_changed(self) -> bool:
        """Whether anything expired, or in a dry run would."""
        return bool(self.expired)

    @property
    def lines(self) -> Iterator[str]:
        """What expired and what stays, as text."""
        if self.error is not None:
            yield f"{self.table}: failed: {self.error}"
            return
        kept = (
            f"{counted(sum(self.kept.values()), 'snapshot')} kept ({counts(self.kept)})"
            if self.kept
            else "no snapshots"
        )
        if not self.expired:
            yield f"{self.table}: nothing to expire; {kept}"
            return
        verb, deleted = ("would expire", "would be deleted") if self.is_dry else ("expired", "deleted")
        files = f"{counted(sum(self.files.values()), 'file')} of {size_text(self.deleted_bytes)} {deleted}"
        kinds = f" ({counts(self.files)})" if self.files else ""
        yield f"{self.table}: {verb} {counted(len(self.expired), 'snapshot')}, {files}{kinds}; {kept}"
        if self.elsewhere:
            outside = counted(len(self.elsewhere), "file")
            yield f"  {outside} outside of the folders of the table not deleted: {self.elsewhere[0]}"


def expire_all(
    catalog: "Catalog",
    config: Config,
    names: Collection[str] | None = None,
    *,
    overrides: RetentionConfig | None = None,
    is_dry: bool = False,
    show: Show = lambda _: None,
) -> Iterator[Expiry]:
    """Expire snapshots of the tables of a config; an error of one table does not stop the others.

    Args:
        catalog: the catalog of the config.
        config: which tables, and what is kept.
        names: only these entries of the config; all if empty.
        overrides: options that replace those of the config.
        is_dry: change nothing.
        show: receives what is being done.

    Raises:
        ConfigError: an unknown name.
    """
    config = expanded(config, catalog)
    for table in maintained_tables(catalog, config, names, overrides):
        try:
            yield expire(catalog, config, table, is_dry=is_dry, show=show)
        except (PipelineError, ScanError, OSError) as error:
            yield Expiry(table.name, is_dry=is_dry, error=describe(error).removeprefix(f"{table.name}: "))


class RegularExpiry:
    """Expires snapshots of the tables whose config has `expire_every`, between the rounds of a continuous run."""

    def __init__(self, config: Config, tables: Collection[str] | None = None) -> None:
        """Expire snapshots of these mirrors; without any, of all and of published tables."""
        entries: dict[str, TableConfig | PublishedConfig] = {**config.tables, **config.patterns, **config.published}
        self._tables = tables
        self._is_wanted = any(entry.maintenance.expire_every is not None for entry in entries.values())
        self._config = config
        self._due: dict[str, float] = {}

    def run(self) -> list[Expiry]:
        """Expire what is due; return the tables that changed or failed."""
        if not self._is_wanted or time.monotonic() < min(self._due.values(), default=0.0):
            return []
        try:
            catalog = open_existing(self._config)
            config = expanded(self._config, catalog)
        except PipelineError as error:
            return [Expiry(self._config.path.name, error=str(error))]
        now = time.monotonic()
        wanted: dict[str, TableConfig | PublishedConfig] = {**config.tables, **config.published}
        due = []
        for name, entry in wanted.items():
            every = entry.maintenance.expire_every
            is_wanted = not self._tables or name in self._tables
            if is_wanted and every is not None and now >= self._due.get(name, 0.0):
                self._due[name] = now + every
                due.append(name)
        found = expire_all(catalog, config, due) if due else ()
        return [done for done in found if done.has_changed or done.error is not None]


def expire(
    catalog: "Catalog",
    config: Config,
    target: MaintainedTable,
    *,
    is_dry: bool = False,
    before: int | None = None,
    show: Show = lambda _: None,
) -> Expiry:
    """Expire the snapshots of one table that nothing keeps, and delete the files that only they reached.

    Args:
        catalog: the catalog of the config.
        config: what else reads the table.
        target: the table, and what is kept.
        is_dry: change nothing.
        before: keep this snapshot of the current one's line, all after it, and those of branches and tags, and nothing
            else. The files are listed in a record first, so that `finish_deleting` can delete them after an interruption.
        show: receives what is being done.

    Raises:
        SourceError: the table does not exist, or its files may not be deleted.
        CommitConflictError: others kept changing the table; nothing was expired.
        ScanError: the metadata of a snapshot that stays cannot be read; no file was deleted.
    """
    began = time.monotonic()
    show(f"{target.name}: looking for old snapshots")
    record = None
    if is_dry:
        old = after = opened(catalog, target.name)
        kept = _kept(catalog, config, target, old, before)
    else:
        old, kept, record = retry_conflicts(partial(_committed, catalog, config, target, before))
        after = opened(catalog, target.name)
        storage.reached("after-commit")
    snapshots = old.table.metadata.snapshots
    expired = [s for i, s in snapshots.items() if i not in kept]
    files: list[_File] = []
    if expired:
        show(
            f"{target.name}: expiring {counted(len(expired), 'snapshot')}; looking for files that nothing else reaches"
        )
        files = _unreached_beside_others(catalog, old, after, expired)
    own: list[_File] = []
    elsewhere: list[_File] = []
    for file in files:
        (own if old.owns(file.path) else elsewhere).append(file)
    if own and not is_dry:
        show(f"{target.name}: deleting {counted(len(own), 'file')}")
        _delete(old.storage, [file.path for file in own])
    if record is not None:
        old.storage.remove([record])
    return Expiry(
        table=target.name,
        expired=tuple(s.snapshot_id for s in expired),
        kept=dict(Counter(kept.values())),
        files=dict(Counter(file.kind for file in own)),
        deleted_bytes=sum(file.size_bytes for file in own),
        elsewhere=tuple(file.path for file in elsewhere),
        is_dry=is_dry,
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table whose files may be deleted, as it was at one moment.

    Attributes:
        handle: the table in the catalog.
        table: the same, for reading.
        document: its metadata as JSON.
    """

    handle: "CatalogTable"
    table: Table
    document: Mapping[str, Any]

    @property
    def storage(self) -> storage.Storage:
        """Access to its files."""
        return storage_of(self.handle)

    @property
    def folders(self) -> list[str]:
        """Its location, and the folders of its data and metadata if they are elsewhere."""
        found = [self.handle.location().rstrip("/")]
        for folder in (data_location(self.handle), metadata_location(self.handle)):
            if not is_within(parse_location(folder), parse_location(found[0])):
                found.append(folder)
        return found

    def owns(self, path: str) -> bool:
        """Whether a file is in one of its folders."""
        location = relocate(path, self.table.io)
        return any(is_within(location, parse_location(folder)) for folder in self.folders)


def opened(catalog: "Catalog", name: str) -> OpenedTable:
    """A table of the catalog, as it is now.

    Raises:
        SourceError: it does not exist, or `gc.enabled` is false.
    """
    found = find_table(catalog, name)
    if found is None:
        raise SourceError(f"table {name} does not exist")
    if found.properties.get("gc.enabled", "true").lower() == "false":
        raise SourceError(
            f"{name} has the property gc.enabled=false: its files may belong to another table, so none is deleted"
        )
    table = open_table(found)
    return OpenedTable(found, table, read_document(table.metadata_path, table.io))


RECORDS = "nevermore-expiry"
"""Folder next to the manifests, with a list of files for each expiry that must delete them, until it has."""


def finish_deleting(found: OpenedTable, named: Collection[str]) -> int:
    """Delete the files of expiries that were interrupted; return their number.

    Args:
        found: the table.
        named: names of the files that its metadata reaches.
    """
    records = found.storage.files_in(f"{metadata_location(found.handle)}/{RECORDS}")
    paths = {path for record in records for path in json.loads(found.storage.read(record))}
    doomed = [path for path in sorted(paths) if file_name(path) not in named]
    found.storage.remove(doomed)
    found.storage.remove(records)
    return len(doomed)


def _recorded(found: OpenedTable, expired: Collection[int]) -> str:
    """Record the files that only these snapshots reach; return the path of the record."""
    gone = [s for i, s in found.table.metadata.snapshots.items() if i in expired]
    paths = [file.path for file in _unreached(found, found, gone) if found.owns(file.path)]
    path = f"{metadata_location(found.handle)}/{RECORDS}/{uuid.uuid4()}.json"
    found.storage.write(path, json.dumps(paths).encode())
    return path


def _committed(
    catalog: "Catalog", config: Config, target: MaintainedTable, before: int | None
) -> tuple[OpenedTable, dict[int, str], str | None]:
    """Expire what nothing keeps: (the table until then, reasons by kept snapshot, record of the files)."""
    found = opened(catalog, target.name)
    kept = _kept(catalog, config, target, found, before)
    expired = [i for i in found.table.metadata.snapshots if i not in kept]
    record = _recorded(found, expired) if expired and before is not None else None
    try:
        _remove_snapshots(found, expired, keeps_indexes=before is None)
    except CommitConflictError:
        if record is not None:
            found.storage.remove([record])
        raise
    return found, kept, record


def _remove_snapshots(found: OpenedTable, expired: Collection[int], *, keeps_indexes: bool) -> None:
    if not expired:
        return
    # A catalog drops tags of snapshots that it removes, and no requirement of the specification states that there are
    # none; the heads of all that are known must be those that were considered.
    heads = {name: ref.snapshot_id for name, ref in found.handle.metadata.refs.items()}
    required = [{"type": "assert-ref-snapshot-id", "ref": n, "snapshot-id": i} for n, i in heads.items()]
    dropped = [
        {"action": f"remove-{kind}", "snapshot-id": entry["snapshot-id"]}
        for kind in ("statistics", "partition-statistics")
        for entry in found.document.get(kind) or []
        # our indexes describe data files, not snapshots: the next update of the indexes takes over those that stay
        if entry["snapshot-id"] in expired
        and not (keeps_indexes and str(entry.get("statistics-path")).endswith(INDEX_SUFFIX))
    ]
    commit(found.handle, required, [*dropped, {"action": "remove-snapshots", "snapshot-ids": list(expired)}])


def _kept(
    catalog: "Catalog", config: Config, target: MaintainedTable, found: OpenedTable, before: int | None
) -> dict[int, str]:
    """The snapshots that stay, with the first reason for it."""
    metadata, current = found.table.metadata, found.table.metadata.current_snapshot_id
    line = [] if current is None else metadata.ancestors(current)
    kept: dict[int, str] = {}
    for name, ref in metadata.refs.items():
        kept.setdefault(ref.snapshot_id, f"{'branch' if ref.is_branch else 'tag'} {name}")
    if before is not None:
        if all(snapshot.snapshot_id != before for snapshot in line):
            raise SourceError(f"{target.name} was rolled back to before its snapshot {before}; nothing was expired")
        newer = line[: _num_through([snapshot.snapshot_id == before for snapshot in line])]
        return {**dict.fromkeys((snapshot.snapshot_id for snapshot in newer), "newest"), **kept}
    for newest, reason in _needs(catalog, config, target, line):
        for snapshot in line[:newest]:
            kept.setdefault(snapshot.snapshot_id, reason)
    for snapshot_id, reason in _recent(metadata, found.document.get("refs") or {}, target.settings):
        kept.setdefault(snapshot_id, reason)
    return {i: reason for i, reason in kept.items() if i in metadata.snapshots}


def _recent(metadata: TableMetadata, refs: Mapping[str, Any], settings: RetentionConfig) -> Iterator[tuple[int, str]]:
    """The snapshots that stay by number or age, with the reason; `refs` may ask for more of single branches."""
    now = time.time_ns() // 1_000_000
    since = now - int(settings.keep_for * 1000)
    for name, ref in metadata.refs.items():
        if not ref.is_branch:
            continue
        own = refs.get(name) or {}
        branch = metadata.ancestors(ref.snapshot_id)
        for snapshot in branch[: max(settings.keep_snapshots, int(own.get("min-snapshots-to-keep") or 1))]:
            yield snapshot.snapshot_id, "minimum number"
        begin = min(since, now - int(own.get("max-snapshot-age-ms") or 0))
        for newer, older in pairwise(branch):
            if newer.timestamp_ms >= begin:  # `older` was the head of the branch until then
                yield older.snapshot_id, "age"
    # A snapshot that was current within the time is kept however old it is: readers may have begun with it.
    history = metadata.history()
    for entry, end in zip(history, [*(later.timestamp_ms for later in history[1:]), now], strict=False):
        if end >= since:
            yield entry.snapshot_id, "age"
    snapshots = metadata.snapshots.values()
    yield from ((s.snapshot_id, "age") for s in snapshots if s.timestamp_ms >= since)
    # Its number is the last that the table has given; checks compare with it.
    yield from ((s.snapshot_id, "newest") for s in sorted(snapshots, key=lambda s: s.sequence_number)[-1:])


def _needs(
    catalog: "Catalog", config: Config, target: MaintainedTable, line: Sequence[Snapshot]
) -> Iterator[tuple[int, str]]:
    """How many of the newest snapshots of the current one's line the pipelines still read, and why."""
    yield positions.num_carriers([snapshot.summary for snapshot in line]), "position"
    if target.name == change_log_name(target.entry):
        mirror = find_table(catalog, target.entry)
        applied = int((mirror and positions.newest_property(mirror, positions.LOG_ORDINAL)) or 0)
        # The mirror takes appends of the log as a whole where they end with a transaction.
        is_applied = [int(s.summary.get(positions.LAST_ORDINAL, applied + 1)) <= applied for s in line]
        yield _num_through(is_applied), "not applied yet"
    for name, entry in config.published.items():
        if not entry.incremental:
            continue
        if name == target.name:
            is_last, reason = [STATE in snapshot.summary for snapshot in line], "published state"
        elif target.name in config.tables and (made := find_table(catalog, name)) is not None:
            state = base_of(made, entry.mode).state
            read = None if state is None else state.sources.get(target.name)
            is_last = [read is not None and snapshot.snapshot_id == read.snapshot_id for snapshot in line]
            reason = f"changes for {name}"
        else:
            continue
        if any(is_last):
            yield _num_through(is_last), reason


def _num_through(is_last: Sequence[bool]) -> int:
    """Number of snapshots up to and including the first that is the last one needed; all if there is none."""
    return is_last.index(True) + 1 if True in is_last else len(is_last)


class _File(NamedTuple):
    """A file that no snapshot reaches any more."""

    path: str
    kind: Kind
    size_bytes: int


def _unreached_beside_others(
    catalog: "Catalog", before: OpenedTable, after: OpenedTable, expired: Sequence[Snapshot]
) -> list[_File]:
    """The same as `_unreached`, while another expiry may remove more snapshots, and their files."""
    while True:
        try:
            return _unreached(before, after, expired)
        except MissingFileError:
            now = opened(catalog, ".".join(after.handle.name()))
            if after.table.metadata.snapshots.keys() <= now.table.metadata.snapshots.keys():
                raise
            after = now


def _unreached(before: OpenedTable, after: OpenedTable, expired: Sequence[Snapshot]) -> list[_File]:
    """The files that only expired snapshots reach, of which none stays that others have added meanwhile.

    Args:
        before: the table when they were in its metadata.
        after: the table now; the same for a dry run.
        expired: the expired snapshots.
    """
    ids = {s.snapshot_id for s in expired}
    staying = [s for i, s in after.table.metadata.snapshots.items() if i not in ids]
    kept = {manifest.path: manifest for manifest in manifests_of(staying, after.table)}
    gone = {
        manifest.path: manifest
        for manifest in manifests_of(expired, before.table, are_required=False)
        if manifest.path not in kept
    }
    files: dict[str, _File] = {}
    for file in live_files(list(gone.values()), before.table, are_required=False):
        kind: Kind = "data files" if isinstance(file, DataFile) else "delete files"
        files[file_name(file.path)] = _File(file.path, kind, file.file_size_bytes)
    if files:
        for file in live_files(list(kept.values()), after.table):
            files.pop(file_name(file.path), None)
    others: list[tuple[str, Kind]] = [(path, "manifests") for path in gone]
    lists = {s.manifest_list for s in staying}
    others += [(s.manifest_list, "manifest lists") for s in expired if s.manifest_list and s.manifest_list not in lists]
    named = {s.summary.get(positions.POSITION_FILE) for s in staying}
    positioned = {s.summary.get(positions.POSITION_FILE) for s in expired} - named
    others += [(path, "position files") for path in sorted(filter(None, positioned))]
    # Our indexes describe data files, so they stay registered with an expired snapshot; some catalogs drop them.
    left = {path for i, path in statistics_files(after.document) if i not in ids or path.endswith(INDEX_SUFFIX)}
    statistics = dict.fromkeys(path for i, path in statistics_files(before.document) if i in ids and path not in left)
    others += [(path, "statistics files") for path in statistics]
    return [*files.values(), *(_File(path, kind, _size(path, after.table)) for path, kind in others)]


def statistics_files(document: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """(snapshot id, path) of every statistics file that a metadata document names."""
    for kind in ("statistics", "partition-statistics"):
        for entry in document.get(kind) or []:
            if path := entry.get("statistics-path"):
                yield entry.get("snapshot-id"), str(path)


def manifests_of(snapshots: Sequence[Snapshot], table: Table, *, are_required: bool = True) -> Iterator[ManifestFile]:
    """The manifests of snapshots; without `are_required`, missing manifest lists are passed over."""

    def read(snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        try:
            return snapshot_manifests(snapshot, table.io)
        except MissingFileError:
            if are_required:
                raise
            return ()

    with ThreadPoolExecutor(_REQUESTS) as pool:
        for found in pool.map(read, snapshots):
            yield from found


def live_files(
    manifests: Sequence[ManifestFile], table: Table, *, are_required: bool = True
) -> Iterator[DataFile | DeleteFile]:
    """The live files of manifests; without `are_required`, missing manifests are passed over."""

    def read(some: Sequence[ManifestFile]) -> Iterator[Any]:
        return chain.from_iterable(read_data_manifests(some, table.metadata, table.io))

    for begin in range(0, len(manifests), _MANIFESTS_AT_ONCE):
        part = manifests[begin : begin + _MANIFESTS_AT_ONCE]
        try:
            yield from read(part)
        except MissingFileError:
            if are_required:
                raise
            for manifest in part:
                with suppress(MissingFileError):
                    yield from read([manifest])


def file_name(path: str) -> str:
    """The last part of a path, by which files are compared.

    Names that writers give are unique; paths of one file differ by scheme, by authority, and in tables that were moved. Two
    files of one name are therefore taken for one, and stay as long as one of them is needed.
    """
    return path.rpartition("/")[2]


def _size(path: str, table: Table) -> int:
    try:
        return int(file_size(path, table.io))
    except (ScanError, OSError):
        return 0


def _delete(place: storage.Storage, paths: Sequence[str]) -> None:
    half = len(paths) // 2
    place.remove(paths[:half])
    if half:
        storage.reached("before-acknowledgement")
    place.remove(paths[half:])


Section = TypeVar("Section", bound=RetentionConfig)


_OPTIONS = {"orphan_age": "older_than"}
"""Keys of the config for which commands have an option of another name."""


def overriding(options: Mapping[str, Any], section: type[Section]) -> Section:
    """Options of a command that replace those of a section of the config; None for those that are not given.

    Raises:
        ConfigError: a value that is invalid.
    """
    from pydantic import ValidationError

    try:
        return section.model_validate({name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "--" + _OPTIONS.get(str(first["loc"][0]), str(first["loc"][0])).replace("_", "-")
        raise ConfigError(f"{option}: {first['msg'].removeprefix('Value error, ')}") from error
