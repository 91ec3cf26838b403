"""Names of a scan to fields of the schema in force: its columns, its predicate, the key columns of its joins.

What rows the bound request means is decided in `plan/` and `read/`; nothing here reads a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scan_core.model.errors import ColumnNotFoundError, OptionError, PredicateError, UnsupportedError
from scan_core.model.options import ScanOptions
from scan_core.model.schema import NestedField, PrimitiveType, Schema, StructType, arrow_type
from scan_core.model.table_metadata import TableMetadata
from scan_core.read.metadata_columns import METADATA_IDS, metadata_fields

if TYPE_CHECKING:
    from scan_core.expr.nodes import BoundPredicate, Expr
    from scan_core.joins.column_keys import KeyField


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
        chosen = [self._column(name) for name in names]
        for index, column in enumerate(chosen):
            if column in chosen[:index]:
                raise ColumnNotFoundError(f"column {column.name!r} is selected twice")
            above = {f.field_id for f in self._way_to(column)}
            if (whole := next((c for c in chosen if c.field_id in above - {column.field_id}), None)) is not None:
                raise ColumnNotFoundError(f"{column.name!r} is part of {whole.name!r}, which is selected as a whole")
        return Schema(self.schema.schema_id, tuple(chosen), self.schema.identifier_field_ids)

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
        from scan_core.expr.nodes import BoundPredicate

        return BoundPredicate(
            " and ".join(f"({b.sql})" for b in bound), tuple(conjunct for b in bound for conjunct in b.conjuncts)
        )

    def key_fields(self, names: Sequence[str]) -> "tuple[KeyField, ...]":
        """Columns or struct members that a join compares.

        Raises:
            ColumnNotFoundError: an unknown column.
            OptionError: a column twice, or one whose values are no keys.
        """
        from scan_core.joins.column_keys import KeyField

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

    def _column(self, name: str) -> NestedField:
        try:
            found = self.schema.find(name, case_sensitive=self.options.case_sensitive)
        except ColumnNotFoundError:
            if (known := self._metadata_fields().get(name)) is None:
                raise
            return known
        path = self._way_to(found)
        if len(path) == 1:
            return found
        if not all(isinstance(above.type, StructType) for above in path[:-1]):
            raise ColumnNotFoundError(f"{name!r} lies inside a list or map: select the column {path[0].name!r}")
        return replace(found, name=".".join(field.name for field in path), required=False, initial_default=None)

    def _way_to(self, column: NestedField) -> tuple[NestedField, ...]:
        return self.schema.path(column.field_id) if column.field_id in self.schema else (column,)

    def _metadata_fields(self) -> Mapping[str, NestedField]:
        return metadata_fields(self.metadata.specs, self.metadata.field_paths())

    def _predicate(self, predicate: "str | Expr") -> "BoundPredicate":
        from scan_core.expr.bind import bind

        schema, options = self.schema, self.options
        try:
            return bind(predicate, schema, options.case_sensitive, options.normalize)
        except (PredicateError, ColumnNotFoundError):
            extra = tuple(f for f in self._metadata_fields().values() if f.name not in schema.names)
            if not any(f.name in str(predicate) for f in extra):
                raise
            widened = Schema(schema.schema_id, (*schema.fields, *extra))
            return bind(predicate, widened, options.case_sensitive, options.normalize)


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
