"""From the columns of a file to the columns of the table, as SQL expressions, by field id at every depth (rule 16).

Values are cast to the type asked for (rule 13) and a cast that does not fit fails. A column that the file lacks is
the identity-partition value, the default, or NULL.
"""

from collections.abc import Callable, Mapping
from typing import Any

from checks.oracle import types
from checks.oracle.facts import RefusedError
from checks.oracle.shapes import Node, Shape

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
    """SQL for a key column of a data file: the leaf of `path`, NULL where a struct above it is NULL (rule 11)."""
    node, sql = _locate(path, shape)
    if node is None:
        return _absent(path[-1], missing)
    return _value(path[-1]["type"], node, sql, missing)


def key_of_delete_file(field: Field, shape: Shape, file: str) -> str:
    """SQL for a key column of a delete file, wherever among its structs it lies.

    Raises:
        RefusedError: the file has no column with this id (rule 11).
    """
    found = _search(field["id"], shape.columns, "", 0)
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
    for depth, field in enumerate(path):
        position = next((i for i, n in enumerate(candidates) if n.field_id == field["id"]), None)
        if position is None:
            return None, ""
        node = candidates[position]
        sql = f"c{position}" if depth == 0 else f"struct_extract_at({sql}, {position + 1})"
        candidates = node.children
    return node, sql


def _search(field_id: int, nodes: tuple[Node, ...], parent: str, depth: int) -> tuple[Node, str] | None:
    for position, node in enumerate(nodes):
        sql = f"c{position}" if depth == 0 else f"struct_extract_at({parent}, {position + 1})"
        if node.field_id == field_id:
            return node, sql
        if node.kind == "struct":
            found = _search(field_id, node.children, sql, depth + 1)
            if found is not None:
                return found
    return None


def _absent(field: Field, missing: Missing) -> str:
    from_partition = missing(field["id"])
    if from_partition is not None:
        return from_partition
    default = field.get("initial-default")
    if default is None and field.get("required"):
        raise RefusedError(f"column {field['name']} ({field['id']}) is required, and a data file lacks it")
    return types.default_literal(default, field["type"])


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
            names = types.member_names(wanted["fields"])
            members = ", ".join(
                f"{name} := {_member(f, node, sql, missing, depth)}"
                for name, f in zip(names, wanted["fields"], strict=True)
            )
            return f"CASE WHEN {sql} IS NULL THEN NULL ELSE struct_pack({members}) END"
        case "list":
            element = _value(wanted["element"], node.children[0], f"x{depth}", missing, depth + 1)
            return f"list_transform({sql}, lambda x{depth}: {element})"
        case _:
            entry = f"x{depth}"
            map_key = _value(wanted["key"], node.children[0], f"struct_extract_at({entry}, 1)", missing, depth + 1)
            value = _value(wanted["value"], node.children[1], f"struct_extract_at({entry}, 2)", missing, depth + 1)
            packed = f"struct_pack(key := {map_key}, value := {value})"
            return f"map_from_entries(list_transform(map_entries({sql}), lambda {entry}: {packed}))"


def _member(field: Field, parent: Node, sql: str, missing: Missing, depth: int) -> str:
    for position, node in enumerate(parent.children):
        if node.field_id == field["id"]:
            return _value(field["type"], node, f"struct_extract_at({sql}, {position + 1})", missing, depth)
    return _absent(field, missing)


def _primitive(wanted: str, node: Node, sql: str) -> str:
    target, stored = types.sql_type(wanted), node.sql_type
    if stored == "BLOB" and target == "VARCHAR":
        return f"decode({sql})"
    if stored == "BLOB" and target == "UUID":
        return f"CAST(hex({sql}) AS UUID)"
    if stored == "VARCHAR" and target == "BLOB":
        return f"encode({sql})"
    if stored == "BIGINT" and target == "TIME":
        return f"(TIME '00:00:00' + to_microseconds({sql}))"
    return f"CAST({sql} AS {target})"
