"""Checks that a mirror has exactly the rows that its files and its change log require.

A check covers all rows, or only the keys that changed since a snapshot that passed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.checks.comparison import MAX_OFFENDING_KEYS, CheckResult, Comparison, canonical, compare, sample
from nevermore.checks.reference.expected_rows import AdoptedRows, changed_keys, fold_changes, fold_log
from nevermore.checks.reference.sql_columns import open_connection
from nevermore.checks.subject import DELETED_FLAG, Subject
from nevermore.pipelines.maintain.log_base import BaseToCheck
from nevermore.pipelines.wording import counted
from nevermore.scan_core import ScanError
from nevermore.scan_core.io import parse_location

LOG = "its change log"


@dataclass(frozen=True, slots=True)
class Found:
    """What a check has found in some of the rows; `+` adds what it found in others.

    Attributes:
        compared: counts, by a short name.
        wrong: numbers of what is wrong, by what is counted and the rest of the statement; without a rest, the statement.
        offending: keys or rows that are wrong.
        notes: what could not be compared.
    """

    compared: Mapping[str, int]
    wrong: Mapping[tuple[str, str], int] = field(default_factory=dict)
    offending: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()

    def __add__(self, other: "Found") -> "Found":
        return Found(
            {name: self.compared.get(name, 0) + count for name, count in other.compared.items()},
            {text: self.wrong.get(text, 0) + other.wrong.get(text, 0) for text in {**self.wrong, **other.wrong}},
            [*self.offending, *other.offending][:MAX_OFFENDING_KEYS],
            list(dict.fromkeys([*self.notes, *other.notes])),
        )

    def result(self, name: str) -> CheckResult:
        """The outcome of the check."""
        details = [
            f"{counted(count, what)} {rest}" if rest else what for (what, rest), count in self.wrong.items() if count
        ]
        unique = [row for i, row in enumerate(self.offending) if row not in self.offending[:i]]
        return CheckResult(name, not details, self.compared, unique[:MAX_OFFENDING_KEYS], [*details, *self.notes])


def _equal_rows(subject: Subject) -> Found:
    """The rows from the engine equal those of both references, as multisets and in exact types."""
    rows = subject.engine_rows
    compared = {"rows from engine": rows.num_rows, "rows in files": subject.file_rows.num_rows}
    findings = [("its own files", compare(rows, subject.file_rows, sort_by=subject.key))]
    notes = []
    if subject.why_not_by_log is not None:
        notes.append(f"not compared: rows by log: {subject.why_not_by_log}")
    elif subject.change_log is not None:
        alive = alive_rows(rows, subject)
        required = subject.folded.rows
        compared["rows by log"] = required.num_rows
        findings.append((LOG, compare(alive, columns_of(required, alive), sort_by=subject.key)))
    wrong = {text: count for other, found in findings for text, count in _differences(other, found).items()}
    offending = [row for _, found in findings for part in (found.left_only, found.right_only) for row in sample(part)]
    return Found(compared, wrong, [{name: row[name] for name in subject.key or row} for row in offending], notes)


def alive_rows(rows: pa.Table, subject: Subject) -> pa.Table:
    """The rows of a mirror that are not flagged as deleted, without the flag."""
    if not subject.soft_delete or DELETED_FLAG not in rows.column_names:
        return rows
    flags = pc.fill_null(rows.column(DELETED_FLAG), fill_value=False)
    return rows.filter(pc.invert(flags)).drop_columns([DELETED_FLAG])


def columns_of(rows: pa.Table, like: pa.Table) -> pa.Table:
    """The log's columns in the table's order; columns that the log no longer has, because they were dropped, are NULL."""
    columns = [
        rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in like.schema
    ]
    extra = [name for name in rows.column_names if name not in like.column_names]
    return pa.table([*columns, *(rows.column(n) for n in extra)], names=[*like.column_names, *extra])


def _differences(other: str, found: Comparison) -> dict[tuple[str, str], int]:
    """The differences between the engine's rows and another source of them, as in `Found.wrong`."""
    if found.type_differences:
        return {(f"types differ from {other}: {text}", ""): 1 for text in found.type_differences}
    return {
        ("returned row", f"not in {other}"): found.num_left_only,
        ("row", f"of {other} not returned"): found.num_right_only,
    }


def _unique_keys(subject: Subject) -> Found:
    """No two live rows of the table have the same key."""
    return _uniqueness(subject.engine_keys, {"rows in table": subject.engine_keys.num_rows})


def _uniqueness(keys: pa.Table, compared: Mapping[str, int]) -> Found:
    names = [f"c{i}" for i in range(keys.num_columns)]
    with open_connection() as connection:
        connection.register("keys", canonical(keys).rename_columns(names))
        grouped = f"SELECT {', '.join(names)}, count(*) AS occurrences FROM keys GROUP BY ALL HAVING count(*) > 1"
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({grouped})").fetchall()
        repeated = connection.sql(f"{grouped} ORDER BY ALL LIMIT {MAX_OFFENDING_KEYS}").to_arrow_table()
    shown = sample(repeated.rename_columns([*keys.column_names, "occurrences"]))
    return Found(compared, {("key", "with more than one row"): count}, shown)


def _absent_keys(subject: Subject) -> Found:
    """No key that the log deleted, and did not insert again, is among the rows that the engine returns."""
    return _reappearance(
        subject.folded.deleted_keys, subject.engine_keys, {"rows in table": subject.engine_keys.num_rows}
    )


def _reappearance(deleted: pa.Table, keys: pa.Table, compared: Mapping[str, int]) -> Found:
    reappeared = deleted.filter(are_among(deleted, keys))
    compared = {"keys deleted in log": deleted.num_rows, **compared}
    return Found(compared, {("deleted key", "in the table"): reappeared.num_rows}, sample(reappeared))


def _found_removals(subject: Subject) -> Found:
    """Every delete and update of a table without a key found the old row that it contains."""
    if subject.why_not_by_log is not None:
        return Found({}, notes=[f"not compared: rows by log: {subject.why_not_by_log}"])
    missed = subject.folded.num_missed
    rest = (
        "of an old row that was not there, so the mirror may have rows that the source "
        "no longer has; do a full load: nevermore resync TABLE --snapshot-source PATH"
    )
    compared = {"rows by log": subject.folded.rows.num_rows, "removals without a row": missed}
    return Found(compared, {("removal", rest): missed})


ROW_CHECKS: Mapping[str, Callable[[Subject], Found]] = {
    "no_deleted_row_reappears": _absent_keys,
    "mirror_equals_reference": _equal_rows,
    "key_is_unique": _unique_keys,
    "removals_find_rows": _found_removals,
}
"""Checks of the rows of a mirror, by name. Each can look at the rows in buckets of their keys."""


def difference_of_base(base: BaseToCheck) -> str | None:
    """Compare the rows to which the base of a log leads with those of the changes that it replaces, both by DuckDB.

    With soft deletes also the deleted rows, and without a key the number of removals that found no row.

    Returns:
        What differs; None if nothing does.
    """
    if parse_location(base.location).is_local:
        required = fold_log(base.location, base.key, up_to_ordinal=base.ordinal, with_deleted=base.is_soft)
    else:  # the reference reads local files only
        required = fold_changes(base.old(), base.key, with_deleted=base.is_soft)
    made = fold_changes(base.new(), base.key, with_deleted=base.is_soft)
    old = "the changes that it replaces"
    pairs = {old: (made.rows, required.rows)}
    if made.deleted_rows is not None and required.deleted_rows is not None:
        pairs[f"the deleted rows of {old}"] = (made.deleted_rows, required.deleted_rows)
    wrong = {
        text: count
        for name, (rows, expected) in pairs.items()
        for text, count in _differences(name, compare(columns_of(rows, expected), expected, sort_by=base.key)).items()
    }
    if made.num_missed != required.num_missed:
        wrong[f"{made.num_missed:,} removals without a row instead of {required.num_missed:,}", ""] = 1
    return "; ".join(Found({}, wrong).result("").details) or None


@dataclass(frozen=True, slots=True)
class NeedsAllRows:
    """Why a mirror cannot be checked by the keys that changed."""

    reason: str


CHANGED_SHARE = 8
"""Part of the memory that the rows that changed may take as they are read: they are held in several forms at once."""
NO_LOG = "there is no key, no change log, or no such snapshot"
TOO_MANY = "more has changed since than is compared in memory at once"


def row_bytes(subject: Subject) -> float:
    """About how many bytes a row takes, by the first ones that the engine returns."""
    first = next(iter(subject.opened.scan().to_batches()), None)
    return 0.0 if first is None or not first.num_rows else float(first.nbytes / first.num_rows)


def check_changed_keys(subject: Subject, green_id: int) -> Iterable[CheckResult] | NeedsAllRows:
    """The results of all checks of a mirror's rows, given that an earlier snapshot passed them.

    Args:
        subject: a mirror with a key and a change log.
        green_id: the earlier snapshot, an ancestor of the current one.
    """
    if subject.change_log is None:
        return NeedsAllRows(NO_LOG)
    span = _changes_since(subject, green_id)
    if isinstance(span, NeedsAllRows):
        return span
    (since, until), key, limit = span, list(subject.key), subject.memory_bytes // CHANGED_SHARE
    found = changed_keys(
        subject.change_log, key, after_ordinal=since, up_to_ordinal=until, filesystem=subject.filesystem
    )
    if found is None:
        return NeedsAllRows("the table was truncated since")
    # keys of the log in the types of the table, which may be wider
    schema = subject.opened.scan().select(*key).arrow_schema
    keys = pa.table([in_type(found.column(field.name), field.type) for field in schema], names=schema.names)
    try:
        changed = _changed_rows(subject, green_id, limit)
    except ScanError as error:
        return NeedsAllRows(f"what changed since cannot be read: {error}")
    if changed is None:
        return NeedsAllRows(TOO_MANY)
    came, went = (alive_rows(side, subject) for side in changed)
    for rows in (came, went):
        if not pc.all(are_among(rows.select(key), keys), min_count=0).as_py():
            return NeedsAllRows("rows changed whose keys the log did not change: which check they fail, all rows show")
    alive = alive_rows(_rows_of_keys(subject, keys), subject)
    alive_keys = alive.select(key)
    # the rows of these keys in the green snapshot: those that are there still, and those that went
    stayed = alive.filter(pc.invert(are_among(alive_keys, came.select(key))))
    before = pa.concat_tables([stayed, went])
    required = fold_log(
        subject.change_log,
        key,
        up_to_ordinal=until,
        adopted=AdoptedRows(subject.table, green_id, since, rows=before),
        relocate=subject.relocate,
        filesystem=subject.filesystem,
    )
    compared = {
        "keys changed": keys.num_rows,
        "rows from engine": alive.num_rows,
        "rows by log": required.rows.num_rows,
    }
    difference = compare(alive, columns_of(required.rows, alive), sort_by=key)
    wrong = _differences(LOG, difference)
    offending = [*sample(difference.left_only.select(key)), *sample(difference.right_only.select(key))]
    return (
        _reappearance(required.deleted_keys, alive_keys, compared).result("no_deleted_row_reappears"),
        Found(compared, wrong, offending).result("mirror_equals_reference"),
        _uniqueness(alive_keys, compared).result("key_is_unique"),
    )


def _changes_since(subject: Subject, green_id: int) -> tuple[int, int] | NeedsAllRows:
    """The ordinals of the last change that a snapshot contains, and of the last one that the current snapshot contains."""
    metadata = subject.opened.metadata
    current, green = metadata.current_snapshot, metadata.snapshots.get(green_id)
    if not subject.key or current is None or green is None:
        return NeedsAllRows(NO_LOG)
    if green.schema_id != current.schema_id:
        return NeedsAllRows("columns have changed since")
    since, until = subject.applied_ordinal(green_id), subject.applied_ordinal(current.snapshot_id)
    if since is None or until is None or until < since:
        return NeedsAllRows("the snapshots do not record which changes they contain")
    if since < subject.base_ordinal:
        return NeedsAllRows("the log no longer has all changes since")
    if (until - since) * row_bytes(subject) > subject.memory_bytes // CHANGED_SHARE:
        return NeedsAllRows(TOO_MANY)
    return since, until


def in_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of the log in the type of the table, which may be wider; extension types cannot be widened."""
    return column if isinstance(kind, pa.BaseExtensionType) else column.cast(kind)


def _changed_rows(subject: Subject, green_id: int, limit: int) -> tuple[pa.Table, pa.Table] | None:
    """Rows that were added and rows that were removed since, according to the engine; None if they take more bytes."""
    scan = subject.opened.scan().changes(green_id)
    batches, num_bytes = [], 0
    for batch in scan.to_batches():
        batches.append(batch)
        num_bytes += batch.nbytes
        if num_bytes > limit:
            return None
    changes = pa.Table.from_batches(batches, schema=scan.arrow_schema)
    is_insert = pc.equal(changes.column(0), "insert")
    rows = changes.remove_column(0)
    return rows.filter(is_insert), rows.filter(pc.invert(is_insert))


def _rows_of_keys(subject: Subject, keys: pa.Table) -> pa.Table:
    """All rows that the engine returns now with one of these keys; NULL equals NULL."""
    scan = subject.opened.scan()
    has_null = np.zeros(keys.num_rows, bool)
    for name in keys.column_names:
        has_null |= keys.column(name).is_null().to_numpy()
    plain, nullable = keys.filter(pa.array(~has_null)), keys.filter(pa.array(has_null))
    parts = []
    if plain.num_rows:
        parts.append(scan.semi_join(list(subject.key), plain).to_table())
    if nullable.num_rows:  # a semi join does not match NULLs
        condition = " or ".join(f"`{name.replace('`', '``')}` is null" for name in subject.key)
        rows = scan.where(condition).to_table()
        parts.append(rows.filter(are_among(rows.select(list(subject.key)), nullable)))
    return pa.concat_tables(parts) if parts else pa.Table.from_batches([], schema=scan.arrow_schema)


def are_among(rows: pa.Table, keys: pa.Table) -> pa.Array:
    """For each row whether it is among `keys`; NULL equals NULL."""
    found: npt.NDArray[np.bool_] = np.zeros(rows.num_rows, bool)
    if rows.num_rows and keys.num_rows:
        names = [f"c{i}" for i in range(rows.num_columns)]
        numbered = canonical(rows).rename_columns(names).append_column("place", pa.array(np.arange(rows.num_rows)))
        on = " AND ".join(f"l.{n} IS NOT DISTINCT FROM r.{n}" for n in names)
        with open_connection() as connection:
            connection.register("l", numbered)
            connection.register("r", canonical(keys.select(rows.column_names)).rename_columns(names))
            places = connection.sql(f"SELECT l.place FROM l SEMI JOIN r ON {on}").to_arrow_table()
        found[places.column(0).to_numpy()] = True
    return pa.array(found)
