"""Entries of manifests as columns, with inheritance applied (SEMANTICS rules 3 and 21); file objects are made on demand.

The entries of many manifests with one schema and one partition spec are decoded together; each distinct partition is decoded once,
to a tuple in canonical form. Which manifests are read together is decided in `manifests.py`.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from nevermore.scan_core.metadata.avro_container import AvroError, Header, check_json_size, read_long, read_slice
from nevermore.scan_core.metadata.avro_values import AvroField, AvroReader, AvroType, Wanted, parse_record, value_type
from nevermore.scan_core.metadata.manifest_list import DATA_MANIFEST, ManifestFile
from nevermore.scan_core.model.cached_property import cached_property
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
from nevermore.scan_core.rows.buffers import Mask, boolean_array, index_array, numbers, scalar, true_flags

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
    if target.startswith("timestamp") or target == "time":
        unit = 1 if target.endswith("_ns") else 1000
        stored_unit = _NANOS_PER_UNIT.get(str(schema.get("logicalType")).rpartition("-")[2], unit)
        return lambda value: value * stored_unit // unit
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


Numbers = npt.NDArray[Any]

EXISTING, ADDED, DELETED = 0, 1, 2
"""Status of an entry."""
MAX_FIRST_ROW_ID = 2**62
"""Leaves room for the rows of any file below the largest 64-bit number."""
FORMATS = tuple(FileFormat)
EQUALITY_CONTENT = 2
"""Of the values of `contents` in delete manifests."""
NULL = -(1 << 63)
"""A number that is NULL."""
LOWER, UPPER, VALUES, NULLS, NANS, SIZES = 125, 128, 109, 110, 137, 108
_MAPS = {
    LOWER: "lower_bounds",
    UPPER: "upper_bounds",
    VALUES: "value_counts",
    NULLS: "null_value_counts",
    NANS: "nan_value_counts",
    SIZES: "column_sizes",
}
"""Maps by field id of columns, which stay bytes until they are used."""
_OF_BYTES = frozenset({LOWER, UPPER})
RAW: frozenset[int | str] = frozenset({*_MAPS, *_MAPS.values(), 102, "partition"})

_LONG, _TEXT, _LONGS = pa.int64(), pa.string(), pa.list_(pa.int64())
_STATUS = Wanted(0, ("status",), _LONG, required=True)
_SNAPSHOT = Wanted(1, ("snapshot_id",), _LONG)
_SEQUENCE = Wanted(3, ("sequence_number", "data_sequence_number"), _LONG)
_FILE_SEQUENCE = Wanted(4, ("file_sequence_number",), _LONG)
DATA_FILE = Wanted(2, ("data_file",), required=True)
PARTITION = Wanted(102, ("partition",))
_CONTENT = Wanted(134, ("content",), _LONG)
_PATH = Wanted(100, ("file_path",), _TEXT, required=True)
_FORMAT = Wanted(101, ("file_format",), _TEXT, required=True)
_RECORDS = Wanted(103, ("record_count",), _LONG, required=True)
_SIZE = Wanted(104, ("file_size_in_bytes",), _LONG, required=True)
_KEY_METADATA = Wanted(131, ("key_metadata",), pa.binary())
_OFFSETS = Wanted(132, ("split_offsets",), _LONGS)
_EQUALITY_IDS = Wanted(135, ("equality_ids",), _LONGS)
_SORT_ORDER = Wanted(140, ("sort_order_id",), _LONG)
_FIRST_ROW_ID = Wanted(142, ("first_row_id",), _LONG)
_REFERENCED = Wanted(143, ("referenced_data_file",), _TEXT)
_CONTENT_OFFSET = Wanted(144, ("content_offset",), _LONG)
_CONTENT_SIZE = Wanted(145, ("content_size_in_bytes",), _LONG)


@dataclass(frozen=True, eq=False)
class EntryColumns:
    """Live entries of manifests of one schema and one partition spec, one value per entry in each column.

    Partitions are given by their index in `partitions`. `NULL` stands for numbers that are NULL. `statistics` are maps by
    field id, as their bytes in Avro.
    """

    spec_id: int
    is_of_deletes: bool
    partitions: Sequence[tuple[Any, ...]]
    statistics: Mapping[int, pa.BinaryArray]
    paths: pa.StringArray
    formats: Numbers
    partition_codes: Numbers
    record_counts: Numbers
    file_sizes: Numbers
    sequence_numbers: Numbers
    file_sequence_numbers: Numbers
    first_row_ids: Numbers
    keys: pa.BinaryArray
    snapshot_ids: Numbers
    sort_orders: Numbers
    split_offsets: pa.ListArray
    contents: Numbers
    equality_ids: pa.ListArray
    referenced: pa.StringArray
    content_offsets: Numbers
    content_sizes: Numbers

    def __len__(self) -> int:
        return len(self.record_counts)

    @cached_property
    def delete_files(self) -> Sequence[DeleteFile]:
        """Delete files as objects; all are made when the first is requested, because a caller that needs one needs many."""
        return [_file_of(self, row) for row in range(len(self))]

    def only(self, rows: Numbers) -> "EntryColumns":
        """Only these entries, without the bytes of the others."""

        def chosen(column: Any) -> Any:
            return column.take(index_array(rows)) if isinstance(column, pa.Array) else column[rows]

        columns = {f.name: chosen(getattr(self, f.name)) for f in fields(self)[4:]}
        return replace(self, statistics={slot: chosen(maps) for slot, maps in self.statistics.items()}, **columns)


class Layout(NamedTuple):
    """How entries of one schema and one partition spec are decoded."""

    reader: AvroReader
    partitions: Partitions
    spec: PartitionSpec


def entry_reader(document: Any) -> tuple[AvroReader, AvroField | None]:
    """The reader of entries of a schema, and the field of their partitions.

    Raises:
        AvroError: a schema that is not one of manifests.
    """
    reader = AvroReader.of(parse_record(document, physical=True, raw=RAW))
    file = _members(reader)
    for slot, name in _MAPS.items():
        place = Wanted(slot, (name,)).find(file)
        if place is not None and not _is_map(file[place].type, {"bytes"} if slot in _OF_BYTES else _INTEGERS):
            raise AvroError(f"field {name} ({slot}): expected a map by field id, its schema says otherwise")
    place = PARTITION.find(file)
    return reader, None if place is None else file[place]


def _is_map(kind: AvroType, values: AbstractSet[str]) -> bool:
    (raw,) = value_type(kind).parts or (None,)
    parts = () if raw is None else raw.type.parts
    pair = parts[0].type.parts if len(parts) == 1 else parts
    return len(pair) == 2 and pair[0].type.kind in _INTEGERS and pair[1].type.kind in values


def _members(reader: AvroReader) -> tuple[AvroField, ...]:
    """The fields of a data file in an entry."""
    place = DATA_FILE.find(reader.fields)
    file = reader.fields[place or 0].type
    if place is None or file.kind != "record":
        raise AvroError("data_file (2): expected a record")
    return file.parts


def entry_columns(
    blocks: Sequence[tuple[int, bytes]], manifests: Sequence[tuple[ManifestFile, int]], layout: Layout
) -> tuple[EntryColumns, Numbers]:
    """The live entries of some manifests, and how many each manifest has.

    Args:
        blocks: number of entries and bytes of each block of all manifests, in order.
        manifests: all of one content and layout, each with its number of entries.
        layout: of all of them.

    Raises:
        AvroError: an entry is damaged, or breaks the specification; names file and field.
    """
    table = layout.reader.rows(blocks, at_once=True)
    owners = np.repeat(np.arange(len(manifests)), [count for _, count in manifests])
    status = _STATUS.of(layout.reader.fields, table.columns, len(table))
    is_live = _numbers(status.combine_chunks()) != DELETED
    if not is_live.all():
        table, owners = table.filter(boolean_array(is_live)), owners[is_live]
    columns = [c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in table.columns]
    found = _Builder(columns, owners, [m for m, _ in manifests], layout).build()
    return found, np.bincount(owners, minlength=len(manifests))


def _numbers(array: pa.Array, absent: int = NULL) -> Numbers:
    """A column of numbers, with `absent` in place of NULL."""
    return numbers(array.fill_null(scalar(absent, array.type)))


@dataclass(frozen=True, slots=True, eq=False)
class _Builder:
    """Checks live entries and adds the values that they inherit."""

    _columns: Sequence[pa.Array]
    _owners: Numbers
    _manifests: Sequence[ManifestFile]
    _layout: Layout

    @property
    def _count(self) -> int:
        return len(self._owners)

    def _entry(self, wanted: Wanted) -> Numbers:
        return _numbers(wanted.of(self._layout.reader.fields, self._columns, self._count))

    def _file(self, wanted: Wanted) -> pa.Array:
        file = self._columns[DATA_FILE.find(self._layout.reader.fields) or 0]
        members = _members(self._layout.reader)
        return wanted.of(members, [file.field(place) for place in range(len(members))], self._count)

    def _require(self, fine: Any, describe: Any, values: Any) -> None:
        """Refuse the first entry that is not fine."""
        if not fine.all():
            row = int(np.argmin(fine))
            path = self._file(_PATH)[row].as_py()
            raise AvroError(describe.format(path=path, value=values[row]))

    def build(self) -> EntryColumns:
        """The columns."""
        status, paths, formats = self._entry(_STATUS), self._file(_PATH), self._file(_FORMAT)
        self._require(
            (status == EXISTING) | (status == ADDED), "status (0) of {path}: expected 0, 1 or 2, found {value}", status
        )
        needed = {wanted: self._file(wanted) for wanted in (_PATH, _FORMAT, _RECORDS, _SIZE)}
        for wanted, column in needed.items():
            name = f"{wanted.names[0]} ({wanted.field_id}) of {{path}}"
            self._require(_valid(column), f"{name} is null", column)
            if wanted.type == _LONG:
                self._require(_numbers(column) >= 0, f"{name} is negative: {{value}}", column)
        records = _numbers(needed[_RECORDS])
        content = _numbers(self._file(_CONTENT), 0)
        is_of_deletes = self._manifests[0].content != DATA_MANIFEST
        expected, kind = ("1 or 2", "delete") if is_of_deletes else ("0", "data")
        self._require(
            (content == 1) | (content == EQUALITY_CONTENT) if is_of_deletes else content == 0,
            f"content (134) of {{path}}: expected {expected} in a {kind} manifest, found {{value}}",
            content,
        )
        is_added = status == ADDED
        inherited = np.array([m.sequence_number for m in self._manifests], np.int64)[self._owners]
        file_sequences = self._entry(_FILE_SEQUENCE)
        partitions, codes = self._partitions()
        return EntryColumns(
            spec_id=self._layout.spec.spec_id,
            is_of_deletes=is_of_deletes,
            partitions=partitions,
            statistics={
                slot: self._file(wanted)
                for slot, name in _MAPS.items()
                if (wanted := Wanted(slot, (name,))).find(_members(self._layout.reader)) is not None
            },
            paths=paths,
            formats=self._formats(formats),
            partition_codes=codes,
            record_counts=records,
            file_sizes=_numbers(needed[_SIZE]),
            sequence_numbers=self._sequences(is_added, inherited),
            file_sequence_numbers=np.where((file_sequences == NULL) & is_added, inherited, file_sequences),
            first_row_ids=self._row_ids(records),
            keys=self._file(_KEY_METADATA),
            snapshot_ids=self._entry(_SNAPSHOT),
            sort_orders=_numbers(self._file(_SORT_ORDER)),
            split_offsets=self._file(_OFFSETS),
            contents=content.astype(np.int8),
            equality_ids=self._file(_EQUALITY_IDS),
            referenced=self._file(_REFERENCED),
            content_offsets=_numbers(self._file(_CONTENT_OFFSET)),
            content_sizes=_numbers(self._file(_CONTENT_SIZE)),
        )

    def _formats(self, texts: pa.StringArray) -> Numbers:
        """Indices in `FORMATS`."""
        encoded = texts.dictionary_encode()
        codes = [_FORMAT_CODES.get(text.lower(), -1) for text in encoded.dictionary.to_pylist()]
        found: Numbers = np.array(codes, np.int8)[numbers(encoded.indices)]
        self._require(found >= 0, "file_format (101) of {path}: unknown format '{value}'", texts)
        return found

    def _sequences(self, is_added: Mask, inherited: Numbers) -> Numbers:
        """Sequence numbers: explicit, or inherited (rule 3)."""
        found = self._entry(_SEQUENCE)
        is_null = found == NULL
        self._require(
            ~is_null | is_added | (inherited == 0),
            "sequence_number (3) is null in an existing entry of a manifest with number {value}",
            inherited,
        )
        filled = np.where(is_null, inherited, found)
        self._require(filled >= 0, "sequence_number (3) is negative: {value}", filled)
        return filled

    def _row_ids(self, records: Numbers) -> Numbers:
        """First row ids: explicit, or the next of the manifest (rule 21)."""
        found = _numbers(self._file(_FIRST_ROW_ID))
        firsts = np.array([NULL if m.first_row_id is None else m.first_row_id for m in self._manifests], np.int64)
        # An entry without an id of its own takes the next of its manifest, which advances by its records.
        advance = np.where(found == NULL, np.minimum(records, MAX_FIRST_ROW_ID // max(self._count, 1)), 0)
        before = np.cumsum(advance) - advance
        of_manifest = np.append(before, 0)[np.searchsorted(self._owners, np.arange(len(firsts)))]
        first = firsts[self._owners]
        inherits = (found == NULL) & (first != NULL)
        filled = np.where(inherits, first + before - of_manifest[self._owners], found)
        fits = (filled == NULL) | ((filled >= 0) & (filled <= MAX_FIRST_ROW_ID))
        fits &= ~inherits | ((first >= 0) & (first <= MAX_FIRST_ROW_ID) & (records == advance))
        self._require(fits, "first_row_id (142 or 520) of {path} is {value}; row ids would leave 64 bits", filled)
        return filled

    def _partitions(self) -> tuple[Sequence[tuple[Any, ...]], Numbers]:
        """The distinct partitions, each decoded once, and the index of each entry's."""
        if not self._layout.spec.fields:
            return [()], np.zeros(self._count, np.int32)
        stored = self._file(PARTITION)
        self._require(_valid(stored), "partition (102) of {path} is null under a spec with fields", stored)
        encoded = stored.dictionary_encode()
        return self._layout.partitions(encoded.dictionary), numbers(encoded.indices)


def _valid(column: pa.Array) -> Mask:
    return true_flags(column.is_valid())


_FORMAT_CODES = {f.value: i for i, f in enumerate(FORMATS)}
F = TypeVar("F", DataFile, DeleteFile)
_NOTHING: Mapping[int, Any] = {}


class LazyPairs(Mapping[int, Any]):
    """A map of a manifest entry, decoded when it is used; pickles as a plain dict."""

    __slots__ = ("_found", "_maps", "_of_bytes", "_row")

    def __init__(self, maps: pa.BinaryArray, row: int, *, of_bytes: bool) -> None:
        self._maps, self._row, self._of_bytes = maps, row, of_bytes
        self._found: dict[int, Any] | None = None

    def __getitem__(self, key: int) -> Any:
        return self._content()[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._content(),)

    def items(self) -> Any:
        """The pairs, which are not kept: who copies those of all files of a manifest holds them only one by one."""
        data, read = self._maps[self._row].as_py() or b"\0", read_slice if self._of_bytes else read_long
        found: dict[int, Any] = {}
        count, position = read_long(data, 0)
        while count:
            if count < 0:  # such a block states its size, for readers that skip it
                _, position = read_long(data, position)
            for _ in range(abs(count)):
                key, position = read_long(data, position)
                value, position = read(data, position)
                found.setdefault(key, value)  # the first pair of a key counts
            count, position = read_long(data, position)
        return found.items()

    def _content(self) -> dict[int, Any]:
        self._found = self._found or dict(self.items())
        return self._found


class ManifestFiles(Sequence[F], Generic[F]):
    """The files in rows [first, last) of `columns`."""

    __slots__ = ("columns", "first", "last")

    def __init__(self, columns: EntryColumns, first: int, last: int) -> None:
        self.columns = columns
        self.first = first
        self.last = last

    def __len__(self) -> int:
        return self.last - self.first

    @overload
    def __getitem__(self, index: int) -> F: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[F]: ...
    def __getitem__(self, index: int | slice) -> F | Sequence[F]:
        rows = range(self.first, self.last)[index]
        return self._file(rows) if isinstance(rows, int) else [self._file(row) for row in rows]

    def __iter__(self) -> Iterator[F]:
        return map(self._file, range(self.first, self.last))

    def _file(self, row: int) -> F:
        found: F = file_at(self.columns, row)
        return found


def path_at(columns: EntryColumns, row: int) -> str:
    """The path of one file."""
    return str(columns.paths[row].as_py())


def file_at(columns: EntryColumns, row: int) -> Any:
    """One file; its column statistics are decoded when they are used."""
    return columns.delete_files[row] if columns.is_of_deletes else _file_of(columns, row)


def _file_of(columns: EntryColumns, row: int) -> Any:
    own: list[Any] = [_nullable(columns.first_row_ids.item(row))]
    if columns.is_of_deletes:
        own = [
            DeleteContent(columns.contents.item(row)),
            tuple(columns.equality_ids[row].as_py() or ()),
            columns.referenced[row].as_py(),
            _nullable(columns.content_offsets.item(row)),
            _nullable(columns.content_sizes.item(row)),
        ]
    kind: Any = DeleteFile if columns.is_of_deletes else DataFile
    return kind(
        path_at(columns, row),
        FORMATS[columns.formats.item(row)],
        columns.spec_id,
        columns.partitions[columns.partition_codes.item(row)],
        columns.record_counts.item(row),
        columns.file_sizes.item(row),
        columns.sequence_numbers.item(row),
        _nullable(columns.file_sequence_numbers.item(row)),
        *(_pairs(columns, slot, row) for slot in _MAPS),
        tuple(columns.split_offsets[row].as_py() or ()),
        columns.keys[row].as_py(),
        _nullable(columns.snapshot_ids.item(row)),
        _nullable(columns.sort_orders.item(row)),
        *own,
    )


def _pairs(columns: EntryColumns, slot: int, row: int) -> Mapping[int, Any]:
    maps = columns.statistics.get(slot)
    return _NOTHING if maps is None else LazyPairs(maps, row, of_bytes=slot in _OF_BYTES)


def _nullable(number: int) -> int | None:
    return None if number == NULL else number
