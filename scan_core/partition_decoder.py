"""Partition structs of manifest entries -> canonical partition tuples in the order of the spec.

The Avro schema tells how a value is stored; the spec and the table's schemas what it means today (a column may have
been promoted since). Equal tuples become one object.
"""

import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from scan_core.avro.container import AvroError
from scan_core.avro.schema import NamedTypes, field_schema, resolve
from scan_core.avro.values import Decoder, any_decoder
from scan_core.partition import normalise_value
from scan_core.schema import PrimitiveType, Type
from scan_core.single_value import decimal_of
from scan_core.snapshot import PartitionField, PartitionSpec

Convert = Callable[[Any], Any]

_DATA_FILE, _PARTITION = 2, 102
_INTEGERS = frozenset({"int", "long"})
_STORED_AS = {
    "boolean": frozenset({"boolean"}),
    "int": _INTEGERS,
    "long": _INTEGERS,
    "float": frozenset({"float", "double"}),
    "double": frozenset({"float", "double"}),
    "date": _INTEGERS,
    "time": _INTEGERS,
    "timestamp": _INTEGERS,
    "timestamptz": _INTEGERS,
    "timestamp_ns": _INTEGERS,
    "timestamptz_ns": _INTEGERS,
    "string": frozenset({"string"}),
    "uuid": frozenset({"fixed", "string", "bytes"}),
    "fixed": frozenset({"fixed", "bytes"}),
    "binary": frozenset({"fixed", "bytes"}),
    "decimal": frozenset({"fixed", "bytes"}),
}
_NANOS_PER_UNIT = {"date": 86_400 * 10**9, "millis": 10**6, "micros": 10**3, "nanos": 1}
_MOST_INTERNED = 100_000


def partition_decoder(document: Any, spec: PartitionSpec, types: tuple[Type, ...]) -> Decoder:
    """A decoder of the `partition` field of entries of this schema.

    Raises:
        AvroError: the schema's partition struct is missing or does not have the fields of the spec, in types that fit.
    """
    named = NamedTypes(document)
    struct = field_schema(document, (_DATA_FILE, _PARTITION), ("data_file", "partition"))
    if struct is None:
        if spec.fields:
            raise AvroError(f"its schema lacks the field partition (102), but spec {spec.spec_id} has fields")
        return lambda _, position: ((), position)  # some writers leave it out where nothing would be in it
    stored = struct.get("fields") if isinstance(struct, Mapping) else None
    if not isinstance(stored, list) or not all(isinstance(f, Mapping) and "type" in f for f in stored):
        raise AvroError("partition (102): expected a record")
    decode = any_decoder(struct, named, 0)
    if not spec.fields:
        return lambda buffer, position: ((), decode(buffer, position)[1])
    order = [_index_of(f, i, stored, spec) for i, f in enumerate(spec.fields)]
    converts = [
        _conversion(_value_branch(stored[at]["type"], named), iceberg_type, f.name)
        for at, iceberg_type, f in zip(order, types, spec.fields, strict=True)
    ]
    steps = list(zip(order, converts, strict=True))
    interned: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def read(buffer: bytes, position: int) -> tuple[tuple[Any, ...], int]:
        values, position = decode(buffer, position)
        partition = tuple([None if values[at] is None else convert(values[at]) for at, convert in steps])
        if len(interned) < _MOST_INTERNED:
            partition = interned.setdefault(partition, partition)
        return partition, position

    return read


def _index_of(wanted: PartitionField, index: int, stored: list[Mapping[str, Any]], spec: PartitionSpec) -> int:
    for at, found in enumerate(stored):
        if found.get("field-id") == wanted.field_id:
            return at
    for at, found in enumerate(stored):
        if found.get("name") == wanted.name:
            return at
    if len(stored) == len(spec.fields):
        return index
    raise AvroError(f"partition (102) lacks the field {wanted.name} ({wanted.field_id}) of spec {spec.spec_id}")


def _conversion(schema: Any, iceberg_type: Type, name: str) -> Convert:
    kind = schema if isinstance(schema, str) else schema.get("type")
    target = iceberg_type.name if isinstance(iceberg_type, PrimitiveType) else ""
    expected = _STORED_AS.get(target)
    if expected is not None and kind not in expected | {"null"}:
        raise AvroError(f"partition field {name} is stored as {kind!r:.60}; a {iceberg_type} is not")
    logical = str(schema.get("logicalType", "")) if isinstance(schema, Mapping) else ""
    if target == "decimal" and isinstance(iceberg_type, PrimitiveType):
        scale = schema.get("scale") if isinstance(schema, Mapping) else None
        return _decimal_conversion(iceberg_type.parameters[1] if not isinstance(scale, int) else scale)
    if target == "uuid":
        return _uuid_conversion(name)
    factor = _unit_change(logical, target)
    if factor is not None:
        up, down = factor
        return lambda value: value * up // down
    return lambda value: normalise_value(value, iceberg_type)


def _value_branch(schema: Any, named: NamedTypes) -> Any:
    """The type of the values of a field that may be null; a type used before stands there by its name."""
    schema = resolve(schema, named)
    if not isinstance(schema, list):
        return schema
    values = [s for s in schema if s != "null"]
    return _value_branch(values[0], named) if len(values) == 1 else "null"


def _decimal_conversion(scale: int) -> Convert:
    def convert(value: bytes) -> decimal.Decimal:
        return decimal_of(int.from_bytes(value, "big", signed=True), scale)

    return convert


def _uuid_conversion(name: str) -> Convert:
    def convert(value: bytes | str) -> bytes:
        if isinstance(value, bytes) and len(value) == 16:
            return value
        try:
            return uuid.UUID(value if isinstance(value, str) else value.decode()).bytes
        except ValueError as error:
            raise AvroError(f"partition field {name}: {value!r:.60} is no UUID") from error

    return convert


def _unit_change(logical: str, target: str) -> tuple[int, int] | None:
    """Factor and divisor from the unit an integer is stored in to that of the type; None if they are the same."""
    if target.startswith("timestamp") or target == "time":
        wanted = 1 if target.endswith("_ns") else 1000
        unit = logical.rpartition("-")[2]
        stored = _NANOS_PER_UNIT.get(unit, wanted)
        if stored != wanted:
            return stored, wanted
    return None
