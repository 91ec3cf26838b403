"""A mirror made anew: from its change log, whatever became of it, or from a full load that goes into the log first.

The rows are built in a table of their own and swapped in by one snapshot, so readers see the old rows or the new ones.
Applying a part of the log once more is `maintain/replay.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pipelines.changes.change_log import ORDINAL, ChangeLog, last_truncate
from pipelines.changes.quarantine import quarantine
from pipelines.config.project import Config, TableConfig, change_log_name, quarantine_name
from pipelines.decode.batches import Rejected
from pipelines.errors import AdoptedRowsError, CommitConflictError, PositionLostError, SourceError
from pipelines.iceberg import positions
from pipelines.iceberg.catalog import find_table, identifier
from pipelines.iceberg.commit import RowDelta, everything, retry_conflicts
from pipelines.iceberg.file_metrics import WrittenFile
from pipelines.iceberg.loaded_table import current_schema, open_current
from pipelines.iceberg.schema_evolution import evolve
from pipelines.iceberg.table_writer import write_rows
from pipelines.ingest.feeds import snapshot_batches
from pipelines.ingest.report import TableReport
from pipelines.ingest.table_ingest import TableIngest
from pipelines.mirrors.mirror import Mirror
from pipelines.mirrors.table_shape import ADOPTED, ADOPTED_ORDINAL, ADOPTED_SNAPSHOT, soft_delete_property

STAGING_SUFFIX = "__resync"


@dataclass(frozen=True, slots=True)
class Resynced:
    """A mirror that was made anew.

    Attributes:
        table: its name.
        num_changes: of the log, all of which are now in it.
        num_rows: it has.
        snapshot_id: None if the log leads to no table at all.
        quarantined: changes that could not be applied and were not in quarantine before.
    """

    table: str
    num_changes: int
    num_rows: int
    snapshot_id: int | None
    quarantined: int


def resync(catalog: Any, config: Config, name: str) -> Resynced:
    """Make a mirror anew from its change log.

    Raises:
        ConfigError: no such table in the config.
        SourceError: it has no change log.
        PositionLostError: the log does not go back to its first change.
        AdoptedRowsError: the mirror was adopted with rows that the log does not have.
        CommitConflictError: others keep on writing to the mirror.
    """
    table_config = config.table(name)
    log = ChangeLog(catalog, change_log_name(name))
    if log.table is None or log.last_ordinal == 0:
        raise SourceError(f"{name} has no change log to be made from; ingest first")
    _check_whole(find_table(catalog, name), log)
    _check_complete(log, _start(log, table_config))
    quarantined = 0

    def keep(rejected: Rejected) -> None:
        nonlocal quarantined
        quarantined += quarantine(catalog, quarantine_name(name), rejected)

    staging = f"{name}{STAGING_SUFFIX}"
    _drop(catalog, staging)  # left over from a run that died
    try:
        snapshot_id, num_rows = retry_conflicts(lambda: _attempt(catalog, name, staging, table_config, keep))
    finally:
        _drop(catalog, staging)
    return Resynced(name, log.last_ordinal, num_rows, snapshot_id, quarantined)


def resync_from(catalog: Any, config: Config, name: str, paths: tuple[str, ...], kind: str | None = None) -> Resynced:
    """Put the rows of a full load in the place of those of a mirror; keys that it lacks are gone.

    The log gets a truncate and the rows, so it still tells how the mirror came about. Where the source stands in its feed
    stays: what the feed brings from then on is applied upon the new rows.

    Args:
        catalog: with the tables.
        config: of the project.
        name: the mirror.
        paths: files of the load, or patterns.
        kind: their format; None is that of the table's feed.

    Raises:
        ConfigError: no such table, or no such format.
        SourceError: it was never ingested, or the load cannot be read as a whole.
        CommitConflictError: an ingester wrote meanwhile; nothing was changed.
    """
    settings = config.table(name)
    log = ChangeLog(catalog, change_log_name(name))
    if log.position is None:
        raise SourceError(f"{name} has no change log yet: ingest first, the load tells no position in its feed")
    table = TableIngest(catalog, name, settings, TableReport(name))
    table.start()
    batches = snapshot_batches(table, settings, paths, kind)
    first = next(batches, None)
    if first is None:
        raise SourceError(
            f"{', '.join(paths)}: no rows; an empty load would delete every row, truncate the source instead"
        )
    log.replace_all(chain([first], batches))
    return resync(catalog, config, name)


def _attempt(
    catalog: Any, name: str, staging: str, config: TableConfig, keep: Callable[[Rejected], None]
) -> tuple[int | None, int]:
    log = ChangeLog(catalog, change_log_name(name))
    key = config.key or log.key
    # What the source sent twice is in the log twice, whatever config said of inserts when it came.
    config = config.model_copy(update={"inserts": "checked"})
    if find_table(catalog, name) is None:
        mirror = Mirror(catalog, name, config, key)
        for _ in mirror.catch_up(log, reject=keep):
            pass
        found = mirror.table
        return (None, 0) if found is None else (found.metadata.current_snapshot_id, open_current(found).scan().count())
    fresh = Mirror(catalog, staging, config, key)
    for _ in fresh.catch_up(log, reject=keep, start=_start(log, config)):
        pass
    target = find_table(catalog, name)
    shape = soft_delete_property(config)
    if target is not None and ADOPTED in target.metadata.properties:
        shape |= {ADOPTED_SNAPSHOT: "", ADOPTED_ORDINAL: "0"}
    return _swapped(target, fresh.table, log, shape)


def _swapped(target: Any, source: Any | None, log: ChangeLog, shape: Mapping[str, str]) -> tuple[int, int]:
    """Put the rows of one table into the place of those of another, in one snapshot."""
    delta = RowDelta(target)
    if any(target.metadata.properties.get(name) != value for name, value in shape.items()):
        delta.set_properties(shape)
    files: list[WrittenFile] = []
    num_rows = 0
    if source is not None:
        evolution = evolve(delta.schema, current_schema(source).fields, target.metadata.last_column_id)
        if evolution.clashes:
            clashes = "; ".join(str(c) for c in evolution.clashes)
            raise SourceError(f"{'.'.join(target.name())} has columns the log contradicts, drop it first: {clashes}")
        if evolution.changed:
            delta.evolve(evolution.schema)
        import pyarrow as pa

        for batch in open_current(source).scan().to_batches():
            files += write_rows(pa.Table.from_batches([batch]), delta.target, delta.default_spec)
            num_rows += batch.num_rows
    properties = {positions.LOG_SNAPSHOT: str(log.snapshot_id), positions.LOG_ORDINAL: str(log.last_ordinal)}
    try:
        committed = delta.commit(files, properties, remove=everything, operation="overwrite")
    except CommitConflictError:
        delta.discard(files)
        raise
    return committed.snapshot_id, num_rows


def _start(log: ChangeLog, config: TableConfig) -> int:
    """The ordinal up to which the changes lead to nothing: before the last truncate, unless it keeps flagged rows."""
    return 0 if config.soft_delete else max(0, last_truncate(log.table) - 1)


def _check_whole(mirror: Any | None, log: ChangeLog) -> None:
    """Refuse to drop adopted rows: none of them counts any more only where the source was truncated, or loaded, since.

    Raises:
        AdoptedRowsError: they do count.
    """
    if mirror is None:
        return
    properties = mirror.metadata.properties
    if ADOPTED not in properties or properties.get(ADOPTED_SNAPSHOT) == "":
        return
    if last_truncate(log.table) <= int(properties.get(ADOPTED_ORDINAL, 0)):
        name = ".".join(mirror.name())
        raise AdoptedRowsError(
            f"{name} was adopted with rows that {log.name} does not have, so made from it alone it would lose them; take "
            f"a full load of the source: nevermore resync {name} --snapshot-source PATH"
        )


def _check_complete(log: ChangeLog, start: int) -> None:
    held = open_current(log.table).scan().where(f"{ORDINAL} > {start}").count()
    if held != log.last_ordinal - start:
        raise PositionLostError(
            f"{log.name} holds {held:,} of its {log.last_ordinal - start:,} changes: the first are gone, so no mirror can "
            "be made from it; take a new snapshot of the source: nevermore resync TABLE --snapshot-source PATH"
        )


def _drop(catalog: Any, name: str) -> None:
    if find_table(catalog, name) is not None:
        catalog.purge_table(identifier(name))
