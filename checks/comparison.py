"""Rows compared with rows: what is missing, unexpected, or different."""

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from nevermore.checks.reference.sql_columns import open_connection
from nevermore.pipelines.iceberg.row_shape import python_rows

MAX_OFFENDING_KEYS = 20
"""Maximum keys or rows in a result: enough to see a pattern, few enough to read."""


def sample(table: pa.Table) -> list[dict[str, Any]]:
    """The first rows of a table, as `offending_keys` holds them."""
    return python_rows(table.slice(0, MAX_OFFENDING_KEYS))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two tables differ. `left_only` and `right_only` have up to 20 surplus rows, sorted by the key columns."""

    num_left_only: int
    num_right_only: int
    left_only: pa.Table
    right_only: pa.Table
    type_differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether columns, types and rows are equal, including the number of copies of each row."""
        return not self.type_differences and self.num_left_only == self.num_right_only == 0


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows in DuckDB.

    Attributes:
        connection: the database that has them.
        sql: a table or sub-query with the columns c0, c1, ...
        schema: their names and canonical types.
    """

    connection: duckdb.DuckDBPyConnection
    sql: str
    schema: pa.Schema

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> "Relation":
        """Rows in memory, as long as the connection is open."""
        rows, name = canonical(rows), f"rows_{next(_numbers)}"
        # DuckDB refuses structs within structs in the pieces into which chunks of columns cut each other
        connection.register(name, numbered(rows).combine_chunks())
        return cls(connection, name, rows.schema)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.connection.execute(f"SELECT count(*) FROM {self.sql}").fetchall()[0][0])

    def select(self, names: Iterable[str], condition: str = "true") -> "Relation":
        """Some columns of the rows that fulfil a condition in SQL."""
        places = [self.schema.get_field_index(name) for name in names]
        columns = ", ".join(f"c{place} AS c{i}" for i, place in enumerate(places))
        sql = f"(SELECT {columns} FROM {self.sql} WHERE {condition})"
        return Relation(self.connection, sql, pa.schema([self.schema.field(place) for place in places]))

    def among(self, others: "Relation", kind: str = "SEMI") -> "Relation":
        """The rows whose first columns are those of others, or of no other (`ANTI`); NULL equals NULL."""
        on = " AND ".join(f"l.c{i} IS NOT DISTINCT FROM r.c{i}" for i in range(len(others.schema)))
        return Relation(
            self.connection, f"(SELECT l.* FROM {self.sql} AS l {kind} JOIN {others.sql} AS r ON {on})", self.schema
        )

    def sample(self) -> list[dict[str, Any]]:
        """The first rows, as `offending_keys` holds them."""
        found = self.connection.sql(f"SELECT * FROM {self.sql} ORDER BY ALL LIMIT {MAX_OFFENDING_KEYS}")
        return sample(found.to_arrow_table().rename_columns(self.schema.names))

    def compare(self, other: "Relation", sort_by: Sequence[str] = ()) -> Comparison:
        """How the rows differ from others; see `compare`."""
        none, differences = self.schema.empty_table(), _type_differences(self.schema, other.schema)
        if differences or not self.schema.names:
            return Comparison(self.num_rows, other.num_rows, none, none, differences)
        return surplus_rows(self.connection, self.sql, other.sql, self.schema, sort_by=sort_by)


_numbers = itertools.count()


def numbered(rows: pa.Table) -> pa.Table:
    """The rows with columns renamed to c0, c1, ..."""
    return rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])


def compare(left: pa.Table, right: pa.Table, sort_by: Sequence[str] = ()) -> Comparison:
    """Compare two tables as multisets of rows; the rows that differ are listed in the order of the columns `sort_by`.

    If columns or types differ, rows are not compared and all count as different.
    """
    with open_connection() as connection:
        return Relation.of(connection, left).compare(Relation.of(connection, right), sort_by)


def canonical(table: pa.Table) -> pa.Table:
    """The rows in one encoding per type: plain offsets, no dictionaries, uuid as 16 bytes, fields nullable."""
    schema = canonical_schema(table.schema)
    columns = [_recoded(c, f.type) for c, f in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """The columns in the encodings of `canonical`."""
    return pa.schema([pa.field(f.name, canonical_type(f.type)) for f in schema])


def canonical_type(kind: pa.DataType) -> pa.DataType:
    """The single encoding in which values of a type are compared."""
    if isinstance(kind, pa.BaseExtensionType):
        return canonical_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return canonical_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, canonical_type(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(canonical_type(kind.key_type), canonical_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", canonical_type(kind.value_type)))
    return kind


def _recoded(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    chunks = [c.storage if isinstance(c.type, pa.BaseExtensionType) else c for c in column.chunks]
    return pa.chunked_array([c.cast(kind) for c in chunks], kind)


def _type_differences(left: pa.Schema, right: pa.Schema) -> tuple[str, ...]:
    if left.names != right.names:
        return (f"columns {left.names} and {right.names}",)
    pairs = zip(left, right, strict=True)
    return tuple(f"column {a.name}: {a.type} and {b.type}" for a, b in pairs if not a.type.equals(b.type))


def _comparable(sql: str, kind: pa.DataType, depth: int = 0) -> str:
    """SQL for a value such that equality is that of its bits: floats as text, which tells -0.0 from 0.0, and maps as lists."""
    if pa.types.is_floating(kind):
        return f"CASE WHEN isnan({sql}) THEN 'nan' ELSE CAST({sql} AS VARCHAR) END"
    if pa.types.is_struct(kind):
        parts = [_comparable(f"struct_extract_at({sql}, {i})", f.type, depth) for i, f in enumerate(kind, 1)]
        return f"CASE WHEN {sql} IS NULL THEN NULL ELSE row({', '.join(parts)}) END" if parts else sql
    if pa.types.is_map(kind):
        entries = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
        return _comparable(f"map_entries({sql})", entries, depth)
    if pa.types.is_list(kind):
        return f"list_transform({sql}, lambda x{depth}: {_comparable(f'x{depth}', kind.value_type, depth + 1)})"
    return sql


TOLERANCE = 1e-9
"""Relative to the larger value, or absolute for values below 1. Decimals may differ by their last digit, because engines round a half up or down."""


def surplus_rows(
    connection: duckdb.DuckDBPyConnection,
    left: str,
    right: str,
    schema: pa.Schema,
    close: Collection[str] = (),
    *,
    sort_by: Sequence[str] = (),
) -> Comparison:
    """Compare two relations as multisets of rows. DuckDB spills what does not fit into memory.

    If they differ, all rows that only one side has stay in the temporary table `surplus`: their columns as lc0, lc1, ... where
    the left side has them, and as rc0, rc1, ... where the right side has; `ln` and `rn` are NULL for a side that has none.

    Args:
        connection: the database that has the rows.
        left: a relation in SQL, with the columns c0, c1, ... in the same types as `right`.
        right: another one.
        schema: names and types of the columns.
        close: numeric columns that need not be equal to the last digit; rows are matched by all other columns.
        sort_by: the columns by which rows are listed first.
    """
    names = [f"c{i}" for i in range(len(schema))]
    kinds = dict(zip(names, schema.types, strict=True))
    measured = [name for name, field in zip(names, schema, strict=True) if field.name in close]
    exact = {f"e{i}": _comparable(n, kinds[n]) for i, n in enumerate(names) if n not in measured}
    values = ", ".join([*(f"{sql} AS {name}" for name, sql in exact.items()), *measured])
    every = ", ".join([*exact, *measured])
    # most groups of rows are equal to the last digit: only the others are sorted to find which rows belong together
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE differing AS SELECT DISTINCT {', '.join(exact) or 'true'} FROM ("
        f"SELECT {every} FROM (SELECT {values}, 1 AS weight FROM {left} UNION ALL SELECT {values}, -1 FROM {right}) "
        f"GROUP BY {every} HAVING sum(weight) <> 0)"
    )
    ((num_differing,),) = connection.execute("SELECT count(*) FROM differing").fetchall()
    if not num_differing:
        return Comparison(0, 0, schema.empty_table(), schema.empty_table(), ())
    same_group = " AND ".join(f"{sql} IS NOT DISTINCT FROM d.{n}" for n, sql in exact.items()) or "true"
    parts = f"PARTITION BY {', '.join(exact)}" if exact else ""
    order = f"ORDER BY {', '.join([*(_rounded(n) for n in measured), *measured])}" if measured else ""
    columns = ", ".join([*names, *(f"d.{n}" for n in exact)])
    for side, rows in (("l", left), ("r", right)):
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {side} AS SELECT {columns}, row_number() OVER ({parts} {order}) AS n "
            f"FROM {rows} AS g JOIN differing AS d ON {same_group}"
        )
    on = " AND ".join(["l.n = r.n", *(f"l.{n} IS NOT DISTINCT FROM r.{n}" for n in exact)])
    differs = " OR ".join(f"NOT ({_is_close(n, kinds[n])})" for n in measured) or "false"
    columns = ", ".join(f"{side}.{n} AS {side}{n}" for side in "lr" for n in (*names, "n"))
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE surplus AS SELECT {columns} FROM l FULL JOIN r ON {on} "
        f"WHERE l.n IS NULL OR r.n IS NULL OR {differs}"
    )
    found = []
    first = [schema.get_field_index(name) for name in sort_by]
    places = dict.fromkeys([*first, *range(len(names))])
    for side in "lr":
        shown, order = (", ".join(f"{side}c{i}" for i in some) for some in (range(len(names)), places))
        rows = connection.sql(
            f"SELECT {shown} FROM surplus WHERE {side}n IS NOT NULL ORDER BY {order} LIMIT {MAX_OFFENDING_KEYS}"
        ).to_arrow_table()
        found.append(rows.rename_columns(schema.names))
    ((more, fewer),) = connection.execute("SELECT count(ln), count(rn) FROM surplus").fetchall()
    for table in ("differing", "l", "r"):
        connection.execute(f"DROP TABLE {table}")
    return Comparison(int(more), int(fewer), found[0], found[1], ())


def _rounded(name: str) -> str:
    """A number rounded to six digits, so that values that differ by their last digit sort by the next column."""
    value = f"CAST({name} AS DOUBLE)"
    return f"CASE WHEN isfinite({value}) THEN CAST(format('{{:.6e}}', {value}) AS DOUBLE) ELSE {value} END"


def _is_close(name: str, kind: pa.DataType) -> str:
    one, other = f"CAST(l.{name} AS DOUBLE)", f"CAST(r.{name} AS DOUBLE)"
    last_digit = 1.5 * 10.0**-kind.scale if pa.types.is_decimal(kind) else 0.0
    near = f"abs({one} - {other}) <= greatest({TOLERANCE} * greatest(abs({one}), abs({other}), 1), {last_digit!r})"
    return (
        f"l.{name} IS NOT DISTINCT FROM r.{name} OR coalesce(isfinite({one}) AND isfinite({other}) AND {near}, false)"
    )
