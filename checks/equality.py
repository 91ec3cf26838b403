"""Checks that a mirror has exactly the rows that its files and its change log require.

A check covers all rows, or only the keys that changed since a snapshot that passed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

from nevermore.checks.comparison import (
    MAX_OFFENDING_KEYS,
    Comparison,
    Relation,
    canonical,
    canonical_schema,
    compare,
    numbered,
    sample,
)
from nevermore.checks.reference.expected_rows import AdoptedRows, changed_keys, fold_changes, fold_log, live_query
from nevermore.checks.reference.sql_columns import (
    APPENDED,
    PrivateDatabase,
    limited_memory,
    open_connection,
    private_database,
)
from nevermore.checks.subject import DELETED_FLAG, Subject
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.maintain.log_base import BaseToCheck
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.pipelines.wording import counted
from nevermore.scan_core import Changes, MemoryLimitError, Scan, ScanError
from nevermore.scan_core.io import cached_property, parse_location

LOG = "its change log"
DATABASE_SHARE = 2
"""Part of the memory that DuckDB may use, which spills what is more."""
SCAN_SHARE = 8
"""Part of the memory that the scan of a table may use whose rows are compared."""


def result_of(
    name: str,
    compared: Mapping[str, int],
    wrong: Sequence[str] = (),
    offending: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> CheckResult:
    """The outcome of a check that fails if anything is wrong; each offending key is listed once."""
    unique = [row for i, row in enumerate(offending) if row not in offending[:i]]
    return CheckResult(name, not wrong, compared, unique[:MAX_OFFENDING_KEYS], [*wrong, *notes])


def unless_none(number: int, what: str, rest: str) -> list[str]:
    """The statement that there are so many of something wrong; none if there are none."""
    return [f"{counted(number, what)} {rest}"] if number else []


class MirrorRows:
    """The rows of a mirror in a database of DuckDB, which spills what does not fit into memory; each is stored once.

    Args:
        subject: the mirror.
        database: what is given the rows.
    """

    def __init__(self, subject: Subject, database: PrivateDatabase) -> None:
        self.subject = subject
        self.num_missed = 0
        self._database = database

    @cached_property
    def scan(self) -> Scan:
        """The scan of all rows."""
        options = self.subject.options
        limit = min(self.subject.memory_bytes // SCAN_SHARE, options.memory_limit_bytes)
        return self.subject.opened.scan().with_options(replace(options, memory_limit_bytes=limit))

    @cached_property
    def engine(self) -> Relation:
        """All rows that the engine returns."""
        return self.read("engine")

    @property
    def arriving(self) -> Relation:
        """The rows of `alive` among those of the scan that are being stored."""
        schema = canonical_schema(self.scan.arrow_schema)
        return alive(Relation(self._database.connection, APPENDED, schema), self.subject)

    def read(self, name: str, *query: str) -> Relation:
        """See `stored`: rows of the scan, which is run."""
        return self.stored(name, self.scan.arrow_schema, self.scan.to_batches(), *query)

    @cached_property
    def alive(self) -> Relation:
        """Rows that the engine returns and that are not flagged as deleted, without the flag."""
        return alive(self.engine, self.subject)

    @cached_property
    def files(self) -> Relation:
        """The live rows according to the table's own files and manifests, read without the engine."""
        subject = self.subject
        with live_query(subject.table, **subject.store) as query:
            return self.stored("files", query.schema, query.batches())

    @cached_property
    def _folded(self) -> tuple[Relation, Relation]:
        like = self.alive.schema
        with self.subject.folding() as found:
            self.num_missed = found.num_missed
            schema = columns_of(found.rows.schema.empty_table(), like).schema
            required = (columns_of(rows, like) for rows in found.rows.batches())
            deleted = self.stored("deleted", found.deleted_keys.schema, found.deleted_keys.batches())
            return self.stored("required", schema, required), deleted

    @property
    def required(self) -> Relation:
        """The rows that the log requires, in the table's order of columns."""
        return self._folded[0]

    @property
    def deleted_keys(self) -> Relation:
        """Keys that the log deleted, and did not insert again."""
        return self._folded[1]

    @property
    def keys(self) -> Relation:
        """The keys of rows that are alive."""
        return self.alive.select(self.subject.key)

    @property
    def compared(self) -> Mapping[str, int]:
        """The number of these keys, as results have it."""
        return {"rows in table": self.alive.num_rows}

    def stored(
        self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table], *query: str
    ) -> Relation:
        """Rows as a table of the database, or what a query makes of them."""
        schema = canonical_schema(schema)
        if not schema.names:  # of a mirror that has no columns yet
            return Relation(self._database.connection, "(SELECT 1 WHERE false)", schema)
        stored = numbered(schema.empty_table()).schema
        self._database.store(name, stored, (numbered(canonical(pa.table(batch))) for batch in batches), *query)
        return Relation(self._database.connection, self._database.name(name), schema)


@contextmanager
def mirror_rows(subject: Subject) -> Iterator[MirrorRows]:
    """The rows of a mirror in a database of their own.

    Raises:
        ConfigError: DuckDB needs more memory than the config allows.
        TemporaryFolderError: the folder for temporary files is full or broken.
    """
    try:
        with limited_memory(subject.memory_bytes // DATABASE_SHARE), private_database() as database:
            yield MirrorRows(subject, database)
    except duckdb.OutOfMemoryException as error:
        raise ConfigError(
            f"{subject.table}: DuckDB needs more than half of checks: {{memory_bytes: {subject.memory_bytes}}}; raise it"
        ) from error


def _equal_rows(rows: MirrorRows) -> CheckResult:
    """The rows from the engine equal those of both references, as multisets and in exact types."""
    subject = rows.subject
    compared = {"rows from engine": rows.engine.num_rows, "rows in files": rows.files.num_rows}
    findings = [("its own files", rows.engine.compare(rows.files, subject.key))]
    notes = []
    if subject.why_not_by_log is not None:
        notes.append(f"not compared: rows by log: {subject.why_not_by_log}")
    elif subject.change_log is not None:
        compared["rows by log"] = rows.required.num_rows
        findings.append((LOG, rows.alive.compare(rows.required, subject.key)))
    wrong = [text for other, found in findings for text in _differences(other, found)]
    offending = [row for _, found in findings for part in (found.left_only, found.right_only) for row in sample(part)]
    keys = [{name: row[name] for name in subject.key or row} for row in offending]
    return result_of(EQUAL, compared, wrong, keys, notes)


def alive(rows: Relation, subject: Subject) -> Relation:
    """The rows of a mirror that are not flagged as deleted, without the flag."""
    names = rows.schema.names
    if not subject.soft_delete or DELETED_FLAG not in names:
        return rows
    flag = f"NOT coalesce(c{names.index(DELETED_FLAG)}, false)"
    return rows.select([name for name in names if name != DELETED_FLAG], flag)


def columns_of(rows: pa.Table, like: pa.Schema) -> pa.Table:
    """The log's columns in the table's order; columns that the log no longer has, because they were dropped, are NULL."""
    columns = {
        field.name: rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in like
    }
    return pa.table(columns | {name: rows.column(name) for name in rows.column_names if name not in columns})


def _differences(other: str, found: Comparison) -> list[str]:
    """How the engine's rows differ from those of another source."""
    return [f"types differ from {other}: {text}" for text in found.type_differences] or [
        *unless_none(found.num_left_only, "returned row", f"not in {other}"),
        *unless_none(found.num_right_only, "row", f"of {other} not returned"),
    ]


def _unique_keys(keys: Relation, compared: Mapping[str, int]) -> CheckResult:
    """No two live rows of the table have the same key."""
    grouped = f"(SELECT *, count(*) AS occurrences FROM {keys.sql} GROUP BY ALL HAVING count(*) > 1)"
    repeated = Relation(keys.connection, grouped, keys.schema.append(pa.field("occurrences", pa.int64())))
    wrong = unless_none(repeated.num_rows, "key", "with more than one row")
    return result_of("key_is_unique", compared, wrong, repeated.sample())


def _absent_keys(deleted: Relation, keys: Relation, compared: Mapping[str, int]) -> CheckResult:
    """No key that the log deleted, and did not insert again, is among the rows that the engine returns."""
    reappeared = deleted.among(keys)
    compared = {"keys deleted in log": deleted.num_rows, **compared}
    wrong = unless_none(reappeared.num_rows, "deleted key", "in the table")
    return result_of("no_deleted_row_reappears", compared, wrong, reappeared.sample())


def _found_removals(rows: MirrorRows) -> CheckResult:
    """Every delete and update of a table without a key found the old row that it contains."""
    name = "removals_find_rows"
    if (reason := rows.subject.why_not_by_log) is not None:
        return result_of(name, {}, notes=[f"not compared: rows by log: {reason}"])
    num_rows, missed = rows.required.num_rows, rows.num_missed
    rest = (
        "of an old row that was not there, so the mirror may have rows that the source "
        "no longer has; do a full load: nevermore resync TABLE --snapshot-source PATH"
    )
    compared = {"rows by log": num_rows, "removals without a row": missed}
    return result_of(name, compared, unless_none(missed, "removal", rest))


EQUAL = "mirror_equals_reference"
ROW_CHECKS: Mapping[str, Callable[[MirrorRows], CheckResult]] = {
    "no_deleted_row_reappears": lambda rows: _absent_keys(rows.deleted_keys, rows.keys, rows.compared),
    EQUAL: _equal_rows,
    "key_is_unique": lambda rows: _unique_keys(rows.keys, rows.compared),
    "removals_find_rows": _found_removals,
}
"""Checks of the rows of a mirror, by name."""


def row_results(subject: Subject, names: Iterable[str]) -> dict[str, CheckResult]:
    """The results of some of `ROW_CHECKS`, by name; all rows of the mirror are read once for all of them.

    Raises:
        ConfigError: see `mirror_rows`.
        TemporaryFolderError: likewise.
    """
    with mirror_rows(subject) as rows:
        return {name: ROW_CHECKS[name](rows) for name in names}


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
    wrong = [
        text
        for name, (rows, expected) in pairs.items()
        for text in _differences(name, compare(columns_of(rows, expected.schema), expected, sort_by=base.key))
    ]
    if made.num_missed != required.num_missed:
        wrong.append(f"{made.num_missed:,} removals without a row instead of {required.num_missed:,}")
    return "; ".join(wrong) or None


@dataclass(frozen=True, slots=True)
class NeedsAllRows:
    """Why a mirror cannot be checked by the keys that changed."""

    reason: str


CHANGED_SHARE = 8
"""Part of the memory that the rows that changed may take as they are read: they are held in several forms at once."""
NO_LOG = "there is no key, no change log, or no such snapshot"
TOO_MANY = "more has changed since than is compared in memory at once"


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
    found = changed_keys(subject.change_log, key, after_ordinal=since, up_to_ordinal=until, **subject.store)
    if found is None:
        return NeedsAllRows("the table was truncated since")
    # keys of the log in the types of the table, which may be wider
    schema = subject.opened.scan().select(*key).arrow_schema
    columns = [
        c if isinstance(f.type, pa.BaseExtensionType) else c.cast(f.type)
        for c, f in zip(found.select(key), schema, strict=True)
    ]
    keys = pa.table(columns, names=key)
    if any(column.null_count for column in keys.columns):  # which no semi join finds
        return NeedsAllRows("a key without a value has changed since")
    scan = subject.opened.scan()
    green = scan.as_of_snapshot(green_id)
    try:
        moved = _held(scan.changes(green_id), limit).select(key)
        now, before = (_held(side.semi_join(key, keys), limit) for side in (scan, green))
    except ScanError as error:
        return NeedsAllRows(f"what changed since cannot be read: {error}")
    with open_connection() as connection:
        known = Relation.of(connection, keys)
        if Relation.of(connection, moved).among(known, "ANTI").num_rows:
            return NeedsAllRows("rows changed whose keys the log did not change: which check they fail, all rows show")
        required = fold_log(
            subject.change_log,
            key,
            up_to_ordinal=until,
            adopted=AdoptedRows(subject.table, green_id, since, DELETED_FLAG if subject.soft_delete else None, before),
            **subject.store,
        )
        found_rows = alive(Relation.of(connection, now), subject)
        compared = {
            "keys changed": keys.num_rows,
            "rows from engine": found_rows.num_rows,
            "rows by log": required.rows.num_rows,
        }
        expected = Relation.of(connection, columns_of(required.rows, found_rows.schema))
        difference = found_rows.compare(expected, key)
        wrong = _differences(LOG, difference)
        offending = [*sample(difference.left_only.select(key)), *sample(difference.right_only.select(key))]
        return (
            _absent_keys(Relation.of(connection, required.deleted_keys), found_rows.select(key), compared),
            result_of(EQUAL, compared, wrong, offending),
            _unique_keys(found_rows.select(key), compared),
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
    return since, until


def _held(rows: Scan | Changes, limit: int) -> pa.Table:
    """Rows in memory.

    Raises:
        MemoryLimitError: they take more bytes.
    """
    batches, num_bytes = [], 0
    for batch in rows.to_batches():
        batches.append(batch)
        num_bytes += batch.nbytes
        if num_bytes > limit:
            raise MemoryLimitError(TOO_MANY)
    return pa.Table.from_batches(batches, schema=rows.arrow_schema)
