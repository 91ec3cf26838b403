"""Iceberg schemas: types, fields with ids, their JSON form in metadata, and what they are in Arrow."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.errors import ColumnNotFoundError, MalformedTableError, UnsupportedError

PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "unknown": pa.null(),
    "variant": pa.string(),  # its JSON text, see `expr/variant.py`
}
UNSUPPORTED_TYPES = frozenset({"geometry", "geography"})


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A primitive type: `name` without parameters, and (precision, scale) or (length,)."""

    name: str
    parameters: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"decimal({self.parameters[0]}, {self.parameters[1]})"
        return f"fixed[{self.parameters[0]}]" if self.name == "fixed" else self.name


@dataclass(frozen=True, slots=True)
class NestedField:
    """A column, struct member, list element, map key or map value. Defaults are JSON single values."""

    field_id: int
    name: str
    type: "Type"
    required: bool = False
    doc: str | None = None
    initial_default: Any = None


@dataclass(frozen=True, slots=True)
class StructType:
    """Members in schema order."""

    fields: tuple[NestedField, ...]

    def __str__(self) -> str:
        return "struct<" + ", ".join(f"{f.name}: {f.type}" for f in self.fields) + ">"


@dataclass(frozen=True, slots=True)
class ListType:
    """A list; the element is a field with an id of its own."""

    element: NestedField

    def __str__(self) -> str:
        return f"list<{self.element.type}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """A map; key and value are fields with ids of their own."""

    key: NestedField
    value: NestedField

    def __str__(self) -> str:
        return f"map<{self.key.type}, {self.value.type}>"


Type = PrimitiveType | StructType | ListType | MapType


@dataclass(frozen=True)
class Schema:
    """A table schema. Field ids are unique over all depths."""

    schema_id: int
    fields: tuple[NestedField, ...]
    identifier_field_ids: tuple[int, ...] = ()
    _by_id: dict[int, tuple[NestedField, ...]] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        by_id: dict[int, tuple[NestedField, ...]] = {}
        for path in _walk(self.fields, ()):
            if path[-1].field_id in by_id:
                raise MalformedTableError(f"schema {self.schema_id}: field id {path[-1].field_id} is used twice")
            by_id[path[-1].field_id] = path
        object.__setattr__(self, "_by_id", by_id)

    def __contains__(self, field_id: object) -> bool:
        return field_id in self._by_id

    def path(self, field_id: int) -> tuple[NestedField, ...]:
        """The fields from the top-level column down to `field_id`, both included.

        Raises:
            KeyError: no field has this id.
        """
        return self._by_id[field_id]

    def field(self, field_id: int) -> NestedField:
        """The field with this id at any depth; KeyError if it does not exist."""
        return self._by_id[field_id][-1]

    @property
    def field_ids(self) -> tuple[int, ...]:
        """Ids of all fields at all depths."""
        return tuple(self._by_id)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the top-level columns."""
        return tuple(f.name for f in self.fields)

    def find(self, name: str, *, case_sensitive: bool = True) -> NestedField:
        """The column or, by its dotted path, the struct member called `name`.

        An exact top-level name wins over a path: column names may contain dots.

        Raises:
            ColumnNotFoundError: no such column; names the nearest ones.
        """
        wanted = name if case_sensitive else name.lower()
        matches = self._matches(wanted, case_sensitive=case_sensitive)
        if len(matches) > 1:
            raise ColumnNotFoundError(
                f"column {name!r} is ambiguous: field ids {', '.join(str(m.field_id) for m in matches)}"
            )
        if matches:
            return matches[0]
        known = {".".join(f.name for f in p): None for p in self._by_id.values()}
        near = [k for k in known if k.lower() == name.lower()] or get_close_matches(name, known, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"the table has {', '.join(self.names)}"
        raise ColumnNotFoundError(f"no column {name!r}; {hint}")

    def _matches(self, wanted: str, *, case_sensitive: bool) -> list[NestedField]:
        def fold(text: str) -> str:
            return text if case_sensitive else text.lower()

        top = [f for f in self.fields if fold(f.name) == wanted]
        return top or [
            p[-1] for p in self._by_id.values() if len(p) > 1 and fold(".".join(f.name for f in p)) == wanted
        ]

    def select(self, field_ids: tuple[int, ...]) -> "Schema":
        """Top-level columns with these ids, in the order given."""
        return Schema(self.schema_id, tuple(self.field(i) for i in field_ids), self.identifier_field_ids)

    def with_fields(self, *fields: NestedField) -> "Schema":
        """The same schema with more top-level columns."""
        return Schema(self.schema_id, (*self.fields, *fields), self.identifier_field_ids)

    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of rows of this table (uuid as 16 bytes, see `arrow_type`)."""
        return pa.schema([pa.field(f.name, arrow_type(f.type), nullable=not f.required) for f in self.fields])


def arrow_type(iceberg_type: Type) -> pa.DataType:
    """The one Arrow type in which the engine holds values of an Iceberg type.

    Raises:
        UnsupportedError: geometry, geography.
    """
    match iceberg_type:
        case PrimitiveType(name) if name in PRIMITIVES:  # first: these are asked for several times a file
            return PRIMITIVES[name]
        case StructType(fields):
            return pa.struct([pa.field(f.name, arrow_type(f.type), nullable=not f.required) for f in fields])
        case ListType(element):
            return pa.list_(pa.field("element", arrow_type(element.type), nullable=not element.required))
        case MapType(key, value):
            return pa.map_(
                pa.field("key", arrow_type(key.type), nullable=False),
                pa.field("value", arrow_type(value.type), nullable=not value.required),
            )
        case PrimitiveType("decimal", (precision, scale)):
            return pa.decimal128(precision, scale)
        case PrimitiveType("fixed", (length,)):
            return pa.binary(length)
        case PrimitiveType(name):
            raise UnsupportedError(f"type {name} is not supported; select the other columns")


def _walk(fields: tuple[NestedField, ...], above: tuple[NestedField, ...]) -> Iterator[tuple[NestedField, ...]]:
    for f in fields:
        path = (*above, f)
        yield path
        match f.type:
            case StructType(members):
                yield from _walk(members, path)
            case ListType(element):
                yield from _walk((element,), path)
            case MapType(key, value):
                yield from _walk((key, value), path)
            case _:
                pass


FIELD_ID_KEY = b"PARQUET:field_id"
"""Field metadata key for field ids in Arrow schemas, of files of any format."""
MAX_TYPE_DEPTH = 64
"""Deeper nesting is refused: no real table has it, and recursion on hostile input must end."""
MAX_FIXED_BYTES = 2**31 - 1
"""What Arrow can hold."""
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")


def parse_schema(document: Mapping[str, Any]) -> Schema:
    """A schema from its JSON form in metadata or manifests.

    Raises:
        MalformedTableError: a missing member, unknown type, reused id or too deep nesting.
    """
    if not isinstance(document, Mapping) or document.get("type", "struct") != "struct":
        raise MalformedTableError(f"a schema must be a struct, not {document!r:.80}")
    schema_id = document.get("schema-id", 0)
    if not isinstance(document.get("fields"), Sequence):
        raise MalformedTableError(f"a schema without a list of fields: {document!r:.80}")
    fields = tuple(_parse_field(f, 1) for f in document["fields"])
    return Schema(schema_id, fields, tuple(document.get("identifier-field-ids", ())))


def parse_type(document: Any, depth: int = 0) -> Type:
    """A type from its JSON form: a name, or an object for struct, list and map."""
    if depth > MAX_TYPE_DEPTH:
        raise MalformedTableError(f"schema nests deeper than {MAX_TYPE_DEPTH} levels")
    if isinstance(document, str):
        return _parse_primitive(document)
    if not isinstance(document, Mapping):
        raise MalformedTableError(f"unknown type {document!r:.80} in schema")
    try:
        match document["type"]:
            case "struct":
                return StructType(tuple(_parse_field(f, depth + 1) for f in document["fields"]))
            case "list":
                element = parse_type(document["element"], depth + 1)
                return ListType(
                    NestedField(document["element-id"], "element", element, bool(document.get("element-required")))
                )
            case "map":
                key = NestedField(document["key-id"], "key", parse_type(document["key"], depth + 1), required=True)
                value = parse_type(document["value"], depth + 1)
                return MapType(
                    key, NestedField(document["value-id"], "value", value, bool(document.get("value-required")))
                )
            case other:
                raise MalformedTableError(f"unknown type {other!r:.80} in schema")
    except KeyError as error:
        raise MalformedTableError(f"type {document!r:.80} in schema lacks {error}") from error


def _parse_primitive(text: str) -> PrimitiveType:
    if text in PRIMITIVES:
        return PrimitiveType(text)
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if not 0 < precision <= 38 or scale > precision:
            raise MalformedTableError(f"decimal precision must be 1..38 and scale at most that: {text}")
        return PrimitiveType("decimal", (precision, scale))
    if match := _FIXED.fullmatch(text):
        length = int(match[1])
        if length > MAX_FIXED_BYTES:
            raise MalformedTableError(f"a fixed type has at most {MAX_FIXED_BYTES} bytes: {text:.80}")
        return PrimitiveType("fixed", (length,))
    if (name := re.split(r"[(\[]", text, maxsplit=1)[0]) in UNSUPPORTED_TYPES:
        return PrimitiveType(name)
    raise MalformedTableError(f"unknown type {text!r:.80} in schema")


def _parse_field(document: Mapping[str, Any], depth: int) -> NestedField:
    try:
        return NestedField(
            field_id=int(document["id"]),
            name=document["name"],
            type=parse_type(document["type"], depth),
            required=bool(document.get("required", False)),
            doc=document.get("doc"),
            initial_default=document.get("initial-default"),
        )
    except KeyError as error:
        raise MalformedTableError(f"schema field {document!r:.80} lacks {error}") from error
