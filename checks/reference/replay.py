"""Folds a change log in SQL to the last state of every key (rules 26 and 28).

The rows that a table had when it was adopted come before its log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from checks.reference import sql_columns

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
        f"{name} := CAST({values.get(f['name'], 'NULL')} AS {sql_columns.nested_sql_type(f['type'])})"
        for name, f in zip(sql_columns.member_names(fields), fields, strict=True)
    )
    return f"struct_pack({', '.join(members)})"


@dataclass(frozen=True)
class Members:
    """Names of the members of `key` and `after`, read by place: DuckDB takes `id` and `ID` for one name."""

    key: Sequence[str]
    after: Sequence[str]

    def of_key(self, name: str) -> str:
        """SQL for a member of `key`."""
        return f"struct_extract_at(key, {self.key.index(name) + 1})"

    def of_after(self, name: str, relation: str = "") -> str:
        """SQL for a member of `after`, of a relation with its dot."""
        return f"struct_extract_at({relation}after, {self.after.index(name) + 1})"


def replay(
    connection: duckdb.DuckDBPyConnection, log: str, key: Sequence[str], columns: Sequence[str], members: Members
) -> str:
    """SQL for the live rows, in `columns`, after all changes of the relation `log`.

    `log` has the columns named above, `after` being a struct with at least `columns`. Creates temporary tables.
    """
    old = ", ".join(f"{members.of_key(k)} AS old{i}" for i, k in enumerate(key))
    new = ", ".join(f"{members.of_after(k)} AS new{i}" for i, k in enumerate(key))
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE replay_changes AS SELECT ordinal, op, after, coalesce(unchanged, []) AS unchanged, "
        f"{old}, {new} FROM {log} "
        f"WHERE op <> 't' AND ordinal > (SELECT coalesce(max(ordinal), -1) FROM {log} WHERE op = 't')"
    )
    connection.execute("CREATE OR REPLACE TEMP TABLE replay_void (ordinal BIGINT)")
    while True:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE replay_actions AS {_actions(key)}")
        before = _count(connection)
        connection.execute(
            "INSERT INTO replay_void SELECT ordinal FROM replay_actions WHERE own AND len(unchanged) > 0 "
            "AND previous_upsert IS NULL"
        )
        if _count(connection) == before:
            break
    return _final_rows(connection, columns, members)


def _actions(key: Sequence[str]) -> str:
    """One row per key touched by a change: is it alive afterwards, and which upsert made it before?

    `own` marks the action on the key that the change was for, where the row's earlier state is found.
    """
    positions = range(len(key))
    old, new = (", ".join(f"{prefix}{i} AS k{i}" for i in positions) for prefix in ("old", "new"))
    moved = " OR ".join(f"old{i} IS DISTINCT FROM new{i}" for i in positions)
    keys = ", ".join(f"k{i}" for i in positions)
    kept = "SELECT * FROM replay_changes WHERE ordinal NOT IN (SELECT ordinal FROM replay_void)"
    return f"""
        WITH kept AS ({kept}), actions AS (
            SELECT ordinal, 0 AS step, true AS own, false AS upsert, after, unchanged, {old}
            FROM kept WHERE op = 'd' OR ({moved})
            UNION ALL
            SELECT ordinal, 1 AS step, NOT ({moved}) AS own, true AS upsert, after, unchanged, {new}
            FROM kept WHERE op <> 'd'
        )
        SELECT *, lag(CASE WHEN upsert THEN ordinal END) OVER sequence AS previous_upsert,
            row_number() OVER (PARTITION BY {keys} ORDER BY ordinal DESC, step DESC) AS recency
        FROM actions WINDOW sequence AS (PARTITION BY {keys} ORDER BY ordinal, step)
    """


def _count(connection: duckdb.DuckDBPyConnection) -> int:
    (row,) = connection.execute("SELECT count(*) FROM replay_void").fetchall()
    return int(row[0])


def _final_rows(connection: duckdb.DuckDBPyConnection, columns: Sequence[str], members: Members) -> str:
    """Live upserts, with each unchanged column taken from the change that last sent it."""
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE replay_sources AS
        WITH RECURSIVE walk(ordinal, name, source) AS (
            SELECT a.ordinal, u.name, o.previous_upsert
            FROM replay_actions AS a JOIN replay_actions AS o ON o.ordinal = a.ordinal AND o.own,
                unnest(a.unchanged) AS u(name)
            WHERE a.recency = 1 AND a.upsert
            UNION ALL
            SELECT w.ordinal, w.name, o.previous_upsert
            FROM walk AS w JOIN replay_actions AS o ON o.ordinal = w.source AND o.own
            WHERE list_contains(o.unchanged, w.name)
        )
        SELECT w.ordinal, w.name, w.source FROM walk AS w
        JOIN replay_changes AS e ON e.ordinal = w.source WHERE NOT list_contains(e.unchanged, w.name)
        """
    )
    found = {row[0] for row in connection.execute("SELECT DISTINCT name FROM replay_sources").fetchall()}
    selected, joins = [], []
    for i, name in enumerate(columns):
        value = members.of_after(name, "a.")
        if name in found:
            joins.append(
                f"LEFT JOIN replay_sources AS s{i} ON s{i}.ordinal = a.ordinal AND s{i}.name = {_text(name)} "
                f"LEFT JOIN replay_changes AS e{i} ON e{i}.ordinal = s{i}.source"
            )
            value = f"CASE WHEN s{i}.source IS NULL THEN {value} ELSE {members.of_after(name, f'e{i}.')} END"
        selected.append(f"{value} AS v{i}")
    return f"SELECT {', '.join(selected)} FROM replay_actions AS a {' '.join(joins)} WHERE a.recency = 1 AND a.upsert"


def deleted_keys(log: str, key: Sequence[str], members: Members) -> str:
    """SQL for keys that a change removed and none brought back, as k0, k1, ...; call after `replay`."""
    positions = range(len(key))
    keys = ", ".join(f"k{i}" for i in positions)
    old = ", ".join(f"{members.of_key(k)} AS k{i}" for i, k in enumerate(key))
    truncated = f"SELECT {old} FROM {log} WHERE op <> 't' AND ordinal < (SELECT max(ordinal) FROM {log} WHERE op = 't')"
    new = ", ".join(f"{members.of_after(k)} AS k{i}" for i, k in enumerate(key))
    truncated_new = (
        f"SELECT {new} FROM {log} WHERE op NOT IN ('t', 'd') "
        f"AND ordinal < (SELECT max(ordinal) FROM {log} WHERE op = 't')"
    )
    same = " AND ".join(f"a.k{i} IS NOT DISTINCT FROM g.k{i}" for i in positions)
    gone = f"SELECT {keys} FROM replay_actions WHERE NOT upsert"
    return (
        f"SELECT DISTINCT {keys} FROM ({gone} UNION ALL {truncated} UNION ALL {truncated_new}) AS g "
        f"WHERE NOT EXISTS (SELECT 1 FROM replay_actions AS a WHERE a.recency = 1 AND a.upsert AND {same})"
    )


def replay_rows(
    connection: duckdb.DuckDBPyConnection, log: str, columns: Sequence[str], members: Members
) -> tuple[str, int]:
    """As `replay`, for a table whose rows have no key: `key` is the whole old row, and equal rows are counted.

    `unchanged` names the columns that an old row lacks: it removes one row that agrees in all others, of several the
    first in the order of the columns by name, NULL before all values. A delete of a row that is not there removes nothing.

    Returns:
        SQL for the live rows, and how many removals removed nothing. Creates temporary tables.
    """
    new = ", ".join(f"{members.of_after(c)} AS v{i}" for i, c in enumerate(columns))
    old = ", ".join(f"{members.of_key(c) if c in members.key else 'NULL'} AS v{i}" for i, c in enumerate(columns))
    values = ", ".join(f"v{i}" for i in range(len(columns)))
    known = ", ".join(_text(c) for c in columns)
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE replay_steps AS
        WITH kept AS (
            SELECT * FROM {log}
            WHERE op <> 't' AND ordinal > (SELECT coalesce(max(ordinal), -1) FROM {log} WHERE op = 't')
        )
        SELECT ordinal, 1 AS weight, CAST([] AS VARCHAR[]) AS lacking, {new} FROM kept WHERE op <> 'd'
        UNION ALL
        SELECT ordinal, -1, list_filter(coalesce(unchanged, []), lambda n: list_contains([{known}], n)), {old}
        FROM kept WHERE op IN ('u', 'd')
        """
    )
    lacking = {n for (n,) in connection.execute("SELECT DISTINCT unnest(lacking) FROM replay_steps").fetchall()}
    shared = ", ".join(f"v{i}" for i, c in enumerate(columns) if c not in lacking)
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE replay_whole AS SELECT * FROM (SELECT *, bool_or(len(lacking) > 0) OVER "
        f"({f'PARTITION BY {shared}' if shared else ''}) AS is_partial FROM replay_steps)"
    )
    counted = f"""
        WITH counted AS (
            SELECT *, sum(weight) OVER (PARTITION BY {values} ORDER BY ordinal, weight) AS running
            FROM replay_whole WHERE NOT is_partial
        )
        SELECT {values}, CAST(sum(weight) AS BIGINT) AS total, CAST(-least(0, min(running)) AS BIGINT) AS missed
        FROM counted GROUP BY {values}
    """
    ((missed,),) = connection.execute(f"SELECT coalesce(sum(missed), 0) FROM ({counted})").fetchall()
    alive = f"SELECT {values} FROM (SELECT *, unnest(range(total + missed)) FROM ({counted}))"
    if lacking:
        missed += _replay_one_by_one(connection, columns, shared)
        alive = f"{alive} UNION ALL SELECT {values} FROM replay_left"
    return alive, int(missed)


def _replay_one_by_one(connection: duckdb.DuckDBPyConnection, columns: Sequence[str], shared: str) -> int:
    """Rows left where old rows lack columns, as `replay_left`; how many removals removed nothing.

    Rows that agree in the `shared` columns, which no old row lacks, are replayed step by step, all such groups at once.
    """
    values = ", ".join(f"v{i}" for i in range(len(columns)))
    by_name = sorted(range(len(columns)), key=lambda i: columns[i])
    order = ", ".join(f"v{i} NULLS FIRST" for i in by_name)
    same = " AND ".join(
        f"(r.v{i} IS NOT DISTINCT FROM s.v{i} OR list_contains(s.lacking, {_text(c)}))" for i, c in enumerate(columns)
    )
    group = f"PARTITION BY {shared}" if shared else ""
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE replay_group_steps AS
        SELECT *, {f"dense_rank() OVER (ORDER BY {shared})" if shared else "1"} AS g,
            row_number() OVER ({group} ORDER BY ordinal, weight) AS n
        FROM replay_whole WHERE is_partial
        """
    )
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE replay_rows AS
        SELECT *, row_number() OVER (ORDER BY {order}) AS r
        FROM (SELECT DISTINCT g, {values} FROM replay_group_steps WHERE weight = 1)
        """
    )
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE replay_choices AS
        SELECT s.g, s.n, any_value(s.weight) AS weight, coalesce(list(r.r) FILTER (r.r IS NOT NULL), []) AS may_be
        FROM replay_group_steps AS s LEFT JOIN replay_rows AS r ON r.g = s.g AND {same} GROUP BY s.g, s.n
        """
    )
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE replay_ends AS
        WITH RECURSIVE walk(g, n, live, missed) AS (
            SELECT DISTINCT g, CAST(0 AS BIGINT), CAST([] AS BIGINT[]), 0 FROM replay_choices
            UNION ALL
            SELECT g, n, CASE
                    WHEN weight = 1 THEN list_append(live, may_be[1])
                    WHEN place IS NULL THEN live
                    ELSE live[:place - 1] || live[place + 1:] END,
                missed + CASE WHEN weight = -1 AND place IS NULL THEN 1 ELSE 0 END
            FROM (
                SELECT w.g, c.n, c.weight, c.may_be, w.live, w.missed,
                    list_position(w.live, list_min(list_filter(w.live, lambda x: list_contains(c.may_be, x)))) AS place
                FROM walk AS w JOIN replay_choices AS c ON c.g = w.g AND c.n = w.n + 1
            )
        )
        SELECT g, max_by(live, n) AS live, max(missed) AS missed FROM walk GROUP BY g
        """
    )
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE replay_left AS SELECT {values} "
        "FROM (SELECT unnest(live) AS r FROM replay_ends) JOIN replay_rows USING (r)"
    )
    ((missed,),) = connection.execute("SELECT coalesce(sum(missed), 0) FROM replay_ends").fetchall()
    return int(missed)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
