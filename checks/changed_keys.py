"""The checks of a mirror over the keys that changed since a green snapshot, instead of over all of its rows.

What the log says of the changes since is folded onto the rows that the green snapshot had, and compared with the rows that
the engine returns now. A row that changed without a change in the log is a fault, whatever its key.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checks.compare import canonical, compare
from checks.equality import alive_rows, columns_of, statements
from checks.keys import common_keys, repeated_keys
from checks.oracle.connection import open_connection
from checks.reference import AdoptedRows, changed_keys, fold_log
from checks.result import MOST_OFFENDING_KEYS, CheckResult, sample
from checks.subject import DELETED_FLAG, Subject
from pipelines.tables.positions import LOG_ORDINAL
from scan_core.errors import ScanError
from scan_core.scan import Scan

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
