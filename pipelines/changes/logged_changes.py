"""What a change log holds, read back: changes by ordinal, the last truncate, how far files are in it, what is atomic.

Appending, and the position that goes with it, is the business of `change_log.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_batch import ORDER, change_schema
from pipelines.tables import positions
from pipelines.tables.loaded_table import open_current
from pipelines.tables.row_shape import without_extensions
from scan_core.expr.nodes import col

ORDINAL = "ordinal"
FIRST_ROWS = 10_000
"""Read first, while it is not known how wide they are."""


def read_changes(table: Any | None, after: int, end: int, limit_bytes: int) -> Iterator[pa.Table]:
    """Changes with ordinals in (after, end], in order, in tables of about `limit_bytes`."""
    if table is None:
        return
    step = FIRST_ROWS
    while after < end:
        last = min(after + step, end)
        scan = open_current(table).scan().where(f"{ORDINAL} > {after} and {ORDINAL} <= {last}")
        rows = without_extensions(scan.to_table().sort_by(ORDINAL))
        yield rows
        # What has been read tells how many of such changes memory takes next time.
        step = max(1, limit_bytes * rows.num_rows // max(rows.nbytes, 1)) if rows.num_rows else step
        after = last


def read_by_place(table: Any, after: str, limit_bytes: int) -> Iterator[tuple[pa.Table, str]]:
    """Changes whose place is after another one, in order of their places, in tables of about `limit_bytes`.

    Each comes with the place up to which all are read: those of one place are in one table. Of all of them at once only the
    places are held.
    """
    scan = open_current(table).scan()
    places = scan.select(ORDER).where(col(ORDER) > after).to_table().column(ORDER)
    ordered = places.take(pc.sort_indices(places))
    at, step = 0, FIRST_ROWS
    while at < len(ordered):
        last = ordered[min(at + step, len(ordered)) - 1].as_py()
        rows = without_extensions(scan.where((col(ORDER) > after) & (col(ORDER) <= last)).to_table())
        yield rows, last
        at, after = at + rows.num_rows, last
        step = max(1, limit_bytes * rows.num_rows // max(rows.nbytes, 1))


def last_truncate(table: Any | None) -> int:
    """The ordinal of the last truncate, 0 if there is none: what came before it leads to nothing."""
    if table is None:
        return 0
    found = open_current(table).scan().select(ORDINAL).where("op = 't'").to_table()
    return int(pc.max(found.column(ORDINAL)).as_py() or 0)


def last_offsets(table: Any | None, files: Sequence[str]) -> dict[str, int]:
    """The highest offset logged of each of these source files; files without any are left out."""
    if table is None or not files:
        return {}
    scan = open_current(table).scan().select("source_file", "source_offset")
    found = scan.where(col("source_file").is_in(list(files))).to_table()
    last = found.group_by("source_file").aggregate([("source_offset", "max")])
    return dict(zip(last.column("source_file").to_pylist(), last.column("source_offset_max").to_pylist(), strict=True))


def atomic_runs(table: Any | None, after: int) -> list[tuple[int, int]]:
    """First and last ordinal of what was appended atomically after an ordinal, as far as snapshots tell, in order."""
    found: list[tuple[int, int]] = []
    newer: tuple[int, bool] | None = None
    for snapshot in () if table is None else positions.ancestors(table):
        told = snapshot.summary.additional_properties if snapshot.summary else {}
        if (ordinal := told.get(positions.LAST_ORDINAL)) is None:
            continue
        if newer is not None and newer[1] and newer[0] > int(ordinal):
            found.append((int(ordinal) + 1, newer[0]))
        newer = int(ordinal), positions.ATOMIC in told
        if newer[0] <= after:
            return found[::-1]
    if newer is not None and newer[1]:
        found.append((1, newer[0]))
    return found[::-1]


def in_change_schema(logged: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows of a log as changes: their columns in order, named and typed as those of a batch."""
    schema = change_schema(_plain(logged.schema.field("after").type), key, is_ordered=True)
    columns = [
        logged.column(f.name).cast(f.type) if logged.schema.field(f.name).type != f.type else logged.column(f.name)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _plain(struct: pa.StructType) -> pa.StructType:
    return pa.struct([pa.field(f.name, f.type) for f in struct])
