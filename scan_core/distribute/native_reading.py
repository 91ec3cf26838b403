"""How Spark's own Parquet reader has to be told to read one data file so that it gives our rows; or why it cannot.

Where every name of the table is that of the same column in the file, Spark goes by names. Else it finds columns by field
id, as we do, but prunes row groups by name: where a name means another column, the columns go by names that no file has.
What a file lacks is NULL for Spark; other values are constants of the file (SEMANTICS rule 16).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as pt

from scan_core.read.file_reader import field_id_of
from scan_core.read.metadata_columns import METADATA_IDS
from scan_core.read.open_file import open_file
from scan_core.read.projection import Constant, FileProjection
from scan_core.runtime_filter.late_keys import LateKeys
from scan_core.schema import ListType, MapType, NestedField, PrimitiveType, StructType, Type, arrow_type
from scan_core.snapshot import FileFormat
from scan_core.split import FileScanTask, ScanContext

_LARGE = {"string": (pa.large_string(),), "binary": (pa.large_binary(),)}
"""How Arrow holds what is the same in Parquet."""
_LITERALS = frozenset({"boolean", "int", "long", "float", "double", "string", "date", "decimal"})
"""Types whose values every Spark takes as literals without a time zone in between."""


@dataclass(frozen=True, slots=True)
class FileReading:
    """What to tell Spark of a file.

    Attributes:
        hides_names: some name of the table is that of another column, or of another type, in the file.
        constants: values of columns that the file lacks, by field id, where they are not NULL.
        by_name: every column and member has the same name in the file as in the table, and no other has it.
    """

    hides_names: bool = False
    constants: tuple[tuple[int, pa.Scalar], ...] = ()
    by_name: bool = False


def why_not_columns(context: ScanContext) -> str | None:
    """Why no file of a scan could be read by Spark; None if that depends on the file."""
    if context.predicate is not None:
        return "the scan has a predicate, which only scan_core evaluates exactly"
    if any(x.is_exact or isinstance(x.keys, LateKeys) for x in context.runtime_filters):
        return "the scan has runtime filters that only scan_core applies"
    if context.sample is not None:
        return "the scan is a sample"
    tops = {path[0].field_id for path in context.field_paths.values()}
    for column in context.projection.fields:
        if column.field_id in METADATA_IDS:
            return f"metadata column {column.name!r}"
        if column.field_id not in tops:
            return f"column {column.name!r} is a member of a struct"
        if _holds_uuid(column.type):
            return f"column {column.name!r} holds UUIDs, which are text in Spark"
    return None


def how_to_read(task: FileScanTask, context: ScanContext) -> FileReading | str:
    """How Spark reads the file as we do, or the reason why it does not.

    Raises:
        MissingFileError: the file is gone.
        MalformedTableError: it is no readable file of its format.
    """
    file = task.data_file
    if file.format is not FileFormat.PARQUET:
        return f"{file.path} is {file.format.value}"
    if file.is_encrypted:
        return f"{file.path} is encrypted"
    reader = open_file(file.path, file.format, context.io)
    try:
        if not reader.has_field_ids:
            return f"{file.path} has no field ids"
        schema = reader.arrow_schema
        projection = FileProjection(schema, has_field_ids=True, context=context, file=file)
        hides_names, by_name = False, True
        constants = []
        for column in context.projection.fields:
            source = projection.column(column)
            namesakes = [i for i, name in enumerate(schema.names) if name.lower() == column.name.lower()]
            if isinstance(source, Constant):
                hides_names |= bool(namesakes)
                if source.value.is_valid:
                    if not isinstance(column.type, PrimitiveType) or column.type.name not in _LITERALS:
                        return f"{file.path} lacks column {column.name!r}, which has a {column.type} value there"
                    constants.append((column.field_id, source.value))
                continue
            stored = schema.field(source.index)
            if not source.is_identity and not _is_read_as(stored, column):
                return f"{file.path} has column {column.name!r} as {stored.type}, which Spark does not read as {column.type}"
            is_same = source.is_identity or stored.type in _LARGE.get(str(column.type), ())
            hides_names |= not is_same or any(i != source.index for i in namesakes)
            by_name = by_name and stored.name == column.name and _has_same_names(stored.type, column.type)
    finally:
        reader.close()
    return FileReading(hides_names, tuple(constants), by_name and not hides_names)


def agreed(readings: Sequence[FileReading]) -> tuple[FileReading, ...]:
    """Ways of reading the files of one plan, none by name unless all are: each way is a scan of its own."""
    if all(reading.by_name for reading in readings):
        return tuple(readings)
    return tuple(replace(reading, by_name=False) for reading in readings)


def _is_read_as(stored: pa.Field, column: NestedField) -> bool:
    """Whether Spark gives values of a stored field as those of the table's, members found by field id."""
    kind = stored.type
    match column.type:
        case StructType(members):
            if not pt.is_struct(kind):
                return False
            by_id = {field_id_of(kind.field(i)): kind.field(i) for i in range(kind.num_fields)}
            absent = [m for m in members if m.field_id not in by_id]
            if len(absent) == len(members):  # Spark cannot tell then where the struct itself is NULL
                return False
            is_null = all(m.initial_default is None and not m.required for m in absent)
            return is_null and all(_is_read_as(by_id[m.field_id], m) for m in members if m.field_id in by_id)
        case ListType(element):
            return (pt.is_list(kind) or pt.is_large_list(kind)) and _is_read_as(kind.value_field, element)
        case MapType(key, value):
            return pt.is_map(kind) and _is_read_as(kind.key_field, key) and _is_read_as(kind.item_field, value)
        case PrimitiveType(name):
            wanted = arrow_type(column.type)
            if kind == wanted or kind in _LARGE.get(name, ()):
                return True
            if pt.is_decimal(kind) and pt.is_decimal(wanted):
                return bool(kind.scale == wanted.scale and kind.precision <= wanted.precision)
            return (kind, wanted) in {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


def _has_same_names(stored: pa.DataType, kind: Type) -> bool:
    """Whether members found by name are those found by field id, also where the case of letters does not count."""
    match kind:
        case StructType(members):
            parts = [stored.field(i) for i in range(stored.num_fields)]
            names = [part.name.lower() for part in parts]
            by_id = {field_id_of(part): part for part in parts}
            if len(set(names)) < len(names):
                return False
            return all(
                part.name == m.name and _has_same_names(part.type, m.type)
                if (part := by_id.get(m.field_id)) is not None
                else m.name.lower() not in names
                for m in members
            )
        case ListType(element):
            return _has_same_names(stored.value_type, element.type)
        case MapType(key, value):
            return _has_same_names(stored.key_type, key.type) and _has_same_names(stored.item_type, value.type)
        case PrimitiveType():
            return True


def _holds_uuid(iceberg_type: Type) -> bool:
    match iceberg_type:
        case StructType(members):
            return any(_holds_uuid(member.type) for member in members)
        case ListType(element):
            return _holds_uuid(element.type)
        case MapType(key, value):
            return _holds_uuid(key.type) or _holds_uuid(value.type)
        case PrimitiveType(name):
            return name == "uuid"
