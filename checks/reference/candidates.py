"""All rows of the data files of a snapshot in one SQL query, and the rows that delete files remove.

Implements rules 1 to 18.
"""

import decimal
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
from fastavro.schema import expand_schema
from pyarrow import fs

from nevermore.checks.reference import sql_columns
from nevermore.checks.reference.facts import FileFacts, RefusedError, TableFacts, positions, read_avro
from nevermore.checks.reference.sql_columns import Shape, arrow_shape, parquet_shapes

_EXACT = decimal.Context(prec=80)
_NAMES = {
    "date": "date32",
    "time-micros": "time64[us]",
    "time-millis": "time32[ms]",
    "timestamp-micros": "timestamp[us]",
    "timestamp-millis": "timestamp[ms]",
    "timestamp-nanos": "timestamp[ns]",
    "null": "null",
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "enum": "string",
    "bytes": "binary",
    "fixed": "binary",
}
"""In Arrow, by logical type or type of Avro."""


def read_file(content: bytes, path: str, file_format: str) -> pa.Table:
    """All rows and columns of an ORC or Avro file; field ids are in the metadata of the Arrow fields."""
    if file_format == "orc":
        from pyarrow import orc

        return orc.ORCFile(pa.BufferReader(content)).read()
    if file_format == "avro":
        return _read_avro_table(content)
    raise RefusedError(f"{path}: format {file_format} is not one of parquet, orc, avro")


def _read_avro_table(content: bytes) -> pa.Table:
    reader, rows = read_avro(content)
    schema = expand_schema(reader.writer_schema)
    fields = [_field(f["name"], f["type"], f.get("field-id")) for f in schema["fields"]]
    records = list(rows)
    columns = [
        pa.array([_value(r[f["name"]], f["type"]) for r in records], type=field.type)
        for f, field in zip(schema["fields"], fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _required(schema: Any) -> Any:
    """The schema inside an optional union; Iceberg uses no other unions."""
    if isinstance(schema, list):
        schema = next(branch for branch in schema if branch != "null")
    return schema


def _field(name: str, schema: Any, field_id: int | None) -> pa.Field:
    return pa.field(
        name, _type(_required(schema)), metadata=None if field_id is None else {"iceberg.id": str(field_id)}
    )


def _type(schema: Any) -> pa.DataType:
    document: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {"type": schema}
    kind, logical = document["type"], document.get("logicalType")
    if kind == "record":
        return pa.struct([_field(f["name"], f["type"], f.get("field-id")) for f in document["fields"]])
    if kind == "array" and logical == "map":
        key, value = _required(document["items"])["fields"]
        return pa.map_(
            _field("key", key["type"], key.get("field-id")).with_nullable(nullable=False),
            _field("value", value["type"], value.get("field-id")),
        )
    if kind == "array":
        return pa.list_(_field("element", document["items"], document.get("element-id")))
    if kind == "map":
        key_field = _field("key", "string", document.get("key-id")).with_nullable(nullable=False)
        return pa.map_(key_field, _field("value", document["values"], document.get("value-id")))
    if logical == "decimal":
        return pa.decimal128(document["precision"], document.get("scale", 0))
    known = str(logical).removeprefix("local-")
    arrow = pa.type_for_alias(_NAMES[known if known in _NAMES else kind])
    return pa.timestamp(arrow.unit, "UTC") if document.get("adjust-to-utc") else arrow


def _value(value: Any, schema: Any) -> Any:
    """A stored value in the form that `pa.array` accepts: decimals as Decimal, entries of a map as pairs."""
    schema = _required(schema)
    if value is None or not isinstance(schema, Mapping):
        return value
    kind, logical = schema["type"], schema.get("logicalType")
    if kind == "record":
        return {f["name"]: _value(value[f["name"]], f["type"]) for f in schema["fields"]}
    if kind == "array" and logical == "map":
        key, item = _required(schema["items"])["fields"]
        return [(_value(e["key"], key["type"]), _value(e["value"], item["type"])) for e in value]
    if kind == "array":
        return [_value(e, schema["items"]) for e in value]
    if kind == "map":
        return [(k, _value(v, schema["values"])) for k, v in value.items()]
    if logical == "decimal":
        unscaled = decimal.Decimal(int.from_bytes(value, "big", signed=True))
        return unscaled.scaleb(-schema.get("scale", 0), _EXACT)
    return value


GLOBAL_SCOPE = -1
_ROW_ID, _LAST_UPDATED = 2147483540, 2147483539


@dataclass(slots=True)
class Workspace:
    """A DuckDB connection with the files of one table: how to scan each file, and the scope of deletes."""

    table: TableFacts
    connection: duckdb.DuckDBPyConnection
    scopes: dict[tuple[int, tuple[Any, ...]], int] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    newest: dict[tuple[int, int], int] = field(default_factory=dict)
    sequences: int = 0

    def __post_init__(self) -> None:
        if self.table.filesystem is not None:
            _register(self.connection, self.table.protocol, self.table.filesystem)

    def name(self, prefix: str) -> str:
        """A name that no other object of this connection has."""
        self.sequences += 1
        return f"{prefix}_{id(self):x}_{self.sequences}"

    def scope(self, file: FileFacts) -> int:
        """A number for the file's spec and partition."""
        return self.scopes.setdefault((file.spec_id, file.partition), len(self.scopes))

    def reach(self, scope: int, key_id: int, sequence_number: int) -> None:
        """Note an equality delete by a column."""
        self.newest[scope, key_id] = max(self.newest.get((scope, key_id), 0), sequence_number)

    def is_reached(self, file: FileFacts, key_id: int) -> bool:
        """Whether an equality delete by a column applies to a data file (rules 1 and 4)."""
        scopes = self.scope(file), GLOBAL_SCOPE
        return any(self.newest.get((scope, key_id), 0) > file.sequence_number for scope in scopes)

    def learn(self, files: Iterable[FileFacts]) -> None:
        """Read the shapes of all Parquet files among `files` in one query."""
        paths = {self.table.local(f.path) for f in files if f.format == "parquet"} - self.shapes.keys()
        for path, shape in parquet_shapes(self.connection, sorted(paths)).items():
            self.shapes[path] = shape.with_name_mapping(self.table.name_mapping)

    def scan(self, files: Sequence[FileFacts]) -> tuple[Shape, str]:
        """The shape of `files`, which all share it, and a FROM item with columns c0 ..., `path` and `pos`."""
        paths = [self.table.local(f.path) for f in files]
        if files[0].format == "parquet":
            shape = self.shapes[paths[0]]
            listed = ", ".join(sql_columns.string_literal(p) for p in paths)
            source = (
                f"read_parquet([{listed}], filename = true, file_row_number = true, hive_partitioning = false, "
                "binary_as_string = false)"
            )
            order = "pos, path"
        else:
            loaded = read_file(self.table.read(files[0].path), files[0].path, files[0].format)
            shape = arrow_shape(loaded.schema).with_name_mapping(self.table.name_mapping)
            loaded = loaded.rename_columns([f"c{i}" for i in range(loaded.num_columns)])
            loaded = loaded.append_column("path", pa.repeat(paths[0], loaded.num_rows))
            loaded = loaded.append_column("pos", pa.array(range(loaded.num_rows), pa.int64()))
            source = self.name("file")
            self.connection.register(source, loaded)
            order = "path, pos"
        columns = [f"c{i}" for i in range(len(shape.columns))]
        return shape, f"{source} AS scanned({', '.join([*columns, order])})"

    def missing(self, file: FileFacts) -> sql_columns.Missing:
        """Identity-partition values of a file, for columns that it lacks."""
        by_source = {
            f["source-id"]: value
            for f, value in zip(self.table.specs[file.spec_id], file.partition, strict=True)
            if f["transform"] == "identity" and "source-id" in f
        }
        paths = key_paths(self.table)

        def literal(field_id: int) -> str | None:
            if field_id not in by_source:
                return None
            return sql_columns.partition_literal(by_source[field_id], paths[field_id][-1]["type"])

        return literal


def _register(connection: duckdb.DuckDBPyConnection, protocol: str, filesystem: fs.FileSystem) -> None:
    """Let the database of a connection open `protocol://PATH` by a file system of PyArrow, from now on.

    DuckDB's own access to object stores would have to be installed at run time.
    """
    # not for local tables: it comes with the catalog library, and takes time to load
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]  # it has no types

    class Store(AbstractFileSystem):  # type: ignore[misc]
        """What DuckDB asks of a file system to read files by their exact names."""

        cachable = False

        def open(self, path: str, mode: str = "rb", **_: Any) -> Any:  # noqa: ARG002 - files are only read
            return filesystem.open_input_file(_key(path))

        def glob(self, path: str, **_: Any) -> list[str]:
            return [path]  # names may have brackets and stars

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            return {"name": path, "size": filesystem.get_file_info(_key(path)).size, "type": "file"}

        def modified(self, path: str) -> datetime:
            return filesystem.get_file_info(_key(path)).mtime or datetime.now(UTC)

    def _key(path: str) -> str:
        return path.removeprefix(f"{protocol}://")

    if not connection.filesystem_is_registered(protocol):
        store = Store()
        store.protocol = protocol
        connection.register_filesystem(store)


def key_paths(table: TableFacts) -> dict[int, list[Mapping[str, Any]]]:
    """Fields from the top-level column down to each id, through structs, over all schemas (rule 14)."""
    found: dict[int, list[Mapping[str, Any]]] = {}

    def walk(fields: Sequence[Mapping[str, Any]], parents: list[Mapping[str, Any]]) -> None:
        for member in fields:
            found[member["id"]] = [*parents, member]
            if isinstance(member["type"], Mapping) and member["type"]["type"] == "struct":
                walk(member["type"]["fields"], [*parents, member])

    for _, schema in sorted(table.schemas.items()):
        walk(schema["fields"], [])
    walk(table.current_schema["fields"], [])
    return found


def candidates(workspace: Workspace, files: Sequence[FileFacts], fields: Sequence[Any], key_ids: Iterable[int]) -> str:
    """SQL for the rows of `files` in the table's columns v0, v1, ..., and with the columns that deletes need."""
    paths = key_paths(workspace.table)
    keys = sorted(set(key_ids))
    workspace.learn(files)
    groups: dict[Any, list[FileFacts]] = {}
    for number, file in enumerate(files):
        parquet = file.format == "parquet"
        shape = workspace.shapes[workspace.table.local(file.path)] if parquet else number
        groups.setdefault((file.format, shape, file.spec_id, file.partition), []).append(file)
    facts = workspace.name("files")
    workspace.connection.register(facts, _file_facts(workspace, files))
    selects = []
    for group in groups.values():
        shape, source = workspace.scan(group)
        missing = workspace.missing(group[0])
        values = [f"{sql_columns.column(f, shape, missing)} AS v{i}" for i, f in enumerate(fields)]
        for key_id in keys:
            path = paths[key_id]
            if not any(workspace.is_reached(file, key_id) for file in group):
                # of no account; files from after a column was dropped lack it, even if it was required
                path = [*path[:-1], {**path[-1], "required": False}]
            sql = sql_columns.key(path, shape, missing)
            values.append(f"{sql_columns.canonical(sql, path[-1]['type'])} AS k{key_id}")
        values += [_lineage(shape, _ROW_ID, "f.first_row_id + pos", "row_id")]
        values += [_lineage(shape, _LAST_UPDATED, "f.sequence_number", "last_updated")]
        selects.append(
            f"SELECT f.file_no, f.sequence_number, f.scope, f.name AS file, pos, {', '.join(values)} "
            f"FROM {source} JOIN {facts} AS f ON scanned.path = f.path"
        )
    return "\nUNION ALL\n".join(selects)


def _lineage(shape: Shape, field_id: int, inherited: str, name: str) -> str:
    """Rule 21: the physical column where it is not null, else inherited; NULL where the file has no row ids."""
    stored = next((f"c{i}" for i, n in enumerate(shape.columns) if n.field_id == field_id), "NULL")
    value = f"coalesce({stored}, {inherited})"
    return f"CASE WHEN f.first_row_id IS NULL THEN NULL ELSE CAST({value} AS BIGINT) END AS {name}"


def _file_facts(workspace: Workspace, files: Sequence[FileFacts]) -> pa.Table:
    paths = [workspace.table.local(f.path) for f in files]
    if len(set(paths)) != len(paths):
        raise RefusedError(f"{workspace.table.path}: the snapshot names a data file twice")
    return pa.table(
        {
            "file_no": pa.array(range(len(files)), pa.int64()),
            "path": pa.array(paths, pa.string()),
            "name": pa.array([f.path for f in files], pa.string()),
            "sequence_number": pa.array([f.sequence_number for f in files], pa.int64()),
            "scope": pa.array([workspace.scope(f) for f in files], pa.int64()),
            "first_row_id": pa.array([f.first_row_id for f in files], pa.int64()),
        }
    )


_FILE_PATH, _POS = 2147483546, 2147483545
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3"}


def equality_joins(
    workspace: Workspace, data: Sequence[FileFacts], deletes: Sequence[FileFacts]
) -> dict[str, set[int]]:
    """Joins of candidates `c` that leave out those that a delete removes, each with the key ids it compares."""
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
            for key_id in delete.equality_ids:
                workspace.reach(scope, key_id, delete.sequence_number)
    workspace.learn(delete for listed in sets.values() for _, delete in listed)
    joins: dict[str, set[int]] = {}
    for key_ids, listed in sets.items():
        for applies in ("global", "scoped"):
            mine = [(scope, delete) for scope, delete in listed if (scope == GLOBAL_SCOPE) == (applies == "global")]
            if mine:
                joins[_key_set(workspace, key_ids, mine)] = set(key_ids)
    return joins


def _is_global(workspace: Workspace, delete: FileFacts) -> bool:
    return all(f["transform"] == "void" for f in workspace.table.specs[delete.spec_id])


def _key_set(workspace: Workspace, key_ids: tuple[int, ...], deletes: Sequence[tuple[int, FileFacts]]) -> str:
    """Load the deletes of one key set, all global or none, into a table; return the join with it.

    A subquery for each row would make DuckDB hold the keys of all candidates at once.
    """
    paths = key_paths(workspace.table)
    selects = []
    for scope, delete in deletes:
        shape, source = workspace.scan([delete])
        columns = [f"{scope} AS scope", f"{delete.sequence_number} AS sequence_number"]
        for key_id in key_ids:
            if key_id not in paths or not isinstance(paths[key_id][-1]["type"], str):
                raise RefusedError(f"{delete.path}: equality id {key_id} is not a primitive column or struct member")
            sql = sql_columns.key_of_delete_file(paths[key_id][-1], shape, delete.path)
            columns.append(f"{sql} AS k{key_id}")
        selects.append(f"SELECT {', '.join(columns)} FROM {source}")
    table = workspace.name("deletes")
    workspace.connection.execute(f"CREATE TEMP TABLE {table} AS {' UNION ALL '.join(selects)}")
    same_key = " AND ".join(f"{table}.k{i} IS NOT DISTINCT FROM c.k{i}" for i in key_ids)
    same_scope = "" if deletes[0][0] == GLOBAL_SCOPE else f" AND {table}.scope = c.scope"
    return f"ANTI JOIN {table} ON {same_key} AND {table}.sequence_number > c.sequence_number{same_scope}"


def position_joins(workspace: Workspace, data: Sequence[FileFacts], deletes: Sequence[FileFacts]) -> list[str]:
    """The join of candidates `c` that leaves out those that position deletes and deletion vectors remove, if there are some."""
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
        return []
    name = workspace.name("dead")
    workspace.connection.register(name, pa.concat_tables(dead))
    return [f"ANTI JOIN {name} ON {name}.file_no = c.file_no AND {name}.pos = c.pos"]


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
