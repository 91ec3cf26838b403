"""How a table is doing: fresh enough, in the shape of its log, not buried in deletes, little in quarantine."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import scan_core
from checks.comparison import CheckResult
from checks.subject import DELETED_FLAG, Subject
from scan_core import StructType

DEFAULT_MOST_DELETE_FILES = 1_000
"""Opening a small delete file costs about 0.1 ms: beyond this, a scan of a small table is mostly that."""
DEFAULT_MOST_DELETE_SHARE = 0.5
"""Delete rows per row in data files: beyond this, a rewrite of the data is cheaper than another week of scans."""
DEFAULT_MOST_QUARANTINE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class DeleteDebt:
    """What every scan of a table must load because of its deletes."""

    delete_files: int
    delete_rows: int
    rows_in_files: int

    @property
    def share(self) -> float:
        """Delete rows per row in the data files; 0 for a table without rows."""
        return self.delete_rows / self.rows_in_files if self.rows_in_files else 0.0


def freshness(table: str, max_age: timedelta, now: datetime | None = None) -> CheckResult:
    """The table's current snapshot is at most `max_age` old; a table without snapshots is not fresh."""
    current = scan_core.open_table(table).metadata.current_snapshot
    if current is None:
        return CheckResult("freshness", passed=False, details=["the table has no snapshot"])
    written = datetime.fromtimestamp(current.timestamp_ms / 1000, UTC)
    age = (now or datetime.now(UTC)) - written
    late = age > max_age
    details = [f"written {written.isoformat(timespec='seconds')}, older than {max_age}"] if late else []
    return CheckResult("freshness", not late, {"age in seconds": int(age.total_seconds())}, details=details)


def measure_delete_debt(table: str) -> DeleteDebt:
    """Delete files and rows that a scan of all rows meets; deletes that meet no live file do not count."""
    plan = scan_core.open_table(table).scan().plan()
    groups = {file.path: file for task in plan.tasks for group in task.equality_deletes for file in group.files}
    positions = {
        (file.path, file.content_offset): file
        for task in plan.tasks
        for file in (*task.position_deletes, *((task.deletion_vector,) if task.deletion_vector else ()))
    }
    files = [*groups.values(), *positions.values()]
    data = {task.data_file.path: task.data_file.record_count for task in plan.tasks}
    return DeleteDebt(len(files), sum(f.record_count for f in files), sum(data.values()))


def delete_debt(
    table: str,
    most_files: int = DEFAULT_MOST_DELETE_FILES,
    most_share: float = DEFAULT_MOST_DELETE_SHARE,
) -> CheckResult:
    """A scan meets at most `most_files` delete files, and at most `most_share` delete rows per data row."""
    debt = measure_delete_debt(table)
    details = []
    if debt.delete_files > most_files:
        details.append(f"{debt.delete_files:,} delete files, more than {most_files:,}: convert or compact")
    if debt.share > most_share:
        details.append(f"{debt.share:.2f} delete rows per data row, more than {most_share}: convert or compact")
    compared = {
        "delete files": debt.delete_files,
        "delete rows": debt.delete_rows,
        "rows in data files": debt.rows_in_files,
    }
    return CheckResult("delete_debt", not details, compared, details=details)


def schema_matches(subject: Subject) -> CheckResult:
    """Every column of the log's rows is in the table, in the same type; columns of the key are in both."""
    if subject.change_log is None:
        raise ValueError(f"{subject.table} has no change log to compare with")
    log = scan_core.open_table(subject.change_log, relocate=subject.relocate).schema
    after = next((f.type for f in log.fields if f.name == "after"), StructType(()))
    wanted = {f.name: str(f.type) for f in after.fields} if isinstance(after, StructType) else {}
    there = {f.name: str(f.type) for f in subject.opened.schema.fields if f.name != DELETED_FLAG}
    details = [f"column {n} is missing" for n in wanted if n not in there]
    details += [f"column {n} is {there[n]}, the log has {t}" for n, t in wanted.items() if there.get(n, t) != t]
    details += [f"key column {n} is missing" for n in subject.key if n not in there]
    return CheckResult(
        "schema_matches", not details, {"columns in log": len(wanted), "columns in table": len(there)}, details=details
    )


def quarantine_is_small(
    quarantine: str | None, change_log: str, most_share: float = DEFAULT_MOST_QUARANTINE_SHARE
) -> CheckResult:
    """At most `most_share` of all events are in quarantine; None stands for a quarantine that does not exist."""
    rejected = scan_core.open_table(quarantine).scan().count() if quarantine is not None else 0
    applied = scan_core.open_table(change_log).scan().count()
    share = rejected / (rejected + applied) if rejected else 0.0
    details = [f"{share:.2%} of the events are in quarantine, more than {most_share:.2%}"] if share > most_share else []
    return CheckResult(
        "quarantine_is_small",
        not details,
        {"events in quarantine": rejected, "changes in log": applied},
        details=details,
    )
