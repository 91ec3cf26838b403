"""Results of checks, and rows compared with rows: what is missing, unexpected, or different."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.checks.reference.sql_columns import open_connection
from nevermore.pipelines.iceberg.row_shape import python_rows

MAX_OFFENDING_KEYS = 20
"""Maximum keys or rows in a result: enough to see a pattern, few enough to read."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: name of the check.
        passed: whether the table is as it should be.
        compared: counts, by a short name, e.g. `rows in mirror`.
        offending_keys: up to 20 keys or rows that are wrong, as Python values by column.
        details: what is wrong, one statement each; notes when passed.
        severity: whether a failure stops what is published from the table, or is only reported.
        reproduce: commands that show what became of some of the keys.
        partitions: keys of the partitions that have what is wrong; empty if that is not known.
    """

    name: str
    passed: bool
    compared: Mapping[str, int] = field(default_factory=dict)
    offending_keys: Sequence[Mapping[str, Any]] = ()
    details: Sequence[str] = ()
    severity: Literal["block", "warn"] = "block"
    reproduce: Sequence[str] = ()
    partitions: Sequence[str] = ()

    @property
    def blocks(self) -> bool:
        """Whether nothing may be published because of this result."""
        return not self.passed and self.severity == "block"

    def counts(self) -> str:
        """What was compared: `1 row in table, 2,000 changes in log`."""
        plural = re.compile(r"s\b")
        return ", ".join(
            f"{count:,} {plural.sub('', what, count=1) if count == 1 else what}"
            for what, count in self.compared.items()
        )

    def summary(self) -> str:
        """One line for people, in Dagster, alerts and snapshots: the words of `nevermore check`, then what is wrong."""
        return "; ".join(filter(None, [self.counts(), *self.details])) or "nothing to compare"


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


def compare(left: pa.Table, right: pa.Table, sort_by: Sequence[str] = ()) -> Comparison:
    """Compare two tables as multisets of rows; the rows that differ are listed in the order of the columns `sort_by`.

    If columns or types differ, rows are not compared and all count as different.
    """
    left, right = canonical(left), canonical(right)
    differences = _type_differences(left.schema, right.schema)
    if differences or not left.schema.names:
        return Comparison(left.num_rows, right.num_rows, left.slice(0, 0), right.slice(0, 0), differences)
    names = [f"c{i}" for i in range(left.num_columns)]
    order = ", ".join(names[left.schema.get_field_index(name)] for name in sort_by) or ", ".join(names)
    with open_connection() as connection:
        for side, rows in (("left_rows", left), ("right_rows", right)):
            columns = [
                pa.chunked_array([_array_bits(c) for c in rows[i].chunks], _bits_type(f.type))
                for i, f in enumerate(rows.schema)
            ]
            places = pa.array(np.arange(rows.num_rows))
            connection.register(side, pa.table([*columns, places], names=[*names, "place"]))
        connection.execute(
            f"CREATE TEMP TABLE surplus AS SELECT {', '.join(names)}, sum(weight) AS surplus, "
            "min(place) FILTER (weight > 0) AS left_place, min(place) FILTER (weight < 0) AS right_place FROM ("
            "SELECT *, 1 AS weight FROM left_rows UNION ALL SELECT *, -1 AS weight FROM right_rows) "
            f"GROUP BY {', '.join(names)} HAVING sum(weight) <> 0"
        )
        ((more, fewer),) = connection.execute(
            "SELECT coalesce(sum(surplus) FILTER (surplus > 0), 0), coalesce(-sum(surplus) FILTER (surplus < 0), 0) "
            "FROM surplus"
        ).fetchall()
        left_only, right_only = (
            rows.take(
                connection.sql(
                    f"SELECT {place} FROM surplus WHERE surplus {sign} 0 ORDER BY {order} LIMIT {MAX_OFFENDING_KEYS}"
                ).to_arrow_table()[0]
            )
            for rows, place, sign in ((left, "left_place", ">"), (right, "right_place", "<"))
        )
    return Comparison(int(more), int(fewer), left_only, right_only, ())


def canonical(table: pa.Table) -> pa.Table:
    """The same rows in one encoding per type: plain offsets, no dictionaries, uuid as 16 bytes, fields nullable."""
    fields = [pa.field(f.name, canonical_type(f.type)) for f in table.schema]
    columns = [_recoded(c, f.type) for c, f in zip(table.columns, fields, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


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


def _bits_type(kind: pa.DataType) -> pa.DataType:
    """The type with integers for floats and lists for maps, so that SQL compares values exactly."""
    if pa.types.is_null(kind) or pa.types.is_float32(kind):
        return pa.int32()
    if pa.types.is_float64(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _bits_type(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return _bits_type(_entries(kind))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _bits_type(kind.value_type)))
    return kind


def _entries(kind: pa.DataType) -> pa.DataType:
    """The type of a map as a list of its entries."""
    entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    return pa.list_(pa.field("element", entry))


def _array_bits(array: pa.Array) -> pa.Array:
    """Values with floats as the integers of their bits, and one bit pattern for every NaN."""
    kind, wanted = array.type, _bits_type(array.type)
    if pa.types.is_null(kind):
        return pa.nulls(len(array), wanted)
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        values = array.fill_null(0).to_numpy(zero_copy_only=False).copy()
        values[np.isnan(values)] = np.nan
        return pa.array(values.view(f"i{values.itemsize}"), wanted, mask=nulls)
    if pa.types.is_map(kind):
        return _array_bits(array.cast(_entries(kind)))
    if kind.equals(wanted):
        return array
    mask = pa.array(nulls)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [_array_bits(child) for child in array.flatten()], fields=list(wanted), mask=mask
        )
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, _array_bits(array.flatten()), type=wanted, mask=mask)


TOLERANCE = 1e-9
"""Relative to the larger value, or absolute for values below 1. Decimals may differ by their last digit, because engines round a half up or down."""


def surplus_rows(
    connection: duckdb.DuckDBPyConnection, left: str, right: str, schema: pa.Schema, close: Collection[str]
) -> tuple[pa.Table, pa.Table, int, int]:
    """Rows that only one side has: up to 20 of each side, and their numbers. DuckDB spills what does not fit into memory.

    If there are any, all of them stay in the temporary table `surplus`: their columns as lc0, lc1, ... where the left side
    has them, and as rc0, rc1, ... where the right side has; `ln` and `rn` are NULL for a side that has none.

    Args:
        connection: the database that has the rows.
        left: a relation in SQL, with the columns c0, c1, ... in the same types as `right`.
        right: another one.
        schema: names and types of the columns.
        close: numeric columns that need not be equal to the last digit; rows are matched by all other columns.
    """
    names = [f"c{i}" for i in range(len(schema))]
    kinds = dict(zip(names, schema.types, strict=True))
    measured = [name for name, field in zip(names, schema, strict=True) if field.name in close]
    exact = [name for name in names if name not in measured]
    every = ", ".join(names)
    # most groups of rows are equal to the last digit: only the others are sorted to find which rows belong together
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE differing AS SELECT DISTINCT {', '.join(exact) or 'true'} FROM ("
        f"SELECT {every} FROM (SELECT {every}, 1 AS weight FROM {left} UNION ALL SELECT {every}, -1 FROM {right}) "
        f"GROUP BY {every} HAVING sum(weight) <> 0)"
    )
    ((num_differing,),) = connection.execute("SELECT count(*) FROM differing").fetchall()
    if not num_differing:
        return schema.empty_table(), schema.empty_table(), 0, 0
    same_group = " AND ".join(f"g.{n} IS NOT DISTINCT FROM d.{n}" for n in exact) or "true"
    parts = f"PARTITION BY {', '.join(exact)}" if exact else ""
    order = f"ORDER BY {', '.join([*(_rounded(n) for n in measured), *measured])}" if measured else ""
    for side, rows in (("l", left), ("r", right)):
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {side} AS SELECT {every}, row_number() OVER ({parts} {order}) AS n "
            f"FROM {rows} AS g SEMI JOIN differing AS d ON {same_group}"
        )
    on = " AND ".join(["l.n = r.n", *(f"l.{n} IS NOT DISTINCT FROM r.{n}" for n in exact)])
    differs = " OR ".join(f"NOT ({_is_close(n, kinds[n])})" for n in measured) or "false"
    columns = ", ".join(f"{side}.{n} AS {side}{n}" for side in "lr" for n in (*names, "n"))
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE surplus AS SELECT {columns} FROM l FULL JOIN r ON {on} "
        f"WHERE l.n IS NULL OR r.n IS NULL OR {differs}"
    )
    found = []
    for side in "lr":
        shown = ", ".join(f"{side}{n}" for n in names)
        rows = connection.sql(
            f"SELECT {shown} FROM surplus WHERE {side}n IS NOT NULL ORDER BY ALL LIMIT {MAX_OFFENDING_KEYS}"
        ).to_arrow_table()
        found.append(rows.rename_columns(schema.names))
    ((more, fewer),) = connection.execute("SELECT count(ln), count(rn) FROM surplus").fetchall()
    for table in ("differing", "l", "r"):
        connection.execute(f"DROP TABLE {table}")
    return found[0], found[1], int(more), int(fewer)


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
