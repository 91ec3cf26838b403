"""Rows that a mirror had before its change log: put before the log's changes as inserts, in SQL.

Columns and types are then those of the mirror, with what only the log knows behind them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from checks.oracle import types

Field = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AdoptedRows:
    """The rows that a mirror started from.

    Attributes:
        table: metadata file or directory of the mirror.
        snapshot_id: whose rows they are; None for no rows.
        ordinal: the last change of the log that they hold already.
        flag: a column of the mirror's writer, true for rows that are gone; not among the columns of the log.
        rows: those rows themselves, where not all of the snapshot's are meant; without `flag`.
    """

    table: str | Path
    snapshot_id: int | None
    ordinal: int
    flag: str | None = None
    rows: pa.Table | None = None


def put_before(
    connection: duckdb.DuckDBPyConnection,
    rows: str,
    adopted: AdoptedRows,
    *,
    fields: Sequence[Field],
    after: Sequence[Field],
    key: Sequence[Field],
) -> tuple[list[Field], list[Field]]:
    """Put rows before the relation `changes`, of the same connection.

    Args:
        connection: with `changes`: ordinal, op, key, after and unchanged, of a log.
        rows: SQL for the adopted rows with columns v0, v1, ... as `fields`.
        adopted: what they are.
        fields: columns of the mirror.
        after: members of `after` in the log.
        key: members of `key` in the log.

    Returns:
        The members of `after` and of `key` now.
    """
    own = {f["name"]: f for f in fields if f["name"] != adopted.flag}
    columns = [*own.values(), *(f for f in after if f["name"] not in own)]
    keys = [own.get(f["name"], f) for f in key]
    values = {f["name"]: f"v{i}" for i, f in enumerate(fields)}
    alive = f"NOT coalesce({values[adopted.flag]}, false)" if adopted.flag in values else "true"
    connection.execute(
        f"CREATE TEMP TABLE adopted_rows AS SELECT {_struct(columns, values)} AS after, {_struct(keys, values)} AS key "
        f"FROM ({rows}) WHERE {alive}"
    )
    logged, logged_key = (
        {f["name"]: f"struct_extract_at({source}, {i})" for i, f in enumerate(members, 1)}
        for source, members in (("after", after), ("key", key))
    )
    connection.execute("ALTER TABLE changes RENAME TO logged_changes")
    connection.execute(
        "CREATE TEMP TABLE changes AS "
        "SELECT row_number() OVER () - 1 AS ordinal, 'c' AS op, key, after, CAST([] AS VARCHAR[]) AS unchanged "
        "FROM adopted_rows UNION ALL "
        "SELECT ordinal + (SELECT count(*) FROM adopted_rows), op, "
        f"CASE WHEN key IS NULL THEN NULL ELSE {_struct(keys, logged_key)} END, "
        f"CASE WHEN after IS NULL THEN NULL ELSE {_struct(columns, logged)} END, unchanged FROM logged_changes"
    )
    return columns, keys


def _struct(fields: Sequence[Field], values: Mapping[str, str]) -> str:
    """A struct of these fields, of values by name; NULL where there is none."""
    members = (
        f"{name} := CAST({values.get(f['name'], 'NULL')} AS {types.nested_sql_type(f['type'])})"
        for name, f in zip(types.member_names(fields), fields, strict=True)
    )
    return f"struct_pack({', '.join(members)})"
