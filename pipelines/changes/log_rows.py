"""Changes as rows of a log: numbered, placed in the order that config asks for; a truncate as one of them.

When they are appended, and at which position, is the business of `change_log.py`.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_batch import ORDER, PROVENANCE, ChangeBatch
from pipelines.changes.change_run import Changes
from pipelines.changes.logged_changes import ORDINAL

FIXED_COLUMNS = pa.schema([pa.field(ORDINAL, pa.int64()), pa.field("op", pa.string()), *PROVENANCE])
"""What every log has from the start; key, before and after come with the first changes."""


def truncate(like: ChangeBatch) -> pa.Table:
    """A truncate, as a change of the same table."""
    schema = like.table.schema
    given = {
        "op": "t",
        "unchanged": [],
        "ingested_at": like.table.column("ingested_at")[0].as_py(),
        "schema_version": 0,
    }
    return pa.Table.from_pylist([given], schema)


def placed(changes: pa.Table, place: str) -> pa.Table:
    """The changes, all of them at one place in the order that config asks for."""
    column = pa.repeat(place, changes.num_rows)
    if ORDER in changes.column_names:
        return changes.set_column(changes.schema.get_field_index(ORDER), ORDER, column)
    return changes.append_column(ORDER, column)


def numbered_from(changes: pa.Table, first: int) -> pa.Table:
    """The changes with ordinals from `first` on."""
    ordinals = pa.array(np.arange(first, first + changes.num_rows, dtype=np.int64))
    return changes.add_column(0, pa.field(ORDINAL, pa.int64()), ordinals)


def highest_place(changes: pa.Table) -> str | None:
    """The highest place in the order that config asks for, if it asks for one."""
    return pc.max(changes.column(ORDER)).as_py() if ORDER in changes.column_names else None


def key_of(changes: Changes) -> tuple[str, ...]:
    """Names of the key columns; none without changes."""
    first = next(changes.tables(), None)
    return () if first is None else tuple(f.name for f in first.schema.field("key").type)
