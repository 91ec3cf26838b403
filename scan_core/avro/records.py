"""Decoders of whole records: the wanted fields into one flat list, the rest skipped.

Fields are found by Iceberg field id, or by name where a schema has no ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scan_core.avro.container import AvroError, read_long, read_slice
from scan_core.avro.pairs import is_pair, pairs_decoder
from scan_core.avro.schema import (
    INTEGER_TYPES,
    MAX_SCHEMA_DEPTH,
    NamedTypes,
    non_null,
    part,
    record_fields,
    resolve,
    type_name,
)
from scan_core.avro.values import (
    Decoder,
    Skipper,
    any_decoder,
    array_decoder,
    array_skipper,
    nullable_long,
    read_boolean,
    read_text,
    skip_long,
    skip_slice,
    union_decoder,
    union_skipper,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A field to decode into `slot` of the result.

    Attributes:
        field_id: its Iceberg id.
        names: what it is called where a schema has no ids; the first is for messages.
        kind: integer, text, bytes, boolean, integers (array), pairs (int to integer or bytes), record (see `fields`)
            or any (whatever the schema says, through `any_decoder`).
        slot: index in the result.
        required: malformed if the schema lacks it.
    """

    field_id: int
    names: tuple[str, ...]
    kind: str
    slot: int
    required: bool = False
    fields: tuple["Wanted", ...] = ()


def compile_record(schema: Any, wanted: Sequence[Wanted], slots: int, custom: Mapping[int, Decoder]) -> Decoder:
    """A decoder of records of this schema into a list of `slots` values; None where a field is absent.

    Args:
        schema: the writer's schema as parsed JSON.
        wanted: fields to decode, at any depth, each into a slot of one flat list.
        slots: length of the list.
        custom: decoders of fields of kind `custom`, by slot.

    Raises:
        AvroError: no record, a required field is absent, or a field has an unexpected type.
    """
    steps = _steps(schema, wanted, NamedTypes(schema), custom)

    def decode(buffer: bytes, position: int) -> tuple[list[Any], int]:
        values: list[Any] = [None] * slots
        for slot, step in steps:
            if slot < 0:
                position = step(buffer, position)
            else:
                values[slot], position = step(buffer, position)
        return values, position

    return decode


def _steps(
    schema: Any, wanted: Sequence[Wanted], named: NamedTypes, custom: Mapping[int, Decoder]
) -> list[tuple[int, Any]]:
    schema = resolve(schema, named)
    steps: list[tuple[int, Any]] = []
    found: set[int] = set()
    for field in record_fields(schema):
        want = wanted_for(field, wanted)
        if want is None:
            steps.append((-1, _skipper(field["type"], named, 0)))
            continue
        found.add(want.field_id)
        if want.slot in custom:
            steps.append((want.slot, _nullable(field["type"], custom[want.slot], named)))
        elif want.kind == "record":
            steps.extend(_steps(field["type"], want.fields, named, custom))
        else:
            steps.append((want.slot, _typed_decoder(field["type"], want, named)))
    for want in wanted:
        if want.required and want.field_id not in found:
            raise AvroError(f"its schema lacks the field {want.names[0]} ({want.field_id})")
    return steps


def wanted_for(field: Mapping[str, Any], wanted: Sequence[Wanted]) -> Wanted | None:
    """The wanted field that a field of a schema is, by id, or by name where it has none."""
    field_id = field.get("field-id")
    if field_id is not None:
        return next((w for w in wanted if w.field_id == field_id), None)
    return next((w for w in wanted if field.get("name") in w.names), None)


def _typed_decoder(schema: Any, want: Wanted, named: NamedTypes) -> Decoder:
    inner = non_null(resolve(schema, named), named)
    kind = type_name(inner)
    decode: Decoder | None = None
    match want.kind:
        case "integer" if kind in INTEGER_TYPES:
            decode = read_long
        case "text" if kind == "string":
            decode = read_text
        case "bytes" if kind == "bytes":
            decode = read_slice
        case "boolean" if kind == "boolean":
            decode = read_boolean
        case "integers" if kind == "array" and type_name(resolve(part(inner, "items"), named)) in INTEGER_TYPES:
            decode = array_decoder(read_long)
        case "records" if kind == "array":
            row = compile_record(part(inner, "items"), want.fields, len(want.fields), {})
            decode = array_decoder(row)
        case "pairs" if kind == "array":
            decode = pairs_decoder(part(inner, "items"), named)[0]
        case _:
            decode = None
    if decode is None:
        raise AvroError(f"field {want.names[0]} ({want.field_id}): expected {want.kind}, its schema says {kind}")
    return _nullable(schema, decode, named)


def _nullable(schema: Any, decode: Decoder, named: NamedTypes) -> Decoder:
    schema = resolve(schema, named)
    if not isinstance(schema, list):
        return decode
    if len(schema) == 1:
        return union_decoder([decode])
    null_first = type_name(resolve(schema[0], named)) == "null"
    null_branch, value_branch = (0, 2) if null_first else (2, 0)  # zig-zag of the branch numbers 0 and 1
    if decode is read_long:
        return nullable_long(null_branch, value_branch)

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        branch = buffer[position]
        if branch == null_branch:
            return None, position + 1
        if branch != value_branch:
            raise AvroError(f"union branch {branch} of 2")
        return decode(buffer, position + 1)

    return read


def _skipper(schema: Any, named: NamedTypes, depth: int) -> Skipper:
    if depth > MAX_SCHEMA_DEPTH:
        raise AvroError(f"its schema nests deeper than {MAX_SCHEMA_DEPTH} levels")
    schema = resolve(schema, named)
    kind = "" if isinstance(schema, list) else type_name(schema)
    if kind in INTEGER_TYPES or kind == "enum":
        return skip_long
    if kind in {"bytes", "string"}:
        return skip_slice
    if kind == "array":
        if is_pair(part(schema, "items"), named):
            return pairs_decoder(part(schema, "items"), named)[1]
        return array_skipper(
            _skipper(part(schema, "items"), named, depth + 1) if depth < MAX_SCHEMA_DEPTH else skip_long
        )
    if isinstance(schema, list) and len(schema) == 2 and "null" in schema:
        return union_skipper([_skipper(s, named, depth + 1) for s in schema])
    decode = any_decoder(schema, named, depth)
    return lambda buffer, position: decode(buffer, position)[1]
