"""What holds of every table, whoever wrote it: filters split its rows, changes lead from a snapshot to the next."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core import ScanOptions, col
from nevermore.scan_core.expr.nodes import Expr
from nevermore.scan_core.scan import Table
from tests.support.rendering import rendered

_COMPARABLE = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string, pa.types.is_date)


def broken_laws(table: Table) -> Iterator[str]:
    """What is wrong with our reading of a table."""
    scan = table.scan()
    rows = rendered(scan.to_table())
    plain = scan.with_options(ScanOptions.without_optimisations())
    if rendered(plain.to_table()) != rows:
        yield "optimisations change the rows"
    if not len(rows) == scan.count() == plain.count():
        yield f"{len(rows)} rows, but the counts are {scan.count()} and {plain.count()}"
    for conditions in _splits(scan.to_table()):
        parts = [rendered(scan.where(c).to_table()) for c in conditions]
        if sorted(chain.from_iterable(parts)) != rows:
            yield f"rows under {[str(c) for c in conditions]}: {[len(p) for p in parts]} of {len(rows)}"
    for snapshot in table.metadata.snapshots.values():
        parent = table.metadata.snapshots.get(snapshot.parent_id or 0)
        if parent is not None:
            yield from _broken_changes(table, parent.snapshot_id, snapshot.snapshot_id)


def _splits(rows: pa.Table) -> Iterator[tuple[Expr, ...]]:
    """Conditions of which every row fulfils exactly one."""
    for operand, column in _operands(rows):
        yield operand.is_null(), operand.is_not_null()
        if any(comparable(column.type) for comparable in _COMPARABLE):
            values = sorted({value for value in column.to_pylist() if value is not None and not _is_nan(value)})
            for value in {*values[:1], *values[-1:]}:
                yield operand.is_null(), operand <= value, operand > value
                yield operand.is_null(), operand == value, operand != value


def _operands(rows: pa.Table) -> Iterator[tuple[Expr, pa.ChunkedArray]]:
    """Primitive columns and members of structs."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_struct(field.type):
            for member in field.type:
                yield col(field.name).member(member.name), pc.struct_field(column, member.name)
        elif not pa.types.is_nested(field.type):
            yield col(field.name), column


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _broken_changes(table: Table, parent_id: int, snapshot_id: int) -> Iterator[str]:
    before, after = (table.scan().as_of_snapshot(i) for i in (parent_id, snapshot_id))
    if before.schema != after.schema:
        return
    changes = after.changes(parent_id)
    found = Counter(rendered(before.to_table()))
    found.subtract(rendered(changes.deletes.to_table()))
    found.update(rendered(changes.inserts.to_table()))
    if +found != Counter(rendered(after.to_table())) or any(count < 0 for count in found.values()):
        yield f"changes do not lead from {parent_id} to {snapshot_id}"
