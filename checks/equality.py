"""Checks that a mirror has exactly the rows of the two references.

No deleted row is back, no live row is missing and no key occurs twice. Checks all rows, or only the keys that
changed since a snapshot that passed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checks.comparison import MOST_OFFENDING_KEYS, CheckResult, Comparison, canonical, compare, sample
from checks.reference.expected_rows import AdoptedRows, changed_keys, fold_log
from checks.reference.sql_columns import open_connection
from checks.subject import DELETED_FLAG, Subject
from pipelines.iceberg.positions import LOG_ORDINAL
from scan_core import Scan, ScanError


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


def key_is_unique(subject: Subject) -> CheckResult:
    """No two live rows of the table have the same key."""
    keys = subject.engine_keys
    repeated, count = repeated_keys(keys)
    details = [f"{count:,} keys occur more than once"] if count else []
    return CheckResult("key_is_unique", not count, {"rows in table": keys.num_rows}, sample(repeated), details)


def repeated_keys(keys: pa.Table) -> tuple[pa.Table, int]:
    """Up to 20 keys that occur more than once, each with `occurrences`, and how many there are."""
    names = [f"c{i}" for i in range(keys.num_columns)]
    with open_connection() as connection:
        connection.register("keys", canonical(keys).rename_columns(names))
        grouped = f"SELECT {', '.join(names)}, count(*) AS occurrences FROM keys GROUP BY ALL HAVING count(*) > 1"
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({grouped})").fetchall()
        found = connection.sql(f"{grouped} ORDER BY ALL LIMIT {MOST_OFFENDING_KEYS}").to_arrow_table()
    return found.rename_columns([*keys.column_names, "occurrences"]), int(count)


def common_keys(left: pa.Table, right: pa.Table) -> tuple[pa.Table, int]:
    """Up to 20 keys that are in both tables, and how many there are."""
    return _matched(left, right, "SEMI")


def missing_keys(left: pa.Table, right: pa.Table) -> tuple[pa.Table, int]:
    """Up to 20 keys of `left` that `right` lacks, and how many there are."""
    return _matched(left, right, "ANTI")


def _matched(left: pa.Table, right: pa.Table, kind: str) -> tuple[pa.Table, int]:
    names: Sequence[str] = [f"c{i}" for i in range(left.num_columns)]
    on = " AND ".join(f"l.{n} IS NOT DISTINCT FROM r.{n}" for n in names)
    with open_connection() as connection:
        connection.register("left_keys", canonical(left).rename_columns(names))
        connection.register("right_keys", canonical(right.select(left.column_names)).rename_columns(names))
        query = f"SELECT DISTINCT l.* FROM left_keys AS l {kind} JOIN right_keys AS r ON {on}"
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({query})").fetchall()
        found = connection.sql(f"{query} ORDER BY ALL LIMIT {MOST_OFFENDING_KEYS}").to_arrow_table()
    return found.rename_columns(left.column_names), int(count)


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


LOG = "its change log"


@dataclass(frozen=True, slots=True)
class NeedsAllRows:
    """Why the keys that changed cannot tell whether a mirror is right."""

    reason: str


def check_changed_keys(subject: Subject, green_id: int) -> dict[str, CheckResult] | NeedsAllRows:
    """The results of all checks of a mirror's rows, by name, given that an earlier snapshot passed them.

    Args:
        subject: a mirror with a key and a change log.
        green_id: the earlier snapshot, an ancestor of the current one.
    """
    metadata = subject.opened.metadata
    current, green = metadata.current_snapshot, metadata.snapshots.get(green_id)
    if subject.change_log is None or not subject.key or current is None or green is None:
        return NeedsAllRows("there is no key, no change log, or no such snapshot")
    if green.schema_id != current.schema_id:
        return NeedsAllRows("columns have changed since")
    since, until = applied_ordinal(subject, green_id), applied_ordinal(subject, current.snapshot_id)
    if since is None or until is None or until < since:
        return NeedsAllRows("the snapshots do not tell which changes they hold")
    found = changed_keys(subject.change_log, subject.key, after_ordinal=since, up_to_ordinal=until)
    if found is None:
        return NeedsAllRows("the table was truncated since")
    keys = _in_types_of(found, subject.opened.scan().select(*subject.key))
    try:
        came, went = _changed_rows(subject, green_id)
    except ScanError as error:
        return NeedsAllRows(f"what changed since cannot be read: {error}")
    rows = _rows_of_keys(subject, keys)
    came, went = (_alive(side, subject) for side in (came, went))
    alive = _alive(rows, subject)
    before = _rows_before(alive, came, went, keys, subject.key)
    demanded = fold_log(
        subject.change_log,
        subject.key,
        up_to_ordinal=until,
        adopted=AdoptedRows(subject.table, green_id, since, rows=before),
        relocate=subject.relocate,
    )
    compared = {
        "keys changed": keys.num_rows,
        "rows from engine": alive.num_rows,
        "rows by log": demanded.rows.num_rows,
    }
    return {
        result.name: result
        for result in (
            _no_deleted_row(demanded.deleted_keys, alive, subject, compared),
            _equal(alive, demanded.rows, [came, went], keys, subject=subject, compared=compared),
            _unique(alive, subject, compared),
        )
    }


def applied_ordinal(subject: Subject, snapshot_id: int) -> int | None:
    """The last change of the log that a snapshot of a mirror holds; None where no snapshot tells."""
    for snapshot in subject.opened.metadata.ancestors(snapshot_id):
        if LOG_ORDINAL in snapshot.summary:
            return int(snapshot.summary[LOG_ORDINAL])
    return None


def _no_deleted_row(deleted: pa.Table, alive: pa.Table, subject: Subject, compared: dict[str, int]) -> CheckResult:
    reappeared, count = common_keys(deleted, alive.select(list(subject.key)))
    details = [f"{count:,} deleted keys are in the table"] if count else []
    compared = {**compared, "keys deleted in log": deleted.num_rows}
    return CheckResult("no_deleted_row_reappears", not count, compared, sample(reappeared), details)


def _equal(
    alive: pa.Table,
    demanded: pa.Table,
    changes: list[pa.Table],
    keys: pa.Table,
    *,
    subject: Subject,
    compared: dict[str, int],
) -> CheckResult:
    key = list(subject.key)
    found = compare(alive, columns_of(demanded, alive), sort_by=key)
    details = statements(LOG, found)
    offending = [*sample(found.left_only.select(key)), *sample(found.right_only.select(key))]
    for rows, what in zip(changes, ("came", "went"), strict=True):
        strange = rows.select(key).filter(pa.array(~_are_among(rows.select(key), keys)))
        if strange.num_rows:
            details.append(f"{strange.num_rows:,} rows {what} without a change in the log")
            offending += sample(strange)
    unique = [row for i, row in enumerate(offending) if row not in offending[:i]]
    return CheckResult("mirror_equals_reference", not details, compared, unique[:MOST_OFFENDING_KEYS], details)


def _unique(alive: pa.Table, subject: Subject, compared: dict[str, int]) -> CheckResult:
    repeated, count = repeated_keys(alive.select(list(subject.key)))
    details = [f"{count:,} keys occur more than once"] if count else []
    return CheckResult("key_is_unique", not count, compared, sample(repeated), details)


def _changed_rows(subject: Subject, green_id: int) -> tuple[pa.Table, pa.Table]:
    """Rows that came, and rows that went, as the engine finds them."""
    changes = subject.opened.scan().changes(green_id).to_table()
    is_insert = pc.equal(changes.column(0), "insert")
    rows = changes.remove_column(0)
    return rows.filter(is_insert), rows.filter(pc.invert(is_insert))


def _rows_of_keys(subject: Subject, keys: pa.Table) -> pa.Table:
    """All rows that the engine returns now with one of these keys, NULL being equal to NULL."""
    scan = subject.opened.scan()
    has_null = np.zeros(keys.num_rows, bool)
    for name in keys.column_names:
        has_null |= keys.column(name).is_null().to_numpy()
    plain, nullable = keys.filter(pa.array(~has_null)), keys.filter(pa.array(has_null))
    parts = []
    if plain.num_rows:
        parts.append(scan.semi_join(list(subject.key), plain).to_table())
    if nullable.num_rows:  # a join in SQL does not find them
        condition = " or ".join(f"`{name.replace('`', '``')}` is null" for name in subject.key)
        rows = scan.where(condition).to_table()
        parts.append(rows.filter(pa.array(_are_among(rows.select(list(subject.key)), nullable))))
    return pa.concat_tables(parts) if parts else scan.arrow_schema.empty_table()


def _rows_before(alive: pa.Table, came: pa.Table, went: pa.Table, keys: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The rows of these keys in the green snapshot: those that are there still, and those that went."""
    names = list(key)
    stayed = alive.filter(pa.array(~_are_among(alive.select(names), came.select(names))))
    return pa.concat_tables([stayed, went.filter(pa.array(_are_among(went.select(names), keys)))])


def _are_among(rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """For each row whether its key is among `keys`, where NULL equals NULL."""
    found = np.zeros(rows.num_rows, bool)
    if not rows.num_rows or not keys.num_rows:
        return found
    names = [f"c{i}" for i in range(rows.num_columns)]
    numbered = canonical(rows).rename_columns(names).append_column("place", pa.array(np.arange(rows.num_rows)))
    on = " AND ".join(f"l.{n} IS NOT DISTINCT FROM r.{n}" for n in names)
    with open_connection() as connection:
        connection.register("l", numbered)
        connection.register("r", canonical(keys.select(rows.column_names)).rename_columns(names))
        places = connection.sql(f"SELECT l.place FROM l SEMI JOIN r ON {on}").to_arrow_table()
    found[places.column(0).to_numpy()] = True
    return found


def _alive(rows: pa.Table, subject: Subject) -> pa.Table:
    return alive_rows(rows) if subject.soft_delete and DELETED_FLAG in rows.column_names else rows


def _in_types_of(keys: pa.Table, scan: Scan) -> pa.Table:
    """Keys of the log in the types of the table, which may be wider."""
    schema = scan.arrow_schema
    columns = [
        keys.column(field.name)
        if isinstance(field.type, pa.BaseExtensionType)
        else keys.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.table(columns, names=schema.names)
