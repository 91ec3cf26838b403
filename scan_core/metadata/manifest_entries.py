"""Manifest entries, decoded one by one to data and delete files with inheritance applied (SEMANTICS rules 3 and 21).

Also determines the partition spec of a manifest and turns partition structs into canonical tuples.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import orjson

from nevermore.scan_core.metadata.avro_container import (
    AvroError,
    Header,
    NamedTypes,
    check_json_size,
    field_schema,
    resolve,
)
from nevermore.scan_core.metadata.avro_decoders import Decoder, Wanted, decode_records, value_decoder
from nevermore.scan_core.metadata.manifest_list import ManifestFile
from nevermore.scan_core.model.schema import PrimitiveType, Type
from nevermore.scan_core.model.snapshot import (
    DataFile,
    DeleteContent,
    DeleteFile,
    FileFormat,
    PartitionField,
    PartitionSpec,
)
from nevermore.scan_core.model.statistics import decimal_of
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.model.transforms import normalise_value

EXISTING, ADDED, DELETED = 0, 1, 2
"""Status of an entry."""
MAX_FIRST_ROW_ID = 2**62
"""Leaves room for the rows of any file below the largest 64-bit number."""


class Inheritance:
    """What entries of one manifest inherit; row ids advance from entry to entry."""

    __slots__ = ("content", "is_partitioned", "next_row_id", "path", "sequence_number", "spec_id")

    def __init__(self, manifest: ManifestFile, spec: PartitionSpec) -> None:
        self.path = manifest.path
        self.spec_id = spec.spec_id
        self.is_partitioned = bool(spec.fields)
        self.content = manifest.content
        self.sequence_number = manifest.sequence_number
        self.next_row_id = manifest.first_row_id

    def sequence_of(self, status: int, explicit: int | None, name: str) -> int:
        """An entry's sequence number: explicit, or inherited (SEMANTICS rule 3)."""
        if explicit is None:
            if status != ADDED and self.sequence_number != 0:
                raise AvroError(f"{name} is null in an existing entry of a manifest with number {self.sequence_number}")
            return self.sequence_number
        if explicit < 0:
            raise AvroError(f"{name} is negative: {explicit}")
        return explicit

    def row_id_of(self, explicit: int | None, record_count: int) -> int | None:
        """A data file's first row id: explicit, or the next of the manifest (SEMANTICS rule 21)."""
        first = explicit
        if first is None and self.next_row_id is not None:
            first = self.next_row_id
            self.next_row_id += record_count
        if first is not None and not 0 <= first <= MAX_FIRST_ROW_ID:
            raise AvroError(f"first_row_id (142 or 520) is {first}; row ids would leave 64 bits")
        return first


F = TypeVar("F", DataFile, DeleteFile)
Build: TypeAlias = Callable[[list[Any], Inheritance], F]

PARTITION_SLOT = 7
ENTRY_FIELDS = (
    Wanted(0, ("status",), "integer", 0, required=True),
    Wanted(3, ("sequence_number", "data_sequence_number"), "integer", 1),
    Wanted(4, ("file_sequence_number",), "integer", 2),
    Wanted(
        2,
        ("data_file",),
        "record",
        -1,
        required=True,
        fields=(
            Wanted(134, ("content",), "integer", 3),
            Wanted(100, ("file_path",), "text", 4, required=True),
            Wanted(101, ("file_format",), "text", 5, required=True),
            Wanted(102, ("partition",), "custom", PARTITION_SLOT),
            Wanted(103, ("record_count",), "integer", 8, required=True),
            Wanted(104, ("file_size_in_bytes",), "integer", 9, required=True),
            Wanted(109, ("value_counts",), "pairs", 10),
            Wanted(110, ("null_value_counts",), "pairs", 11),
            Wanted(137, ("nan_value_counts",), "pairs", 12),
            Wanted(125, ("lower_bounds",), "pairs", 13),
            Wanted(128, ("upper_bounds",), "pairs", 14),
            Wanted(131, ("key_metadata",), "bytes", 15),
            Wanted(132, ("split_offsets",), "integers", 16),
            Wanted(135, ("equality_ids",), "integers", 17),
            Wanted(142, ("first_row_id",), "integer", 18),
            Wanted(143, ("referenced_data_file",), "text", 19),
            Wanted(144, ("content_offset",), "integer", 20),
            Wanted(145, ("content_size_in_bytes",), "integer", 6),
        ),
    ),
)
ENTRY_SLOTS = 21
DELETE_CONTENTS = {1: DeleteContent.POSITION, 2: DeleteContent.EQUALITY}
_FORMATS = {f.value: f for f in FileFormat}
_NOTHING: Mapping[int, Any] = {}


def decode_entries(
    blocks: Sequence[tuple[int, bytes]], decode: Decoder, inheritance: Inheritance, build: Build[F]
) -> Iterator[F]:
    """The live files of blocks, given with their number of entries.

    Raises:
        AvroError: an entry breaks the specification; names file and field.
    """
    for entry in decode_records(blocks, decode):
        status = entry[0]
        if status == DELETED:
            continue
        if status not in {EXISTING, ADDED}:
            raise AvroError(f"status (0) of {entry[4]}: expected 0, 1 or 2, found {status}")
        if None in (entry[4], entry[5], entry[8], entry[9]):
            raise AvroError(
                f"file_path (100), file_format (101), record_count (103) or file_size_in_bytes (104) of {entry[4]} is null"
            )
        if entry[8] < 0 or entry[9] < 0:
            raise AvroError(
                f"record_count (103) {entry[8]} or file_size_in_bytes (104) {entry[9]} of {entry[4]} is negative"
            )
        if inheritance.is_partitioned and entry[PARTITION_SLOT] is None:
            raise AvroError(f"partition (102) of {entry[4]} is null under a spec with fields")
        yield build(entry, inheritance)


def data_file_of(entry: list[Any], inheritance: Inheritance) -> DataFile:
    """The data file of a decoded entry."""
    if entry[3]:
        raise AvroError(f"content (134) of {entry[4]}: expected 0 in a data manifest, found {entry[3]}")
    return DataFile(**_common_facts(entry, inheritance), first_row_id=inheritance.row_id_of(entry[18], entry[8]))


def delete_file_of(entry: list[Any], inheritance: Inheritance) -> DeleteFile:
    """The delete file of a decoded entry."""
    content = DELETE_CONTENTS.get(entry[3])
    if content is None:
        raise AvroError(f"content (134) of {entry[4]}: expected 1 or 2 in a delete manifest, found {entry[3]}")
    return DeleteFile(
        **_common_facts(entry, inheritance),
        content=content,
        equality_ids=tuple(entry[17] or ()),
        referenced_data_file=entry[19],
        content_offset=entry[20],
        content_size_bytes=entry[6],
    )


def _common_facts(entry: list[Any], inheritance: Inheritance) -> dict[str, Any]:
    """The fields of `ContentFile`."""
    status, file_sequence = entry[0], entry[2]
    file_format = _FORMATS.get(entry[5]) or _FORMATS.get(entry[5].lower())
    if file_format is None:
        raise AvroError(f"file_format (101) of {entry[4]}: unknown format {entry[5]!r:.60}")
    inherits = file_sequence is None and status == ADDED
    return {
        "path": entry[4],
        "format": file_format,
        "spec_id": inheritance.spec_id,
        "partition": entry[PARTITION_SLOT] or (),
        "record_count": entry[8],
        "file_size_bytes": entry[9],
        "data_sequence_number": inheritance.sequence_of(status, entry[1], "sequence_number (3)"),
        "file_sequence_number": inheritance.sequence_number if inherits else file_sequence,
        **{name: _NOTHING if entry[slot] is None else entry[slot] for name, slot in _STATISTICS},
        "split_offsets": tuple(entry[16] or ()),
        "is_encrypted": bool(entry[15]),
    }


_STATISTICS = (
    ("lower_bounds", 13),
    ("upper_bounds", 14),
    ("value_counts", 10),
    ("null_value_counts", 11),
    ("nan_value_counts", 12),
)
"""Maps by field id, and their slots."""


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
_MAX_INTERNED = 100_000


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
    decode = value_decoder(struct, named)
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
        if len(interned) < _MAX_INTERNED:
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
        exact = scale if isinstance(scale, int) else iceberg_type.parameters[1]
        return lambda value: decimal_of(int.from_bytes(value, "big", signed=True), exact)
    if target == "uuid":
        return _uuid_conversion(name)
    factor = _unit_change(logical, target)
    if factor is not None:
        up, down = factor
        return lambda value: value * up // down
    return lambda value: normalise_value(value, iceberg_type)


def _value_branch(schema: Any, named: NamedTypes) -> Any:
    """The type of the values of a field that may be null; a type defined earlier is referred to by its name."""
    schema = resolve(schema, named)
    if not isinstance(schema, list):
        return schema
    values = [s for s in schema if s != "null"]
    return _value_branch(values[0], named) if len(values) == 1 else "null"


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
