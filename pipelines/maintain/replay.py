"""Applies changes again: replays a range of the change log, or rebuilds a mirror from the log or a full load."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_log import ORDINAL, ChangeLog, read_changes
from nevermore.pipelines.changes.change_run import BATCH_SHARE, ChangeRun, hash_codes, num_parts, spread
from nevermore.pipelines.changes.keys import KeySet, keys_touched, touched_by
from nevermore.pipelines.changes.quarantine import quarantine
from nevermore.pipelines.config.project import Config, change_log_name, quarantine_name
from nevermore.pipelines.config.sources import FilesSource
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.batches import BatchEnd, ChangeBatch, Rejected
from nevermore.pipelines.decode.feed import Decided
from nevermore.pipelines.errors import (
    AnotherIngesterError,
    ConfigError,
    SourceError,
)
from nevermore.pipelines.formats.options import with_located_options
from nevermore.pipelines.formats.registry import decode, lookup
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import find_table, identifier
from nevermore.pipelines.iceberg.commit import RowDelta, everything, retry_conflicts
from nevermore.pipelines.iceberg.index_upkeep import IndexUpdate, keep_mirror_indexes
from nevermore.pipelines.iceberg.loaded_table import current_schema, open_current, storage_of
from nevermore.pipelines.iceberg.row_shape import distinct_rows, members_of, single_array, with_columns
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.feeds import Feed, Readers, feeds_of, remote_files
from nevermore.pipelines.ingest.report import TableReport
from nevermore.pipelines.ingest.table_ingest import TableIngest
from nevermore.pipelines.mirrors.fold import DELETED
from nevermore.pipelines.mirrors.mirror import Mirror, check_whole, effective_from
from nevermore.pipelines.mirrors.table_shape import ADOPTED, ADOPTED_ORDINAL, ADOPTED_SNAPSHOT, soft_delete_property
from nevermore.pipelines.sources.file_changes import RE_DELIVERED, Listing
from nevermore.pipelines.sources.live import KeyRanges, LiveSource, key_ranges
from nevermore.pipelines.sources.table_position import Load
from nevermore.scan_core import ContentFile, col

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


ROWS_FORMAT = "rows"


@dataclass(slots=True)
class _Quarantine:
    """The quarantine of a table, and the number of changes added to it."""

    catalog: "Catalog"
    table: str
    count: int = 0

    def keep(self, rejected: Rejected) -> None:
        """Add rejected changes that are not in it yet."""
        self.count += quarantine(self.catalog, quarantine_name(self.table), rejected)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Changes that were applied again.

    Attributes:
        table: the mirror.
        first: first ordinal of the range.
        last: last ordinal of the range.
        num_changes: applied changes, including those of the same keys after the range.
        snapshot_id: snapshot of the mirror afterwards.
        quarantined: changes newly rejected.
    """

    table: str
    first: int
    last: int
    num_changes: int
    snapshot_id: int | None
    quarantined: int


def replay(catalog: "Catalog", config: Config, name: str, start: str | None, end: str | None) -> Replayed:
    """Apply the changes of a range again.

    Args:
        catalog: catalog of the tables.
        config: config of the project.
        name: the mirror.
        start: first ordinal, or ISO time of ingestion (UTC unless it has an offset); None is the first change.
        end: last ordinal, or time; None is the last change that the mirror has.

    Raises:
        ConfigError: an unknown table, or a start or end that is neither number nor time.
        SourceError: the range is empty, or contains changes that require `resync`.
    """
    table_config = config.table(name)
    log = ChangeLog(catalog, change_log_name(name))
    mirror = Mirror(catalog, name, table_config, table_config.key or log.key)
    if log.table is None or mirror.table is None:
        raise SourceError(f"{name} has nothing to replay yet; ingest first")
    if table_config.identity == "full":
        raise SourceError(
            f"{name} has no key, so applying changes twice would count rows twice; use `nevermore resync`"
        )
    applied = mirror.applied_ordinal
    first = _ordinal(log, start, "from", 1)
    last = min(_ordinal(log, end, "to", applied), applied)
    if first > last:
        asked = " ".join(f"--{side} {text}" for side, text in (("from", start), ("to", end)) if text is not None)
        raise SourceError(f"no change of {name} is within {asked}; its mirror has changes 1 to {applied}")
    if log.scan().where(f"op = 't' and ordinal >= {first} and ordinal <= {applied}").count():
        raise SourceError(f"{name} was truncated after change {first}, which affects every row; use `nevermore resync`")
    rejects = _Quarantine(catalog, name)
    limit = table_config.memory_limit_bytes // BATCH_SHARE
    logged = read_changes(log.table, first - 1, applied, limit)
    # In one commit: after some of them the mirror would show old rows again.
    with closing(ChangeRun.of(_concerned(logged, last, mirror.key), limit)) as changes:
        num_changes = changes.num_rows
        if num_changes == 0:
            raise SourceError(
                f"{log.name} has lost changes {first} to {last}; use `nevermore resync {name} --snapshot-source`"
            )
        mirror.reapply(changes, log, reject=rejects.keep)
    return Replayed(name, first, last, num_changes, mirror.table.metadata.current_snapshot_id, rejects.count)


def _concerned(logged: Iterator[pa.Table], last: int, key: tuple[str, ...]) -> Iterator[pa.Table]:
    """The changes up to `last`, and all later ones of the same rows, even if these change their keys."""
    touched: list[pa.Table] = []
    for changes in logged:
        if changes.num_rows == 0:
            continue
        within = changes.filter(pc.less_equal(changes.column(ORDINAL), last))
        touched.append(keys_touched(within, key))
        later = changes.slice(within.num_rows)
        chosen = np.zeros(later.num_rows, np.bool_)
        while later.num_rows:
            found = touched_by(later, KeySet(pa.concat_tables(touched, promote_options="permissive").columns), key)
            if (found == chosen).all():
                break
            touched.append(keys_touched(later.filter(pa.array(found & ~chosen)), key))
            chosen = found
        touched = [distinct_rows(pa.concat_tables(touched, promote_options="permissive"))]
        yield pa.concat_tables([within, later.filter(pa.array(chosen))])


def _ordinal(log: ChangeLog, text: str | None, side: str, default: int) -> int:
    if text is None:
        return default
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--{side} {text!r} is neither an ordinal nor an ISO time") from error
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (
        log.last_before(moment) + 1
        if side == "from"
        else log.last_before(moment + timedelta(microseconds=moment.year < 9999))
    )


@dataclass(frozen=True, slots=True)
class Resynced:
    """A mirror that was rebuilt.

    Attributes:
        table: its name.
        num_changes: changes of the log, which are all in it now.
        num_rows: its number of rows.
        snapshot_id: its snapshot.
        quarantined: changes that could not be applied and were not in quarantine before.
        indexes: what was done for the indexes of the config; None without any.
    """

    table: str
    num_changes: int
    num_rows: int
    snapshot_id: int | None
    quarantined: int
    indexes: IndexUpdate | None = None


def resync(catalog: "Catalog", config: Config, name: str) -> Resynced:
    """Rebuild a mirror from its change log.

    Raises:
        ConfigError: no such table in the config.
        SourceError: it has no change log.
        PositionLostError: the log does not go back to its first change.
        AdoptedRowsError: the mirror was adopted with rows that the log does not have.
        CommitConflictError: others keep writing to the mirror.
    """
    table_config = config.table(name)
    log = ChangeLog(catalog, change_log_name(name))
    if log.table is None or not (log.last_ordinal or log.key):
        raise SourceError(f"{name} has no change log from which to rebuild it; ingest first")
    check_whole(find_table(catalog, name), log, log.ready_ordinal)
    log.check_complete(effective_from(log, table_config, log.ready_ordinal))
    rejects = _Quarantine(catalog, name)
    staging = f"{name}__resync"
    _drop(catalog, staging)  # left over from an interrupted run
    try:
        snapshot_id, num_rows = retry_conflicts(lambda: _attempt(catalog, name, staging, table_config, rejects.keep))
    finally:
        _drop(catalog, staging)
    indexes = keep_mirror_indexes(catalog.load_table(identifier(name)), table_config)
    return Resynced(name, log.ready_ordinal, num_rows, snapshot_id, rejects.count, indexes)


def resync_from(
    catalog: "Catalog", config: Config, name: str, paths: tuple[str, ...], kind: str | None = None
) -> Resynced:
    """Replace the rows of a mirror by those of a full load; keys that are not in the load are deleted.

    The log gets a truncate and the rows, so it still contains all rows of the mirror. The position in the feed stays: later
    changes are applied to the new rows. Only where messages of a topic are gone, it moves to the oldest ones that follow.

    Args:
        catalog: catalog of the tables.
        config: config of the project.
        name: the mirror.
        paths: files of the load, or patterns.
        kind: their format; None is that of the table's feed.

    Raises:
        ConfigError: no such table, or no such format.
        SourceError: it was never ingested, or the load cannot be read completely.
        CommitConflictError: an ingester wrote in the meantime; nothing was changed.
    """
    settings = config.table(name)
    log = ChangeLog(catalog, change_log_name(name))
    if log.position is None:
        raise SourceError(f"{name} has no change log yet: ingest first, because the load has no position in its feed")
    if log.is_reloading:
        raise SourceError(
            f"{name} is being loaded again from its source, and that load is not complete: it would go on after this one and "
            f"mix the rows of both. Complete it first: nevermore ingest {name}"
        )
    table = TableIngest(catalog, name, settings, TableReport(name))
    table.start()
    batches = snapshot_batches(table, config, paths, kind)
    first = next(batches, None)
    if first is None:
        raise SourceError(
            f"{', '.join(paths)}: no rows; an empty load would delete every row. To do that, truncate the source instead"
        )
    position = log.position
    with closing(Readers()) as readers:
        (feed,) = feeds_of(config, [name], readers)
        if feed.topics is not None:  # a topic may no longer have what follows the last one
            position = feed.topics.after_load(position)
    log.replace_all(chain([first], batches), position)
    return resync(catalog, config, name)


def resync_from_source(catalog: "Catalog", config: Config, name: str) -> Resynced:
    """Load a table of a database again, or read its topics again, then replace the rows of its mirror in one snapshot.

    The log gets a truncate and the rows, or all messages that the topics still have. A replication slot that is missing is
    created. A column of a database that has another type now, to which no promotion leads, becomes a new column of the same
    name, unless it is part of the key or of a partition, or `schema_changes` lets nothing change.

    If the rows cannot be taken, the log is what it was before, so that the mirror keeps its rows. After a failure that may
    pass, the next run goes on with the load.

    Raises:
        ConfigError: no such table, or its source is files.
        SourceError: it was never ingested, or the source cannot be read.
        CommitConflictError: an ingester wrote in the meantime.
    """
    settings = config.table(name)
    with closing(Readers()) as readers:
        (feed,) = feeds_of(config, [name], readers)
        table = TableIngest(catalog, name, settings, TableReport(name), log_only=True)
        if table.position is None:
            raise SourceError(f"{name} has no change log yet: nevermore ingest loads it")
        table.start()
        before = table.report.log_snapshot_id
        table.remove_all(feed.restart(table.position))
        replaces = feed.live is not None and settings.schema_changes == "evolve" and not settings.soft_delete
        done = run_once(config, tables=[name], log_only=True, replaces_types=replaces, readers=readers)
        (report,) = done.tables
    if report.error is not None:
        if not report.may_retry and before is not None:
            ChangeLog(catalog, change_log_name(name)).roll_back(before)
        raise SourceError(f"{name}: {report.error}")
    return resync(catalog, config, name)


MAX_TRIES = 5
"""How often keys are loaded if another ingester logs changes at the same time."""


def resync_keys(catalog: "Catalog", config: Config, name: str, keys: str) -> Resynced:
    """Load the rows of some keys again from a database, and apply them as changes: other rows stay as they are.

    The log gets them at its position, with what the transaction saw that read them: later changes are applied to them, and those
    that they contain are not applied again.

    Args:
        catalog: catalog of the tables.
        config: config of the project.
        name: the mirror.
        keys: values of the integer with which they begin, and ranges of them: see `key_ranges`.

    Raises:
        ConfigError: no such table or keys, or its source is no database.
        SourceError: it was never loaded, the database cannot be read, or a row cannot be decoded.
        CommitConflictError: ingesters wrote all the time; nothing was changed.
    """
    settings, ranges = config.table(name), key_ranges(keys)
    with closing(Readers()) as readers:
        (feed,) = feeds_of(config, [name], readers)
        if feed.live is None:
            raise ConfigError(f"--keys loads rows of a database, and {name} is read from {feed.source.title}")
        for remaining in reversed(range(MAX_TRIES)):
            with closing(TableIngest(catalog, name, settings, TableReport(name))) as table:
                if table.position is None:
                    raise SourceError(f"{name} has no change log yet: nevermore ingest loads it")
                if feed.live.positions.from_json(table.position).load is None:
                    with suppress(*[AnotherIngesterError][:remaining]):
                        return _load_keys(catalog, feed, feed.live, table, ranges)
                    continue
            # changes that only an earlier load contains must not be applied again: the log moves past them
            (report,) = run_once(config, tables=[name], records_positions=True, readers=readers).tables
            if report.error is not None:
                raise SourceError(f"{name}: {report.error}")
    raise SourceError(f"{name} is being loaded: complete that first: nevermore ingest {name}")


def _load_keys(catalog: "Catalog", feed: Feed, live: LiveSource, table: TableIngest, ranges: KeyRanges) -> Resynced:
    table.start()
    feed, position = feed.remembering(catalog, [table]), str(table.position)
    live.begin({table.name: position})
    known = live.positions.from_json(position)
    source = known.claims[table.name]
    if (moved := live.check_table(source, position)) is not None:
        table.move(moved)
        known = live.positions.from_json(moved)
    decided, load, limit = Decided(claims=known.claims), Load(), table.config.memory_limit_bytes // BATCH_SHARE
    settings, key = feed.config_of(table.name, table, decided), table.key or table.known_key

    def marked(rows: Iterable[pa.Table | pa.RecordBatch], *, is_mirror: bool) -> Iterator[pa.Table]:
        for each in rows:
            kind = pa.schema([*table.changes_of("").table.schema.field("key").type])
            yield pa.table(each).select(key).cast(kind).append_column("", pa.repeat(is_mirror, each.num_rows))

    def keys() -> Iterator[pa.Table]:
        """Keys of the rows loaded from the database, which are added to the table, then keys of the mirror's rows."""
        nonlocal decided, load
        for batch in live.load(settings, source, known.to_json(), feed.read_bytes, ranges):
            decoded = decode(batch.raw, feed.config([table], decided))
            for row in decoded.rejected.table.slice(0, 1).to_pylist():
                raise SourceError(f"{table.name}: a row cannot be decoded, so none was loaded: {row['reason']}")
            decided, changes = decoded.decided, decoded.tables[table.name]
            load = batch.position.load or load
            table.add(changes, Rejected.none(), position, BatchEnd.WITHIN_TRANSACTION)
            if changes.num_rows:
                yield from marked([pa.table(members_of(changes.table.column("key")))], is_mirror=False)
        scan = open_current(catalog.load_table(identifier(table.name))).scan()
        scan = scan.where(reduce(or_, (col(str(load.column)).between(*each) for each in ranges)))
        if table.config.soft_delete and DELETED in scan.arrow_schema.names:
            scan = scan.where(f"{DELETED} is null or not {DELETED}")
        yield from marked(scan.select(*key).to_batches(), is_mirror=True)

    num_removed = 0
    with closing(ChangeRun.of(keys(), limit)) as run:
        count = num_parts(run, limit)
        for part in spread(
            run.tables(), lambda rows: hash_codes([single_array(rows.column(name)) for name in key], count), count
        ):
            is_mirror = part.column(len(key))
            here, there = part.filter(is_mirror).select(key), part.filter(pc.invert(is_mirror)).select(key)
            gone = here.filter(pa.array(KeySet(there.columns).find(here.columns) < 0))
            removals = table.changes_of("d" * gone.num_rows)
            rows = removals.table.set_column(1, removals.table.schema.field("key"), gone.to_struct_array())
            table.add(replace(removals, table=rows), Rejected.none(), position, BatchEnd.WITHIN_TRANSACTION)
            num_removed += gone.num_rows
    table.add(table.changes_of(""), Rejected.none(), replace(known, load=load).to_json(), BatchEnd.TRANSACTION)
    table.flush()
    report, num_rows = table.report, table.report.events["r"]
    return Resynced(table.name, num_rows + num_removed, num_rows, report.snapshot_id, report.quarantined)


def _attempt(
    catalog: "Catalog", name: str, staging: str, config: TableConfig, keep: Callable[[Rejected], None]
) -> tuple[int, int]:
    """Replace the rows of a mirror by those of another that is built from its log, in one snapshot."""
    log = ChangeLog(catalog, change_log_name(name))
    key = config.key or log.key
    # Changes that the source sent twice are in the log twice, whatever the config said about inserts at that time.
    config = config.model_copy(update={"inserts": "checked"})
    fresh = Mirror(catalog, staging, config, key)
    source = fresh.rebuild(log, log.ready_ordinal, reject=keep)
    target = find_table(catalog, name) or Mirror(catalog, name, config, key).create(log)
    shape = soft_delete_property(config)
    if ADOPTED in target.metadata.properties:
        shape |= {ADOPTED_SNAPSHOT: "", ADOPTED_ORDINAL: "0"}
    files: list[ContentFile] = []
    num_rows = 0
    with RowDelta(target, fresh.options) as delta:
        if not shape.items() <= target.metadata.properties.items():
            delta.set_properties(shape)
        kept = delta.arranged_by
        if clashes := delta.hold(current_schema(source).fields, lambda path: path.partition(".")[0] not in kept):
            raise SourceError(
                f"{name} has columns that contradict the log; drop it first: {'; '.join(map(str, clashes))}"
            )
        delta.drop_columns(log.dropped_columns(target) - log.row_types.keys())
        for batch in open_current(source).scan().to_batches():
            files += write_rows(pa.Table.from_batches([batch]), delta.target, delta.default_spec)
            num_rows += batch.num_rows
        reached = {positions.LOG_SNAPSHOT: str(log.snapshot_id), positions.LOG_ORDINAL: str(log.ready_ordinal)}
        return delta.commit(files, reached, remove=everything, operation="overwrite").snapshot_id, num_rows


def _drop(catalog: "Catalog", name: str) -> None:
    if (table := find_table(catalog, name)) is None:
        return
    catalog.purge_table(identifier(name))
    storage_of(table).remove_empty_folders(table.location())


def snapshot_batches(
    table: TableIngest, project: Config, paths: tuple[str, ...], kind: str | None
) -> Iterator[ChangeBatch]:
    """The rows of a full load, as snapshot reads.

    Args:
        table: the table that is loaded in full.
        project: the config that has the table.
        paths: files or patterns of files.
        kind: their format; None is that of the table's feed.

    Raises:
        SourceError: no files, an event that cannot be decoded, or one that is not a row.
    """
    config = project.table(table.name)
    if kind is not None:
        source = FilesSource(path=paths, format=kind)
    elif isinstance(config.source, FilesSource):
        source = config.source
    else:
        raise ConfigError(f"{table.name} is not read from files: state the format of these files (--format)")
    source = with_located_options(source, project.folder)
    options = dict(source.options)
    if source.format is not None and lookup(source.format) is lookup(ROWS_FORMAT):
        options.setdefault("no_op", "r")
    own = config.model_copy(update={"order_by": "position", "source_table": config.source_table or table.source_table})
    source = source.model_copy(update={"path": paths, "options": options})
    feed = Feed(source, {table.name: own}, (table.name,), Listing(paths, remote_files(project)))
    feed.check()
    decided = Decided()
    types = table.known_types
    for files in feed.batches(None, feed.applied_lines([]), _refuse_gaps):
        decoding = feed.config([table], decided)
        decoded = decode(files.raw, replace(decoding, tables=(replace(decoding.tables[0], known_types=types),)))
        decided = decoded.decided
        if decoded.rejected.num_rows:
            first = decoded.rejected.table.slice(0, 1).to_pylist()[0]
            raise SourceError(
                f"{first['source_file']}:{first['source_offset']}: {first['reason']}; a full load with a gap would delete "
                "the rows that it lacks, so none of it was read"
            )
        batch = decoded.tables[table.name]
        types |= {c.name: c.type for c in batch.row_type if not pa.types.is_null(c.type)}
        if batch.num_rows:
            yield _reads(batch)


def _refuse_gaps(reason: str, count: int) -> None:
    if reason != RE_DELIVERED:
        raise SourceError(f"left out: {count:,} {reason}; a full load with a gap would delete the rows it lacks")


def _reads(batch: ChangeBatch) -> ChangeBatch:
    ops = batch.table.column("op")
    removing = pc.is_in(ops, value_set=pa.array(["d", "t"]))
    if pc.any(removing).as_py():
        row = batch.table.filter(removing).slice(0, 1).to_pylist()[0]
        raise SourceError(
            f"{row['source_file']}:{row['source_offset']}: a {'delete' if row['op'] == 'd' else 'truncate'} in a full load"
        )
    reads = pa.repeat(pa.scalar("r"), batch.num_rows)
    return replace(batch, table=with_columns(batch.table, {"op": reads}))
