"""All rows of the data files of a snapshot, dead or alive, as one SQL query over DuckDB.

Beside the table's columns each row carries its file's number, its position, its file's sequence number and scope, and
the canonical key columns that deletes compare (`k<field id>`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from checks.oracle import projection, types
from checks.oracle.arrow_files import read_file
from checks.oracle.facts import FileFacts, RefusedError, TableFacts
from checks.oracle.shapes import Shape, arrow_shape, parquet_shapes

GLOBAL_SCOPE = -1
_ROW_ID, _LAST_UPDATED = 2147483540, 2147483539


@dataclass(slots=True)
class Workspace:
    """A DuckDB connection with the files of one table: how to scan each, and how deletes are scoped."""

    table: TableFacts
    connection: duckdb.DuckDBPyConnection
    scopes: dict[tuple[int, tuple[Any, ...]], int] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    sequences: int = 0

    def name(self, prefix: str) -> str:
        """A name that no other object of this connection has."""
        self.sequences += 1
        return f"{prefix}_{id(self):x}_{self.sequences}"

    def scope(self, file: FileFacts) -> int:
        """A number for the file's spec and partition."""
        return self.scopes.setdefault((file.spec_id, file.partition), len(self.scopes))

    def learn(self, files: Iterable[FileFacts]) -> None:
        """Read the shapes of all Parquet files among `files` in one go."""
        paths = {self.table.local(f.path) for f in files if f.format == "parquet"} - self.shapes.keys()
        for path, shape in parquet_shapes(self.connection, sorted(paths)).items():
            self.shapes[path] = shape.with_name_mapping(self.table.name_mapping)

    def scan(self, files: Sequence[FileFacts]) -> tuple[Shape, str]:
        """The shape of `files`, all alike, and a FROM item with columns c0 ..., `path` and `pos`."""
        paths = [self.table.local(f.path) for f in files]
        if files[0].format == "parquet":
            shape = self.shapes[paths[0]]
            listed = ", ".join(_string(p) for p in paths)
            source = (
                f"read_parquet([{listed}], filename = true, file_row_number = true, hive_partitioning = false, "
                "binary_as_string = false)"
            )
            order = "pos, path"
        else:
            loaded = read_file(paths[0], files[0].format)
            shape = arrow_shape(loaded.schema).with_name_mapping(self.table.name_mapping)
            loaded = loaded.rename_columns([f"c{i}" for i in range(loaded.num_columns)])
            loaded = loaded.append_column("path", pa.repeat(paths[0], loaded.num_rows))
            loaded = loaded.append_column("pos", pa.array(range(loaded.num_rows), pa.int64()))
            source = self.name("file")
            self.connection.register(source, loaded)
            order = "path, pos"
        columns = [f"c{i}" for i in range(len(shape.columns))]
        return shape, f"{source} AS scanned({', '.join([*columns, order])})"

    def missing(self, file: FileFacts) -> projection.Missing:
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
            return types.partition_literal(by_source[field_id], paths[field_id][-1]["type"])

        return literal


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
    # a file that was written after a column was dropped may lack it, whatever the column once promised
    found = {i: [*path[:-1], {**path[-1], "required": False}] for i, path in found.items()}
    walk(table.current_schema["fields"], [])
    return found


def candidates(workspace: Workspace, files: Sequence[FileFacts], fields: Sequence[Any], key_ids: Iterable[int]) -> str:
    """SQL for the rows of `files` in the table's columns v0, v1, ..., with what deletes need beside them."""
    paths = key_paths(workspace.table)
    keys = sorted(set(key_ids))
    workspace.learn(files)
    groups: dict[Any, list[FileFacts]] = {}
    for number, file in enumerate(files):
        parquet = file.format == "parquet"
        shape = workspace.shapes[workspace.table.local(file.path)] if parquet else number
        constants = tuple(v for v in file.partition)
        groups.setdefault((file.format, shape, file.spec_id, constants), []).append(file)
    facts = workspace.name("files")
    workspace.connection.register(facts, _file_facts(workspace, files))
    selects = []
    for group in groups.values():
        shape, source = workspace.scan(group)
        missing = workspace.missing(group[0])
        values = [f"{projection.column(f, shape, missing)} AS v{i}" for i, f in enumerate(fields)]
        for key_id in keys:
            path = paths[key_id]
            sql = projection.key(path, shape, missing)
            values.append(f"{projection.canonical(sql, path[-1]['type'])} AS k{key_id}")
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


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
