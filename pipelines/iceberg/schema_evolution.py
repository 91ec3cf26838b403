"""Evolves the schema of a table to fit its feed: adds columns, widens types and makes columns optional.

Any other change is a clash. Also converts Arrow types to Iceberg types, and schemas to the JSON of table metadata.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pyarrow as pa

from nevermore.pipelines.errors import SchemaConflictError
from nevermore.scan_core import ListType, MapType, NestedField, PrimitiveType, Schema, StructType, Type


def schema_document(schema: Schema) -> dict[str, Any]:
    """The schema as a JSON object."""
    return {
        "type": "struct",
        "schema-id": schema.schema_id,
        "identifier-field-ids": list(schema.identifier_field_ids),
        "fields": [_field_document(f) for f in schema.fields],
    }


def _field_document(f: NestedField) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": f.field_id,
        "name": f.name,
        "required": f.required,
        "type": _type_document(f.type),
    }
    if f.doc is not None:
        document["doc"] = f.doc
    if f.initial_default is not None:
        document["initial-default"] = f.initial_default
    return document


def _type_document(kind: Type) -> Any:
    match kind:
        case StructType(members):
            return {"type": "struct", "fields": [_field_document(m) for m in members]}
        case ListType(element):
            return {
                "type": "list",
                "element-id": element.field_id,
                "element": _type_document(element.type),
                "element-required": element.required,
            }
        case MapType(key, value):
            return {
                "type": "map",
                "key-id": key.field_id,
                "key": _type_document(key.type),
                "value-id": value.field_id,
                "value": _type_document(value.type),
                "value-required": value.required,
            }
        case PrimitiveType():
            return str(kind)


_LISTS = pa.ListType | pa.LargeListType | pa.FixedSizeListType
_INTEGER_DIGITS = {"int": 10, "long": 19}
_PROMOTIONS = {("int", "long"), ("float", "double")}
"""Type promotions of Iceberg v2, in addition to wider decimals."""
_LOSSLESS = {("int", "double")} | _PROMOTIONS
"""Type promotions for which every value of the first type fits exactly in a column of the second."""


@dataclass(frozen=True, slots=True)
class Clash:
    """A column whose type in the feed does not fit its type in the table."""

    column: str
    table_type: Type
    feed_type: Type

    def __str__(self) -> str:
        return (
            f"column {self.column!r} is {self.table_type} in the table but {self.feed_type} in the feed, and Iceberg has "
            f"no such promotion; set types: {{{self.column}: {self.table_type}}} or on_conflict: new_column"
        )


@dataclass(frozen=True, slots=True)
class Evolution:
    """The schema that a table needs for the columns of a feed, which may be unchanged, and all clashes."""

    schema: Schema
    changed: bool
    clashes: tuple[Clash, ...]


def evolve(
    current: Schema,
    wanted: Sequence[NestedField],
    last_column_id: int,
    *,
    replaces: Callable[[str], bool] = lambda _: False,
) -> Evolution:
    """Change `current` as little as necessary to hold rows of the fields `wanted`.

    Columns that are not in `wanted` stay, and become optional unless they identify rows. New fields get ids above
    `last_column_id`. A column whose type clashes is dropped, and added again as a new one without values so far, if `replaces`
    allows it for its path.
    """
    merge = _Merge(count(last_column_id + 1), replaces, frozenset(current.identifier_field_ids))
    fields = merge.fields(current.fields, wanted)
    return Evolution(replace(current, fields=fields), fields != current.fields, tuple(merge.clashes))


def without(fields: Sequence[NestedField], dropped: Container[str], path: str = "") -> tuple[NestedField, ...]:
    """The fields without those at these paths, of structs their members."""
    return tuple(
        replace(f, type=StructType(without(f.type.fields, dropped, f"{path}{f.name}.")))
        if isinstance(f.type, StructType)
        else f
        for f in fields
        if path + f.name not in dropped
    )


def iceberg_fields(struct: pa.StructType | pa.Schema) -> tuple[NestedField, ...]:
    """Optional Iceberg fields of Arrow columns, with ids from 1; columns without values so far are omitted."""
    ids = count(1)
    columns = (struct.field(i) for i in range(_width(struct)))
    return tuple(_field(c, ids) for c in columns if _has_values(c.type))


def iceberg_type(kind: pa.DataType) -> Type:
    """The Iceberg type that holds every value of an Arrow type.

    Raises:
        SchemaConflictError: there is none.
    """
    return _type(kind, count(1), "")


def _has_values(kind: pa.DataType) -> bool:
    """False for type null, and for lists, maps and structs that contain nothing else."""
    if isinstance(kind, _LISTS):
        return _has_values(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_values(kind.field(i).type) for i in range(kind.num_fields))
    return not pa.types.is_null(kind)


def _width(struct: pa.StructType | pa.Schema) -> int:
    return int(struct.num_fields) if isinstance(struct, pa.StructType) else len(struct)


# -- merging -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Merge:
    """Merges the columns of a feed into those of a table; `clashes` are those found so far."""

    ids: Iterator[int]
    replaces: Callable[[str], bool]
    identifiers: frozenset[int]
    clashes: list[Clash] = field(default_factory=list)

    def fields(
        self, have: tuple[NestedField, ...], wanted: Sequence[NestedField], path: str = ""
    ) -> tuple[NestedField, ...]:
        feeds = {f.name: f for f in wanted}
        kept = []
        for f in have:
            feed, known = feeds.pop(f.name, None), len(self.clashes)
            kind = f.type if feed is None else self.type(f.type, feed.type, path + f.name)
            is_identifier = f.field_id in self.identifiers
            if feed is not None and len(self.clashes) > known and not is_identifier and self.replaces(path + f.name):
                del self.clashes[known:]
                kept.append(_renumbered(feed, self.ids))
            else:
                required = f.required and (is_identifier or (feed is not None and feed.required))
                kept.append(replace(f, type=kind, required=required))
        return (*kept, *(_renumbered(f, self.ids) for f in feeds.values()))

    def type(self, have: Type, feed: Type, path: str) -> Type:
        match have, feed:
            case StructType(members), StructType(wanted):
                return StructType(self.fields(members, wanted, f"{path}."))
            case ListType(element), ListType(wanted_element):
                return ListType(self.inner(element, wanted_element, f"{path}.element"))
            case MapType(key, value), MapType(wanted_key, wanted_value):
                merged = self.inner(key, wanted_key, f"{path}.key")
                return MapType(merged, self.inner(value, wanted_value, f"{path}.value"))
            case PrimitiveType(), PrimitiveType() if (wider := _wider(have, feed)) is not None:
                return wider
            case _:
                self.clashes.append(Clash(path, have, feed))
                return have

    def inner(self, have: NestedField, feed: NestedField, path: str) -> NestedField:
        return replace(have, type=self.type(have.type, feed.type, path))


def _wider(have: PrimitiveType, feed: PrimitiveType) -> PrimitiveType | None:
    """The type of a column that holds the values of both types; None if Iceberg has no such promotion."""
    if takes(have, feed):
        return have
    is_decimal = have.name == feed.name == "decimal" and have.parameters[1] == feed.parameters[1]
    return feed if is_decimal or (have.name, feed.name) in _PROMOTIONS else None


def takes(have: PrimitiveType, feed: PrimitiveType) -> bool:
    """Whether a column of type `have` holds every value of type `feed` exactly."""
    if have == feed or (feed.name, have.name) in _LOSSLESS:
        return True
    if have.name == "decimal":
        integer_digits = have.parameters[0] - have.parameters[1]
        if feed.name == "decimal":
            return (
                feed.parameters[1] <= have.parameters[1] and feed.parameters[0] - feed.parameters[1] <= integer_digits
            )
        return _INTEGER_DIGITS.get(feed.name, integer_digits + 1) <= integer_digits
    if feed.name == "uuid":  # the engine stores both types as 16 bytes
        return have in {PrimitiveType("fixed", (16,)), PrimitiveType("binary")}
    return have.name == "binary" and feed.name == "fixed"


def _renumbered(f: NestedField, ids: Iterator[int]) -> NestedField:
    field_id = next(ids)
    match f.type:
        case StructType(members):
            kind: Type = StructType(tuple(_renumbered(m, ids) for m in members))
        case ListType(element):
            kind = ListType(_renumbered(element, ids))
        case MapType(key, value):
            kind = MapType(_renumbered(key, ids), _renumbered(value, ids))
        case PrimitiveType():
            kind = f.type
    return replace(f, field_id=field_id, type=kind)


# -- Arrow to Iceberg ----------------------------------------------------------------------------------------------


def _field(column: pa.Field, ids: Iterator[int], path: str = "") -> NestedField:
    field_id = next(ids)
    return NestedField(field_id, column.name, _type(column.type, ids, path + column.name))


def _type(kind: pa.DataType, ids: Iterator[int], path: str) -> Type:
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return PrimitiveType("uuid")
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        members = (kind.field(i) for i in range(kind.num_fields))
        return StructType(tuple(_field(m, ids, f"{path}.") for m in members if _has_values(m.type)))
    if isinstance(kind, _LISTS):
        field_id = next(ids)
        return ListType(NestedField(field_id, "element", _type(kind.value_type, ids, f"{path}.element")))
    if pa.types.is_map(kind):
        key_id, value_id = next(ids), next(ids)
        key = NestedField(key_id, "key", _type(kind.key_type, ids, f"{path}.key"), required=True)
        return MapType(key, NestedField(value_id, "value", _type(kind.item_type, ids, f"{path}.value")))
    return _primitive(kind, path)


def _primitive(kind: pa.DataType, path: str) -> PrimitiveType:  # noqa: C901 - one case per Arrow type
    types = pa.types
    if types.is_boolean(kind):
        return PrimitiveType("boolean")
    if types.is_uint64(kind):
        return PrimitiveType("decimal", (20, 0))
    if types.is_integer(kind):
        return PrimitiveType("long" if kind.bit_width == 64 or types.is_uint32(kind) else "int")
    if types.is_floating(kind):
        return PrimitiveType("double" if kind.bit_width == 64 else "float")
    if types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return PrimitiveType("decimal", (kind.precision, kind.scale))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return PrimitiveType("string")
    if types.is_fixed_size_binary(kind):
        return PrimitiveType("uuid") if kind.byte_width == 16 else PrimitiveType("fixed", (kind.byte_width,))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return PrimitiveType("binary")
    if types.is_date(kind):
        return PrimitiveType("date")
    if types.is_time(kind):
        return PrimitiveType("time")
    if types.is_timestamp(kind):
        return PrimitiveType("timestamp" if kind.tz is None else "timestamptz")
    raise SchemaConflictError(f"column {path!r}: Arrow type {kind} has no Iceberg type")
