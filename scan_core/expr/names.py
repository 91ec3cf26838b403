"""Names of columns and struct members to bound references, by field id."""

from difflib import get_close_matches

from scan_core.errors import ColumnNotFoundError
from scan_core.expr.bound import BoundExpr, Column, Literal, Member
from scan_core.expr.coercion import STRING, name_of
from scan_core.expr.collection_rules import subscript
from scan_core.expr.nodes import Name
from scan_core.schema import MapType, PrimitiveType, Schema, StructType, Type

METADATA_COLUMNS: dict[str, tuple[int, Type]] = {
    "_file": (2147483646, STRING),
    "_pos": (2147483645, PrimitiveType("long")),
    "_row_id": (2147483540, PrimitiveType("long")),
    "_last_updated_sequence_number": (2147483539, PrimitiveType("long")),
}
"""Metadata columns a filter may name, with the field ids that the specification reserves for them."""


class Names:
    """The names of one schema."""

    def __init__(self, schema: Schema, *, case_sensitive: bool) -> None:
        self._schema, self._case_sensitive = schema, case_sensitive

    def resolve(self, name: Name) -> BoundExpr:
        """The column, or the member of a struct, that a possibly dotted name stands for.

        The longest column name wins: columns may have dots in their names.

        Raises:
            ColumnNotFoundError: there is none, or several.
        """
        column, rest = self._column(name)
        node: BoundExpr = column
        for part in rest:
            node = self.member(node, part)
        return node

    def is_column(self, name: str) -> bool:
        """Is this the name of a top-level column?"""
        return any(self._same(field.name, name) for field in self._schema.fields)

    def member(self, node: BoundExpr, part: str) -> BoundExpr:
        """A member of a struct, or the value that a map has for a key.

        Raises:
            ColumnNotFoundError: the struct has no such member, or it is neither.
        """
        match node.type:
            case StructType(fields):
                found = [(i, f) for i, f in enumerate(fields) if self._same(f.name, part)]
                if len(found) == 1:
                    index, field = found[0]
                    return Member(node, field.field_id, field.name, index, field.type)
                near = get_close_matches(part, [f.name for f in fields], n=3)
                hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(f.name for f in fields)}"
                raise ColumnNotFoundError(f"{'no' if not found else 'ambiguous'} member {part!r}; {hint}")
            case MapType(key) if name_of(key.type) == "string":
                return subscript("[]", (node, Literal(part, STRING)))
            case _:
                raise ColumnNotFoundError(f"{part!r} cannot be taken from a {node.type}")

    def _column(self, name: Name) -> tuple[Column, tuple[str, ...]]:
        whole = ".".join(name.parts)
        for parts in dict.fromkeys((name.parts, tuple(whole.split(".")))):
            for length in range(len(parts), 0, -1):
                wanted = ".".join(parts[:length])
                found = [f for f in self._schema.fields if self._same(f.name, wanted)]
                if len(found) > 1:
                    ids = ", ".join(str(f.field_id) for f in found)
                    raise ColumnNotFoundError(f"column {wanted!r} is ambiguous: field ids {ids}")
                if found:
                    return Column(found[0].field_id, found[0].name, found[0].type), parts[length:]
        if whole in METADATA_COLUMNS:
            field_id, type_ = METADATA_COLUMNS[whole]
            return Column(field_id, whole, type_), ()
        self._schema.find(whole, case_sensitive=self._case_sensitive)  # raises, and names the nearest columns
        raise ColumnNotFoundError(f"no column {whole!r}")

    def _same(self, name: str, wanted: str) -> bool:
        return name == wanted or (not self._case_sensitive and name.lower() == wanted.lower())
