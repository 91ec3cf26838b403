"""Columns that late changes did not send, from what the log holds before them.

The mirror's row is the one after all that was applied, so it does not tell what a row was like at an earlier place. What
the log does not hold either (before its first change of a key) stays unsent, to be taken from the mirror.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_arrays import ChangeArrays
from pipelines.changes.change_batch import ORDER, ChangeBatch
from pipelines.changes.change_log import ChangeLog
from pipelines.changes.key_set import KeySet
from pipelines.changes.logged_changes import ORDINAL, in_change_schema
from pipelines.changes.touched_keys import keys_touched
from pipelines.changes.unsent_sources import UnsentSources, with_sent
from pipelines.tables.loaded_table import open_current
from pipelines.tables.row_shape import without_extensions
from scan_core.expr.nodes import col


def with_earlier_values(log: ChangeLog, changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """The changes with the columns that they did not send, as far as the log or earlier ones of them did.

    Args:
        log: holds everything before the first of them.
        changes: in the order that config asks for, without truncates, with rows of a type that takes the logged ones.
        key: columns that identify a row.
    """
    if not changes.num_rows or not pc.any(pc.greater(pc.list_value_length(changes.column("unchanged")), 0)).as_py():
        return changes
    earlier = _earlier(log, changes, key)
    both = pa.concat_tables([earlier, changes]).combine_chunks()
    arrays = ChangeArrays(both, key)
    alive, nothing = np.ones(len(arrays), np.bool_), np.zeros(len(arrays), np.bool_)
    while lost := (sources := UnsentSources(arrays, alive, nothing, truncated=False)).unresolved():
        for rows in lost.values():
            alive[rows] = False
    own = np.arange(earlier.num_rows, both.num_rows)
    return with_sent(changes, arrays, sources, own, chosen=alive[own])


def _earlier(log: ChangeLog, changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """What the log has before some changes: of their keys, and of keys that their rows had before; in order."""
    first = changes.column(ORDER)[0].as_py()
    scan = open_current(log.table).scan().where((col(ORDER) <= first) | col(ORDER).is_null())
    wanted = keys_touched(changes, key)
    while True:
        keys, kept = KeySet(wanted.columns), [changes.slice(0, 0)]
        for part in scan.to_batches():
            rows = without_extensions(pa.Table.from_batches([part]))
            found = keys.find(keys_touched(rows, key).columns).reshape(2, -1).max(axis=0) >= 0
            chosen = rows.filter(pc.or_(pa.array(found), pc.equal(rows.column("op"), "t")))
            kept.append(_like(changes, chosen, key))
        earlier = pa.concat_tables(kept, promote_options="permissive")
        touched = keys_touched(earlier.filter(pc.not_equal(earlier.column("op"), "t")), key)
        new = touched.filter(pa.array(keys.find(touched.columns) < 0))
        if new.num_rows == 0:
            break
        wanted = pa.concat_tables([wanted, new], promote_options="permissive")
    order = [(ORDER, "ascending", "at_start"), (ORDINAL, "ascending", "at_start")]
    if ORDINAL in earlier.column_names:
        earlier = earlier.take(pc.sort_indices(earlier, order)).drop_columns([ORDINAL])
    truncates = np.flatnonzero(np.asarray(pc.equal(earlier.column("op"), "t")))
    return earlier.slice(int(truncates[-1]) + 1 if len(truncates) else 0)


def _like(changes: pa.Table, logged: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows of a log in the schema of changes, with their ordinals."""
    own = ChangeBatch(in_change_schema(logged, key), logged.schema.field("after").type, tuple(key))
    rows = own.in_row_type(changes.schema.field("after").type).table
    return rows.append_column(ORDINAL, logged.column(ORDINAL))
