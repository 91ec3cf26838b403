"""A mirror made anew from its change log: what the log says, whatever became of the mirror.

The rows are built in a table of their own and swapped in by one snapshot, so readers see the old rows or the new ones.
Applying a part of the log once more is `replay.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelines import positions
from pipelines.catalog import current_schema, find_table, identifier, open_current
from pipelines.change_batch import Rejected
from pipelines.change_log import ChangeLog
from pipelines.commit import RowDelta, everything, retry_conflicts
from pipelines.config import Config, TableConfig, change_log_name, quarantine_name
from pipelines.errors import CommitConflictError, PositionLostError, SourceError
from pipelines.file_metrics import WrittenFile
from pipelines.mirror import Mirror
from pipelines.quarantine import quarantine
from pipelines.schema_evolution import evolve
from pipelines.table_writer import write_rows

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
        CommitConflictError: others keep on writing to the mirror.
    """
    table_config = config.table(name)
    log = ChangeLog(catalog, change_log_name(name))
    if log.table is None or log.last_ordinal == 0:
        raise SourceError(f"{name} has no change log to be made from; ingest first")
    _check_complete(log)
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


def _attempt(
    catalog: Any, name: str, staging: str, config: TableConfig, keep: Callable[[Rejected], None]
) -> tuple[int | None, int]:
    log = ChangeLog(catalog, change_log_name(name))
    key = config.key or log.key
    if find_table(catalog, name) is None:
        mirror = Mirror(catalog, name, config, key)
        for _ in mirror.catch_up(log, reject=keep):
            pass
        found = mirror.table
        return (None, 0) if found is None else (found.metadata.current_snapshot_id, open_current(found).scan().count())
    fresh = Mirror(catalog, staging, config, key)
    for _ in fresh.catch_up(log, reject=keep):
        pass
    return _swapped(find_table(catalog, name), fresh.table, log)


def _swapped(target: Any, source: Any | None, log: ChangeLog) -> tuple[int, int]:
    """Put the rows of one table into the place of those of another, in one snapshot."""
    delta = RowDelta(target)
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


def _check_complete(log: ChangeLog) -> None:
    held = open_current(log.table).scan().count()
    if held != log.last_ordinal:
        raise PositionLostError(
            f"{log.name} holds {held:,} of its {log.last_ordinal:,} changes: the first are gone, so no mirror can be "
            "made from it; take a new snapshot of the source into a new table"
        )


def _drop(catalog: Any, name: str) -> None:
    if find_table(catalog, name) is not None:
        catalog.purge_table(identifier(name))
