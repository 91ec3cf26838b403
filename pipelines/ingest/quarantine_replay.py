"""Decodes the events of a quarantine again, after a config, type or key was corrected.

Events that can now be decoded are logged and applied.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_log import ChangeLog, order_text
from nevermore.pipelines.changes.change_run import BATCH_SHARE, ChangeRun
from nevermore.pipelines.changes.keys import KeySet, keys_touched
from nevermore.pipelines.changes.late_changes import with_later_changes
from nevermore.pipelines.changes.quarantine import QUARANTINED_AT
from nevermore.pipelines.config.project import Config, change_log_name, quarantine_name
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.batches import REJECTED_SCHEMA, TIMESTAMP, ChangeBatch, RawEvents
from nevermore.pipelines.decode.column_types import widened
from nevermore.pipelines.decode.events import rows_of, schema_of
from nevermore.pipelines.decode.feed import FeedConfig
from nevermore.pipelines.decode.schema_registry import unframed
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.registry import decode, lookup
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.commit import RowDelta, everything, retry_conflicts
from nevermore.pipelines.iceberg.loaded_table import open_current, refresh
from nevermore.pipelines.iceberg.row_shape import times_as_text, with_columns, without_extensions
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feeds import decided_in, feeds_of
from nevermore.pipelines.ingest.report import TableReport
from nevermore.pipelines.ingest.table_ingest import TableIngest
from nevermore.pipelines.sources.csv_file import LOAD_WITHOUT, Dialect, read_records
from nevermore.pipelines.sources.file_documents import split_keys
from nevermore.pipelines.sources.file_options import FileOptions, Layout
from nevermore.scan_core import Mask, Rows, col

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

_Schema = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Run:
    """Events of one shape, from event `first` of the quarantine on; each has its number in the run as its place."""

    first: int
    raw: RawEvents


def in_runs(events: pa.Table, options: FileOptions, *, is_text: bool | None) -> Iterator[Run]:
    """Group consecutive events of one shape.

    Args:
        events: events of a quarantine, in order.
        options: options of the source, which include the columns of CSV without a header.
        is_text: whether documents are text, which may have the frame of a schema registry; None if that is not known.
    """
    documents = events.column("raw").to_pylist()
    shapes = [_shape(document, options) for document in documents]
    first = 0
    for (schema, columns), group in groupby(shapes, lambda shape: (shape[0], shape[1] and shape[1].column_names)):
        records = [record for _, record in group]
        end = first + len(records)
        if columns is not None:
            yield Run(first, _raw(pa.concat_tables(filter(None, records))))
        elif schema is not None:
            yield Run(first, _raw(rows_of(documents[first:end], schema)))
        else:
            yield Run(first, _messages(pa.array(documents[first:end], pa.binary()), options, is_text=is_text))
        first = end


def _messages(documents: pa.BinaryArray, options: FileOptions, *, is_text: bool | None) -> RawEvents:
    """Documents without the frame of a registry; lines that lacked their separator are split from their keys."""
    found = unframed(documents, is_text=is_text)
    documents = found.values
    raw = replace(_raw(documents), schema_ids=(found.ids, pa.nulls(len(documents), pa.int64())))
    if options.layout != Layout.KEYED_LINES.value:
        return raw
    values, keys, none = split_keys(pc.fill_null(documents, b""), options.separator)
    is_document = pa.array(none)
    nothing = pa.scalar(None, pa.binary())
    return replace(
        raw, documents=pc.if_else(is_document, documents, values), keys=pc.if_else(is_document, nothing, keys)
    )


def _shape(document: bytes | None, options: FileOptions) -> tuple[_Schema | None, pa.Table | None]:
    """The schema of a row; or the row of a CSV record, where the config has its columns and it has as many."""
    schema = schema_of(document)
    if schema is not None or not document or not options.columns or document.lstrip()[:1] in {b"{", b"["}:
        return schema, None
    names = [options.columns, *([options.columns[1:]] if options.columns[0] in LOAD_WITHOUT else [])]
    for columns in names:
        dialect = Dialect(tuple(columns), options.delimiter or ",", 0, options.null_value)
        found = read_records(pa.py_buffer(document), dialect, 1, 2, is_all=True)
        if (found.count, found.rows.num_rows) == (1, 1):
            return None, found.rows
    return None, None


def _raw(events: pa.Table | pa.BinaryArray) -> RawEvents:
    count = len(events)
    is_rows = isinstance(events, pa.Table)
    return RawEvents(
        # Two events may come from one place if a file was replaced, so here each has its number as its place.
        source_file=pa.repeat("", count).dictionary_encode(),
        source_offset=pa.array(np.arange(count)),
        documents=None if is_rows else events,
        rows=events if is_rows else None,
    )


Places = npt.NDArray[np.float64]

PLACE = ["source_file", "source_offset"]
_CONTENT = ("op", "key", "after")
_REJECTED, _SUPERSEDED, _APPLIED, _KNOWN, _NUM_OUTCOMES = range(5)


@dataclass(frozen=True, slots=True)
class QuarantineReplayed:
    """Result of replaying a quarantine.

    Attributes:
        table: the mirror.
        applied: events now in log and mirror.
        known: events already in the log from an earlier replay, only removed from quarantine.
        superseded: events that stay because their key has changed since.
        rejected: events that stay because they still cannot be decoded or applied.
        snapshot_id: snapshot of the mirror afterwards.
    """

    table: str
    applied: int
    known: int
    superseded: int
    rejected: int
    snapshot_id: int | None


def replay_quarantine(catalog: "Catalog", config: Config, name: str) -> QuarantineReplayed:
    """Try the events in the quarantine of a table again.

    Raises:
        ConfigError: an unknown table.
        SourceError: the table has no quarantine, or nothing was ingested yet.
    """
    config.table(name)
    held = find_table(catalog, quarantine_name(name))
    if held is None:
        raise SourceError(f"{name} has no quarantine: no event of it was ever rejected")
    events = open_current(held).scan().select(*REJECTED_SCHEMA.names, QUARANTINED_AT).to_table()
    events = events.sort_by([(column, "ascending") for column in PLACE])
    log = ChangeLog(catalog, change_log_name(name))
    if log.position is None:
        raise SourceError(f"{name} has no change log yet; ingest first")
    settings, report = config.tables[name], TableReport(name)
    tried = events.filter(pa.array(~_is_own_rejection(log, events)))
    outcome = np.full(tried.num_rows, _REJECTED)
    (feed,) = feeds_of(config, [name])
    if feed.live is not None:
        raise SourceError(
            f"{name} is read from a database, which has the rows of these events: load them again with the corrected config, by "
            f"nevermore resync {name} --keys RANGES, or all by nevermore resync {name} --from-source"
        )
    is_text = None if feed.source.format is None else lookup(feed.source.format).is_text
    for run in in_runs(tried, feed.file_options, is_text=is_text):
        end = run.first + run.raw.num_events
        part = tried.slice(run.first, end - run.first)
        table = TableIngest(catalog, name, settings, report)
        feed_config = feed.remembering(catalog).config([table], decided_in(log.position))
        outcome[run.first : end] = _replayed(
            log, settings, part, *_decoded(run.raw, feed_config, part, name), report=report
        )
    TableIngest(catalog, name, settings, report).start()
    done = tried.filter(pa.array((outcome == _APPLIED) | (outcome == _KNOWN)))
    retry_conflicts(lambda: _take_out(held, done))
    counts = np.bincount(outcome, minlength=_NUM_OUTCOMES)
    return QuarantineReplayed(
        name,
        applied=int(counts[_APPLIED]),
        known=int(counts[_KNOWN]),
        superseded=int(counts[_SUPERSEDED]),
        rejected=int(counts[_REJECTED]) + events.num_rows - tried.num_rows,
        snapshot_id=report.snapshot_id,
    )


def _replayed(
    log: ChangeLog, settings: TableConfig, tried: pa.Table, batch: ChangeBatch, event_of: Rows, *, report: TableReport
) -> Rows:
    """Log the changes `batch` of some events where possible; return the outcome of each event."""
    known = _is_logged(log, batch)
    ordered = order_text(settings) is not None
    old = (
        np.zeros(batch.num_rows, np.bool_)
        if ordered
        else ~known & _superseded(log, batch, tried.column(QUARANTINED_AT).take(pa.array(event_of)))
    )
    chosen = replace(batch, table=batch.table.filter(pa.array(~known & ~old)))
    if chosen.num_rows and log.position is not None:
        limit = settings.memory_limit_bytes // BATCH_SHARE
        tables = (
            with_later_changes(log, chosen, chosen.key, limit, report.add_superseded) if ordered else chosen.tables()
        )
        with closing(ChangeRun.of(tables, limit)) as changes:
            log.append(changes, log.position, key_may_grow=settings.identity == "full", order_by=order_text(settings))
    return _outcome(event_of, known, old, tried.num_rows)


def _outcome(event_of: Rows, known: Mask, old: Mask, num_events: int) -> Rows:
    """The outcome of each event: the worst outcome among its changes."""
    outcome = np.full(num_events, _KNOWN, np.int64)
    outcome[np.setdiff1d(np.arange(num_events), event_of)] = _REJECTED
    np.minimum.at(outcome, event_of, np.where(old, _SUPERSEDED, np.where(known, _KNOWN, _APPLIED)))
    return outcome


def _is_own_rejection(log: ChangeLog, events: pa.Table) -> Mask:
    """Events that were decoded and logged but rejected by the mirror: their bytes are the change, not the event."""
    looks_so = np.asarray(pc.match_substring_regex(events.column("raw"), r'^\{"op":"[rcudt]","key":'), np.bool_)
    logged = KeySet(_logged(log, events, PLACE).columns).find(events.select(PLACE).columns) >= 0
    return looks_so & logged


def _is_logged(log: ChangeLog, batch: ChangeBatch) -> Mask:
    """Changes that the log has from the same place: an earlier replay stopped before it removed them from quarantine.

    The place alone is not enough: a file may have been replaced by another of the same name.
    """
    columns = [*PLACE, *_CONTENT]
    if batch.num_rows == 0 or not set(columns) <= set(log.schema.names if log.schema else ()):
        return np.zeros(batch.num_rows, np.bool_)
    logged = without_extensions(_logged(log, batch.table, columns))
    kind = logged.schema.field("after").type
    row_type = widened(batch.row_type, pa.struct(list(kind)))
    if row_type is None:
        return np.zeros(batch.num_rows, np.bool_)
    known = KeySet([*logged.select(PLACE).columns, _written(logged, row_type)])
    return known.find([*batch.table.select(PLACE).columns, _written(batch.table, row_type)]) >= 0


def _written(changes: pa.Table, row_type: pa.StructType) -> pa.Array:
    """The content of each change, as JSON with all columns of the rows."""
    names = [f.name for f in row_type]
    documents = []
    for row in times_as_text(changes.select(list(_CONTENT))).to_pylist():
        after = row["after"]
        after = None if after is None else {name: after.get(name) for name in names}
        documents.append(orjson.dumps([row["op"], row["key"], after], default=str, option=orjson.OPT_SORT_KEYS))
    return pa.array(documents, pa.binary())


def _logged(log: ChangeLog, events: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The log's changes from the files of these events."""
    files = pc.unique(events.column("source_file")).drop_null().to_pylist()
    return log.scan().select(*columns).where(col("source_file").is_in(files)).to_table()


def _decoded(raw: RawEvents, feed: FeedConfig, events: pa.Table, name: str) -> tuple[ChangeBatch, Rows]:
    """Changes that can now be decoded, and the event of each."""
    batch = decode(raw, feed).tables[name]
    number = batch.table.column("source_offset")
    schema = batch.table.schema
    places = {name: events.column(name).take(number).cast(schema.field(name).type) for name in PLACE}
    return replace(batch, table=with_columns(batch.table, places)), np.asarray(number).astype(np.int64)


def _superseded(log: ChangeLog, batch: ChangeBatch, since: pa.ChunkedArray) -> Mask:
    """Changes that have a later one of the same key, or a later truncate, in the log.

    Later changes are those after them in the source, and those read after they were quarantined (`since`): files that
    come late or replace others of the same name are applied when they come.
    """
    key = batch.key
    if batch.num_rows == 0 or log.last_ordinal == 0 or "key" not in (log.schema.names if log.schema else ()):
        return np.zeros(batch.num_rows, np.bool_)
    known = without_extensions(log.scan().select("op", "key", "after", "ingested_at", *PLACE).to_table())
    places, own = _ranked(known, batch.table)
    read, quarantined = _microseconds(known.column("ingested_at")), _microseconds(since)
    wanted = keys_touched(batch.table, key)
    keys = KeySet(wanted.columns)
    found, asked = keys.find(keys_touched(known, key).columns), keys.find(wanted.columns)
    truncates = np.asarray(pc.equal(known.column("op"), "t"))

    def latest(of_known: Places) -> Places:
        per_key = np.full(wanted.num_rows, -1.0)
        np.maximum.at(per_key, found[found >= 0], np.tile(of_known, 2)[found >= 0])
        newest: Places = np.maximum(per_key[asked].reshape(2, -1).max(axis=0), of_known[truncates].max(initial=-1.0))
        return newest

    return np.asarray((latest(places) > own) | (latest(read) > quarantined))


def _microseconds(times: pa.ChunkedArray) -> Places:
    found: Places = np.asarray(pc.fill_null(times.cast(TIMESTAMP).cast(pa.int64()), 0)).astype(np.float64)
    return found


def _ranked(known: pa.Table, changes: pa.Table) -> tuple[Places, Places]:
    """The place of each row in source order, as comparable numbers."""
    both = pa.concat_tables([known.select(PLACE), changes.select(PLACE)], promote_options="permissive")
    rank = np.empty(both.num_rows, np.float64)
    # The truncate of a full load has no place: only what was rejected before it was read is older.
    order = pc.sort_indices(both, [(column, "ascending", "at_start") for column in PLACE])
    rank[np.asarray(order)] = np.arange(both.num_rows)
    return rank[: known.num_rows], rank[known.num_rows :]


def _take_out(held: "CatalogTable", done: pa.Table) -> None:
    """Remove events from a quarantine, in one snapshot."""
    if done.num_rows == 0:
        return
    refresh(held)
    rows = without_extensions(open_current(held).scan().to_table())
    identity = [*PLACE, "raw"]
    leaving = KeySet(done.select(identity).columns).find(rows.select(identity).columns) >= 0
    if not leaving.any():
        return
    with RowDelta(held) as delta:
        files = write_rows(rows.filter(pa.array(~leaving)), delta.target, delta.default_spec)
        delta.commit(files, {}, remove=everything, operation="overwrite")
