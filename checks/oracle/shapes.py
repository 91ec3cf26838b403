"""What a data or delete file physically holds: a tree of columns with field ids.

Parquet trees come from DuckDB's view of the footer, those of ORC and Avro from the Arrow table that `arrow_files.py`
loads. Nothing here knows the table's schema.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

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
    """Only what the projection must tell apart: bytes, text, integers; the rest is cast by DuckDB."""
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
