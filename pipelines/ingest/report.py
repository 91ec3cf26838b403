"""The report of an ingest run: its work per table, and its exit code.

Also warns about configured columns that exist neither in the events nor in the mirror.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.wording import applied_text

if TYPE_CHECKING:  # a report of nothing new loads no writer
    from nevermore.pipelines.changes.change_log import Appended
    from nevermore.pipelines.iceberg.conversion import ConversionReport
    from nevermore.pipelines.iceberg.index_upkeep import IndexUpdate
    from nevermore.pipelines.mirrors.mirror import Applied

_OPTIONS = ("types", "encodings", "cast", "include", "exclude", "rename")


@dataclass(frozen=True, slots=True)
class UnmetColumn:
    """A column of the config that does not exist.

    Attributes:
        option: of the table's config that names it.
        column: its name there.
        nearest: the most similar column of the events or the mirror, None if none is similar.
    """

    option: str
    column: str
    nearest: str | None

    def __str__(self) -> str:
        hint = "" if self.nearest is None else f"; did you mean {self.nearest}?"
        return (
            f"{self.option} names {self.column}, which exists neither in the events of this run nor in the table{hint}"
        )


def unmet_columns(config: TableConfig, sent: Collection[str], columns: Collection[str]) -> Iterator[UnmetColumn]:
    """Columns of the config that do not exist.

    Args:
        config: of the table.
        sent: columns of the events, by their names in the feed.
        columns: of the mirror.
    """
    # a column that an earlier run renamed is in the mirror by its new name
    before = {source for source, target in config.rename.items() if target in columns and target not in sent}
    known = {*sent, *(config.rename.get(column, column) for column in sent), *columns, *before}
    for option in _OPTIONS:
        for column in getattr(config, option):
            if column not in known and not _is_inside(column, known):
                near = get_close_matches(column, sorted(known), n=1)
                yield UnmetColumn(option, column, near[0] if near else None)


def _is_inside(path: str, columns: Collection[str]) -> bool:
    """Whether a path such as `address.zip` begins with a column."""
    steps = path.split(".")
    return any(".".join(steps[:count]) in columns for count in range(1, len(steps)))


DONE, FAILED, WRONG_CONFIG, QUARANTINED = 0, 1, 2, 3


@dataclass(slots=True)
class TableReport:
    """One table's part of a run. Mutable while it runs.

    Attributes:
        table: name of the mirror.
        events: changes logged, by op.
        quarantined: events newly rejected.
        rejected: events rejected, including those already in quarantine.
        superseded: changes skipped because they are older than a truncate already applied.
        missed_removals: deletes, and updates that move a row, whose old row was not in the mirror: all of them with
            `identity:
            full`, otherwise as far as known without reading the table for it.
        log_commits: snapshots of the change log.
        mirror_commits: snapshots of the mirror.
        log_snapshot_id: snapshot of the change log after the run.
        snapshot_id: snapshot of the mirror after the run.
        data_files: data files written to the mirror.
        data_rows: rows in them.
        delete_files: equality-delete files written.
        delete_rows: rows in them.
        written_bytes: size of data and delete files.
        position: position in the source, as text.
        unmet_columns: columns of the config that exist neither in the events of the run nor in the mirror.
        indexes: what was done for the indexes of the config; None without any, or without a commit.
        conversion: how equality deletes were converted; None if they were not.
        error: why the table failed, None if it did not.
        exit_code: the exit code of the error.
        may_retry: whether the error may pass by itself, so that the same run may succeed later.
        is_yielded: whether it stopped because another ingester takes what is new.
        engine: what read and decoded the events, `local` or `spark`.
        why_local: why this process did it although the config leaves the choice (`engine: auto`), or applied to the mirror what
            tasks of Spark had decoded.
    """

    table: str
    events: Counter[str] = field(default_factory=Counter)
    quarantined: int = 0
    rejected: int = 0
    superseded: int = 0
    missed_removals: int = 0
    log_commits: int = 0
    mirror_commits: int = 0
    log_snapshot_id: int | None = None
    snapshot_id: int | None = None
    data_files: int = 0
    data_rows: int = 0
    delete_files: int = 0
    delete_rows: int = 0
    written_bytes: int = 0
    position: str | None = None
    unmet_columns: tuple[UnmetColumn, ...] = ()
    indexes: "IndexUpdate | None" = None
    conversion: "ConversionReport | None" = None
    error: str | None = None
    exit_code: int = DONE
    may_retry: bool = False
    is_yielded: bool = False
    engine: str = "local"
    why_local: str | None = None

    @property
    def status(self) -> str:
        """`failed`, `applied` or `nothing new`."""
        if self.error is not None:
            return "failed"
        has_news = self.mirror_commits or self.events or self.quarantined or self.conversion
        return "applied" if has_news else "nothing new"

    def add_superseded(self, count: int) -> None:
        """Count changes that are older than a truncate already applied."""
        self.superseded += count

    def add_appended(self, appended: "Appended", events: Mapping[str, int]) -> None:
        """Count a commit of the change log."""
        self.events.update(events)
        self.log_commits += 1
        self.log_snapshot_id = appended.committed.snapshot_id

    def add_applied(self, applied: "Applied") -> None:
        """Count a commit of the mirror."""
        from nevermore.scan_core import DataFile

        self.mirror_commits += 1
        self.missed_removals += applied.num_missed
        self.snapshot_id = applied.committed.snapshot_id
        for file in applied.files:
            self.written_bytes += file.file_size_bytes
            if isinstance(file, DataFile):
                self.data_files += 1
                self.data_rows += file.record_count
            else:
                self.delete_files += 1
                self.delete_rows += file.record_count

    def add_indexes(self, update: "IndexUpdate") -> None:
        """Count an update of the indexes."""
        if self.indexes is None:
            self.indexes = update
        else:
            self.indexes.add(update)

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, for JSON."""
        position = json.loads(self.position or "null")
        return {**asdict(self), "events": dict(self.events), "status": self.status, "position": position}

    def __str__(self) -> str:
        """What was applied, in one line."""
        return applied_text(self)


@dataclass(frozen=True, slots=True)
class IngestReport:
    """Report of a whole run.

    Attributes:
        tables: reports of tables, in the order of the config.
        skipped: number of items skipped on purpose, by reason.
        seconds: wall time.
        unassigned: events newly quarantined that belong to none of the tables of their feed.
        untaken_tables: the first tables with changes in the feeds that no table or pattern of the config selects.
        unmatched_patterns: patterns of the config without a table so far.
        warnings: what someone should see to at the sources, one statement each.
    """

    tables: tuple[TableReport, ...]
    skipped: Mapping[str, int]
    seconds: float
    unassigned: int = 0
    untaken_tables: tuple[str, ...] = ()
    unmatched_patterns: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: all applied, 3: some events quarantined, 1: a table failed, 2: its config is wrong."""
        failed = [t.exit_code for t in self.tables if t.exit_code]
        if failed:
            return FAILED if FAILED in failed else max(failed)
        return QUARANTINED if self.unassigned or any(t.quarantined for t in self.tables) else DONE

    @property
    def found_nothing_new(self) -> bool:
        """Whether no table had anything to do."""
        return all(t.status == "nothing new" for t in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, for JSON."""
        return asdict(self) | {
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "tables": [t.as_dict() for t in self.tables],
        }
