"""Reports the state of tables: position, log and deletes of mirrors, sources of published tables.

Everything comes from table metadata. Only the log of a mirror that does not exist is read: its changes may need none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nevermore.pipelines.config.project import Config, change_log_name, quarantine_name
from nevermore.pipelines.config.sources import PostgresSource
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.errors import ConfigError, PipelineError, PositionLostError
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.loaded_table import open_current, source_position
from nevermore.pipelines.sources.file_position import MAX_FINGERPRINTS, FilePosition
from nevermore.pipelines.sources.mysql.position import MysqlPosition
from nevermore.pipelines.sources.postgres.position import PostgresPosition
from nevermore.pipelines.wording import counted

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

MAX_SHOWN_COMMITS = 3


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """One snapshot of a table."""

    snapshot_id: int
    committed_at: datetime
    operation: str
    added_rows: int
    added_deletes: int


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table of the config.

    Attributes:
        table: the mirror.
        position: position in the source up to which the log is complete.
        logged: changes in the log, ever.
        applied: the last of them in the mirror, or of a log with only deletes; None if the mirror does not record it.
        log_committed_at: when the log was last written.
        rows_written: rows in data files, including deleted ones.
        data_files: data files of the mirror.
        delete_files: delete files of the mirror.
        delete_rows: keys and positions in its delete files.
        snapshots: snapshots in the metadata of the mirror.
        quarantined: events in quarantine.
        commits: last commits of the mirror, newest first.
    """

    table: str
    position: str | None
    logged: int
    applied: int | None
    log_committed_at: datetime | None
    rows_written: int
    data_files: int
    delete_files: int
    delete_rows: int
    snapshots: int
    quarantined: int
    commits: tuple[CommitFacts, ...]

    @property
    def place(self) -> str | None:
        """Describe the position."""
        return None if self.position is None else describe_position(self.position)

    @property
    def waiting(self) -> int | None:
        """Number of changes in the log that are not in the mirror."""
        return None if self.applied is None else self.logged - self.applied

    @property
    def lag_seconds(self) -> float | None:
        """Age of the mirror's last commit relative to the log's; 0 when nothing waits, None if unknown."""
        if self.waiting == 0:
            return 0.0
        if self.log_committed_at is None or not self.commits:
            return None
        return max(0.0, (self.log_committed_at - self.commits[0].committed_at).total_seconds())

    @property
    def delete_debt(self) -> float:
        """Delete rows per row in data files, by the counts of the last snapshot."""
        return self.delete_rows / self.rows_written if self.rows_written else 0.0


@dataclass(frozen=True, slots=True)
class PublishedStatus:
    """A published table of the config.

    Attributes:
        table: its name.
        rows: rows in its data files.
        data_files: data files of its current snapshot.
        behind: mirrors that have been committed to since all rows of the table were made from them; None if the table's
            snapshots do not record this.
        commits: its last commits, newest first; empty if it was never published.
        error: why its entry in the config is unusable.
    """

    table: str
    rows: int
    data_files: int
    behind: tuple[str, ...] | None
    commits: tuple[CommitFacts, ...]
    error: str | None = None


def published_status(
    catalog: "Catalog | None", config: Config, names: Sequence[str] | None = None
) -> list[PublishedStatus]:
    """The status of the published tables of a config, in its order; `catalog` is None if it does not exist yet."""
    return [_published_status(catalog, config, name) for name in config.published if names is None or name in names]


def _published_status(catalog: "Catalog | None", config: Config, name: str) -> PublishedStatus:
    from nevermore.pipelines.publish.query import published_query
    from nevermore.pipelines.publish.state import provenance_of

    error = None
    try:
        sources = published_query(config, name).tables
    except ConfigError as wrong_sql:
        sources, error = (), str(wrong_sql)
    table = None if catalog is None else find_table(catalog, name)
    if catalog is None or table is None:
        return PublishedStatus(name, 0, 0, None, (), error)
    provenance = provenance_of(table)
    origins = [*provenance.made.values(), *([] if provenance.rest is None else [provenance.rest])]
    summary = _summary(table)
    return PublishedStatus(
        table=name,
        rows=int(summary.get("total-records", 0)),
        data_files=int(summary.get("total-data-files", 0)),
        behind=tuple(
            source
            for source in sources
            if (mirror := find_table(catalog, source)) is not None
            and (snapshot := positions.current_snapshot(mirror)) is not None
            and any(origin.snapshots.get(source) != snapshot.snapshot_id for origin in origins)
        )
        if origins and error is None
        else None,
        commits=_commits(table),
        error=error,
    )


def status(catalog: "Catalog | None", config: Config, tables: Sequence[str] | None = None) -> list[TableStatus]:
    """The status of the tables of a config, in its order; `catalog` is None if it does not exist yet.

    Raises:
        ConfigError: an unknown table.
    """
    for name in tables or ():
        config.table(name)
    return [_status(catalog, name, config.tables[name]) for name in config.tables if not tables or name in tables]


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The replication slot of a source.

    Attributes:
        slot: its name.
        held_bytes: size of the log that the server keeps for it; None if the server could not be asked.
        lag_bytes: size of the log after what is confirmed; likewise.
        status: whether that log is kept: `reserved`, `extended`, `unreserved` or `lost`.
        warning: what is wrong, or why the server could not be asked; None if nothing is.
    """

    slot: str
    held_bytes: int | None = None
    lag_bytes: int | None = None
    status: str | None = None
    warning: str | None = None


def slot_status(
    config: Config, tables: Sequence[str] | None = None, catalog: "Catalog | None" = None
) -> list[SlotStatus]:
    """The replication slots that tables of a config are read from, all by default, as their servers have them now.

    With the catalog, a slot is also compared with the positions of its tables.
    """
    entries = {**config.tables, **config.patterns}
    sources = {
        source.model_dump_json(): source
        for name, entry in entries.items()
        if (not tables or name in tables) and isinstance(source := entry.source, PostgresSource)
    }
    return [_slot_status(source, config, catalog) for source in sources.values()]


_OF_POSTGRES = '{"source":"postgres"'
"""How positions in the log of a PostgreSQL begin."""


def _slot_status(source: PostgresSource, config: Config, catalog: "Catalog | None") -> SlotStatus:
    from nevermore.pipelines.sources.postgres.server import slot_of

    try:
        slot = slot_of(source)
        # positions after the slot: an ingester moves its tables on, and then the slot
        found = [
            source_position(log)
            for name, entry in config.tables.items()
            if catalog is not None
            and entry.source == source
            and (log := find_table(catalog, change_log_name(name))) is not None
        ]
        read = (PostgresPosition.from_json(text).at for text in found if text and text.startswith(_OF_POSTGRES))
        complaint = slot.complaint(source, min(read, default=None))
    except PipelineError as error:
        return SlotStatus(source.slot, warning=str(error))
    return SlotStatus(source.slot, slot.held_bytes, slot.lag_bytes, slot.status, complaint)


def describe_position(text: str) -> str:
    """Describe a position; one of an unknown source is shown unchanged."""
    if text.startswith(_OF_POSTGRES):
        return PostgresPosition.from_json(text).words
    if text.startswith('{"source":"mysql"'):
        return MysqlPosition.from_json(text).words
    try:
        position = FilePosition.from_json(text)
    except PositionLostError:
        return text
    if not position.named:
        return "no file yet"
    last = position.named[-1]
    files = len(position.named) + len(position.fingerprints)
    words = f"{last.name}, {counted(last.lines, 'line')}" + ("" if last.finished else ", not to its end yet")
    if files > 1:
        at_least = "at least " if len(position.fingerprints) >= MAX_FINGERPRINTS else ""
        words += f"; {at_least}{counted(files, 'file')} in all"
    if position.settled_ns >= 0:
        words += f"; all that landed by {datetime.fromtimestamp(position.settled_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return words


def _status(catalog: "Catalog | None", name: str, config: TableConfig) -> TableStatus:
    log, mirror, held = (
        None if catalog is None else find_table(catalog, table)
        for table in (change_log_name(name), name, quarantine_name(name))
    )
    summary = _summary(mirror)
    applied = None if mirror is None else positions.newest_property(mirror, positions.LOG_ORDINAL)
    commits = _commits(mirror)
    logged = 0 if log is None else int(positions.newest_property(log, positions.LAST_ORDINAL) or 0)
    if mirror is None and log is not None and logged and not _needs_mirror(log, config):
        applied = str(logged)
    return TableStatus(
        table=name,
        position=None if log is None else source_position(log),
        logged=logged,
        applied=int(applied) if applied is not None else 0 if not commits else None,
        log_committed_at=next((c.committed_at for c in _commits(log)), None),
        rows_written=int(summary.get("total-records", 0)),
        data_files=int(summary.get("total-data-files", 0)),
        delete_files=int(summary.get("total-delete-files", 0)),
        delete_rows=sum(int(summary.get(f"total-{kind}-deletes", 0)) for kind in ("equality", "position")),
        snapshots=0 if mirror is None else len(mirror.metadata.snapshots),
        quarantined=int(_summary(held).get("total-records", 0)),
        commits=commits,
    )


def _needs_mirror(log: "CatalogTable", config: TableConfig) -> bool:
    """Whether a log has changes that create rows; without any, ingest creates no mirror."""
    from nevermore.pipelines.mirrors.mirror import removing_ops  # with kernels: only if needed
    from nevermore.scan_core import col

    creating = open_current(log).scan().select("op").where(~col("op").is_in(removing_ops(config)))
    return bool(creating.limit(1).to_table().num_rows)


def _summary(table: "CatalogTable | None") -> Mapping[str, str]:
    return positions.summary_properties(None if table is None else positions.current_snapshot(table))


def _commits(table: "CatalogTable | None") -> tuple[CommitFacts, ...]:
    newest = () if table is None else zip(positions.ancestors(table), range(MAX_SHOWN_COMMITS), strict=False)
    return tuple(
        CommitFacts(
            snapshot.snapshot_id,
            datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
            "" if snapshot.summary is None else snapshot.summary.operation.value,
            *(
                int(positions.summary_properties(snapshot).get(f"added-{what}", 0))
                for what in ("records", "equality-deletes")
            ),
        )
        for snapshot, _ in newest
    )
