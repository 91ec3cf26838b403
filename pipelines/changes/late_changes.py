"""Changes that arrive too late for their place in the order of `order_by`.

Later changes of the same keys are logged again after them. Columns that were not sent are completed from the log.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_arrays import (
    COMPLETED,
    ChangeArrays,
    UnsentSources,
    lists_of,
    masks_of,
    with_sent,
)
from nevermore.pipelines.changes.change_log import ORDINAL, ChangeLog, in_change_schema, read_by_place
from nevermore.pipelines.changes.change_run import Changes
from nevermore.pipelines.changes.keys import KeySet, keys_touched, num_to_truncate, touched_by
from nevermore.pipelines.decode.batches import in_row_type
from nevermore.pipelines.decode.column_types import widened
from nevermore.pipelines.decode.feed import ORDER
from nevermore.pipelines.errors import SchemaConflictError
from nevermore.pipelines.iceberg.row_shape import single_array, with_columns, without_extensions
from nevermore.scan_core import Mask, Scan, col


def with_earlier_values(log: ChangeLog, changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Fill columns that changes did not send, as far as the log or earlier changes contain the values.

    Args:
        log: contains everything before the first of them.
        changes: in the order of `order_by`, without truncates, with rows of a type to which the logged ones can be
            cast.
        key: columns that identify a row.
    """
    if masks_of(single_array(changes.column("unchanged"))).keys() <= {COMPLETED}:  # all values are there
        return changes
    earlier = _earlier(log, changes, key)
    both = pa.concat_tables([earlier, changes]).combine_chunks()
    arrays = ChangeArrays(both, key)
    sources = UnsentSources(arrays, truncated=False)
    own = np.arange(earlier.num_rows, both.num_rows)
    return _marked(
        with_sent(changes, arrays, sources, own, chosen=sources.alive[own], mark=COMPLETED), _copies(changes)
    )


def _earlier(log: ChangeLog, changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Logged changes of the keys of some changes before them, since the last truncate; in order."""
    first = changes.column(ORDER)[0].as_py()
    scan = log.scan().where((col(ORDER) <= first) | col(ORDER).is_null())
    logged = _history(scan, changes, key, with_truncates=True)
    if logged is None:
        return changes.slice(0, 0)
    order = [(ORDER, "ascending", "at_start"), (ORDINAL, "ascending", "at_start")]
    earlier = _like(changes, logged, key)
    earlier = earlier.take(pc.sort_indices(earlier, order)).drop_columns([ORDINAL])
    return earlier.slice(num_to_truncate(earlier))


def _history(scan: Scan, changes: pa.Table, key: Sequence[str], *, with_truncates: bool = False) -> pa.Table | None:
    """Logged changes of the keys of some changes, and of keys that their rows had earlier or later."""
    wanted = keys_touched(changes, key)
    while True:  # each key change may lead to further keys
        keys, kept = KeySet(wanted.columns), []
        for part in scan.to_batches():
            rows = without_extensions(pa.Table.from_batches([part]))
            found = touched_by(rows, keys, key)
            if with_truncates:
                found |= np.asarray(pc.equal(rows.column("op"), "t"))
            kept.append(rows.filter(pa.array(found)))
        logged = pa.concat_tables(kept) if kept else None
        if logged is None or logged.num_rows == 0:
            return None
        touched = keys_touched(logged.filter(pc.not_equal(logged.column("op"), "t")), key)
        new = touched.filter(pa.array(keys.find(touched.columns) < 0))
        if new.num_rows == 0:
            return logged
        wanted = pa.concat_tables([wanted, new], promote_options="permissive")


def _like(changes: pa.Table, logged: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows of a log in the schema of changes, with their ordinals; what late changes took from the log counts as not sent."""
    rows = in_row_type(in_change_schema(logged, key), changes.schema.field("after").type, key)
    lists = single_array(rows.column("unchanged"))
    unsent = pa.ListArray.from_arrays(lists.offsets, pc.utf8_ltrim(lists.values, COMPLETED), type=lists.type)
    return with_columns(rows, {"unchanged": unsent}).append_column(ORDINAL, logged.column(ORDINAL))


def with_later_changes(
    log: ChangeLog, changes: Changes, key: Sequence[str], limit_bytes: int, on_superseded: Callable[[int], None]
) -> Iterator[pa.Table]:
    """Add to late changes the logged changes of their keys that belong after them.

    Args:
        log: the change log before these changes.
        changes: in order, with rows of one type.
        key: columns that identify a row.
        limit_bytes: memory for the log after a late truncate, since all of it is logged again.
        on_superseded: called with the number of changes older than a truncate already applied: they have no effect and
            are dropped.

    Raises:
        SchemaConflictError: a column's type clashes with what is logged.
    """
    reached = log.order_reached
    row_type: pa.StructType | None = None
    for table in changes.tables():
        own = table.schema.field("after").type
        num_late = 0 if reached is None else int(np.asarray(pc.less(table.column(ORDER), reached)).sum())
        if num_late and row_type is None:
            row_type = _with_logged(own, log)
        batch = in_row_type(table, row_type or own, key)
        late, rest = batch.slice(0, num_late), batch.slice(num_late)
        if num_late:
            valid = _after_truncates(late, log)
            on_superseded(num_late - valid.num_rows)
            if pc.any(pc.equal(valid.column("op"), "t")).as_py():
                yield from _among_all(valid, log, key, limit_bytes)
            else:
                yield with_earlier_values(log, _with_later(valid, log, key), key)
        if rest.num_rows:
            yield rest


def _with_logged(row_type: pa.StructType, log: ChangeLog) -> pa.StructType:
    """Columns of the changes and of the log, in types that hold the values of both."""
    logged = pa.struct([pa.field(name, kind) for name, kind in log.row_types.items()])
    both = widened(row_type, logged)
    if both is None:
        raise SchemaConflictError(f"{log.name}: late changes have columns {row_type} that contradict {logged}")
    return pa.struct(list(both))


def _after_truncates(late: pa.Table, log: ChangeLog) -> pa.Table:
    """Changes that do not belong before a truncate of the log."""
    first = late.column(ORDER)[0].as_py()
    truncates = log.scan().select(ORDER).where((col("op") == "t") & (col(ORDER) > first)).to_table()
    newest = pc.max(truncates.column(ORDER)).as_py()
    return late if newest is None else late.filter(pc.greater_equal(late.column(ORDER), newest))


def _with_later(late: pa.Table, log: ChangeLog, key: Sequence[str]) -> pa.Table:
    """Late changes merged in order with the log's changes of their keys after the first of them."""
    if late.num_rows == 0:
        return late
    later = _history(log.scan().where(col(ORDER) > late.column(ORDER)[0].as_py()), late, key)
    return late if later is None else _merged(late, later, key)


def _among_all(late: pa.Table, log: ChangeLog, key: Sequence[str], limit_bytes: int) -> Iterator[pa.Table]:
    """Late changes merged in order with all the log's changes after the first, in tables of bounded size."""
    at, places = 0, late.column(ORDER)
    for rows, reached in read_by_place(log.table, places[0].as_py(), limit_bytes):
        end = int(pc.sum(pc.less_equal(places, reached)).as_py())
        yield _merged(late.slice(at, end - at), rows, key)
        at = end
    if at < late.num_rows:
        yield late.slice(at)


def _merged(late: pa.Table, later: pa.Table, key: Sequence[str]) -> pa.Table:
    """Late changes merged in order with those of the log, which are taken from where they were logged first."""
    logged = _like(late, later.filter(pa.array(~_copies(later))).sort_by(ORDINAL), key).drop_columns([ORDINAL])
    both = pa.concat_tables([logged, late])
    order = pc.sort_indices(both.column(ORDER))
    return _marked(both.take(order), np.asarray(order) < logged.num_rows)


def _copies(changes: pa.Table) -> Mask:
    """The changes that copy earlier ones of the log: `unchanged` names a column without a name as completed."""
    return masks_of(single_array(changes.column("unchanged"))).get(COMPLETED, np.zeros(changes.num_rows, np.bool_))


def _marked(changes: pa.Table, copies: Mask) -> pa.Table:
    """Changes with the mark of copies."""
    lists = single_array(changes.column("unchanged"))
    return with_columns(changes, {"unchanged": lists_of(masks_of(lists) | {COMPLETED: copies}, len(lists), lists.type)})
