"""The partition spec of a manifest, and its partition structs as canonical tuples."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from nevermore.scan_core.metadata.avro_container import AvroError, Header, check_json_size
from nevermore.scan_core.metadata.avro_values import AvroField, AvroReader, AvroType, value_type
from nevermore.scan_core.metadata.manifest_list import ManifestFile
from nevermore.scan_core.model.schema import PrimitiveType, Type
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec
from nevermore.scan_core.model.statistics import decimal_of
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.model.transforms import normalise_value

_MAX_DIGITS = 10


def spec_of(manifest: ManifestFile, header: Header, metadata: TableMetadata) -> PartitionSpec:
    """The partition spec of a manifest.

    Raises:
        AvroError: the table has no such spec, or nothing tells which of several it is.
    """
    spec_id = manifest.spec_id if manifest.spec_id is not None else _stated_id(header)
    if spec_id is None:
        return _spec_with_the_fields_of(header, metadata)
    if spec_id not in metadata.specs:
        raise AvroError(f"partition_spec_id (502): the table has no partition spec {spec_id}")
    return metadata.specs[spec_id]


def _stated_id(header: Header) -> int | None:
    stated = header.metadata.get("partition-spec-id")
    if stated is None:
        return None
    text = stated.decode("ascii", "replace")
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise AvroError(f"partition-spec-id in its header is {text!r:.40}")
    return int(text)


def _spec_with_the_fields_of(header: Header, metadata: TableMetadata) -> PartitionSpec:
    stated = header.metadata.get("partition-spec")
    if stated is None:
        if len(metadata.specs) > 1:
            raise AvroError("it does not state its partition-spec-id, and the table has several specs")
        return metadata.specs[metadata.default_spec_id]
    fields = _stated_fields(stated)
    for spec in metadata.specs.values():
        if [(f.source_id, f.transform) for f in spec.fields] == fields:
            return spec
    raise AvroError(f"partition-spec in its header is that of no spec of the table: {stated!r:.200}")


def _stated_fields(stated: bytes) -> list[tuple[Any, Any]]:
    """Source columns and transforms: names change, and early writers gave the fields no ids."""
    try:
        check_json_size(stated)
        content = orjson.loads(stated)
    except ValueError as error:
        raise AvroError(f"partition-spec in its header is not a JSON document: {error}") from error
    if isinstance(content, Mapping):  # some writers put the whole spec there
        content = content.get("fields")
    if not isinstance(content, list) or not all(isinstance(f, Mapping) for f in content):
        raise AvroError(f"partition-spec in its header is no list of fields: {stated!r:.80}")
    return [(f.get("source-id"), f.get("transform")) for f in content]


Convert = Callable[[Any], Any]

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
Partitions = Callable[[pa.BinaryArray], list[tuple[Any, ...]]]
"""Decodes the bytes of partitions."""


def partition_decoder(field: AvroField | None, spec: PartitionSpec, types: tuple[Type, ...]) -> Partitions:
    """A decoder of the `partition` field of entries.

    Args:
        field: of the schema, whose values stay bytes; None if there is none.
        spec: the partition spec.
        types: result types of its fields.

    Raises:
        AvroError: the partition struct is missing or does not have the fields of the spec, in types that fit.
    """
    if not spec.fields:  # some writers leave it out where nothing would be in it
        return lambda stored: [()] * len(stored)
    if field is None:
        raise AvroError(f"its schema lacks the field partition (102), but spec {spec.spec_id} has fields")
    struct = value_type(field.type).parts[0].type
    if struct.kind != "record":
        raise AvroError("partition (102): expected a record")
    order = [_index_of(f, i, struct.parts, spec) for i, f in enumerate(spec.fields)]
    converts = [
        _conversion(value_type(struct.parts[at].type), iceberg_type, f.name)
        for at, iceberg_type, f in zip(order, types, spec.fields, strict=True)
    ]
    reader = AvroReader.of(struct.parts)

    def read(stored: pa.BinaryArray) -> list[tuple[Any, ...]]:
        table, bad = reader.messages(stored)
        if bad.any():
            raise AvroError("a value of partition (102) does not fit its type")
        columns = [
            [None if value is None else convert(value) for value in table.column(at).to_pylist()]
            for at, convert in zip(order, converts, strict=True)
        ]
        return list(zip(*columns, strict=True))

    return read


def _index_of(wanted: PartitionField, index: int, stored: Sequence[AvroField], spec: PartitionSpec) -> int:
    for at, found in enumerate(stored):
        if found.field_id == wanted.field_id:
            return at
    for at, found in enumerate(stored):
        if found.name == wanted.name:
            return at
    if len(stored) == len(spec.fields):
        return index
    raise AvroError(f"partition (102) lacks the field {wanted.name} ({wanted.field_id}) of spec {spec.spec_id}")


def _conversion(stored: AvroType, iceberg_type: Type, name: str) -> Convert:
    kind, schema = stored.kind, stored.schema or {}
    target = iceberg_type.name if isinstance(iceberg_type, PrimitiveType) else ""
    expected = _STORED_AS.get(target)
    if expected is not None and kind not in expected | {"null", "union"}:
        raise AvroError(f"partition field {name} is stored as {kind!r:.60}; a {iceberg_type} is not")
    if target == "decimal" and isinstance(iceberg_type, PrimitiveType):
        scale = schema.get("scale")
        exact = scale if isinstance(scale, int) else iceberg_type.parameters[1]
        return lambda value: decimal_of(int.from_bytes(value, "big", signed=True), exact)
    if target == "uuid":
        return _uuid_conversion(name)
    factor = _unit_change(str(schema.get("logicalType", "")), target)
    if factor is not None:
        up, down = factor
        return lambda value: value * up // down
    return lambda value: normalise_value(value, iceberg_type)


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
