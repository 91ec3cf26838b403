"""Events of a quarantine tried again, after a config, type or key was mended: what decodes now is logged and applied.

An event whose key has changed since is not applied, for it would bring an old row back; it stays where it is.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.catalog import find_table, open_current, refresh
from pipelines.change_batch import REJECTED_SCHEMA, ChangeBatch
from pipelines.change_log import ChangeLog
from pipelines.commit import RowDelta, everything, retry_conflicts
from pipelines.config import Config, change_log_name, quarantine_name
from pipelines.errors import CommitConflictError, SourceError
from pipelines.feeds import claims_in, feeds_of
from pipelines.formats.registry import decode
from pipelines.ingest_report import TableReport
from pipelines.key_set import KeySet
from pipelines.replay import keys_touched
from pipelines.row_shape import without_extensions
from pipelines.sources.raw_events import RawEvents
from pipelines.table_ingest import TableIngest
from pipelines.table_writer import write_rows
from scan_core import col

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.float64]

PLACE = ["source_file", "source_offset"]


@dataclass(frozen=True, slots=True)
class QuarantineReplayed:
    """What became of the events of a quarantine.

    Attributes:
        table: the mirror.
        applied: now in log and mirror.
        known: were in the log already, from an earlier replay; only taken out of quarantine.
        superseded: stay, because their key has changed since.
        rejected: stay, because they cannot be decoded or applied yet.
        snapshot_id: of the mirror afterwards.
    """

    table: str
    applied: int
    known: int
    superseded: int
    rejected: int
    snapshot_id: int | None


def replay_quarantine(catalog: Any, config: Config, name: str) -> QuarantineReplayed:
    """Try the events in the quarantine of a table again.

    Raises:
        ConfigError: an unknown table.
        SourceError: the table has no quarantine, or nothing was ingested yet.
    """
    config.table(name)
    held = find_table(catalog, quarantine_name(name))
    if held is None:
        raise SourceError(f"{name} has no quarantine: no event of it was ever rejected")
    events = open_current(held).scan().select(*REJECTED_SCHEMA.names).to_table()
    events = events.sort_by([(column, "ascending") for column in PLACE])
    log = ChangeLog(catalog, change_log_name(name))
    if log.position is None:
        raise SourceError(f"{name} has no change log yet; ingest first")
    logged = _logged(log, events)
    is_known = KeySet(logged.select(PLACE).columns).find(events.select(PLACE).columns) >= 0
    fresh = events.filter(pa.array(~is_known))
    batch, num_superseded = _decoded(config, catalog, name, log, fresh)
    report = TableReport(name)
    if batch.num_rows:
        log.append(batch, log.position, key_may_grow=config.tables[name].identity == "full")
    TableIngest(catalog, name, config.tables[name], report).start()
    unresolved = is_known & _is_own_rejection(events)
    done = pa.concat_tables(
        [events.filter(pa.array(is_known & ~unresolved)).select(PLACE), batch.table.select(PLACE)],
        promote_options="permissive",
    )
    retry_conflicts(lambda: _take_out(held, done))
    known = int((is_known & ~unresolved).sum())
    return QuarantineReplayed(
        name,
        applied=batch.num_rows,
        known=known,
        superseded=num_superseded,
        rejected=events.num_rows - known - batch.num_rows - num_superseded,
        snapshot_id=report.snapshot_id,
    )


def _logged(log: ChangeLog, events: pa.Table) -> pa.Table:
    """The places in the files of these events that the log has changes from."""
    files = pc.unique(events.column("source_file")).drop_null().to_pylist()
    return open_current(log.table).scan().select(*PLACE).where(col("source_file").is_in(files)).to_table()


def _is_own_rejection(events: pa.Table) -> Mask:
    """Which were decoded and logged, but the mirror could not take: their bytes are the change, not the event."""
    return np.asarray(pc.match_substring_regex(events.column("raw"), r'^\{"op":"[rcudt]","key":'), np.bool_)


def _decoded(config: Config, catalog: Any, name: str, log: ChangeLog, events: pa.Table) -> tuple[ChangeBatch, int]:
    """What decodes now and is still the newest of its key, and how many are not the newest."""
    (feed,) = feeds_of(config, [name])
    feed = feed.remembering(catalog)
    table = TableIngest(catalog, name, config.tables[name], TableReport(name))
    raw = RawEvents(
        source_file=events.column("source_file").combine_chunks().dictionary_encode(),
        source_offset=events.column("source_offset").combine_chunks(),
        documents=events.column("raw").combine_chunks(),
    )
    batch = decode(raw, feed.config([table], claims_in(log.position))).tables[name]
    if batch.num_rows == 0:
        return batch, 0
    is_old = _superseded(log, batch, by_position=config.tables[name].order_by == "position")
    return replace(batch, table=batch.table.filter(pa.array(~is_old))), int(is_old.sum())


def _superseded(log: ChangeLog, batch: ChangeBatch, *, by_position: bool) -> Mask:
    """Which changes have a later one of the same key, or a later truncate, in the log.

    Where payload columns order the events, any change of the key counts: which is later is not told by its place.
    """
    key = batch.key
    if log.last_ordinal == 0 or "key" not in (log.schema.names if log.schema else ()):
        return np.zeros(batch.num_rows, np.bool_)
    wanted = keys_touched(batch.table, key)
    keys = KeySet(wanted.columns)
    known = without_extensions(open_current(log.table).scan().select("op", "key", "after", *PLACE).to_table())
    places, own = _ranked(known, batch.table) if by_position else (np.ones(known.num_rows), np.zeros(batch.num_rows))
    latest = np.full(wanted.num_rows, -1.0)
    found = keys.find(keys_touched(known, key).columns)
    hit = found >= 0
    np.maximum.at(latest, found[hit], np.tile(places, 2)[hit])
    truncated = places[np.asarray(pc.equal(known.column("op"), "t"))].max(initial=-1.0)
    per_key = latest[keys.find(wanted.columns)].reshape(2, -1).max(axis=0)
    return np.asarray(np.maximum(per_key, truncated) > own)


def _ranked(known: pa.Table, changes: pa.Table) -> tuple[Places, Places]:
    """The place of each row in source order, as comparable numbers."""
    both = pa.concat_tables([known.select(PLACE), changes.select(PLACE)], promote_options="permissive")
    rank = np.empty(both.num_rows, np.float64)
    order = pc.sort_indices(both, [(column, "ascending") for column in PLACE])
    rank[np.asarray(order)] = np.arange(both.num_rows)
    return rank[: known.num_rows], rank[known.num_rows :]


def _take_out(held: Any, done: pa.Table) -> None:
    """Remove events from a quarantine, in one snapshot."""
    if done.num_rows == 0:
        return
    refresh(held)
    rows = without_extensions(open_current(held).scan().to_table())
    leaving = KeySet(done.select(PLACE).columns).find(rows.select(PLACE).columns) >= 0
    if not leaving.any():
        return
    delta = RowDelta(held)
    files = write_rows(rows.filter(pa.array(~leaving)), delta.target, delta.default_spec)
    try:
        delta.commit(files, {}, remove=everything, operation="overwrite")
    except CommitConflictError:
        delta.discard(files)
        raise
