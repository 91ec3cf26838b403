"""Two Arrow tables as multisets of rows, where some columns need only be close: sums of floats depend on their order."""

from collections.abc import Collection

import pyarrow as pa

from checks.compare import canonical
from checks.oracle.connection import open_connection
from checks.result import MOST_OFFENDING_KEYS

TOLERANCE = 1e-9
"""Of the larger value, or absolute below one; of decimals their last digit, where engines may round a half either way."""


def surplus_rows(left: pa.Table, right: pa.Table, close: Collection[str]) -> tuple[pa.Table, pa.Table, int, int]:
    """Rows that only one side has: up to 20 of each, and how many there are.

    Args:
        left: of the same columns and types as `right`.
        right: the other side.
        close: numeric columns that need not be equal to the last digit; rows pair up by all others.
    """
    names = [f"c{i}" for i in range(left.num_columns)]
    is_close = [name in close for name in left.column_names]
    exact = [n for n, c in zip(names, is_close, strict=True) if not c]
    measured = [n for n, c in zip(names, is_close, strict=True) if c]
    kinds = dict(zip(names, left.schema.types, strict=True))
    with open_connection() as connection:
        for side, rows in (("l", left), ("r", right)):
            connection.register(f"{side}_given", canonical(rows).rename_columns(names))
            parts = f"PARTITION BY {', '.join(exact)}" if exact else ""
            order = f"ORDER BY {', '.join([*(_rounded(n) for n in measured), *measured])}" if measured else ""
            connection.execute(
                f"CREATE TEMP TABLE {side} AS SELECT *, row_number() OVER ({parts} {order}) AS n FROM {side}_given"
            )
        on = " AND ".join(["l.n = r.n", *(f"l.{n} IS NOT DISTINCT FROM r.{n}" for n in exact)])
        differs = " OR ".join(f"NOT ({_is_close(n, kinds[n])})" for n in measured) or "false"
        columns = ", ".join(f"{side}.{n} AS {side}{n}" for side in "lr" for n in (*names, "n"))
        connection.execute(
            f"CREATE TEMP TABLE surplus AS SELECT {columns} FROM l FULL JOIN r ON {on} "
            f"WHERE l.n IS NULL OR r.n IS NULL OR {differs}"
        )
        found = []
        for side in "lr":
            shown = ", ".join(f"{side}{n}" for n in names)
            rows = connection.sql(
                f"SELECT {shown} FROM surplus WHERE {side}n IS NOT NULL ORDER BY ALL LIMIT {MOST_OFFENDING_KEYS}"
            ).to_arrow_table()
            found.append(rows.rename_columns(left.column_names))
        ((more, fewer),) = connection.execute("SELECT count(ln), count(rn) FROM surplus").fetchall()
    return found[0], found[1], int(more), int(fewer)


def _rounded(name: str) -> str:
    """Six digits: neighbours by the last digit sort by the next column."""
    value = f"CAST({name} AS DOUBLE)"
    return f"CASE WHEN isfinite({value}) THEN CAST(format('{{:.6e}}', {value}) AS DOUBLE) ELSE {value} END"


def _is_close(name: str, kind: pa.DataType) -> str:
    one, other = f"CAST(l.{name} AS DOUBLE)", f"CAST(r.{name} AS DOUBLE)"
    last_digit = 1.5 * 10.0**-kind.scale if pa.types.is_decimal(kind) else 0.0
    near = f"abs({one} - {other}) <= greatest({TOLERANCE} * greatest(abs({one}), abs({other}), 1), {last_digit!r})"
    return (
        f"l.{name} IS NOT DISTINCT FROM r.{name} OR coalesce(isfinite({one}) AND isfinite({other}) AND {near}, false)"
    )
