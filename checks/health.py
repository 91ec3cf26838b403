"""The health of a table: age, schema compared with its log, number of deletes, and share of events in quarantine."""

from datetime import UTC, datetime, timedelta

import scan_core
from checks.comparison import CheckResult
from checks.subject import DELETED_FLAG, Subject
from scan_core import DeleteFile, StructType

DEFAULT_MAX_DELETE_FILES = 1_000
"""Opening a small delete file takes about 0.1 ms; with more files, this dominates a scan of a small table."""
DEFAULT_MAX_DELETE_SHARE = 0.5
"""Delete rows per row in data files; with more, rewriting the data is cheaper than another week of scans."""
DEFAULT_MAX_QUARANTINE_SHARE = 0.01


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


def delete_debt(
    table: str,
    max_files: int = DEFAULT_MAX_DELETE_FILES,
    max_share: float = DEFAULT_MAX_DELETE_SHARE,
) -> CheckResult:
    """A scan of all rows loads at most `max_files` delete files, and at most `max_share` delete rows per data row.

    Deletes that apply to no live file do not count.
    """
    tasks = scan_core.open_table(table).scan().plan().tasks
    deletes: dict[tuple[str, int | None], DeleteFile] = {}  # deletion vectors share their files
    for task in tasks:
        vectors = (task.deletion_vector,) if task.deletion_vector else ()
        by_equality = (file for group in task.equality_deletes for file in group.files)
        deletes |= {(file.path, file.content_offset): file for file in (*task.position_deletes, *vectors, *by_equality)}
    delete_rows = sum(file.record_count for file in deletes.values())
    data_rows = sum({task.data_file.path: task.data_file.record_count for task in tasks}.values())
    share = delete_rows / data_rows if data_rows else 0.0
    details = []
    if len(deletes) > max_files:
        details.append(f"{len(deletes):,} delete files, more than {max_files:,}: convert or compact")
    if share > max_share:
        details.append(f"{share:.2f} delete rows per data row, more than {max_share}: convert or compact")
    compared = {"delete files": len(deletes), "delete rows": delete_rows, "rows in data files": data_rows}
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
    quarantine: str | None, change_log: str, max_share: float = DEFAULT_MAX_QUARANTINE_SHARE
) -> CheckResult:
    """At most `max_share` of all events are in quarantine; None stands for a quarantine that does not exist."""
    rejected = scan_core.open_table(quarantine).scan().count() if quarantine is not None else 0
    applied = scan_core.open_table(change_log).scan().count()
    share = rejected / (rejected + applied) if rejected else 0.0
    details = [f"{share:.2%} of the events are in quarantine, more than {max_share:.2%}"] if share > max_share else []
    return CheckResult(
        "quarantine_is_small",
        not details,
        {"events in quarantine": rejected, "changes in log": applied},
        details=details,
    )
