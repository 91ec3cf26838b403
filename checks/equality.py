"""The engine's rows are the rows of the two references: of the table's own files, and of its log."""

import pyarrow as pa
import pyarrow.compute as pc

from checks.compare import Comparison, compare
from checks.result import MOST_OFFENDING_KEYS, CheckResult, sample
from checks.subject import DELETED_FLAG, Subject


def mirror_equals_reference(subject: Subject) -> CheckResult:
    """What the engine returns equals, as a multiset and in exact types, both references."""
    rows = subject.engine_rows
    compared = {"rows from engine": rows.num_rows, "rows in files": subject.file_rows.num_rows}
    findings = [("its own files", compare(rows, subject.file_rows, sort_by=subject.key))]
    not_compared = []
    if subject.why_not_by_log is not None:
        not_compared.append(f"not compared: rows by log: {subject.why_not_by_log}")
    elif subject.change_log is not None:
        alive = alive_rows(rows) if subject.soft_delete else rows
        demanded = subject.folded.rows
        compared["rows by log"] = demanded.num_rows
        findings.append(("its change log", compare(alive, columns_of(demanded, alive), sort_by=subject.key)))
    details = [text for other, found in findings for text in statements(other, found)]
    offending = [row for _, found in findings for part in (found.left_only, found.right_only) for row in sample(part)]
    keys = [{name: row[name] for name in subject.key or row} for row in offending]
    unique = [key for i, key in enumerate(keys) if key not in keys[:i]]
    return CheckResult(
        "mirror_equals_reference", not details, compared, unique[:MOST_OFFENDING_KEYS], [*details, *not_compared]
    )


def alive_rows(rows: pa.Table) -> pa.Table:
    """The rows of a mirror in soft-delete mode that count as alive, without the flag."""
    flags = pc.fill_null(rows.column(DELETED_FLAG), fill_value=False)
    return rows.filter(pc.invert(flags)).drop_columns([DELETED_FLAG])


def columns_of(rows: pa.Table, like: pa.Table) -> pa.Table:
    """The log's columns in the table's order; columns that the log has lost sight of are NULL (a dropped column)."""
    columns = [
        rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in like.schema
    ]
    extra = [name for name in rows.column_names if name not in like.column_names]
    return pa.table([*columns, *(rows.column(n) for n in extra)], names=[*like.column_names, *extra])


def statements(other: str, found: Comparison) -> list[str]:
    """What a comparison of the engine's rows with another source of them found, in words."""
    statements = [f"types differ from {other}: {text}" for text in found.type_differences]
    if found.type_differences:
        return statements
    if found.num_left_only:
        statements.append(f"{found.num_left_only:,} rows are returned that {other} does not have")
    if found.num_right_only:
        statements.append(f"{found.num_right_only:,} rows of {other} are not returned")
    return statements
