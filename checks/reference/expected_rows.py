"""The rows that a table must have, computed in DuckDB from its own files and from its change log.

Only local files are supported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from checks.reference import sql_columns
from checks.reference.candidates import Workspace, candidates, equality_conditions, position_condition
from checks.reference.facts import RefusedError, TableFacts, read_table_facts
from checks.reference.replay import AdoptedRows, Members, deleted_keys, put_before, replay, replay_rows
from checks.reference.sql_columns import open_connection

__all__ = ["AdoptedRows", "Folded", "KeyRange", "RefusedError", "changed_keys", "fold_changes", "fold_log", "live_rows"]

_LOG_COLUMNS = ("ordinal", "op", "key", "after", "unchanged")

_METADATA_COLUMNS = {
    "_file": ("file", pa.string()),
    "_pos": ("pos", pa.int64()),
    "_row_id": ("row_id", pa.int64()),
    "_last_updated_sequence_number": ("last_updated", pa.int64()),
}


@dataclass(frozen=True, slots=True)
class Folded:
    """What a log of changes leads to.

    Attributes:
        rows: alive.
        deleted_keys: removed, and not alive.
        num_missed: removals whose row was not there, of a table without a key; 0 for others.
    """

    rows: pa.Table
    deleted_keys: pa.Table
    num_missed: int = 0


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows whose `column` is within [low, high]: a sample that every reader can find."""

    column: str
    low: pa.Scalar
    high: pa.Scalar


def live_rows(
    location: str | Path,
    *,
    snapshot_id: int | None = None,
    ref: str | None = None,
    columns: Sequence[str] | None = None,
    within: KeyRange | None = None,
    relocate: Mapping[str, str] | None = None,
) -> pa.Table:
    """The rows alive in a snapshot, in no particular order, in the exact types of the schema in force.

    Args:
        location: a metadata file or a table's directory.
        snapshot_id: this snapshot in its own schema; the current one in the current schema by default.
        ref: a branch (current schema) or tag (its snapshot's schema) instead.
        columns: names to return, `_file`, `_pos`, `_row_id` and `_last_updated_sequence_number` among them; all
            columns of the schema by default.
        within: only rows within this range of a column.
        relocate: old path prefix -> new path prefix.

    Raises:
        RefusedError: the table breaks a rule of its specification.
    """
    table = read_table_facts(location, relocate)
    snapshot, schema = table.snapshot(snapshot_id, ref)
    fields = list(schema["fields"])
    with open_connection() as connection:
        wanted = list(columns) if columns is not None else [f["name"] for f in fields]
        by_name = {f["name"]: i for i, f in enumerate(fields)}
        arrow = [
            sql_columns.arrow_type(fields[by_name[n]]["type"]) if n in by_name else _METADATA_COLUMNS[n][1]
            for n in wanted
        ]
        target = pa.schema(list(zip(wanted, arrow, strict=True)))
        query = live_query(connection, table, snapshot, fields)
        if query is None:
            return target.empty_table()
        sources = [f"v{by_name[n]}" if n in by_name else _METADATA_COLUMNS[n][0] for n in wanted]
        selected = ", ".join(f"{source} AS r{i}" for i, source in enumerate(sources)) or "1 AS r0"
        kept = _within(connection, within, list(by_name))
        rows = connection.sql(f"SELECT {selected} FROM ({query}){kept}").to_arrow_table()
        return _in_types(rows, target)


def live_query(
    connection: duckdb.DuckDBPyConnection, table: TableFacts, snapshot: Any, fields: Sequence[Any]
) -> str | None:
    """SQL over `connection` for the live rows with columns v0, v1, ... as `fields`; None if there are no data files."""
    files = table.files(snapshot)
    data = [f for f in files if f.content == 0]
    if not data:
        return None
    workspace = Workspace(table, connection)
    equality = equality_conditions(workspace, data, [f for f in files if f.content == 2])
    by_position = position_condition(workspace, data, [f for f in files if f.content == 1])
    key_ids = {i for ids in equality.values() for i in ids}
    conditions = [*equality, *([by_position] if by_position else [])]
    alive = " AND ".join(f"NOT {c}" for c in conditions) or "true"
    return f"SELECT * FROM ({candidates(workspace, data, fields, key_ids)}) AS c WHERE {alive}"


def fold_log(
    location: str | Path,
    key: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    snapshot_id: int | None = None,
    up_to_ordinal: int | None = None,
    adopted: AdoptedRows | None = None,
    within: KeyRange | None = None,
    relocate: Mapping[str, str] | None = None,
) -> Folded:
    """The last state of every key according to a change-log table.

    Args:
        location: the change log's metadata file or directory.
        key: names of the key columns, members of the log's `key`; empty for a table without a key, where the whole
            old row is the identity and equal rows are counted.
        columns: members of the log's `after` to return; all by default.
        snapshot_id: fold this snapshot of the log instead of the current one.
        up_to_ordinal: fold only changes with at most this ordinal: those that a mirror has applied.
        adopted: rows to begin with; columns and types are then the mirror's.
        within: only the rows within this range of a column; deleted keys are always all of them.
        relocate: old path prefix -> new path prefix.
    """
    table = read_table_facts(location, relocate)
    snapshot, schema = table.snapshot(snapshot_id)
    fields = {f["name"]: f for f in schema["fields"]}
    if "after" not in fields:
        return Folded(pa.table({}), pa.table({})) if adopted is None else _unchanged(adopted, key, within, relocate)
    after, keys = fields["after"]["type"]["fields"], fields["key"]["type"]["fields"]
    with open_connection() as connection:
        logged = [fields[n] for n in _LOG_COLUMNS]
        query = live_query(connection, table, snapshot, logged) or sql_columns.no_rows(logged)
        named = ", ".join(f"v{i} AS {name}" for i, name in enumerate(_LOG_COLUMNS))
        since = "" if adopted is None else f" AND v0 > {int(adopted.ordinal)}"
        applied = "" if up_to_ordinal is None else f" AND v0 <= {int(up_to_ordinal)}"
        connection.execute(f"CREATE TEMP TABLE changes AS SELECT {named} FROM ({query}) WHERE true{since}{applied}")
        if adopted is not None:
            after, keys = _begin_with(connection, adopted, after, keys, relocate)
        members, key_types = ({f["name"]: f["type"] for f in listed} for listed in (after, keys))
        wanted = list(columns) if columns is not None else list(members)
        row_schema = pa.schema([(n, sql_columns.arrow_type(members[n])) for n in wanted])
        key_schema = pa.schema([(n, sql_columns.arrow_type(key_types[n])) for n in key])
        return _folded(connection, Members(list(key_types), list(members)), row_schema, key_schema, within)


def changed_keys(
    location: str | Path,
    key: Sequence[str],
    *,
    after_ordinal: int,
    up_to_ordinal: int,
    relocate: Mapping[str, str] | None = None,
) -> pa.Table | None:
    """The keys, each once, of the rows that some changes of a log touch, before and after them.

    Args:
        location: the change log's metadata file or directory.
        key: names of the key columns.
        after_ordinal: the last change that is left out.
        up_to_ordinal: the last change.
        relocate: old path prefix -> new path prefix.

    Returns:
        None where the changes are of all rows, as a truncate is, or the log has had no rows yet.
    """
    table = read_table_facts(location, relocate)
    snapshot, schema = table.snapshot(None)
    fields = {f["name"]: f for f in schema["fields"]}
    if "after" not in fields:
        return None
    after, keys = fields["after"]["type"]["fields"], fields["key"]["type"]["fields"]
    members = Members([f["name"] for f in keys], [f["name"] for f in after])
    logged = [fields[n] for n in _LOG_COLUMNS]
    with open_connection() as connection:
        query = live_query(connection, table, snapshot, logged) or sql_columns.no_rows(logged)
        named = ", ".join(f"v{i} AS {name}" for i, name in enumerate(_LOG_COLUMNS))
        connection.execute(
            f"CREATE TEMP TABLE changes AS SELECT {named} FROM ({query}) "
            f"WHERE v0 > {int(after_ordinal)} AND v0 <= {int(up_to_ordinal)}"
        )
        if connection.execute("SELECT 1 FROM changes WHERE op = 't' LIMIT 1").fetchall():
            return None
        old = ", ".join(f"{members.of_key(k)} AS k{i}" for i, k in enumerate(key))
        new = ", ".join(f"{members.of_after(k)} AS k{i}" for i, k in enumerate(key))
        found = connection.sql(
            f"SELECT {old} FROM changes UNION SELECT {new} FROM changes WHERE op <> 'd'"
        ).to_arrow_table()
    key_types = {f["name"]: f["type"] for f in keys}
    return _in_types(found, pa.schema([(n, sql_columns.arrow_type(key_types[n])) for n in key]))


def _begin_with(
    connection: duckdb.DuckDBPyConnection,
    adopted: AdoptedRows,
    after: Sequence[Any],
    key: Sequence[Any],
    relocate: Mapping[str, str] | None,
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Put adopted rows before the changes; the members of `after` and `key` from then on."""
    table = read_table_facts(adopted.table, relocate)
    fields = table.current_schema["fields"]
    if adopted.rows is not None:
        by_name = {f["name"]: f for f in fields}
        given = adopted.rows.rename_columns([f"v{i}" for i in range(adopted.rows.num_columns)])
        connection.register("given_rows", given)
        fields = [by_name[name] for name in adopted.rows.column_names]
        return put_before(connection, "SELECT * FROM given_rows", adopted, fields=fields, after=after, key=key)
    snapshot = None if adopted.snapshot_id is None else table.snapshot(adopted.snapshot_id)[0]
    rows = live_query(connection, table, snapshot, fields) or sql_columns.no_rows(fields)
    return put_before(connection, rows, adopted, fields=fields, after=after, key=key)


def _unchanged(
    adopted: AdoptedRows, key: Sequence[str], within: KeyRange | None, relocate: Mapping[str, str] | None
) -> Folded:
    """Adopted rows upon which no change came."""
    rows = adopted.rows
    if rows is None:
        rows = live_rows(adopted.table, snapshot_id=adopted.snapshot_id, within=within, relocate=relocate)
    rows = rows if adopted.snapshot_id is not None else rows.slice(0, 0)
    return Folded(rows, rows.select(list(key)).slice(0, 0))


def fold_changes(changes: pa.Table, key: Sequence[str]) -> Folded:
    """As `fold_log`, over changes in memory (the change schema with `ordinal`)."""
    after, keys = changes.schema.field("after").type, changes.schema.field("key").type
    row_schema = pa.schema([(f.name, f.type) for f in after])
    key_schema = pa.schema([(n, keys.field(n).type) for n in key])
    with open_connection() as connection:
        connection.register("changes", changes.select(_LOG_COLUMNS))
        return _folded(connection, Members([f.name for f in keys], [f.name for f in after]), row_schema, key_schema)


def _folded(
    connection: duckdb.DuckDBPyConnection,
    members: Members,
    row_schema: pa.Schema,
    key_schema: pa.Schema,
    within: KeyRange | None = None,
) -> Folded:
    key = key_schema.names
    kept = _within(connection, within, row_schema.names)
    if not key:
        alive, num_missed = replay_rows(connection, "changes", row_schema.names, members)
        found = connection.sql(f"SELECT * FROM ({alive}){kept}").to_arrow_table()
        return Folded(_in_types(found, row_schema), key_schema.empty_table(), num_missed)
    alive = replay(connection, "changes", key, row_schema.names, members)
    rows = connection.sql(f"SELECT * FROM ({alive}){kept}").to_arrow_table()
    gone = connection.sql(deleted_keys("changes", key, members)).to_arrow_table()
    return Folded(_in_types(rows, row_schema), _in_types(gone, key_schema))


def _within(connection: duckdb.DuckDBPyConnection, within: KeyRange | None, names: Sequence[str]) -> str:
    """A WHERE clause for a range over columns v0, v1, ... called `names`; empty without a range."""
    if within is None:
        return ""
    limits = pa.table({"low": _one(within.low), "high": _one(within.high)})
    connection.register("key_range", limits)
    column = f"v{list(names).index(within.column)}"
    return f" WHERE {column} BETWEEN (SELECT low FROM key_range) AND (SELECT high FROM key_range)"


def _one(value: pa.Scalar) -> pa.Array:
    return pa.array([value.as_py()], value.type)


def _in_types(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Rows under the target's names and types; DuckDB has no fixed-size binary and no type without values."""
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
