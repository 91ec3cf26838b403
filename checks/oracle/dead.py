"""Which candidates the snapshot's delete files kill: SQL conditions over `candidates.py`, rules 1 to 18."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from checks.oracle import projection
from checks.oracle.candidates import GLOBAL_SCOPE, Workspace, key_paths
from checks.oracle.facts import FileFacts, RefusedError
from checks.oracle.vectors import positions

_FILE_PATH, _POS = 2147483546, 2147483545
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3"}


def equality_conditions(
    workspace: Workspace, data: Sequence[FileFacts], deletes: Sequence[FileFacts]
) -> dict[str, set[int]]:
    """For each condition "this row is dead", the key ids it compares."""
    oldest: dict[int, int] = {}
    for file in data:
        for scope in (workspace.scope(file), GLOBAL_SCOPE):
            oldest[scope] = min(oldest.get(scope, file.sequence_number), file.sequence_number)
    sets: dict[tuple[int, ...], list[tuple[int, FileFacts]]] = {}
    for delete in deletes:
        scope = GLOBAL_SCOPE if _is_global(workspace, delete) else workspace.scope(delete)
        if scope in oldest and oldest[scope] < delete.sequence_number:
            if not delete.equality_ids:
                raise RefusedError(f"{delete.path}: equality_ids are missing or empty")
            sets.setdefault(tuple(sorted(set(delete.equality_ids))), []).append((scope, delete))
    workspace.learn(delete for listed in sets.values() for _, delete in listed)
    return {_key_set(workspace, key_ids, listed): set(key_ids) for key_ids, listed in sets.items()}


def _is_global(workspace: Workspace, delete: FileFacts) -> bool:
    return all(f["transform"] == "void" for f in workspace.table.specs[delete.spec_id])


def _key_set(workspace: Workspace, key_ids: tuple[int, ...], deletes: Sequence[tuple[int, FileFacts]]) -> str:
    """Load the deletes of one key set into a table; the condition under which one of them kills a candidate."""
    paths = key_paths(workspace.table)
    selects = []
    for scope, delete in deletes:
        shape, source = workspace.scan([delete])
        columns = [f"{scope} AS scope", f"{delete.sequence_number} AS sequence_number"]
        for key_id in key_ids:
            if key_id not in paths or not isinstance(paths[key_id][-1]["type"], str):
                raise RefusedError(f"{delete.path}: equality id {key_id} is not a primitive column or struct member")
            sql = projection.key_of_delete_file(paths[key_id][-1], shape, delete.path)
            columns.append(f"{sql} AS k{key_id}")
        selects.append(f"SELECT {', '.join(columns)} FROM {source}")
    table = workspace.name("deletes")
    workspace.connection.execute(f"CREATE TEMP TABLE {table} AS {' UNION ALL '.join(selects)}")
    same_key = " AND ".join(f"d.k{i} IS NOT DISTINCT FROM c.k{i}" for i in key_ids)
    return (
        f"EXISTS (SELECT 1 FROM {table} AS d WHERE {same_key} AND d.sequence_number > c.sequence_number "
        f"AND (d.scope = {GLOBAL_SCOPE} OR d.scope = c.scope))"
    )


def position_condition(workspace: Workspace, data: Sequence[FileFacts], deletes: Sequence[FileFacts]) -> str | None:
    """The condition under which a position delete or a deletion vector kills a candidate; None if there is none."""
    vectors = _vectors(workspace, data, [d for d in deletes if d.format == "puffin"])
    dead = [
        pa.table({"file_no": pa.repeat(pa.scalar(number, pa.int64()), len(found)), "pos": pa.array(found, pa.int64())})
        for number, found in ((n, positions(workspace.table, v)) for n, v in vectors.items())
    ]
    files = [d for d in deletes if d.format != "puffin"]
    workspace.learn(files)
    dead += [_named_positions(workspace, data, vectors, delete) for delete in files]
    dead = [t for t in dead if t.num_rows]
    if not dead:
        return None
    name = workspace.name("dead")
    workspace.connection.register(name, pa.concat_tables(dead))
    return f"EXISTS (SELECT 1 FROM {name} AS d WHERE d.file_no = c.file_no AND d.pos = c.pos)"


def _vectors(workspace: Workspace, data: Sequence[FileFacts], vectors: Sequence[FileFacts]) -> dict[int, FileFacts]:
    found: dict[int, FileFacts] = {}
    for vector in vectors:
        for number in _files_called(workspace, data, vector.referenced_data_file or ""):
            file = data[number]
            if number in found:
                raise RefusedError(f"{vector.path}: {file.path} has two deletion vectors")
            if vector.sequence_number < file.sequence_number:
                raise RefusedError(f"{vector.path}: the deletion vector is older than {file.path}")
            if workspace.scope(vector) != workspace.scope(file):
                raise RefusedError(f"{vector.path}: {file.path} is in another partition")
            found[number] = vector
    return found


def _named_positions(
    workspace: Workspace, data: Sequence[FileFacts], vectors: Mapping[int, Any], delete: FileFacts
) -> pa.Table:
    """Positions that a position-delete file removes from files of its scope that have no deletion vector."""
    scope = workspace.scope(delete)
    empty = pa.schema([("file_no", pa.int64()), ("pos", pa.int64())]).empty_table()
    meets = [f for f in data if workspace.scope(f) == scope and f.sequence_number <= delete.sequence_number]
    if not meets:
        return empty
    shape, source = workspace.scan([delete])
    path_at, pos_at = (
        next(
            (i for i, n in enumerate(shape.columns) if n.field_id == i_d or (n.field_id is None and n.name == name)),
            None,
        )
        for i_d, name in ((_FILE_PATH, "file_path"), (_POS, "pos"))
    )
    if path_at is None or pos_at is None:
        raise RefusedError(f"{delete.path}: a position-delete file without file_path or pos")
    named = workspace.connection.execute(f"SELECT DISTINCT c{path_at} FROM {source}").fetchall()
    matches: list[tuple[str, int]] = []
    for (name,) in named:
        if delete.referenced_data_file is not None and not _same_path(workspace, name, delete.referenced_data_file):
            raise RefusedError(f"{delete.path}: names {name}, but references {delete.referenced_data_file}")
        for number in _files_called(workspace, data, name):
            if data[number].sequence_number > delete.sequence_number:
                continue
            if workspace.scope(data[number]) != scope:
                raise RefusedError(f"{delete.path}: {name} is in another partition")
            if number not in vectors:
                matches.append((name, number))
    if not matches:
        return empty
    mapping = workspace.name("named")
    columns = {"name": [m[0] for m in matches], "file_no": pa.array([m[1] for m in matches], pa.int64())}
    workspace.connection.register(mapping, pa.table(columns))
    return workspace.connection.sql(
        f"SELECT m.file_no, CAST(c{pos_at} AS BIGINT) AS pos FROM {source} JOIN {mapping} AS m ON m.name = c{path_at}"
    ).to_arrow_table()


def _files_called(workspace: Workspace, data: Sequence[FileFacts], name: str) -> list[int]:
    return [number for number, file in enumerate(data) if _same_path(workspace, file.path, name)]


def _same_path(workspace: Workspace, left: str, right: str) -> bool:
    """Rule 7: equal as written or after relocation; a missing scheme or authority matches any."""
    local = workspace.table.local
    return left == right or _alike(left, right) or _alike(local(left), local(right))


def _alike(left: str, right: str) -> bool:
    (scheme_a, host_a, path_a), (scheme_b, host_b, path_b) = _parts(left), _parts(right)
    alike = path_a == path_b
    alike &= scheme_a == scheme_b or not scheme_a or not scheme_b
    return alike and (host_a == host_b or not host_a or not host_b)


def _parts(path: str) -> tuple[str, str, str]:
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)$", path)
    if not found:
        return "", "", path
    scheme = found[1].lower()
    return _SAME_SCHEME.get(scheme, scheme), found[2] or "", "/" + found[3].lstrip("/")
