"""Rolls a mirror back to one of its snapshots; the next ingest applies the later changes of its log again.

The change log and the position in the source stay: they are ahead of the mirror then, as after an ingest that was interrupted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.errors import PositionLostError, SourceError
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.commit import make_current, retry_conflicts
from nevermore.pipelines.iceberg.positions import LOG_ORDINAL
from nevermore.pipelines.wording import counted

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog, Snapshot


@dataclass(frozen=True, slots=True)
class Rollback:
    """What was rolled back, or would be.

    Attributes:
        table: the mirror.
        snapshot_id: the snapshot that is the current one now.
        committed_at: when it was committed.
        undone: snapshots that are no longer ancestors of the current one, newest first.
        lost: those of them that were not made from the change log, such as commits of other writers; nothing repeats them.
        repeated: changes of the log that the next ingest applies again.
        is_dry: whether nothing was changed.
    """

    table: str
    snapshot_id: int
    committed_at: datetime
    undone: tuple[int, ...]
    lost: tuple[int, ...]
    repeated: int
    is_dry: bool

    @property
    def lines(self) -> Iterator[str]:
        """The report as text."""
        verb = "would be rolled back" if self.is_dry else "rolled back"
        yield (
            f"{self.table}: {verb} by {counted(len(self.undone), 'snapshot')} to {self.snapshot_id} of "
            f"{self.committed_at:%Y-%m-%d %H:%M:%S} UTC"
        )
        yield f"  the next ingest applies {counted(self.repeated, 'change')} of the log again"
        if self.lost:
            ids = ", ".join(map(str, self.lost))
            yield f"  not made from the log, so not repeated: {counted(len(self.lost), 'snapshot')} ({ids})"


def roll_back(
    catalog: "Catalog",
    config: Config,
    name: str,
    *,
    snapshot_id: int | None = None,
    before: datetime | None = None,
    is_dry: bool = False,
) -> Rollback:
    """Make an ancestor of the current snapshot of a mirror the current one again.

    Args:
        catalog: the catalog of the config.
        config: config of the project.
        name: a mirror.
        snapshot_id: the snapshot.
        before: the newest ancestor that was committed before this time, if `snapshot_id` is None.
        is_dry: change nothing.

    Raises:
        ConfigError: an unknown mirror.
        SourceError: the mirror has no such snapshot.
        PositionLostError: an ingest could not apply the later changes again; nothing was changed.
        CommitConflictError: other writers kept changing the table; nothing was changed.
    """
    config.table(name)
    return retry_conflicts(partial(_attempt, catalog, name, snapshot_id, before, is_dry=is_dry))


def _attempt(
    catalog: "Catalog", name: str, snapshot_id: int | None, before: datetime | None, *, is_dry: bool
) -> Rollback:
    table = find_table(catalog, name)
    if table is None:
        raise SourceError(f"{name} does not exist yet: ingest first")
    line = list(positions.ancestors(table))
    until = None if before is None else before.timestamp() * 1000
    chosen = [s for s in line if (s.snapshot_id == snapshot_id if until is None else s.timestamp_ms < until)]
    if not chosen:
        wanted = f"snapshot {snapshot_id}" if before is None else f"snapshot before {before:%Y-%m-%dT%H:%M:%S%z}"
        raise SourceError(
            f"{name} has no {wanted} among the ancestors of its current one, of which it has {len(line):,}; "
            f"nevermore snapshots {name} lists them"
        )
    target = chosen[0]
    undone = list(takewhile(lambda s: s.snapshot_id != target.snapshot_id, line))
    made = (positions.summary_properties(s).get(LOG_ORDINAL) for s in line[len(undone) :])
    reached = next(filter(None, made), None)
    if reached is None:
        raise PositionLostError(
            f"{name}: neither snapshot {target.snapshot_id} nor an ancestor records which changes of the log it contains, so an "
            f"ingest could not apply the later ones again; choose a later snapshot, or rebuild the rows from the log: nevermore resync {name}"
        )
    if (rebuilt := next((s for s in undone if _may_be_rebuilt(s)), None)) is not None:
        raise PositionLostError(
            f"{name}: snapshot {rebuilt.snapshot_id} replaced rows as a whole, as a resync does, which an ingest would not do again; "
            f"choose that snapshot or a later one, or rebuild the rows: nevermore resync {name}"
        )
    repeated = _repeatable(catalog, name, int(reached))
    # a rewrite of files changes no rows, and the log has those of its commits
    lost = [s.snapshot_id for s in undone if not _is_rewrite(s) and LOG_ORDINAL not in positions.summary_properties(s)]
    if undone and not is_dry:
        make_current(table, target.snapshot_id)
    return Rollback(
        name,
        target.snapshot_id,
        datetime.fromtimestamp(target.timestamp_ms / 1000, UTC),
        tuple(s.snapshot_id for s in undone),
        tuple(lost),
        repeated,
        is_dry=is_dry,
    )


def _may_be_rebuilt(snapshot: "Snapshot") -> bool:
    """Whether a snapshot may be that of a resync. Ingest itself only removes whole files when the source was truncated."""
    summary = positions.summary_properties(snapshot)
    return not _is_rewrite(snapshot) and LOG_ORDINAL in summary and int(summary.get("deleted-data-files", 0)) > 0


def _is_rewrite(snapshot: "Snapshot") -> bool:
    return snapshot.summary is not None and snapshot.summary.operation.value == "replace"


def _repeatable(catalog: "Catalog", name: str, reached: int) -> int:
    """Number of changes of the log after an ordinal.

    Raises:
        PositionLostError: the log does not have all of them.
    """
    log = ChangeLog(catalog, change_log_name(name))
    if log.table is None:
        raise PositionLostError(
            f"{name} has no change log, from which an ingest would apply the later changes again: {log.name} is not in the "
            "catalog. If its files are still there, `nevermore recover` finds them"
        )
    try:
        log.check_reached(name, reached)
        log.check_complete(reached)
    except PositionLostError as error:
        raise PositionLostError(
            f"{name}: an ingest could not apply all changes after ordinal {reached:,} again; choose a later snapshot: {error}"
        ) from error
    return log.last_ordinal - reached
