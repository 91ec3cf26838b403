"""What the tests of the reader share: a context and data-file facts without a table."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import NestedField, Schema, parse_schema
from nevermore.scan_core.model.snapshot import DataFile, FileFormat, PartitionField, PartitionSpec
from nevermore.scan_core.split.tasks import ScanContext

ID = "PARQUET:field_id"


def schema_of(*fields: dict[str, Any]) -> Schema:
    return parse_schema({"type": "struct", "fields": [{"required": False, **f} for f in fields]})


def context_of(
    schema: Schema,
    *,
    specs: tuple[PartitionSpec, ...] = (PartitionSpec(0, ()),),
    name_mapping: Any = None,
    options: ScanOptions | None = None,
) -> ScanContext:
    return ScanContext(
        table="t",
        projection=schema,
        predicate=None,
        field_paths={i: schema.path(i) for i in schema.field_ids},
        specs={s.spec_id: s for s in specs},
        name_mapping=name_mapping,
        io=FileIOConfig(),
        options=options or ScanOptions(),
    )


def data_file(path: Path | str = "data.parquet", *, partition: tuple[Any, ...] = (), spec_id: int = 0) -> DataFile:
    return DataFile(str(path), FileFormat.PARQUET, spec_id, partition, 0, 0, 1)


def identity_spec(*source_ids: int) -> PartitionSpec:
    fields = tuple(PartitionField(1000 + i, s, f"p{s}", "identity") for i, s in enumerate(source_ids))
    return PartitionSpec(0, fields)


def arrow_field(name: str, data_type: pa.DataType, field_id: int | None = None, *, nullable: bool = True) -> pa.Field:
    metadata = None if field_id is None else {ID: str(field_id)}
    return pa.field(name, data_type, nullable=nullable, metadata=metadata)


def top(schema: Schema, name: str) -> NestedField:
    return schema.find(name)
