"""From Arrow tables to the Parquet files of a commit: rows, and keys to delete.

Files carry field ids, page index and small pages; keys are sorted and delta-encoded, so delete files are small and
readers prune. Which rows and keys is decided by the mirror; naming files in a snapshot is the business of `commit.py`.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import SchemaConflictError
from pipelines.tables.dictionary_columns import dictionary_columns
from pipelines.tables.file_metrics import FileContent, WrittenFile, nan_counts, parquet_metrics
from pipelines.tables.parquet_output import (
    WriterOptions,
    bloom_filters,
    delta_encoding,
    number_encodings,
    write_parquet,
)
from pipelines.tables.partitioning import PartitionedRows, split_by_partition
from pipelines.tables.row_order import check_order, in_order
from pipelines.tables.row_shape import conform, parquet_schema
from pipelines.tables.storage import Storage
from scan_core.schema import ListType, MapType, PrimitiveType, Schema, StructType
from scan_core.snapshot import PartitionSpec

_ILLEGAL_KEYS = frozenset({"float", "double"})


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Where files go: the schema they have, the folder they lie in."""

    schema: Schema
    data_location: str
    storage: Storage
    options: WriterOptions = field(default_factory=WriterOptions)


def check_key(schema: Schema, key: Sequence[str]) -> tuple[int, ...]:
    """Field ids of the key columns, sorted.

    Raises:
        SchemaConflictError: a column that does not exist, or of a type that cannot identify a row (rule 25).
    """
    ids = []
    for name in key:
        if name not in schema.names:
            raise SchemaConflictError(f"key column {name!r} is not in the table; it has {', '.join(schema.names)}")
        column = schema.find(name)
        match column.type:
            case PrimitiveType(kind) if kind not in _ILLEGAL_KEYS:
                ids.append(column.field_id)
            case PrimitiveType() | ListType() | MapType() | StructType():
                raise SchemaConflictError(
                    f"key column {name!r} has type {column.type}: float, double, struct, list and map cannot be keys; "
                    "choose another key or cast the column"
                )
    return tuple(sorted(ids))


def write_rows(
    rows: pa.Table, target: WriteTarget, spec: PartitionSpec, *, key_ids: Sequence[int] = ()
) -> list[WrittenFile]:
    """Data files of `rows`, per partition of `spec`. Columns are found by name; missing ones are NULL."""
    if rows.num_rows == 0:
        return []
    table = conform(rows, target.schema)
    return [
        _write_data_file(piece, part, target, spec, frozenset(key_ids))
        for part in split_by_partition(table, target.schema, spec)
        for piece in _pieces(_sorted(part.rows, target), target.options)
    ]


def write_deletes(
    keys: pa.Table, target: WriteTarget, spec: PartitionSpec, key_ids: Sequence[int], *, prefix: str = ""
) -> list[WrittenFile]:
    """Equality-delete files of `keys`: the key columns, plus the source columns of `spec` where it is partitioned.

    Under an unpartitioned spec the deletes reach every file of the table (rule 4). File names begin with `prefix`.
    """
    if keys.num_rows == 0:
        return []
    key_schema = target.schema.select(tuple(sorted(key_ids)))
    parts: Iterator[PartitionedRows]
    if spec.is_unpartitioned:
        parts = iter([PartitionedRows((None,) * len(spec.fields), "", conform(keys, key_schema))])
    else:
        sources = tuple(dict.fromkeys((*sorted(key_ids), *(f.source_id for f in spec.fields))))
        wide = conform(keys, target.schema.select(sources))
        parts = split_by_partition(wide, target.schema, spec)
    return [_write_delete_file(part, target, spec, key_schema, prefix) for part in parts]


def describe_parquet(
    path: str,
    size: int,
    footer: pq.FileMetaData,
    *,
    target: WriteTarget,
    spec: PartitionSpec,
    partition: tuple[object, ...],
    nans: Mapping[int, int] | None = None,
) -> WrittenFile:
    """The facts of a data file that somebody else wrote, with field ids, for a commit."""
    return WrittenFile(
        path=path,
        content=FileContent.DATA,
        spec_id=spec.spec_id,
        partition=partition,
        record_count=footer.num_rows,
        file_size_bytes=size,
        metrics=parquet_metrics(footer, target.schema, nan_counts=nans),
        sort_order_id=0,
    )


def _pieces(rows: pa.Table, options: WriterOptions) -> Iterator[pa.Table]:
    per_row = max(1, rows.nbytes // max(1, rows.num_rows))
    step = max(1, options.file_bytes // per_row)
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _write_data_file(
    rows: pa.Table, part: PartitionedRows, target: WriteTarget, spec: PartitionSpec, key_ids: frozenset[int]
) -> WrittenFile:
    path = _file_path(target, part.folder, "")
    blooms = bloom_filters([target.schema.field(i) for i in key_ids], rows.num_rows, target.options)
    dictionaries = dictionary_columns(rows) if target.options.sample_dictionaries else True
    encodings = None
    if target.options.encode_numbers and isinstance(dictionaries, list):
        encodings = number_encodings(rows.schema, dictionaries)
    footer, size = write_parquet(
        rows,
        path,
        target.storage,
        target.options,
        use_dictionary=dictionaries,
        column_encoding=encodings,
        bloom_filter_options=blooms,
    )
    return WrittenFile(
        path=path,
        content=FileContent.DATA,
        spec_id=spec.spec_id,
        partition=part.values,
        record_count=rows.num_rows,
        file_size_bytes=size,
        metrics=parquet_metrics(footer, target.schema, nan_counts=nan_counts(rows, target.schema), key_ids=key_ids),
        sort_order_id=0,
    )


def _write_delete_file(
    part: PartitionedRows, target: WriteTarget, spec: PartitionSpec, key_schema: Schema, prefix: str
) -> WrittenFile:
    names = list(key_schema.names)
    keys = in_order(part.rows.select(names), names)
    path = _file_path(target, part.folder, "-eq-deletes", prefix and f"{prefix}-")
    encodings = {f.name: delta_encoding(f.type) for f in key_schema.fields}  # type: ignore[arg-type] # keys are primitive
    footer, size = write_parquet(
        keys,
        path,
        target.storage,
        target.options,
        use_dictionary=False,
        column_encoding={n: e for n, e in encodings.items() if e is not None} or None,
        bloom_filter_options=bloom_filters(key_schema.fields, keys.num_rows, target.options),
    )
    ids = tuple(f.field_id for f in key_schema.fields)
    return WrittenFile(
        path=path,
        content=FileContent.EQUALITY_DELETES,
        spec_id=spec.spec_id,
        partition=part.values,
        record_count=keys.num_rows,
        file_size_bytes=size,
        metrics=parquet_metrics(footer, target.schema, key_ids=frozenset(ids)),
        equality_ids=ids,
        sort_order_id=0,
    )


def _sorted(rows: pa.Table, target: WriteTarget) -> pa.Table:
    """The rows of a data file as the options ask."""
    names = target.options.sort_by
    check_order(rows, names, target.schema)
    return in_order(rows, names) if names else rows


def _file_path(target: WriteTarget, folder: str, suffix: str, prefix: str = "") -> str:
    parts = [target.data_location, folder, f"{prefix}{uuid.uuid4().hex}{suffix}.parquet"]
    return "/".join(p for p in parts if p)


__all__ = [
    "WriteTarget",
    "WriterOptions",
    "check_key",
    "describe_parquet",
    "parquet_schema",
    "write_deletes",
    "write_rows",
]
