"""Columns in the SQL of DuckDB: types, constants, and the columns of a file as columns of the table.

Columns are matched by field id at every depth (rule 16).
"""

import atexit
import decimal
import itertools
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from threading import RLock
from typing import Any

import duckdb
import pyarrow as pa

from nevermore.checks.reference.facts import RefusedError

_lock = RLock()
"""Checks may run side by side in threads."""


_PREFIX = "nevermore-duckdb-"


class TemporaryFolderError(OSError):
    """The folder for temporary files is full, gone or broken: nothing is known of the rows that were to be compared."""


@contextmanager
def _naming_folder() -> Iterator[None]:
    """Tell errors of the temporary folder from those of files of tables: DuckDB names the file, or its setting."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        said = str(error)
        if isinstance(error, TemporaryFolderError) or (_PREFIX not in said and "temp_directory" not in said):
            raise
        raise TemporaryFolderError(
            f"the folder for temporary files, {tempfile.gettempdir()}, cannot be used: make room in it or repair it, or set TMPDIR "
            f"to another one ({said.splitlines()[0]})"
        ) from error


@cache
def _first_connection() -> duckdb.DuckDBPyConnection:
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return duckdb.connect(config={"temp_directory": folder})


def _connected() -> duckdb.DuckDBPyConnection:
    """A connection of its own to the one in-memory database of this process: opening one takes twenty times as long.

    DuckDB spills to a private folder. Its default is `.tmp` in the working directory, where another user may have created
    a link.
    """
    with _lock:
        return _first_connection().cursor()


_asked: list[int] = []
"""Memory that checks have asked for at the same time."""
_before: dict[str, Any] = {}
"""Settings from before the first of them."""


@contextmanager
def limited_memory(num_bytes: int) -> Iterator[None]:
    """Let DuckDB use this much memory, and write what does not fit to its private folder.

    What runs in other threads at the same time may use what it has asked for in addition.
    """
    with _lock, _connected() as connection:
        if not _asked:
            for name in ("memory_limit", "threads"):
                _before[name] = connection.execute("SELECT current_setting(?)", [name]).fetchall()[0][0]
        _asked.append(num_bytes)
        threads = max(1, min(int(_before["threads"]), sum(_asked) // _THREAD_BYTES))
        connection.execute(f"SET GLOBAL memory_limit = '{sum(_asked) // 1024}KiB'; SET GLOBAL threads = '{threads}'")
    try:
        with _naming_folder():
            yield
    finally:
        with _lock, _connected() as connection:
            _asked.remove(num_bytes)
            if not _asked:  # a limit below what a running query holds would fail
                for name, value in _before.items():
                    connection.execute(f"SET GLOBAL {name} = '{value}'")


_THREAD_BYTES = 64 * 1024**2
"""Memory for each thread of DuckDB, which has buffers of its own."""


def open_connection() -> duckdb.DuckDBPyConnection:
    """A new connection, with its own registered relations and temporary tables."""
    return _connected().execute("SET TimeZone = 'UTC'; SET arrow_lossless_conversion = true")


_COMMIT_BYTES = 32 * 1024**2
"""Rows that a transaction adds: DuckDB holds them beside what its limit counts."""

APPENDED = "appended"
"""View of rows that are being added to a table."""
_ALL = f"FROM {APPENDED}"


@dataclass(frozen=True, slots=True)
class PrivateDatabase:
    """A database of its own for rows that take more than one query, all of whose tables go with it.

    Attributes:
        connection: has the database attached.
        catalog: its name in SQL.
    """

    connection: duckdb.DuckDBPyConnection
    catalog: str

    def name(self, table: str) -> str:
        """A table of the database in SQL."""
        return f"{self.catalog}.{table}"

    def store(
        self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table], query: str = _ALL
    ) -> int:
        """Make a table of rows, or of what a query makes of those in `APPENDED`; return their number."""
        self.connection.register(APPENDED, schema.empty_table())
        self.connection.execute(f"CREATE OR REPLACE TABLE {self.name(table)} AS {query}")
        self.connection.unregister(APPENDED)
        return self.append(table, batches, query)

    def append(self, table: str, batches: Iterable[pa.RecordBatch | pa.Table], query: str = _ALL) -> int:
        """Add rows to a table, some at a time; return their number."""
        count = num_held = 0
        self.connection.begin()
        try:
            for batch in batches:
                count += batch.num_rows
                self.connection.register(APPENDED, batch)
                self.connection.execute(f"INSERT INTO {self.name(table)} {query}")
                self.connection.unregister(APPENDED)
                num_held += batch.nbytes
                if num_held > _COMMIT_BYTES:
                    self.connection.commit()
                    self.connection.begin()
                    num_held = 0
        except BaseException:
            with suppress(duckdb.Error):  # a full disk has ended it
                self.connection.rollback()
            raise
        self.connection.commit()
        return count


@contextmanager
def private_database() -> Iterator[PrivateDatabase]:
    """A new database in a file of a private folder: compressed, rows take a ninth of the disk that spilled ones take."""
    catalog = f"private_{next(_numbers)}"
    with _naming_folder(), tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, open_connection() as connection:
        connection.execute(f"ATTACH {string_literal(f'{folder}/rows.duckdb')} AS {catalog}; USE {catalog}")
        try:
            yield PrivateDatabase(connection, catalog)
        finally:
            try:
                connection.execute(f"USE memory; DETACH {catalog}")
            except duckdb.FatalException:  # a broken disk has ended the database of this process
                _first_connection.cache_clear()
            except duckdb.Error:  # what cannot be written any more is not needed any more
                pass


_numbers = itertools.count()


_TYPES = {
    "boolean": ("BOOLEAN", pa.bool_()),
    "int": ("INTEGER", pa.int32()),
    "long": ("BIGINT", pa.int64()),
    "float": ("FLOAT", pa.float32()),
    "double": ("DOUBLE", pa.float64()),
    "date": ("DATE", pa.date32()),
    "time": ("TIME", pa.time64("us")),
    "timestamp": ("TIMESTAMP", pa.timestamp("us")),
    "timestamptz": ("TIMESTAMPTZ", pa.timestamp("us", "UTC")),
    "timestamp_ns": ("TIMESTAMP_NS", pa.timestamp("ns")),
    "timestamptz_ns": ("TIMESTAMPTZ_NS", pa.timestamp("ns", "UTC")),
    "string": ("VARCHAR", pa.string()),
    "uuid": ("UUID", pa.uuid()),
    "binary": ("BLOB", pa.binary()),
    "unknown": ("INTEGER", pa.null()),
}
"""Types of DuckDB and Arrow for each primitive type without parameters."""
_TEMPORAL_LITERALS = {
    "date": "(DATE '1970-01-01' + CAST({} AS INTEGER))",
    "time": "(TIME '00:00:00' + to_microseconds(CAST({} AS BIGINT)))",
    "timestamp": "make_timestamp(CAST({} AS BIGINT))",
    "timestamptz": "CAST(make_timestamp(CAST({} AS BIGINT)) AS TIMESTAMPTZ)",
    "timestamp_ns": "make_timestamp_ns(CAST({} AS BIGINT))",
    "timestamptz_ns": "CAST(make_timestamp_ns(CAST({} AS BIGINT)) AS TIMESTAMPTZ_NS)",
}
_EXACT = decimal.Context(prec=80)
_PARAMETERS = re.compile(r"(decimal|fixed)\D+(\d+)(?:\s*,\s*(\d+))?\D*$")


def sql_type(iceberg_type: str) -> str:
    """DuckDB's type for a primitive type."""
    return _primitive_types(iceberg_type)[0]


def _primitive_types(iceberg_type: str) -> tuple[str, pa.DataType]:
    match = _PARAMETERS.match(iceberg_type)
    if match and match[1] == "fixed":
        return "BLOB", pa.binary(int(match[2]))
    if match:
        return f"DECIMAL({match[2]}, {match[3]})", pa.decimal128(int(match[2]), int(match[3]))
    if iceberg_type not in _TYPES:
        raise RefusedError(f"type {iceberg_type} is not supported")
    return _TYPES[iceberg_type]


def arrow_type(iceberg_type: Any) -> pa.DataType:
    """Arrow's type for a type in its JSON form."""
    if isinstance(iceberg_type, str):
        return _primitive_types(iceberg_type)[1]
    match iceberg_type["type"]:
        case "struct":
            return pa.struct([(f["name"], arrow_type(f["type"])) for f in iceberg_type["fields"]])
        case "list":
            return pa.list_(pa.field("element", arrow_type(iceberg_type["element"])))
        case "map":
            return pa.map_(arrow_type(iceberg_type["key"]), arrow_type(iceberg_type["value"]))
        case other:
            return arrow_type(other)


def partition_literal(value: Any, iceberg_type: str) -> str:
    """SQL for an identity-partition value as the manifest stores it: dates and times as integers, bytes as bytes."""
    if value is None:
        return null(iceberg_type)
    if iceberg_type in _TEMPORAL_LITERALS:
        return _TEMPORAL_LITERALS[iceberg_type].format(value)
    target = sql_type(iceberg_type)
    if iceberg_type in {"float", "double"}:
        (unpacked,) = struct.unpack(">d", value)
        return f"CAST('{unpacked!r}' AS {target})"
    if iceberg_type == "string":
        return _text(value)
    if iceberg_type.startswith("decimal"):
        scale = int(re.findall(r"\d+", iceberg_type)[1])
        return (
            f"CAST('{decimal.Decimal(int.from_bytes(value, 'big', signed=True)).scaleb(-scale, _EXACT):f}' AS {target})"
        )
    if not isinstance(value, bytes):
        return f"CAST('{value}' AS {target})"
    return f"CAST('{value.hex()}' AS UUID)" if iceberg_type == "uuid" else f"unhex('{value.hex()}')"


def default_literal(value: Any, iceberg_type: Any) -> str:
    """SQL for an `initial-default`, a JSON single value."""
    if value is None:
        return null(iceberg_type)
    if isinstance(iceberg_type, Mapping):
        match iceberg_type["type"]:
            case "list":
                items = ", ".join(default_literal(v, iceberg_type["element"]) for v in value)
                return f"CAST([{items}] AS {nested_sql_type(iceberg_type)})"
            case "map":
                keys = ", ".join(default_literal(v, iceberg_type["key"]) for v in value["keys"])
                values = ", ".join(default_literal(v, iceberg_type["value"]) for v in value["values"])
                return f"CAST(map([{keys}], [{values}]) AS {nested_sql_type(iceberg_type)})"
        fields = iceberg_type["fields"]
        members = [default_literal(value.get(str(f["id"]), f.get("initial-default")), f["type"]) for f in fields]
        return struct_pack(fields, members)
    if iceberg_type == "string":
        return _text(value)
    if iceberg_type == "binary" or iceberg_type.startswith("fixed"):
        return f"unhex('{value}')"
    return f"CAST('{value}' AS {sql_type(iceberg_type)})"


def nested_sql_type(iceberg_type: Any) -> str:
    """DuckDB's type for any type in its JSON form."""
    if isinstance(iceberg_type, str):
        return sql_type(iceberg_type)
    match iceberg_type["type"]:
        case "struct":
            fields = iceberg_type["fields"]
            members = (
                f"{name} {nested_sql_type(f['type'])}" for name, f in zip(member_names(fields), fields, strict=True)
            )
            return f"STRUCT({', '.join(members)})"
        case "list":
            return nested_sql_type(iceberg_type["element"]) + "[]"
        case _:
            return f"MAP({nested_sql_type(iceberg_type['key'])}, {nested_sql_type(iceberg_type['value'])})"


def null(iceberg_type: Any) -> str:
    """A NULL of a type."""
    return f"CAST(NULL AS {nested_sql_type(iceberg_type)})"


def no_rows(fields: Sequence[Mapping[str, Any]]) -> str:
    """A query for no rows, with columns v0, v1, ... as `fields`."""
    nulls = ", ".join(f"{null(field['type'])} AS v{i}" for i, field in enumerate(fields))
    return f"SELECT {nulls} WHERE false"


def struct_pack(fields: Sequence[Mapping[str, Any]], values: Sequence[str]) -> str:
    """SQL for a struct of these fields, of one expression for each."""
    members = (f"{name} := {value}" for name, value in zip(member_names(fields), values, strict=True))
    return f"struct_pack({', '.join(members)})"


def member_names(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """SQL identifiers for a struct's members. DuckDB ignores case, so of `id` and `ID` the second gets its position appended."""
    names, taken = [], {str(f["name"]).lower() for f in fields}
    seen: set[str] = set()
    for place, field in enumerate(fields, 1):
        name = str(field["name"])
        while name.lower() in seen or (name != field["name"] and name.lower() in taken):
            name = f"{name}_{place}"
        seen.add(name.lower())
        names.append(quoted(name))
    return names


def with_names_of(target: pa.DataType, stored: pa.DataType) -> pa.DataType:
    """The type `stored` with the names that `target` has for the members of structs, which SQL had to change."""
    if pa.types.is_struct(stored) and pa.types.is_struct(target) and stored.num_fields == target.num_fields:
        return pa.struct([(w.name, with_names_of(w.type, s.type)) for w, s in zip(target, stored, strict=True)])
    if pa.types.is_list(stored) and pa.types.is_list(target):
        return pa.list_(stored.value_field.with_type(with_names_of(target.value_type, stored.value_type)))
    if pa.types.is_map(stored) and pa.types.is_map(target):
        key = with_names_of(target.key_type, stored.key_type)
        return pa.map_(key, with_names_of(target.item_type, stored.item_type))
    return stored


def quoted(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return f"decode(unhex('{value.encode().hex()}'))"


def string_literal(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


_FIELD_ID_KEYS = (b"iceberg.id", b"PARQUET:field_id")
_ANNOTATED_GROUPS = {"LIST": "list", "MAP": "map", "MAP_KEY_VALUE": "map"}


@dataclass(frozen=True, slots=True)
class Node:
    """A column or member. `kind`: primitive, struct, list (one child) or map (two); `sql_type` of primitives."""

    name: str
    field_id: int | None
    kind: str
    sql_type: str = ""
    children: tuple["Node", ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """Top-level columns of a file in their physical order. Files of equal shape can be scanned by one query."""

    columns: tuple[Node, ...]

    @property
    def has_field_ids(self) -> bool:
        """Whether any column, at any depth, has an id."""
        return any(_has_id(c) for c in self.columns)

    def with_name_mapping(self, mapping: Sequence[Mapping[str, Any]] | None) -> "Shape":
        """Ids from the table's name mapping, for a file that has none at all (rule 16)."""
        if mapping is None or self.has_field_ids:
            return self
        return Shape(tuple(_mapped(c, mapping) for c in self.columns))


def parquet_shapes(connection: duckdb.DuckDBPyConnection, paths: Sequence[str]) -> dict[str, Shape]:
    """Shapes of Parquet files, by path."""
    if not paths:
        return {}
    rows = connection.execute(
        "SELECT file_name, name, num_children, converted_type, logical_type, field_id, duckdb_type "
        "FROM parquet_schema(?)",
        [list(paths)],
    ).fetchall()
    elements: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        elements.setdefault(row[0], []).append(row[1:])
    return {path: Shape(_parquet_node(listed, 0)[0].children) for path, listed in elements.items()}


def _parquet_node(elements: list[tuple[Any, ...]], at: int) -> tuple[Node, int]:
    """The node of element `at` (depth first), and where the next one starts."""
    name, num_children, converted, logical, field_id, sql_type = elements[at]
    end = at + 1
    children = []
    for _ in range(num_children or 0):
        child, end = _parquet_node(elements, end)
        children.append(child)
    if not children:
        node = Node(name, field_id, "primitive", sql_type)
    else:
        kind = _ANNOTATED_GROUPS.get(converted or "", "struct")
        if kind == "struct" and logical:
            kind = "list" if logical.startswith("List") else "map" if logical.startswith("Map") else "struct"
        node = Node(name, field_id, kind, children=tuple(children))
        if kind == "map":
            node = replace(node, children=children[0].children)
        elif kind == "list":
            node = replace(node, children=(_element(name, children[0]),))
    return node, end


def _element(list_name: str, repeated: Node) -> Node:
    """The element of a list: under the repeated group, or that group itself in files of the old two-level form."""
    old_form = len(repeated.children) != 1 or repeated.name in {"array", f"{list_name}_tuple"}
    return repeated if old_form else repeated.children[0]


def arrow_shape(schema: pa.Schema) -> Shape:
    """The shape of an Arrow table as DuckDB sees it."""
    return Shape(tuple(_arrow_node(f) for f in schema))


def _arrow_node(field: pa.Field) -> Node:
    found = [field.metadata[k] for k in _FIELD_ID_KEYS if field.metadata and k in field.metadata]
    field_id = int(found[0]) if found else None
    kind = field.type
    if pa.types.is_struct(kind):
        return Node(field.name, field_id, "struct", children=tuple(_arrow_node(f) for f in kind))
    if pa.types.is_map(kind):
        return Node(field.name, field_id, "map", children=(_arrow_node(kind.key_field), _arrow_node(kind.item_field)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return Node(field.name, field_id, "list", children=(_arrow_node(kind.value_field),))
    return Node(field.name, field_id, "primitive", _sql_type(kind))


def _sql_type(kind: pa.DataType) -> str:
    """Only bytes, text and integers need to be distinguished; DuckDB casts the rest."""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    return "BIGINT" if pa.types.is_integer(kind) else str(kind).upper()


def _has_id(node: Node) -> bool:
    return node.field_id is not None or any(_has_id(c) for c in node.children)


def _mapped(node: Node, mapping: Sequence[Mapping[str, Any]]) -> Node:
    entry = next((m for m in mapping if node.name in m.get("names", ())), None)
    if entry is None:
        return node
    inner = entry.get("fields", ())
    named = ("key", "value") if node.kind == "map" else ("element",) if node.kind == "list" else None
    children = tuple(
        replace(_mapped(replace(c, name=named[i]), inner), name=c.name) if named else _mapped(c, inner)
        for i, c in enumerate(node.children)
    )
    return replace(node, field_id=entry.get("field-id"), children=children)


Field = Mapping[str, Any]
Missing = Callable[[int], str | None]
"""SQL for an identity-partition value of the column with this id, or None."""


def column(field: Field, shape: Shape, missing: Missing) -> str:
    """SQL for a top-level column of the table over a scan of the file that names its columns c0, c1, ..."""
    for position, node in enumerate(shape.columns):
        if node.field_id == field["id"]:
            return _value(field["type"], node, f"c{position}", missing)
    return _absent(field, missing)


def key(path: list[Field], shape: Shape, missing: Missing) -> str:
    """SQL for a key column of a data file: the leaf of `path`, NULL where a struct above it is NULL or missing (rule 11)."""
    node, sql = _locate(path, shape)
    if node is None:
        has_parent = len(path) == 1 or _locate(path[:-1], shape)[0] is not None
        return _absent(path[-1] if has_parent else {**path[-1], "required": False}, missing)
    return _value(path[-1]["type"], node, sql, missing)


def key_of_delete_file(field: Field, shape: Shape, file: str) -> str:
    """SQL for a key column of a delete file, wherever among its structs it lies.

    Raises:
        RefusedError: the file has no column with this id (rule 11).
    """
    found = _search(field["id"], shape.columns, "")
    if found is None:
        raise RefusedError(f"{file}: equality id {field['id']} is not a column of the delete file")
    node, sql = found
    return canonical(_value(field["type"], node, sql, lambda _: None), field["type"])


def canonical(sql: str, iceberg_type: str) -> str:
    """The key such that SQL equality is key equality (rule 12): floats as text, which tells -0.0 from 0.0."""
    if iceberg_type in {"float", "double"}:
        return f"CASE WHEN isnan({sql}) THEN 'nan' ELSE CAST(CAST({sql} AS DOUBLE) AS VARCHAR) END"
    return sql


def _locate(path: list[Field], shape: Shape) -> tuple[Node | None, str]:
    """The file's node for a path of ids through structs."""
    candidates, sql, node = shape.columns, "", None
    for field in path:
        position = next((i for i, n in enumerate(candidates) if n.field_id == field["id"]), None)
        if position is None:
            return None, ""
        node, sql = candidates[position], _child(sql, position)
        candidates = node.children
    return node, sql


def _search(field_id: int, nodes: tuple[Node, ...], parent: str) -> tuple[Node, str] | None:
    """The node with a field id among nodes and the members of structs, depth first."""
    for position, node in enumerate(nodes):
        sql = _child(parent, position)
        if node.field_id == field_id:
            return node, sql
        if node.kind == "struct" and (found := _search(field_id, node.children, sql)) is not None:
            return found
    return None


def _child(parent: str, position: int) -> str:
    """SQL for a member of a struct, or for a column of the file if there is no parent."""
    return f"struct_extract_at({parent}, {position + 1})" if parent else f"c{position}"


def _absent(field: Field, missing: Missing) -> str:
    from_partition = missing(field["id"])
    if from_partition is not None:
        return from_partition
    default = field.get("initial-default")
    if default is None and field.get("required"):
        raise RefusedError(f"column {field['name']} ({field['id']}) is required, and a data file lacks it")
    return default_literal(default, field["type"])


def _value(wanted: Any, node: Node, sql: str, missing: Missing, depth: int = 0) -> str:
    """SQL for `sql`, a value of the file's `node`, as the table's type `wanted`."""
    kind = "primitive" if isinstance(wanted, str) else wanted["type"]
    if kind != node.kind:
        raise RefusedError(f"column {node.name} is a {node.kind} in the file and a {kind} in the table")
    match kind:
        case "primitive":
            return _primitive(wanted, node, sql)
        case "struct":
            if not wanted["fields"]:
                return f"CASE WHEN {sql} IS NULL THEN NULL ELSE {{}} END"
            places = {child.field_id: i for i, child in enumerate(node.children)}
            values = []
            for f in wanted["fields"]:
                place = places.get(f["id"])
                inside = (
                    None
                    if place is None
                    else _value(f["type"], node.children[place], _child(sql, place), missing, depth)
                )
                values.append(_absent(f, missing) if inside is None else inside)
            return f"CASE WHEN {sql} IS NULL THEN NULL ELSE {struct_pack(wanted['fields'], values)} END"
        case "list":
            element = _value(wanted["element"], node.children[0], f"x{depth}", missing, depth + 1)
            return f"list_transform({sql}, lambda x{depth}: {element})"
        case _:
            entry = f"x{depth}"
            map_key = _value(wanted["key"], node.children[0], f"struct_extract_at({entry}, 1)", missing, depth + 1)
            value = _value(wanted["value"], node.children[1], f"struct_extract_at({entry}, 2)", missing, depth + 1)
            packed = f"struct_pack(key := {map_key}, value := {value})"
            return f"map_from_entries(list_transform(map_entries({sql}), lambda {entry}: {packed}))"


def _primitive(wanted: str, node: Node, sql: str) -> str:
    target, stored = sql_type(wanted), node.sql_type
    if stored == "BLOB" and target == "VARCHAR":
        return f"decode({sql})"
    if stored == "BLOB" and target == "UUID":
        return f"CAST(hex({sql}) AS UUID)"
    if stored == "VARCHAR" and target == "BLOB":
        return f"encode({sql})"
    if stored == "BIGINT" and target == "TIME":
        return f"(TIME '00:00:00' + to_microseconds({sql}))"
    return f"CAST({sql} AS {target})"
