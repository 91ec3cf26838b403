"""Erases rows for good: from all snapshots of a mirror, its change log, its quarantines and tables published from it.

First every table gets a commit without the rows; only then older snapshots expire, as long as they are what tells which rows to
erase. So it can be interrupted anywhere and run again. At the end all files that are left are searched for the rows.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nevermore.pipelines.changes.change_log import LogBase
from nevermore.pipelines.changes.keys import KeySet, same_rows
from nevermore.pipelines.config.project import Config, change_log_name, quarantine_name
from nevermore.pipelines.errors import CommitConflictError, PipelineError, SourceError
from nevermore.pipelines.iceberg.catalog import expanded, find_table
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.iceberg.index_upkeep import keep_mirror_indexes
from nevermore.pipelines.iceberg.loaded_table import check_writable, metadata_location, open_current
from nevermore.pipelines.iceberg.manifests import read_manifest_list
from nevermore.pipelines.iceberg.positions import (
    ERASED,
    LAST_ORDINAL,
    LOG_ORDINAL,
    ancestors,
    carried_positions,
    newest_property,
    summary_properties,
)
from nevermore.pipelines.iceberg.replacement import Replacement, Swap
from nevermore.pipelines.iceberg.row_shape import distinct_rows, member, storage_of
from nevermore.pipelines.iceberg.storage import StoredFile
from nevermore.pipelines.maintain.compact import MAX_ROUNDS, CompactSettings, rewrite_without
from nevermore.pipelines.maintain.orphans import names_reached
from nevermore.pipelines.maintain.retention import (
    MaintainedTable,
    OpenedTable,
    Show,
    expire,
    file_name,
    finish_deleting,
    live_files,
    maintained_tables,
    manifests_of,
    opened,
)
from nevermore.pipelines.maintain.text_search import TextSearch, members, patterns, texts_of
from nevermore.pipelines.mirrors.table_shape import IDENTITY, KEY
from nevermore.pipelines.publish.query import tables_read
from nevermore.pipelines.publish.state import SOURCE, STATE, PublishedState
from nevermore.pipelines.wording import counted
from nevermore.scan_core import (
    DataFile,
    DeleteContent,
    DeleteFile,
    Expr,
    FileScanTask,
    Mask,
    PredicateError,
    ScanMetrics,
    ScanOptions,
    Snapshot,
    Split,
    StructType,
    read_split,
    run_splits,
)
from nevermore.scan_core.io import clear_caches, size_text
from nevermore.scan_core.parts import inside, null_is_unknown, texts_in

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

CHECK_RESULTS = "nevermore-checks"
"""Folder next to the manifests with results of checks, which name keys of rows."""
MIN_TEXT = 4
"""Characters of a text that is searched for: shorter ones are part of too many others."""
MAX_TEXTS = 1000
"""Texts that are searched for."""
_MAX_LISTED = 10
_SIDES = ("key", "before", "after")

Publish = Callable[[str], object]
"""Brings a published table up to date."""


@dataclass(slots=True)
class ErasedTable:
    """What was erased of one table, or would be. Mutable while it runs.

    Attributes:
        table: its name.
        rows: rows found in data files of any snapshot, dead ones included.
        data_files: the data files that have them.
        delete_files: delete files that have their keys.
        expired: snapshots that reached them and are gone.
        deleted_files: files that were deleted.
        searched_files: files that were searched afterwards, in all folders of the table.
        searched_bytes: stored bytes of these.
        decoded_bytes: bytes of the values in them that were compared.
        held: what still has the rows, each with the reason.
        is_published: whether it is published again without the rows, so that none is looked for.
    """

    table: str
    rows: int = 0
    data_files: int = 0
    delete_files: int = 0
    expired: int = 0
    deleted_files: int = 0
    searched_files: int = 0
    searched_bytes: int = 0
    decoded_bytes: int = 0
    held: tuple[str, ...] = ()
    is_published: bool = False

    def described(self, *, is_dry: bool) -> str:
        """What was found and done, in a line."""
        done = f"; {counted(self.expired, 'snapshot')} expired, {counted(self.deleted_files, 'file')} deleted"
        if self.is_published:
            return f"{self.table}: " + ("would be published again" if is_dry else f"published again{done}")
        verb = "would be erased" if is_dry else "erased"
        deletes = f", keys in {counted(self.delete_files, 'delete file')}" * bool(self.delete_files)
        rows = f"{counted(self.rows, 'row')} of {counted(self.data_files, 'data file')} {verb}{deletes}"
        return f"{self.table}: {rows}{'' if is_dry else done}"


@dataclass(frozen=True, slots=True)
class Erasure:
    """The report.

    Attributes:
        table: the table that was named.
        where: the condition.
        keys: keys of the rows that matched at any time; all rows of a key are erased.
        texts: texts among these keys and in the condition that were searched for in all bytes.
        left_out: texts that were not searched for, because they are short, too many, or part of other rows.
        tables: what was erased of each table.
        source_files: files of the source from which the rows came, which are not touched, with numbers of events.
        not_touched: folders that may name the rows and are not searched, with what removes that.
        is_dry: whether nothing was changed.
        seconds: time taken.
    """

    table: str
    where: str
    keys: int
    texts: int
    left_out: int
    tables: tuple[ErasedTable, ...]
    source_files: Mapping[str, int]
    not_touched: Mapping[str, str]
    is_dry: bool
    seconds: float

    @property
    def is_complete(self) -> bool:
        """Whether nothing has the rows any more; in a dry run, whether nothing would."""
        return not any(one.held for one in self.tables)

    @property
    def lines(self) -> Iterator[str]:
        """The report as text."""
        yield f"{self.table}: {counted(self.keys, 'key')} matched at any time"
        for one in self.tables:
            yield f"  {one.described(is_dry=self.is_dry)}"
            if one.searched_files:
                size, decoded = size_text(one.searched_bytes), size_text(one.decoded_bytes)
                found = f"found in {len(one.held):,}" if one.held else "nothing found"
                yield f"    searched {counted(one.searched_files, 'file')} of {size} ({decoded} decoded): {found}"
            yield from (f"    HELD  {reason}" for reason in one.held)
        if self.texts or self.left_out:
            left_out = (
                f"; {counted(self.left_out, 'text')} too short, too many, or part of other rows: compared in key columns alone"
                * bool(self.left_out)
            )
            yield f"  searched all bytes for {counted(self.texts, 'text')} of keys and condition{left_out}"
        if self.source_files:
            yield f"  not touched: {counted(len(self.source_files), 'file')} of the source that had events of these keys"
            yield from (
                f"    {path}: {counted(n, 'event')}" for path, n in sorted(self.source_files.items())[:_MAX_LISTED]
            )
        yield from (f"  not touched: {path}: {how}" for path, how in self.not_touched.items())
        if self.is_dry:
            yield "  nothing was changed; --delete erases the rows. That cannot be undone"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "is_complete": self.is_complete}


def erase(
    catalog: "Catalog",
    config: Config,
    name: str,
    where: str,
    *,
    is_dry: bool = True,
    publish: Publish | None = None,
    show: Show = lambda _: None,
) -> Erasure:
    """Erase all rows of the keys of which a row matched at any time, in every snapshot that no tag or branch keeps.

    Args:
        catalog: the catalog of the config.
        config: config of the project.
        name: a mirror, or a published table, of which only the matching rows are erased.
        where: a condition on its columns.
        is_dry: change nothing, and report what has the rows.
        publish: publishes the tables that read the mirror without the rows; None leaves them as they are.
        show: receives what is being done.

    Raises:
        ConfigError: an unknown name.
        SourceError: the table does not exist or has another format version than 2 or 3, the change log lacks a column of the
            condition, or it has changes that the mirror does not have yet.
        ScanError: the condition does not fit the table, or a file cannot be read.
        CommitConflictError: other writers kept changing a table; run again.
    """
    began = time.monotonic()
    config = expanded(config, catalog)
    if name not in config.published:
        config.table(name)
    run = _Run(catalog, config, name, where, show)
    if not is_dry:
        run.erase(publish)
        clear_caches()  # which may have keys of the deletes that are gone
    run.search(is_dry=is_dry)
    return Erasure(
        table=name,
        where=where,
        keys=run.keys.num_rows,
        texts=len(run.texts),
        left_out=run.left_out,
        tables=tuple(run.tables.values()),
        source_files=dict(run.source_files),
        not_touched=dict(_not_touched(config)),
        is_dry=is_dry,
        seconds=time.monotonic() - began,
    )


def _not_touched(config: Config) -> Iterator[tuple[str, str]]:
    """Folders of a project in which reports of runs and checks may name keys, and what removes them."""
    folders = {
        config.path.parent
        / ".dagster": "results of checks and output of runs; delete the runs in the UI, or stop it and remove the folder",
        config.docs.folder_of(
            config.path
        ): "pages of results of checks; remove the folder, and write it again with nevermore docs",
    }
    yield from ((str(folder), how) for folder, how in folders.items() if folder.exists())


_OPTIONS = ScanOptions(record_filters=False)


def _stored_rows(
    found: OpenedTable, files: Collection[DataFile], columns: Sequence[str], where: Expr | str | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of data files, dead or alive, with the path of their file."""
    scan = found.table.scan().with_options(_OPTIONS).select(*columns)
    context = (scan if where is None else scan.where(where)).plan().context

    def read(split: Split, metrics: ScanMetrics) -> Iterator[tuple[str, pa.RecordBatch]]:
        path = split.tasks[0].data_file.path
        yield from ((path, batch) for batch in read_split(split, metrics))

    splits = [Split(context, (FileScanTask(file, 0, file.file_size_bytes),)) for file in files]
    yield from run_splits(splits, read, ScanMetrics(), context.options.parallelism)


def _files_of(found: OpenedTable, snapshots: Iterable[Snapshot]) -> tuple[dict[str, DataFile], dict[str, DeleteFile]]:
    """Data files and delete files of snapshots, by path."""
    manifests = {m.path: m for m in manifests_of(list(snapshots), found.table)}
    data, deletes = dict[str, DataFile](), dict[str, DeleteFile]()
    for file in live_files([*manifests.values()], found.table):
        if isinstance(file, DataFile):
            data[file.path] = file
        else:
            deletes[file.path] = file
    return data, deletes


@dataclass(frozen=True, slots=True)
class _Place:
    """A table, and which of its rows are to be erased.

    Attributes:
        target: the table.
        columns: names of the columns that tell.
        drops: which rows of a batch, of these columns or all.
        key: names of the key columns, if deletes have them.
    """

    target: MaintainedTable
    columns: tuple[str, ...]
    drops: Callable[[pa.RecordBatch], Mask]
    key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.target.name

    def rows_of(self, found: OpenedTable, files: Collection[DataFile]) -> Counter[str]:
        """Number of rows to erase by data file."""
        rows: Counter[str] = Counter()
        for path, batch in _stored_rows(found, files, self.columns):
            if held := int(self.drops(batch).sum()):
                rows[path] += held
        return rows

    def deletes_with_keys(self, found: OpenedTable, files: Iterable[DeleteFile]) -> set[str]:
        """Paths of the equality deletes that have one of the keys."""
        if not self.key:
            return set()
        ids = [found.table.metadata.schema.find(name).field_id for name in self.key]
        return {
            file.path for file in files if file.content is DeleteContent.EQUALITY and self._has_key(found, file, ids)
        }

    def _has_key(self, found: OpenedTable, file: DeleteFile, ids: Sequence[int]) -> bool:
        if file.format.name != "PARQUET":
            return True  # it is resolved and dropped
        with found.storage.open_input(file.path) as source:
            stored = pq.read_table(source, partitioning=None)
        by_id = {int((f.metadata or {}).get(b"PARQUET:field_id", b"-1")): f.name for f in stored.schema}
        if not by_id.keys() >= set(ids):
            return True  # deletes by other columns
        rows = pa.table([stored.column(by_id[i]) for i in ids], names=list(self.key)).combine_chunks()
        return any(self.drops(batch).any() for batch in rows.to_batches())


class _Run:
    """One erasure of rows of one table."""

    def __init__(self, catalog: "Catalog", config: Config, name: str, where: str, show: Show) -> None:
        self._catalog = catalog
        self._config = config
        self._name = name
        self._where = where
        self._show = show
        self._main = opened(catalog, name)
        check_writable(self._main.handle)
        self._is_mirror = name not in config.published
        self._key = self._key_columns()
        self.tables: dict[str, ErasedTable] = {}
        self._files: dict[str, set[str]] = {}
        self.source_files: Counter[str] = Counter()
        show(f"{name}: looking for rows in all snapshots")
        self.keys = self._find_keys()
        self._set = KeySet([self.keys.column(i) for i in range(len(self._key))])
        self._known_texts = list(dict.fromkeys([*texts_in(where), *(texts_of(self.keys) if self._is_keyed else ())]))
        self.texts = [text for text in self._known_texts if len(text) >= MIN_TEXT][:MAX_TEXTS]
        self._places = list(self._all_places())
        for place in self._places:
            found = opened(catalog, place.name)
            data, deletes = _files_of(found, found.table.metadata.snapshots.values())
            rows = place.rows_of(found, data.values())
            of_keys = place.deletes_with_keys(found, deletes.values())
            self._files[place.name] = {*rows, *of_keys}
            self.tables[place.name] = ErasedTable(place.name, rows.total(), len(rows), len(of_keys))
            if "source_file" in found.table.schema.names:
                self.source_files += self._origins(place, found, [data[path] for path in rows])

    @property
    def left_out(self) -> int:
        """Number of texts that are not searched for."""
        return len(self._known_texts) - len(self.texts)

    # Which rows

    @property
    def _is_keyed(self) -> bool:
        made_by = self._main.handle.metadata.properties
        return self._is_mirror and bool(made_by.get(KEY)) and made_by.get(IDENTITY) != "full"

    def _key_columns(self) -> tuple[str, ...]:
        """The columns that identify a row: of a table without key, all that can be compared."""
        schema = self._main.table.schema
        if self._is_keyed:
            return tuple(self._main.handle.metadata.properties[KEY].split(","))
        held = self._main.table.scan().select(*(f.name for f in schema.fields)).arrow_schema
        return tuple(f.name for f in held if not pa.types.is_nested(f.type))

    def _find_keys(self) -> pa.Table:
        """The keys of all rows that match in any snapshot or change, and those that became of them by key changes."""
        files, _ = _files_of(self._main, self._main.table.metadata.snapshots.values())
        parts = [batch for _, batch in _stored_rows(self._main, files.values(), self._key, self._where)]
        log = find_table(self._catalog, change_log_name(self._name)) if self._is_mirror else None
        schema = self._main.table.scan().select(*self._key).arrow_schema
        empty = pa.schema([(f.name, storage_of(f.type)) for f in schema]).empty_table()
        found = pa.concat_tables([empty, *(self._plain(batch) for batch in parts)], promote_options="permissive")
        if log is None or log.metadata.current_snapshot_id is None:
            return distinct_rows(found)
        place = opened(self._catalog, change_log_name(self._name))
        return self._with_logged(place, distinct_rows(found))

    def _plain(self, batch: pa.RecordBatch) -> pa.Table:
        columns = [c.storage if isinstance(c, pa.ExtensionArray) else c for c in batch.columns]
        return pa.table(columns, names=list(self._key))

    def _with_logged(self, log: OpenedTable, found: pa.Table) -> pa.Table:
        files = _files_of(log, log.table.metadata.snapshots.values())[0].values()
        sides = [side for side in _SIDES if side in log.table.schema.names]
        names = [f"{side}.{name}" for side in sides for name in self._key]
        matches = (batch for side in sides[1:] for batch in self._changes_that_match(side, log, files, names))
        sent = (rows for batch in matches for rows in self._keys_by_side(batch, sides))
        parts = [found, *(rows.filter(pa.array(self._null_free(rows))) for rows in sent)]
        found = distinct_rows(pa.concat_tables(parts, promote_options="permissive"))
        moves = [rows for _, batch in _stored_rows(log, files, names) if (rows := self._moved(batch, sides))]
        while True:  # a key that became another is the same row; it may have become a third
            keys, parts = KeySet(list(found.columns)), [found]
            for rows in moves:
                touched = np.logical_or.reduce([keys.find(list(side.columns)) >= 0 for side in rows])
                parts += [side.filter(pa.array(touched & self._null_free(side))) for side in rows]
            more = distinct_rows(pa.concat_tables(parts, promote_options="permissive"))
            if more.num_rows == found.num_rows:
                return found
            found = more

    def _changes_that_match(
        self, side: str, log: OpenedTable, files: Collection[DataFile], names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Changes whose row before or after matches.

        A NULL of a row may stand for a value that was not sent, as in old rows that are just a key; or there is no such row. Only
        of new rows it is known which columns were sent.
        """
        known, tested = null_is_unknown(self._where)
        try:
            yield from (batch for _, batch in _stored_rows(log, files, names, inside(side, known)))
        except PredicateError as error:
            raise SourceError(
                f"{self._name}: the condition cannot be looked for in {change_log_name(self._name)}, which has the older rows: {error}; "
                f"name the rows by columns that it has, such as the key {', '.join(self._key)}"
            ) from error
        if side != "after" or not tested:
            return
        whole = [tuple(".".join(name.parts).split(".")) for name in tested]
        columns = pa.array({".".join(parts[:n]) for parts in whole for n in range(1, len(parts) + 1)}, pa.string())
        for _, batch in _stored_rows(log, files, [*names, "unchanged"], inside(side, self._where)):
            unsent = batch.column("unchanged")
            lacks = pc.is_in(unsent.flatten(), columns)
            rows = self._null_free(pa.table(batch.select([n for n in names if n.startswith("after.")])))
            rows[np.asarray(pc.list_parent_indices(unsent).filter(lacks), np.int64)] = False
            yield batch.select(names).filter(pa.array(rows))

    def _moved(self, batch: pa.RecordBatch, sides: Sequence[str]) -> list[pa.Table]:
        """The keys of each side of the changes that give a row another key; nothing without any."""
        rows = self._keys_by_side(batch, sides)
        moves = np.zeros(batch.num_rows, np.bool_)
        for one, other in combinations(rows, 2):
            moves |= ~same_rows(one.columns, other.columns) & self._null_free(one) & self._null_free(other)
        return [side.filter(pa.array(moves)) for side in rows] if moves.any() else []

    def _keys_by_side(self, batch: pa.RecordBatch, sides: Sequence[str]) -> list[pa.Table]:
        return [self._plain(batch.select([f"{side}.{name}" for name in self._key])) for side in sides]

    @staticmethod
    def _null_free(rows: pa.Table) -> Mask:
        return np.asarray(~np.logical_and.reduce([np.asarray(pc.is_null(column)) for column in rows.columns]), np.bool_)

    def _has_key(self, columns: Sequence[pa.Array]) -> Mask:
        return np.asarray(self._set.find(columns) >= 0)

    # Where they are

    def _all_places(self) -> Iterator[_Place]:
        """The tables, in the order of their expiry: what tells the keys comes last."""
        if not self._is_mirror:
            target = MaintainedTable(self._name, self._name, self._config.published[self._name].maintenance)
            yield _Place(target, self._key, self._drops_rows, ())
            return
        targets = {t.name: t for t in maintained_tables(self._catalog, self._config, [self._name])}
        mirror, log = targets.pop(self._name), targets.pop(change_log_name(self._name), None)
        for target in targets.values():
            yield _Place(
                target, ("raw", "reason"), self._texts_in_events(is_own=target.name == quarantine_name(self._name))
            )
        if log is not None and (names := self._logged_columns(log.name)):
            yield _Place(log, names, self._drops_changes)
        yield _Place(mirror, self._key, self._drops_rows, self._key)

    def _logged_columns(self, log: str) -> tuple[str, ...]:
        schema = opened(self._catalog, log).table.schema
        structs = {f.name: f.type.fields for f in schema.fields if f.name in _SIDES and isinstance(f.type, StructType)}
        known = {(side, m.name) for side, members in structs.items() for m in members}
        return tuple(f"{side}.{n}" for side in structs for n in self._key if all((side, k) in known for k in self._key))

    @staticmethod
    def _origins(place: _Place, found: OpenedTable, files: Collection[DataFile]) -> Counter[str]:
        """Files of the source, with the number of events in them that are to be erased."""
        where = ("source_file", "source_offset")
        parts = [
            pa.table([batch.column(where[0]).cast(pa.string()), batch.column(where[1])], list(where)).filter(
                pa.array(place.drops(batch))
            )
            for _, batch in _stored_rows(found, files, (*place.columns, *where))
        ]
        if not parts:
            return Counter()
        counts = pa.concat_tables(parts).group_by(list(where)).aggregate([])[where[0]].value_counts()
        return Counter(dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True)))

    def _drops_rows(self, batch: pa.RecordBatch) -> Mask:
        return self._has_key([batch.column(name) for name in self._key])

    def _drops_changes(self, batch: pa.RecordBatch) -> Mask:
        dropped = np.zeros(batch.num_rows, np.bool_)
        for side in _SIDES:
            if f"{side}.{self._key[0]}" in batch.schema.names:
                columns = [batch.column(f"{side}.{name}") for name in self._key]
            elif side in batch.schema.names:
                columns = [member(batch.column(side), name) for name in self._key]
            else:
                continue
            dropped |= self._has_key(columns) & self._null_free(pa.table(columns, names=list(self._key)))
        return dropped

    def _texts_in_events(self, *, is_own: bool) -> Callable[[pa.RecordBatch], Mask]:
        """Quarantined events that have one of the texts, or, of JSON of this table alone, a key as members."""
        of_texts = list(patterns(self.texts))
        by_column: list[list[str]] = []
        if is_own:
            renamed = self._config.tables[self._name].rename if self._name in self._config.tables else {}
            for name, column in zip(self._key, self.keys.columns, strict=True):
                names = [name, *(source for source, new in renamed.items() if new == name)]
                by_column.append(list(members(names, pc.unique(column).to_pylist())))

        def matches(batch: pa.RecordBatch, patterns: Sequence[str], *, all_columns: bool) -> Mask:
            found = np.zeros(batch.num_rows, np.bool_)
            for column in batch.select(["raw", "reason"] if all_columns else ["raw"]).columns:
                for pattern in patterns:
                    found |= np.asarray(pc.fill_null(pc.match_substring_regex(column, pattern), False), np.bool_)
            return found

        def drops(batch: pa.RecordBatch) -> Mask:
            found = matches(batch, of_texts, all_columns=True)
            if by_column:
                found |= np.logical_and.reduce([matches(batch, one, all_columns=False) for one in by_column])
            return found

        return drops

    # Erasing

    def erase(self, publish: Publish | None) -> None:
        """Erase the rows, and publish the tables that read them again."""
        for place in self._places:
            found = opened(self._catalog, place.name)
            finish_deleting(found, names_reached(found))
        if self._is_mirror:
            self._check_applied()
        for place in self._places:
            self._clean(place)
        clean = self._clean_snapshots
        if self._is_mirror and clean:
            self._publish(publish)
        for place in self._places:
            if place.name in clean:
                self._expire(place.target, clean[place.name][-1].snapshot_id)
        entry = self._config.tables.get(self._name)
        if entry is not None and self._name in clean:
            keep_mirror_indexes(opened(self._catalog, self._name).handle, entry)

    def _check_applied(self) -> None:
        log = find_table(self._catalog, change_log_name(self._name))
        logged = int((log and newest_property(log, LAST_ORDINAL)) or 0)
        applied = int(newest_property(self._main.handle, LOG_ORDINAL) or 0)
        if logged > applied:
            raise SourceError(
                f"{self._name}: {counted(logged - applied, 'change')} of its change log not applied yet, and applying them needs "
                f"snapshots that an erasure removes: run nevermore ingest {self._name}, then erase again"
            )

    def _clean(self, place: _Place) -> None:
        """Commit the table without the rows, or without what it removed before, which may have been rows of the keys."""
        # Without rows, too, so that what was published from older snapshots goes, and an erasure of a published table is known.
        if self._files[place.name] or self.keys.num_rows or not self._is_mirror:
            self._show(f"{place.name}: rewriting {counted(self.tables[place.name].data_files, 'data file')}")
            self._rewrite(place)
        elif self.texts:
            _forget_removed(opened(self._catalog, place.name), {ERASED: "true"})

    def _rewrite(self, place: _Place) -> None:
        """Commit the table without the rows, and without deletes that name their keys."""
        handle = opened(self._catalog, place.name).handle
        settings = CompactSettings.of(handle, self._config)
        for _ in range(MAX_ROUNDS):
            found = opened(self._catalog, place.name)
            current = found.table.metadata.current_snapshot
            data, deletes = _files_of(found, () if current is None else (current,))
            if place.deletes_with_keys(found, deletes.values()):
                convert(handle)
            live = set(place.rows_of(found, data.values()))
            if not live:
                break
            rewrite_without(handle, settings, live, place.drops, {ERASED: "true"})
        else:
            raise CommitConflictError(f"other writers kept changing {place.name}: erase again")
        _forget(handle, {ERASED: "true"})

    @property
    def _clean_snapshots(self) -> dict[str, Sequence[Snapshot]]:
        """The snapshots of each table since the newest erasure, which is the last of them; no table without one."""
        clean: dict[str, Sequence[Snapshot]] = {}
        for place in self._places:
            metadata = opened(self._catalog, place.name).table.metadata
            line = metadata.ancestors(metadata.current_snapshot_id or 0)
            count = next((n for n, s in enumerate(line, 1) if ERASED in s.summary), 0)
            if count:
                clean[place.name] = line[:count]
        return clean

    def _expire(self, target: MaintainedTable, mark: int) -> None:
        done = expire(self._catalog, self._config, target, before=mark, show=self._show)
        self.tables[target.name].expired += len(done.expired)
        self.tables[target.name].deleted_files += sum(done.files.values())
        found = opened(self._catalog, target.name)
        folder = f"{metadata_location(found.handle)}/{CHECK_RESULTS}"
        found.storage.remove(found.storage.files_in(folder))
        for folder in found.folders:
            found.storage.remove_empty_folders(folder)

    def _readers(self) -> list[str]:
        """Published tables that exist and read the mirror."""
        names = [n for n in self._config.published if self._name in tables_read(self._config, n)]
        return [name for name in names if find_table(self._catalog, name) is not None]

    def _publish(self, publish: Publish | None) -> None:
        """Make the published tables without the rows, and expire what was published before."""
        for name in self._readers():
            entry, reason = self._config.published[name], None
            one = self.tables[name] = ErasedTable(name, is_published=True)
            since = self._published_since(name)
            if since is None and entry.mode == "replace" and publish is not None:
                self._show(f"{name}: publishing without the rows")
                try:
                    publish(name)
                except PipelineError as error:
                    reason = f"it could not be published: {error}"
                since = self._published_since(name)
            if since is None:
                own = f'its columns decide: nevermore erase {name} --where "..." --delete'
                again = f"nevermore publish {name}, then erase again"
                reason = reason or (
                    f"mode {entry.mode} keeps rows of earlier runs; {own}" if entry.mode != "replace" else again
                )
                one.held = (f"published before: {reason}",)
                continue
            since = _forget_removed(opened(self._catalog, name)) or since
            self._expire(MaintainedTable(name, name, entry.maintenance), since)

    def _published_since(self, name: str) -> int | None:
        """The oldest of the newest snapshots of a published table that were made from clean ones of the mirror and its log."""
        metadata = opened(self._catalog, name).table.metadata
        if metadata.current_snapshot_id is None:
            return None
        since, clean = None, self._clean_snapshots
        ids = {s.snapshot_id for line in clean.values() for s in line}
        begun = max(line[-1].timestamp_ms for line in clean.values())
        for snapshot in metadata.ancestors(metadata.current_snapshot_id):
            if ERASED in snapshot.summary and snapshot.timestamp_ms >= begun:  # not of an earlier erasure of others
                return snapshot.snapshot_id
            state = PublishedState.from_json(snapshot.summary.get(STATE, ""))
            read = (
                {s.snapshot_id for table, s in state.sources.items() if table in clean} if state is not None else set()
            )
            if not read or read - ids:
                if snapshot.summary.get("operation") == "replace" or any(SOURCE + n in snapshot.summary for n in clean):
                    continue
                break
            since = snapshot.snapshot_id
        return since

    # The report

    def search(self, *, is_dry: bool) -> None:
        """Look for what still has the rows, or in a dry run for what would."""
        if is_dry:
            for name, files in self._files.items():
                self.tables[name].held = tuple(self._refs_with(opened(self._catalog, name), files))
            for name in self._readers() if self._is_mirror else ():
                self.tables[name] = ErasedTable(name, is_published=True)
            return
        self._forget_common_texts()
        places = {place.name: place for place in self._places}
        for name, one in self.tables.items():
            if name in places:
                self._show(f"{name}: searching all files")
            if not one.held:
                self._search(one, opened(self._catalog, name), places.get(name))

    def _forget_common_texts(self) -> None:
        """Do not search for texts of the condition that other rows have as well."""
        found = opened(self._catalog, self._name)
        current = found.table.metadata.current_snapshot
        named = set(texts_in(self._where)).intersection(self.texts)
        if not named or current is None:
            return
        live = [StoredFile(path, 0, None) for path in _paths_of(found, current)]
        common = {text for text in named if any(TextSearch([text]).look_into(file, found).has_text for file in live)}
        self.texts = [text for text in self.texts if text not in common]

    def _refs_with(self, found: OpenedTable, paths: Collection[str]) -> Iterator[str]:
        """Tags and branches that reach some files."""
        for name, ref in found.table.metadata.refs.items():
            snapshot = found.table.metadata.snapshots.get(ref.snapshot_id)
            if name == "main" or snapshot is None:
                continue
            held = _paths_of(found, snapshot).intersection(paths)
            if held:
                yield f"{'branch' if ref.is_branch else 'tag'} {name}: {counted(len(held), 'file')} with the rows"

    def _search(self, one: ErasedTable, found: OpenedTable, place: _Place | None) -> None:
        """Search the rows in all data files of all snapshots, and the texts in all files in the folders of the table."""
        reasons: dict[str, str] = {}
        if place is not None:
            data, deletes = _files_of(found, found.table.metadata.snapshots.values())
            reasons = {path: counted(n, "row") for path, n in place.rows_of(found, data.values()).items()}
            reasons |= dict.fromkeys(place.deletes_with_keys(found, deletes.values()), "keys of deletes")
        listed = [file for folder in found.folders for file in found.storage.list_files(folder, recursive=True)]
        search = TextSearch(self.texts)
        for file in listed:
            searched = search.look_into(file, found)
            one.decoded_bytes += searched.num_bytes
            if any(file_name(path) == file_name(file.path) for path in reasons):
                continue
            if searched.has_text:
                reasons[file.path] = "one of the texts"
            elif searched.fault:
                reasons[file.path] = (
                    f"values that cannot be read, so nobody knows whether it has the rows ({searched.fault})"
                )
        one.searched_files, one.searched_bytes = len(listed), sum(file.size_bytes for file in listed)
        one.held = tuple(self._holders(found, reasons)) if reasons else ()

    def _holders(self, found: OpenedTable, reasons: Mapping[str, str]) -> Iterator[str]:
        """Say of each file what keeps it."""
        metadata = found.table.metadata
        refs = {ref.snapshot_id: f"{'branch' if ref.is_branch else 'tag'} {n}" for n, ref in metadata.refs.items()}
        keepers: dict[str, list[str]] = {}
        for snapshot in metadata.snapshots.values():
            named = refs.get(snapshot.snapshot_id, f"snapshot {snapshot.snapshot_id}")
            manifests = [m.path for m in manifests_of([snapshot], found.table)]
            for path in (*_paths_of(found, snapshot), *manifests, snapshot.manifest_list or ""):
                keepers.setdefault(file_name(path), []).append(named)
        reached = names_reached(found)
        for path, what in reasons.items():
            kept = ", ".join(keepers.get(file_name(path), ()))
            if not kept:
                kept = (
                    "the metadata" if file_name(path) in reached else "nothing (nevermore orphans --delete removes it)"
                )
            yield f"{path} has {what}; kept by {kept}"


def _paths_of(found: OpenedTable, snapshot: Snapshot) -> set[str]:
    return {file.path for file in live_files([*manifests_of([snapshot], found.table)], found.table)}


def _forget_removed(found: OpenedTable, properties: Mapping[str, str] | None = None) -> int | None:
    """Commit the table without removed files, if its manifests may list some; returns the snapshot."""
    path = (
        None if found.table.metadata.current_snapshot is None else found.table.metadata.current_snapshot.manifest_list
    )
    listed = [] if path is None else read_manifest_list(found.storage.read(path), path)
    if all(manifest["deleted_files_count"] == 0 for manifest in listed):
        return None
    return _forget(found.handle, properties or {})


def _forget(handle: "CatalogTable", properties: Mapping[str, str]) -> int | None:
    """Commit the same files without those that were removed, so that all older snapshots can go; a change log lacks changes."""

    def choose(_: RowDelta) -> Swap:
        carried = _published_from(handle)
        last = int({**carried_positions(handle), **carried}.get(LAST_ORDINAL, 0))
        base = LogBase(last, open_current(handle).scan().count()).properties if last > 0 else {}
        return Swap(properties={**carried, **base, **properties})

    with Replacement(handle, forgets=True) as replacement:
        committed = replacement.commit(choose)
    return None if committed is None else committed.snapshot_id


def _published_from(handle: "CatalogTable") -> Mapping[str, str]:
    """What the newest snapshot records that made all rows; nothing if later ones changed some: then all are made again."""
    for snapshot in ancestors(handle):
        summary = summary_properties(snapshot)
        if STATE in summary:
            return {name: value for name, value in summary.items() if name.startswith("nevermore.")}
        if snapshot.summary is None or snapshot.summary.operation.value != "replace":
            break
    return {}
