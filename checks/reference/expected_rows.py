"""The rows that must be live, computed by DuckDB from change logs, adopted files and replayed ranges."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from nevermore.checks.reference import sql_columns
from nevermore.checks.reference.candidates import Workspace, candidates, equality_joins, position_joins
from nevermore.checks.reference.facts import RefusedError, TableFacts, read_table_facts
from nevermore.checks.reference.sql_columns import open_connection, private_database, string_literal

Field = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AdoptedRows:
    """The rows that a mirror started from.

    Attributes:
        table: metadata file or directory of the mirror.
        snapshot_id: the snapshot that has the rows; None for no rows.
        ordinal: last change of the log that they already contain.
        flag: a column of the mirror's writer, true for deleted rows; not a column of the log.
        rows: the rows themselves, without `flag`, if they are not all rows of the snapshot.
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
        connection: has the relation `changes` of a log: ordinal, op, key, after and unchanged.
        rows: SQL for the adopted rows with columns v0, v1, ... as `fields`.
        adopted: description of the rows.
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
        f"CREATE TABLE adopted_rows AS SELECT {_struct(columns, values)} AS after, {_struct(keys, values)} AS key "
        f"FROM ({rows}) WHERE {alive}"
    )
    logged, logged_key = (
        {f["name"]: f"struct_extract_at({source}, {i})" for i, f in enumerate(members, 1)}
        for source, members in (("after", after), ("key", key))
    )
    connection.execute("ALTER TABLE changes RENAME TO logged_changes")
    connection.execute(
        "CREATE TABLE changes AS "
        "SELECT row_number() OVER () - 1 AS ordinal, 'c' AS op, key, after, CAST([] AS VARCHAR[]) AS unchanged "
        "FROM adopted_rows UNION ALL "
        "SELECT ordinal + (SELECT count(*) FROM adopted_rows), op, "
        f"CASE WHEN key IS NULL THEN NULL ELSE {_struct(keys, logged_key)} END, "
        f"CASE WHEN after IS NULL THEN NULL ELSE {_struct(columns, logged)} END, unchanged FROM logged_changes"
    )
    return columns, keys


def _struct(fields: Sequence[Field], values: Mapping[str, str]) -> str:
    """A struct of these fields, of values by name; NULL for missing ones."""
    casts = [f"CAST({values.get(f['name'], 'NULL')} AS {sql_columns.nested_sql_type(f['type'])})" for f in fields]
    return sql_columns.struct_pack(fields, casts)


@dataclass(frozen=True)
class Members:
    """Names of the members of `key` and `after`, read by index: DuckDB does not distinguish `id` from `ID`."""

    key: Sequence[str]
    after: Sequence[str]

    def of_key(self, name: str) -> str:
        """SQL for a member of `key`."""
        return f"struct_extract_at(key, {self.key.index(name) + 1})"

    def of_after(self, name: str, relation: str = "") -> str:
        """SQL for a member of `after`, in a relation given with its dot."""
        return f"struct_extract_at({relation}after, {self.after.index(name) + 1})"

    def keys(self, key: Sequence[str]) -> tuple[str, str]:
        """SQL for the key columns before and after a change, as k0, k1, ..."""
        old = ", ".join(f"{self.of_key(k)} AS k{i}" for i, k in enumerate(key))
        new = ", ".join(f"{self.of_after(k)} AS k{i}" for i, k in enumerate(key))
        return old, new


def _listed(prefix: str, columns: Sequence[str]) -> str:
    """Numbered columns in SQL: `k0, k1`."""
    return ", ".join(f"{prefix}{i}" for i in range(len(columns)))


def _same(left: str, right: str, columns: Sequence[str]) -> str:
    """SQL for whether columns numbered behind two prefixes have the same values."""
    return " AND ".join(f"{left}{i} IS NOT DISTINCT FROM {right}{i}" for i in range(len(columns)))


def replay(
    connection: duckdb.DuckDBPyConnection,
    log: str,
    key: Sequence[str],
    columns: Sequence[str],
    members: Members,
    *,
    with_deleted: bool = False,
) -> str:
    """SQL for the live rows, in `columns` as v0, v1, ..., after all changes of the relation `log`.

    `log` has the columns named above, `after` being a struct with at least `columns`. Creates temporary tables.
    `with_deleted` adds the last row of every key that has none any more; the column `deleted` is true in these.
    """
    old = ", ".join(f"{members.of_key(k)} AS old{i}" for i, k in enumerate(key))
    new = ", ".join(f"{members.of_after(k)} AS new{i}" for i, k in enumerate(key))
    connection.execute(
        f"CREATE OR REPLACE TABLE replay_changes AS SELECT ordinal, op, "
        "list_filter(coalesce(unchanged, []), lambda name: name[1] <> chr(0)) AS unchanged, "
        f"{old}, {new} FROM {log} "
        f"WHERE op <> 't' AND ({with_deleted} OR ordinal > (SELECT coalesce(max(ordinal), -1) FROM {log} WHERE op = 't'))"
    )
    if with_deleted:  # a truncate is a delete of every key
        either = " UNION ALL ".join(
            f"SELECT ordinal, {', '.join(f'{side}{i} AS k{i}' for i in range(len(key)))} FROM replay_changes{condition}"
            for side, condition in (("old", ""), ("new", " WHERE op <> 'd'"))
        )
        keys = _listed("k", key)
        connection.execute(
            f"INSERT INTO replay_changes SELECT t.ordinal, 'd', [], {keys}, {', '.join('NULL' for _ in key)} "
            f"FROM (SELECT min(ordinal) AS first, {keys} FROM ({either}) GROUP BY {keys}) "
            f"JOIN (SELECT ordinal FROM {log} WHERE op = 't') AS t ON t.ordinal > first"
        )
    connection.execute("CREATE OR REPLACE TABLE replay_void (ordinal BIGINT)")
    while True:
        connection.execute(f"CREATE OR REPLACE TABLE replay_actions AS {_actions(key)}")
        connection.execute(f"CREATE OR REPLACE TABLE replay_lacking AS {_lacking(key)}")
        before = _count(connection)
        connection.execute("INSERT INTO replay_void SELECT ordinal FROM replay_lacking WHERE previous_upsert IS NULL")
        if _count(connection) == before:
            break
    return _final_rows(connection, log, key, columns, members, with_deleted=with_deleted)


def _actions(key: Sequence[str]) -> str:
    """One row per key touched by a change: when, and whether the key has a row afterwards.

    `own` marks the action on the key of the change itself, where the row's earlier state is found.
    """
    positions = range(len(key))
    old, new = (", ".join(f"{prefix}{i} AS k{i}" for i in positions) for prefix in ("old", "new"))
    moved = " OR ".join(f"old{i} IS DISTINCT FROM new{i}" for i in positions)
    return f"""
        WITH kept AS (SELECT * FROM replay_changes WHERE ordinal NOT IN (SELECT ordinal FROM replay_void))
        SELECT 2 * ordinal AS moment, true AS own, false AS upsert, unchanged, {old} FROM kept WHERE op = 'd' OR ({moved})
        UNION ALL
        SELECT 2 * ordinal + 1, NOT ({moved}), true, unchanged, {new} FROM kept WHERE op <> 'd'
    """


def _lacking(key: Sequence[str]) -> str:
    """Changes that do not have all columns of their row, each with the upsert that wrote the row before, if there is one."""
    keys = _listed("k", key)
    same = _same("a.k", "l.k", key)
    some = "own AND len(unchanged) > 0"
    return f"""
        SELECT moment // 2 AS ordinal, unchanged, previous_upsert FROM (
            SELECT a.*, lag(CASE WHEN upsert THEN moment // 2 END) OVER (PARTITION BY {keys} ORDER BY moment) AS previous_upsert
            FROM replay_actions AS a SEMI JOIN (SELECT {keys} FROM replay_actions WHERE {some}) AS l ON {same}
        ) WHERE {some}
    """


def _count(connection: duckdb.DuckDBPyConnection) -> int:
    (row,) = connection.execute("SELECT count(*) FROM replay_void").fetchall()
    return int(row[0])


def _final_rows(
    connection: duckdb.DuckDBPyConnection,
    log: str,
    key: Sequence[str],
    columns: Sequence[str],
    members: Members,
    *,
    with_deleted: bool,
) -> str:
    """The last upsert of each key, with each unchanged column taken from the change that last sent it."""
    keys = _listed("k", key)
    # aggregates rather than windows, for which DuckDB would sort all actions
    connection.execute(
        f"CREATE OR REPLACE TABLE replay_last AS SELECT {keys}, max(moment) AS last, max(moment) FILTER (upsert) AS last_row, "
        "bool_or(NOT upsert) AS is_removed FROM replay_actions GROUP BY ALL"
    )
    connection.execute(
        "CREATE OR REPLACE TABLE replay_chosen AS SELECT last_row // 2 AS ordinal, last <> last_row AS deleted "
        f"FROM replay_last WHERE last_row IS NOT NULL AND ({with_deleted} OR last = last_row)"
    )
    connection.execute(
        """
        CREATE OR REPLACE TABLE replay_sources AS
        WITH RECURSIVE walk(ordinal, name, source) AS (
            SELECT ordinal, u.name, o.previous_upsert
            FROM replay_chosen JOIN replay_lacking AS o USING (ordinal), unnest(o.unchanged) AS u(name)
            UNION ALL
            SELECT w.ordinal, w.name, o.previous_upsert
            FROM walk AS w JOIN replay_lacking AS o ON o.ordinal = w.source
            WHERE list_contains(o.unchanged, w.name)
        )
        SELECT w.ordinal, w.name, w.source FROM walk AS w
        JOIN replay_changes AS e ON e.ordinal = w.source WHERE NOT list_contains(e.unchanged, w.name)
        """
    )
    return _sent_rows(connection, log, columns, members)


def _sent_rows(connection: duckdb.DuckDBPyConnection, log: str, columns: Sequence[str], members: Members) -> str:
    """The rows of the changes in `replay_chosen`, with values that were not sent from the changes in `replay_sources`."""
    # `log_is_complete` is about a change that is there twice; here it counts once
    if connection.execute(f"SELECT 1 FROM {log} GROUP BY ordinal HAVING count(*) > 1 LIMIT 1").fetchall():
        log = f"(SELECT DISTINCT ON (ordinal) * FROM {log})"
    found = {row[0] for row in connection.execute("SELECT DISTINCT name FROM replay_sources").fetchall()}
    selected, joins = [], []
    for i, name in enumerate(columns):
        value = members.of_after(name, "c.")
        if name in found:
            joins.append(
                f"LEFT JOIN replay_sources AS s{i} ON s{i}.ordinal = a.ordinal AND s{i}.name = {string_literal(name)} "
                f"LEFT JOIN {log} AS e{i} ON e{i}.ordinal = s{i}.source"
            )
            value = f"CASE WHEN s{i}.source IS NULL THEN {value} ELSE {members.of_after(name, f'e{i}.')} END"
        selected.append(f"{value} AS v{i}")
    selected.append("a.* EXCLUDE (ordinal)")
    return f"SELECT {', '.join(selected)} FROM replay_chosen AS a JOIN {log} AS c ON c.ordinal = a.ordinal {' '.join(joins)}"


_PLACED = """
CREATE OR REPLACE TABLE placed AS
    SELECT * EXCLUDE (ordinal, block), row_number() OVER (ORDER BY source_order NULLS FIRST, ordinal) AS ordinal FROM (
        SELECT * FROM (
            SELECT *, ordinal - row_number() OVER (PARTITION BY source_file, source_offset, source_order ORDER BY ordinal) AS block FROM {log}
        ) QUALIFY block = min(block) OVER (PARTITION BY source_file, source_offset, source_order, op, key, ingested_at)
    )
"""
_VERSIONS = """
CREATE OR REPLACE TABLE begins AS
    SELECT {new} AS k, ordinal, op, {at} AS made, op <> 'u' OR {old} IS DISTINCT FROM {new} AS is_other,
        list_transform(coalesce(unchanged, []), lambda name: replace(name, chr(0), '')) AS unsent
    FROM {log} WHERE op NOT IN ('d', 't');
CREATE OR REPLACE TABLE removals AS
    SELECT {old} AS k, ordinal, {at} AS made FROM {log} WHERE op = 'd' OR (op = 'u' AND {old} IS DISTINCT FROM {new});
CREATE OR REPLACE TABLE truncates AS
    SELECT ordinal, min({at}) OVER (ORDER BY ordinal ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS made
    FROM {log} WHERE op = 't';
CREATE OR REPLACE TABLE lacking AS SELECT k, ordinal, unnest(unsent) AS name FROM begins;
CREATE OR REPLACE TABLE replay_sources AS
    WITH sent AS (
        SELECT k, ordinal, name, NOT list_contains(unsent, name) AS is_known
        FROM begins, (SELECT DISTINCT name FROM lacking) WHERE is_other OR NOT list_contains(unsent, name)
        UNION ALL SELECT k, ordinal, name, false FROM removals, (SELECT DISTINCT name FROM lacking)
    )
    SELECT b.ordinal, b.name, s.ordinal AS source
    FROM lacking AS b ASOF JOIN sent AS s ON b.k = s.k AND b.name = s.name AND b.ordinal >= s.ordinal
    WHERE is_known AND NOT EXISTS (FROM truncates AS t WHERE t.ordinal BETWEEN s.ordinal AND b.ordinal);
CREATE OR REPLACE TABLE replay_chosen AS
    WITH ends AS (
        SELECT k, ordinal, min(made) OVER (
            PARTITION BY k ORDER BY ordinal ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        ) AS made
        FROM (SELECT k, ordinal, made FROM begins UNION ALL SELECT k, ordinal, made FROM removals)
    ), points AS (
        SELECT k, ordinal AS moment, ordinal, op, made FROM begins
        UNION ALL
        SELECT r.k, r.ordinal, c.ordinal, 'd', r.made FROM removals AS r ASOF JOIN begins AS c ON r.k = c.k AND r.ordinal > c.ordinal
        WHERE {soft} AND NOT EXISTS (FROM truncates AS t WHERE t.ordinal BETWEEN c.ordinal AND r.ordinal)
        AND NOT EXISTS (FROM removals AS o WHERE o.k = r.k AND o.ordinal > c.ordinal AND o.ordinal < r.ordinal)
    ), unknown AS (
        SELECT ordinal, string_agg(name, ', ' ORDER BY list_position([{columns}], name)) AS names
        FROM lacking ANTI JOIN replay_sources USING (ordinal, name) WHERE name IN ({columns}) GROUP BY ordinal
    )
    SELECT p.ordinal, op AS operation, coalesce(u.names, '') AS not_sent, p.made AS valid_from,
        CASE WHEN least(e.made, t.made) < p.made THEN p.made ELSE least(e.made, t.made) END AS valid_to,
        e.ordinal IS NULL AND t.ordinal IS NULL AS is_current
    FROM points AS p LEFT JOIN unknown AS u USING (ordinal)
    ASOF LEFT JOIN ends AS e ON p.k = e.k AND p.moment < e.ordinal ASOF LEFT JOIN truncates AS t ON p.moment < t.ordinal
"""


def versions(
    connection: duckdb.DuckDBPyConnection,
    log: str,
    key: Sequence[str],
    members: Members,
    *,
    at: str,
    with_deleted: bool,
    is_ordered: bool,
) -> str:
    """SQL for every version of every row, as docs/history.md says; `at` is SQL for the time of a change.

    A version ends with the next change of its key or the next truncate, whichever is first; with `is_ordered`, changes follow
    each other by `source_order`, and count once where they were logged again. Creates tables.
    """
    if is_ordered:
        connection.execute(_PLACED.format(log=log))
        log = "placed"
    old, new = (f"row({', '.join(map(of, key))})" for of in (members.of_key, members.of_after))
    known = ", ".join(map(string_literal, members.after))
    connection.execute(_VERSIONS.format(log=log, at=at, soft=with_deleted, old=old, new=new, columns=known))
    names = ", ".join(f"v{i} AS {sql_columns.quoted(name)}" for i, name in enumerate(members.after))
    rows = _sent_rows(connection, log, members.after, members)
    return f"SELECT {names}, operation, not_sent, valid_from, valid_to, is_current FROM ({rows})"


def deleted_keys(log: str, key: Sequence[str], members: Members) -> str:
    """SQL for keys that a change removed and no later one restored, as k0, k1, ...; call after `replay`."""
    keys = _listed("k", key)
    old, new = members.keys(key)
    same = _same("a.k", "g.k", key)
    truncated = f"FROM {log} WHERE ordinal < (SELECT max(ordinal) FROM {log} WHERE op = 't') AND op"
    return (
        f"SELECT DISTINCT {keys} FROM (SELECT {keys} FROM replay_last WHERE is_removed "
        f"UNION ALL SELECT {old} {truncated} <> 't' UNION ALL SELECT {new} {truncated} NOT IN ('t', 'd')) AS g "
        f"ANTI JOIN (SELECT * FROM replay_last WHERE last = last_row) AS a ON {same} ORDER BY ALL"
    )


def replay_rows(
    connection: duckdb.DuckDBPyConnection, log: str, columns: Sequence[str], members: Members
) -> tuple[str, int]:
    """Replay a table without a key: `key` is the whole old row, and equal rows are counted; see `replay`.

    `unchanged` names the columns that an old row lacks: it removes one row that agrees in all others, and of several the
    first in the order of the columns by name, NULL before all values. A delete of a row that is not there removes nothing.

    Returns:
        SQL for the live rows, and the number of removals that found no row. Creates temporary tables.
    """
    new = ", ".join(f"{members.of_after(c)} AS v{i}" for i, c in enumerate(columns))
    old = ", ".join(f"{members.of_key(c) if c in members.key else 'NULL'} AS v{i}" for i, c in enumerate(columns))
    values = _listed("v", columns)
    same = _same("whole.v", "removed.v", columns)
    known = ", ".join(string_literal(c) for c in columns)
    connection.execute(
        f"""
        CREATE OR REPLACE TABLE replay_steps AS
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
    partial = f"bool_or(len(lacking) > 0) OVER ({f'PARTITION BY {shared}' if shared else ''})" if lacking else "false"
    connection.execute(
        f"CREATE OR REPLACE TABLE replay_whole AS SELECT * FROM (SELECT *, {partial} AS is_partial FROM replay_steps)"
    )
    # only rows that were also removed need an order, for which DuckDB would sort them
    counted = f"""
        WITH whole AS (SELECT * FROM replay_whole WHERE NOT is_partial), counted AS (
            SELECT *, sum(weight) OVER (PARTITION BY {values} ORDER BY ordinal, weight) AS running
            FROM whole SEMI JOIN (SELECT * FROM whole WHERE weight < 0) AS removed ON {same}
        )
        SELECT {values}, count(*) AS total, CAST(0 AS BIGINT) AS missed FROM whole GROUP BY {values} HAVING min(weight) > 0
        UNION ALL
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
    """Store the remaining rows as `replay_left` where old rows lack columns; return the number of missed removals.

    Rows that agree in the `shared` columns, which no old row lacks, are replayed step by step, all such groups at once.
    """
    values = _listed("v", columns)
    by_name = sorted(range(len(columns)), key=lambda i: columns[i])
    order = ", ".join(f"v{i} NULLS FIRST" for i in by_name)
    same = " AND ".join(
        f"(r.v{i} IS NOT DISTINCT FROM s.v{i} OR list_contains(s.lacking, {string_literal(c)}))"
        for i, c in enumerate(columns)
    )
    group = f"PARTITION BY {shared}" if shared else ""
    connection.execute(
        f"""
        CREATE OR REPLACE TABLE replay_group_steps AS
        SELECT *, {f"dense_rank() OVER (ORDER BY {shared})" if shared else "1"} AS g,
            row_number() OVER ({group} ORDER BY ordinal, weight) AS n
        FROM replay_whole WHERE is_partial
        """
    )
    connection.execute(
        f"""
        CREATE OR REPLACE TABLE replay_rows AS
        SELECT *, row_number() OVER (ORDER BY {order}) AS r
        FROM (SELECT DISTINCT g, {values} FROM replay_group_steps WHERE weight = 1)
        """
    )
    connection.execute(
        f"""
        CREATE OR REPLACE TABLE replay_choices AS
        SELECT s.g, s.n, any_value(s.weight) AS weight, coalesce(list(r.r) FILTER (r.r IS NOT NULL), []) AS may_be
        FROM replay_group_steps AS s LEFT JOIN replay_rows AS r ON r.g = s.g AND {same} GROUP BY s.g, s.n
        """
    )
    connection.execute(
        """
        CREATE OR REPLACE TABLE replay_ends AS
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
        f"CREATE OR REPLACE TABLE replay_left AS SELECT {values} "
        "FROM (SELECT unnest(live) AS r FROM replay_ends) JOIN replay_rows USING (r)"
    )
    ((missed,),) = connection.execute("SELECT coalesce(sum(missed), 0) FROM replay_ends").fetchall()
    return int(missed)


BATCH_ROWS = 50_000
"""Rows of a batch where rows are streamed."""

_LOG_COLUMNS = ("ordinal", "op", "key", "after", "unchanged")
_NO_CHANGES = (
    "SELECT 0 AS ordinal, '' AS op, NULL AS key, NULL AS after, CAST([] AS VARCHAR[]) AS unchanged WHERE false"
)

_METADATA_COLUMNS = {
    "_file": ("file", pa.string()),
    "_pos": ("pos", pa.int64()),
    "_row_id": ("row_id", pa.int64()),
    "_last_updated_sequence_number": ("last_updated", pa.int64()),
}


@dataclass(frozen=True, slots=True)
class Query:
    """The rows of a query.

    Attributes:
        connection: a database.
        sql: the query; None for no rows.
        schema: names and exact types of the columns.
    """

    connection: duckdb.DuckDBPyConnection
    sql: str | None
    schema: pa.Schema

    def batches(self) -> Iterator[pa.Table]:
        """The rows, some at a time."""
        for batch in () if self.sql is None else self.connection.sql(self.sql).to_arrow_reader(BATCH_ROWS):
            yield _in_types(pa.Table.from_batches([batch]), self.schema)

    def table(self) -> pa.Table:
        """All rows."""
        if self.sql is None:
            return self.schema.empty_table()
        return _in_types(self.connection.sql(self.sql).to_arrow_table(), self.schema)


@dataclass(frozen=True, slots=True)
class Folding:
    """Queries for the result of folding a log of changes.

    Attributes:
        rows: live rows.
        deleted_keys: keys that were removed and are not live.
        num_missed: removals that found no row, in a table without a key; 0 for others.
        deleted_rows: last rows of these keys, if they were asked for; none without a key.
    """

    rows: Query
    deleted_keys: Query
    num_missed: int = 0
    deleted_rows: Query | None = None

    def folded(self) -> "Folded":
        """The result in memory."""
        deleted = None if self.deleted_rows is None else self.deleted_rows.table()
        return Folded(self.rows.table(), self.deleted_keys.table(), self.num_missed, deleted)


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of folding a log of changes, see `Folding`."""

    rows: pa.Table
    deleted_keys: pa.Table
    num_missed: int = 0
    deleted_rows: pa.Table | None = None


def live_rows(location: str | Path, **options: Any) -> pa.Table:
    """The live rows of a snapshot, in no particular order, in the exact types of the schema in force.

    Args:
        location: a metadata file or a table's directory.
        **options: see below.

    Options:
        snapshot_id: this snapshot in its own schema; the current one in the current schema by default.
        ref: a branch (current schema) or tag (its snapshot's schema) instead.
        columns: names to return, possibly `_file`, `_pos`, `_row_id` and `_last_updated_sequence_number`; all
            columns of the schema by default.
        relocate: old path prefix -> new path prefix.
        filesystem: of the object store that has the files.

    Raises:
        RefusedError: the table breaks a rule of its specification.
    """
    with live_query(location, **options) as query:
        return query.table()


@contextmanager
def live_query(location: str | Path, **options: Any) -> Iterator[Query]:
    """A query for the rows of `live_rows`, which has the same arguments."""
    with open_connection() as connection:
        yield _live_rows_query(connection, location, **options)


def store_live_rows(
    connection: duckdb.DuckDBPyConnection, name: str, location: str | Path, columns: Sequence[str], **options: Any
) -> None:
    """Create a table of DuckDB with the live rows of a snapshot. Nothing of them passes through Python.

    Args:
        connection: the database that gets the table.
        name: name of the table in SQL.
        location: a metadata file or a table's directory.
        columns: columns of the schema.
        **options: other options of `live_rows`.
    """
    query = _live_rows_query(connection, location, columns=columns, **options)
    if query.sql is None:
        connection.register("no_rows", query.schema.empty_table())
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM no_rows")
        connection.unregister("no_rows")
    else:
        named = ", ".join(f"r{i} AS {sql_columns.quoted(column)}" for i, column in enumerate(columns)) or "r0"
        connection.execute(f"CREATE TABLE {name} AS SELECT {named} FROM ({query.sql})")


def _live_rows_query(
    connection: duckdb.DuckDBPyConnection,
    location: str | Path,
    *,
    snapshot_id: int | None = None,
    ref: str | None = None,
    columns: Sequence[str] | None = None,
    **store: Any,
) -> Query:
    """A query for the live rows as r0, r1, ..."""
    table = read_table_facts(location, **store)
    snapshot, schema = table.snapshot(snapshot_id, ref)
    fields = list(schema["fields"])
    wanted = list(columns) if columns is not None else [f["name"] for f in fields]
    by_name = {f["name"]: i for i, f in enumerate(fields)}
    arrow = [
        sql_columns.arrow_type(fields[by_name[n]]["type"]) if n in by_name else _METADATA_COLUMNS[n][1] for n in wanted
    ]
    target = pa.schema(list(zip(wanted, arrow, strict=True)))
    query = _live_sql(connection, table, snapshot, fields)
    sources = [f"v{by_name[n]}" if n in by_name else _METADATA_COLUMNS[n][0] for n in wanted]
    selected = ", ".join(f"{source} AS r{i}" for i, source in enumerate(sources)) or "1 AS r0"
    return Query(connection, None if query is None else f"SELECT {selected} FROM ({query})", target)


def _live_sql(
    connection: duckdb.DuckDBPyConnection, table: TableFacts, snapshot: Any, fields: Sequence[Any]
) -> str | None:
    """SQL over `connection` for the live rows with columns v0, v1, ... as `fields`; None if there are no data files."""
    files = table.files(snapshot)
    data = [f for f in files if f.content == 0]
    if not data:
        return None
    workspace = Workspace(table, connection)
    equality = equality_joins(workspace, data, [f for f in files if f.content == 2])
    by_position = position_joins(workspace, data, [f for f in files if f.content == 1])
    key_ids = {i for ids in equality.values() for i in ids}
    joins = " ".join([*equality, *by_position])
    return f"SELECT c.* FROM ({candidates(workspace, data, fields, key_ids)}) AS c {joins}"


@contextmanager
def folding(
    location: str | Path,
    key: Sequence[str],
    *,
    up_to_ordinal: int | None = None,
    adopted: AdoptedRows | None = None,
    with_deleted: bool = False,
    **store: Any,
) -> Iterator[Folding]:
    """Fold a change-log table to the last state of every key.

    Args:
        location: the change log's metadata file or directory.
        key: names of the key columns, members of the log's `key`; empty for a table without a key, where the whole
            old row is the identity and equal rows are counted.
        up_to_ordinal: fold only changes with at most this ordinal: those that a mirror has applied.
        adopted: rows to begin with; columns and types are then the mirror's.
        with_deleted: also return the last row of every key that has none any more.
        **store: `relocate` and `filesystem` as `live_rows` has them.
    """
    log = _Log.read(location, **store)
    with private_database() as database:
        connection = database.connection
        if log is None and adopted is None:
            yield Folding(Query(connection, None, pa.schema([])), Query(connection, None, pa.schema([])))
            return
        after: Sequence[Field] = () if log is None else log.after
        keys: Sequence[Field] = [{"name": name} for name in key] if log is None else log.keys
        query = _NO_CHANGES
        if log is not None:
            query = log.query(connection, None if adopted is None else adopted.ordinal, up_to_ordinal)
        connection.execute(f"CREATE TABLE changes AS {query}")
        if adopted is not None:
            after, keys = _begin_with(connection, adopted, after, keys, **store)
        members, key_types = ({f["name"]: f["type"] for f in listed} for listed in (after, keys))
        row_schema = pa.schema([(n, sql_columns.arrow_type(kind)) for n, kind in members.items()])
        key_schema = pa.schema([(n, sql_columns.arrow_type(key_types[n])) for n in key])
        yield _folding(
            connection, Members(list(key_types), list(members)), row_schema, key_schema, with_deleted=with_deleted
        )


def fold_log(location: str | Path, key: Sequence[str], **options: Any) -> Folded:
    """The result of `folding` in memory; arguments are the same."""
    with folding(location, key, **options) as found:
        return found.folded()


_BASE = "nevermore.log-base"
"""Key in the summaries of a log: up to this ordinal it has only the last change of each key."""


@dataclass(frozen=True, slots=True)
class _Log:
    """A snapshot of a change log. `after` and `keys` are the members of the columns `after` and `key`."""

    table: TableFacts
    snapshot: Mapping[str, Any] | None
    columns: Sequence[Field]
    after: Sequence[Field]
    keys: Sequence[Field]

    @classmethod
    def read(cls, location: str | Path, **store: Any) -> "_Log | None":
        """Read a log; None if it has had no rows yet, and so has no column `after`."""
        table = read_table_facts(location, **store)
        snapshot, schema = table.snapshot(None)
        fields = {f["name"]: f for f in schema["fields"]}
        if "after" not in fields:
            return None
        columns = [fields[n] for n in _LOG_COLUMNS]
        return cls(table, snapshot, columns, *(fields[n]["type"]["fields"] for n in ("after", "key")))

    @property
    def base_ordinal(self) -> int:
        """The last ordinal up to which the log has only the last change of each key; 0 if it has all changes."""
        snapshots = {s["snapshot-id"]: s for s in self.table.document.get("snapshots") or []}
        found = self.snapshot
        while found is not None:
            if (text := (found.get("summary") or {}).get(_BASE)) is not None:
                return int(text.split()[0])
            found = snapshots.get(found.get("parent-snapshot-id"))
        return 0

    def query(self, connection: duckdb.DuckDBPyConnection, after_ordinal: int | None, up_to_ordinal: int | None) -> str:
        """SQL for the changes within a range of ordinals.

        Raises:
            RefusedError: the log does not have all changes that lead from the first ordinal to the last.
        """
        base = self.base_ordinal
        if up_to_ordinal is not None and up_to_ordinal < base:
            raise RefusedError(f"{self.table.path}: up to ordinal {base} only the last change of each key is left")
        query = _live_sql(connection, self.table, self.snapshot, self.columns) or sql_columns.no_rows(self.columns)
        named = ", ".join(f"v{i} AS {name}" for i, name in enumerate(_LOG_COLUMNS))
        since = "" if after_ordinal is None else f" AND v0 > {int(after_ordinal)}"
        until = "" if up_to_ordinal is None else f" AND v0 <= {int(up_to_ordinal)}"
        return f"SELECT {named} FROM ({query}) WHERE true{since}{until}"


@dataclass(frozen=True, slots=True)
class Ordinals:
    """The numbers of the changes that a log has.

    Attributes:
        num_in_base: changes up to the end of the base, which has only some of all.
        num_after: changes after it.
        num_distinct: of these, with numbers of their own.
        last: the highest number; 0 without changes.
        gaps: first and last number of ranges that are missing between others, at most 20.
    """

    num_in_base: int
    num_after: int
    num_distinct: int
    last: int
    gaps: Sequence[tuple[int, int]]


def ordinals(
    location: str | Path,
    *,
    after_ordinal: int,
    **store: Any,
) -> Ordinals:
    """The numbers of the changes of a log, and which are missing after `after_ordinal`."""
    log = _Log.read(location, **store)
    if log is None:
        return Ordinals(0, 0, 0, 0, ())
    after = int(after_ordinal)
    with open_connection() as connection:
        connection.execute(f"CREATE TEMP TABLE numbers AS SELECT ordinal FROM ({log.query(connection, None, None)})")
        ((before, later, distinct, last),) = connection.execute(
            f"SELECT count(*) FILTER (ordinal <= {after}), count(*) FILTER (ordinal > {after}), "
            f"count(DISTINCT ordinal) FILTER (ordinal > {after}), coalesce(max(ordinal), 0) FROM numbers"
        ).fetchall()
        gaps = []
        if distinct != last - after:  # sorting is not needed otherwise
            gaps = connection.execute(
                f"SELECT before + 1, ordinal - 1 FROM (SELECT ordinal, lag(ordinal, 1, {after}) OVER (ORDER BY ordinal) "
                f"AS before FROM numbers WHERE ordinal > {after}) WHERE ordinal > before + 1 ORDER BY 1 LIMIT 20"
            ).fetchall()
    return Ordinals(int(before), int(later), int(distinct), int(last), [(int(a), int(b)) for a, b in gaps])


def changed_keys(
    location: str | Path,
    key: Sequence[str],
    *,
    after_ordinal: int,
    up_to_ordinal: int,
    **store: Any,
) -> pa.Table | None:
    """Distinct keys of the rows that some changes of a log touch, before and after them.

    Args:
        location: the change log's metadata file or directory.
        key: names of the key columns.
        after_ordinal: the last change that is left out.
        up_to_ordinal: the last change.
        **store: `relocate` and `filesystem` as `live_rows` has them.

    Returns:
        None if a change affects all rows, as a truncate does, or the log has had no rows yet.
    """
    log = _Log.read(location, **store)
    if log is None:
        return None
    key_types = {f["name"]: f["type"] for f in log.keys}
    members = Members(list(key_types), [f["name"] for f in log.after])
    with open_connection() as connection:
        query = log.query(connection, after_ordinal, up_to_ordinal)
        connection.execute(f"CREATE TEMP TABLE changes AS {query}")
        if connection.execute("SELECT 1 FROM changes WHERE op = 't' LIMIT 1").fetchall():
            return None
        old, new = members.keys(key)
        found = connection.sql(
            f"SELECT {old} FROM changes UNION SELECT {new} FROM changes WHERE op <> 'd'"
        ).to_arrow_table()
    return _in_types(found, pa.schema([(n, sql_columns.arrow_type(key_types[n])) for n in key]))


def _begin_with(
    connection: duckdb.DuckDBPyConnection,
    adopted: AdoptedRows,
    after: Sequence[Any],
    key: Sequence[Any],
    **store: Any,
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Put adopted rows before the changes; return the new members of `after` and `key`."""
    table = read_table_facts(adopted.table, **store)
    fields = table.current_schema["fields"]
    if adopted.rows is not None:
        by_name = {f["name"]: f for f in fields}
        given = adopted.rows.rename_columns([f"v{i}" for i in range(adopted.rows.num_columns)])
        connection.register("given_rows", given)
        fields = [by_name[name] for name in adopted.rows.column_names]
        return put_before(connection, "SELECT * FROM given_rows", adopted, fields=fields, after=after, key=key)
    snapshot = None if adopted.snapshot_id is None else table.snapshot(adopted.snapshot_id)[0]
    rows = _live_sql(connection, table, snapshot, fields) or sql_columns.no_rows(fields)
    return put_before(connection, rows, adopted, fields=fields, after=after, key=key)


def fold_changes(changes: pa.Table | pa.RecordBatchReader, key: Sequence[str], *, with_deleted: bool = False) -> Folded:
    """Fold changes (the change schema with `ordinal`) from memory, or from a stream, which DuckDB spills if it is large.

    See `fold_log`.
    """
    after, keys = changes.schema.field("after").type, changes.schema.field("key").type
    row_schema = pa.schema([(f.name, f.type) for f in after])
    key_schema = pa.schema([(n, keys.field(n).type) for n in key])
    with private_database() as database:
        connection = database.connection
        connection.register(
            "given_changes", changes
        )  # a stream can be read once, and replaying reads them several times
        connection.execute(f"CREATE TABLE changes AS SELECT {', '.join(_LOG_COLUMNS)} FROM given_changes")
        members = Members([f.name for f in keys], [f.name for f in after])
        return _folding(connection, members, row_schema, key_schema, with_deleted=with_deleted).folded()


def _folding(
    connection: duckdb.DuckDBPyConnection,
    members: Members,
    row_schema: pa.Schema,
    key_schema: pa.Schema,
    *,
    with_deleted: bool,
) -> Folding:
    key = key_schema.names
    if not key:
        alive, num_missed = replay_rows(connection, "changes", row_schema.names, members)
        return Folding(Query(connection, alive, row_schema), Query(connection, None, key_schema), num_missed)
    found = replay(connection, "changes", key, row_schema.names, members, with_deleted=with_deleted)
    rows, deleted = (
        Query(connection, f"SELECT * EXCLUDE (deleted) FROM ({found}) WHERE {which}deleted", row_schema)
        for which in ("NOT ", "")
    )
    gone = Query(connection, deleted_keys("changes", key, members), key_schema)
    return Folding(rows, gone, deleted_rows=deleted if with_deleted else None)


def _in_types(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Rows with the target's names and types; DuckDB has no fixed-size binary and no null type."""
    columns = [
        pa.nulls(rows.num_rows, field.type) if pa.types.is_null(field.type) else _in_type(rows.column(i), field.type)
        for i, field in enumerate(target)
    ]
    return pa.Table.from_arrays(columns, schema=target) if columns else rows.select([])


def _in_type(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    named = sql_columns.with_names_of(target, column.type)
    if named != column.type:
        column = pa.chunked_array([chunk.view(named) for chunk in column.chunks], named)
    return column.cast(target)
