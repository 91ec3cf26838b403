"""Deleted rows stay deleted, and live rows stay: the keys of a table against the keys of its log."""

from checks.keys import common_keys, missing_keys
from checks.result import CheckResult, sample
from checks.subject import Subject


def no_deleted_row_reappears(subject: Subject) -> CheckResult:
    """No key that the log deleted, and did not insert again, is among the rows that the engine returns."""
    deleted = subject.folded.deleted_keys
    reappeared, count = common_keys(deleted, subject.engine_keys)
    return CheckResult(
        "no_deleted_row_reappears",
        not count,
        {"keys deleted in log": deleted.num_rows, "rows in table": subject.engine_keys.num_rows},
        sample(reappeared),
        [f"{count:,} deleted keys are in the table"] if count else [],
    )


def removals_find_rows(subject: Subject) -> CheckResult:
    """Every delete and update of a table without a key found the old row that it names."""
    name = "removals_find_rows"
    if subject.why_not_by_log is not None:
        return CheckResult(name, passed=True, details=[f"not compared: rows by log: {subject.why_not_by_log}"])
    missed = subject.folded.num_missed
    statement = (
        f"{missed:,} deletes or updates named an old row that was not there, so rows that the source no longer has may be "
        "left; take a full load of it: nevermore resync TABLE --snapshot-source PATH"
    )
    compared = {"rows by log": subject.folded.rows.num_rows, "removals without a row": missed}
    return CheckResult(name, not missed, compared, details=[statement] if missed else [])


def no_rows_lost(subject: Subject) -> CheckResult:
    """Every key that the log leaves alive is among the rows that the engine returns."""
    alive = subject.folded.rows.select(list(subject.key))
    lost, count = missing_keys(alive, subject.engine_keys)
    return CheckResult(
        "no_rows_lost",
        not count,
        {"keys alive in log": alive.num_rows, "rows in table": subject.engine_keys.num_rows},
        sample(lost),
        [f"{count:,} keys are missing from the table"] if count else [],
    )
