"""The queries of the conformance matrix: on key, payload and partition columns of a table, with what each must give."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from nevermore import scan_core
from nevermore.scan_core import Scan, Table
from nevermore.scan_core.model.schema import Schema
from tests.support.fixture_tables import fixture_tables


@dataclass(frozen=True)
class Query:
    """`ask` narrows a scan of all columns; `answer` takes the rows of that scan to those of the query."""

    name: str
    ask: Callable[[Scan], Scan]
    answer: Callable[[pa.Table], pa.Table]


@cache
def opened(name: str) -> Table:
    """A fixture table, opened once."""
    table = fixture_tables()[name]
    return scan_core.open_table(table.metadata, relocate=table.relocate)


def queries(name: str, snapshot: str, rows: pa.Table) -> Iterator[Query]:
    """The queries that a snapshot of a fixture table is asked; `rows` are all its rows, of all or some columns."""
    schema = opened(name).scan().as_of(int(snapshot)).schema
    keys = [n for n in _key_columns(name, schema) if n in rows.column_names]
    partitions = [n for n in _partition_columns(name, schema) if n in rows.column_names]
    payload = [n for n in rows.column_names if n not in keys]
    yield Query("all", lambda scan: scan, lambda rows: rows)
    yield _columns("key only", keys)
    if payload:  # some tables have nothing but keys
        yield _columns("payload only", payload)
    for role, names in (("key", keys), ("payload", payload), ("partition", partitions)):
        for column in names[:2]:
            yield from _predicates(role, column, rows)


def _columns(name: str, columns: list[str]) -> Query:
    return Query(name, lambda scan: scan.select(*columns), lambda rows: rows.select(columns))


def _predicates(role: str, column: str, rows: pa.Table) -> Iterator[Query]:
    quoted = "`" + column.replace("`", "``") + "`"
    values = rows.column(column)
    for text, mask in ((f"{quoted} is null", values.is_null()), (f"{quoted} is not null", values.is_valid())):
        yield _filter(role, text, mask)
    literal = _literal(values)
    if literal is None:
        return
    value, sql = literal
    for operator, compare in (("=", pc.equal), ("<>", pc.not_equal), (">=", pc.greater_equal), ("<", pc.less)):
        yield _filter(role, f"{quoted} {operator} {sql}", compare(values, value))


def _filter(role: str, text: str, mask: pa.ChunkedArray) -> Query:
    return Query(f"{role}: {text}", lambda scan: scan.where(text), lambda rows: rows.filter(mask))


def _literal(values: pa.ChunkedArray) -> tuple[pa.Scalar, str] | None:
    """A value of the column and its SQL, for types whose literals are plain."""
    known = [v for v in values if v.is_valid]
    if not known:
        return None
    value, kind = known[len(known) // 2], values.type
    if pa.types.is_integer(kind):
        return value, str(value.as_py())
    if pa.types.is_decimal(kind):
        return value, f"cast('{value.as_py()}' as decimal({kind.precision}, {kind.scale}))"
    if pa.types.is_string(kind) and value.as_py().isprintable() and "\\" not in value.as_py():
        return value, "'" + value.as_py().replace("'", "''") + "'"
    return (value, f"date '{value.as_py().isoformat()}'") if pa.types.is_date(kind) else None


def _key_columns(name: str, schema: Schema) -> list[str]:
    """Columns by which some snapshot of the table deletes, at the top level; the first column if none does."""
    return _named(_delete_keys(name), schema) or list(schema.names[:1])


@cache
def _delete_keys(name: str) -> frozenset[int]:
    table = opened(name)
    plans = (table.scan().as_of(int(s)).plan() for s in fixture_tables()[name].facts["rows_by_snapshot"])
    groups = [group for plan in plans for task in plan.tasks for group in task.equality_deletes]
    return frozenset(field_id for group in groups for field_id in group.key_ids)


def _partition_columns(name: str, schema: Schema) -> list[str]:
    specs = opened(name).metadata.specs.values()
    return _named(frozenset(field.source_id for spec in specs for field in spec.fields), schema)


def _named(field_ids: frozenset[int], schema: Schema) -> list[str]:
    top = {schema.path(i)[0].name for i in field_ids if i in schema}
    return [n for n in schema.names if n in top]
