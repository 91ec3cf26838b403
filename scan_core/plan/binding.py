"""Names of a scan to fields of the schema in force: its columns, its predicate, the key columns of its joins.

What rows the bound request means is decided in `plan/` and `read/`; nothing here reads a file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from nevermore.scan_core.model.errors import ColumnNotFoundError, OptionError, PredicateError, UnsupportedError
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import (
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    Schema,
    StructType,
    arrow_type,
)
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.read.projection import METADATA_IDS, metadata_fields

if TYPE_CHECKING:
    from nevermore.scan_core.expr.bound import BoundExpr
    from nevermore.scan_core.expr.nodes import BoundPredicate, Expr
    from nevermore.scan_core.joins.column_keys import KeyField


@dataclass(frozen=True, slots=True)
class Binding:
    """The names of one schema.

    Attributes:
        metadata: of the table, whose partition specs add to the metadata columns.
        schema: in force.
        options: say how names and predicates are read.
    """

    metadata: TableMetadata
    schema: Schema
    options: ScanOptions

    def projection(self, names: Sequence[str] | None) -> Schema:
        """The columns of a result, in order; None for all of the schema.

        Raises:
            ColumnNotFoundError: an unknown column, one that is selected twice, or in part and as a whole.
        """
        if names is None:
            return self.schema
        ids = count(-1, -1)
        chosen = [self._column(name, ids) for name in names]
        for index, column in enumerate(chosen):
            if column in chosen[:index] or (column.field_id < 0 and column.name in {c.name for c in chosen[:index]}):
                raise ColumnNotFoundError(f"column {column.name!r} is selected twice")
            above = {f.field_id for f in self._way_to(column)}
            if (whole := next((c for c in chosen if c.field_id in above - {column.field_id}), None)) is not None:
                raise ColumnNotFoundError(f"{column.name!r} is part of {whole.name!r}, which is selected as a whole")
        return Schema(self.schema.schema_id, tuple(chosen), self.schema.identifier_field_ids)

    def parts(self, names: Sequence[str] | None) -> "dict[int, BoundExpr]":
        """The columns of a result that are parts of lists and maps, by the ids that `projection` gives them."""
        ids = count(-1, -1)
        chosen = [(self._column(name, ids).field_id, name) for name in names or ()]
        return {i: part for i, name in chosen if i < 0 and (part := self._part(name)) is not None}

    def predicate(self, predicates: "Sequence[str | Expr]") -> "BoundPredicate | None":
        """All predicates as one, bound to field ids; None without any.

        Raises:
            PredicateError: a predicate is wrong or not supported.
        """
        if not predicates:
            return None
        bound = [self._predicate(predicate) for predicate in predicates]
        if len(bound) == 1:
            return bound[0]
        from nevermore.scan_core.expr.nodes import BoundPredicate

        return BoundPredicate(
            " and ".join(f"({b.sql})" for b in bound), tuple(conjunct for b in bound for conjunct in b.conjuncts)
        )

    def key_fields(self, names: Sequence[str]) -> "tuple[KeyField, ...]":
        """Columns or struct members that a join compares.

        Raises:
            ColumnNotFoundError: an unknown column.
            OptionError: a column twice, or one whose values are no keys.
        """
        from nevermore.scan_core.joins.column_keys import KeyField

        found = [self.schema.find(name, case_sensitive=self.options.case_sensitive) for name in names]
        for name, column in zip(names, found, strict=True):
            path = self._way_to(column)
            if not all(isinstance(above.type, StructType) for above in path[:-1]):
                raise OptionError(f"key column {name!r} lies inside a list or map")
            if not isinstance(column.type, PrimitiveType) or column.type.name == "unknown":
                raise OptionError(f"column {name!r} of type {column.type} cannot be a key; keys are single values")
            arrow_type(column.type)
        if len({column.field_id for column in found}) < len(found):
            raise OptionError(f"a key column is named twice: {', '.join(names)}")
        return tuple(KeyField(c.field_id, name, c.type) for name, c in zip(names, found, strict=True))

    def _column(self, name: str, ids: Iterator[int]) -> NestedField:
        """The field of a result's column; `ids` are for parts of lists and maps, which have none of the table's."""
        try:
            found = self.schema.find(name, case_sensitive=self.options.case_sensitive)
        except ColumnNotFoundError:
            if (known := self._metadata_fields().get(name)) is not None:
                return known
            if (part := self._part(name)) is None:
                raise
            return _with_new_ids(NestedField(0, name, part.type), ids)
        path = self._way_to(found)
        if len(path) == 1:
            return found
        if not all(isinstance(above.type, StructType) for above in path[:-1]):
            raise ColumnNotFoundError(f"{name!r} lies inside a list or map: select the column {path[0].name!r}")
        return replace(found, name=".".join(field.name for field in path), required=False, initial_default=None)

    def _part(self, name: str) -> "BoundExpr | None":
        """The part of a list or map that a text stands for; None if it does not."""
        if not any(sign in name for sign in ".[("):
            return None
        from nevermore.scan_core.expr.bind import bind_access

        try:
            return bind_access(name, self.schema, case_sensitive=self.options.case_sensitive)
        except PredicateError as error:
            raise ColumnNotFoundError(str(error)) from error

    def _way_to(self, column: NestedField) -> tuple[NestedField, ...]:
        return self.schema.path(column.field_id) if column.field_id in self.schema else (column,)

    def _metadata_fields(self) -> Mapping[str, NestedField]:
        return metadata_fields(self.metadata.specs, self.metadata.field_paths())

    def _predicate(self, predicate: "str | Expr") -> "BoundPredicate":
        from nevermore.scan_core.expr.bind import bind

        schema, options = self.schema, self.options
        try:
            return bind(predicate, schema, options.case_sensitive)
        except (PredicateError, ColumnNotFoundError):
            extra = tuple(f for f in self._metadata_fields().values() if f.name not in schema.names)
            if not any(f.name in str(predicate) for f in extra):
                raise
            widened = Schema(schema.schema_id, (*schema.fields, *extra))
            return bind(predicate, widened, options.case_sensitive)


def _with_new_ids(field: NestedField, ids: Iterator[int]) -> NestedField:
    """The field, and those below it, under new ids, so that each id is used once: `l[0]` and `l[1]` have the same members."""
    kind = field.type
    match kind:
        case StructType(fields):
            kind = StructType(tuple(_with_new_ids(f, ids) for f in fields))
        case ListType(element):
            kind = ListType(_with_new_ids(element, ids))
        case MapType(key, value):
            kind = MapType(_with_new_ids(key, ids), _with_new_ids(value, ids))
        case PrimitiveType():
            pass
    return replace(field, field_id=next(ids), type=kind)


def readable(schema: Schema) -> Schema:
    """The schema itself.

    Raises:
        UnsupportedError: a column has a type that cannot be read; names the others.
    """
    for column in schema.fields:
        try:
            arrow_type(column.type)
        except UnsupportedError as error:
            names = [f.name for f in schema.fields if f is not column and f.field_id not in METADATA_IDS]
            raise UnsupportedError(
                f"column {column.name!r}: type {column.type} is not supported; select others ({', '.join(names)})"
            ) from error
    return schema
